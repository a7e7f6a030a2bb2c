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


# Answers as XML: the outermost element, and elements of arrays by their paths.
XML = [
    ("mon", "osd dump", {}, "osdmap", "osds/osd_info pools/pool flags_set/flag osds/osd_info/state/state osds/osd_info/public_addrs/addrvec/addr"),
    ("mon", "osd tree", {}, "tree", "nodes/item nodes/item/children/child"),
    ("mon", "df", {"detail": "detail"}, "stats", "stats/total_bytes pools/pool/stats/stored"),
    ("mon", "health", {}, "health", "status checks mutes"),
    ("mon", "osd stat", {}, "osdmap", "num_up_osds"),
    ("mon", "osd pool get", {"pool": None, "var": "size"}, "pool", "size"),
    ("mon", "auth get", {"entity": "client.admin"}, "auth", "auth_entities/key auth_entities/caps/mon"),
    ("mon", "osd crush dump", {}, "crush_map", "devices/device buckets/bucket/items/item rules/rule/steps/step types/type"),
    ("mon", "config dump", {}, "config", "option/section option/mask option/device_class"),
    ("mon", "status", {}, "status", "quorum/rank quorum_names/id osdmap/num_up_osds pgmap/pgs_by_state/pgs_by_state_element"),
    ("mon", "osd metadata", {}, "osd_metadata", "osd/id"),
    ("mon", "osd ls", {}, "osds", "osd"),
    ("mon", "osd find", {"id": 0}, "osd_location", "addrs/addrvec/addr crush_location"),
    ("mon", "node ls", {}, "nodes", "osd mon"),
    ("mgr", "pg stat", {}, "pg_info", "pg_summary/num_pg_by_state/state/name"),
    ("mgr", "osd df", {}, "df", "nodes/item summary stray"),
    ("mgr", "osd pool stats", {}, "pool_stats", "pool/pool_name"),
    ("mgr", "pg ls-by-pool", {"poolstr": None}, "pg_info", "pg_stats/pg_stat/acting/osd"),
]


@pytest.mark.parametrize("door,prefix,args,root,paths", XML, ids=[x[1] for x in XML])
def test_formats(doors, some_pool, door, prefix, args, root, paths):
    import xml.etree.ElementTree as Tree
    send, args = getattr(doors, door), {k: some_pool if v is None else v for k, v in args.items()}
    # A fresh cluster has no setting that is narrowed down.
    doors.mon("config set", who="osd/class:none", name="osd_max_scrubs", value="1")
    try:
        for format in ("xml", "xml-pretty"):
            def missing():
                code, out, status = send(prefix, format=format, **args)
                assert code == 0, status
                # Names with a colon are no XML with namespaces: a stock cluster prints them.
                tree = Tree.fromstring(out.decode().replace("up:standby", "up_standby"))
                assert tree.tag == root and tree.find("option/location_type") is None
                return [path for path in paths.split() if tree.find(path) is None]
            # What a new pool's groups are is known when they have told it.
            eventually(lambda: not missing(), what=f"{paths} in {prefix}")
    finally:
        doors.mon("config rm", who="osd/class:none", name="osd_max_scrubs")


@pytest.mark.skipif(not OWN, reason="a stock cluster answers JSON")
def test_formats_that_are_none(doors, some_pool):
    for send, prefix in ((doors.mon, "osd dump"), (doors.mgr, "osd df")):
        doors.refused(send(prefix, format="html"), errno.EINVAL, "xml-pretty")
    assert b"<size>3</size>" in doors.mon("osd pool get", pool=some_pool, var="size", format="xml")[1]


