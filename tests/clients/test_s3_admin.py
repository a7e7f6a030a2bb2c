"""The admin operations API of our S3 gateway beside that of a stock radosgw on the same cluster: the same requests to
both, and the same JSON but for keys that are made up and times. What Rook (go-ceph's rgw/admin), Terraform's providers
and dashboards ask for."""
import json
import re
import subprocess
import urllib.parse
import uuid

import pytest

from conftest import BINARY, CHROOT, eventually, free_port
from test_radosgw import Gateway
from test_s3 import Endpoint, raises_code, raw

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="runs the installed S3 clients")

ADMIN = ("root", "access-of-root", "secret-of-root")
CAPS = "users=*;buckets=*;usage=*;metadata=*"


class Unsigned(S3SigV4Auth):
    """radosgw takes no body here that a signature covers."""

    def payload(self, request):
        return "UNSIGNED-PAYLOAD"


class Api:
    """One gateway's API."""

    entry = "admin"

    def __init__(self, url, access=ADMIN[1], secret=ADMIN[2]):
        self.url, self.access, self.secret = url, access, secret

    def sent_by(self, access, secret):
        """The same API with another sender."""
        other = Api(self.url, access, secret)
        other.entry = self.entry
        return other

    def ask(self, method, resource, body=b"", **params):
        """Status and document of an answer; parameters without a value are None."""
        value = lambda v: "" if v is None else "=" + urllib.parse.quote(str(v), safe="")
        query = "&".join(k.replace("_", "-") + value(v) for k, v in params.items())
        request = AWSRequest(method, f"{self.url}/{self.entry}/{resource}?{query}", {}, body)
        Unsigned(Credentials(self.access, self.secret), "s3", "us-east-1").add_auth(request)
        status, text, _ = raw(self, method, request.url.removeprefix(self.url), body, dict(request.headers))
        return status, json.loads(text) if text else None

    def __call__(self, method, resource, body=b"", **params):
        status, document = self.ask(method, resource, body, **params)
        assert status == 200, (method, resource, params, status, document)
        return document


@pytest.fixture(scope="module")
def cluster(siphon_factory):
    cluster = siphon_factory()
    cluster.start()
    return cluster


@pytest.fixture(scope="module")
def stock(cluster, tmp_path_factory):
    gateway = Gateway(cluster.conf, tmp_path_factory.mktemp("radosgw"))
    gateway.admin("user", "create", f"--uid={ADMIN[0]}", "--display-name=Root", f"--access-key={ADMIN[1]}",
                  f"--secret-key={ADMIN[2]}", f"--caps={CAPS}")
    gateway.start()
    yield gateway
    gateway.stop()


@pytest.fixture(scope="module")
def both(cluster, stock, tmp_path_factory):
    """The API of our gateway, at another entry, and that of radosgw."""
    port = free_port()
    conf = tmp_path_factory.mktemp("conf") / "ceph.conf"
    conf.write_text(cluster.conf.read_text() + "\n[client]\nrgw_enable_usage_log = true\n"
                    "rgw_usage_log_tick_interval = 1\nrgw_admin_entry = manage\n")
    argv = [BINARY, "s3", "--conf", conf, "--bind", f"127.0.0.1:{port}", "--threads", "1"]
    process = subprocess.Popen(list(map(str, argv)), stdout=subprocess.PIPE, text=True)
    assert "served" in process.stdout.readline()
    ours = Api(f"http://127.0.0.1:{port}")
    ours.entry = "manage"
    yield ours, Api(stock.url)
    process.terminate()
    process.wait(timeout=60)


@pytest.fixture(params=["ours", "stock"])
def writer(request, both):
    """One of the gateways, and the other."""
    return both if request.param == "ours" else both[::-1]


