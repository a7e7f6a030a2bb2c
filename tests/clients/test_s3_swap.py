"""Ceph's own gateway and ours on the same buckets: each change and each look is made through one of the two, drawn at
random, and what a model says must be there is there, through both.

A model knows all contents, versions in their order, uploads with their parts. Changes come one after the other, so there
is one right answer to each. SIPHON_TEST_LONG=1 runs it, SIPHON_TEST_SEED repeats a run, SIPHON_TEST_CONF names the cluster, a stock one for example.
"""
import hashlib
import json
import os
import random
import shutil
from collections import Counter

import pytest

from conftest import CHROOT, eventually
from s3_cluster import Served
from test_s3 import Endpoint, Stock

boto3 = pytest.importorskip("boto3")
from botocore.exceptions import ClientError

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
STEPS = int(os.environ.get("SIPHON_TEST_STEPS", 3000))
# After so many steps everything is looked at, and not only the key that was changed.
WHOLE = 150
SEED = int(os.environ.get("SIPHON_TEST_SEED", random.randrange(1 << 32)))
MIB = 1 << 20
# Neither %XX nor +: stock 16.2 does not encode NextKeyMarker of a list of versions, which boto3 decodes all the same.
KEYS = ["a", "_under", "__two", "dir/", "dir/a", "dir/\u00e4 &", "\ue000 %", "z" * 60]
PLAIN, VERSIONED = "plain", "versioned"


def md5(data):
    return hashlib.md5(data).hexdigest()


class Object:
    """Content, or a delete marker (without content)."""

    def __init__(self, data, etag, meta, version, tags=()):
        self.data, self.etag, self.meta, self.version, self.tags = data, etag, meta, version, list(tags)

    @property
    def marker(self):
        return self.data is None


class Upload:
    """An upload in parts, and how many of them were written again, by which gateways."""

    def __init__(self, key):
        self.key, self.parts, self.again, self.again_by = key, {}, 0, set()


class Model:
    """What a bucket must have: versions of each key, the newest first, and uploads.

    Stock 16.2 leaves entries of parts that were written again in the index, on a stock cluster too: if it wrote them again itself, or
    completes the upload. `left` counts those by key.
    """

    def __init__(self, bucket):
        self.bucket, self.keys, self.uploads, self.versioning = bucket, {}, {}, None
        self.left = Counter()

    def current(self, key):
        versions = self.keys.get(key, [])
        return versions[0] if versions and not versions[0].marker else None

    def add(self, key, made):
        versions = self.keys.setdefault(key, [])
        if made.version == "null":
            versions[:] = [v for v in versions if v.version != "null"]
        versions.insert(0, made)

    def remove(self, key, version):
        self.keys[key] = [v for v in self.keys.get(key, []) if v.version != version]