# What programs that watch clusters decode, by command: numbers, texts, and the rest.
FIELDS = [
    ("mon", "status", {}, "election_epoch monmap.epoch monmap.num_mons osdmap.epoch osdmap.num_osds osdmap.num_up_osds osdmap.osd_up_since osdmap.num_in_osds "
     "osdmap.osd_in_since osdmap.num_remapped_pgs pgmap.num_pgs pgmap.num_pools pgmap.num_objects pgmap.data_bytes pgmap.bytes_used pgmap.bytes_avail "
     "pgmap.bytes_total pgmap.pgs_by_state.0.count fsmap.epoch fsmap.up:standby mgrmap.num_standbys servicemap.epoch quorum_age",
     "fsid health.status monmap.min_mon_release_name pgmap.pgs_by_state.0.state_name servicemap.modified",
     "health.checks health.mutes quorum quorum_names fsmap.by_rank mgrmap.available mgrmap.modules mgrmap.services servicemap.services progress_events"),
    ("mon", "df", {"detail": "detail"}, "stats.total_bytes stats.total_avail_bytes stats.total_used_bytes stats.total_used_raw_bytes stats.total_used_raw_ratio stats.num_osds "
     "stats.num_per_pool_osds stats.num_per_pool_omap_osds pools.0.id pools.0.stats.stored pools.0.stats.stored_omap pools.0.stats.objects pools.0.stats.kb_used "
     "pools.0.stats.bytes_used pools.0.stats.percent_used pools.0.stats.max_avail pools.0.stats.quota_objects pools.0.stats.quota_bytes pools.0.stats.dirty "
     "pools.0.stats.rd pools.0.stats.rd_bytes pools.0.stats.wr pools.0.stats.wr_bytes pools.0.stats.compress_bytes_used pools.0.stats.compress_under_bytes "
     "pools.0.stats.stored_raw pools.0.stats.avail_raw", "pools.0.name", "stats_by_class"),
    ("mon", "osd dump", {}, "epoch flags_num full_ratio backfillfull_ratio nearfull_ratio pool_max max_osd pools.0.pool pools.0.type pools.0.size pools.0.min_size pools.0.crush_rule "
     "pools.0.pg_num pools.0.pg_placement_num pools.0.quota_max_bytes osds.0.osd osds.0.up osds.0.in osds.0.weight osds.0.primary_affinity osds.0.public_addrs.addrvec.0.nonce "
     "osd_xinfo.0.features", "fsid created modified flags require_min_compat_client min_compat_client require_osd_release pools.0.pool_name pools.0.pg_autoscale_mode "
     "pools.0.erasure_code_profile pools.0.flags_names osds.0.uuid osds.0.public_addrs.addrvec.0.type osds.0.public_addrs.addrvec.0.addr osds.0.public_addr osds.0.cluster_addr "
     "osds.0.heartbeat_back_addr", "flags_set pools.0.application_metadata pools.0.options osds.0.state pg_upmap pg_upmap_items pg_temp primary_temp blocklist "
     "erasure_code_profiles removed_snaps_queue new_removed_snaps crush_node_flags device_class_flags stretch_mode"),
    ("mon", "mon dump", {}, "epoch min_mon_release election_strategy mons.0.rank mons.0.priority mons.0.weight",
     "fsid modified created min_mon_release_name mons.0.name mons.0.public_addrs.addrvec.0.addr mons.0.addr mons.0.public_addr mons.0.crush_location",
     "stretch_mode features.persistent quorum"),
    ("mon", "quorum_status", {}, "election_epoch quorum_age", "quorum_leader_name features.quorum_con", "quorum quorum_names features.quorum_mon"),
    ("mon", "osd metadata", {}, "0.id", " ".join(f"0.{k}" for k in "hostname arch back_addr front_addr hb_back_addr hb_front_addr ceph_release ceph_version ceph_version_short cpu "
     "default_device_class device_ids device_paths devices distro distro_description distro_version journal_rotational rotational kernel_description kernel_version mem_swap_kb mem_total_kb "
     "network_numa_unknown_ifaces os osd_data osd_objectstore bluefs bluestore_bdev_rotational bluestore_bdev_size bluestore_bdev_type bluestore_bdev_access_mode".split()), ""),
    ("mon", "mon metadata", {}, "", " ".join(f"0.{k}" for k in "name addrs arch ceph_release ceph_version ceph_version_short compression_algorithms cpu device_ids devices distro hostname "
     "kernel_version mem_total_kb os".split()), ""),
    ("mon", "mgr dump", {}, "epoch active_gid active_mgr_features last_failure_osd_epoch", "active_name active_addr active_change",
     "available standbys modules available_modules services always_on_modules active_clients active_addrs.addrvec"),
    ("mon", "features", {}, "mon.0.num client.0.num mgr.0.num", "mon.0.features mon.0.release osd.0.features", ""),
    ("mon", "osd pool ls", {"detail": "detail"}, "0.pool_id 0.snap_seq 0.pg_num_target 0.auid", "0.pool_name 0.create_time 0.last_change 0.snap_mode", "0.pool_snaps"),
    ("mon", "osd find", {"id": 0}, "osd", "addrs.addrvec.0.addr osd_fsid host crush_location.host crush_location.root", ""),
    ("mon", "osd crush dump", {}, "devices.0.id types.0.type_id buckets.0.id buckets.0.items.0.weight rules.0.rule_id rules.0.ruleset rules.0.type rules.0.min_size "
     "tunables.choose_total_tries", "devices.0.name devices.0.class buckets.0.alg buckets.0.hash tunables.profile", "choose_args"),
    ("mgr", "pg dump", {}, "pg_map.version pg_map.pg_stats_sum.stat_sum.num_bytes pg_map.osd_stats_sum.kb pg_map.pg_stats.0.reported_seq pg_map.pg_stats.0.log_size "
     "pg_map.pg_stats.0.snaptrimq_len pg_map.pg_stats.0.stat_sum.num_objects_degraded pg_map.pool_stats.0.poolid pg_map.osd_stats.0.osd pg_map.osd_stats.0.kb "
     "pg_map.osd_stats.0.perf_stat.commit_latency_ms", "pg_map.stamp pg_map.pg_stats.0.pgid pg_map.pg_stats.0.version pg_map.pg_stats.0.state pg_map.pg_stats.0.last_fresh "
     "pg_map.pg_stats.0.last_active pg_map.pg_stats.0.last_unstale pg_map.pg_stats.0.last_scrub_stamp", "pg_ready pg_map.pg_stats.0.stats_invalid pg_map.pg_stats.0.up "
     "pg_map.pg_stats.0.purged_snaps pg_map.osd_stats.0.hb_peers pg_map.osd_stats.0.op_queue_age_hist pg_map.pool_statfs"),
    ("mgr", "balancer status", {}, "", "mode last_optimize_started optimize_result", "active plans"),
]


