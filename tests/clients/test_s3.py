"""Our own S3 gateway: boto3, s3cmd and rclone through `siphon up --s3`, and stock radosgw beside it on the same buckets.

SIPHON_TEST_S3=ENDPOINT,ACCESS,SECRET runs the first part against any other gateway (radosgw, the in-memory
example of crates/daemons/s3-gateway): what it expects is S3's behaviour, not ours. With SIPHON_TEST_CONF, our gateway and
radosgw are started on the cluster of that ceph.conf.
"""
import base64
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zlib

import pytest

import s3_tools
from conftest import CHROOT, eventually, free_port
from s3_cluster import Served

boto3 = pytest.importorskip("boto3")
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

PART = 5 << 20


class Endpoint:
    def __init__(self, url, access, secret, cluster=None):
        self.url, self.access, self.secret, self.cluster = url, access, secret, cluster

    def client(self, access=None, secret=None, **config):
        return boto3.client("s3", endpoint_url=self.url, aws_access_key_id=access or self.access,
                            aws_secret_access_key=secret or self.secret, region_name="us-east-1",
                            config=Config(retries={"max_attempts": 1}, signature_version="s3v4", **config))


@pytest.fixture(scope="module")
def endpoint(request):
    given = os.environ.get("SIPHON_TEST_S3")
    if given:
        return Endpoint(*given.split(","))
    served = Served(request.getfixturevalue("siphon_factory"))
    request.addfinalizer(served.stop)
    return Endpoint(served.url, served.access, served.secret, served)


@pytest.fixture(scope="module")
def s3(endpoint):
    return endpoint.client()


@pytest.fixture
def bucket(s3):
    name = f"b-{uuid.uuid4().hex[:16]}"
    s3.create_bucket(Bucket=name)
    return name


def body(s3, bucket, key, **kw):
    return s3.get_object(Bucket=bucket, Key=key, **kw)["Body"].read()


def keys_of(page):
    return [o["Key"] for o in page.get("Contents", [])]


def refused(code, call, **kw):
    with pytest.raises(ClientError) as e:
        call(**kw)
    assert e.value.response["Error"]["Code"] == code, e.value
    return e.value.response


def test_answers_without_a_continue_are_told_apart(endpoint):
    """botocore sends `Expect: 100-continue`. It takes the answer to a request that was not told to go on, as one with an
    empty body or a refused one, and the next on the connection for the same, unless the connection ends."""
    s3 = endpoint.client(max_pool_connections=1, read_timeout=20, s3={"addressing_style": "path"})
    bucket = f"expect-{uuid.uuid4().hex[:8]}"
    s3.create_bucket(Bucket=bucket)
    for body in (b"", b"x", b"", b"yy"):
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
    for body in (b"one", b"two"):
        with pytest.raises(ClientError):
            s3.put_object(Bucket=f"none-{bucket}", Key="k", Body=body)
        s3.put_object(Bucket=bucket, Key="k", Body=body)
        assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)


def test_buckets(s3, bucket):
    assert bucket in [b["Name"] for b in s3.list_buckets()["Buckets"]]
    s3.head_bucket(Bucket=bucket)
    s3.get_bucket_location(Bucket=bucket)
    refused("404", s3.head_bucket, Bucket=bucket + "x")
    refused("NoSuchBucket", s3.list_objects, Bucket=bucket + "x")
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    refused("BucketNotEmpty", s3.delete_bucket, Bucket=bucket)
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)
    refused("NoSuchBucket", s3.list_objects, Bucket=bucket)