def alike(document):
    """A document without what differs by its nature: ids of requests, keys that were made up."""
    if isinstance(document, dict) and len(document.get("keys", [])) > 1:
        # In the order of keys that were made up.
        document = {**document, "keys": sorted(document["keys"], key=lambda k: k["user"])}
    text = json.dumps(document, sort_keys=True)
    text = re.sub(r'"(RequestId|HostId|Message)": "[^"]*",? ?', "", text)
    text = re.sub(r'"[A-Z0-9]{20}"', '"ACCESS"', text)
    text = re.sub(r'"[A-Za-z0-9]{40}"', '"SECRET"', text)
    return text.replace(", }", "}")


def name(of):
    return f"{of}-{uuid.uuid4().hex[:8]}"


# Each request is sent to one gateway for user A and to the other for user B; `@` stands for the user.
USERS = [
    ("PUT", "user", dict(uid="@", display_name="A User", email="@@example.com", max_buckets=7)),
    ("GET", "user", dict(uid="@")),
    ("GET", "user", dict(uid="@", stats="true", sync="true")),
    ("PUT", "user", dict(uid="@", display_name="again")),
    ("PUT", "user", dict(uid="@2", display_name="x", email="@@example.com")),
    ("PUT", "user", dict(uid="@2")),
    ("PUT", "user", dict(uid="@2", display_name="x", tenant="no-tenant")),
    ("PUT", "user", dict(uid="@2", display_name="x", user_caps="nothing=read")),
    ("PUT", "user", dict(uid="@2", display_name="x", generate_key="false", access_key="@key")),
    ("PUT", "user", dict(uid="@2", display_name="x", access_key="@key", secret_key="s", tenant="t_1", suspended="true",
                         user_caps="users=read;buckets=*", op_mask="read,write")),
    ("GET", "user", dict(uid="t_1$@2")),
    ("GET", "user", dict(access_key="@key")),
    ("PUT", "user", dict(uid="@3", display_name="x", access_key="@key", secret_key="s")),
    ("GET", "user", dict(uid="@nobody")),
    ("GET", "user", dict()),
    ("POST", "user", dict(uid="@", display_name="Other", email="@new@example.com", max_buckets=-3)),
    ("POST", "user", dict(uid="@nobody", display_name="x")),
    ("POST", "user", dict(uid="@", suspended="1")),
    ("GET", "user", dict(uid="@")),
    ("POST", "user", dict(uid="@", suspended="0", system="true")),
    ("POST", "user", dict(uid="@", suspended="0", default_placement="nowhere")),
    ("POST", "user", dict(uid="@", suspended="0", default_placement="default-placement")),
    ("PUT", "user", dict(key=None, uid="@", access_key="@k2", secret_key="s2", generate_key="false")),
    ("PUT", "user", dict(key=None, uid="@", access_key="@k2", secret_key="changed")),
    ("PUT", "user", dict(key=None, uid="@", access_key="@key", secret_key="taken")),
    ("PUT", "user", dict(key=None, uid="@", access_key="@k3", generate_key="false")),
    ("PUT", "user", dict(key=None, uid="@nobody")),
    ("DELETE", "user", dict(key=None, uid="@", access_key="@k2")),
    ("DELETE", "user", dict(key=None, uid="@", access_key="@k2")),
    ("DELETE", "user", dict(key=None, uid="@")),
    ("PUT", "user", dict(subuser="@:sub", uid="@", access="read")),
    ("PUT", "user", dict(subuser="s3sub", uid="@", access="full", key_type="s3")),
    ("PUT", "user", dict(subuser="wrong", uid="@", access="everything")),
    ("POST", "user", dict(subuser="sub", uid="@", access="readwrite")),
    ("POST", "user", dict(subuser="none", uid="@", access="readwrite")),
    ("GET", "user", dict(uid="@")),
    ("DELETE", "user", dict(subuser="sub", uid="@")),
    ("DELETE", "user", dict(subuser="sub", uid="@")),
    ("PUT", "user", dict(caps=None, uid="@", user_caps="usage=read,write;buckets=read")),
    ("DELETE", "user", dict(caps=None, uid="@", user_caps="usage=write")),
    ("PUT", "user", dict(caps=None, uid="@", user_caps="wrong=*")),
    ("PUT", "user", dict(caps=None, uid="@")),
    ("GET", "user", dict(quota=None, uid="@")),
    ("PUT", "user", dict(quota=None, uid="@", quota_type="user", max_size_kb=4, max_objects=9, enabled="true")),
    ("PUT", "user", dict(quota=None, uid="@", quota_type="bucket", body=b'{"max_size_kb": 1024, "enabled": true}')),
    ("GET", "user", dict(quota=None, uid="@", quota_type="user")),
    ("GET", "user", dict(quota=None, uid="@", quota_type="bucket")),
    ("PUT", "user", dict(quota=None, uid="@", body=b'{"user_quota": {"max_size": 5, "max_objects": -1}, "bucket_quota": {}}')),
    ("GET", "user", dict(quota=None, uid="@")),
    ("GET", "user", dict(quota=None, uid="@", quota_type="wrong")),
    ("PUT", "user", dict(quota=None, uid="@")),
    ("PUT", "user", dict(quota=None, uid="@", quota_type="user", body=b"{")),
    ("GET", "user", dict(quota=None, uid="@nobody")),
    ("GET", "nothing", dict()),
    ("DELETE", "user", dict(uid="t_1$@2")),
    ("DELETE", "user", dict(uid="@")),
    ("DELETE", "user", dict(uid="@")),
]


