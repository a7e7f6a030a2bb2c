//! The OSD map: which OSDs there are and in which state, the pools, the CRUSH map, and with them
//! where every placement group lives (Ceph: `osd/OSDMap.h`, `OSDMap.cc`, release 16.2).
//!
//! * [`OsdMap`] and [`OsdMapIncremental`]: the data, their binary forms, and how one follows from
//!   the other. The checksums make sure that a daemon that applies an increment has the very bytes
//!   of the monitor that made it.
//! * `mapping`: from object to placement group to OSDs; [`OsdMapMapping`] keeps the result for all
//!   groups.
//! * `dump`, `print`: `ceph osd dump` as JSON and text, and `ceph osd tree`.

mod apply;
mod dump;
mod dump_incremental;
mod encode;
mod incremental;
mod map;
mod mapping;
mod print;
mod table;
mod upmaps;

pub use apply::OsdMapError;
pub use incremental::OsdMapIncremental;
pub use map::{Osd, OsdInfo, OsdMap, OsdXinfo, StretchMode, TreeFilter, flag_names, state_names};
pub use mapping::{Placer, UpActing};
pub use print::general;
pub use table::{OsdMapMapping, Placement};
pub use upmaps::{RuleWeights, UpmapFault};

#[cfg(test)]
mod tests;
