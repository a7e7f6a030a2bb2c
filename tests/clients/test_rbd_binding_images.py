"""librbd's Python binding: images, their features, snapshots, clones, notes and locks."""
import os
import struct
from datetime import datetime, timedelta

from rbd_binding import (DATA_POOL, DEEP, DEFAULT, FAST, JOURNAL, KIB, LAYERING, LOCK, MAP, MIB, OPERATIONS, STRIPING, eventually,
                         isolated, raises, rbd, worker)  # noqa: F401

BOTH = ("crc", "secure")


def near(moment, seconds=600):
    return abs(moment - datetime.utcnow()) < timedelta(seconds=seconds)


@isolated(modes=BOTH)
def test_creation(t):
    assert t.rbd.version() >= (1, 16, 0)
    name = t.create(3 * MIB + 5)
    with t.open(name) as i:
        assert i.get_name() == name and i.size() == 3 * MIB + 5
        assert i.features() == DEFAULT and i.flags() == 0 and i.op_features() == 0
        assert not i.old_format()
        assert i.stripe_unit() == 4 * MIB and i.stripe_count() == 1
        assert i.data_pool_id() == t.io.get_pool_id()
        assert i.block_name_prefix() == "rbd_data." + i.id()
        assert i.stat() == {"size": 3 * MIB + 5, "obj_size": 4 * MIB, "num_objs": 1, "order": 22,
                            "block_name_prefix": i.block_name_prefix(), "parent_pool": 2**64 - 1, "parent_name": b""}
        raises(rbd.ImageNotFound, 2, i.parent_info)
        raises(rbd.ImageNotFound, 2, i.parent_id)
        raises(rbd.ImageNotFound, 2, i.get_parent_image_spec)
        assert i.overlap() == 0
        assert near(i.create_timestamp()) and near(i.access_timestamp()) and near(i.modify_timestamp())
        image_id = i.id()
    with t.Image(t.io, image_id=image_id) as i:
        assert i.get_name() == name
    raises(rbd.ImageExists, 17, t.rbd.create, t.io, name, MIB)
    raises(rbd.ImageNotFound, 2, t.open, "none")
    raises(rbd.ImageNotFound, 2, t.Image, t.io, image_id="none")
    raises(rbd.InvalidArgument, None, t.Image, t.io)
    raises(rbd.InvalidArgument, None, t.Image, t.io, name, image_id=image_id)
    raises(rbd.ImageNotFound, 2, t.open, name, snapshot="none")


@isolated
def test_creation_with_options(t):
    data = t.pool()
    for order in (12, 25):
        with t.new(MIB, order=order) as i:
            assert i.stat()["order"] == order
    for order in (11, 26):
        raises(rbd.ArgumentOutOfRange, 33, t.rbd.create, t.io, "x", MIB, order=order, old_format=False)
    with t.new(8 * MIB, order=20, stripe_unit=64 * KIB, stripe_count=4) as i:
        assert (i.stripe_unit(), i.stripe_count()) == (64 * KIB, 4)
        assert i.features() == DEFAULT | STRIPING
    raises(rbd.InvalidArgument, 22, t.create, stripe_unit=0, stripe_count=2)
    raises(rbd.InvalidArgument, 22, t.create, order=20, stripe_unit=2 * MIB, stripe_count=2)
    raises(rbd.InvalidArgument, 22, t.create, order=20, stripe_unit=100_000, stripe_count=2)
    for features in (0, LAYERING, LAYERING | LOCK, LAYERING | LOCK | MAP | FAST, DEFAULT, DEFAULT | JOURNAL, LAYERING | LOCK | JOURNAL):
        with t.new(MIB, features=features) as i:
            assert i.features() == features
    with t.new(MIB, features=LOCK | MAP) as i:
        assert i.features() == LOCK | MAP | FAST  # Either brings the other with it.
    raises(rbd.InvalidArgument, 22, t.create, features=MAP)
    raises(rbd.InvalidArgument, 22, t.create, features=JOURNAL)
    raises(rbd.FunctionNotSupported, 38, t.create, features=1 << 30)
    raises(rbd.ImageNotFound, 2, t.create, data_pool="nosuchpool")
    with t.new(8 * MIB, data_pool=data.get_pool_name()) as i:
        assert i.features() == DEFAULT | DATA_POOL
        assert i.data_pool_id() == data.get_pool_id()
        assert i.block_name_prefix() == f"rbd_data.{t.io.get_pool_id()}.{i.id()}"
        i.write(b"there", 0)
        i.flush()
        assert data.read(i.block_name_prefix() + ".0000000000000000") == b"there"
        raises(rbd.InvalidArgument, 22, i.update_features, DATA_POOL, False)