def run(api, user, steps):
    """What a gateway answers, with the user's name taken out."""
    found = []
    for method, resource, params in steps:
        params = {k: v.replace("@@", user + "\0").replace("@", user).replace("\0", "@") if isinstance(v, str) else v
                  for k, v in params.items()}
        status, document = api.ask(method, resource, params.pop("body", b""), **params)
        found.append((method, resource, sorted(params), status, alike(document).replace(user, "@")))
    return found


def test_users_differ_in_nothing(both):
    ours, theirs = (run(api, name("u"), USERS) for api in both)
    wrong = [f"{step}\n  ours:    {a[3:]}\n  radosgw: {b[3:]}" for step, a, b in zip(USERS, ours, theirs) if a != b]
    assert not wrong, "\n".join(wrong)


def test_users_of_one_gateway_are_those_of_the_other(writer, stock):
    one, other = writer
    user = name("shared")
    made = one("PUT", "user", uid=user, display_name="Shared", email=f"{user}@x.y", user_caps="buckets=read")
    one("PUT", "user", quota=None, uid=user, quota_type="user", max_objects=3, enabled="true")
    shown = one("GET", "user", uid=user)
    assert other("GET", "user", uid=user) == shown
    # The tool leaves some out.
    assert stock.admin_json("user", "info", f"--uid={user}").items() <= shown.items()
    key = made["keys"][0]
    assert user in other("GET", "metadata/user") and user in other("GET", "user", list=None)["keys"]
    changed = other("POST", "user", uid=user, display_name="Changed")
    assert changed["user_quota"]["max_objects"] == 3 and changed["keys"] == made["keys"]
    assert one("GET", "user", access_key=key["access_key"])["display_name"] == "Changed"
    # The capabilities of the new user are those that count, at either gateway.
    for api in writer:
        limited = api.sent_by(key["access_key"], key["secret_key"])
        assert limited("GET", "bucket", uid=user) == []
        for method, resource in [("PUT", "bucket"), ("GET", "user"), ("GET", "usage"), ("GET", "metadata/user")]:
            status, document = limited.ask(method, resource, uid=user, bucket="b")
            assert (status, document["Code"]) == (403, "AccessDenied")
    other("DELETE", "user", uid=user)
    assert one.ask("GET", "user", uid=user)[0] == 404
    # A name that is free can be taken again.
    one("PUT", "user", uid=user, display_name="x", email=f"{user}@x.y", access_key=key["access_key"], secret_key="s")
    other("DELETE", "user", uid=user)


