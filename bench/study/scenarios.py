"""What is measured. A scenario prepares its background work, then lets it begin beside the client.

What takes long to prepare (the client's image, pools of objects) stays in the cluster for the run's other cells, under
names of the run, and goes away at its end.
"""
import time

from .ceph import CommandFailed
from .targets import Skip

HELD = ("norecover", "nobackfill", "norebalance")

# Logs so short that they cannot fill what an OSD missed: then it is backfilled, as it was in the published study.
SHORT_LOGS = {"osd_min_pg_log_entries": "1", "osd_max_pg_log_entries": "2", "osd_pg_log_trim_min": "1"}


def client_pool(cell):
    """The pool, and the image or nothing, that the client works on."""
    t, stage, s = cell.target, cell.target.stage, cell.sizes
    if "client" not in stage:
        image = cell.drivers.options["driver"] == "fio-rbd"
        pool = t.make_pool("client", s["pgs"], "rbd" if image else "rados")
        t.settle(s["settle_limit"])
        if image:
            cell.log(f"    image of {s['image_mb']} MiB")
            cell.drivers.make_image(t, cell.dir, pool, s["image_mb"])
        stage["client"] = (pool, "client" if image else None)
    return stage["client"]


def client(cell):
    pool, image = client_pool(cell)
    s = cell.sizes
    return cell.drivers.client("client", cell.target, cell.dir, pool, image=image, depth=s["client_depth"], size_mb=s["image_mb"]), pool


def objects(cell, what, count, size):
    """A pool of so many objects, written once in a run."""
    t, key = cell.target, f"objects {what}"
    pool = t.make_pool(what, cell.sizes["pgs"])
    held = cell.drivers.objects(t, pool, count, size)
    if t.stage.get(key) != (count, size):
        t.settle(cell.sizes["settle_limit"])
        cell.log(f"    {count} objects of {size >> 10} KiB")
        held.write()
        t.stage[key] = (count, size)
    return pool, held


def clones(cell, part):
    """Objects of which a part was overwritten since a snapshot. Gives what counts the clones, and what removes the
    snapshot."""
    s, t = cell.sizes, cell.target
    pool, held = objects(cell, "snaps", s["objects"], s["object_size"])
    number = t.ceph.pools()[pool]
    name = f"snap-{cell.spec['id']}"
    n = round(s["objects"] * part)
    cell.event("snapshot", pool=pool, overwritten=n)
    held.snapshot(name)
    held.write(count=n, salt=cell.spec["repeat"])
    t.until("all clones to be counted", lambda: t.ceph.pool_stats()[number]["num_object_clones"] == n, 120)
    return lambda pools: pools[number]["num_object_clones"], lambda: held.remove_snapshot(name)


def misplaced_or_degraded(pools):
    return sum(p["num_objects_degraded"] + p["num_objects_misplaced"] for p in pools.values())


def victim(cell):
    """The OSD that goes down or out: the one that was named, else the last."""
    up = [osd for osd, (is_up, is_in) in cell.ceph.osds().items() if is_up and is_in]
    osd = cell.drivers.options.get("osd")
    if osd is not None and osd not in up:
        raise Skip(f"osd.{osd} is not up and in")
    return max(up) if osd is None else osd


def baseline(cell):
    """The client alone."""
    client_pool(cell)
    cell.target.settle(cell.sizes["settle_limit"])
    cell.begin_sampling({})
    cell.start_load(*client(cell))
    cell.wait(cell.sizes["warm_up"])
    cell.mark("base")
    cell.wait(cell.sizes["baseline"])
    cell.mark("ended")
    cell.stop_loads()
    cell.end_sampling()


def test_a(cell):
    """A snapshot of another pool is removed, of whose objects 80 % were overwritten since."""
    client_pool(cell)
    left, remove = clones(cell, cell.sizes["overwritten"])
    cell.target.settle(cell.sizes["settle_limit"])
    cell.measure([client(cell)], {"trimming": left}, remove)