@isolated
def test_first_format(t):
    """Clients make such images only if they are forced to."""
    io = t.pool()
    t.rbd.create(io, "any", MIB, old_format=True)
    with t.open("any", io) as i:
        assert not i.old_format()
    t.rbd.remove(io, "any")
    io = t.elsewhere(io, rbd_default_format="1")
    raises(rbd.InvalidArgument, 22, t.rbd.create, io, "old", MIB, old_format=True)
    os.environ["RBD_FORCE_ALLOW_V1"] = "1"
    t.rbd.create(io, "old", 4 * MIB, order=20, old_format=True)
    raises(rbd.ImageExists, 17, t.rbd.create, io, "old", MIB, old_format=True)
    raises(rbd.InvalidArgument, None, t.rbd.create, io, "other", MIB, old_format=True, features=LAYERING)
    assert t.rbd.list(io) == ["old"]
    with t.open("old", io) as i:
        assert i.old_format() and i.features() == 0 and i.size() == 4 * MIB
        assert i.block_name_prefix().startswith("rb.")
        i.write(b"data", MIB)
        i.create_snap("a")
        i.write(b"other", MIB)
        i.create_snap("b")
        i.rename_snap("a", "c")
        assert [s["name"] for s in i.list_snaps()] == ["c", "b"]
        i.rollback_to_snap("c")
        assert i.read(MIB, 5) == b"data\0"
        i.remove_snap("b")
        i.resize(8 * MIB)
        i.lock_exclusive("mine")
        assert i.list_lockers()["exclusive"]
        i.unlock("mine")
        raises(rbd.InvalidArgument, 22, i.update_features, LOCK, True)
        raises(rbd.FunctionNotSupported, 38, i.protect_snap, "c")
        raises(rbd.InvalidArgument, 22, i.id)
        i.copy(io, "new")
        i.remove_snap("c")
    with t.open("new", io) as i:
        assert i.read(MIB, 4) == b"data"
    t.rbd.rename(io, "old", "older")
    t.rbd.remove(io, "older")
    assert t.rbd.list(io) == ["new"]


@isolated
def test_lists(t):
    io = t.pool()
    assert t.rbd.list(io) == [] and list(t.rbd.list2(io)) == []
    for name in ("b", "a", "c" * 90):
        t.rbd.create(io, name, MIB)
    assert t.rbd.list(io) == ["a", "b", "c" * 90]
    images = {i["name"]: i["id"] for i in t.rbd.list2(io)}
    assert sorted(images) == t.rbd.list(io)
    with t.open("a", io) as i:
        assert images["a"] == i.id()
    t.rbd.rename(io, "a", "z")
    assert t.rbd.list(io) == ["b", "c" * 90, "z"]
    raises(rbd.ImageExists, 17, t.rbd.rename, io, "z", "b")
    raises(rbd.ImageNotFound, 2, t.rbd.rename, io, "none", "other")
    seen = []
    t.rbd.remove(io, "z", on_progress=lambda done, all: seen.append((done, all)) or 0)
    assert seen and seen[-1][0] <= seen[-1][1]
    raises(rbd.ImageNotFound, 2, t.rbd.remove, io, "z")
    with t.open("b", io) as i:
        i.create_snap("s")
    raises(rbd.ImageHasSnapshots, 39, t.rbd.remove, io, "b")
    with t.open("b", io) as i:
        i.remove_snap("s")
        # Somebody has it open.
        i.write(b"x", 0)
        raises(rbd.ImageBusy, 16, t.rbd.remove, t.elsewhere(io), "b")
    t.rbd.remove(io, "b")
    assert t.rbd.list(io) == ["c" * 90]