@pytest.mark.parametrize("size", [0, 1, 100_000, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9 << 20])
def test_objects_of_many_sizes(s3, bucket, size):
    data = os.urandom(size)
    put = s3.put_object(Bucket=bucket, Key="a", Body=data, Metadata={"color": "blue"}, ContentType="text/x")
    assert put["ETag"].strip('"') == hashlib.md5(data).hexdigest()
    assert body(s3, bucket, "a") == data
    head = s3.head_object(Bucket=bucket, Key="a")
    assert (head["ContentLength"], head["Metadata"], head["ContentType"]) == (size, {"color": "blue"}, "text/x")
    for first, last in [(0, 0), (size // 2, size - 1), (size - 10, size + 5), ((4 << 20) - 5, (4 << 20) + 5)]:
        if 0 <= first < size:
            assert body(s3, bucket, "a", Range=f"bytes={first}-{last}") == data[first:last + 1]
    if size:
        assert body(s3, bucket, "a", Range="bytes=-1") == data[-1:]
    refused("InvalidRange", s3.get_object, Bucket=bucket, Key="a", Range=f"bytes={size}-")
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "a"})
    s3.delete_object(Bucket=bucket, Key="a")
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="a")
    assert body(s3, bucket, "copy") == data


def test_conditions(s3, bucket):
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    assert body(s3, bucket, "k", IfMatch=tag) == b"1"
    refused("PreconditionFailed", s3.get_object, Bucket=bucket, Key="k", IfMatch='"x"')
    assert refused("304", s3.get_object, Bucket=bucket, Key="k", IfNoneMatch=tag)
    with_header = lambda name, value: lambda request, **_: request.headers.add_header(name, value)
    for header, value, key, code in [("If-None-Match", "*", "k", "PreconditionFailed"), ("If-None-Match", "*", "new", None),
                                     ("If-Match", '"x"', "k", "PreconditionFailed"), ("If-Match", tag, "k", None)]:
        hook = with_header(header, value)
        s3.meta.events.register("before-sign.s3.PutObject", hook)
        try:
            if code:
                refused(code, s3.put_object, Bucket=bucket, Key=key, Body=b"2")
            else:
                s3.put_object(Bucket=bucket, Key=key, Body=b"2")
        finally:
            s3.meta.events.unregister("before-sign.s3.PutObject", hook)
    assert body(s3, bucket, "k") == b"2"


def test_racing_creations_have_one_winner(endpoint, s3, bucket):
    wins = []

    def create(n):
        client = endpoint.client()
        client.meta.events.register("before-sign.s3.PutObject", lambda request, **_: request.headers.add_header("If-None-Match", "*"))
        try:
            client.put_object(Bucket=bucket, Key="one", Body=b"%d" % n)
            wins.append(n)
        except ClientError as e:
            assert e.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted"), e

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(wins) == 1
    assert body(s3, bucket, "one") == b"%d" % wins[0]


def test_lists(s3, bucket):
    names = [f"dir{n % 3}/{n:03}" for n in range(30)] + ["\u00e4\u4e16", "\ue000 after", "a b+c&d", "a//b"]
    for name in names:
        s3.put_object(Bucket=bucket, Key=name, Body=name.encode())
    ordered = sorted(names, key=str.encode)
    for operation in ("list_objects", "list_objects_v2"):
        pages = s3.get_paginator(operation).paginate(Bucket=bucket, PaginationConfig={"PageSize": 7})
        assert [k for p in pages for k in keys_of(p)] == ordered
        pages = list(s3.get_paginator(operation).paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 2}))
        assert [p["Prefix"] for page in pages for p in page.get("CommonPrefixes", [])] == ["a/", "dir0/", "dir1/", "dir2/"]
        assert [k for p in pages for k in keys_of(p)] == [n for n in ordered if "/" not in n]
    assert keys_of(s3.list_objects_v2(Bucket=bucket, Prefix="dir1/", MaxKeys=2)) == ["dir1/001", "dir1/004"]
    assert keys_of(s3.list_objects_v2(Bucket=bucket, Prefix="dir1/", StartAfter="dir1/025")) == ["dir1/028"]
    assert keys_of(s3.list_objects(Bucket=bucket, Prefix="dir1/", Marker="dir1/025")) == ["dir1/028"]
    found = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": n} for n in names]})
    assert sorted(d["Key"] for d in found["Deleted"]) == sorted(names)
    assert keys_of(s3.list_objects_v2(Bucket=bucket)) == []


