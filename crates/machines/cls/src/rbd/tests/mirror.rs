//! Mirroring.

use super::*;
use crate::rbd::types::{
    EntityInst, MirrorImage, MirrorImageMap, MirrorImageMode, MirrorImageSiteStatus,
    MirrorImageState, MirrorImageStatus, MirrorImageStatusState, MirrorMode, MirrorPeer,
    MirrorPeerDirection, MirrorSnapshot, MirrorSnapshotState, SnapshotInfo, SnapshotNamespace,
};
use crate::testing::{address, client};
use std::collections::BTreeMap;
use types::replies::WatchItem;
use types::{AddrType, Utime};

use MirrorImageStatusState as S;
use MirrorPeerDirection as D;

/// A pool that is mirrored under the number `ours`.
fn mirrored() -> TestObject {
    let mut o = TestObject::new();
    run(&mut o, "mirror_uuid_set", "ours").unwrap();
    run(&mut o, "mirror_mode_set", MirrorMode::IMAGE).unwrap();
    o
}

fn peer(
    uuid: &'static str,
    site: &'static str,
    direction: D,
    mirror_uuid: &'static str,
) -> MirrorPeer {
    MirrorPeer {
        uuid: uuid.into(),
        site_name: site.into(),
        client_name: "client.x".into(),
        pool_id: -1,
        direction,
        mirror_uuid: mirror_uuid.into(),
        last_seen: Utime::ZERO,
    }
}

fn peers(o: &mut TestObject) -> Vec<MirrorPeer> {
    ask(o, "mirror_peer_list", ()).unwrap()
}

#[test]
fn a_pool_has_a_number_before_it_is_mirrored() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "mirror_uuid_get", ()), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "mirror_mode_get", ()), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "mirror_mode_set", MirrorMode::POOL), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "mirror_uuid_set", ""), Err(Errno::EINVAL));
    run(&mut o, "mirror_uuid_set", "ours").unwrap();
    assert_eq!(ask::<Bytes>(&mut o, "mirror_uuid_get", ()).unwrap(), "ours");
    assert_eq!(o.stored.omap[&b"mirror_uuid"[..]], "ours");
    assert_eq!(run(&mut o, "mirror_mode_set", 5u32), Err(Errno::EINVAL));
    run(&mut o, "mirror_mode_set", MirrorMode::POOL).unwrap();
    assert_eq!(ask::<MirrorMode>(&mut o, "mirror_mode_get", ()).unwrap(), MirrorMode::POOL);
    assert_eq!(run(&mut o, "mirror_uuid_set", "new"), Err(Errno::EINVAL));
    run(&mut o, "mirror_mode_set", MirrorMode::DISABLED).unwrap();
    assert!(o.stored.omap.is_empty());
}

#[test]
fn peers_are_told_apart() {
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "mirror_peer_add", peer("1", "a", D::RX, "")), Err(Errno::EINVAL));
    let mut o = mirrored();
    assert_eq!(run(&mut o, "mirror_peer_add", peer("ours", "a", D::RX, "")), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "mirror_peer_add", peer("1", "a", D::TX, "")), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "mirror_peer_add", peer("1", "", D::RX, "")), Err(Errno::EINVAL));
    run(&mut o, "mirror_peer_add", peer("1", "a", D::RX, "m1")).unwrap();
    assert_eq!(run(&mut o, "mirror_peer_add", peer("1", "b", D::RX, "")), Err(Errno::ESTALE));
    assert_eq!(run(&mut o, "mirror_peer_add", peer("2", "a", D::RX, "")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, "mirror_peer_add", peer("2", "b", D::RX, "m1")), Err(Errno::EEXIST));
    run(&mut o, "mirror_peer_add", peer("2", "b", D::RX, "")).unwrap();

    run(&mut o, "mirror_peer_set_client", ("1", "client.y")).unwrap();
    assert_eq!(run(&mut o, "mirror_peer_set_client", ("9", "client.y")), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "mirror_peer_set_cluster", ("1", "b")), Err(Errno::EEXIST));
    assert_eq!(run(&mut o, "mirror_peer_set_cluster", ("9", "z")), Err(Errno::ENOENT));
    run(&mut o, "mirror_peer_set_cluster", ("1", "z")).unwrap();
    run(&mut o, "mirror_peer_set_direction", ("1", D::RX_TX)).unwrap();
    let first = &peers(&mut o)[0];
    assert_eq!(
        (&first.client_name[..], &first.site_name[..], first.direction),
        (&b"client.y"[..], &b"z"[..], D::RX_TX)
    );

    assert_eq!(run(&mut o, "mirror_mode_set", MirrorMode::DISABLED), Err(Errno::EBUSY));
    run(&mut o, "mirror_peer_remove", "1").unwrap();
    run(&mut o, "mirror_peer_remove", "1").unwrap();
    run(&mut o, "mirror_peer_remove", "2").unwrap();
    run(&mut o, "mirror_mode_set", MirrorMode::DISABLED).unwrap();
}