@isolated
def test_names_of_features(t):
    assert t.rbd.features_to_string(DEFAULT) == "deep-flatten,exclusive-lock,fast-diff,layering,object-map"
    assert t.rbd.features_from_string("layering,exclusive-lock") == LAYERING | LOCK
    assert t.rbd.features_from_string(str(DEFAULT)) == DEFAULT
    assert t.rbd.features_from_string("") == DEFAULT
    raises(rbd.InvalidArgument, 22, t.rbd.features_to_string, 1 << 40)
    raises(rbd.InvalidArgument, 22, t.rbd.features_from_string, "nonsense")


@isolated
def test_sizes(t):
    with t.new(4 * MIB, order=20) as i, t.open(i.get_name(), t.elsewhere()) as other:
        i.write(b"x" * 4 * MIB, 0)
        i.resize(7 * MIB + 3)
        assert i.size() == 7 * MIB + 3
        assert i.stat()["num_objs"] == 8
        eventually(lambda: other.size() == 7 * MIB + 3)
        raises(rbd.InvalidArgument, None, i.resize, MIB, allow_shrink=False)
        assert i.size() == 7 * MIB + 3
        i.resize(MIB + 100)
        i.resize(3 * MIB)
        assert i.read(0, 3 * MIB) == (b"x" * (MIB + 100)).ljust(3 * MIB, b"\0")
        i.resize(0)
        assert i.size() == 0 and i.stat()["num_objs"] == 0
        raises(rbd.InvalidArgument, 22, i.write, b"x", 0)


@isolated(modes=BOTH)
def test_open_and_close(t):
    name, opened = t.create(), []
    c = t.rbd.aio_open_image(lambda c, image: opened.append(image), t.io, name)
    assert t.wait(c) == 0
    i = opened.pop()
    i.write(b"data", 0)
    i.require_not_closed()
    assert t.wait(i.aio_close(lambda c: None)) == 0
    raises(rbd.InvalidArgument, None, i.read, 0, 1)
    with t.open(name) as i:
        image_id = i.id()
        i.create_snap("s")
    c = t.rbd.aio_open_image(lambda c, image: opened.append(image), t.io, image_id=image_id, read_only=True, snapshot="s")
    assert t.wait(c) == 0
    i = opened.pop()
    assert i.read(0, 4) == b"data"
    raises(rbd.ReadOnlyImage, 30, i.write, b"x", 0)
    i.close()
    c = t.rbd.aio_open_image(lambda c, image: opened.append(image), t.io, "none")
    assert t.wait(c) == -2
    i = t.open(name, read_only=True)
    raises(rbd.ReadOnlyImage, 30, i.write, b"x", 0)
    raises(rbd.ReadOnlyImage, 30, i.resize, 1)
    raises(rbd.ReadOnlyImage, 30, i.create_snap, "t")
    raises(rbd.ReadOnlyImage, 30, i.flatten)
    i.close()
    i.close()
    raises(rbd.InvalidArgument, None, i.require_not_closed)
    with t.open(name) as i:
        assert t.wait(i.aio_close(lambda c: None)) == 0


