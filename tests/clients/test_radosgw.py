"""Ceph's own S3 gateway on this cluster: boto3, s3cmd and rclone through it, and radosgw-admin. With SIPHON_TEST_CHROOT, the
gateway and its tool are those of the chroot (18.2); the S3 clients are this machine's."""
import hashlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest
import rados

import s3_tools
from conftest import BINARY, CHROOT, eventually, free_port

USER, ACCESS, SECRET = "s3-user", "access-key-of-test", "secret-key-of-test"
PART = 5 << 20
INSIDE = ["chroot", CHROOT] if CHROOT else []
LONG = bool(os.environ.get("SIPHON_TEST_LONG"))
slow = pytest.mark.skipif(not CHROOT and not LONG, reason="some fifty commands; SIPHON_TEST_LONG=1 runs it")


class Gateway:
    """A radosgw, and its administration."""

    def __init__(self, conf, directory):
        self.conf, self.directory = conf, directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def admin(self, *args, check=True):
        argv = [*INSIDE, "radosgw-admin", "-c", str(self.conf), "-n", "client.admin", *args]
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=120)
        if check:
            assert ran.returncode == 0, f"{argv}: {ran.stdout}\n{ran.stderr}"
        return ran.stdout

    def admin_json(self, *args):
        return json.loads(self.admin(*args))

    def start(self):
        log = open(self.directory / "radosgw.log", "ab")
        argv = [*INSIDE, "radosgw", "-c", str(self.conf), "-n", "client.admin", "-f",
                f"--rgw_frontends=beast endpoint=127.0.0.1:{self.port}", f"--rgw_data={self.directory}",
                "--rgw_enable_usage_log=true", "--rgw_usage_log_tick_interval=1", "--rgw_gc_obj_min_wait=1",
                "--rgw_lc_debug_interval=1", "--rgw_enable_gc_threads=false", "--rgw_enable_lc_threads=false"]
        self.process = subprocess.Popen(argv, stdout=log, stderr=log)
        eventually(self.answers, timeout=60)

    def answers(self):
        assert self.process.poll() is None, "radosgw ended"
        try:
            urllib.request.urlopen(self.url, timeout=5).read()
        except urllib.error.URLError:
            return False
        return True

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@pytest.fixture(scope="module")
def gateway(siphon_factory, tmp_path_factory):
    missing = [p for p in ("radosgw", "radosgw-admin") if not shutil.which(p, path=f"{CHROOT}/usr/bin" if CHROOT else None)]
    assert not missing, f"not installed: {missing}"
    cluster = siphon_factory()
    cluster.start()
    gateway = Gateway(cluster.conf, tmp_path_factory.mktemp("radosgw"))
    gateway.admin("user", "create", f"--uid={USER}", "--display-name=A User", f"--access-key={ACCESS}", f"--secret-key={SECRET}")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def s3(gateway):
    boto3 = pytest.importorskip("boto3")
    return boto3.client("s3", endpoint_url=gateway.url, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                        region_name="default")


def body(s3, bucket, key, **kw):
    return s3.get_object(Bucket=bucket, Key=key, **kw)["Body"].read()


def check_is_clean(gateway, bucket):
    """Totals of objects and uploads are those of the entries."""
    found = gateway.admin_json("bucket", "check", f"--bucket={bucket}")
    assert found["invalid_multipart_entries"] == []
    headers = found["check_result"]
    totals = [{k: v for k, v in headers[h]["usage"].items() if k != "rgw.none" and v["num_objects"]}
              for h in ("existing_header", "calculated_header")]
    assert totals[0] == totals[1]