class Walk:
    def __init__(self, gateways, seed):
        self.gateways, self.random = gateways, random.Random(seed)
        self.trace = []
        self.models = {name: Model(name) for name in (PLAIN, VERSIONED)}

    def gateway(self):
        name = self.random.choice(list(self.gateways))
        return name, self.gateways[name]

    def name(self, s3):
        return next(name for name, gateway in self.gateways.items() if gateway is s3)

    def data(self):
        size = self.random.choice([0, 1, 5000, 70_000, 300_000]) if self.random.random() < 0.93 else 4 * MIB + self.random.randrange(MIB)
        return self.random.randbytes(1024) * (size >> 10) + self.random.randbytes(size & 1023)

    def made_version(self, model, answer):
        return answer["VersionId"] if model.versioning == "Enabled" else "null"

    def newest(self, s3, model, key):
        """The id of the newest version: stock's CopyObject and completions do not tell it in each release."""
        if model.versioning != "Enabled":
            return "null"
        found = s3.list_object_versions(Bucket=model.bucket, Prefix=key, MaxKeys=100)
        return next(v["VersionId"] for v in found["Versions"] if v["Key"] == key)

    # Changes: each returns the key that it changed.

    def put(self, s3, model, key):
        data, meta, tags = self.data(), {"n": str(self.random.randrange(100))}, []
        kw = {}
        if self.random.random() < 0.3:
            tags = [("t", str(self.random.randrange(9)))]
            kw["Tagging"] = f"t={tags[0][1]}"
        answer = s3.put_object(Bucket=model.bucket, Key=key, Body=data, Metadata=meta, ContentType="text/x", **kw)
        assert answer["ETag"] == f'"{md5(data)}"'
        model.add(key, Object(data, md5(data), meta, self.made_version(model, answer), tags))

    def delete(self, s3, model, key):
        if model.versioning is None:
            s3.delete_object(Bucket=model.bucket, Key=key)
            model.remove(key, "null")
            return
        versions = model.keys.get(key, [])
        if versions and versions[0].marker:
            # Stock answers a marker that it did not make; that a marker follows a marker is asked of no gateway.
            return
        answer = s3.delete_object(Bucket=model.bucket, Key=key)
        assert answer["DeleteMarker"] is True
        model.add(key, Object(None, None, None, self.made_version(model, answer)))

    def remove(self, s3, model, key):
        versions = model.keys.get(key, [])
        if model.versioning is None or not versions:
            return self.delete(s3, model, key)
        version = self.random.choice(versions)
        s3.delete_object(Bucket=model.bucket, Key=key, VersionId=version.version)
        model.remove(key, version.version)

    def delete_many(self, s3, model, key):
        if model.versioning is None:
            keys = self.random.sample(KEYS, 3)
            what = [{"Key": k} for k in keys]
        else:
            all_versions = [(k, v.version) for k, versions in model.keys.items() for v in versions]
            keys = self.random.sample(all_versions, min(2, len(all_versions)))
            what = [{"Key": k, "VersionId": v} for k, v in keys]
        if not what:
            return
        answer = s3.delete_objects(Bucket=model.bucket, Delete={"Objects": what})
        assert not answer.get("Errors") and len(answer["Deleted"]) == len(what), answer
        for one in what:
            model.remove(one["Key"], one.get("VersionId", "null"))

    def copy(self, s3, model, key):
        sources = [(m, k, v) for m in self.models.values() for k, versions in m.keys.items() for v in versions if not v.marker]
        if not sources:
            return
        source_model, source_key, source = self.random.choice(sources)
        if source_model is model and source_key == key:
            return
        where = {"Bucket": source_model.bucket, "Key": source_key}
        if source_model.versioning is not None:
            where["VersionId"] = source.version
        s3.copy_object(Bucket=model.bucket, Key=key, CopySource=where)
        version = self.newest(s3, model, key)
        model.add(key, Object(source.data, source.etag, source.meta, version, source.tags))

    def tag(self, s3, model, key):
        current = model.current(key)
        if current:
            current.tags = [("t", str(self.random.randrange(9)))]
            tags = [{"Key": k, "Value": v} for k, v in current.tags]
            s3.put_object_tagging(Bucket=model.bucket, Key=key, Tagging={"TagSet": tags})

    def begin(self, s3, model, key):
        if len(model.uploads) < 4:
            meta = {"n": "upload"}
            upload = s3.create_multipart_upload(Bucket=model.bucket, Key=key, Metadata=meta, ContentType="text/x")["UploadId"]
            model.uploads[upload] = Upload(key)

    def part(self, s3, model, key):
        if not model.uploads:
            return self.begin(s3, model, key)
        upload = self.random.choice(list(model.uploads))
        known = model.uploads[upload]
        key, parts = known.key, known.parts
        number = self.random.randrange(1, 4)
        data = self.random.randbytes(1024) * (5 << 10) + self.random.randbytes(self.random.randrange(2000))
        tag = s3.upload_part(Bucket=model.bucket, Key=key, UploadId=upload, PartNumber=number, Body=data)["ETag"]
        assert tag == f'"{md5(data)}"'
        if number in parts:
            known.again += 1
            known.again_by.add(self.name(s3))
        parts[number] = data

    def end(self, s3, model, key):
        if not model.uploads:
            return self.begin(s3, model, key)
        upload = self.random.choice(list(model.uploads))
        known = model.uploads.pop(upload)
        key, parts = known.key, known.parts
        where = {"Bucket": model.bucket, "Key": key, "UploadId": upload}
        aborts = not parts or self.random.random() < 0.2
        if "stock" in known.again_by or (self.name(s3) == "stock" and not aborts):
            model.left[key] += known.again
        if aborts:
            s3.abort_multipart_upload(**where)
            return
        done = [{"PartNumber": n, "ETag": f'"{md5(parts[n])}"'} for n in sorted(parts)]
        etag = f'{md5(b"".join(hashlib.md5(parts[n]).digest() for n in sorted(parts)))}-{len(parts)}'
        answer = s3.complete_multipart_upload(**where, MultipartUpload={"Parts": done})
        # Stock 16.2 answers an empty tag now and then; what it made is looked at.
        assert answer["ETag"].strip('"') in (etag, ""), answer
        data = b"".join(parts[n] for n in sorted(parts))
        model.add(key, Object(data, etag, {"n": "upload"}, self.newest(s3, model, key)))

    def end_uploads(self):
        for model in self.models.values():
            for upload, known in model.uploads.items():
                if "stock" in known.again_by:
                    model.left[known.key] += known.again
                self.gateway()[1].abort_multipart_upload(Bucket=model.bucket, Key=known.key, UploadId=upload)
            model.uploads.clear()

    def step(self):
        gateway, s3 = self.gateway()
        model = self.models[self.random.choice([PLAIN, VERSIONED])]
        key = self.random.choice(KEYS)
        what = self.random.choices(
            [self.put, self.delete, self.remove, self.delete_many, self.copy, self.tag, self.begin, self.part, self.end],
            [8, 3, 3, 1, 3, 2, 1, 4, 2])[0]
        self.trace.append(f"{gateway}: {what.__name__} {model.bucket}/{key}")
        what(s3, model, key)
        name, reader = self.gateway()
        self.trace.append(f"{name} looks at {key}")
        self.look_at_key(reader, model, key)
        self.look_at_lists(reader, model)

    # Looks.

    def look_at_key(self, s3, model, key):
        where = {"Bucket": model.bucket, "Key": key}
        current = model.current(key)
        if current is None:
            with pytest.raises(ClientError) as e:
                s3.get_object(**where)
            assert e.value.response["Error"]["Code"] == "NoSuchKey", e.value
        for version in model.keys.get(key, []):
            if version.marker:
                continue
            kw = where if model.versioning is None else {**where, "VersionId": version.version}
            for kw in [where, kw] if version is current else [kw]:
                found = s3.get_object(**kw)
                assert found["Body"].read() == version.data
                assert (found["ETag"].strip('"'), found["Metadata"], found["ContentType"]) == (version.etag, version.meta, "text/x")
                if model.versioning is not None:
                    assert found["VersionId"] == version.version
                tags = s3.get_object_tagging(**kw)["TagSet"]
                assert [(t["Key"], t["Value"]) for t in tags] == version.tags
                size = len(version.data)
                if size > 5 * MIB:
                    first = self.random.choice([4 * MIB, 5 * MIB]) - 5
                    got = s3.get_object(**kw, Range=f"bytes={first}-{first + 9}")["Body"].read()
                    assert got == version.data[first:first + 10]

    def look_at_lists(self, s3, model):
        size = self.random.choice([1, 3, 1000])
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=model.bucket, PaginationConfig={"PageSize": size})
        listed = [(o["Key"], o["ETag"].strip('"'), o["Size"]) for p in pages for o in p.get("Contents", [])]
        keys = sorted((k for k in KEYS if model.current(k)), key=str.encode)
        assert listed == [(k, model.current(k).etag, len(model.current(k).data)) for k in keys]
        folders = s3.list_objects_v2(Bucket=model.bucket, Delimiter="/")
        prefixes = sorted({k[:k.index("/") + 1] for k in keys if "/" in k})
        assert [p["Prefix"] for p in folders.get("CommonPrefixes", [])] == prefixes
        assert [o["Key"] for o in folders.get("Contents", [])] == [k for k in keys if "/" not in k]
        if model.versioning is not None:
            self.look_at_versions(s3, model, size)
        uploads = s3.list_multipart_uploads(Bucket=model.bucket).get("Uploads", [])
        assert sorted((u["Key"], u["UploadId"]) for u in uploads) == sorted((known.key, u) for u, known in model.uploads.items())
        for upload, known in model.uploads.items():
            parts = known.parts
            found = s3.list_parts(Bucket=model.bucket, Key=known.key, UploadId=upload).get("Parts", [])
            expected = [(n, md5(parts[n]), len(parts[n])) for n in sorted(parts)]
            assert [(p["PartNumber"], p["ETag"].strip('"'), p["Size"]) for p in found] == expected

    def look_at_versions(self, s3, model, size):
        pages = s3.get_paginator("list_object_versions").paginate(Bucket=model.bucket, PaginationConfig={"PageSize": size})
        versions, markers = [], []
        for page in pages:
            versions += [(v["Key"], v["VersionId"], v["IsLatest"], v["ETag"].strip('"'), v["Size"]) for v in page.get("Versions", [])]
            markers += [(v["Key"], v["VersionId"], v["IsLatest"]) for v in page.get("DeleteMarkers", [])]
        keys = sorted(model.keys, key=str.encode)
        every = [(k, v, n == 0) for k in keys for n, v in enumerate(model.keys[k])]
        assert versions == [(k, v.version, latest, v.etag, len(v.data)) for k, v, latest in every if not v.marker]
        assert markers == [(k, v.version, latest) for k, v, latest in every if v.marker]

    def look_at_all(self):
        for s3 in self.gateways.values():
            for model in self.models.values():
                for key in KEYS:
                    self.look_at_key(s3, model, key)
                self.look_at_lists(s3, model)