def test_b(cell):
    """The same, and at the same moment the recovery of an OSD begins that was down while objects were written, more than
    logs hold."""
    t, s = cell.target, cell.sizes
    client_pool(cell)
    pool, held = objects(cell, "recovery", s["recovery_objects"], s["recovery_size"])
    objects(cell, "snaps", s["objects"], s["object_size"])
    osd = victim(cell)
    t.settle(s["settle_limit"])
    logs = [t.set_option("osd", option, value, temporary=True) for option, value in SHORT_LOGS.items()]
    t.until("short logs", lambda: all(t.ceph.running(o, n) == v for o in t.ceph.osds() for n, v in SHORT_LOGS.items()), 60)
    cell.event("down", osd=osd)
    t.set_flag("noout")
    t.set_flag("noup")
    t.ceph.mon("osd down", ids=[str(osd)])
    t.until(f"osd.{osd} to be down and the others active", lambda: not t.ceph.osds()[osd][0] and active(t), 120)
    held.write(salt=cell.spec["repeat"] + 1)
    for flag in HELD:
        t.set_flag(flag)
    t.unset_flag("noup")
    t.until(f"osd.{osd} to be up", lambda: t.ceph.osds()[osd][0] and active(t), 180)
    put_back(t, logs)
    left, remove = clones(cell, s["overwritten_b"])

    def release():
        remove()
        for flag in HELD:
            t.unset_flag(flag)

    cell.measure([client(cell)], {"trimming": left, "recovery": misplaced_or_degraded}, release)
    t.unset_flag("noout")


def put_back(target, entries):
    for e in target.undo.outstanding(target.name):
        if e["id"] in entries:
            target.put_back(e)


def active(target):
    return all("active" in state and "peering" not in state for state in target.ceph.states())


def backfill(cell):
    """An OSD is marked out, and all that it has is copied elsewhere, eight groups of an OSD at a time."""
    t, s = cell.target, cell.sizes
    inside = [osd for osd, (is_up, is_in) in t.ceph.osds().items() if is_up and is_in]
    if len(inside) < 4:
        raise Skip("with three OSDs or fewer and three copies there is nowhere to copy to")
    client_pool(cell)
    objects(cell, "recovery", s["recovery_objects"], s["recovery_size"])
    osd = victim(cell)
    t.settle(s["settle_limit"])
    storm = t.set_option("osd", "osd_max_backfills", str(s["backfills"]), temporary=True)
    for flag in HELD:
        t.set_flag(flag)
    out = t.osd_out(osd)

    def release():
        for flag in HELD:
            t.unset_flag(flag)

    cell.measure([client(cell)], {"backfill": misplaced_or_degraded}, release)
    put_back(t, [out, storm])
    t.settle(s["settle_limit"])


def deep_scrub(cell):
    """All groups of another pool are scrubbed, data and all."""
    t, s = cell.target, cell.sizes
    client_pool(cell)
    pool, _ = objects(cell, "scrub", s["recovery_objects"], s["recovery_size"])
    number = t.ceph.pools()[pool]
    t.settle(s["settle_limit"])
    groups = lambda: [g for g in t.ceph.pg_stats() if g["pgid"].split(".")[0] == str(number)]
    before = {g["pgid"]: g["last_deep_scrub_stamp"] for g in groups()}

    def left(_):
        return sum(max(1, g["stat_sum"]["num_objects"]) for g in groups() if g["last_deep_scrub_stamp"] == before[g["pgid"]])

    # That which forbids scheduled scrubs forbids these as well.
    flags = [f for f in ("noscrub", "nodeep-scrub") if f in t.ceph.flags()]

    def release():
        for flag in flags:
            t.unset_flag(flag)
        try:
            for pg in before:
                t.ceph.mgr("pg deep-scrub", pgid=pg)
        except CommandFailed as e:
            raise Skip(f"the cluster does not scrub: {e}")

    try:
        cell.measure([client(cell)], {"scrub": left}, release)
    finally:
        for flag in flags:
            t.set_flag(flag)


def pool_delete(cell):
    """A pool of many objects is deleted. What is left of it are copies of groups that OSDs still have."""
    t, s = cell.target, cell.sizes
    client_pool(cell)
    t.settle(s["settle_limit"])
    # Groups that are being deleted belong to no pool; the OSDs still have them.
    held = lambda: sum(t.ceph.osd(osd, "status")["num_pgs"] for osd, (up, _) in t.ceph.osds().items() if up)
    others = held()
    pool, _ = objects(cell, "doomed", s["objects"], s["object_size"])
    del t.stage["objects doomed"]
    cell.measure([client(cell)], {"deletion": lambda _: max(0, held() - others)}, lambda: t.drop_pool(pool))


