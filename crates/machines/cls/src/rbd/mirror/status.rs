//! How mirroring of images goes, as daemons report it: rows `status_global_ID` for this site, and
//! `remote_status_global_ID_SITE` for the others. A report counts as long as the daemon that made
//! it watches the object.

use super::images;
use crate::context::Object;
use crate::method::{Ignored, Raw, decode, encode};
use crate::rbd::omap::{Args, key, list, optional};
use crate::rbd::types::{
    EntityInst, MirrorImageSiteStatus, MirrorImageState, MirrorImageStatus, MirrorImageStatusState,
    MirrorPeer, MirrorPeerDirection, StoredSiteStatus,
};
use bytes::Bytes;
use denc::Reader;
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;

const LOCAL_PREFIX: &[u8] = b"status_global_";
const REMOTE_PREFIX: &[u8] = b"remote_status_global_";

/// The daemons that watch the object.
pub type Watchers = BTreeSet<EntityInst>;

fn local_key(global_id: &[u8]) -> Bytes {
    key(LOCAL_PREFIX, global_id)
}

/// What the rows of other sites for an image begin with.
fn remote_prefix(global_id: &[u8]) -> Bytes {
    [REMOTE_PREFIX, global_id, b"_"].concat().into()
}

fn row_key(global_id: &[u8], mirror_uuid: &[u8]) -> Bytes {
    if mirror_uuid.is_empty() {
        local_key(global_id)
    } else {
        key(&remote_prefix(global_id), mirror_uuid)
    }
}

/// The watchers of the object.
pub async fn watchers(object: Object<'_>) -> Result<Watchers, Errno> {
    let watchers = optional(object.list_watchers().await)?.unwrap_or_default();
    Ok(watchers.into_iter().map(|w| EntityInst::of_any_protocol(w.name, w.addr)).collect())
}

/// Reports how it goes. Of an image that is not mirrored, nothing is kept, and that is no error:
/// the daemon will hear of it.
pub async fn mirror_image_status_set(
    object: Object<'_>,
    (global_id, status): (Bytes, MirrorImageSiteStatus),
) -> Result<(), Errno> {
    let Ok(image_id) = images::id_of(&mut *object, &global_id).await else { return Ok(()) };
    match images::read(&mut *object, &image_id).await {
        Ok(image) if image.state == MirrorImageState::ENABLED => {}
        _ => return Ok(()),
    }
    let row = row_key(&global_id, &status.mirror_uuid);
    let origin = object.origin();
    let stored = StoredSiteStatus {
        origin: EntityInst::of_any_protocol(origin.entity, origin.addr),
        status: MirrorImageSiteStatus {
            mirror_uuid: Bytes::new(),
            up: false,
            last_update: origin.now,
            ..status
        },
    };
    object.map_set_val(&row, encode(&stored)).await
}

/// Forgets how it went everywhere.
pub async fn remove_all(object: Object<'_>, global_id: &[u8]) -> Result<(), Errno> {
    let prefix = remote_prefix(global_id);
    let remotes = optional(list(&mut *object, &prefix, b"", u64::MAX).await)?.unwrap_or_default();
    for (mirror_uuid, _) in remotes {
        optional(object.map_remove_key(&key(&prefix, &mirror_uuid)).await)?;
    }
    optional(object.map_remove_key(&local_key(global_id)).await).map(drop)
}

/// Forgets how it went everywhere.
pub async fn mirror_image_status_remove(object: Object<'_>, global_id: Bytes) -> Result<(), Errno> {
    remove_all(object, &global_id).await
}

/// How it goes everywhere; ENOENT if no site said.
async fn read(
    object: Object<'_>,
    global_id: &[u8],
    watchers: &Watchers,
) -> Result<MirrorImageStatus, Errno> {
    let mut sites = Vec::new();
    if let Some(row) = optional(object.map_get_val(&local_key(global_id)).await)? {
        sites.push((Bytes::new(), row));
    }
    sites.extend(
        optional(list(object, &remote_prefix(global_id), b"", u64::MAX).await)?.unwrap_or_default(),
    );
    if sites.is_empty() {
        return Err(Errno::ENOENT);
    }
    let site = |(mirror_uuid, row)| {
        let StoredSiteStatus { origin, status } = decode(row, Errno::EIO)?;
        Ok(MirrorImageSiteStatus { mirror_uuid, up: watchers.contains(&origin), ..status })
    };
    Ok(MirrorImageStatus { sites: sites.into_iter().map(site).collect::<Result<_, Errno>>()? })
}