def test_multipart(s3, bucket):
    data = os.urandom(2 * PART + 1000)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="m", Metadata={"a": "1"})["UploadId"]
    parts = [data[at:at + PART] for at in range(0, len(data), PART)]
    tags = [s3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=n, Body=p)["ETag"] for n, p in enumerate(parts, 1)]
    # A part that is written again replaces the first one.
    s3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=2, Body=b"other")
    again = s3.upload_part(Bucket=bucket, Key="m", UploadId=upload, PartNumber=2, Body=parts[1])
    assert again["ETag"] == tags[1]
    assert [p["ETag"] for p in s3.list_parts(Bucket=bucket, Key="m", UploadId=upload)["Parts"]] == tags
    assert [u["Key"] for u in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["m"]
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="m")
    done = [{"PartNumber": n, "ETag": t} for n, t in enumerate(tags, 1)]
    wrong = [{"PartNumber": 1, "ETag": tags[1]}]
    refused("InvalidPart", s3.complete_multipart_upload, Bucket=bucket, Key="m", UploadId=upload, MultipartUpload={"Parts": wrong})
    out = s3.complete_multipart_upload(Bucket=bucket, Key="m", UploadId=upload, MultipartUpload={"Parts": done})
    digests = b"".join(hashlib.md5(p).digest() for p in parts)
    assert out["ETag"].strip('"') == hashlib.md5(digests).hexdigest() + "-3"
    assert body(s3, bucket, "m") == data
    assert s3.head_object(Bucket=bucket, Key="m")["Metadata"] == {"a": "1"}
    assert body(s3, bucket, "m", Range=f"bytes={PART - 3}-{PART + 3}") == data[PART - 3:PART + 4]
    assert body(s3, bucket, "m", PartNumber=3) == parts[2]
    # Parts from another object.
    upload = s3.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
    source = {"Bucket": bucket, "Key": "m"}
    copied = [s3.upload_part_copy(Bucket=bucket, Key="c", UploadId=upload, PartNumber=n, CopySource=source,
                                  CopySourceRange=f"bytes={first}-{last}")["CopyPartResult"]["ETag"]
              for n, first, last in [(1, 1, PART), (2, 0, 9)]]
    done = [{"PartNumber": n, "ETag": t} for n, t in enumerate(copied, 1)]
    s3.complete_multipart_upload(Bucket=bucket, Key="c", UploadId=upload, MultipartUpload={"Parts": done})
    assert body(s3, bucket, "c") == data[1:PART + 1] + data[:10]
    left = s3.create_multipart_upload(Bucket=bucket, Key="left")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="left", UploadId=left, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=bucket, Key="left", UploadId=left)
    refused("NoSuchUpload", s3.list_parts, Bucket=bucket, Key="left", UploadId=left)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)


def test_versions(s3, bucket):
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"null")
    assert "VersionId" not in first
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    ids = [s3.put_object(Bucket=bucket, Key="k", Body=b"%d" % n)["VersionId"] for n in range(3)]
    gone = s3.delete_object(Bucket=bucket, Key="k")
    assert gone["DeleteMarker"]
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="k")
    assert keys_of(s3.list_objects_v2(Bucket=bucket)) == []
    for n, version in enumerate(ids):
        assert body(s3, bucket, "k", VersionId=version) == b"%d" % n
    assert body(s3, bucket, "k", VersionId="null") == b"null"
    found = s3.list_object_versions(Bucket=bucket)
    assert [v["VersionId"] for v in found["Versions"]] == [*reversed(ids), "null"]
    assert [(m["VersionId"], m["IsLatest"]) for m in found["DeleteMarkers"]] == [(gone["VersionId"], True)]
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket, PaginationConfig={"PageSize": 2})
    assert [v["VersionId"] for p in pages for v in p.get("Versions", [])] == [*reversed(ids), "null"]
    s3.delete_object(Bucket=bucket, Key="k", VersionId=gone["VersionId"])
    assert body(s3, bucket, "k") == b"2"
    s3.delete_object(Bucket=bucket, Key="k", VersionId=ids[2])
    assert body(s3, bucket, "k") == b"1"
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Suspended"})
    s3.put_object(Bucket=bucket, Key="k", Body=b"new null")
    assert body(s3, bucket, "k", VersionId="null") == body(s3, bucket, "k") == b"new null"
    assert body(s3, bucket, "k", VersionId=ids[0]) == b"0"
    refused("BucketNotEmpty", s3.delete_bucket, Bucket=bucket)