@isolated
def test_features(t):
    with t.new(features=LAYERING) as i:
        i.update_features(LOCK | MAP | FAST, True)
        assert i.features() == LAYERING | LOCK | MAP | FAST
        # Nobody has looked what objects there are.
        assert i.flags() == rbd.RBD_FLAG_OBJECT_MAP_INVALID | rbd.RBD_FLAG_FAST_DIFF_INVALID
        i.rebuild_object_map()
        assert i.flags() == 0
        i.update_features(JOURNAL, True)
        assert i.features() & JOURNAL
        i.update_features(JOURNAL, False)
        # What rests on something goes together with it.
        raises(rbd.InvalidArgument, 22, i.update_features, LOCK, False)
        i.update_features(MAP, False)
        assert i.features() == LAYERING | LOCK
        raises(rbd.InvalidArgument, 22, i.update_features, LAYERING, False)
        raises(rbd.InvalidArgument, 22, i.update_features, DEEP, True)
        raises(rbd.InvalidArgument, 22, i.update_features, 1 << 40, True)
        raises(rbd.InvalidArgument, 22, i.update_features, 0, True)
        raises(rbd.InvalidArgument, 22, i.rebuild_object_map)
        i.update_features(LOCK, False)
        assert i.features() == LAYERING
        raises(rbd.InvalidArgument, 22, i.update_features, JOURNAL, True)
    with t.new() as i:
        i.update_features(DEEP, False)
        assert i.features() == DEFAULT & ~DEEP
        raises(rbd.InvalidArgument, 22, i.update_features, DEEP, True)
    with t.new(features=LAYERING | LOCK) as i:
        i.update_features(MAP, True)
        assert i.features() == LAYERING | LOCK | MAP | FAST  # Either brings the other with it,
        i.update_features(FAST, False)
        assert i.features() == LAYERING | LOCK               # and takes it away.


@isolated
def test_object_map_is_rebuilt(t):
    with t.new(16 * MIB, order=20) as i:
        i.write(b"x" * MIB, 2 * MIB)
        i.write(b"x" * MIB, 9 * MIB)
        name = i.get_name()
        map_name = "rbd_object_map." + i.id()
    # The map comes to say that nothing is there.
    t.io.execute(map_name, "rbd", "object_map_update", struct.pack("<QQBB", 0, 16, 0, 0))
    found = []
    with t.open(name) as i:
        i.diff_iterate(0, 16 * MIB, None, lambda *a: found.append(a), whole_object=True)
    assert found == []
    with t.open(name) as i:
        i.rebuild_object_map()
        assert i.flags() == 0
    with t.open(name) as i:
        i.diff_iterate(0, 16 * MIB, None, lambda *a: found.append(a), whole_object=True)
    assert found == [(2 * MIB, MIB, True), (9 * MIB, MIB, True)]


@isolated(modes=BOTH)
def test_notes(t):
    """Metadata, and settings, which are metadata too."""
    with t.new() as i, t.open(i.get_name(), t.elsewhere()) as other:
        assert list(i.metadata_list()) == []
        pairs = {f"key{n:03}": f"value{n}" * (n + 1) for n in range(40)}
        for key, value in pairs.items():
            i.metadata_set(key, value)
        assert dict(other.metadata_list()) == pairs
        chunks = i.metadata_list()
        t.call(chunks, "get_next_chunk")
        assert len(list(chunks)) == 8
        assert i.metadata_get("key007") == pairs["key007"]
        i.metadata_set("key007", "")
        assert i.metadata_get("key007") == ""
        i.metadata_remove("key007")
        raises(KeyError, None, i.metadata_get, "key007")
        raises(KeyError, None, i.metadata_remove, "key007")

        cached = {c["name"]: c for c in i.config_list()}["rbd_cache"]
        assert cached == {"name": "rbd_cache", "value": "true", "source": rbd.RBD_CONFIG_SOURCE_CONFIG}
        i.config_set("rbd_cache", "false")
        cached = {c["name"]: c for c in i.config_list()}["rbd_cache"]
        assert cached == {"name": "rbd_cache", "value": "false", "source": rbd.RBD_CONFIG_SOURCE_IMAGE}
        assert i.config_get("rbd_cache") == "false" == i.metadata_get("conf_rbd_cache")
        raises(KeyError, None, i.config_get, "rbd_cache_size")
        raises(KeyError, None, i.config_remove, "rbd_cache_size")
        i.config_remove("rbd_cache")
        raises(KeyError, None, i.config_get, "rbd_cache")
        assert not [c for c in i.config_list() if c["source"] == rbd.RBD_CONFIG_SOURCE_IMAGE]


