//! The other clusters of a mirrored pool: rows `mirror_peer_UUID`.

use super::pool;
use crate::context::Object;
use crate::method::{Ignored, encode};
use crate::rbd::omap::{has_key, key, list_of, optional, read_key, remove_key, write_key};
use crate::rbd::types::{MirrorPeer, MirrorPeerDirection};
use bytes::Bytes;
use types::Utime;
use types::errno::Errno;

const PREFIX: &[u8] = b"mirror_peer_";

/// Every peer.
pub async fn all(object: Object<'_>) -> Result<Vec<MirrorPeer>, Errno> {
    let rows = optional(list_of(object, PREFIX, b"", u64::MAX).await)?.unwrap_or_default();
    Ok(rows.into_iter().map(|(_, peer)| peer).collect())
}

async fn read(object: Object<'_>, uuid: &[u8]) -> Result<MirrorPeer, Errno> {
    read_key(object, &key(PREFIX, uuid)).await
}

async fn write(object: Object<'_>, peer: &MirrorPeer) -> Result<(), Errno> {
    write_key(object, &key(PREFIX, &peer.uuid), peer).await
}

/// EINVAL unless the pool is mirrored.
async fn check_enabled(object: Object<'_>) -> Result<(), Errno> {
    if pool::is_enabled(object).await? { Ok(()) } else { Err(Errno::EINVAL) }
}

/// A daemon of another cluster was here. Input: the cluster's name, its mirroring's number, and the
/// direction, which is [`MirrorPeerDirection::TX`]. A peer that is not known yet is added; a name
/// that changed, and a number that was not known, are noted.
pub async fn mirror_peer_ping(
    object: Object<'_>,
    (site_name, mirror_uuid, direction): (Bytes, Bytes, MirrorPeerDirection),
) -> Result<(), Errno> {
    if direction != MirrorPeerDirection::TX {
        return Err(Errno::EINVAL);
    }
    check_enabled(&mut *object).await?;
    if site_name.is_empty() || mirror_uuid.is_empty() {
        return Err(Errno::EINVAL);
    }
    let peers = all(&mut *object).await?;
    let by_site = peers.iter().find(|peer| peer.site_name == site_name);
    let site_fits =
        by_site.is_some_and(|peer| peer.mirror_uuid.is_empty() || peer.mirror_uuid == mirror_uuid);
    let by_uuid =
        if site_fits { None } else { peers.iter().find(|peer| peer.mirror_uuid == mirror_uuid) };
    let mut peer = match (by_site, by_uuid) {
        // There are two: the number counts, and the name stays with the other.
        (Some(_), Some(peer)) => peer.clone(),
        (None, Some(peer)) => MirrorPeer { site_name, ..peer.clone() },
        (Some(peer), None) => MirrorPeer { mirror_uuid, ..peer.clone() },
        (None, None) => {
            let mut uuid = crate::rbd::uuid::new_uuid(&mut *object);
            while has_key(&mut *object, &key(PREFIX, &uuid)).await? {
                uuid = crate::rbd::uuid::new_uuid(&mut *object);
            }
            MirrorPeer {
                uuid,
                site_name,
                client_name: Bytes::new(),
                pool_id: -1,
                direction: MirrorPeerDirection::TX,
                mirror_uuid,
                last_seen: Utime::ZERO,
            }
        }
    };
    if peer.direction == MirrorPeerDirection::RX {
        peer.direction = MirrorPeerDirection::RX_TX;
    }
    peer.last_seen = object.origin().now;
    if !peer.is_valid() {
        return Err(Errno::EINVAL);
    }
    write(object, &peer).await
}

/// The peers.
pub async fn mirror_peer_list(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&all(object).await?))
}

/// Adds a peer; ESTALE if its number is there, EEXIST if its cluster is.
pub async fn mirror_peer_add(object: Object<'_>, peer: MirrorPeer) -> Result<(), Errno> {
    check_enabled(&mut *object).await?;
    if !peer.is_valid()
        || peer.uuid == pool::uuid(&mut *object).await?
        || peer.direction == MirrorPeerDirection::TX
    {
        return Err(Errno::EINVAL);
    }
    for other in all(&mut *object).await? {
        if other.uuid == peer.uuid {
            return Err(Errno::ESTALE);
        }
        let same_mirroring = !peer.mirror_uuid.is_empty() && other.mirror_uuid == peer.mirror_uuid;
        if other.site_name == peer.site_name || same_mirroring {
            return Err(Errno::EEXIST);
        }
    }
    write(object, &peer).await
}

/// Removes a peer, if it is there.
pub async fn mirror_peer_remove(object: Object<'_>, uuid: Bytes) -> Result<(), Errno> {
    remove_key(object, &key(PREFIX, &uuid)).await
}

/// Sets the name under which we enter a peer.
pub async fn mirror_peer_set_client(
    object: Object<'_>,
    (uuid, client_name): (Bytes, Bytes),
) -> Result<(), Errno> {
    let peer = read(&mut *object, &uuid).await?;
    write(object, &MirrorPeer { client_name, ..peer }).await
}

/// Sets a peer's cluster name; EEXIST if another peer has it.
pub async fn mirror_peer_set_cluster(
    object: Object<'_>,
    (uuid, site_name): (Bytes, Bytes),
) -> Result<(), Errno> {
    let peers = all(&mut *object).await?;
    if peers.iter().any(|peer| peer.uuid != uuid && peer.site_name == site_name) {
        return Err(Errno::EEXIST);
    }
    let peer = peers.into_iter().find(|peer| peer.uuid == uuid).ok_or(Errno::ENOENT)?;
    write(object, &MirrorPeer { site_name, ..peer }).await
}

/// Sets which way a peer is used.
pub async fn mirror_peer_set_direction(
    object: Object<'_>,
    (uuid, direction): (Bytes, MirrorPeerDirection),
) -> Result<(), Errno> {
    let peer = read(&mut *object, &uuid).await?;
    write(object, &MirrorPeer { direction, ..peer }).await
}
