"""librbd's Python binding: pools and their namespaces, the trash, groups, and moving images while they are used."""
import json
import os
import tempfile
from datetime import datetime, timedelta

from rbd_binding import (DEFAULT, JOURNAL, KIB, LAYERING, MIB, OPERATIONS, STRIPING, eventually, isolated, raises, rados, rbd,
                         worker)  # noqa: F401

BOTH = ("crc", "secure")


@isolated
def test_initialisation(t):
    io = t.pool(application=None)
    assert io.application_list() == []
    t.rbd.pool_init(io, False)
    assert io.application_list() == ["rbd"]
    t.rbd.pool_init(io, False)
    io = t.pool(application="something")
    raises(rbd.PermissionError, 1, t.rbd.pool_init, io, False)
    t.rbd.pool_init(io, True)
    assert sorted(io.application_list()) == ["rbd", "something"]


@isolated
def test_pool_statistics(t):
    io = t.pool()
    stats = lambda: t.rbd.pool_stats_get(io)
    assert set(stats().values()) == {0}
    t.create(4 * MIB, io)
    name = t.create(8 * MIB, io)
    with t.open(name, io) as i:
        i.create_snap("s")
        i.resize(2 * MIB)
    gone = t.create(MIB, io)
    t.rbd.trash_move(io, gone, 0)
    assert stats() == {"image_count": 2, "image_provisioned_bytes": 6 * MIB, "image_max_provisioned_bytes": 12 * MIB, "image_snap_count": 1,
                       "trash_count": 1, "trash_provisioned_bytes": MIB, "trash_max_provisioned_bytes": MIB, "trash_snap_count": 0}


@isolated
def test_pool_settings(t):
    io = t.pool()
    get = lambda: {c["name"]: (c["value"], c["source"]) for c in t.rbd.config_list(io)}
    assert get()["rbd_cache"] == ("true", rbd.RBD_CONFIG_SOURCE_CONFIG)
    t.rbd.config_set(io, "rbd_cache", "false")
    t.rbd.config_set(io, "rbd_default_order", "19")
    assert get()["rbd_cache"] == ("false", rbd.RBD_CONFIG_SOURCE_POOL)
    assert t.rbd.config_get(io, "rbd_cache") == "false"
    with t.new(MIB, io) as i:
        settings = {c["name"]: c for c in i.config_list()}
        assert settings["rbd_cache"]["source"] == rbd.RBD_CONFIG_SOURCE_POOL
        i.config_set("rbd_cache", "true")
        settings = {c["name"]: c for c in i.config_list()}
        assert (settings["rbd_cache"]["value"], settings["rbd_cache"]["source"]) == ("true", rbd.RBD_CONFIG_SOURCE_IMAGE)
    t.rbd.config_remove(io, "rbd_cache")
    raises(KeyError, None, t.rbd.config_get, io, "rbd_cache")
    raises(KeyError, None, t.rbd.config_remove, io, "rbd_cache")
    assert get()["rbd_cache"] == ("true", rbd.RBD_CONFIG_SOURCE_CONFIG)
    pairs = {f"key{n:03}": "value" * (n + 1) for n in range(40)}
    for key, value in pairs.items():
        t.rbd.pool_metadata_set(io, key, value)
    t.rbd.config_remove(io, "rbd_default_order")
    assert dict(t.rbd.pool_metadata_list(io)) == pairs
    chunks = t.rbd.pool_metadata_list(io)
    t.call(chunks, "get_next_chunk")
    assert len(list(chunks)) == 8
    assert t.rbd.pool_metadata_get(io, "key001") == "valuevalue"
    t.rbd.pool_metadata_remove(io, "key002")
    raises(KeyError, None, t.rbd.pool_metadata_get, io, "key002")
    raises(KeyError, None, t.rbd.pool_metadata_remove, io, "key002")


@isolated(modes=BOTH)
def test_namespaces(t):
    io = t.pool()
    assert t.rbd.namespace_list(io) == []
    for name in ("two", "one"):
        t.rbd.namespace_create(io, name)
    raises(rbd.ImageExists, 17, t.rbd.namespace_create, io, "one")
    assert t.rbd.namespace_list(io) == ["one", "two"]
    assert t.rbd.namespace_exists(io, "one") and not t.rbd.namespace_exists(io, "none")
    inside = t.cluster.open_ioctx(io.get_pool_name())
    inside.set_namespace("one")
    t.rbd.create(inside, "img", MIB)
    assert t.rbd.list(inside) == ["img"] and t.rbd.list(io) == []
    raises(rbd.ImageBusy, 16, t.rbd.namespace_remove, io, "one")
    t.rbd.remove(inside, "img")
    t.rbd.namespace_remove(io, "one")
    raises(rbd.ImageNotFound, 2, t.rbd.namespace_remove, io, "one")
    raises(rbd.InvalidArgument, 22, t.rbd.namespace_create, io, "")
    raises(rbd.ImageNotFound, 2, t.rbd.create, inside, "img", MIB)
    assert t.rbd.namespace_list(io) == ["two"]