@isolated
def test_watchers(t):
    name = t.create()
    with t.open(name, read_only=True) as looker:
        assert list(looker.watchers_list()) == []
        with t.open(name) as i, t.open(name, t.elsewhere()):
            watchers = list(i.watchers_list())
            assert {w["id"] for w in watchers} == {t.cluster.get_instance_id(), t.second.get_instance_id()}
            assert all(w["addr"].split("/")[0].startswith("127.0.0.1") and w["cookie"] for w in watchers)
        assert list(looker.watchers_list()) == []


@isolated(modes=BOTH)
def test_owners(t):
    """The lock that a client has on an image that it writes to."""
    owner, shared = rbd.RBD_LOCK_MODE_EXCLUSIVE, rbd.RBD_LOCK_MODE_SHARED
    with t.new() as i, t.open(i.get_name(), t.elsewhere()) as other:
        assert not i.is_exclusive_lock_owner()
        assert list(i.lock_get_owners()) == []
        i.lock_acquire(owner)
        assert i.is_exclusive_lock_owner() and not other.is_exclusive_lock_owner()
        held, = other.lock_get_owners()
        assert held["mode"] == owner and held["owner"].split("/")[1] in t.cluster.get_addrs()
        raises(rbd.ReadOnlyImage, 30, other.lock_acquire, owner)
        raises(rbd.OperationNotSupported, 95, i.lock_acquire, shared)
        i.lock_release()
        assert list(i.lock_get_owners()) == []
        raises(rbd.InvalidArgument, 22, i.lock_release)
        other.lock_acquire(owner)
        assert other.is_exclusive_lock_owner()
        other.lock_release()
        # Who took it by hand does not get it by writing.
        raises(rbd.ReadOnlyImage, 30, i.write, b"x", 0)
    with t.new() as i, t.open(i.get_name(), t.elsewhere()) as other:
        # Whoever writes asks for it, and gets it from one who has it for a write.
        i.write(b"x", 0)
        assert i.is_exclusive_lock_owner()
        other.write(b"x", 0)
        assert other.is_exclusive_lock_owner() and not i.is_exclusive_lock_owner()
    with t.new(features=LAYERING) as i:
        raises(rbd.InvalidArgument, 22, i.lock_acquire, owner)
        assert not i.is_exclusive_lock_owner()


@isolated
def test_owner_is_shut_out(t):
    owner = rbd.RBD_LOCK_MODE_EXCLUSIVE
    victim = t.elsewhere(rbd_cache="false")
    name = t.create()
    i = t.open(name)
    lost = t.open(name, victim)
    lost.lock_acquire(owner)
    held, = i.lock_get_owners()
    raises(rbd.ImageBusy, 16, i.lock_break, owner, "somebody else")
    i.lock_break(owner, held["owner"])
    raises(rbd.ConnectionShutdown, 108, lost.write, b"x", 0)
    i.write(b"y", 0)
    assert i.is_exclusive_lock_owner()
    assert i.read(0, 2) == b"y\0"
    i.close()
    lost.close()


@isolated
def test_advisory_locks(t):
    with t.new() as i, t.open(i.get_name(), t.elsewhere()) as other:
        me, they = (f"client.{c.get_instance_id()}" for c in (t.cluster, t.second))
        assert i.list_lockers() == []
        i.lock_exclusive("mine")
        raises(rbd.ImageBusy, 16, other.lock_exclusive, "theirs")
        raises(rbd.ImageBusy, 16, other.lock_shared, "theirs", "")
        raises(rbd.ImageExists, 17, i.lock_exclusive, "mine")
        held = other.list_lockers()
        assert (held["tag"], held["exclusive"]) == ("", True)
        assert [(who, cookie) for who, cookie, _ in held["lockers"]] == [(me, "mine")]
        raises(rbd.ImageNotFound, 2, i.unlock, "other")
        raises(rbd.ImageNotFound, 2, other.unlock, "mine")
        i.unlock("mine")
        i.lock_shared("a", "tag")
        other.lock_shared("b", "tag")
        raises(rbd.ImageBusy, 16, other.lock_shared, "c", "another tag")
        raises(rbd.ImageExists, 17, other.lock_shared, "b", "tag")
        held = i.list_lockers()
        assert (held["tag"], held["exclusive"]) == ("tag", False)
        assert {(who, cookie) for who, cookie, _ in held["lockers"]} == {(me, "a"), (they, "b")}
        raises(rbd.ImageNotFound, 2, i.break_lock, they, "a")
        i.break_lock(they, "b")
        i.unlock("a")
        assert i.list_lockers() == []
        raises(rbd.ImageNotFound, 2, i.unlock, "a")