#[test]
fn a_ping_introduces_a_peer_and_keeps_it_up_to_date() {
    let ping = |o: &mut TestObject, site: &str, uuid: &str| {
        run(o, "mirror_peer_ping", (site, uuid, D::TX))
    };
    assert_eq!(ping(&mut TestObject::new(), "a", "m"), Err(Errno::EINVAL));
    let mut o = mirrored();
    assert_eq!(ping(&mut o, "", "m"), Err(Errno::EINVAL));
    assert_eq!(ping(&mut o, "a", ""), Err(Errno::EINVAL));
    assert_eq!(run(&mut o, "mirror_peer_ping", ("a", "m", D::RX)), Err(Errno::EINVAL));

    ping(&mut o, "a", "m1").unwrap();
    let new = peers(&mut o).remove(0);
    assert_eq!(
        (new.direction, &new.site_name[..], &new.mirror_uuid[..]),
        (D::TX, &b"a"[..], &b"m1"[..])
    );
    assert_eq!(new.last_seen, o.origin.now);
    // A cluster with another name is the same by its number.
    o.origin.now = Utime::new(5000, 0);
    ping(&mut o, "renamed", "m1").unwrap();
    let renamed = peers(&mut o);
    assert_eq!(
        (renamed.len(), &renamed[0].site_name[..], renamed[0].last_seen),
        (1, &b"renamed"[..], Utime::new(5000, 0))
    );

    // A peer that was added for copying from it learns its number and copies from us.
    run(&mut o, "mirror_peer_add", peer("rx", "site", D::RX, "")).unwrap();
    ping(&mut o, "site", "m2").unwrap();
    let both = peers(&mut o).into_iter().find(|p| p.uuid == "rx").unwrap();
    assert_eq!((both.direction, &both.mirror_uuid[..]), (D::RX_TX, &b"m2"[..]));
    // The name of one and the number of another: the number counts.
    o.origin.now = Utime::new(6000, 0);
    ping(&mut o, "site", "m1").unwrap();
    let seen: Vec<Bytes> = peers(&mut o)
        .into_iter()
        .filter(|p| p.last_seen == o.origin.now)
        .map(|p| p.site_name)
        .collect();
    assert_eq!(seen, ["renamed"]);
}

fn mirror_image(global: &'static str, state: MirrorImageState) -> MirrorImage {
    MirrorImage { global_image_id: global.into(), state, mode: MirrorImageMode::SNAPSHOT }
}

#[test]
fn images_have_a_number_everywhere() {
    use MirrorImageState as I;
    let mut o = TestObject::new();
    assert_eq!(run(&mut o, "mirror_image_get", "1"), Err(Errno::ENOENT));
    assert_eq!(
        run(&mut o, "mirror_image_set", ("1", mirror_image("g1", I::DISABLING))),
        Err(Errno::ENOENT)
    );
    run(&mut o, "mirror_image_set", ("1", mirror_image("g1", I::ENABLED))).unwrap();
    run(&mut o, "mirror_image_set", ("2", mirror_image("g2", I::CREATING))).unwrap();
    assert_eq!(
        run(&mut o, "mirror_image_set", ("1", mirror_image("g3", I::ENABLED))),
        Err(Errno::EINVAL)
    );
    assert_eq!(
        run(&mut o, "mirror_image_set", ("3", mirror_image("g1", I::ENABLED))),
        Err(Errno::EEXIST)
    );
    assert_eq!(ask::<Bytes>(&mut o, "mirror_image_get_image_id", "g2").unwrap(), "2");
    assert_eq!(
        ask::<MirrorImage>(&mut o, "mirror_image_get", "1").unwrap(),
        mirror_image("g1", I::ENABLED)
    );
    let list = |o: &mut TestObject, after: &str, most: u64| {
        ask::<BTreeMap<Bytes, Bytes>>(o, "mirror_image_list", (after, most))
            .unwrap()
            .into_values()
            .collect::<Vec<_>>()
    };
    assert_eq!(list(&mut o, "", 10), ["g1", "g2"]);
    assert_eq!(list(&mut o, "", 1), ["g1"]);
    assert_eq!(list(&mut o, "1", 10), ["g2"]);
    assert_eq!(run(&mut o, "mirror_image_remove", "1"), Err(Errno::EBUSY));
    run(&mut o, "mirror_image_set", ("1", mirror_image("g1", I::DISABLING))).unwrap();
    run(&mut o, "mirror_image_remove", "1").unwrap();
    assert_eq!(run(&mut o, "mirror_image_remove", "1"), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "mirror_image_get_image_id", "g1"), Err(Errno::ENOENT));
}

