"""SIGKILL of a gateway for S3 in a loop: what was answered is there, what was not is there as a whole or not at all, no
entry is without its object, and after settling no raw object is without an entry.

Workers have keys of their own, so each knows what its keys may hold. A key of which a request was not answered is left
alone from then on: both outcomes are right. SIPHON_TEST_LONG=1 runs many rounds.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import threading
import time

import pytest

from conftest import BINARY, CHROOT, eventually, free_port, run_live
from s3_cluster import read_env
from test_s3 import Endpoint

boto3 = pytest.importorskip("boto3")
from botocore.config import Config
from botocore.exceptions import ClientError, ConnectionError, HTTPClientError

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
ROUNDS = int(os.environ.get("SIPHON_TEST_ROUNDS", 100 if LONG else 4))
WORKERS = 5
MIB = 1 << 20
PLAIN, VERSIONED = "plain", "versioned"
SEED = int(os.environ.get("SIPHON_TEST_SEED", random.randrange(1 << 32)))


class Gateway:
    """`siphon s3`, which is killed."""

    def __init__(self, conf, env):
        self.conf, self.env, self.port = conf, env, free_port()
        self.process = None

    def start(self):
        argv = [str(BINARY), "s3", "--conf", str(self.conf), "--bind", f"127.0.0.1:{self.port}", "--threads", "1"]
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = self.process.stdout.readline()
        while said and "S3 is served" not in said:
            said = self.process.stdout.readline()
        assert said, "the gateway ended"
        # Its log is thrown away, or it would stand still with a full pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def client(self):
        return client(self.port, self.env)


def client(port, env):
    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
                        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"], region_name="us-east-1",
                        config=Config(retries={"max_attempts": 0}, read_timeout=60, s3={"addressing_style": "path"}))


class Unanswered(Exception):
    """A request was sent and has no answer."""


def md5(data):
    return hashlib.md5(data).hexdigest()


def asked(call, **kw):
    try:
        return call(**kw)
    except (ConnectionError, HTTPClientError) as e:
        raise Unanswered from e
    except ClientError as e:
        # The gateway may be about to die. What it says of itself is no outcome.
        if e.response["Error"]["Code"] in ("ServiceUnavailable", "SlowDown"):
            raise Unanswered from e
        raise


class Plain:
    """A key without versions: `may` is what it may hold."""

    def __init__(self, s3, name, draw):
        self.s3, self.name, self.draw = s3, name, draw
        self.may, self.closed = {None}, False
        self.upload = None

    def change(self, to, call, **kw):
        self.may.add(to)
        try:
            answer = asked(call, Bucket=PLAIN, Key=self.name, **kw)
        except Unanswered:
            self.closed = True
            raise
        self.may = {to}
        return answer

    def put(self):
        data = self.draw.data()
        self.change(md5(data), self.s3.put_object, Body=data)

    def delete(self):
        self.change(None, self.s3.delete_object)

    def multipart(self):
        parts = [self.draw.bytes(5 * MIB), self.draw.data()]
        whole = md5(b"".join(parts))
        kw = {"Bucket": PLAIN, "Key": self.name}
        try:
            upload = asked(self.s3.create_multipart_upload, **kw)["UploadId"]
            self.upload = (upload, {})
            for number, part in enumerate(parts, 1):
                tag = asked(self.s3.upload_part, UploadId=upload, PartNumber=number, Body=part, **kw)["ETag"]
                self.upload[1][number] = tag
        except Unanswered:
            self.closed = True
            raise
        done = {"Parts": [{"PartNumber": n, "ETag": t} for n, t in self.upload[1].items()]}
        ends, self.upload = self.upload, None
        if self.draw.random.random() < 0.2:
            # An upload that is given up and one that is not are both right while no answer came.
            try:
                asked(self.s3.abort_multipart_upload, UploadId=ends[0], **kw)
            except Unanswered:
                self.closed = True
                raise
        else:
            self.change(whole, self.s3.complete_multipart_upload, UploadId=ends[0], MultipartUpload=done)

    def copy(self, source):
        """A copy of a key with a content that is known."""
        [content] = source.may
        if content is not None and not source.closed:
            self.change(content, self.s3.copy_object, CopySource={"Bucket": PLAIN, "Key": source.name})

    def work(self, others):
        what = self.draw.random.choices(["put", "delete", "multipart", "copy"], [5, 2, 1, 2])[0]
        if what == "copy":
            known = [k for k in others if not k.closed and len(k.may) == 1]
            return self.copy(self.draw.random.choice(known)) if known else None
        getattr(self, what)()


class Versioned:
    """A key with versions: those that were answered, and what one unanswered request may have done."""

    def __init__(self, s3, name, draw):
        self.s3, self.name, self.draw = s3, name, draw
        self.versions, self.closed, self.open = {}, False, None

    def change(self, open, call, **kw):
        self.open = open
        try:
            answer = asked(call, Bucket=VERSIONED, Key=self.name, **kw)
        except Unanswered:
            self.closed = True
            raise
        self.open = None
        return answer

    def put(self):
        data = self.draw.data()
        self.versions[self.change(("made", md5(data)), self.s3.put_object, Body=data)["VersionId"]] = md5(data)

    def mark(self):
        self.versions[self.change(("made", None), self.s3.delete_object)["VersionId"]] = None

    def remove(self):
        if self.versions:
            version = self.draw.random.choice(list(self.versions))
            self.change(("removed", version), self.s3.delete_object, VersionId=version)
            del self.versions[version]

    def work(self, _):
        getattr(self, self.draw.random.choices(["put", "mark", "remove"], [4, 1, 2])[0])()


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def bytes(self, length):
        return self.random.randbytes(1 << 10) * (length >> 10) + self.random.randbytes(length & 1023)

    def data(self):
        small = self.random.random() < 0.75
        return self.bytes(self.random.randrange(0, 20_000) if small else self.random.randrange(4 * MIB - 10, 9 * MIB))


class Load:
    """Workers until the gateway is gone, or they are told to stop."""

    def __init__(self, gateway, turn, versioned=Versioned):
        self.versioned = versioned
        self.keys, self.wrong, self.answered, self.stopping = [], [], 0, False
        self.threads = [threading.Thread(target=self.work, args=(gateway.client(), turn, n)) for n in range(WORKERS)]
        for t in self.threads:
            t.start()

    def work(self, s3, turn, n):
        draw = Draw(SEED * 1_000_003 + turn * 101 + n)
        kinds = [Plain if k % 3 else self.versioned for k in range(6)]
        keys = [kind(s3, f"r{turn}/w{n}/{k}", draw) for k, kind in enumerate(kinds)]
        self.keys.extend(keys)
        try:
            while not self.stopping:
                key = draw.random.choice([k for k in keys if not k.closed])
                key.work([k for k in keys if isinstance(k, Plain) and k is not key])
                self.answered += 1
        except Unanswered:
            pass
        except Exception as e:  # An answer that is wrong, say.
            self.wrong.append(f"worker {n}: {e!r}")

    def ended(self):
        for t in self.threads:
            t.join(120)
            assert not t.is_alive(), "a worker waits for a gateway that is gone"
        assert not self.wrong, self.wrong


def content(s3, bucket, key, **kw):
    return md5(s3.get_object(Bucket=bucket, Key=key, **kw)["Body"].read())


def look(s3, keys):
    """What is not as it was answered."""
    wrong = []
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=PLAIN, PaginationConfig={"PageSize": 100})
    listed = {o["Key"]: o for p in pages for o in p.get("Contents", [])}
    uploads = s3.list_multipart_uploads(Bucket=PLAIN).get("Uploads", [])
    uploads = {(u["Key"], u["UploadId"]) for u in uploads}
    versions = {}
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=VERSIONED, PaginationConfig={"PageSize": 100}):
        for v in page.get("Versions", []):
            versions.setdefault(v["Key"], {})[v["VersionId"]] = content(s3, VERSIONED, v["Key"], VersionId=v["VersionId"])
        for v in page.get("DeleteMarkers", []):
            versions.setdefault(v["Key"], {})[v["VersionId"]] = None
    for key in keys:
        if isinstance(key, Plain):
            found = content(s3, PLAIN, key.name) if key.name in listed else None
            if found not in key.may:
                wrong.append(f"{key.name}: {found} is there, {key.may} was written")
            if key.name not in listed:
                try:
                    s3.head_object(Bucket=PLAIN, Key=key.name)
                    wrong.append(f"{key.name} is there and in no list")
                except ClientError as e:
                    assert e.response["ResponseMetadata"]["HTTPStatusCode"] == 404, e
            if key.upload:
                upload, parts = key.upload
                if (key.name, upload) not in uploads:
                    wrong.append(f"the upload {upload} of {key.name} is gone")
                else:
                    there = {p["PartNumber"]: p["ETag"] for p in s3.list_parts(Bucket=PLAIN, Key=key.name, UploadId=upload).get("Parts", [])}
                    if not parts.items() <= there.items():
                        wrong.append(f"{key.name}: parts {there} are there, {parts} were answered")
        else:
            found, expected = versions.get(key.name, {}), dict(key.versions)
            kind, value = key.open or (None, None)
            if kind == "removed" and value not in found:
                del expected[value]
            more = {v: c for v, c in found.items() if v not in expected}
            if any(found.get(v, "gone") != c for v, c in expected.items()):
                wrong.append(f"{key.name}: {found} is there, {expected} was answered")
            if more and not (kind == "made" and list(more.values()) == [value]):
                wrong.append(f"{key.name}: {more} is there and was never written")
    extra = (set(listed) | set(versions)) - {k.name for k in keys}
    return wrong + [f"{name} was never written" for name in extra]


def give_up(s3, key, upload):
    """A completion that was cut holds its lock on the upload for ten minutes, as with radosgw; until then it stays."""
    try:
        s3.abort_multipart_upload(Bucket=PLAIN, Key=key, UploadId=upload)
    except ClientError as e:
        assert e.response["Error"]["Code"] == "OperationAborted", e


class Admin:
    def __init__(self, conf):
        self.conf = conf

    def text(self, *argv):
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, f"{argv}: {ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def rgw(self, *args):
        return self.text("radosgw-admin", "-c", str(self.conf), "-n", "client.admin", *args)

    def raw(self, pool):
        return set(self.text("rados", "-c", str(self.conf), "-p", pool, "ls").splitlines())

    def faults(self):
        """What Ceph's own tools find wrong."""
        wrong, known = [], set()
        for bucket in (PLAIN, VERSIONED):
            found = json.loads(self.rgw("bucket", "check", f"--bucket={bucket}"))
            if found["invalid_multipart_entries"]:
                wrong.append(f"{bucket}: {found['invalid_multipart_entries']}")
            headers = found["check_result"]
            totals = [{k: v for k, v in headers[h]["usage"].items() if k != "rgw.none" and v["num_objects"]}
                      for h in ("existing_header", "calculated_header")]
            if totals[0] != totals[1]:
                wrong.append(f"{bucket}: the header says {totals[0]}, entries {totals[1]}")
            known |= set(self.rgw("bucket", "radoslist", f"--bucket={bucket}").splitlines())
        there = self.raw("default.rgw.buckets.data")
        wrong += [f"{name} is an orphan" for name in sorted(there - known)]
        wrong += [f"{name} is missing" for name in sorted(known - there)]
        if json.loads(self.rgw("gc", "list", "--include-all")):
            wrong.append("garbage is left")
        return wrong

    def tell(self, name, keys):
        """What there is to know of a raw object and of its key: printed when something is wrong."""
        pool = "default.rgw.buckets.data"

        def say(*argv, limit=4000):
            ran = subprocess.run(argv, capture_output=True, timeout=300)
            text = ran.stdout.decode(errors="backslashreplace") + ran.stderr.decode(errors="backslashreplace")
            print("$", *argv[3:], "\n", text[:limit])
            return ran.stdout

        rados = ("rados", "-c", str(self.conf))
        for attr in say(*rados, "-p", pool, "listxattr", name).decode().split():
            say(*rados, "-p", pool, "getxattr", name, attr, limit=300)
        say(*rados, "-p", pool, "stat", name)
        key = name.split("_", 1)[-1].lstrip("_")
        key = key.split("_", 1)[1] if key.startswith(":") else key
        for bucket in (PLAIN, VERSIONED):
            say("radosgw-admin", "-c", str(self.conf), "-n", "client.admin", "bi", "list", f"--bucket={bucket}", f"--object={key}")
            say("radosgw-admin", "-c", str(self.conf), "-n", "client.admin", "olh", "readlog", f"--bucket={bucket}",
                f"--object={key}")
        for shard in range(32):
            notes = subprocess.run((*rados, "-p", "default.rgw.log", "-N", "siphon", "listomapvals", f"changes.{shard}"),
                                   capture_output=True, timeout=300).stdout
            if notes:
                print(f"changes.{shard}:", notes.decode(errors="backslashreplace"))
        print(f"the model of {key}:", [vars(k) for k in keys if k.name == key])