def test_tags_acls_and_policies(endpoint, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="a=1&b=2")
    tags = {t["Key"]: t["Value"] for t in s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]}
    assert tags == {"a": "1", "b": "2"}
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "c", "Value": "3"}]})
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "c", "Value": "3"}]
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    s3.put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "d", "Value": "4"}]})
    assert s3.get_bucket_tagging(Bucket=bucket)["TagSet"] == [{"Key": "d", "Value": "4"}]

    def anonymous(key="k"):
        try:
            return urllib.request.urlopen(f"{endpoint.url}/{bucket}/{key}").read()
        except urllib.error.HTTPError as e:
            return e.code

    assert anonymous() == 403
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="public-read")
    assert anonymous() == b"x"
    assert len(s3.get_object_acl(Bucket=bucket, Key="k")["Grants"]) == 2
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="private")
    assert anonymous() == 403
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                                                     "Resource": f"arn:aws:s3:::{bucket}/k*"}]}
    s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
    assert json.loads(s3.get_bucket_policy(Bucket=bucket)["Policy"]) == policy
    assert anonymous() == b"x" and anonymous("other") == 403
    s3.delete_bucket_policy(Bucket=bucket)
    refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=bucket)
    assert anonymous() == 403
    s3.put_bucket_acl(Bucket=bucket, ACL="public-read")
    assert len(s3.get_bucket_acl(Bucket=bucket)["Grants"]) == 2


def test_cors(endpoint, s3, bucket):
    rule = {"AllowedOrigins": ["https://*.example"], "AllowedMethods": ["GET", "PUT"], "AllowedHeaders": ["x-*"], "MaxAgeSeconds": 9}
    s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [rule]})
    assert s3.get_bucket_cors(Bucket=bucket)["CORSRules"] == [rule]

    def preflight(**headers):
        request = urllib.request.Request(f"{endpoint.url}/{bucket}/k", method="OPTIONS",
                                         headers={k.replace("_", "-"): v for k, v in headers.items()})
        try:
            return urllib.request.urlopen(request).headers
        except urllib.error.HTTPError as e:
            return e.code

    allowed = preflight(Origin="https://a.example", Access_Control_Request_Method="PUT")
    assert allowed["Access-Control-Allow-Origin"] == "https://a.example"
    assert preflight(Origin="https://a.test", Access_Control_Request_Method="PUT") == 403
    s3.delete_bucket_cors(Bucket=bucket)
    refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=bucket)