def neighbour(cell, sessions):
    """A client with one session, beside a neighbour on another pool with many. Both have 16 requests under way in each
    session. The neighbour's processes have a low priority: it is to press the servers, not the client's processor."""
    t, s = cell.target, cell.sizes
    pools = [t.make_pool(what, s["pgs"] // 2) for what in ("victim", "aggressor")]
    t.settle(s["settle_limit"])
    how = {"depth": 16, "size_mb": 4}
    first = cell.drivers.client("client", t, cell.dir, pools[0], **how)
    other = cell.drivers.client("neighbour", t, cell.dir, pools[1], sessions=sessions, nice=19, **how)

    def release():
        cell.note(sessions=sessions, base_ended=time.time())
        cell.start_load(other, pools[1])
        cell.mark("released")

    cell.measure([(first, pools[0])], {}, release, until=s["beside"])


def tenants(cell):
    """Three tenants, each a pool: one with all its data on few OSDs and a floor, one spread and with a smaller floor, and
    one with four times as much under way and none. Alone for a while without floors, then with them."""
    t, s = cell.target, cell.sizes
    if not t.is_siphon():
        raise Skip("stock Ceph has no floors for tenants")
    shape = {"client": (2, 64, 0.35), "spread": (32, 64, 0.15), "greedy": (32, 256, 0.0)}
    pools = {name: t.make_pool(f"tenant-{name}", pgs) for name, (pgs, _, _) in shape.items()}
    t.settle(s["settle_limit"])
    loads = [(cell.drivers.client(name, t, cell.dir, pools[name], depth=depth, size_mb=4), pools[name]) for name, (_, depth, _) in shape.items()]
    number = {name: t.ceph.pools()[pool] for name, pool in pools.items()}

    def done():
        stats = t.ceph.pool_stats()
        return sum(stats[i]["num_write"] + stats[i]["num_read"] for i in number.values())

    cell.begin_sampling({})
    for load, pool in loads:
        cell.start_load(load, pool)
    cell.wait(s["warm_up"])
    cell.mark("base")
    before = done()
    cell.wait(s["lead"])
    total = (done() - before) / s["lead"]
    base_ends = time.time()
    floors = {name: round(part * total) for name, (_, _, part) in shape.items() if part}
    for name, floor in floors.items():
        t.promise(pools[name], floor)
    cell.note(floors=floors, base_ended=base_ends)
    # A specification holds after two to three seconds.
    cell.wait(2 * s["warm_up"])
    cell.mark("released")
    cell.wait(s["beside"])
    cell.mark("background ended")
    cell.stop_loads()
    cell.end_sampling()
    put_back(t, [e["id"] for e in t.undo.outstanding(t.name) if e["kind"] == "promise"])


SCENARIOS = {"baseline": baseline, "test-a": test_a, "test-b": test_b, "backfill": backfill, "deep-scrub": deep_scrub, "pool-delete": pool_delete,
             "neighbour": neighbour, "tenants": tenants}

# What is said of each in lists and reports.
TITLES = {"baseline": "The client alone", "test-a": "Test A: trimming a snapshot", "test-b": "Test B: trimming and recovery", "backfill": "Backfill storm",
          "deep-scrub": "Deep scrub", "pool-delete": "Deletion of a pool", "neighbour": "A noisy neighbour", "tenants": "Tenants with floors"}

# An operator's cluster loses redundancy or moves data in these.
DISTURBING = ("test-b", "backfill")


def expand(names, sessions):
    """The scenarios of the command line; the neighbour's has a cell for each number of sessions."""
    out = []
    for name in names:
        if name not in SCENARIOS:
            raise SystemExit(f"there is no scenario {name}; `list` shows them")
        out += [f"neighbour:{n}" for n in sessions] if name == "neighbour" else [name]
    return out


def title(scenario):
    name, _, n = scenario.partition(":")
    return TITLES[name] + (f", {n} session{'s' if n != '1' else ''}" if n else "")


def run(cell):
    name, _, n = cell.spec["scenario"].partition(":")
    SCENARIOS[name](cell, *([int(n)] if n else []))