@isolated(modes=BOTH)
def test_trash(t):
    io = t.pool()
    with t.new(MIB, io) as i:
        name, image_id = i.get_name(), i.id()
    before = datetime.utcnow().replace(microsecond=0)
    t.rbd.trash_move(io, name)
    raises(rbd.ImageNotFound, 2, t.rbd.trash_move, io, name)
    assert t.rbd.list(io) == []
    entry = t.rbd.trash_get(io, image_id)
    assert list(t.rbd.trash_list(io)) == [entry]
    assert (entry["id"], entry["name"], entry["source"]) == (image_id, name, "USER")
    assert before <= entry["deletion_time"] == entry["deferment_end_time"] <= datetime.utcnow() + timedelta(seconds=5)
    raises(rbd.ImageNotFound, 2, t.rbd.trash_get, io, "none")
    raises(rbd.ImageNotFound, 2, t.rbd.trash_restore, io, "none", "name")
    raises(rbd.ImageNotFound, 2, t.rbd.trash_remove, io, "none")
    other = t.create(MIB, io)
    raises(rbd.ImageExists, 17, t.rbd.trash_restore, io, image_id, other)
    t.rbd.trash_restore(io, image_id, "back")
    raises(rbd.ImageNotFound, 2, t.rbd.trash_get, io, image_id)
    t.rbd.trash_move(io, "back", 3600)
    entry = t.rbd.trash_get(io, image_id)
    assert entry["deferment_end_time"] - entry["deletion_time"] == timedelta(hours=1)
    raises(rbd.PermissionError, 1, t.rbd.trash_remove, io, image_id)
    seen = []
    t.rbd.trash_remove(io, image_id, force=True, on_progress=lambda done, all: seen.append(done) or 0)
    assert seen and list(t.rbd.trash_list(io)) == []
    with t.open(other, io) as i:
        i.create_snap("s")
    # One with snapshots can be moved, but not removed.
    with t.open(other, io) as i:
        image_id = i.id()
    t.rbd.trash_move(io, other)
    raises(rbd.ImageHasSnapshots, 39, t.rbd.trash_remove, io, image_id)
    t.rbd.trash_restore(io, image_id, other)


@isolated
def test_trash_is_purged(t):
    io = t.pool()
    for name, delay in [("old", 0), ("soon", 3600), ("late", 36_000)]:
        t.rbd.create(io, name, MIB)
        t.rbd.trash_move(io, name, delay)
    left = lambda: sorted(e["name"] for e in t.rbd.trash_list(io))
    t.rbd.trash_purge(io, datetime.now() - timedelta(hours=1))
    assert left() == ["late", "old", "soon"]
    t.rbd.trash_purge(io)
    assert left() == ["late", "soon"]
    t.rbd.trash_purge(io, datetime.now() + timedelta(hours=2))
    assert left() == ["late"]
    # Until so much of the pool is free: it is.
    t.rbd.trash_purge(io, threshold=0.9)
    assert left() == ["late"]
    raises(rbd.InvalidArgument, 22, t.rbd.trash_purge, io, threshold=2)