def without_expect(params, **_):
    params["headers"].pop("Expect", None)


@pytest.fixture(scope="module")
def gateways(siphon_factory, tmp_path_factory):
    missing = [p for p in ("radosgw", "radosgw-admin") if not shutil.which(p)]
    assert not missing, f"not installed: {missing}"
    served = Served(siphon_factory)
    keys = served.access, served.secret
    stock = Stock(served.conf, tmp_path_factory.mktemp("radosgw"))
    stock.start()
    clients = {"ours": Endpoint(served.url, *keys).client(), "stock": Endpoint(stock.url, *keys).client()}
    for s3 in clients.values():
        # A "100 Continue" that comes after more than a second is taken for the answer by the installed botocore.
        s3.meta.events.register_last("before-call.s3", without_expect)
    yield clients, stock
    stock.process.terminate()
    stock.process.wait(timeout=60)
    served.stop()


@pytest.mark.skipif(not LONG, reason="SIPHON_TEST_LONG=1 runs it")
def test_gateways_are_swapped_at_random(gateways):
    clients, stock = gateways
    print(f"SIPHON_TEST_SEED={SEED}")
    walk = Walk(clients, SEED)
    for model in walk.models.values():
        clients["ours"].create_bucket(Bucket=model.bucket)
    versioned = walk.models[VERSIONED]
    clients["stock"].put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
    for s3 in clients.values():
        eventually(lambda: s3.get_bucket_versioning(Bucket=VERSIONED).get("Status") == "Enabled")
    versioned.versioning = "Enabled"
    try:
        for n in range(STEPS):
            walk.step()
            if n % WHOLE == WHOLE - 1:
                walk.trace.append("all is looked at")
                walk.look_at_all()
        # A part that was uploaded twice has another name than its upload, and counts as invalid as long as that is open.
        walk.end_uploads()
        walk.look_at_all()
        for bucket, model in walk.models.items():
            found = json.loads(stock.admin("bucket", "check", f"--bucket={bucket}"))
            left = Counter()
            for entry in found["invalid_multipart_entries"]:
                # _multipart_KEY.UPLOAD.PART
                left[entry.removeprefix("_multipart_").rsplit(".", 2)[0]] += 1
            assert left <= model.left, f"{bucket}: {left - model.left} more than {model.left}"
            headers = found["check_result"]
            totals = [{k: v for k, v in headers[h]["usage"].items() if k != "rgw.none" and v["num_objects"]}
                      for h in ("existing_header", "calculated_header")]
            assert totals[0] == totals[1], bucket
    except BaseException:
        print(f"SIPHON_TEST_SEED={SEED}", *walk.trace, sep="\n")
        raise
