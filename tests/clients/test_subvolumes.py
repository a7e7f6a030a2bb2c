"""Subvolumes of file systems and their groups: our manager answers what stock's module answers, and both read what the
other has made."""
import errno
import json
import os
import re
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stock_volumes
from conftest import BINARY, CHROOT, eventually

pytestmark = pytest.mark.skipif(CHROOT is not None, reason="the metadata server runs outside of the chroot")
cephfs = pytest.importorskip("cephfs")
from file_systems import mounted, new_cluster, new_servers, read, write

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


class Ours:
    """The manager, asked as `ceph` asks it."""

    def __init__(self, cluster):
        cluster.command(prefix="mgr stat")
        self.client = cluster.admin

    def __call__(self, prefix, **args):
        code, out, text = self.client.mgr_command(json.dumps({"prefix": prefix, "target": ["mon-mgr", ""], **args}), b"")
        return [-code, out.decode(), text]


class Stocks:
    """Stock's module, in a process of its own."""

    def __init__(self, cluster):
        argv = [sys.executable, str(Path(stock_volumes.__file__)), str(cluster.conf)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.answer() == "ready\n"

    def answer(self):
        assert select.select([self.process.stdout], [], [], 120)[0], "stock's module is silent"
        return self.process.stdout.readline()

    def __call__(self, prefix, **args):
        self.process.stdin.write(json.dumps({"prefix": prefix, **args}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.answer())

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def cl(siphon_factory):
    return new_cluster(siphon_factory)


@pytest.fixture(scope="module")
def servers(cl, tmp_path_factory):
    s = new_servers(cl, tmp_path_factory.mktemp("mds"), more=("cephfs_more",))
    s.start("a")
    eventually(lambda: s.active() == "a", what="an active metadata server")
    yield s
    for name in list(s.daemons):
        s.kill(name)


@pytest.fixture(scope="module")
def ours(cl, servers):
    return Ours(cl)


@pytest.fixture(scope="module")
def stocks(cl, servers):
    if not stock_volumes.there():
        pytest.skip("ceph-mgr-modules-core is not installed")
    s = Stocks(cl)
    yield s
    s.close()


@pytest.fixture(scope="module")
def fs(cl, servers):
    fs = mounted(cl)
    yield fs
    fs.unmount()
    fs.shutdown()


def plain(answer, name):
    """An answer without what differs between two subvolumes that are alike."""
    code, out, text = answer
    out = UUID.sub("UUID", TIME.sub("TIME", out))
    return code, out.replace(name, "NAME"), text.replace(name, "NAME") if code else ""


def group(prefix, **args):
    return f"fs subvolumegroup {prefix}", {"vol_name": "cephfs", "group_name": "GROUP", **args}


def sub(prefix, **args):
    return f"fs subvolume {prefix}", {"vol_name": "cephfs", "sub_name": "SUB", **args}


def in_group(prefix, **args):
    return sub(prefix, group_name="GROUP", **args)


SCRIPT = [
    sub("ls"), sub("exist"), sub("info"), sub("getpath"), group("getpath"),
    group("create", mode="750", uid=5, gid=6), group("create", mode="755", uid=5, gid=6), group("getpath"),
    group("info"), in_group("ls"), in_group("exist"),
    group("create", pool_layout="nope"), group("create", mode="9"), group("create", uid=-1),
    group("resize", new_size="1000000"), group("resize", new_size="inf"), group("resize", new_size="0"),
    group("resize", new_size="x"), group("info"), group("pin", pin_type="export", pin_setting="0"),
    group("pin", pin_type="export", pin_setting="x"),
    group("pin", pin_type="export", pin_setting="-1"),
    in_group("create", size=1 << 30, mode="700"), in_group("info"), in_group("getpath"), in_group("ls"),
    in_group("create", size=1 << 31, uid=7, gid=8, mode="711"), in_group("info"),
    in_group("resize", new_size="2000000"), in_group("resize", new_size="1", no_shrink=True), in_group("resize", new_size="inf"),
    in_group("resize", new_size="-1"), in_group("resize", new_size="many"), in_group("info"),
    in_group("metadata ls"), in_group("metadata rm", key_name="k"), in_group("metadata set", key_name="Key", value="a value"),
    in_group("metadata set", key_name="other", value="50 %%"), in_group("metadata get", key_name="key"),
    in_group("metadata get", key_name="none"), in_group("metadata get", key_name="other"), in_group("metadata ls"),
    in_group("metadata rm", key_name="none"), in_group("metadata rm", key_name="none", force=True),
    in_group("metadata rm", key_name="key"), in_group("metadata ls"),
    in_group("authorized_list"), in_group("authorize", auth_id="USER"),
    in_group("authorized_list"), in_group("authorize", auth_id="USER", access_level="r"), in_group("authorized_list"),
    in_group("authorize", auth_id="USER", tenant_id="t"), in_group("deauthorize", auth_id="other"),
    in_group("deauthorize", auth_id="USER"), in_group("authorized_list"), in_group("deauthorize", auth_id="USER"),
    group("rm"), in_group("pin", pin_type="export", pin_setting="0"),
    in_group("rm"), in_group("rm"), in_group("rm", force=True), in_group("info"), in_group("ls"), group("rm"), group("rm"),
    group("rm", force=True), group("info"),
    sub("create", pool_layout="cephfs_more", namespace_isolated=True), sub("info"),
    sub("create", pool_layout="nope"), sub("create", mode="8"), sub("create", uid=-5), sub("create", size=-5),
    sub("rm"), sub("create", pool_layout="nope"), sub("ls"), sub("create", size=-5), sub("ls"),
    ("fs subvolume ls", {"vol_name": "none"}), ("fs subvolume ls", {"vol_name": "cephfs", "group_name": "_nogroup"}),
    ("fs subvolume ls", {"vol_name": "cephfs", "group_name": "_deleting"}),
    ("fs subvolume ls", {"vol_name": "cephfs", "group_name": "none"}),
    ("fs subvolume exist", {"vol_name": "cephfs", "group_name": "none"}),
]
# Texts of libcephfs or of Python's own, which no manager should repeat.
FOREIGN = re.compile(r"error in|\[Errno|Traceback|Error:")


def run_script(ask, name):
    answers = []
    for prefix, args in SCRIPT:
        names = {"GROUP": f"{name}g", "SUB": f"{name}s", "USER": f"{name}u"}
        args = {k: names.get(v, v) if isinstance(v, str) else v for k, v in args.items()}
        answers.append(plain(ask(prefix, **args), name))
    return answers


def test_answers_are_those_of_stock(ours, stocks):
    expected = run_script(stocks, "stock")
    found = run_script(ours, "ours")
    wrong = []
    for (prefix, args), e, f in zip(SCRIPT, expected, found):
        same = e == f or e[0] == f[0] != 0 and (FOREIGN.search(e[2]) or not e[2]) and f[2]
        if not same:
            wrong.append(f"{prefix} {args}:\n  stock {e}\n  ours  {f}")
    assert not wrong, "\n".join(wrong)


def tree(fs, path):
    """Everything below a path: mode, owner, layout and quota, and the content of files."""
    found = {}
    left = [path]
    while left:
        at = left.pop()
        st = fs.stat(at)
        what = {"mode": stat.filemode(st.st_mode), "owner": (st.st_uid, st.st_gid)}
        if stat.S_ISDIR(st.st_mode):
            for name in ("ceph.dir.layout.pool", "ceph.dir.layout.pool_namespace", "ceph.quota.max_bytes"):
                try:
                    what[name] = fs.getxattr(at, name).decode()
                except cephfs.NoData:
                    pass
            d = fs.opendir(at)
            while entry := fs.readdir(d):
                if entry.d_name not in (b".", b".."):
                    left.append(f"{at}/{entry.d_name.decode()}")
            fs.closedir(d)
        else:
            what["content"] = UUID.sub("UUID", read(fs, at).decode())
        found[UUID.sub("UUID", at)] = what
    return found


def test_the_layout_is_that_of_stock(ours, stocks, fs):
    def make(ask, name):
        for prefix, args in [
            ("fs subvolumegroup create", {"group_name": name, "mode": "750", "uid": 5}),
            ("fs subvolume create", {"sub_name": "s", "group_name": name, "size": 1 << 20, "mode": "700"}),
            ("fs subvolume create", {"sub_name": "isolated", "group_name": name, "namespace_isolated": True, "pool_layout": "cephfs_more"}),
            ("fs subvolume metadata set", {"sub_name": "s", "group_name": name, "key_name": "k", "value": "v"}),
            ("fs subvolume authorize", {"sub_name": "s", "group_name": name, "auth_id": f"{name}.user", "tenant_id": "t"}),
        ]:
            code, _, text = ask(prefix, vol_name="cephfs", **args)
            assert code == 0, text
        all = {p: {**w, "content": w["content"].replace(name, "NAME")} if "content" in w else w for p, w in tree(fs, "/volumes").items()}
        # Of users: both orders of keys are JSON.
        for what in all.values():
            if what.get("content", "").startswith("{"):
                what["content"] = json.loads(what["content"])
        return {p.replace(name, "NAME"): w for p, w in all.items() if name in p}

    expected, found = make(stocks, "stocks"), make(ours, "mine")
    assert found == expected
    assert "/volumes/NAME/s/.meta" in found and "/volumes/_NAME:s.meta" in found and "/volumes/$NAME.user.meta" in found


def test_each_uses_what_the_other_made(cl, ours, stocks, fs):
    for n, (maker, user) in enumerate([(stocks, ours), (ours, stocks)]):
        args = {"vol_name": "cephfs", "sub_name": f"shared{n}"}
        assert maker("fs subvolume create", **args, size=1000)[0] == 0
        assert maker("fs subvolume metadata set", **args, key_name="a", value="b")[0] == 0
        assert maker("fs subvolume authorize", **args, auth_id=f"both{n}", tenant_id="t")[0] == 0
        assert user("fs subvolume info", **args) == maker("fs subvolume info", **args)
        assert user("fs subvolume metadata get", **args, key_name="a")[:2] == [0, "b"]
        assert json.loads(user("fs subvolume authorized_list", **args)[1]) == [{f"both{n}": "rw"}]
        assert user("fs subvolume metadata set", **args, key_name="c", value="d")[0] == 0
        assert json.loads(maker("fs subvolume metadata ls", **args)[1]) == {"a": "b", "c": "d"}
        assert user("fs subvolume deauthorize", **args, auth_id=f"both{n}")[0] == 0
        assert cl.run("ceph", "auth", "get", f"client.both{n}", check=False).returncode == errno.ENOENT
        assert user("fs subvolume rm", **args)[0] == 0
        assert maker("fs subvolume info", **args)[0] == errno.ENOENT


@pytest.mark.parametrize("for_people", [False, True])
def test_a_volume_is_shown_as_by_stock(ours, stocks, fs, for_people):
    args = {"vol_name": "cephfs", "human_readable": for_people}
    assert ours("fs subvolume create", vol_name="cephfs", sub_name=f"shown{for_people}")[0] == 0
    path = ours("fs subvolume getpath", vol_name="cephfs", sub_name=f"shown{for_people}")[1]
    write(fs, f"{path}/f", b"x" * 123_456)
    fs.sync_fs()

    def shown():
        # What a pool takes is reported every few seconds.
        both = stocks("fs volume info", **args), ours("fs volume info", **args)
        return both if both[0] == both[1] and "cephfs_more" in both[0][1] else None

    answers = lambda: f"{stocks('fs volume info', **args)} and {ours('fs volume info', **args)} to be the same"
    (code, text, _), _ = eventually(shown, what=answers)
    found = json.loads(text)
    assert code == 0 and {*found, "used_size"} == {"mon_addrs", "pending_subvolume_deletions", "pools", "used_size"}
    assert isinstance(found["used_size"], str if for_people else int), found
    assert [p["name"] for p in found["pools"]["data"]] == ["cephfs_data", "cephfs_more"]
    none = ours("fs volume info", vol_name="none", human_readable=for_people)
    assert none[0] == stocks("fs volume info", vol_name="none", human_readable=for_people)[0] == errno.ENOENT


def test_a_user_may_use_one_subvolume(cl, ours, fs, tmp_path):
    args = {"vol_name": "cephfs", "sub_name": "mine"}
    assert ours("fs subvolume create", **args, mode="777")[0] == 0
    assert ours("fs subvolume create", vol_name="cephfs", sub_name="theirs", mode="777")[0] == 0
    code, key, text = ours("fs subvolume authorize", **args, auth_id="me", tenant_id="t")
    assert code == 0, text
    path = ours("fs subvolume getpath", **args)[1]
    caps = cl.ceph_json("auth", "get", "client.me")[0]
    assert caps["key"] == key
    assert caps["caps"] == {"mds": f"allow rw path={path}", "osd": "allow rw pool=cephfs_data", "mon": "allow r"}
    keyring = tmp_path / "keyring"
    keyring.write_text(f"[client.me]\nkey = {key}\n")

    def mount(at):
        me = cephfs.LibCephFS(conffile=str(cl.conf), auth_id="me")
        me.conf_set("keyring", str(keyring))
        try:
            me.mount(mount_root=at.encode())
        except cephfs.Error:
            me.shutdown()
            return None
        return me

    me = mount(path)
    write(me, "/f", b"x" * 1000)
    me.unmount()
    me.shutdown()
    assert read(fs, f"{path}/f") == b"x" * 1000
    assert mount(ours("fs subvolume getpath", vol_name="cephfs", sub_name="theirs")[1]) is None
    used = lambda: json.loads(ours("fs subvolume info", **args)[1])["bytes_used"]
    eventually(lambda: used() == 1000, what="the bytes in a subvolume")
    assert ours("fs subvolume resize", **args, new_size="10", no_shrink=True)[0] == errno.EINVAL
    assert ours("fs subvolume resize", **args, new_size="4000")[:2] == [0, json.dumps(
        [{"bytes_used": 1000}, {"bytes_quota": 4000}, {"bytes_pcent": "25.00"}], indent=4, sort_keys=True)]
    assert ours("fs subvolume authorize", **args, auth_id="admin")[0] == errno.EPERM


def test_what_is_removed_goes_in_the_background(cl, ours, fs):
    args = {"vol_name": "cephfs", "sub_name": "large"}
    assert ours("fs subvolume create", **args)[0] == 0
    path = ours("fs subvolume getpath", **args)[1]
    fs.mkdirs(f"{path}/a/b/c", 0o755)
    deep = "/".join(["d" * 200] * 12)
    at = path
    for name in deep.split("/"):
        at = f"{at}/{name}"
        fs.mkdir(at, 0o755)
    write(fs, f"{at}/f", b"deep")
    for n in range(550):
        fs.close(fs.open(f"{path}/a/file.{n}", os.O_WRONLY | os.O_CREAT, 0o644))
    write(fs, f"{path}/a/b/c/data", b"x" * (5 << 20))
    fs.symlink("/volumes", f"{path}/a/link")
    fs.sync_fs()
    ino = fs.stat(f"{path}/a/b/c/data").st_ino
    assert ours("fs subvolume rm", **args)[0] == 0
    assert ours("fs subvolume getpath", **args)[0] == errno.ENOENT

    def trash():
        d = fs.opendir("/volumes/_deleting")
        names = []
        while entry := fs.readdir(d):
            names.append(entry.d_name)
        fs.closedir(d)
        return [n for n in names if n not in (b".", b"..")]

    eventually(lambda: not trash(), what="an empty trash")
    data = lambda: [o for o in cl.rados("-p", "cephfs_data", "ls").stdout.decode().split() if o.startswith(f"{ino:x}.")]
    eventually(lambda: not data(), what="the data of a removed subvolume to go")


def test_promises_are_one_specification(cl, servers, ours, fs):
    if servers.stock:
        pytest.skip("a stock server promises nothing")
    for name in ("one", "two"):
        assert ours("fs subvolumegroup create", vol_name="cephfs", group_name="promised")[0] == 0
        assert ours("fs subvolume create", vol_name="cephfs", sub_name=name, group_name="promised")[0] == 0
    root = "/volumes/promised"

    def qos(*args, code=0):
        argv = [str(BINARY), "qos", "-c", str(cl.conf), *map(str, args)]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert (r.returncode != 0) == (code != 0), f"{args}: {r.stdout}{r.stderr}"
        return r.stderr if code else r.stdout

    def attribute(name, what):
        try:
            return fs.getxattr(f"{root}/{name}", f"ceph.dmclock.mds_{what}").decode()
        except cephfs.NoData:
            return None

    one, two, both = "fs:cephfs/promised/one", "fs:cephfs/promised/two", "fs:cephfs/promised"
    qos("get", one, code=1)
    # What the command says is in the attributes,
    qos("set", one, "--floor-iops", 20, "--ceiling-iops", 60, "--weight", 200)
    assert [attribute("one", w) for w in ("reservation", "limit", "weight")] == ["20", "60", "200"]
    assert attribute("two", "limit") is None
    # and what the attributes say, the command tells.
    fs.setxattr(f"{root}/two", "ceph.dmclock.mds_limit", b"7.5", 0)
    assert json.loads(qos("get", two)) == {"ceiling_iops": 7.5}
    assert json.loads(qos("get", both)) == {one: {"floor_iops": 20, "ceiling_iops": 60, "weight": 200}, two: {"ceiling_iops": 7.5}}
    lines = [line.split() for line in qos("ls").splitlines()]
    assert [one, "200", "20", "-", "60", "-", "-", "-"] in lines and [two, "100", "-", "-", "7.5", "-", "-", "-"] in lines
    # What is not said any more does not hold any more: above the ceiling that there was, and back.
    qos("set", one, "--floor-iops", 100)
    assert [attribute("one", w) for w in ("reservation", "limit", "weight")] == ["100", None, None]
    qos("set", both, "--ceiling-iops", 40)
    assert [attribute(name, w) for name in ("one", "two") for w in ("reservation", "limit")] == [None, "40", None, "40"]
    fs.mkdir(f"{root}/one/d", 0o755)
    # What clients ask for is told with its subvolume.
    found = json.loads(qos("explain", one, "--period", 0.2, "--json"))["tenants"]
    assert [(t["tenant"], t["ceiling_iops"], t["specified"]) for t in found] == [(one, 40, True)]
    assert "ceiling 40" in qos("explain", both, "--period", 0.2)
    top = subprocess.Popen([str(BINARY), "qos", "-c", str(cl.conf), "top", "--once", "--period", "3", "--json"], stdout=subprocess.PIPE)
    made = 0
    while top.poll() is None:
        fs.mkdir(f"{root}/one/d/{made}", 0o755)
        made += 1
    served = {t["tenant"]: t for t in json.loads(top.stdout.read())["tenants"]}[one]
    top.stdout.close()
    assert made > 0 and served["served_iops"] > 0 and served["weight"] == 100
    qos("rm", both)
    assert attribute("one", "limit") is None
    assert "no specification" in qos("get", both, code=1)
    for args, why in [
        (("set", one, "--ceiling-bps", "1M"), "--ceiling-bps"),
        (("set", one, "--floor-iops", 5, "--ceiling-iops", 4), "above the ceiling"),
        (("set", "fs:none", "--weight", 5), "no file system none"),
        (("set", f"{both}/three", "--weight", 5), "there is no /volumes/promised/three"),
        (("set", "fs:cephfs//volumes", "--weight", 5), "not the root of a subvolume"),
        (("set", "fs:cephfs/", "--weight", 5), "none of fs:NAME"),
    ]:
        assert why in qos(*args, code=1), args


def test_another_server_takes_over_under_a_manager(servers, ours):
    args = {"vol_name": "cephfs", "sub_name": "kept"}
    assert ours("fs subvolume create", **args)[0] == 0
    servers.start("b")
    eventually(lambda: servers.states().get("b") == (None, "up:standby"), what="a metadata server that waits")
    servers.kill("a")
    servers.cluster.command(prefix="mds fail", role_or_gid="0")
    assert ours("fs subvolume metadata set", **args, key_name="k", value="v")[0] == 0
    assert ours("fs subvolume metadata get", **args, key_name="k")[:2] == [0, "v"]
    assert servers.active() == "b"


@pytest.mark.skipif(not os.environ.get("SIPHON_TEST_LONG"), reason="takes two minutes; SIPHON_TEST_LONG=1 runs it")
def test_a_manager_leaves_no_session_behind(cl, servers):
    """It closes what no command has used for 60 s, which it looks at every 20 s. A session without a client is waited for by
    the next server for 45 s and evicted, and the manager with it."""
    cl.run("ceph", "fs", "subvolume", "create", "cephfs", "before-the-end")
    manager = cl.ceph_json("mgr", "dump")["active_gid"]
    assert manager in [s["id"] for s in servers.sessions()]
    for name in list(servers.daemons):
        servers.kill(name)
    cl.command(prefix="mds fail", role_or_gid="0")
    time.sleep(85)
    servers.start("next")
    eventually(lambda: servers.active() == "next", 30, "a metadata server that waits for no client")
    assert cl.ceph_json("mgr", "dump")["active_gid"] == manager
    cl.run("ceph", "fs", "subvolume", "create", "cephfs", "after-the-end")


def test_a_manager_whose_client_was_evicted_starts_anew(cl, servers):
    subvolume = lambda *args, **kw: cl.run("ceph", "fs", "subvolume", *args, **kw)
    subvolume("create", "cephfs", "of-the-first")
    before = cl.ceph_json("mgr", "dump")["active_gid"]
    [evicted] = [s for s in servers.sessions() if s["id"] == before]
    cl.run("ceph", "tell", f"mds.{servers.active()}", "session", "evict", f"id={evicted['id']}")

    def serves():
        now = cl.ceph_json("mgr", "dump")
        return now["available"] and now["active_gid"] != before

    eventually(serves, 60, "a manager under another address")
    subvolume("create", "cephfs", "of-the-next")
    listed = {s["name"] for s in json.loads(subvolume("ls", "cephfs").stdout)}
    assert {"of-the-first", "of-the-next"} <= listed


def test_what_is_not_there_says_so(cl, ours):
    for prefix, args in [
        ("fs subvolume snapshot create", {"sub_name": "s", "snap_name": "x"}),
        ("fs subvolume snapshot ls", {"sub_name": "s"}),
        ("fs subvolumegroup snapshot create", {"group_name": "g", "snap_name": "x"}),
        ("fs subvolume snapshot clone", {"sub_name": "s", "snap_name": "x", "target_sub_name": "y"}),
        ("fs clone status", {"clone_name": "x"}),
    ]:
        code, _, text = ours(prefix, vol_name="cephfs", **args)
        assert code == errno.EOPNOTSUPP and "not there yet" in text
    for name in ("..", ".", "a/b"):
        assert ours("fs subvolume info", vol_name="cephfs", sub_name=name)[0] == errno.EINVAL
    assert cl.run("ceph", "fs", "subvolume", "create", "cephfs", "b/c", check=False).returncode == errno.EINVAL