@isolated(modes=BOTH)
def test_groups(t):
    io, far = t.pool(), t.io
    assert t.rbd.group_list(io) == []
    t.rbd.group_create(io, "g")
    raises(rbd.ObjectExists, 17, t.rbd.group_create, io, "g")
    t.rbd.group_create(io, "other")
    assert t.rbd.group_list(io) == ["g", "other"]
    t.rbd.group_rename(io, "other", "h")
    raises(rbd.ImageExists, 17, t.rbd.group_rename, io, "h", "g")
    raises(rbd.ImageNotFound, 2, t.rbd.group_rename, io, "none", "x")
    t.rbd.group_remove(io, "h")
    assert t.rbd.group_list(io) == ["g"]
    t.rbd.group_remove(io, "h")  # Is gone already.
    t.rbd.create(io, "a", MIB)
    b = t.create(MIB, far)
    with t.Group(io, "g") as g:
        assert list(g.list_images()) == [] and list(g.list_snaps()) == []
        g.add_image(io, "a")
        g.add_image(far, b)
        raises(rbd.ObjectNotFound, 2, g.add_image, io, "none")
        t.rbd.group_create(io, "h")
        g.add_image(io, "a")  # Is there already.
        raises(rbd.ObjectExists, 17, t.Group(io, "h").add_image, io, "a")
        images = sorted((i["name"], i["pool"], i["state"]) for i in g.list_images())
        attached = rbd.RBD_GROUP_IMAGE_STATE_ATTACHED
        assert images == sorted([("a", io.get_pool_id(), attached), (b, far.get_pool_id(), attached)])
        with t.open("a", io) as i:
            assert i.group() == {"pool": io.get_pool_id(), "name": "g"}
            assert i.features() & OPERATIONS and i.op_features() == rbd.RBD_OPERATION_FEATURE_GROUP
            i.write(b"before", 0)
        g.create_snap("s")
        raises(rbd.ObjectExists, 17, g.create_snap, "s")
        assert list(g.list_snaps()) == [{"name": "s", "state": rbd.RBD_GROUP_SNAP_STATE_COMPLETE}]
        with t.open("a", io) as i:
            (snap,) = i.list_snaps()
            assert snap["namespace"] == rbd.RBD_SNAP_NAMESPACE_TYPE_GROUP
            assert snap["group"] == {"pool": io.get_pool_id(), "name": "g", "snap_name": "s"} == i.snap_get_group_namespace(snap["id"])
            raises(rbd.ImageNotFound, 2, i.remove_snap, snap["name"])
            i.write(b"after!", 0)
            i.set_snap_by_id(snap["id"])
            assert i.read(0, 6) == b"before"
        g.rename_snap("s", "t")
        raises(rbd.ObjectNotFound, 2, g.rename_snap, "s", "u")
        g.rollback_to_snap("t")
        raises(rbd.ObjectNotFound, 2, g.rollback_to_snap, "s")
        with t.open("a", io) as i:
            assert i.read(0, 6) == b"before"
        g.create_snap("quiet", rbd.RBD_SNAP_CREATE_SKIP_QUIESCE)
        g.remove_snap("quiet")
        raises(rbd.ObjectNotFound, 2, g.remove_snap, "quiet")
        g.remove_image(far, b)
        g.remove_image(far, b)  # Is gone already.
        g.remove_snap("t")
    t.rbd.group_remove(io, "g")
    with t.open("a", io) as i:
        assert i.op_features() == 0 and i.features() == DEFAULT
        assert list(i.list_snaps()) == []


def moved(t, source, name, target, new, **options):
    """Moves an image that is in use from when it is prepared; checks what is seen at every step."""
    with t.open(name, source) as i:
        i.write(b"before" * 1000, MIB - 3000)
        i.create_snap("s")
        i.write(b"after" * 1000, MIB - 2000)
        expected = i.read(0, 4 * MIB)
        i.set_snap("s")
        old = i.read(0, 4 * MIB)
        old_format = i.old_format()
    t.rbd.migration_prepare(source, name, target, new, **options)
    status = t.rbd.migration_status(target, new)
    assert (status["state"], status["source_image_name"], status["dest_image_name"]) == (rbd.RBD_IMAGE_MIGRATION_STATE_PREPARED, name, new)
    assert status["source_pool_id"] == source.get_pool_id()
    assert status["dest_pool_namespace"] == target.get_namespace()
    with t.open(new, target) as i:
        assert i.features() & rbd.RBD_FEATURE_MIGRATING
        assert i.read(0, 4 * MIB) == expected
        assert i.migration_source_spec()["image_name"] == name
        i.write(b"meanwhile", 3 * MIB)
    elsewhere = (source.get_pool_id(), source.get_namespace(), name) != (target.get_pool_id(), target.get_namespace(), new)
    if elsewhere:
        if old_format:
            raises(rbd.ReadOnlyImage, 30, t.open, name, source)
        else:
            raises(rbd.ImageNotFound, 2, t.open, name, source)
            entry = t.rbd.trash_get(source, status["source_image_id"])
            assert (entry["name"], entry["source"]) == (name, "MIGRATION")
    seen = []
    t.rbd.migration_execute(target, new, on_progress=lambda done, all: seen.append(done) or 0)
    assert seen
    assert t.rbd.migration_status(target, new)["state"] == rbd.RBD_IMAGE_MIGRATION_STATE_EXECUTED
    t.rbd.migration_commit(target, new, on_progress=lambda done, all: 0)
    raises(rbd.InvalidArgument, 22, t.rbd.migration_status, target, new)
    with t.open(new, target) as i:
        assert not i.features() & rbd.RBD_FEATURE_MIGRATING
        raises(rbd.InvalidArgument, 22, i.migration_source_spec)
        assert i.read(0, 3 * MIB) == expected[:3 * MIB] and i.read(3 * MIB, 9) == b"meanwhile"
        i.set_snap("s")
        assert i.read(0, 4 * MIB) == old
    if elsewhere:
        raises(rbd.ImageNotFound, 2, t.open, name, source)
    assert list(t.rbd.trash_list(source)) == []