def settle(conf):
    """What gateways left that ended is settled, without waiting for a day."""
    run_live("s3-layout", "what_gateways_left", SIPHON_TEST_CEPH_CONF=str(conf))


def check(beside, admin, keys, turn, settle):
    """Another gateway sees the same, at once and after what was left is settled."""
    wrong = look(beside, keys)
    assert not wrong, (SEED, turn, wrong)
    for upload in beside.list_multipart_uploads(Bucket=PLAIN).get("Uploads", []):
        give_up(beside, upload["Key"], upload["UploadId"])
    for key in keys:
        key.upload = None
    settle()
    wrong = look(beside, keys) + admin.faults()
    for what in wrong[:3]:
        admin.tell(what.split()[0].rstrip(":"), keys)
    assert not wrong, (SEED, turn, wrong)


def test_a_gateway_that_is_killed(siphon_factory):
    missing = [p for p in ("radosgw-admin", "rados") if not shutil.which(p)]
    assert not missing, f"not installed: {missing}"
    cluster = siphon_factory(extra=["--s3", str(free_port())])
    cluster.start(timeout=120)
    env = read_env(cluster.directory / "s3.env")
    beside = Endpoint(env["AWS_ENDPOINT_URL"], env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"]).client()
    for bucket in (PLAIN, VERSIONED):
        beside.create_bucket(Bucket=bucket)
    beside.put_bucket_versioning(Bucket=VERSIONED, VersioningConfiguration={"Status": "Enabled"})
    gateway, admin, keys = Gateway(cluster.conf, env), Admin(cluster.conf), []
    print(f"SIPHON_TEST_SEED={SEED}")
    moments = random.Random(SEED)
    for turn in range(ROUNDS):
        gateway.start()
        load = Load(gateway, turn)
        try:
            # The moment is random, and something was answered before it.
            eventually(lambda: load.answered >= 3, 60, "answers")
            time.sleep(moments.uniform(0, 2))
        finally:
            gateway.kill()
        load.ended()
        keys += load.keys
        if turn % 10 == 9 or turn == ROUNDS - 1:
            check(beside, admin, keys, turn, lambda: settle(cluster.conf))
