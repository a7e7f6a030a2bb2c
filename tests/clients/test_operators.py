"""What operators' tools ask of the cluster, beside reading and writing: commands by every door, services that
register, and refusals that scripts look for."""
import errno
import json
import os
import subprocess
import uuid

import pytest
import rados
from conftest import eventually

OWN = "SIPHON_TEST_CONF" not in os.environ


class Doors:
    """Commands as libraries send them: to a monitor, to the manager."""

    def __init__(self, conf):
        self.conf = str(conf)
        self.rados = rados.Rados(conffile=self.conf, conf={"rados_mon_op_timeout": "60", "client_mount_timeout": "30"})
        self.rados.connect()

    def mon(self, prefix, data=b"", **args):
        code, out, status = self.rados.mon_command(json.dumps({"prefix": prefix, **args}), data)
        return -code, out, status

    def mgr(self, prefix, data=b"", **args):
        code, out, status = self.rados.mgr_command(json.dumps({"prefix": prefix, **args}), data)
        return -code, out, status

    def json(self, prefix, door=None, **args):
        code, out, status = (door or self.mon)(prefix, format="json", **args)
        assert code == 0, f"{prefix}: {code} {status}"
        return json.loads(out)

    def refused(self, answer, code, text=""):
        got, out, status = answer
        assert got == code, f"errno {got}, not {code}: {status}"
        assert text in status + out.decode(errors="replace"), status


@pytest.fixture(scope="module")
def doors(base_conf):
    d = Doors(base_conf)
    d.mon("config set", who="mon", name="mon_allow_pool_delete", value="true")
    yield d
    d.rados.shutdown()