/// How it goes everywhere.
pub async fn mirror_image_status_get(object: Object<'_>, global_id: Bytes) -> Result<Bytes, Errno> {
    let watchers = watchers(&mut *object).await?;
    Ok(encode(&read(object, &global_id, &watchers).await?))
}

/// Up to so many images after an id, and how it goes with those of which a site said.
pub async fn mirror_image_status_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let watchers = watchers(&mut *object).await?;
    let images = images::list(&mut *object, &start_after, most).await?;
    let mut statuses = BTreeMap::new();
    for (id, image) in &images {
        if let Ok(status) = read(&mut *object, &image.global_image_id, &watchers).await {
            statuses.insert(id.clone(), status);
        }
    }
    Ok(encode(&(images.into_iter().collect::<BTreeMap<_, _>>(), statuses)))
}

/// How many images are in which state. Input: the peers, or nothing from clients that know only of
/// copying from another cluster.
pub async fn mirror_image_status_get_summary(
    object: Object<'_>,
    Raw(input): Raw,
) -> Result<Bytes, Errno> {
    let peers: Vec<MirrorPeer> = Args::new(input).get_or(Vec::new())?;
    let summary = Summary::of(&peers);
    let watchers = watchers(&mut *object).await?;
    let mut counts: BTreeMap<MirrorImageStatusState, i32> = BTreeMap::new();
    for (_, image) in images::list(&mut *object, b"", u64::MAX).await? {
        let status = optional(read(&mut *object, &image.global_image_id, &watchers).await)?
            .unwrap_or_default();
        *counts.entry(summary.state(&status)).or_default() += 1;
    }
    Ok(encode(&counts))
}

/// Which sites' reports make up an image's state.
struct Summary {
    direction: MirrorPeerDirection,
    /// The sites that copy from us.
    receivers: BTreeSet<Bytes>,
}

impl Summary {
    fn of(peers: &[MirrorPeer]) -> Self {
        let mut direction = peers.first().map_or(MirrorPeerDirection::RX, |peer| peer.direction);
        let mut receivers = BTreeSet::new();
        for peer in peers.iter().filter(|peer| peer.direction != MirrorPeerDirection::RX) {
            receivers.insert(peer.mirror_uuid.clone());
            if direction != peer.direction {
                direction = MirrorPeerDirection::RX_TX;
            }
        }
        Summary { direction, receivers }
    }

    /// The state that needs most attention; unknown if a site that should say nothing says nothing.
    fn state(&self, status: &MirrorImageStatus) -> MirrorImageStatusState {
        let we_copy =
            matches!(self.direction, MirrorPeerDirection::RX | MirrorPeerDirection::RX_TX);
        let they_copy =
            matches!(self.direction, MirrorPeerDirection::TX | MirrorPeerDirection::RX_TX);
        let mut state = None;
        let mut silent = 0;
        if we_copy {
            state = status.local().filter(|local| local.up).map(|local| local.state);
        }
        if they_copy {
            silent = self.receivers.len();
            for remote in status.remotes() {
                if self.receivers.contains(&remote.mirror_uuid) {
                    silent = silent.saturating_sub(1);
                }
                let now = if remote.up { remote.state } else { MirrorImageStatusState::UNKNOWN };
                state = Some(match state {
                    // An error stays one, even of a daemon that is gone.
                    _ if remote.state == MirrorImageStatusState::ERROR => remote.state,
                    Some(MirrorImageStatusState::ERROR) => MirrorImageStatusState::ERROR,
                    Some(before) => before.min(now),
                    None => now,
                });
            }
        }
        match state {
            Some(state) if silent == 0 => state,
            _ => MirrorImageStatusState::UNKNOWN,
        }
    }
}