def test_presigned_urls_and_forms(s3, bucket):
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "p"}, ExpiresIn=60)
    urllib.request.urlopen(urllib.request.Request(url, data=b"by url", method="PUT"))
    url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "p"}, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"by url"
    with pytest.raises(urllib.error.HTTPError) as e:
        urllib.request.urlopen(url[:-1] + ("0" if url[-1] != "0" else "1"))
    assert e.value.code == 403
    form = s3.generate_presigned_post(bucket, "form/${filename}", Conditions=[["content-length-range", 1, 100]])
    fields = {**form["fields"]}
    text = "".join(f'--bb\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
    text += '--bb\r\nContent-Disposition: form-data; name="file"; filename="f.txt"\r\n\r\nby form\r\n--bb--\r\n'
    request = urllib.request.Request(form["url"], data=text.encode(), headers={"Content-Type": "multipart/form-data; boundary=bb"})
    assert urllib.request.urlopen(request).status == 204
    assert body(s3, bucket, "form/f.txt") == b"by form"


def raw(endpoint, method, path, data, headers):
    at = urllib.parse.urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
    connection.request(method, path, data, headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


def signed(endpoint, method, path, data, headers=None):
    """A request that no client library would make."""
    request = AWSRequest(method, endpoint.url + path, headers or {}, data)
    S3SigV4Auth(Credentials(endpoint.access, endpoint.secret), "s3", "us-east-1").add_auth(request)
    return raw(endpoint, method, path, data, dict(request.headers))


def test_what_is_wrong_is_refused_and_stores_nothing(endpoint, s3, bucket):
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "w"}, ExpiresIn=60)
    path = url.removeprefix(endpoint.url)
    status, text, _ = raw(endpoint, "PUT", path, b"data", {"Content-MD5": base64.b64encode(b"0" * 16).decode()})
    assert status in (400, 403) and b"Digest" in text or b"Signature" in text
    # A body that ends early.
    at = urllib.parse.urlsplit(endpoint.url)
    connection = http.client.HTTPConnection(at.hostname, at.port, timeout=30)
    connection.putrequest("PUT", path)
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"short")
    connection.close()
    # Others are served, and nothing is there.
    assert keys_of(s3.list_objects_v2(Bucket=bucket)) == []
    for bad in (b"", b"<Delete>", b"<Delete>" * 1000, b"x"):
        status, text, _ = signed(endpoint, "POST", f"/{bucket}?delete=", bad)
        assert status == 400 and b"<Code>MalformedXML</Code>" in text, text
    for header in ("x-amz-server-side-encryption", "x-amz-object-lock-mode"):
        status, text, _ = signed(endpoint, "PUT", f"/{bucket}/k", b"x", {header: "AES256"})
        assert status in (400, 501), text
    assert keys_of(s3.list_objects_v2(Bucket=bucket)) == []


def test_checksums(endpoint, s3, bucket):
    """The checksum family: 16.2 knows none of it."""
    data = os.urandom(100_000)
    crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    if "ChecksumCRC32" not in s3.meta.service_model.shape_for("PutObjectRequest").members:
        pytest.skip("this boto3 has no checksums")
    put = s3.put_object(Bucket=bucket, Key="k", Body=data, ChecksumCRC32=crc)
    if "ChecksumCRC32" not in put:
        pytest.skip("this gateway knows no checksums")
    assert put["ChecksumCRC32"] == crc
    refused("BadDigest", s3.put_object, Bucket=bucket, Key="bad", Body=data[1:], ChecksumCRC32=crc)
    refused("NoSuchKey", s3.get_object, Bucket=bucket, Key="bad")
    # In a trailer, computed by the client while it sends.
    s3.put_object(Bucket=bucket, Key="t", Body=data, ChecksumAlgorithm="SHA256")
    assert body(s3, bucket, "t") == data


def tool(argv, **kw):
    # A bundle of certificates in the environment stops rclone.
    env = {k: v for k, v in os.environ.items() if k != "AWS_CA_BUNDLE"}
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=env, **kw)
    assert ran.returncode == 0, f"{argv}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout


def test_s3cmd(endpoint, s3, bucket, tmp_path):
    host = urllib.parse.urlsplit(endpoint.url).netloc
    common = ["s3cmd", "--no-ssl", f"--host={host}", f"--host-bucket={host}", f"--access_key={endpoint.access}",
              f"--secret_key={endpoint.secret}", "--no-progress", "-c", "/dev/null", "--multipart-chunk-size-mb=5"]
    data = os.urandom(12 << 20)
    (tmp_path / "in").write_bytes(data)
    tool([*common, "put", str(tmp_path / "in"), f"s3://{bucket}/dir/big"])
    tool([*common, "put", "--acl-public", str(tmp_path / "in"), f"s3://{bucket}/dir/b i g", "--disable-multipart"])
    assert f"s3://{bucket}/dir/big" in tool([*common, "ls", "-r", f"s3://{bucket}"])
    tool([*common, "get", f"s3://{bucket}/dir/big", str(tmp_path / "out")])
    assert (tmp_path / "out").read_bytes() == data
    tool([*common, "cp", f"s3://{bucket}/dir/big", f"s3://{bucket}/copy"])
    tool([*common, "mv", f"s3://{bucket}/copy", f"s3://{bucket}/moved"])
    assert "12582912" in tool([*common, "info", f"s3://{bucket}/moved"])
    tool([*common, "du", f"s3://{bucket}"])
    (tmp_path / "d").mkdir()
    for n in range(20):
        (tmp_path / "d" / f"{n}").write_bytes(os.urandom(n * 100))
    tool([*common, "sync", f"{tmp_path}/d/", f"s3://{bucket}/sync/"])
    assert len(s3.list_objects_v2(Bucket=bucket, Prefix="sync/")["Contents"]) == 20
    tool([*common, "del", "-r", "-f", f"s3://{bucket}/"])
    tool([*common, "rb", f"s3://{bucket}"])
    refused("NoSuchBucket", s3.list_objects, Bucket=bucket)