@pytest.fixture
def some_pool(doors):
    name = "o-" + uuid.uuid4().hex[:8]
    assert doors.mon("osd pool create", pool=name, pg_num=8)[0] == 0
    assert doors.mon("osd pool application enable", pool=name, app="rados")[0] == 0
    yield name
    doors.mon("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


def test_a_monitor_hands_commands_on_to_the_manager(doors, some_pool):
    def whole():
        code, out, _ = doors.mgr("pg ls-by-pool", poolstr=some_pool, format="json")
        return code == 0 and [s["state"] for s in json.loads(out)["pg_stats"]] == ["active+clean"] * 8
    eventually(whole, what="the pool to be clean")
    for prefix, args in (("osd df", {}), ("osd perf", {}), ("pg stat", {}), ("osd pool stats", {}), ("pg dump", {"dumpcontents": ["pgs_brief"]}),
                         ("pg ls-by-pool", {"poolstr": some_pool}), ("osd ok-to-stop", {"ids": ["0"]}), ("rbd task list", {}), ("progress json", {}),
                         ("crash ls", {}), ("osd pool autoscale-status", {}), ("service dump", {})):
        direct, by_monitor = doors.json(prefix, doors.mgr, **args), doors.json(prefix, doors.mon, **args)
        assert type(direct) is type(by_monitor), prefix
        if isinstance(direct, dict):
            assert set(direct) == set(by_monitor), prefix
    # Refusals come the same way, and commands that neither has are the monitor's to refuse.
    doors.refused(doors.mon("pg scrub", pgid="99.0"), errno.ENOENT)
    doors.refused(doors.mon("rbd task add flatten", image_spec=f"{some_pool}/none"), errno.ENOENT)
    doors.refused(doors.mon("no such command"), errno.EINVAL)


def test_the_monitor_judges_what_it_hands_on(doors, cluster, some_pool, tmp_path):
    name, path = f"client.{some_pool}", tmp_path / "keyring"
    out = doors.mon("auth get-or-create", entity=name, caps=["mon", "allow r"])[1]
    path.write_bytes(out)
    limited = rados.Rados(name=name, conffile=doors.conf, conf={"keyring": str(path), "rados_mon_op_timeout": "30"})
    limited.connect()
    ask = lambda **args: limited.mon_command(json.dumps(args), b"")[0]
    assert ask(prefix="pg stat", format="json") == 0, "a monitor's cap to read is enough by a monitor"
    assert ask(prefix="pg scrub", pgid="1.0") == -errno.EACCES
    limited.shutdown()
    doors.mon("auth rm", entity=name)


GATEWAY = """
import rados, sys
c = rados.Rados(conffile=sys.argv[1])
c.connect()
c.service_daemon_register(sys.argv[2], "host1:pool/image", {"daemon_type": "portal", "daemon_prefix": "host1"})
c.service_daemon_update({"owner": "true", "said": "two words"})
print("up", flush=True)
sys.stdin.readline()
c.shutdown()
"""


def test_service_daemons(doors):
    service = "gw" + uuid.uuid4().hex[:6]
    child = subprocess.Popen(["/usr/bin/python3", "-c", GATEWAY, doors.conf, service], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    dump = lambda: doors.json("service dump", doors.mgr)["services"]
    daemon = eventually(lambda: dump().get(service, {}).get("daemons", {}).get("host1:pool/image"), what="the daemon to be shown")
    assert {"start_epoch", "start_stamp", "gid", "addr", "metadata", "task_status"} <= set(daemon)
    assert daemon["metadata"]["daemon_type"] == "portal" and {"hostname", "ceph_version"} <= set(daemon["metadata"])
    status = lambda: doors.json("service status", doors.mgr).get(service, {}).get("host1:pool/image", {})
    eventually(lambda: status().get("status") == {"owner": "true", "said": "two words"}, what="its status")
    assert {"last_beacon", "status_stamp"} <= set(status())
    eventually(lambda: service in doors.json("status")["servicemap"]["services"], what="the monitors to know it")
    assert f"    {service}: 1 portal active (host1)\n" in doors.mon("status")[1].decode()
    child.stdin.close()
    assert child.wait(30) == 0
    eventually(lambda: service not in dump(), what="the daemon to be gone")
    eventually(lambda: service not in doors.json("status")["servicemap"]["services"], what="the monitors to forget it")


@pytest.mark.skipif(not OWN, reason="kills clients of a cluster of its own")
def test_a_service_daemon_that_was_killed_is_forgotten(doors):
    service = "gw" + uuid.uuid4().hex[:6]
    doors.mon("config set", who="mgr", name="mgr_service_beacon_grace", value="10")
    child = subprocess.Popen(["/usr/bin/python3", "-c", GATEWAY, doors.conf, service], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    dump = lambda: doors.json("service dump", doors.mgr)["services"]
    eventually(lambda: service in dump(), what="the daemon to be shown")
    child.kill()
    child.wait()
    eventually(lambda: service not in dump(), what="the daemon to be forgotten")
    doors.mon("config rm", who="mgr", name="mgr_service_beacon_grace")


# A process under it connects from 127.0.0.77: to the cluster it is another host.
ELSEWHERE = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <sys/socket.h>
int connect(int fd, const struct sockaddr *to, socklen_t n) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    struct sockaddr_in me = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f00004d)};
    if (to->sa_family == AF_INET) bind(fd, (struct sockaddr *)&me, sizeof me);
    return next(fd, to, n);
}
"""
WRITER = """
import rados, sys
c = rados.Rados(conffile=sys.argv[1], conf={"rados_osd_op_timeout": "30"})
c.connect()
assert "127.0.0.77" in c.get_addrs()
c.wait_for_latest_osdmap()
try:
    c.open_ioctx(sys.argv[2]).write_full("o", b"x")
    print(0)
except rados.Error as e:
    print(e.errno)
