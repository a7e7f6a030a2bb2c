//! Migration of images.

use super::{MirrorImageMode, open_enum};
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader, Result, envelope};
use std::collections::BTreeMap;

open_enum! {
    /// Which end of a migration a header is (Ceph: `cls::rbd::MigrationHeaderType`).
    MigrationHeaderType(u8) {
        /// The image moves away.
        SRC = 1,
        /// The image arrives.
        DST = 2,
    }
}

open_enum! {
    /// How far a migration has come (Ceph: `cls::rbd::MigrationState`).
    MigrationState(u8) {
        /// It failed.
        ERROR = 0,
        /// The destination is being made.
        PREPARING = 1,
        /// Clients may use the destination.
        PREPARED = 2,
        /// Data is being copied.
        EXECUTING = 3,
        /// All data is there.
        EXECUTED = 4,
        /// It is being undone.
        ABORTING = 5,
    }
}

/// A migration, as both ends keep it (Ceph: `cls::rbd::MigrationSpec`, `cls/rbd/cls_rbd_types.h`,
/// version 3; compat 3 if there is a source outside the cluster, which older readers must not
/// miss).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MigrationSpec {
    /// Which end this is.
    pub header_type: MigrationHeaderType,
    /// Pool of the other end.
    pub pool_id: i64,
    /// Namespace of the other end.
    pub pool_namespace: Bytes,
    /// Name of the other end.
    pub image_name: Bytes,
    /// Id of the other end.
    pub image_id: Bytes,
    /// Snapshots of the source and at the destination.
    pub snap_seqs: BTreeMap<u64, u64>,
    /// How many bytes of the source the destination can see.
    pub overlap: u64,
    /// Whether the destination becomes independent of the source's parent.
    pub flatten: bool,
    /// Whether the source is mirrored.
    pub mirroring: bool,
    /// How far it has come.
    pub state: MigrationState,
    /// The same for people.
    pub state_description: Bytes,
    /// How the source is mirrored. Since version 2.
    pub mirror_image_mode: MirrorImageMode,
    /// A source outside the cluster, as JSON. Since version 3.
    pub source_spec: Bytes,
}

impl Encode for MigrationSpec {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let compat = if self.source_spec.is_empty() { 1 } else { 3 };
        envelope(out, 3, compat, |out| {
            self.header_type.encode(out, f);
            self.pool_id.encode(out, f);
            self.pool_namespace.encode(out, f);
            self.image_name.encode(out, f);
            self.image_id.encode(out, f);
            self.snap_seqs.encode(out, f);
            self.overlap.encode(out, f);
            self.flatten.encode(out, f);
            self.mirroring.encode(out, f);
            self.state.encode(out, f);
            self.state_description.encode(out, f);
            self.mirror_image_mode.encode(out, f);
            self.source_spec.encode(out, f);
        });
    }
}

impl Decode for MigrationSpec {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("cls::rbd::MigrationSpec", 3)?;
        Ok(MigrationSpec {
            header_type: r.get()?,
            pool_id: r.get()?,
            pool_namespace: r.get()?,
            image_name: r.get()?,
            image_id: r.get()?,
            snap_seqs: r.get()?,
            overlap: r.get()?,
            flatten: r.get()?,
            mirroring: r.get()?,
            state: r.get()?,
            state_description: r.get()?,
            mirror_image_mode: if struct_v >= 2 { r.get()? } else { MirrorImageMode::JOURNAL },
            source_spec: if struct_v >= 3 { r.get()? } else { Bytes::new() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_outside_the_cluster_raises_the_compat_version() {
        let mut spec = MigrationSpec {
            header_type: MigrationHeaderType::DST,
            pool_id: 1,
            pool_namespace: "ns".into(),
            image_name: "name".into(),
            image_id: "id".into(),
            snap_seqs: [(1, 2), (3, 4)].into(),
            overlap: 5,
            flatten: true,
            mirroring: false,
            state: MigrationState::PREPARED,
            state_description: "fine".into(),
            mirror_image_mode: MirrorImageMode::SNAPSHOT,
            source_spec: Bytes::new(),
        };
        let bytes = spec.to_bytes(Features::ALL);
        assert_eq!(bytes[..2], [3, 1]);
        assert_eq!(MigrationSpec::from_bytes(&bytes).unwrap(), spec);
        spec.source_spec = "{}".into();
        let bytes = spec.to_bytes(Features::ALL);
        assert_eq!(bytes[..2], [3, 3]);
        assert_eq!(MigrationSpec::from_bytes(&bytes).unwrap(), spec);
    }
}