def test_objects_and_listings(gateway, s3):
    s3.create_bucket(Bucket="objects")
    data = os.urandom(100_000)
    put = s3.put_object(Bucket="objects", Key="a", Body=data, Metadata={"color": "blue"})
    assert put["ETag"].strip('"') == hashlib.md5(data).hexdigest()
    assert body(s3, "objects", "a") == data
    assert body(s3, "objects", "a", Range="bytes=10-19") == data[10:20]
    head = s3.head_object(Bucket="objects", Key="a")
    assert (head["ContentLength"], head["Metadata"]) == (len(data), {"color": "blue"})
    s3.copy_object(Bucket="objects", Key="copy", CopySource={"Bucket": "objects", "Key": "a"})
    assert body(s3, "objects", "copy") == data
    names = [f"dir{n % 3}/{n:03}" for n in range(30)] + ["\u00e4\u4e16", "\ue000 after"]
    for name in names:
        s3.put_object(Bucket="objects", Key=name, Body=name.encode())
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="objects", PaginationConfig={"PageSize": 7})
    assert [o["Key"] for p in pages for o in p["Contents"]] == sorted([*names, "a", "copy"], key=str.encode)
    found = s3.list_objects_v2(Bucket="objects", Delimiter="/")
    assert [p["Prefix"] for p in found["CommonPrefixes"]] == ["dir0/", "dir1/", "dir2/"]
    s3.delete_objects(Bucket="objects", Delete={"Objects": [{"Key": n} for n in names]})
    s3.delete_object(Bucket="objects", Key="a")
    with pytest.raises(s3.exceptions.NoSuchKey):
        body(s3, "objects", "a")
    assert [o["Key"] for o in s3.list_objects_v2(Bucket="objects")["Contents"]] == ["copy"]
    check_is_clean(gateway, "objects")
    assert gateway.admin_json("bucket", "stats", "--bucket=objects")["usage"]["rgw.main"]["num_objects"] == 1


def test_multipart_and_garbage(gateway, s3):
    s3.create_bucket(Bucket="multipart")
    data = os.urandom(2 * PART + 1000)
    upload = s3.create_multipart_upload(Bucket="multipart", Key="m")["UploadId"]
    parts = [data[at:at + PART] for at in range(0, len(data), PART)]
    tags = [s3.upload_part(Bucket="multipart", Key="m", UploadId=upload, PartNumber=n, Body=p)["ETag"] for n, p in enumerate(parts, 1)]
    assert [p["ETag"] for p in s3.list_parts(Bucket="multipart", Key="m", UploadId=upload)["Parts"]] == tags
    done = [{"PartNumber": n, "ETag": t} for n, t in enumerate(tags, 1)]
    s3.complete_multipart_upload(Bucket="multipart", Key="m", UploadId=upload, MultipartUpload={"Parts": done})
    assert body(s3, "multipart", "m") == data
    left = s3.create_multipart_upload(Bucket="multipart", Key="left")["UploadId"]
    s3.upload_part(Bucket="multipart", Key="left", UploadId=left, PartNumber=1, Body=b"x")
    assert len(s3.list_multipart_uploads(Bucket="multipart")["Uploads"]) == 1
    s3.abort_multipart_upload(Bucket="multipart", Key="left", UploadId=left)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="multipart")
    check_is_clean(gateway, "multipart")
    s3.delete_object(Bucket="multipart", Key="m")
    assert gateway.admin_json("gc", "list", "--include-all"), "the parts wait to be removed"
    gateway.admin("gc", "process", "--include-all")
    assert gateway.admin_json("gc", "list", "--include-all") == []
    s3.delete_bucket(Bucket="multipart")