def test_rclone(endpoint, s3, bucket, tmp_path):
    remote = f":s3,provider=Ceph,endpoint='{endpoint.url}',access_key_id={endpoint.access},secret_access_key={endpoint.secret}:"
    source = tmp_path / "in"
    source.mkdir()
    for n, size in enumerate([0, 1, 70_000, 12 << 20]):
        (source / f"f {n}").write_bytes(os.urandom(size))
    common = ["--config", "/dev/null", "--s3-chunk-size=5M", "--s3-upload-cutoff=6M"]
    tool(["rclone", *common, "copy", str(source), f"{remote}{bucket}/r"])
    tool(["rclone", *common, "check", "--download", str(source), f"{remote}{bucket}/r"])
    tool(["rclone", *common, "move", f"{remote}{bucket}/r", f"{remote}{bucket}/moved"])
    assert len(tool(["rclone", *common, "lsf", f"{remote}{bucket}/moved"]).splitlines()) == 4
    tool(["rclone", *common, "copy", f"{remote}{bucket}/moved", str(tmp_path / "out")])
    for f in source.iterdir():
        assert (tmp_path / "out" / f.name).read_bytes() == f.read_bytes()
    tool(["rclone", *common, "purge", f"{remote}{bucket}"])


def test_restic(endpoint, bucket, tmp_path):
    s3_tools.restic(endpoint.url, endpoint.access, endpoint.secret, bucket, tmp_path)


@pytest.mark.skipif(not s3_tools.PYPI, reason=s3_tools.WHY)
def test_boto3_and_aws_of_pypi(endpoint, tmp_path):
    s3_tools.of_pypi(endpoint.url, endpoint.access, endpoint.secret, tmp_path)


class Stock:
    """Ceph's own gateway on the same cluster."""

    def __init__(self, conf, directory):
        self.conf, self.directory = conf, directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def admin(self, *args):
        return tool(["radosgw-admin", "-c", str(self.conf), "-n", "client.admin", *args])

    def start(self):
        log = open(self.directory / "radosgw.log", "ab")
        argv = ["radosgw", "-c", str(self.conf), "-n", "client.admin", "-f",
                f"--rgw_frontends=beast endpoint=127.0.0.1:{self.port}", f"--rgw_data={self.directory}"]
        self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        eventually(self.answers, timeout=60)

    def answers(self):
        assert self.process.poll() is None, "radosgw ended"
        try:
            urllib.request.urlopen(self.url, timeout=5).read()
        except urllib.error.HTTPError:
            return True
        except urllib.error.URLError:
            return False
        return True


@pytest.fixture(scope="module")
def stock(endpoint, tmp_path_factory):
    if not endpoint.cluster:
        pytest.skip("another gateway is tested")
    missing = [p for p in ("radosgw", "radosgw-admin") if not shutil.which(p)]
    assert not missing, f"not installed: {missing}"
    stock = Stock(endpoint.cluster.conf, tmp_path_factory.mktemp("radosgw"))
    stock.start()
    stock.s3 = Endpoint(stock.url, endpoint.access, endpoint.secret).client()
    yield stock
    stock.process.terminate()
    stock.process.wait(timeout=60)