def test_buckets(writer):
    one, other = writer
    owner, heir, bucket = name("owner"), name("heir"), name("b")
    keys = [one("PUT", "user", uid=u, display_name=u.upper())["keys"][0] for u in (owner, heir)]
    clients = [Endpoint(one.url, k["access_key"], k["secret_key"]).client() for k in keys]
    clients[0].create_bucket(Bucket=bucket)
    clients[0].put_object(Bucket=bucket, Key="k", Body=b"x" * 5000)
    clients[0].put_bucket_tagging(Bucket=bucket, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})

    def same(method="GET", resource="bucket", **params):
        documents = [api.ask(method, resource, **params) for api in (one, other)]
        assert alike(documents[0]) == alike(documents[1])
        return documents[0][1]

    found = same(bucket=bucket)
    assert found["usage"]["rgw.main"]["num_objects"] == 1 and found["tagset"] == {"a": "b"}
    assert found == same(uid=owner, stats="true")[0] and same(uid=owner) == [bucket]
    assert bucket in one("GET", "bucket") and bucket in other("GET", "metadata/bucket")
    assert same(policy=None, bucket=bucket)["owner"]["id"] == owner
    assert same(policy=None, bucket=bucket, object="k")["owner"]["id"] == owner
    same(bucket="no-such-bucket")
    same(uid="no-such-user")
    same(policy=None, bucket="no-such-bucket")
    same("PUT", bucket=bucket, uid="no-such-user")
    same("PUT", bucket="no-such-bucket", uid=owner)
    same("DELETE", bucket="no-such-bucket")
    same("DELETE", bucket=bucket)
    same("DELETE", "user", uid=owner)

    one("PUT", "bucket", quota=None, uid=owner, bucket=bucket, max_size_kb=8, max_objects=100, enabled="true")
    quota = same(bucket=bucket)["bucket_quota"]
    assert (quota["max_size"], quota["enabled"]) == (8192, True)
    other("PUT", "bucket", b'{"max_size": -1, "max_objects": 1, "enabled": true}', quota=None, uid=owner, bucket=bucket)
    with pytest.raises(Exception, match="QuotaExceeded"):
        clients[0].put_object(Bucket=bucket, Key="more", Body=b"")
    other("PUT", "bucket", quota=None, uid=owner, bucket=bucket, enabled="false")

    one("PUT", "bucket", uid=heir, bucket=bucket)
    assert same(uid=owner) == [] and same(uid=heir) == [bucket] and same(bucket=bucket)["owner"] == heir
    assert same(policy=None, bucket=bucket)["owner"]["display_name"] == heir.upper()
    clients[1].put_object(Bucket=bucket, Key="of-heir", Body=b"")
    one("POST", "bucket", uid=heir, bucket=bucket)
    assert same(uid=heir) == []
    one("PUT", "bucket", uid=heir, bucket=bucket)
    same("POST", bucket=bucket, uid=owner)

    # Buckets of users that are suspended are closed, also for others, whichever gateway did it.
    one("POST", "user", uid=heir, suspended="true")
    for api in (one, other):
        client = Endpoint(api.url, keys[0]["access_key"], keys[0]["secret_key"]).client()
        # radosgw looks at the rights first.
        code = "UserSuspended" if api.entry == "manage" else "AccessDenied"
        assert raises_code(lambda: client.list_objects(Bucket=bucket)) == code
    other("POST", "user", uid=heir, suspended="false")
    clients[1].delete_object(Bucket=bucket, Key="of-heir")

    one("DELETE", "bucket", object="k", bucket=bucket)
    assert [o["Key"] for o in clients[1].list_objects(Bucket=bucket).get("Contents", [])] == []
    clients[1].put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for n in range(3):
        clients[1].put_object(Bucket=bucket, Key="v", Body=b"v")
    clients[1].create_multipart_upload(Bucket=bucket, Key="u")
    one("DELETE", "bucket", bucket=bucket, purge_objects="true")
    assert same(bucket=bucket)["Code"] == "NoSuchBucket"
    for user in (owner, heir):
        other("DELETE", "user", uid=user)