def test_versions(gateway, s3):
    s3.create_bucket(Bucket="versions")
    s3.put_object(Bucket="versions", Key="k", Body=b"before")
    s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    ids = [s3.put_object(Bucket="versions", Key="k", Body=b"%d" % n)["VersionId"] for n in range(3)]
    assert body(s3, "versions", "k") == b"2"
    assert body(s3, "versions", "k", VersionId=ids[0]) == b"0"
    assert body(s3, "versions", "k", VersionId="null") == b"before"
    marker = s3.delete_object(Bucket="versions", Key="k")
    assert marker["DeleteMarker"]
    with pytest.raises(s3.exceptions.NoSuchKey):
        body(s3, "versions", "k")
    found = s3.list_object_versions(Bucket="versions")
    assert [v["VersionId"] for v in found["Versions"]] == [*reversed(ids), "null"]
    assert [m["IsLatest"] for m in found["DeleteMarkers"]] == [True]
    s3.delete_object(Bucket="versions", Key="k", VersionId=marker["VersionId"])
    s3.delete_object(Bucket="versions", Key="k", VersionId=ids[2])
    assert body(s3, "versions", "k") == b"1"
    for version in [ids[0], ids[1], "null"]:
        s3.delete_object(Bucket="versions", Key="k", VersionId=version)
    assert "Versions" not in s3.list_object_versions(Bucket="versions")
    s3.delete_bucket(Bucket="versions")


def test_resharding_keeps_objects_and_versions(gateway, s3):
    s3.create_bucket(Bucket="reshard")
    s3.put_bucket_versioning(Bucket="reshard", VersioningConfiguration={"Status": "Enabled"})
    for n in range(40):
        s3.put_object(Bucket="reshard", Key=f"k{n % 20}", Body=b"%d" % n)
    before = [(v["Key"], v["VersionId"]) for v in s3.list_object_versions(Bucket="reshard")["Versions"]]
    gateway.admin("bucket", "reshard", "--bucket=reshard", "--num-shards=13", "--yes-i-really-mean-it")
    after = [(v["Key"], v["VersionId"]) for v in s3.list_object_versions(Bucket="reshard")["Versions"]]
    assert len(before) == 40 and after == before
    assert gateway.admin_json("bucket", "stats", "--bucket=reshard")["num_shards"] == 13
    s3.put_object(Bucket="reshard", Key="new", Body=b"new")
    assert body(s3, "reshard", "new") == b"new"


def test_lifecycle_quota_and_usage(gateway, s3):
    s3.create_bucket(Bucket="lifecycle")
    s3.put_object(Bucket="lifecycle", Key="old/a", Body=b"a")
    s3.put_object(Bucket="lifecycle", Key="kept", Body=b"b")
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "old/"}, "Expiration": {"Days": 1}}
    s3.put_bucket_lifecycle_configuration(Bucket="lifecycle", LifecycleConfiguration={"Rules": [rule]})
    assert len(gateway.admin_json("lc", "list")) == 1

    def expired():
        # A day is a second.
        gateway.admin("lc", "process", "--rgw_lc_debug_interval=1")
        return [o["Key"] for o in s3.list_objects_v2(Bucket="lifecycle")["Contents"]] == ["kept"]

    eventually(expired, timeout=60)
    gateway.admin("quota", "set", "--quota-scope=user", f"--uid={USER}", "--max-objects=100000")
    gateway.admin("quota", "enable", "--quota-scope=user", f"--uid={USER}")
    gateway.admin("user", "stats", f"--uid={USER}", "--sync-stats")
    assert gateway.admin_json("user", "info", f"--uid={USER}")["user_quota"]["max_objects"] == 100000
    eventually(lambda: gateway.admin_json("usage", "show", f"--uid={USER}")["summary"], timeout=60)
    gateway.admin("usage", "trim", f"--uid={USER}")


def test_it_is_a_daemon_of_the_service_rgw(gateway):
    def ceph(*args):
        argv = [*INSIDE, "ceph", "-c", str(gateway.conf), *args, "--format", "json"]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True).stdout)

    def daemons():
        found = ceph("service", "dump")["services"].get("rgw", {}).get("daemons", {})
        return [d["metadata"] for name, d in found.items() if name != "summary"]

    [metadata] = eventually(daemons, 60, "the gateway among the services")
    assert metadata["zone_name"] == "default" and str(gateway.port) in metadata["frontend_config#0"]
    version = "18.2" if CHROOT else "16.2"
    assert metadata["ceph_version_short"].startswith(version), metadata
    assert "rgw" in ceph("status")["servicemap"]["services"]