@isolated(modes=BOTH)
def test_migration_to_another_pool(t):
    source, target = t.pool(), t.pool()
    name = t.create(4 * MIB, source, order=20)
    moved(t, source, name, target, "moved", order=19, stripe_unit=64 * KIB, stripe_count=4, features=DEFAULT,
          data_pool=t.io.get_pool_name().encode())
    with t.open("moved", target) as i:
        assert i.stat()["order"] == 19 and i.stripe_count() == 4 and i.data_pool_id() == t.io.get_pool_id()


@isolated
def test_migration_to_a_namespace(t):
    source = t.pool()
    target = t.namespace(source)
    moved(t, source, t.create(4 * MIB, source, order=20, features=LAYERING), target, "moved")


@isolated
def test_migration_in_place(t):
    source = t.pool()
    name = t.create(4 * MIB, source, order=20)
    moved(t, source, name, source, name, order=18, stripe_unit=256 * KIB, stripe_count=1)


@isolated
def test_migration_from_the_first_format(t):
    source = t.pool()
    os.environ["RBD_FORCE_ALLOW_V1"] = "1"
    t.rbd.create(t.elsewhere(source, rbd_default_format="1"), "old", 4 * MIB, order=20, old_format=True)
    moved(t, source, "old", source, "new", features=DEFAULT)
    with t.open("new", source) as i:
        assert not i.old_format()


@isolated
def test_migration_given_up(t):
    source, target = t.pool(), t.pool()
    name = t.create(4 * MIB, source, order=20)
    with t.open(name, source) as i:
        i.write(b"data", MIB)
        raises(rbd.ImageBusy, 16, t.rbd.migration_prepare, t.elsewhere(source), name, t.elsewhere(target), "moved")
    raises(rbd.ImageNotFound, 2, t.rbd.migration_prepare, source, "none", target, "moved")
    taken = t.create(MIB, target)
    raises(rbd.ImageExists, 17, t.rbd.migration_prepare, source, name, target, taken)
    t.rbd.migration_prepare(source, name, target, "moved")
    t.rbd.migration_abort(target, "moved", on_progress=lambda done, all: 0)
    raises(rbd.ImageNotFound, 2, t.open, "moved", target)
    with t.open(name, source) as i:
        assert i.read(MIB, 4) == b"data" and i.features() == DEFAULT
    t.rbd.migration_prepare(source, name, target, "moved")
    with t.open("moved", target) as i:
        i.write(b"lost", 2 * MIB)
    t.rbd.migration_execute(target, "moved")
    t.rbd.migration_abort(target, "moved")
    with t.open(name, source) as i:
        assert i.read(MIB, 4) == b"data"
    raises(rbd.InvalidArgument, 22, t.rbd.migration_abort, source, name)
    raises(rbd.InvalidArgument, 22, t.rbd.migration_execute, source, name)
    raises(rbd.InvalidArgument, 22, t.rbd.migration_commit, source, name)


@isolated
def test_migration_from_a_file(t):
    """Sources that are only read: a file with the raw bytes, and another image."""
    io = t.pool()
    data = (b"file" * 1000).ljust(2 * MIB, b"\0") + b"end".ljust(MIB, b"\0")
    with tempfile.NamedTemporaryFile(prefix="siphon-rbd.") as f:
        f.write(data)
        f.flush()
        spec = json.dumps({"type": "raw", "stream": {"type": "file", "file_path": f.name}})
        t.rbd.migration_prepare_import(spec, io, "given-up", features=LAYERING)
        with t.open("given-up", io) as i:
            assert i.migration_source_spec() == json.loads(spec)
        t.rbd.migration_abort(io, "given-up")
        assert t.rbd.list(io) == []
        t.rbd.migration_prepare_import(spec, io, "img", order=20)
        with t.open("img", io) as i:
            assert i.size() == len(data) and i.read(0, len(data)) == data
            i.write(b"own", MIB)
        t.rbd.migration_execute(io, "img")
        t.rbd.migration_commit(io, "img")
    with t.open("img", io) as i:
        assert i.read(0, MIB) == data[:MIB] and i.read(MIB, 3) == b"own" and i.read(2 * MIB, MIB) == data[2 * MIB:]
        i.create_snap("s")
    spec = json.dumps({"type": "native", "pool_name": io.get_pool_name(), "image_name": "img", "snap_name": "s"})
    t.rbd.migration_prepare_import(spec, io, "copy")
    t.rbd.migration_execute(io, "copy")
    t.rbd.migration_commit(io, "copy")
    with t.open("copy", io) as i, t.open("img", io) as source:
        assert i.read(0, len(data)) == source.read(0, len(data))
    raises(rbd.OSError, 74, t.rbd.migration_prepare_import, "no json", io, "other")
    raises(rbd.ImageNotFound, 2, t.rbd.migration_prepare_import,
           json.dumps({"type": "raw", "stream": {"type": "file", "file_path": "/no/such/file"}}), io, "other")
