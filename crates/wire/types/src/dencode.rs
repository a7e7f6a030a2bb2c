//! Types by name: decode bytes to JSON and encode them again, as `ceph-dencoder` does.

use crate::dump::Dump;
use bytes::Bytes;
use denc::{Decode, Encode, Features, Result};
use serde_json::Value;

/// A decoded value of some registered type.
pub trait Decoded {
    /// The value as JSON, with Ceph's field names.
    fn to_json(&self) -> Value;
    /// The value's bytes for a peer with these features.
    fn encode_for(&self, features: Features) -> Bytes;
}

impl<T: Dump + Encode> Decoded for T {
    fn to_json(&self) -> Value {
        self.dump()
    }

    fn encode_for(&self, features: Features) -> Bytes {
        self.to_bytes(features)
    }
}

/// A registered type.
#[derive(Clone, Copy)]
pub struct NamedType {
    /// The name that `ceph-dencoder` has for it; the Rust name for types of our own.
    pub name: &'static str,
    read: fn(&Bytes) -> Result<Box<dyn Decoded>>,
    default: fn() -> Box<dyn Decoded>,
}

impl NamedType {
    const fn of<T: Decode + Dump + Encode + Default + 'static>(name: &'static str) -> Self {
        NamedType {
            name,
            read: |bytes| Ok(Box::new(T::from_bytes(bytes)?)),
            default: || Box::new(T::default()),
        }
    }

    /// Reads a value that fills `bytes`.
    pub fn decode(&self, bytes: &Bytes) -> Result<Box<dyn Decoded>> {
        (self.read)(bytes)
    }

    /// A value with nothing set.
    pub fn empty(&self) -> Box<dyn Decoded> {
        (self.default)()
    }
}

/// The registered type of this name.
pub fn lookup(name: &str) -> Option<&'static NamedType> {
    TYPES.iter().find(|t| t.name == name)
}