@slow
def test_administration_of_users(gateway):
    admin = gateway.admin_json
    made = admin("user", "create", "--uid=ops", "--display-name=Ops", "--email=ops@example.com", "--max-buckets=3")
    assert (made["max_buckets"], len(made["keys"])) == (3, 1)
    keys = admin("key", "create", "--uid=ops", "--key-type=s3", "--access-key=OPS", "--secret-key=SECRET")["keys"]
    assert sorted(k["access_key"] for k in keys) == sorted(["OPS", made["keys"][0]["access_key"]])
    assert admin("subuser", "create", "--uid=ops", "--subuser=ops:one", "--access=full")["subusers"] == [
        {"id": "ops:one", "permissions": "full-control"}]
    assert admin("caps", "add", "--uid=ops", "--caps=users=read;buckets=*")["caps"] == [
        {"type": "buckets", "perm": "*"}, {"type": "users", "perm": "read"}]
    assert admin("user", "modify", "--uid=ops", "--display-name=Operator")["display_name"] == "Operator"
    assert admin("user", "suspend", "--uid=ops")["suspended"] == 1
    assert admin("user", "enable", "--uid=ops")["suspended"] == 0
    assert "ops" in admin("user", "list") and "ops" in admin("metadata", "list", "user")
    assert admin("metadata", "get", "user:ops")["data"]["email"] == "ops@example.com"
    assert admin("user", "info", "--access-key=OPS")["user_id"] == "ops"
    gateway.admin("user", "create", "--uid=one", "--tenant=t", "--display-name=Of a tenant")
    assert admin("user", "info", "--uid=t$one")["user_id"] == "t$one"
    gateway.admin("user", "rename", "--uid=ops", "--new-uid=renamed")
    assert admin("user", "info", "--access-key=OPS")["user_id"] == "renamed"
    gateway.admin("key", "rm", "--uid=renamed", "--access-key=OPS")
    gateway.admin("subuser", "rm", "--uid=renamed", "--subuser=renamed:one", check=False)
    for user in ("renamed", "t$one"):
        gateway.admin("user", "rm", f"--uid={user}", "--purge-data", "--purge-keys")
    assert not {"ops", "renamed", "t$one"} & set(admin("user", "list"))
    for listed in (("zone", "get"), ("zonegroup", "get"), ("realm", "list")):
        admin(*listed)
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam:::user/x"]}, "Action": ["sts:AssumeRole"]}]}
    gateway.admin("role", "create", "--role-name=r", "--path=/p/", f"--assume-role-policy-doc={json.dumps(trust)}")
    assert [role["RoleName"] for role in admin("role", "list")] == ["r"]
    gateway.admin("role", "rm" if not CHROOT else "delete", "--role-name=r")