@isolated(modes=BOTH)
def test_snapshots(t):
    with t.new(8 * MIB, order=20) as i:
        i.write(b"first", 0)
        i.create_snap("a")
        raises(rbd.ImageExists, 17, i.create_snap, "a")
        i.write(b"other", 0)
        i.resize(4 * MIB)
        i.create_snap("b", rbd.RBD_SNAP_CREATE_SKIP_QUIESCE)
        i.resize(8 * MIB)
        snaps = list(i.list_snaps())
        assert [(s["name"], s["size"], s["namespace"]) for s in snaps] == [
            ("a", 8 * MIB, rbd.RBD_SNAP_NAMESPACE_TYPE_USER), ("b", 4 * MIB, rbd.RBD_SNAP_NAMESPACE_TYPE_USER)]
        a, b = (s["id"] for s in snaps)
        assert a < b and i.snap_get_id("a") == a and i.snap_get_name(b) == "b"
        assert i.snap_get_namespace_type(a) == rbd.RBD_SNAP_NAMESPACE_TYPE_USER
        raises(rbd.ImageNotFound, 2, i.snap_get_id, "none")
        raises(rbd.ImageNotFound, 2, i.snap_get_name, 4711)
        raises(rbd.ImageNotFound, 2, i.snap_get_namespace_type, 4711)
        raises(rbd.InvalidArgument, 22, i.snap_get_group_namespace, a)
        raises(rbd.InvalidArgument, 22, i.snap_get_trash_namespace, a)
        raises(rbd.InvalidArgument, 22, i.snap_get_mirror_namespace, a)
        assert i.snap_exists("a") and not i.snap_exists("none")
        assert near(i.get_snap_timestamp(a)) and i.get_snap_timestamp(a) <= i.get_snap_timestamp(b)
        i.set_snap("a")
        assert i.read(0, 5) == b"first"
        raises(rbd.ReadOnlyImage, 30, i.write, b"x", 0)
        i.set_snap_by_id(b)
        assert i.read(0, 5) == b"other" and i.size() == 4 * MIB
        raises(rbd.ImageNotFound, 2, i.set_snap, "none")
        raises(rbd.ImageNotFound, 2, i.set_snap_by_id, 4711)
        i.set_snap(None)
        assert i.size() == 8 * MIB
        i.rename_snap("a", "c")
        raises(rbd.ImageExists, 17, i.rename_snap, "c", "b")
        raises(rbd.ImageNotFound, 2, i.rename_snap, "a", "d")
        i.rollback_to_snap("c")
        assert i.read(0, 5) == b"first"
        raises(rbd.ImageNotFound, 2, i.rollback_to_snap, "a")
        i.rollback_to_snap("b")
        assert i.size() == 4 * MIB and i.read(0, 5) == b"other"
        i.remove_snap("c")
        raises(rbd.ImageNotFound, 2, i.remove_snap, "c")
        i.remove_snap_by_id(b)
        raises(rbd.ImageNotFound, 2, i.remove_snap_by_id, b)
        assert list(i.list_snaps()) == []


@isolated
def test_limit_of_snapshots(t):
    with t.new() as i:
        assert i.get_snap_limit() == 2**64 - 1
        i.set_snap_limit(2)
        assert i.get_snap_limit() == 2
        i.create_snap("a")
        i.create_snap("b")
        raises(rbd.DiskQuotaExceeded, 122, i.create_snap, "c")
        raises(rbd.OSError, 34, i.set_snap_limit, 1)
        i.remove_snap_limit()
        assert i.get_snap_limit() == 2**64 - 1
        i.create_snap("c")