def field(found, path):
    for part in path.split("."):
        found = found[int(part) if isinstance(found, list) else part]
    return found


@pytest.mark.parametrize("door,prefix,args,numbers,texts,others", FIELDS, ids=[f[1] for f in FIELDS])
def test_fields_that_monitoring_decodes(doors, some_pool, door, prefix, args, numbers, texts, others):
    eventually(lambda: doors.json("status")["pgmap"].get("pgs_by_state") and doors.json("df")["pools"], what="statistics")
    found = doors.json(prefix, getattr(doors, door), **args)
    for kind, paths in (((int, float), numbers), (str, texts), ((list, dict, bool), others)):
        for path in paths.split():
            value = field(found, path)
            assert isinstance(value, kind) and (kind != (int, float) or not isinstance(value, bool)), (path, value)


def test_profiles_of_erasure_coding_are_checked(doors):
    name = "e-" + uuid.uuid4().hex[:8]
    sets = lambda *words, of=name, **kw: doors.mon("osd erasure-code-profile set", name=of, profile=list(words), **kw)
    get = lambda of=name: doors.json("osd erasure-code-profile get", name=of)
    assert {"k", "m", "plugin", "technique"} <= set(get("default")) and get("default")["k"] == "2"
    try:
        # Tools set a profile again whenever they look at it.
        for _ in range(2):
            assert sets("k=2", "m=1", "crush-failure-domain=osd")[0] == 0
        # What was not named is filled in.
        assert {"crush-device-class": "", "crush-failure-domain": "osd", "crush-root": "default", "jerasure-per-chunk-alignment": "false", "k": "2", "m": "1",
                "plugin": "jerasure", "technique": "reed_sol_van", "w": "8"}.items() <= get().items()
        doors.refused(sets("k=4", "m=2"), errno.EPERM, "will not override erasure code profile")
        assert get()["k"] == "2" and sets("k=3", "m=1", "crush-failure-domain=osd", force=True)[0] == 0 and get()["k"] == "3"
        assert name in doors.json("osd erasure-code-profile ls")
        for words, text in ((("k=1", "m=1"), "must be >= 2"), (("k=2", "m=0"), ""), (("k=x", "m=1"), ""), (("k=2", "m=1", "ruleset-failure-domain=host"), "")):
            doors.refused(sets(*words, of=name + "b"), errno.EINVAL, text)
        assert sets("k=2", "m=1", "plugin=no-such-plugin", of=name + "b")[0] != 0
        doors.refused(doors.mon("osd erasure-code-profile get", name=name + "b"), errno.ENOENT, "unknown erasure code profile")
    finally:
        assert doors.mon("osd erasure-code-profile rm", name=name)[0] == 0
    code, _, said = doors.mon("osd erasure-code-profile rm", name=name)
    assert code == 0 and "does not exist" in said