/// Forgets the reports of daemons that are gone.
pub async fn mirror_image_status_remove_down(object: Object<'_>, _: Ignored) -> Result<(), Errno> {
    let watchers = watchers(&mut *object).await?;
    for prefix in [LOCAL_PREFIX, REMOTE_PREFIX] {
        for (rest, row) in list(&mut *object, prefix, b"", u64::MAX).await? {
            let origin =
                StoredSiteStatus::decode_origin(&mut Reader::new(row)).map_err(|_| Errno::EIO)?;
            if !watchers.contains(&origin) {
                object.map_remove_key(&key(prefix, &rest)).await?;
            }
        }
    }
    Ok(())
}

/// The daemon that reported for this site; ESTALE if it is gone.
async fn reporter(
    object: Object<'_>,
    global_id: &[u8],
    watchers: &Watchers,
) -> Result<EntityInst, Errno> {
    let stored: StoredSiteStatus =
        decode(object.map_get_val(&local_key(global_id)).await?, Errno::EIO)?;
    if watchers.contains(&stored.origin) { Ok(stored.origin) } else { Err(Errno::ESTALE) }
}

/// The daemon that mirrors an image here.
pub async fn mirror_image_instance_get(
    object: Object<'_>,
    global_id: Bytes,
) -> Result<Bytes, Errno> {
    let watchers = watchers(&mut *object).await?;
    Ok(encode(&reporter(object, &global_id, &watchers).await?))
}

/// The daemons that mirror up to so many images after an id.
pub async fn mirror_image_instance_list(
    object: Object<'_>,
    (start_after, most): (Bytes, u64),
) -> Result<Bytes, Errno> {
    let watchers = watchers(&mut *object).await?;
    let mut instances: BTreeMap<Bytes, EntityInst> = BTreeMap::new();
    for (id, image) in images::list(&mut *object, &start_after, u64::MAX).await? {
        if instances.len() as u64 >= most {
            break;
        }
        if let Ok(instance) = reporter(&mut *object, &image.global_image_id, &watchers).await {
            instances.insert(id, instance);
        }
    }
    Ok(encode(&instances))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::Utime;

    fn peer(direction: MirrorPeerDirection, mirror_uuid: &'static str) -> MirrorPeer {
        MirrorPeer {
            uuid: "u".into(),
            site_name: "s".into(),
            client_name: "c".into(),
            pool_id: -1,
            direction,
            mirror_uuid: mirror_uuid.into(),
            last_seen: Utime::ZERO,
        }
    }

    fn site(
        mirror_uuid: &'static str,
        state: MirrorImageStatusState,
        up: bool,
    ) -> MirrorImageSiteStatus {
        MirrorImageSiteStatus { mirror_uuid: mirror_uuid.into(), state, up, ..Default::default() }
    }

    #[test]
    fn a_summary_looks_at_the_sites_that_copy() {
        use MirrorImageStatusState as S;
        use MirrorPeerDirection as D;
        let here = site("", S::REPLAYING, true);
        let there = site("there", S::STOPPED, true);
        let gone = site("there", S::STOPPED, false);
        let failed = site("there", S::ERROR, false);
        let rx = Summary::of(&[]);
        let tx = Summary::of(&[peer(D::TX, "there")]);
        let both = Summary::of(&[peer(D::RX, ""), peer(D::TX, "there")]);
        let state = |summary: &Summary, sites: &[&MirrorImageSiteStatus]| {
            summary.state(&MirrorImageStatus { sites: sites.iter().map(|&s| s.clone()).collect() })
        };
        assert_eq!(state(&rx, &[]), S::UNKNOWN);
        assert_eq!(state(&rx, &[&here, &failed]), S::REPLAYING);
        assert_eq!(state(&tx, &[&here]), S::UNKNOWN);
        assert_eq!(state(&tx, &[&here, &there]), S::STOPPED);
        assert_eq!(state(&tx, &[&gone]), S::UNKNOWN);
        assert_eq!(state(&tx, &[&failed]), S::ERROR);
        assert_eq!(both.direction, D::RX_TX);
        assert_eq!(state(&both, &[&here, &there]), S::REPLAYING);
        assert_eq!(state(&both, &[&here]), S::UNKNOWN);
    }
}