@isolated
def test_protection(t):
    with t.new() as i:
        i.create_snap("s")
        assert not i.is_protected_snap("s")
        raises(rbd.InvalidArgument, 22, i.unprotect_snap, "s")
        i.protect_snap("s")
        raises(rbd.ImageBusy, 16, i.protect_snap, "s")
        assert i.is_protected_snap("s")
        raises(rbd.ImageBusy, 16, i.remove_snap, "s")
        raises(rbd.ImageBusy, 16, i.remove_snap_by_id, i.snap_get_id("s"))
        raises(rbd.ImageBusy, 16, i.remove_snap2, "s", 0)
        i.unprotect_snap("s")
        raises(rbd.ImageNotFound, 2, i.is_protected_snap, "none")
        raises(rbd.ImageNotFound, 2, i.protect_snap, "none")
        raises(rbd.ImageNotFound, 2, i.unprotect_snap, "none")
        i.protect_snap("s")
        i.remove_snap2("s", rbd.RBD_SNAP_REMOVE_FORCE)
        assert not i.snap_exists("s")
    with t.new(features=0) as i:
        i.create_snap("s")
        raises(rbd.FunctionNotSupported, 38, i.protect_snap, "s")


def clone(t, version, name, snap, io=None, **options):
    t.cluster.conf_set("rbd_default_clone_format", str(version))
    child = t.name()
    t.rbd.clone(t.io, name, snap, io or t.io, child, **options)
    return child


def spec(t, child, **more):
    """How a child is listed."""
    with t.open(child) as i:
        return {"pool": t.io.get_pool_name(), "pool_namespace": "", "image": child, "id": i.id(), "trash": False, **more}


@isolated(modes=BOTH)
def test_first_clones(t):
    with t.new(4 * MIB, order=20) as parent:
        parent.write(b"parent" * 1000, 0)
        parent.create_snap("s")
        raises(rbd.InvalidArgument, 22, clone, t, 1, parent.get_name(), "s")
        parent.protect_snap("s")
        raises(rbd.ImageNotFound, 2, clone, t, 1, parent.get_name(), "none")
        raises(rbd.ImageExists, 17, t.rbd.clone, t.io, parent.get_name(), "s", t.io, parent.get_name())
        child = clone(t, 1, parent.get_name(), "s", features=DEFAULT, order=19, stripe_unit=1 << 19, stripe_count=1)
        with t.open(child) as i:
            assert i.stat()["order"] == 19
            assert i.overlap() == 4 * MIB and i.op_features() == 0
            assert i.parent_info() == (t.io.get_pool_name(), parent.get_name(), "s")
            assert i.parent_id() == parent.id()
            assert i.read(0, 6000) == b"parent" * 1000
            i.write(b"child", 100_000)
            i.write(b"child", 0)
            assert i.read(0, 8) == b"childtpa"
            i.resize(2 * MIB)
            i.resize(8 * MIB)
            assert i.overlap() == 2 * MIB
        parent.set_snap("s")
        assert parent.list_children() == [(t.io.get_pool_name(), child)]
        assert list(parent.list_children2()) == [spec(t, child)]
        parent.set_snap(None)
        raises(rbd.ImageBusy, 16, parent.unprotect_snap, "s")
        raises(rbd.ImageBusy, 16, parent.remove_snap, "s")
        # In the trash it is a child still.
        with t.open(child) as i:
            child_id = i.id()
        t.rbd.trash_move(t.io, child)
        assert parent.list_children() == []
        assert [(c["image"], c["trash"]) for c in parent.list_children2()] == [(child, True)]
        t.rbd.trash_restore(t.io, child_id, child)
        with t.open(child) as i:
            seen = []
            i.flatten(on_progress=lambda done, all: seen.append(done) or 0)
            assert seen
            raises(rbd.InvalidArgument, 22, i.flatten)
            raises(rbd.ImageNotFound, 2, i.parent_info)
            assert i.overlap() == 0
            assert i.read(0, 8) == b"childtpa" and i.read(100_000, 5) == b"child"
        parent.unprotect_snap("s")


