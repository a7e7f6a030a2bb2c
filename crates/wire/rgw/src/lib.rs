//! Records and class calls of Ceph's object gateway (RGW).
//!
//! Everything here is what `radosgw` writes into a cluster or sends to an object class: the classes
//! of the OSD and a gateway share the types. Each type names its Ceph file, struct and version; the
//! version is that of 16.2 unless something else is said.
//!
//! * [`key`]: names of objects, users and zones.
//! * [`entry`], [`header`], [`index`]: a bucket's index and the calls on it.
//! * [`olh`]: which version of an object is the current one.
//! * [`bi`], [`bilog`]: raw rows of an index, and the log of its changes.
//! * [`object`]: calls on the objects that hold data.
//! * [`usage`], [`gc`], [`lc`], [`reshard`]: work that gateways do in the background.
//! * [`queue`], [`gc_queue`], [`two_phase`], [`fifo`]: queues in objects' bytes.
//! * [`otp`]: one-time passwords.
//! * [`zone`], [`user`], [`bucket`], [`acl`], [`settings`]: what a gateway knows of these.
//! * [`names`], [`manifest`], [`upload`]: where the data of objects is.
//! * [`cache`]: notifications of gateways' caches.
//!
//! Texts are byte strings: clients send whatever they were given. Enumerations are numbers with
//! named values, because values of newer clients have to survive being stored and read back.

#![forbid(unsafe_code)]

pub mod acl;
pub mod bi;
pub mod bilog;
pub mod bucket;
pub mod cache;
pub mod entry;
pub mod fifo;
pub mod gc;
pub mod gc_queue;
pub mod header;
pub mod index;
pub mod key;
pub mod lc;
pub mod manifest;
pub mod names;
pub mod object;
pub mod olh;
pub mod otp;
pub mod packed;
pub mod queue;
pub mod reshard;
pub mod settings;
pub mod two_phase;
pub mod upload;
pub mod usage;
pub mod user;
pub mod zone;

/// Declares a number with named values.
macro_rules! open_enum {
    ($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$value_doc:meta])* $value:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, denc_derive::Denc)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name($number);)*
        }
    };
}
use open_enum;

/// Sizes are accounted in multiples of this too.
const ROUND_BLOCK_SIZE: u64 = 4096;

/// A size as `total_size_rounded` counts it (Ceph: `cls_rgw_get_rounded_size`).
pub fn rounded_size(size: u64) -> u64 {
    size.wrapping_add(ROUND_BLOCK_SIZE - 1) & !(ROUND_BLOCK_SIZE - 1)
}
