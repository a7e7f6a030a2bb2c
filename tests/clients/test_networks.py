"""OSDs with a network of their own: what goes over it, and what happens when a host is cut off from it alone."""
import json

import pytest

import hosts
from conftest import eventually
from test_thrash import PATIENCE, SETTINGS, Admin

rados = pytest.importorskip("rados")

DATA = 200 * 65536


@pytest.fixture(scope="module")
def three():
    settings = [*SETTINGS, ("osd", "debug_heartbeat_testing_span", 2)]
    with hosts.cluster("siphon-networks.", settings, osds=1, back=True) as h:
        c = Admin(h.conf, {"ms_client_mode": "crc"})
        c("osd pool create", pool="d", pg_num=16)
        c("osd pool application enable", pool="d", app="rados")
        yield h, c
        c.close()


def clean(c, osds=3):
    def check():
        s = c.json("status")
        return s["osdmap"]["num_up_osds"] == osds and all(x["state_name"] == "active+clean" for x in s["pgmap"].get("pgs_by_state", [{"state_name": "none"}]))
    eventually(check, timeout=PATIENCE, what="active+clean")


def sent(h, host, device):
    return json.loads(h.net[host].run("ip", "-s", "-j", "link", "show", device))[0]["stats64"]["tx"]["bytes"]


@pytest.fixture(scope="module")
def data(three):
    """The pool, of a client that does not wait for ever."""
    _, c = three
    return c.connect(rados_osd_op_timeout=60).open_ioctx("d")


def write(data, tag):
    for i in range(200):
        data.write_full(f"o{i}", tag * 65536)


def test_osds_tell_an_address_in_each_network(three):
    h, c = three
    osds = c.json("osd dump")["osds"]
    assert len(osds) == 3
    for o in osds:
        meta = c.json("osd metadata", id=o["osd"])
        for shown, key, net in (("public_addr", "front_addr", "10.93."), ("cluster_addr", "back_addr", "10.94.0."),
                                ("heartbeat_front_addr", "hb_front_addr", "10.93."), ("heartbeat_back_addr", "hb_back_addr", "10.94.0.")):
            assert o[shown].startswith(net), (shown, o)
            assert net in meta[key], (key, meta)


def test_copies_go_over_the_network_of_osds(three, data):
    h, c = three
    clean(c)
    before = {d: sum(sent(h, host, d) for host in h.names) for d in ("eth0", "eth1")}
    write(data, b"a")
    after = {d: sum(sent(h, host, d) for host in h.names) for d in ("eth0", "eth1")}
    copies, answers = after["eth1"] - before["eth1"], after["eth0"] - before["eth0"]
    # Two more copies of each object; clients are told that it is done.
    assert copies > 2 * DATA > 4 * answers, (copies, answers)


def test_both_networks_are_watched(three):
    h, c = three

    def seen():
        r = json.loads(c.mgr("tell", "osd.0", "dump_osd_network", "0", "--format=json"))
        return {(e["to osd"], e["interface"]) for e in r["entries"]} == {(o, n) for o in (1, 2) for n in ("back", "front")}
    eventually(seen, timeout=PATIENCE, what="ping times in both networks")


def test_who_is_cut_off_from_the_others_is_down_until_he_hears_them(three, data):
    h, c = three
    clean(c)
    lost = next(int(d.name[4:]) for d in h.on("h2", "osd."))
    state = lambda: next(o for o in c.json("osd dump")["osds"] if o["osd"] == lost)
    h.net.back("h2", "down")
    eventually(lambda: not state()["up"], timeout=PATIENCE, what="the OSD to be down")
    # It reaches the monitors, and would be up at once if it did not look whether others hear it.
    down_at = state()["down_at"]
    for _ in range(20):
        write(data, b"b")
        assert not state()["up"], "it boots though nobody hears it"
    assert [o["up"] for o in c.json("osd dump")["osds"]].count(1) == 2, "the others stay"
    h.net.back("h2", "up")
    clean(c)
    assert state()["down_at"] == down_at, "it came back once"
    assert all(data.read(f"o{i}", 65536) == b"b" * 65536 for i in range(200))