def test_a_deep_scrub_says_where_large_omaps_are(doors, cluster):
    name = "l-" + uuid.uuid4().hex[:8]
    assert doors.mon("osd pool create", pool=name, pg_num=2)[0] == 0
    assert doors.mon("osd pool application enable", pool=name, app="rados")[0] == 0
    bounds = {"osd_deep_scrub_large_omap_object_key_threshold": "200", "osd_deep_scrub_large_omap_object_value_sum_threshold": "100000"}
    for option, value in bounds.items():
        cluster.ceph("tell", "osd.*", "config", "set", option, value)
    io = doors.rados.open_ioctx(name)
    stats = lambda: {s["pgid"]: s for s in doors.json("pg ls-by-pool", doors.mgr, poolstr=name)["pg_stats"]}
    warned = lambda: [d["message"] for d in doors.json("health", detail="detail")["checks"].get("LARGE_OMAP_OBJECTS", {}).get("detail", []) if name in d["message"]]

    def scrubbed():
        eventually(lambda: len(stats()) == 2 and all(s["state"] == "active+clean" for s in stats().values()), what="PGs that are clean")
        before = {pg: s["last_deep_scrub_stamp"] for pg, s in stats().items()}
        doors.mgr("osd pool deep-scrub", who=[name])
        eventually(lambda: all(s["last_deep_scrub_stamp"] > before[pg] for pg, s in stats().items()), timeout=90, what="a deep scrub of the pool")

    try:
        for oid, keys, size in (("many", 300, 10), ("heavy", 20, 10_000), ("fine", 150, 10)):
            with rados.WriteOpCtx() as op:
                io.set_omap(op, tuple(f"k{i:05}" for i in range(keys)), (b"v" * size,) * keys)
                io.operate_write_op(op, oid)
        scrubbed()
        eventually(lambda: warned() == [f"2 large objects found in pool '{name}'"], what="the warning")
        assert sum(s["stat_sum"]["num_large_omap_objects"] for s in stats().values()) == 2
        assert stats()[doors.json("osd map", pool=name, object="many")["pgid"]]["stat_sum"]["num_omap_keys"] >= 300
        log = doors.mon("log last", num=200, level="warn", channel="cluster")[1].decode()
        assert "Large omap object found" in log and ":many:" in log and "Key count: 300" in log
        # The warning goes when a deep scrub has seen that the keys are gone.
        for oid in "many", "heavy":
            with rados.WriteOpCtx() as op:
                io.clear_omap(op)
                io.operate_write_op(op, oid)
        scrubbed()
        eventually(lambda: not warned(), what="an end of the warning")
    finally:
        io.close()
        for option in bounds:
            cluster.ceph("tell", "osd.*", "config", "unset", option)
        doors.mon("osd pool delete", pool=name, pool2=name, yes_i_really_really_mean_it=True)


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
