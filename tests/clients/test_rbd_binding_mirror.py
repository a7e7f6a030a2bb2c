"""librbd's Python binding: mirroring, as far as it goes without a second cluster and its daemon."""
import base64
import json
from datetime import datetime

from rbd_binding import DEFAULT, JOURNAL, LAYERING, LOCK, MIB, eventually, isolated, raises, rbd, worker  # noqa: F401

BOTH = ("crc", "secure")
SNAPSHOT, BY_JOURNAL = rbd.RBD_MIRROR_IMAGE_MODE_SNAPSHOT, rbd.RBD_MIRROR_IMAGE_MODE_JOURNAL


@isolated(modes=BOTH)
def test_modes_of_pools(t):
    io = t.pool()
    assert t.rbd.mirror_mode_get(io) == rbd.RBD_MIRROR_MODE_DISABLED
    for mode in (rbd.RBD_MIRROR_MODE_IMAGE, rbd.RBD_MIRROR_MODE_POOL, rbd.RBD_MIRROR_MODE_IMAGE):
        t.rbd.mirror_mode_set(io, mode)
        assert t.rbd.mirror_mode_get(io) == mode
    uuid = t.rbd.mirror_uuid_get(io)
    assert len(uuid) == 36
    raises(rbd.InvalidArgument, 22, t.rbd.mirror_mode_set, io, 77)
    assert list(t.rbd.mirror_image_info_list(io)) == [] == list(t.rbd.mirror_image_status_list(io))
    assert t.rbd.mirror_image_status_summary(io) == []
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_DISABLED)
    assert t.rbd.mirror_mode_get(io) == rbd.RBD_MIRROR_MODE_DISABLED


@isolated
def test_names_of_sites(t):
    before = t.rbd.mirror_site_name_get(t.cluster)
    fsid = t.cluster.get_fsid()
    assert before
    t.rbd.mirror_site_name_set(t.cluster, "here")
    assert t.rbd.mirror_site_name_get(t.cluster) == "here"
    t.rbd.mirror_site_name_set(t.cluster, "")
    assert t.rbd.mirror_site_name_get(t.cluster) == fsid


@isolated(modes=BOTH)
def test_peers(t):
    io = t.pool()
    raises(rbd.InvalidArgument, 22, t.rbd.mirror_peer_add, io, "there", "client.peer")
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE)
    assert list(t.rbd.mirror_peer_list(io)) == []
    uuid = t.rbd.mirror_peer_add(io, "there", "client.peer")
    raises(rbd.ImageExists, 17, t.rbd.mirror_peer_add, io, "there", "client.peer")
    assert list(t.rbd.mirror_peer_list(io)) == [
        {"uuid": uuid, "direction": rbd.RBD_MIRROR_PEER_DIRECTION_RX_TX, "site_name": "there", "cluster_name": "there", "mirror_uuid": "",
         "client_name": "client.peer"}]
    other = t.rbd.mirror_peer_add(io, "third", "client.other", rbd.RBD_MIRROR_PEER_DIRECTION_RX)
    assert {p["uuid"]: p["direction"] for p in t.rbd.mirror_peer_list(io)}[other] == rbd.RBD_MIRROR_PEER_DIRECTION_RX
    t.rbd.mirror_peer_remove(io, other)
    t.rbd.mirror_peer_set_client(io, uuid, "client.changed")
    t.rbd.mirror_peer_set_cluster(io, uuid, "cluster")
    (peer,) = t.rbd.mirror_peer_list(io)
    assert (peer["client_name"], peer["cluster_name"]) == ("client.changed", "cluster")
    t.rbd.mirror_peer_set_name(io, uuid, "name")
    (peer,) = t.rbd.mirror_peer_list(io)
    assert peer["site_name"] == "name"
    attributes = {rbd.RBD_MIRROR_PEER_ATTRIBUTE_NAME_MON_HOST: "127.0.0.1:1", rbd.RBD_MIRROR_PEER_ATTRIBUTE_NAME_KEY: "secret"}
    raises(rbd.ImageNotFound, 2, t.rbd.mirror_peer_get_attributes, io, uuid)
    t.rbd.mirror_peer_set_attributes(io, uuid, attributes)
    assert t.rbd.mirror_peer_get_attributes(io, uuid) == attributes
    raises(rbd.ImageNotFound, 2, t.rbd.mirror_peer_set_client, io, "none", "client.changed")
    t.rbd.mirror_peer_remove(io, uuid)
    t.rbd.mirror_peer_remove(io, uuid)
    assert list(t.rbd.mirror_peer_list(io)) == []
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_DISABLED)