@pytest.fixture(params=["ours writes", "stock writes"])
def pair(request, s3, stock):
    """The gateway that writes, and the one that reads."""
    return (s3, stock.s3) if request.param == "ours writes" else (stock.s3, s3)


@pytest.fixture
def shared(pair):
    name = f"swap-{uuid.uuid4().hex[:16]}"
    pair[0].create_bucket(Bucket=name)
    return name


def described(s3, bucket, key, **kw):
    head = s3.head_object(Bucket=bucket, Key=key, **kw)
    return {k: head.get(k) for k in ("ContentLength", "ETag", "Metadata", "ContentType", "CacheControl", "VersionId", "LastModified")}


@pytest.mark.parametrize("size", [0, 1, 70_000, 4 << 20, (4 << 20) + 1, 21 << 20])
def test_swapped_objects(pair, shared, size):
    writer, reader = pair
    data = os.urandom(size)
    writer.put_object(Bucket=shared, Key="k/\u00e4 +", Body=data, Metadata={"a": "1"}, ContentType="text/x", CacheControl="no-store")
    assert body(reader, shared, "k/\u00e4 +") == data
    assert described(reader, shared, "k/\u00e4 +") == described(writer, shared, "k/\u00e4 +")
    if size > 100:
        assert body(reader, shared, "k/\u00e4 +", Range=f"bytes={size - 70}-{size - 1}") == data[-70:]
    # Over it and back.
    reader.put_object(Bucket=shared, Key="k/\u00e4 +", Body=data[::-1])
    assert body(writer, shared, "k/\u00e4 +") == data[::-1]
    writer.copy_object(Bucket=shared, Key="copy", CopySource={"Bucket": shared, "Key": "k/\u00e4 +"})
    reader.delete_object(Bucket=shared, Key="k/\u00e4 +")
    assert body(reader, shared, "copy") == data[::-1]
    assert keys_of(writer.list_objects_v2(Bucket=shared)) == ["copy"]


def test_swapped_lists(pair, shared):
    writer, reader = pair
    names = [f"{n % 5}/{n:03}" for n in range(60)] + ["a//b", "_under", "__two", "\u00e4"]
    for name in names:
        writer.put_object(Bucket=shared, Key=name, Body=name.encode())
    for kw in ({}, {"Delimiter": "/"}, {"Prefix": "3/"}, {"Prefix": "_"}):
        seen = []
        for s3 in pair:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=shared, PaginationConfig={"PageSize": 9}, **kw)
            members = [[(o["Key"], o["Size"], o["ETag"]) for p in pages for o in p.get("Contents", [])],
                       [c["Prefix"] for p in pages for c in p.get("CommonPrefixes", [])]]
            seen.append(members)
        assert seen[0] == seen[1]
    assert [k for p in reader.get_paginator("list_objects").paginate(Bucket=shared) for k in keys_of(p)] == sorted(names, key=str.encode)


def test_swapped_multipart(pair, shared, stock):
    writer, reader = pair
    parts = [os.urandom(5 << 20), os.urandom(6 << 20), os.urandom(1000)]
    upload = writer.create_multipart_upload(Bucket=shared, Key="m", Metadata={"a": "1"})["UploadId"]
    # Each part by another gateway.
    tags = [s3.upload_part(Bucket=shared, Key="m", UploadId=upload, PartNumber=n, Body=p)["ETag"]
            for n, p, s3 in zip((1, 2, 3), parts, (writer, reader, writer))]
    assert [p["ETag"] for p in reader.list_parts(Bucket=shared, Key="m", UploadId=upload)["Parts"]] == tags
    assert [u["UploadId"] for u in reader.list_multipart_uploads(Bucket=shared)["Uploads"]] == [upload]
    done = [{"PartNumber": n, "ETag": t} for n, t in enumerate(tags, 1)]
    reader.complete_multipart_upload(Bucket=shared, Key="m", UploadId=upload, MultipartUpload={"Parts": done})
    for s3 in pair:
        assert body(s3, shared, "m") == b"".join(parts)
        assert body(s3, shared, "m", Range=f"bytes={(5 << 20) - 5}-{(5 << 20) + 5}") == b"".join(parts)[(5 << 20) - 5:(5 << 20) + 6]
    assert described(reader, shared, "m") == described(writer, shared, "m")
    found = json.loads(stock.admin("bucket", "check", f"--bucket={shared}"))
    assert found["invalid_multipart_entries"] == []