fn watch(o: &mut TestObject, clients: &[i64]) {
    let item = |&n: &i64| WatchItem {
        name: client(n),
        cookie: 1,
        timeout_seconds: 30,
        addr: address(n as u32),
    };
    o.watchers = clients.iter().map(item).collect();
}

fn site(uuid: &'static str, state: S) -> MirrorImageSiteStatus {
    MirrorImageSiteStatus {
        mirror_uuid: uuid.into(),
        state,
        description: "text".into(),
        ..Default::default()
    }
}

#[test]
fn reports_count_while_their_daemon_watches() {
    let mut o = TestObject::new();
    // Of an image that is not mirrored nothing is kept.
    run(&mut o, "mirror_image_status_set", ("g1", site("", S::REPLAYING))).unwrap();
    assert!(!o.stored.exists);
    assert_eq!(run(&mut o, "mirror_image_status_get", "g1"), Err(Errno::ENOENT));
    run(&mut o, "mirror_image_set", ("1", mirror_image("g1", MirrorImageState::ENABLED))).unwrap();
    run(&mut o, "mirror_image_set", ("2", mirror_image("g2", MirrorImageState::ENABLED))).unwrap();
    assert_eq!(run(&mut o, "mirror_image_status_get", "g1"), Err(Errno::ENOENT));

    watch(&mut o, &[5, 6]);
    let status = |o: &mut TestObject, id: &str| {
        ask::<MirrorImageStatus>(o, "mirror_image_status_get", id).unwrap()
    };
    run(o.as_client(5), "mirror_image_status_set", ("g1", site("", S::REPLAYING))).unwrap();
    run(o.as_client(6), "mirror_image_status_set", ("g1", site("there", S::STOPPED))).unwrap();
    let sites = status(&mut o, "g1").sites;
    assert_eq!(
        sites.iter().map(|s| (&s.mirror_uuid[..], s.state, s.up)).collect::<Vec<_>>(),
        [(&b""[..], S::REPLAYING, true), (&b"there"[..], S::STOPPED, true)]
    );
    assert_eq!(sites[0].last_update, o.origin.now);
    assert!(o.stored.omap.contains_key(&b"remote_status_global_g1_there"[..]));

    let summary = |o: &mut TestObject, peers: &[MirrorPeer]| {
        ask::<BTreeMap<S, i32>>(o, "mirror_image_status_get_summary", peers.to_vec()).unwrap()
    };
    assert_eq!(summary(&mut o, &[]), BTreeMap::from([(S::UNKNOWN, 1), (S::REPLAYING, 1)]));
    assert_eq!(
        summary(&mut o, &[peer("u", "s", D::TX, "there")]),
        BTreeMap::from([(S::UNKNOWN, 1), (S::STOPPED, 1)])
    );
    let old: BTreeMap<S, i32> = ask(&mut o, "mirror_image_status_get_summary", ()).unwrap();
    assert_eq!(old, summary(&mut o, &[]));

    // The daemon is known whichever protocol it speaks.
    let instance: EntityInst = ask(&mut o, "mirror_image_instance_get", "g1").unwrap();
    assert_eq!((instance.name, instance.addr.kind), (client(5), AddrType::ANY));
    o.watchers[0].addr.kind = AddrType::LEGACY;
    assert!(status(&mut o, "g1").sites[0].up);
    let instances: BTreeMap<Bytes, EntityInst> =
        ask(&mut o, "mirror_image_instance_list", ("", 10u64)).unwrap();
    assert_eq!(instances, BTreeMap::from([("1".into(), instance)]));
    let (images, statuses): (BTreeMap<Bytes, MirrorImage>, BTreeMap<Bytes, MirrorImageStatus>) =
        ask(&mut o, "mirror_image_status_list", ("", 10u64)).unwrap();
    assert_eq!((images.len(), statuses.len()), (2, 1));

    watch(&mut o, &[6]);
    assert!(!status(&mut o, "g1").sites[0].up);
    assert_eq!(run(&mut o, "mirror_image_instance_get", "g1"), Err(Errno::ESTALE));
    run(&mut o, "mirror_image_status_remove_down", ()).unwrap();
    assert_eq!(status(&mut o, "g1").sites.len(), 1);
    run(&mut o, "mirror_image_status_remove", "g1").unwrap();
    assert_eq!(run(&mut o, "mirror_image_status_get", "g1"), Err(Errno::ENOENT));
    assert_eq!(run(&mut o, "mirror_image_instance_get", "g1"), Err(Errno::ENOENT));
}