@isolated(modes=BOTH)
def test_second_clones(t):
    with t.new(4 * MIB, order=20) as parent:
        parent.write(b"parent" * 1000, 0)
        parent.create_snap("s")
        name = parent.get_name()
        far = t.namespace()
        child, other = clone(t, 2, parent.get_name(), "s"), clone(t, 2, parent.get_name(), "s", far)
        assert parent.op_features() == rbd.RBD_OPERATION_FEATURE_CLONE_PARENT
        assert parent.features() == DEFAULT | OPERATIONS
        with t.open(child) as i:
            assert i.op_features() == rbd.RBD_OPERATION_FEATURE_CLONE_CHILD
            assert i.get_parent_image_spec() == {"pool_name": t.io.get_pool_name(), "pool_namespace": "", "image_name": parent.get_name(),
                                                 "snap_name": "s"}
            i.write(b"child", 100_000)
            i.create_snap("t")
        grandchild = clone(t, 2, child, "t")
        assert sorted(parent.list_children()) == sorted([(t.io.get_pool_name(), child), (t.io.get_pool_name(), other)])
        assert sorted(c["image"] for c in parent.list_descendants()) == sorted([child, other, grandchild])
        assert {(c["image"], c["pool_namespace"]) for c in parent.list_children2()} == {(child, ""), (other, far.get_namespace())}
        # The snapshot goes to the trash, until the last child is gone.
        snap_id = parent.snap_get_id("s")
        parent.remove_snap("s")
        assert not parent.snap_exists("s")
        (left,) = parent.list_snaps()
        assert (left["id"], left["namespace"]) == (snap_id, rbd.RBD_SNAP_NAMESPACE_TYPE_TRASH)
        assert parent.snap_get_trash_namespace(snap_id) == {"original_name": "s"}
        raises(rbd.ImageBusy, 16, parent.remove_snap_by_id, snap_id)
        with t.open(grandchild) as i:
            assert i.read(0, 6000) == b"parent" * 1000 and i.read(100_000, 5) == b"child"
            assert i.parent_info() == (t.io.get_pool_name(), child, "t")
            i.flatten()
        with t.open(child) as i:
            i.remove_snap("t")
            i.flatten()
        assert [c["image"] for c in parent.list_children2()] == [other]
        t.rbd.remove(far, other)
    with t.open(name) as parent:
        assert list(parent.list_snaps()) == []
        assert parent.op_features() == 0 and parent.features() == DEFAULT
        parent.create_snap("s")
        child = clone(t, 2, parent.get_name(), "s")
        parent.remove_snap2("s", rbd.RBD_SNAP_REMOVE_FLATTEN)
        with t.open(child) as i:
            raises(rbd.ImageNotFound, 2, i.parent_info)


@isolated
def test_clones_where_the_cluster_decides(t):
    """The format follows from what the oldest client must be able to do."""
    io = t.elsewhere(rbd_default_clone_format="auto")
    oldest = t.command(prefix="osd dump")["require_min_compat_client"]
    with t.new() as parent:
        parent.create_snap("s")
        parent.protect_snap("s")
        child = t.name()
        t.rbd.clone(io, parent.get_name(), "s", io, child)
        with t.open(child) as i:
            expected = rbd.RBD_OPERATION_FEATURE_CLONE_CHILD if oldest >= "mimic" else 0
            assert i.op_features() == expected
        data = t.pool()
        child = clone(t, 2, parent.get_name(), "s", data, features=DEFAULT, order=21, stripe_unit=64 * KIB, stripe_count=2,
                      data_pool=t.io.get_pool_name())
        with t.open(child, data) as i:
            assert (i.stripe_unit(), i.stripe_count(), i.data_pool_id()) == (64 * KIB, 2, t.io.get_pool_id())
        assert {c["pool"] for c in parent.list_children2()} == {t.io.get_pool_name(), data.get_pool_name()}
