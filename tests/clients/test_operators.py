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