#[test]
fn daemons_and_their_images() {
    let mut o = TestObject::new();
    run(&mut o, "mirror_instances_add", "b").unwrap();
    run(&mut o, "mirror_instances_add", "a").unwrap();
    run(&mut o, "mirror_instances_add", "a").unwrap();
    assert_eq!(ask::<Vec<Bytes>>(&mut o, "mirror_instances_list", ()).unwrap(), ["a", "b"]);
    run(&mut o, "mirror_instances_remove", "a").unwrap();
    assert_eq!(ask::<Vec<Bytes>>(&mut o, "mirror_instances_list", ()).unwrap(), ["b"]);

    let map = MirrorImageMap {
        instance_id: "b".into(),
        mapped_time: Utime::new(1, 0),
        data: "policy".into(),
    };
    let list = |o: &mut TestObject, after: &str, most: u64| {
        ask::<BTreeMap<Bytes, MirrorImageMap>>(o, "mirror_image_map_list", (after, most)).unwrap()
    };
    for i in 0..100 {
        run(&mut o, "mirror_image_map_update", (format!("g{i:02}"), &map)).unwrap();
    }
    assert_eq!(list(&mut o, "", 1000).len(), 100);
    assert_eq!(list(&mut o, "", 70).len(), 70);
    assert_eq!(list(&mut o, "g98", 70), BTreeMap::from([("g99".into(), map)]));
    run(&mut o, "mirror_image_map_remove", "g00").unwrap();
    assert_eq!(list(&mut o, "", 1000).len(), 99);
}

#[test]
fn mirror_snapshots_know_who_needs_them() {
    let mut o = image(0);
    let snapshot = |state, peers: &[&'static str]| {
        SnapshotNamespace::Mirror(MirrorSnapshot {
            state,
            complete: false,
            mirror_peer_uuids: peers.iter().map(|&p| p.into()).collect(),
            primary_mirror_uuid: Bytes::new(),
            primary_snap_id: SnapId::NOSNAP,
            last_copied_object_number: 0,
            snap_seqs: BTreeMap::new(),
        })
    };
    let mirror = |o: &mut TestObject, id| match ask::<SnapshotInfo>(o, "snapshot_get", SnapId(id))
        .unwrap()
        .namespace
    {
        SnapshotNamespace::Mirror(mirror) => mirror,
        other => panic!("{other:?}"),
    };
    run(
        &mut o,
        "snapshot_add",
        ("m1", SnapId(1), snapshot(MirrorSnapshotState::PRIMARY, &["a", "b"])),
    )
    .unwrap();
    run(
        &mut o,
        "snapshot_add",
        ("m2", SnapId(2), snapshot(MirrorSnapshotState::NON_PRIMARY, &["a"])),
    )
    .unwrap();
    add_snap(&mut o, "user", 3).unwrap();
    let unlink = |o: &mut TestObject, id, peer: &str| {
        run(o, "mirror_image_snapshot_unlink_peer", (SnapId(id), peer))
    };
    assert_eq!(unlink(&mut o, 9, "a"), Err(Errno::ENOENT));
    assert_eq!(unlink(&mut o, 3, "a"), Err(Errno::EINVAL));
    assert_eq!(unlink(&mut o, 1, "x"), Err(Errno::ENOENT));
    unlink(&mut o, 1, "a").unwrap();
    // The last peer of a snapshot with a newer one after it: remove it instead.
    assert_eq!(unlink(&mut o, 1, "b"), Err(Errno::ERESTART));
    assert_eq!(mirror(&mut o, 1).mirror_peer_uuids.len(), 1);
    unlink(&mut o, 2, "a").unwrap();

    let progress = |o: &mut TestObject, id| {
        run(o, "mirror_image_snapshot_set_copy_progress", (SnapId(id), true, 7u64))
    };
    assert_eq!(progress(&mut o, 3), Err(Errno::EINVAL));
    assert_eq!(progress(&mut o, 9), Err(Errno::ENOENT));
    progress(&mut o, 1).unwrap();
    progress(&mut o, 2).unwrap();
    assert_eq!(
        (mirror(&mut o, 1).complete, mirror(&mut o, 1).last_copied_object_number),
        (true, 0)
    );
    assert_eq!(
        (mirror(&mut o, 2).complete, mirror(&mut o, 2).last_copied_object_number),
        (true, 7)
    );
}