def test_swapped_versions(pair, shared):
    writer, reader = pair
    writer.put_object(Bucket=shared, Key="k", Body=b"null")
    reader.put_bucket_versioning(Bucket=shared, VersioningConfiguration={"Status": "Enabled"})
    eventually(lambda: writer.get_bucket_versioning(Bucket=shared).get("Status") == "Enabled")
    ids = [s3.put_object(Bucket=shared, Key="k", Body=b"%d" % n)["VersionId"] for n, s3 in enumerate((writer, reader, writer))]
    marker = reader.delete_object(Bucket=shared, Key="k")["VersionId"]
    for s3 in pair:
        found = s3.list_object_versions(Bucket=shared)
        assert [v["VersionId"] for v in found["Versions"]] == [*reversed(ids), "null"]
        assert [m["VersionId"] for m in found["DeleteMarkers"]] == [marker]
        assert [body(s3, shared, "k", VersionId=v) for v in [*ids, "null"]] == [b"0", b"1", b"2", b"null"]
        refused("NoSuchKey", s3.get_object, Bucket=shared, Key="k")
    writer.delete_object(Bucket=shared, Key="k", VersionId=marker)
    assert body(reader, shared, "k") == b"2"
    reader.delete_object(Bucket=shared, Key="k", VersionId=ids[2])
    assert body(writer, shared, "k") == b"1"


def test_swapped_settings(pair, shared):
    writer, reader = pair
    writer.put_object(Bucket=shared, Key="k", Body=b"x", Tagging="a=1")
    assert reader.get_object_tagging(Bucket=shared, Key="k")["TagSet"] == [{"Key": "a", "Value": "1"}]
    writer.put_object_acl(Bucket=shared, Key="k", ACL="public-read")
    grants = [s3.get_object_acl(Bucket=shared, Key="k")["Grants"] for s3 in pair]
    assert len(grants[0]) == 2 and grants[0] == grants[1]
    rule = {"AllowedOrigins": ["*"], "AllowedMethods": ["GET"], "MaxAgeSeconds": 9}
    writer.put_bucket_cors(Bucket=shared, CORSConfiguration={"CORSRules": [rule]})
    eventually(lambda: reader.get_bucket_cors(Bucket=shared)["CORSRules"][0]["MaxAgeSeconds"] == 9)
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                                                     "Resource": f"arn:aws:s3:::{shared}/*"}]}
    writer.put_bucket_policy(Bucket=shared, Policy=json.dumps(policy))
    assert json.loads(reader.get_bucket_policy(Bucket=shared)["Policy"]) == policy
    writer.put_bucket_tagging(Bucket=shared, Tagging={"TagSet": [{"Key": "d", "Value": "4"}]})
    assert reader.get_bucket_tagging(Bucket=shared)["TagSet"] == [{"Key": "d", "Value": "4"}]


def test_users_are_those_of_radosgw_admin(endpoint, stock):
    made = json.loads(stock.admin("user", "create", "--uid=second", "--display-name=Second", "--access-key=ACCESS2", "--secret-key=SECRET2"))
    assert made["user_id"] == "second"
    second = endpoint.client("ACCESS2", "SECRET2")
    second.create_bucket(Bucket="of-second")
    assert [b["Name"] for b in second.list_buckets()["Buckets"]] == ["of-second"]
    refused("AccessDenied", endpoint.client().list_objects_v2, Bucket="of-second")
    assert "of-second" in json.loads(stock.admin("bucket", "list", "--uid=second"))
    stock.admin("user", "suspend", "--uid=second")
    eventually(lambda: raises_code(second.list_buckets) == "UserSuspended")


def raises_code(call):
    try:
        call()
    except ClientError as e:
        return e.response["Error"]["Code"]
