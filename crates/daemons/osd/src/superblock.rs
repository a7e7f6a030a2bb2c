//! What an OSD keeps of itself: its identity, how far it has processed maps, and the maps that its
//! PGs still need. All of it is in the collection [`OWN`].
//!
//! ```text
//! object "super"     attributes "format": [`FORMAT`], "super": [`Superblock`], "qos": [`Learned`]
//! object "map" + epoch (BE)   one full OSDMap
//! ```

use admission::meter::Learned;
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Decode, Encode, Features};
use denc_derive::Denc;
use pg::creation::UnbornPgs;
use store::{Coll, Key, Store, StoreError, Transaction, WriteHint};
use types::{Epoch, Fsid, OsdId, OsdMap};

/// The OSD's own collection. PGs have collections of pools, which count from 1.
pub const OWN: Coll = Coll(0);
/// The format of everything that an OSD keeps in its store: collection numbers, rows of PGs,
/// superblock. A store with another one is refused. Raise it with every change that the versions of
/// the records alone cannot tell.
///
/// * 1: collections of PGs without positions; has no attribute of its own.
/// * 2: collections of copies with positions.
pub const FORMAT: u32 = 2;

const SUPER: &[u8] = b"super";
const FORMAT_ATTR: &[u8] = b"format";
const MAP: &[u8] = b"map";

/// Identity and progress.
#[derive(Clone, Debug, Default, PartialEq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct Superblock {
    /// The cluster.
    pub cluster: Fsid,
    /// Of this OSD, from its creation on.
    pub osd: Fsid,
    /// Its number.
    pub whoami: OsdId,
    /// Maps up to this one were processed.
    pub current: Epoch,
    /// The oldest map kept, 0 if there is none.
    pub oldest: Epoch,
    /// Last epoch in which this OSD was marked up.
    pub up_from: Epoch,
    /// PGs that are not born yet.
    pub unborn: UnbornPgs,
}

/// Why an OSD's own data cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OwnError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Another version of Siphon wrote the store.
    #[error(
        "the store has format {found}, and this version reads format {FORMAT} only: start the OSD \
         with the version that wrote it, or replace it by a new one, which is filled from other OSDs"
    )]
    Format {
        /// The store's.
        found: u32,
    },
    /// A stored record makes no sense.
    #[error("{what} is damaged")]
    Damaged {
        /// What.
        what: String,
        /// How.
        #[source]
        source: denc::DecodeError,
    },
}

fn map_key(epoch: Epoch) -> Key {
    let mut k = BytesMut::with_capacity(7);
    k.put_slice(MAP);
    k.put_u32(epoch.0);
    k.freeze()
}

/// Adds the creation of the collection.
pub fn create(t: &mut Transaction) {
    t.create_collection(OWN);
    put_format(t, FORMAT);
}

fn put_format(t: &mut Transaction, format: u32) {
    t.set_attr(OWN, &Bytes::from_static(SUPER), FORMAT_ATTR, format.to_bytes(Features::ALL));
}

/// Adds the superblock.
pub fn put(t: &mut Transaction, s: &Superblock) {
    t.set_attr(OWN, &Bytes::from_static(SUPER), SUPER, s.to_bytes(Features::ALL));
}

const QOS: &[u8] = b"qos";

/// Adds what was learned.
pub fn put_learned(t: &mut Transaction, l: &Learned) {
    t.set_attr(OWN, &Bytes::from_static(SUPER), QOS, l.to_bytes(Features::ALL));
}

/// Reads what was learned; nothing if that cannot be read.
pub async fn load_learned(store: &Store) -> Option<Learned> {
    let bytes = store.get_attr(OWN, &Bytes::from_static(SUPER), QOS).await.ok()?;
    Learned::from_bytes(&bytes)
        .inspect_err(|e| tracing::warn!("learned costs are damaged, and are learned anew: {e}"))
        .ok()
}

/// Adds a map.
pub fn put_map(t: &mut Transaction, epoch: Epoch, bytes: Bytes) {
    let key = map_key(epoch);
    t.truncate(OWN, &key, 0);
    t.write(OWN, &key, 0, bytes, WriteHint::DontNeed);
}

/// Adds the removal of maps `from..to`, which exist.
pub fn drop_maps(t: &mut Transaction, from: Epoch, to: Epoch) {
    for e in from.0..to.0 {
        let key = map_key(Epoch(e));
        // A gap in the maps is possible: this makes it gone either way.
        t.touch(OWN, &key).remove(OWN, &key);
    }
}

/// The format of the store.
async fn load_format(store: &Store) -> Result<u32, OwnError> {
    match store.get_attr(OWN, &Bytes::from_static(SUPER), FORMAT_ATTR).await {
        Ok(bytes) => u32::from_bytes(&bytes)
            .map_err(|source| OwnError::Damaged { what: "the store's format".into(), source }),
        Err(StoreError::NoAttr) => Ok(1),
        Err(e) => Err(e.into()),
    }
}

/// Reads the superblock. A store of another format is refused.
pub async fn load(store: &Store) -> Result<Superblock, OwnError> {
    let found = load_format(store).await?;
    if found != FORMAT {
        return Err(OwnError::Format { found });
    }
    let bytes = store.get_attr(OWN, &Bytes::from_static(SUPER), SUPER).await?;
    Superblock::from_bytes(&bytes)
        .map_err(|source| OwnError::Damaged { what: "the superblock".into(), source })
}

/// Reads the bytes of a map, if it is kept.
pub async fn load_map_bytes(store: &Store, epoch: Epoch) -> Result<Option<Bytes>, OwnError> {
    match store.read(OWN, &map_key(epoch), 0, u64::MAX).await {
        Ok(b) => Ok(Some(b.to_bytes())),
        Err(StoreError::NoObject { .. }) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Reads a map, if it is kept.
pub async fn load_map(store: &Store, epoch: Epoch) -> Result<Option<OsdMap>, OwnError> {
    let Some(bytes) = load_map_bytes(store, epoch).await? else { return Ok(None) };
    let map = OsdMap::from_bytes(&bytes)
        .map_err(|source| OwnError::Damaged { what: format!("map {epoch}"), source })?;
    Ok(Some(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_store_of_another_format_is_refused() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let store = Store::memory();
                let superblock = Superblock { whoami: OsdId(3), ..Superblock::default() };
                let mut t = Transaction::new();
                // As stores of format 1 were made.
                t.create_collection(OWN);
                put(&mut t, &superblock);
                store.submit(t).unwrap().await.unwrap();
                let why = load(&store).await.unwrap_err();
                assert!(matches!(why, OwnError::Format { found: 1 }), "{why}");
                let text = why.to_string();
                assert!(text.contains("format 1") && text.contains("format 2"), "{text}");
                for format in [FORMAT + 1, FORMAT] {
                    let mut t = Transaction::new();
                    put_format(&mut t, format);
                    store.submit(t).unwrap().await.unwrap();
                    match load(&store).await {
                        Ok(found) => assert_eq!((found, format), (superblock.clone(), FORMAT)),
                        Err(why) => assert!(
                            matches!(why, OwnError::Format { found } if found == FORMAT + 1),
                            "{why}"
                        ),
                    }
                }
            })
            .await;
    }
}