@slow
def test_administration_of_buckets(gateway, s3):
    admin = gateway.admin_json
    gateway.admin("user", "create", "--uid=heir", "--display-name=Heir")
    s3.create_bucket(Bucket="managed")
    for n in range(25):
        s3.put_object(Bucket="managed", Key=f"k{n:02}", Body=b"x" * 100)
    assert "managed" in admin("bucket", "list", f"--uid={USER}")
    stats = admin("bucket", "stats", "--bucket=managed")
    assert (stats["owner"], stats["usage"]["rgw.main"]["num_objects"]) == (USER, 25)
    [of_user] = [u for u in admin("bucket", "limit", "check") if u["user_id"] == USER]
    assert "managed" in [b["bucket"] for b in of_user["buckets"]]
    assert len([e for e in admin("bi", "list", "--bucket=managed") if e["type"] == "plain"]) == 25
    assert admin("object", "stat", "--bucket=managed", "--object=k07")["size"] == 100
    raw = gateway.admin("bucket", "radoslist", "--bucket=managed").split()
    assert len(raw) == 25 and all(r.startswith(stats["marker"]) for r in raw)
    gateway.admin("bucket", "check", "--bucket=managed", "--check-objects", "--fix")
    check_is_clean(gateway, "managed")
    # The queue of buckets for more shards.
    gateway.admin("reshard", "add", "--bucket=managed", "--num-shards=17")
    assert [r["bucket_name"] for r in admin("reshard", "list")] == ["managed"]
    gateway.admin("reshard", "cancel", "--bucket=managed")
    assert admin("reshard", "list") == []
    gateway.admin("reshard", "add", "--bucket=managed", "--num-shards=17")
    gateway.admin("reshard", "process")
    assert admin("bucket", "stats", "--bucket=managed")["num_shards"] == 17 and admin("reshard", "list") == []
    assert {s["reshard_status"] for s in admin("reshard", "status", "--bucket=managed")} == {"not-resharding"}
    gateway.admin("reshard", "stale-instances", "list")
    assert len(s3.list_objects_v2(Bucket="managed")["Contents"]) == 25
    check_is_clean(gateway, "managed")
    # A quota of the bucket is kept.
    gateway.admin("quota", "set", "--quota-scope=bucket", f"--uid={USER}", "--bucket=managed", "--max-objects=25")
    gateway.admin("quota", "enable", "--quota-scope=bucket", f"--uid={USER}", "--bucket=managed")
    full = boto3_error(lambda: s3.put_object(Bucket="managed", Key="one-more", Body=b"x"))
    eventually(lambda: full() == "QuotaExceeded", timeout=60)
    gateway.admin("quota", "disable", "--quota-scope=bucket", f"--uid={USER}", "--bucket=managed")
    # It gets another owner, and goes with its objects.
    gateway.admin("bucket", "link", "--bucket=managed", "--uid=heir")
    gateway.admin("bucket", "chown", "--bucket=managed", "--uid=heir")
    assert admin("bucket", "stats", "--bucket=managed")["owner"] == "heir"
    assert admin("bucket", "list", "--uid=heir") == ["managed"]
    gateway.admin("object", "rm", "--bucket=managed", "--object=k00")
    gateway.admin("bucket", "rm", "--bucket=managed", "--purge-objects")
    assert "managed" not in admin("bucket", "list")
    gateway.admin("user", "rm", "--uid=heir", "--purge-data")


def boto3_error(call):
    """The code of the error that a call ends with, if any."""
    from botocore.exceptions import ClientError

    def code():
        try:
            call()
        except ClientError as e:
            return e.response["Error"]["Code"]
        return None

    return code


def raw_names(gateway):
    """All objects with data, and those that buckets know."""
    with rados.Rados(conffile=str(gateway.conf)) as cluster, cluster.open_ioctx("default.rgw.buckets.data") as io:
        found = {o.key for o in io.list_objects()}
    known = {name for bucket in gateway.admin_json("bucket", "list")
             for name in gateway.admin("bucket", "radoslist", f"--bucket={bucket}").split("\n")}
    return found, known