def test_checks_of_an_index(both, stock):
    ours, _ = both
    user, bucket = name("u"), name("b")
    key = ours("PUT", "user", uid=user, display_name="x")["keys"][0]
    client = Endpoint(ours.url, key["access_key"], key["secret_key"]).client()
    client.create_bucket(Bucket=bucket)
    client.put_object(Bucket=bucket, Key="k", Body=b"12345")
    # radosgw's answer to this request is two documents in a row; radosgw-admin's is one.
    assert ours("GET", "bucket", index=None, bucket=bucket) == stock.admin_json("bucket", "check", f"--bucket={bucket}")
    assert ours.ask("GET", "bucket", index=None, bucket=bucket, check_objects="true")[0] == 501
    ours("DELETE", "user", uid=user, purge_data="true")


def test_what_is_ours_alone(both):
    ours, _ = both
    assert ours.ask("GET", "info")[0] == 403
    ours("PUT", "user", caps=None, uid=ADMIN[0], user_caps="info=read")
    [backend] = ours("GET", "info")["info"]["storage_backends"]
    assert backend["name"] == "rados" and len(backend["cluster_id"]) == 36
    assert "behind_seconds" in ours("GET", "lifecycle")
    for method, resource, params in [("GET", "user", dict(format="xml")), ("GET", "ratelimit", {}), ("GET", "log", {})]:
        status, document = ours.ask(method, resource, **params)
        assert (status, document["Code"]) == (501, "NotImplemented")
    for bad in (ours.sent_by("nobody", "x"), ours.sent_by(ADMIN[1], "wrong")):
        status, document = bad.ask("GET", "user", uid=ADMIN[0])
        assert status == 403 and document["Code"] in ("InvalidAccessKeyId", "SignatureDoesNotMatch")


def test_the_usage_log(both, stock):
    """What each gateway notes, each reads: by the API and by radosgw-admin."""
    user, bucket = name("u"), name("b")
    ours, theirs = both
    key = ours("PUT", "user", uid=user, display_name="x")["keys"][0]
    for api in both:
        client = Endpoint(api.url, key["access_key"], key["secret_key"]).client()
        if api is ours:
            client.create_bucket(Bucket=bucket)
        for n in range(3):
            client.put_object(Bucket=bucket, Key=f"k{n}", Body=b"12345")
            client.get_object(Bucket=bucket, Key=f"k{n}")["Body"].read()
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket=bucket, Key="gone")

    def counted():
        [summary] = ours("GET", "usage", uid=user)["summary"] or [None]
        found = {c["category"]: (c["ops"], c["successful_ops"]) for c in (summary or {"categories": []})["categories"]}
        return found == {"create_bucket": (1, 1), "put_obj": (6, 6), "get_obj": (8, 6)}

    eventually(counted, timeout=60)
    mine, other = ours("GET", "usage", uid=user), theirs("GET", "usage", uid=user)
    assert mine == other
    shown = stock.admin_json("usage", "show", f"--uid={user}")
    assert mine["summary"] == shown["summary"] and mine["entries"] == shown["entries"]
    assert ours("GET", "usage", uid=user, categories="get_obj", show_entries="false") == \
        theirs("GET", "usage", uid=user, categories="get_obj", show_entries="false")
    assert ours("GET", "usage", uid=user, start="2099-01-01")["entries"] == []
    assert ours.ask("DELETE", "usage")[0] == 400
    ours("DELETE", "usage", uid=user)
    assert theirs("GET", "usage", uid=user)["summary"] == []