@isolated
def test_bootstrap(t):
    io = t.pool()
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE)
    token = json.loads(base64.b64decode(t.rbd.mirror_peer_bootstrap_create(io)))
    assert set(token) == {"fsid", "client_id", "key", "mon_host"}
    assert (token["fsid"], token["client_id"]) == (t.cluster.get_fsid(), "rbd-mirror-peer")
    user = t.command(prefix="auth get", entity="client.rbd-mirror-peer")[0]
    assert user["key"] == token["key"]
    assert user["caps"] == {"mon": "profile rbd-mirror-peer", "osd": "profile rbd"}
    # Both sides must not be one.
    raises(rbd.InvalidArgument, 22, t.rbd.mirror_peer_bootstrap_import, io, rbd.RBD_MIRROR_PEER_DIRECTION_RX,
           base64.b64encode(json.dumps(token).encode()).decode())
    raises(rbd.InvalidArgument, 22, t.rbd.mirror_peer_bootstrap_import, io, rbd.RBD_MIRROR_PEER_DIRECTION_RX, "no token")


@isolated(modes=BOTH)
def test_images_by_snapshots(t):
    io = t.pool()
    with t.new(MIB, io) as i:
        raises(rbd.InvalidArgument, 22, i.mirror_image_enable, SNAPSHOT)
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE)
    peer = t.rbd.mirror_peer_add(io, "there", "client.peer")
    with t.new(MIB, io) as i:
        assert i.mirror_image_get_mode() == BY_JOURNAL  # What it would be.
        assert i.mirror_image_get_info() == {"global_id": "", "state": rbd.RBD_MIRROR_IMAGE_DISABLED, "primary": False}
        i.mirror_image_enable(SNAPSHOT)
        assert i.mirror_image_get_mode() == SNAPSHOT
        info = i.mirror_image_get_info()
        assert (info["state"], info["primary"], len(info["global_id"])) == (rbd.RBD_MIRROR_IMAGE_ENABLED, True, 36)
        assert list(t.rbd.mirror_image_info_list(io)) == [(i.id(), {"mode": SNAPSHOT, **info})] == list(
            t.rbd.mirror_image_info_list(io, SNAPSHOT))
        assert list(t.rbd.mirror_image_info_list(io, BY_JOURNAL)) == []
        chunks = t.rbd.mirror_image_info_list(io)
        t.call(chunks, "get_next_chunk")
        assert list(chunks) == []
        got = []
        assert t.wait(i.aio_mirror_image_get_info(lambda c, info: got.append(info))) == 0
        assert t.wait(i.aio_mirror_image_get_mode(lambda c, mode: got.append(mode))) == 0
        assert got == [info, SNAPSHOT]

        snap = i.mirror_image_create_snapshot()
        assert t.wait(i.aio_mirror_image_create_snapshot(rbd.RBD_SNAP_CREATE_SKIP_QUIESCE, lambda c, snap: got.append(snap))) == 0
        kinds = {s["id"]: s for s in i.list_snaps()}
        assert {snap, got[-1]} <= set(kinds) and {s["namespace"] for s in kinds.values()} == {rbd.RBD_SNAP_NAMESPACE_TYPE_MIRROR}
        assert i.snap_get_mirror_namespace(snap) == {
            "state": rbd.RBD_SNAP_MIRROR_STATE_PRIMARY, "mirror_peer_uuids": [peer], "complete": True, "primary_mirror_uuid": "",
            "primary_snap_id": 2**64 - 2, "last_copied_object_number": 0}
        # Only so many are kept for a peer that does not fetch them.
        for _ in range(6):
            newest = i.mirror_image_create_snapshot()
        left = [s["id"] for s in i.list_snaps()]
        assert len(left) == 5 and left[-1] == newest and left[0] == min(kinds)

        status = i.mirror_image_get_status()
        assert status["name"] == i.get_name() and status["info"] == info and not status["up"]
        assert (status["state"], status["description"]) == (rbd.MIRROR_IMAGE_STATUS_STATE_UNKNOWN, "status not found")
        brief = {key: info[key] for key in ("global_id", "state")}
        assert list(t.rbd.mirror_image_status_list(io)) == [{**status, "info": brief}]
        chunks = t.rbd.mirror_image_status_list(io)
        t.call(chunks, "get_next_chunk")
        assert list(chunks) == []
        assert t.rbd.mirror_image_status_summary(io) == [(rbd.MIRROR_IMAGE_STATUS_STATE_UNKNOWN, 1)]
        chunks = t.rbd.mirror_image_instance_id_list(io)
        t.call(chunks, "get_next_chunk")
        assert list(chunks) == []
        raises(rbd.ImageNotFound, 2, i.mirror_image_get_instance_id)

        raises(rbd.InvalidArgument, 22, i.mirror_image_resync)
        raises(rbd.InvalidArgument, 22, i.mirror_image_promote, False)
        i.mirror_image_demote()
        assert not i.mirror_image_get_info()["primary"]
        raises(rbd.ReadOnlyImage, 30, i.write, b"x", 0)
        raises(rbd.InvalidArgument, 22, i.mirror_image_create_snapshot)
        raises(rbd.InvalidArgument, 22, i.mirror_image_demote)
        demoted = list(i.list_snaps())[-1]["id"]
        assert i.snap_get_mirror_namespace(demoted)["state"] == rbd.RBD_SNAP_MIRROR_STATE_PRIMARY_DEMOTED
        i.mirror_image_resync()
        i.mirror_image_promote(False)
        assert i.mirror_image_get_info()["primary"]
        assert i.write(b"again", 0) == 5
        i.mirror_image_disable(False)
        assert i.mirror_image_get_mode() == BY_JOURNAL  # What it would be.
        assert list(i.list_snaps()) == []
        i.mirror_image_disable(False)  # Is so already.
    assert list(t.rbd.mirror_image_info_list(io)) == []
    t.rbd.mirror_peer_remove(io, peer)


