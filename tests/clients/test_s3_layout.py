"""Buckets in RGW's layout through crates/daemons/s3-layout, whose tests against a cluster are in its tests/live.rs, beside
a stock radosgw: each reads and changes what the other wrote."""
import shutil
import subprocess

import pytest
from conftest import CHROOT, run_live
from test_radosgw import ACCESS, SECRET, body, check_is_clean, gateway, s3  # noqa: F401

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="has nothing to do with the stock clients of a chroot")

MIB = 1 << 20


def live(gateway, only="", **environment):
    run_live("s3-layout", *([only] if only else []), SIPHON_TEST_CEPH_CONF=str(gateway.conf), **environment)


def pattern(length, seed):
    """The bytes that `bytes` of live.rs makes."""
    one = bytes((n * 31 + seed) & 255 for n in range(256))
    return (one * (length // 256 + 1))[:length]


def raw_objects(gateway, marker):
    """Names in the data pool of a bucket's objects."""
    argv = ["rados", "-c", str(gateway.conf), "-p", "default.rgw.buckets.data", "ls", "--all"]
    listed = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout
    return [line for line in listed.splitlines() if marker in line]


def test_live(gateway):
    live(gateway, SIPHON_TEST_RADOSGW_ADMIN=shutil.which("radosgw-admin"))
    for bucket in gateway.admin_json("bucket", "list"):
        check_is_clean(gateway, bucket)
    gateway.admin("gc", "process", "--include-all")
    assert gateway.admin_json("gc", "list", "--include-all") == []


@pytest.mark.parametrize("versioned", [False, True])
def test_one_bucket_of_two_gateways(gateway, s3, versioned):
    name = "versioned-of-two" if versioned else "bucket-of-two"
    s3.create_bucket(Bucket=name)
    if versioned:
        s3.put_object(Bucket=name, Key="theirs/null", Body=b"before there were versions")
        s3.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    for n in range(3):
        s3.put_object(Bucket=name, Key="theirs/small", Body=b"%d" % n, Metadata={"n": str(n)})
    s3.put_object(Bucket=name, Key="_theirs", Body=b"_")
    s3.put_object(Bucket=name, Key="theirs/big", Body=pattern(9 * MIB, 6))
    s3.put_object(Bucket=name, Key="theirs/gone", Body=pattern(5 * MIB, 7))

    def upload(key):
        upload = s3.create_multipart_upload(Bucket=name, Key=key)["UploadId"]
        s3.upload_part(Bucket=name, Key=key, UploadId=upload, PartNumber=1, Body=pattern(5 * MIB, 8))
        return upload

    def complete(key, upload):
        parts = s3.list_parts(Bucket=name, Key=key, UploadId=upload)["Parts"]
        done = [{k: p[k] for k in ("PartNumber", "ETag")} for p in parts]
        s3.complete_multipart_upload(Bucket=name, Key=key, UploadId=upload, MultipartUpload={"Parts": done})

    parts = upload("theirs/parts")
    s3.upload_part(Bucket=name, Key="theirs/parts", UploadId=parts, PartNumber=2, Body=b"end")
    complete("theirs/parts", parts)
    upload("theirs/begun")

    live(gateway, only="a_bucket_of_another_gateway", SIPHON_TEST_S3_BUCKET=name)

    assert body(s3, name, "ours/small") == pattern(5, 1)
    assert body(s3, name, "ours/big") == pattern(9 * MIB, 2)
    assert body(s3, name, "ours/big", Range="bytes=4194300-4194310") == pattern(9 * MIB, 2)[4194300:4194311]
    assert body(s3, name, "theirs/big") == pattern(3, 3)
    assert body(s3, name, "ours/copy") == body(s3, name, "theirs/parts") == pattern(5 * MIB, 8) + b"end"
    assert body(s3, name, "theirs/begun") == pattern(5 * MIB, 8) + pattern(9, 4)
    assert s3.get_object_tagging(Bucket=name, Key="theirs/small")["TagSet"] == [{"Key": "a", "Value": "b"}]
    assert s3.head_object(Bucket=name, Key="theirs/small")["Metadata"] == {"n": "2"}
    with pytest.raises(s3.exceptions.NoSuchKey):
        body(s3, name, "theirs/gone")
    [ours] = s3.list_multipart_uploads(Bucket=name)["Uploads"]
    assert ours["Key"] == "ours/begun"
    complete("ours/begun", ours["UploadId"])
    assert body(s3, name, "ours/begun") == pattern(5 * MIB, 5)
    keys = [o["Key"] for o in s3.list_objects_v2(Bucket=name)["Contents"]]
    assert keys == sorted(keys) and "theirs/gone" not in keys and len(keys) == (9 if versioned else 8) + 1
    check_is_clean(gateway, name)
    if versioned:
        found = s3.list_object_versions(Bucket=name)
        assert len([v for v in found["Versions"] if v["Key"] == "theirs/big"]) == 2
        assert [m["Key"] for m in found["DeleteMarkers"]] == ["theirs/gone"]

    # The other gateway removes all of it, and nothing is left.
    marker = gateway.admin_json("bucket", "stats", f"--bucket={name}")["marker"]
    found = s3.list_object_versions(Bucket=name)
    for entry in found.get("Versions", []) + found.get("DeleteMarkers", []):
        s3.delete_object(Bucket=name, Key=entry["Key"], VersionId=entry["VersionId"])
    gateway.admin("gc", "process", "--include-all")
    assert raw_objects(gateway, marker) == []
    s3.delete_bucket(Bucket=name)