"""


def listed(doors):
    return {e.get("addr") or e["range"]: e["until"] for e in doors.json("osd blocklist ls")}


def test_forms_of_the_blocklist(doors):
    bl = lambda op, addr, **kw: doors.mon("osd blocklist", blocklistop=op, addr=addr, **kw)
    assert bl("add", "192.0.2.7")[0] == 0 and "192.0.2.7:0/0" in listed(doors)
    assert "isn't" not in bl("rm", "192.0.2.7:0")[2] and "192.0.2.7:0/0" not in listed(doors)
    assert "isn't blocklisted" in bl("rm", "192.0.2.7")[2]
    assert doors.mon("osd blacklist", blacklistop="add", addr="[2001:db8::1]:0/3", expire=60.0)[0] == 0
    assert "[2001:db8::1]:0/3" in listed(doors)
    assert doors.mon("osd blacklist", blacklistop="rm", addr="[2001:db8::1]:0/3")[0] == 0
    for text in ("192.0.2.0/29", "2001:db8::/32"):
        code, _, status = bl("add", text, range="range", expire=60.0)
        assert code == 0 and "blocklisting cidr:" in status, status
    assert {"192.0.2.0:0/29", "[2001:db8::]:0/32"} <= set(listed(doors))
    assert any("192.0.2.0:0/29" in r for r in doors.json("osd dump")["range_blocklist"])
    for text in ("192.0.2.0/33", "192.0.2.0", "2001:db8::/129", "192.0.2.0/x", "/8", ""):
        doors.refused(bl("add", text, range="range"), errno.EINVAL)
    doors.refused(bl("add", "192.0.2.1", range="ranges"), errno.EINVAL)
    assert bl("rm", "192.0.2.0/29", range="range")[0] == 0
    assert bl("add", "192.0.2.9", expire=2.0)[0] == 0 and bl("add", "192.0.2.16/28", range="range", expire=2.0)[0] == 0
    eventually(lambda: not {"192.0.2.9:0/0", "192.0.2.16:0/28"} & set(listed(doors)), what="entries of two seconds to end")
    assert doors.mon("osd blocklist clear")[0] == 0 and listed(doors) == {}


@pytest.mark.skipif(bool(os.environ.get("SIPHON_TEST_CHROOT")), reason="the client is another process than in the root directory")
def test_a_host_is_fenced_by_address_and_by_network(doors, some_pool, tmp_path):
    (tmp_path / "from.c").write_text(ELSEWHERE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "from.so", tmp_path / "from.c", "-ldl"], check=True)

    def writes():
        r = subprocess.run(["/usr/bin/python3", "-c", WRITER, doors.conf, some_pool], env={**os.environ, "LD_PRELOAD": str(tmp_path / "from.so")},
                           capture_output=True, text=True, timeout=120)
        assert r.returncode == 0, r.stderr
        return int(r.stdout)
    assert writes() == 0
    for addr, kind in (("127.0.0.77", {}), ("127.0.0.76/30", {"range": "range"})):
        assert doors.mon("osd blocklist", blocklistop="add", addr=addr, expire=60.0, **kind)[0] == 0
        assert writes() == errno.ESHUTDOWN, addr
        assert doors.mon("osd blocklist", blocklistop="rm", addr=addr, **kind)[0] == 0
        assert writes() == 0, addr
    # A network beside it is another one.
    assert doors.mon("osd blocklist", blocklistop="add", addr="127.0.0.80/28", expire=60.0, range="range")[0] == 0
    assert writes() == 0
    doors.mon("osd blocklist clear")


def test_characters_are_the_tools_affair(doors, some_pool):
    io = doors.rados.open_ioctx(some_pool)
    for key, value in (("url", "https://host:8080/x?y=1"), ("a key", "two words, é"), ("a/b", "=")):
        io.application_metadata_set("rados", key, value)
        assert (key, value) in io.application_metadata_list("rados")
    io.close()
    # Names in the CRUSH map the monitors check themselves.
    doors.refused(doors.mon("osd crush add-bucket", name="a b", type="host"), errno.EINVAL)
    doors.refused(doors.mon("osd crush rule create-simple", name="r/x", root="default", type="osd"), errno.EINVAL)


def test_users_that_exist(doors):
    name = "client.o" + uuid.uuid4().hex[:8]
    ring = doors.mon("auth get-or-create", entity=name, caps=["mon", "allow r"])[1].decode()
    other = ring.replace(ring.split("key = ")[1].strip(), "AQBSdFhcAAAAABAAy2ci3LEBKnAVoSiSqlCOhw==")
    doors.refused(doors.mon("auth add", other.encode(), entity=name, caps=["mon", "allow r"]), errno.EEXIST, "exists but key does not match")
    doors.refused(doors.mon("auth add", entity=name, caps=["mon", "allow rw"]), errno.EINVAL, "cap mon does not match")
    doors.refused(doors.mon("auth add", entity=name, caps=["mon", "allow r", "osd", "allow r"]), errno.EINVAL, "caps do not match")
    assert doors.mon("auth add", ring.encode(), entity=name, caps=["mon", "allow r"])[0] == 0
    assert doors.mon("auth rm", entity=name)[0] == 0


def test_options_by_force_and_special_ones(doors):
    config = lambda op, **args: doors.mon(f"config {op}", **args)
    unknown = "made_up_" + uuid.uuid4().hex[:6]
    doors.refused(config("set", who="global", name=unknown, value="1"), errno.EINVAL, f"unrecognized config option '{unknown}'")
    assert config("set", who="global", name=unknown, value="a b", force=True)[0] == 0
    row = next(r for r in doors.json("config dump") if r["name"] == unknown)
    assert (row["value"], row["level"], row["section"]) == ("a b", "unknown", "global")
    assert config("rm", who="global", name=unknown)[0] == 0
    assert unknown not in [r["name"] for r in doors.json("config dump")]
    doors.refused(config("set", who="osd", name="osd_max_backfills", value="many"), errno.EINVAL, "error parsing value")
    for special in ("mon_host", "keyring", "fsid", "osd_data"):
        doors.refused(config("set", who="global", name=special, value="x"), errno.EINVAL)
    doors.refused(config("set", who="global", name="mon_host", value="x"), errno.EINVAL, "cannot be stored by the mon")
    assert config("set", who="osd.0", name="osd scrub sleep", value="0.5")[0] == 0
    assert config("get", who="osd.0", key="osd_scrub_sleep")[1].startswith(b"0.5")
    assert config("rm", who="osd.0", name="osd scrub sleep")[0] == 0
    doors.refused(config("set", who="osd.0", name="osd-scrub-sleep", value="0.5"), errno.EINVAL, "unrecognized config option")
    doors.refused(config("get", who="osd.0", key=unknown), errno.ENOENT, "unrecognized key")


def test_modules_and_the_orchestrator_that_is_not_there(doors, cluster):
    for words in (["status"], ["ls", "--refresh"], ["host", "ls"], ["osd", "rm", "status"], ["upgrade", "status"]):
        cluster.fails("ceph", "orch", *words, errno=errno.ENOENT, text="No orchestrator configured")
    shown = doors.json("mgr module ls")
    assert {"balancer", "orchestrator", "rbd_support", "volumes"} <= set(shown["always_on_modules"])
    assert all({"name", "can_run", "error_string"} <= set(m) for m in shown["disabled_modules"])
    module = lambda op, name, **kw: doors.mon(f"mgr module {op}", module=name, **kw)
    assert "(always-on)" in module("enable", "balancer")[2]
    doors.refused(module("disable", "balancer"), errno.EINVAL, "cannot be disabled (always-on)")
    assert "already disabled" in module("disable", "dashboard")[2]
    doors.refused(module("enable", "dashboard"), errno.ENOENT, "--force")
    doors.refused(module("enable", "dashboard", force="--force"), errno.ENOENT)


def test_formats(doors, some_pool):
    import xml.dom.minidom
    for door, prefix, args in ((doors.mon, "osd dump", {}), (doors.mon, "status", {}), (doors.mon, "osd pool get", {"pool": some_pool, "var": "size"}),
                               (doors.mon, "pg stat", {}), (doors.mgr, "osd df", {}), (doors.mgr, "pg ls-by-pool", {"poolstr": some_pool})):
        for format in ("xml", "xml-pretty"):
            code, out, status = door(prefix, format=format, **args)
            assert code == 0, (prefix, status)
            root = xml.dom.minidom.parseString(out).documentElement
            assert root.tagName == prefix.replace(" ", "_") and root.childNodes
        doors.refused(door(prefix, format="html", **args), errno.EINVAL, "xml-pretty")
    assert b"<size>3</size>" in doors.mon("osd pool get", pool=some_pool, var="size", format="xml")[1]
    assert b"<num_up_osds>" in doors.mon("status", format="xml")[1]


def test_crashes(doors, cluster, tmp_path):
    ident = "2026-01-02T03:04:05.678901Z_" + str(uuid.uuid4())
    stamp = __import__("datetime").datetime.now(__import__("datetime").timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    report = {"crash_id": ident, "timestamp": stamp, "entity_name": "osd.7", "utsname_hostname": "h7", "process_name": "osd", "archived": None}
    doors.refused(doors.mgr("crash post", b"no report"), errno.EINVAL, "malformed crash metadata")
    doors.refused(doors.mgr("crash post", b"{}"), errno.EINVAL, "missing 'crash_id' field")
    doors.refused(doors.mgr("crash info", id=ident), errno.EINVAL, "not found")
    del report["archived"]
    (tmp_path / "report").write_text(json.dumps(report))
    cluster.ceph("crash", "post", "-i", tmp_path / "report")
    # By the other door with its input, and again: it is one report.
    assert doors.mon("crash post", json.dumps(report).encode())[0] == 0
    assert json.loads(doors.mgr("crash info", id=ident)[1]) == report
    assert [c["crash_id"] for c in doors.json("crash ls-new", doors.mgr)].count(ident) == 1
    line = next(l for l in doors.mgr("crash ls")[1].decode().splitlines() if ident in l)
    assert line.split() == [ident, "osd.7", "*"]
    warned = lambda: doors.json("health", detail="detail")["checks"].get("RECENT_CRASH", {"detail": []})["detail"]
    eventually(lambda: {"message": f"osd.7 crashed on host h7 at {stamp}"} in warned(), what="the warning")
    assert doors.mgr("crash archive", id=ident)[0] == 0
    eventually(lambda: not [d for d in warned() if stamp in d["message"]], what="the warning to end")
    assert ident not in [c["crash_id"] for c in doors.json("crash ls-new", doors.mgr)]
    assert doors.json("crash json_report", doors.mgr, hours=1)["osd"] >= 1
    assert "crashes recorded" in doors.mgr("crash stat")[1].decode()
    assert doors.mgr("crash archive-all")[0] == 0 and doors.json("crash ls-new", doors.mgr) == []
    # It is the monitors' to keep.
    assert json.loads(doors.mon("config-key get", key=f"mgr/crash/crash/{ident}")[1])["crash_id"] == ident
    assert doors.mgr("crash rm", id=ident)[0] == 0 and doors.mgr("crash rm", id=ident)[0] == 0
    doors.refused(doors.mgr("crash info", id=ident), errno.EINVAL)


def test_health_of_places_and_pools(doors, some_pool):
    checks = lambda: doors.json("health", detail="detail")["checks"]
    assert doors.mon("osd pool set", pool=some_pool, var="noscrub", val="true")[0] == 0
    check = checks()["POOL_SCRUB_FLAGS"]
    assert check["summary"]["message"] == "Some pool(s) have the noscrub flag(s) set"
    assert {"message": f"Pool {some_pool} has noscrub flag"} in check["detail"]
    doors.mon("osd pool set", pool=some_pool, var="noscrub", val="false")
    assert "POOL_SCRUB_FLAGS" not in checks()
    assert doors.mon("config set", who="mon", name="mon_max_pg_per_osd", value="2")[0] == 0
    eventually(lambda: "TOO_MANY_PGS" in checks(), what="too many groups to be told")
    doors.mon("config rm", who="mon", name="mon_max_pg_per_osd")
    eventually(lambda: "TOO_MANY_PGS" not in checks(), what="that to end")


@pytest.mark.skipif(not OWN, reason="stops all OSDs of a host")
def test_a_host_that_is_down(siphon_factory):
    c = siphon_factory(osds=3)
    c.start()
    d = Doors(c.conf)
    d.mon("osd set", key="noup")
    assert d.mon("osd down", ids=["0", "1", "2"])[0] == 0

    def told():
        checks = d.json("health", detail="detail")["checks"]
        kinds = [k for k in checks if k.startswith("OSD_") and k.endswith("_DOWN") and k not in ("OSD_DOWN", "OSD_ROOT_DOWN")]
        return kinds and checks[kinds[0]]
    check = eventually(told, what="the host to be told")
    assert "(3 osds) down" in check["summary"]["message"] and "(3 osds) is down" in check["detail"][0]["message"], check
    d.mon("osd unset", key="noup")
    eventually(lambda: not told(), what="the host to be up")
    d.rados.shutdown()
    c.stop()


def test_what_collectors_send_to_every_daemon(doors, cluster, some_pool):
    mon = doors.json("mon dump")["mons"][0]["name"]
    mgr = doors.json("mgr dump")["active_name"]
    tell = lambda who, *words: cluster.ceph("tell", who, *words, "--format", "json")
    for who, commands in {
        "osd.0": ("dump_mempools", "get_mapped_pools", "dump_scrub_reservations", "perf dump", "perf schema", "config diff", "dump_blocked_ops"),
        f"mon.{mon}": ("perf dump", "perf schema", "sessions", "ops", "config show"),
        f"mgr.{mgr}": ("perf dump", "perf schema", "status", "config diff"),
    }.items():
        for command in commands:
            assert json.loads(tell(who, *command.split())), (who, command)
        assert tell(who, "log", "flush").strip() == ""
        values, schema = json.loads(tell(who, "perf", "dump")), json.loads(tell(who, "perf", "schema"))
        for section in values:
            assert set(values[section]) <= set(schema[section]), who
    assert "compacted" in cluster.ceph("tell", "osd.0", "compact")


@pytest.mark.skipif(not OWN, reason="the number of a report is asked of a monitor of ours")
def test_statistics_are_flushed(doors, cluster, some_pool):
    with doors.rados.open_ioctx(some_pool) as io:
        for i in range(20):
            io.write_full(f"o{i}", b"x")
    for osd in range(3):
        seq = int(cluster.ceph("tell", f"osd.{osd}", "flush_pg_stats"))
        eventually(lambda: int(cluster.ceph("osd", "last-stat-seq", f"osd.{osd}")) >= seq, what=f"the report of osd.{osd}")
    stored = [p["stats"]["objects"] for p in doors.json("df")["pools"] if p["name"] == some_pool]
    assert stored == [20], "all that was written before is told"