@isolated(modes=BOTH)
def test_images_by_journals(t):
    io = t.pool()
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_POOL)
    # In this mode every image with a journal is mirrored.
    with t.new(MIB, io, features=LAYERING | LOCK | JOURNAL) as i:
        assert i.mirror_image_get_mode() == BY_JOURNAL
        info = i.mirror_image_get_info()
        assert info["primary"] and info["state"] == rbd.RBD_MIRROR_IMAGE_ENABLED
        i.write(b"data", 0)
        raises(rbd.InvalidArgument, 22, i.mirror_image_create_snapshot)
        i.mirror_image_demote()
        assert not i.mirror_image_get_info()["primary"]
        raises(rbd.PermissionError, 1, i.write, b"x", 0)
        i.mirror_image_promote(True)
        assert i.mirror_image_get_info()["primary"]
        i.write(b"more", 4)
        assert i.read(0, 8) == b"datamore"
        raises(rbd.InvalidArgument, 22, i.mirror_image_disable, False)
        name = i.get_name()
    with t.new(MIB, io, features=DEFAULT) as i:
        assert i.mirror_image_get_info()["state"] == rbd.RBD_MIRROR_IMAGE_DISABLED
        raises(rbd.InvalidArgument, 22, i.mirror_image_enable, BY_JOURNAL)
        i.update_features(JOURNAL, True)
        assert i.mirror_image_get_info()["state"] == rbd.RBD_MIRROR_IMAGE_ENABLED
        assert len(list(t.rbd.mirror_image_info_list(io, BY_JOURNAL))) == 2
        i.update_features(JOURNAL, False)
        assert i.mirror_image_get_info()["state"] == rbd.RBD_MIRROR_IMAGE_DISABLED
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_IMAGE)
    with t.open(name, io) as i:
        # In this mode the journal comes and goes with the mirroring.
        i.mirror_image_disable(False)
        assert not i.features() & JOURNAL
        i.mirror_image_enable(BY_JOURNAL)
        assert i.features() & JOURNAL
        raises(rbd.InvalidArgument, 22, t.rbd.mirror_mode_set, io, rbd.RBD_MIRROR_MODE_DISABLED)
        i.mirror_image_disable(False)
    t.rbd.mirror_mode_set(io, rbd.RBD_MIRROR_MODE_DISABLED)
    assert list(t.rbd.mirror_image_info_list(io)) == []