/// All registered types.
pub const TYPES: &[NamedType] = &[
    NamedType::of::<crate::CompatSet>("CompatSet"),
    NamedType::of::<crush::CrushMap>("CrushWrapper"),
    NamedType::of::<crate::FsMap>("FSMap"),
    NamedType::of::<crate::FsMapUser>("FSMapUser"),
    NamedType::of::<crate::pool::HitSetParams>("HitSet::Params"),
    NamedType::of::<crate::LogEntry>("LogEntry"),
    NamedType::of::<crate::LogSummary>("LogSummary"),
    NamedType::of::<crate::MdsMap>("MDSMap"),
    NamedType::of::<crate::MgrMap>("MgrMap"),
    NamedType::of::<crate::MonMap>("MonMap"),
    NamedType::of::<crate::osdmap::OsdMap>("OSDMap"),
    NamedType::of::<crate::osdmap::OsdMapIncremental>("OSDMap::Incremental"),
    NamedType::of::<crate::pg_info::CleanRegions>("ObjectCleanRegions"),
    NamedType::of::<crate::ObjectInfo>("ObjectInfo"),
    NamedType::of::<crate::PgMapDigest>("PGMapDigest"),
    NamedType::of::<crate::ServiceMap>("ServiceMap"),
    NamedType::of::<crate::service_map::ServiceDaemon>("ServiceMap::Daemon"),
    NamedType::of::<crate::service_map::Service>("ServiceMap::Service"),
    NamedType::of::<crate::SnapContext>("SnapContext"),
    NamedType::of::<crate::SnapSet>("SnapSet"),
    NamedType::of::<crate::replies::ClusterStatfs>("ceph_statfs"),
    NamedType::of::<crate::replies::CloneInfo>("clone_info"),
    NamedType::of::<crate::EntityAddr>("entity_addr_t"),
    NamedType::of::<crate::EntityAddrVec>("entity_addrvec_t"),
    NamedType::of::<crate::EntityName>("entity_name_t"),
    NamedType::of::<crate::ObjectId>("hobject_t"),
    NamedType::of::<crate::replies::ListSnapsResponse>("obj_list_snap_response_t"),
    NamedType::of::<crate::replies::ListWatchersResponse>("obj_list_watch_response_t"),
    NamedType::of::<crate::replies::ObjectCopyCursor>("object_copy_cursor_t"),
    NamedType::of::<crate::replies::ObjectCopyData>("object_copy_data_t"),
    NamedType::of::<crate::ObjectLocator>("object_locator_t"),
    NamedType::of::<crate::ObjectStatCollection>("object_stat_collection_t"),
    NamedType::of::<crate::ObjectStatSum>("object_stat_sum_t"),
    NamedType::of::<crate::stats::PerfStat>("objectstore_perf_stat_t"),
    NamedType::of::<crate::osdmap::OsdInfo>("osd_info_t"),
    NamedType::of::<crate::ReqId>("osd_reqid_t"),
    NamedType::of::<crate::OsdStat>("osd_stat_t"),
    NamedType::of::<crate::osdmap::OsdXinfo>("osd_xinfo_t"),
    NamedType::of::<crate::PgHistory>("pg_history_t"),
    NamedType::of::<crate::pg_info::PgHitSetHistory>("pg_hit_set_history_t"),
    NamedType::of::<crate::pg_info::PgHitSetInfo>("pg_hit_set_info_t"),
    NamedType::of::<crate::PgInfo>("pg_info_t"),
    NamedType::of::<crate::PgLogDup>("pg_log_dup_t"),
    NamedType::of::<crate::PgLogEntry>("pg_log_entry_t"),
    NamedType::of::<crate::replies::PgLsResponse>("pg_ls_response_t"),
    NamedType::of::<crate::pool::PgMergeMeta>("pg_merge_meta_t"),
    NamedType::of::<crate::PgNlsResponse>("pg_nls_response_t"),
    NamedType::of::<crate::PgPool>("pg_pool_t"),
    NamedType::of::<crate::PgShard>("pg_shard_t"),
    NamedType::of::<crate::PgStat>("pg_stat_t"),
    NamedType::of::<crate::PgId>("pg_t"),
    NamedType::of::<crate::PoolOpts>("pool_opts_t"),
    NamedType::of::<crate::PoolSnapInfo>("pool_snap_info_t"),
    NamedType::of::<crate::PoolStat>("pool_stat_t"),
    NamedType::of::<crate::stats::Pow2Hist>("pow2_hist_t"),
    NamedType::of::<crate::replies::RequestRedirect>("request_redirect_t"),
    NamedType::of::<crate::SpgId>("spg_t"),
    NamedType::of::<crate::StoreStatfs>("store_statfs_t"),
    NamedType::of::<crate::replies::WatchItem>("watch_item_t"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::features;
    use proptest::prelude::*;

    #[test]
    fn names_are_sorted_and_empty_values_come_back() {
        assert!(TYPES.is_sorted_by_key(|t| t.name));
        for t in TYPES {
            let empty = t.empty();
            let bytes = empty.encode_for(features::SUPPORTED);
            let back = t.decode(&bytes).unwrap_or_else(|e| panic!("{}: {e}", t.name));
            assert_eq!(back.encode_for(features::SUPPORTED), bytes, "{}", t.name);
            assert_eq!(back.to_json(), empty.to_json(), "{}", t.name);
        }
        assert!(lookup("pg_pool_t").is_some() && lookup("pg_pool").is_none());
    }

    /// Valid bytes with some of them changed get much further into a decoder than noise.
    fn mutated(t: &NamedType, edits: &[(usize, u8)], cut: usize) -> Bytes {
        let mut bytes = t.empty().encode_for(features::SUPPORTED).to_vec();
        for (at, byte) in edits {
            let at = at % bytes.len();
            bytes[at] = *byte;
        }
        bytes.truncate(bytes.len() - cut % bytes.len());
        bytes.into()
    }

    fn decode_and_look(t: &NamedType, bytes: &Bytes) {
        if let Ok(value) = t.decode(bytes) {
            value.to_json();
            for f in [features::SUPPORTED, Features(0)] {
                let again = value.encode_for(f);
                let _ = t.decode(&again);
            }
            // What was once decoded has a stable form.
            let once = value.encode_for(features::SUPPORTED);
            let twice = t.decode(&once).unwrap_or_else(|e| panic!("{}: {e}", t.name));
            assert_eq!(twice.encode_for(features::SUPPORTED), once, "{}", t.name);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let bytes = Bytes::from(bytes);
            for t in TYPES {
                decode_and_look(t, &bytes);
            }
        }

        #[test]
        fn damaged_values_never_panic(
            edits in prop::collection::vec((any::<usize>(), prop::sample::select(vec![0u8, 1, 2, 0x7f, 0x80, 0xff])), 0..6),
            cut in prop_oneof![9 => Just(0usize), 1 => any::<usize>()],
        ) {
            for t in TYPES {
                decode_and_look(t, &mutated(t, &edits, cut));
            }
        }
    }
}