@pytest.mark.skipif(not CHROOT, reason="radosgw 16.2 leaves such data")
@pytest.mark.parametrize("ending", ["complete", "abort"])
@pytest.mark.parametrize("by", ["radosgw", "siphon"])
def test_a_part_that_is_uploaded_again_leaves_nothing(gateway, s3, ours, by, ending):
    """radosgw 18.2 notes the data of the part that was replaced, and the gateway that ends the upload removes it."""
    bucket = f"again-{by}-{ending}"
    s3.create_bucket(Bucket=bucket)
    upload = dict(Bucket=bucket, Key="k", UploadId=s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"])
    data = [os.urandom(PART + n) for n in range(3)]
    tags = [s3.upload_part(**upload, PartNumber=1, Body=d)["ETag"] for d in data]
    assert len({t for t in tags}) == 3
    last = {"radosgw": s3, "siphon": ours}[by]
    if ending == "complete":
        done = last.complete_multipart_upload(**upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tags[-1]}]})
        assert done["Key"] == "k" and body(s3, bucket, "k") == body(ours, bucket, "k") == data[-1]
    else:
        last.abort_multipart_upload(**upload)
    gateway.admin("gc", "process", "--include-all")
    found, known = raw_names(gateway)
    marker = gateway.admin_json("bucket", "stats", f"--bucket={bucket}")["marker"]
    left = {name for name in found - known if name.startswith(marker)}
    assert not left, left
    assert len([e for e in gateway.admin_json("bi", "list", f"--bucket={bucket}")]) == (1 if ending == "complete" else 0)
    check_is_clean(gateway, bucket)
    last.delete_object(Bucket=bucket, Key="k")
    last.delete_bucket(Bucket=bucket)


@pytest.fixture(scope="module")
def ours(gateway):
    """A client of `siphon s3` on the same cluster."""
    boto3 = pytest.importorskip("boto3")
    port = free_port()
    argv = [str(BINARY), "s3", "--conf", str(gateway.conf), "--bind", f"127.0.0.1:{port}", "--threads", "1"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert "S3 is served" in process.stdout.readline()
    yield boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
                       region_name="default")
    process.terminate()
    assert process.wait(60) == 0


def test_s3cmd_and_rclone(gateway, tmp_path):
    data = os.urandom(1_000_000)
    source = tmp_path / "source"
    source.write_bytes(data)
    config = tmp_path / "s3cfg"
    config.write_text(f"[default]\naccess_key = {ACCESS}\nsecret_key = {SECRET}\nuse_https = False\n"
                      f"host_base = 127.0.0.1:{gateway.port}\nhost_bucket = 127.0.0.1:{gateway.port}\n")

    def s3cmd(*args):
        return subprocess.run(["s3cmd", "-c", config, *args], check=True, capture_output=True, text=True, timeout=120).stdout

    s3cmd("mb", "s3://s3cmd")
    s3cmd("put", source, "s3://s3cmd/file")
    assert "s3://s3cmd/file" in s3cmd("ls", "s3://s3cmd")
    s3cmd("get", "s3://s3cmd/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == data
    remote = tmp_path / "rclone.conf"
    remote.write_text(f"[r]\ntype = s3\nprovider = Ceph\naccess_key_id = {ACCESS}\nsecret_access_key = {SECRET}\nendpoint = {gateway.url}\n")

    # rclone 1.60 does not start with a bundle of certificates of the environment's.
    environment = {k: v for k, v in os.environ.items() if k != "AWS_CA_BUNDLE"}

    def rclone(*args):
        ran = subprocess.run(["rclone", "--config", remote, *args], capture_output=True, text=True, timeout=120, env=environment)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    tree = tmp_path / "tree"
    for n in range(10):
        (tree / f"d{n % 2}").mkdir(parents=True, exist_ok=True)
        (tree / f"d{n % 2}" / str(n)).write_bytes(os.urandom(n * 1000))
    rclone("copy", str(tree), "r:rclone/tree")
    rclone("check", str(tree), "r:rclone/tree")
    rclone("purge", "r:rclone")
    s3cmd("del", "s3://s3cmd/file")
    s3cmd("rb", "s3://s3cmd")


def test_restic(gateway, s3, tmp_path):
    s3.create_bucket(Bucket="restic")
    s3_tools.restic(gateway.url, ACCESS, SECRET, "restic", tmp_path)


@pytest.mark.skipif(not s3_tools.PYPI, reason=s3_tools.WHY)
def test_boto3_and_aws_of_pypi(gateway, tmp_path):
    s3_tools.of_pypi(gateway.url, ACCESS, SECRET, tmp_path, s3_tools.NOT_OF_RADOSGW)
