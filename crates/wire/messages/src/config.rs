//! Central configuration and key/value data.

use crate::payload::message;
use bytes::Bytes;
use std::collections::BTreeMap;
use types::EntityType;

message! {
    /// Options for the receiver (Ceph: `MConfig`).
    Config = 62, "config", version 1, compat 1 {
        /// Value by option name.
        config: BTreeMap<String, String>,
    }

    /// Asks for the options of an entity (Ceph: `MGetConfig`).
    GetConfig = 63, "get_config", version 1, compat 1 {
        /// What asks.
        entity_type: EntityType,
        /// The part of its name after the dot.
        entity_id: String,
        /// On which host.
        host: String,
        /// Of an OSD, its device class.
        device_class: String,
    }

    /// Part of the key/value store for a subscriber (Ceph: `MKVData`).
    KvData = 54, "kv_data", version 1, compat 1 {
        /// Version of the store.
        version: u64,
        /// Prefix that was subscribed to.
        prefix: String,
        /// Whether `data` only has what changed.
        incremental: bool,
        /// Values; `None` for a key that was removed.
        data: BTreeMap<String, Option<Bytes>>,
    }
}
