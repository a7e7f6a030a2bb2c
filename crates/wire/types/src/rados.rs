//! Constants of the RADOS protocol (Ceph: `include/rados.h`).

use denc_derive::Denc;
use std::fmt;

/// Code of one operation within a request (Ceph: `CEPH_OSD_OP_*`). Its upper bits say whether it
/// reads or writes and what it works on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Denc)]
pub struct OpCode(pub u16);

macro_rules! op_codes {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        impl OpCode {
            $(
                #[doc = concat!("`CEPH_OSD_OP_", stringify!($name), "`: ", $text, ".")]
                pub const $name: OpCode = OpCode($code);
            )*

            /// Ceph's name of the operation.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $text,)*
                    _ => "???",
                }
            }
        }
    };
}

op_codes! {
    READ = 0x1201, "read";
    STAT = 0x1202, "stat";
    MAPEXT = 0x1203, "mapext";
    CHECKSUM = 0x121f, "checksum";
    MASKTRUNC = 0x1204, "masktrunc";
    SPARSE_READ = 0x1205, "sparse-read";
    NOTIFY = 0x1206, "notify";
    NOTIFY_ACK = 0x1207, "notify-ack";
    ASSERT_VER = 0x1208, "assert-version";
    LIST_WATCHERS = 0x1209, "list-watchers";
    LIST_SNAPS = 0x120a, "list-snaps";
    SYNC_READ = 0x120b, "sync_read";
    WRITE = 0x2201, "write";
    WRITEFULL = 0x2202, "writefull";
    TRUNCATE = 0x2203, "truncate";
    ZERO = 0x2204, "zero";
    DELETE = 0x2205, "delete";
    APPEND = 0x2206, "append";
    STARTSYNC = 0x2207, "startsync";
    SETTRUNC = 0x2208, "settrunc";
    TRIMTRUNC = 0x2209, "trimtrunc";
    TMAPUP = 0x320a, "tmapup";
    TMAPPUT = 0x220b, "tmapput";
    TMAPGET = 0x120c, "tmapget";
    CREATE = 0x220d, "create";
    ROLLBACK = 0x220e, "rollback";
    WATCH = 0x220f, "watch";
    OMAPGETKEYS = 0x1211, "omap-get-keys";
    OMAPGETVALS = 0x1212, "omap-get-vals";
    OMAPGETHEADER = 0x1213, "omap-get-header";
    OMAPGETVALSBYKEYS = 0x1214, "omap-get-vals-by-keys";
    OMAPSETVALS = 0x2215, "omap-set-vals";
    OMAPSETHEADER = 0x2216, "omap-set-header";
    OMAPCLEAR = 0x2217, "omap-clear";
    OMAPRMKEYS = 0x2218, "omap-rm-keys";
    OMAPRMKEYRANGE = 0x222c, "omap-rm-key-range";
    OMAP_CMP = 0x1219, "omap-cmp";
    COPY_FROM = 0x221a, "copy-from";
    COPY_FROM2 = 0x222d, "copy-from2";
    UNDIRTY = 0x221c, "undirty";
    ISDIRTY = 0x121d, "isdirty";
    COPY_GET = 0x121e, "copy-get";
    CACHE_FLUSH = 0x821f, "cache-flush";
    CACHE_EVICT = 0x8220, "cache-evict";
    CACHE_TRY_FLUSH = 0x8221, "cache-try-flush";
    TMAP2OMAP = 0x3222, "tmap2omap";
    SETALLOCHINT = 0x2223, "set-alloc-hint";
    CACHE_PIN = 0x2224, "cache-pin";
    CACHE_UNPIN = 0x2225, "cache-unpin";
    WRITESAME = 0x2226, "write-same";
    CMPEXT = 0x1220, "cmpext";
    SET_REDIRECT = 0x2227, "set-redirect";
    SET_CHUNK = 0x8228, "set-chunk";
    TIER_PROMOTE = 0x2229, "tier-promote";
    UNSET_MANIFEST = 0x222a, "unset-manifest";
    TIER_FLUSH = 0x822b, "tier-flush";
    TIER_EVICT = 0x822c, "tier-evict";
    GETXATTR = 0x1301, "getxattr";
    GETXATTRS = 0x1302, "getxattrs";
    CMPXATTR = 0x1303, "cmpxattr";
    SETXATTR = 0x2301, "setxattr";
    SETXATTRS = 0x2302, "setxattrs";
    RESETXATTRS = 0x2303, "resetxattrs";
    RMXATTR = 0x2304, "rmxattr";
    CALL = 0x1401, "call";
    PGLS = 0x1501, "pgls";
    PGLS_FILTER = 0x1502, "pgls-filter";
    PG_HITSET_LS = 0x1503, "pg-hitset-ls";
    PG_HITSET_GET = 0x1504, "pg-hitset-get";
    PGNLS = 0x1505, "pgnls";
    PGNLS_FILTER = 0x1506, "pgnls-filter";
    SCRUBLS = 0x1507, "scrubls";
}

impl OpCode {
    const MODE_READ: u16 = 0x1000;
    const MODE_WRITE: u16 = 0x2000;
    const MODE_CACHE: u16 = 0x8000;
    const TYPE: u16 = 0x0f00;

    /// Whether it reads. `call` says so in its bits, but it depends on the method.
    pub fn is_read(self) -> bool {
        self.0 & Self::MODE_READ != 0 && self != Self::CALL
    }

    /// Whether it writes. `call` may as well, depending on the method.
    pub fn is_write(self) -> bool {
        self.0 & Self::MODE_WRITE != 0
    }

    /// Whether it manages a cache tier.
    pub fn is_cache(self) -> bool {
        self.0 & Self::MODE_CACHE != 0
    }

    /// Whether it works on an object's data or omap.
    pub fn is_data(self) -> bool {
        self.0 & Self::TYPE == 0x0200
    }

    /// Whether it works on extended attributes.
    pub fn is_attr(self) -> bool {
        self.0 & Self::TYPE == 0x0300
    }

    /// Whether it runs an object class.
    pub fn is_exec(self) -> bool {
        self.0 & Self::TYPE == 0x0400
    }

    /// Whether it works on a placement group and has no object.
    pub fn is_pg(self) -> bool {
        self.0 & Self::TYPE == 0x0500
    }

    /// Whether its arguments are an extent (offset, length, truncate size and sequence).
    pub fn uses_extent(self) -> bool {
        matches!(
            self,
            Self::READ
                | Self::MAPEXT
                | Self::MASKTRUNC
                | Self::SPARSE_READ
                | Self::SYNC_READ
                | Self::WRITE
                | Self::WRITEFULL
                | Self::TRUNCATE
                | Self::ZERO
                | Self::APPEND
                | Self::TRIMTRUNC
                | Self::CMPEXT
        )
    }
}

impl fmt::Display for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Debug for OpCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(0x{:04x})", self.name(), self.0)
    }
}

macro_rules! flag_set {
    ($(#[$doc:meta])* $set:ident, $prefix:literal: $($name:ident = $bit:literal, $text:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Denc)]
        pub struct $set(pub u32);

        impl $set {
            $(
                #[doc = concat!("`", $prefix, stringify!($name), "`.")]
                pub const $name: $set = $set($bit);
            )*

            /// Whether every flag of `other` is set.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any flag of `other` is set.
            pub const fn any(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }
        }

        impl std::ops::BitOr for $set {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                $set(self.0 | other.0)
            }
        }
        impl std::ops::BitOrAssign for $set {
            fn bitor_assign(&mut self, other: Self) {
                self.0 |= other.0;
            }
        }
        impl std::ops::BitAnd for $set {
            type Output = Self;
            fn bitand(self, other: Self) -> Self {
                $set(self.0 & other.0)
            }
        }
        impl std::ops::Not for $set {
            type Output = Self;
            fn not(self) -> Self {
                $set(!self.0)
            }
        }
        impl fmt::Display for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                if self.0 == 0 {
                    return f.write_str("-");
                }
                let mut plus = "";
                for bit in (0..32).map(|i| 1u32 << i).filter(|bit| self.0 & bit != 0) {
                    let name = match bit {
                        $($bit => $text,)*
                        _ => "???",
                    };
                    write!(f, "{plus}{name}")?;
                    plus = "+";
                }
                Ok(())
            }
        }
    };
}

flag_set! {
    /// Flags of a whole request (Ceph: `CEPH_OSD_FLAG_*`).
    OsdFlags, "CEPH_OSD_FLAG_":
    ACK = 0x1, "ack";
    ONNVRAM = 0x2, "onnvram";
    ONDISK = 0x4, "ondisk";
    RETRY = 0x8, "retry";
    READ = 0x10, "read";
    WRITE = 0x20, "write";
    ORDERSNAP = 0x40, "ordersnap";
    PEERSTAT_OLD = 0x80, "peerstat_old";
    BALANCE_READS = 0x100, "balance_reads";
    PARALLELEXEC = 0x200, "parallelexec";
    PGOP = 0x400, "pgop";
    EXEC = 0x800, "exec";
    EXEC_PUBLIC = 0x1000, "exec_public";
    LOCALIZE_READS = 0x2000, "localize_reads";
    RWORDERED = 0x4000, "rwordered";
    IGNORE_CACHE = 0x8000, "ignore_cache";
    SKIPRWLOCKS = 0x10000, "skiprwlocks";
    IGNORE_OVERLAY = 0x20000, "ignore_overlay";
    FLUSH = 0x40000, "flush";
    MAP_SNAP_CLONE = 0x80000, "map_snap_clone";
    ENFORCE_SNAPC = 0x100000, "enforce_snapc";
    REDIRECTED = 0x200000, "redirected";
    KNOWN_REDIR = 0x400000, "known_if_redirected";
    FULL_TRY = 0x800000, "full_try";
    FULL_FORCE = 0x1000000, "full_force";
    IGNORE_REDIRECT = 0x2000000, "ignore_redirect";
    RETURNVEC = 0x4000000, "returnvec";
}

flag_set! {
    /// Flags of one operation (Ceph: `CEPH_OSD_OP_FLAG_*`).
    OpFlags, "CEPH_OSD_OP_FLAG_":
    EXCL = 0x1, "excl";
    FAILOK = 0x2, "failok";
    FADVISE_RANDOM = 0x4, "fadvise_random";
    FADVISE_SEQUENTIAL = 0x8, "fadvise_sequential";
    FADVISE_WILLNEED = 0x10, "favise_willneed";
    FADVISE_DONTNEED = 0x20, "fadvise_dontneed";
    FADVISE_NOCACHE = 0x40, "fadvise_nocache";
    WITH_REFERENCE = 0x80, "with_reference";
    BYPASS_CLEAN_CACHE = 0x100, "bypass_clean_cache";
}

/// Comparison of `cmpxattr` and `omap-cmp` (Ceph: `CEPH_OSD_CMPXATTR_OP_*`).
pub mod cmpxattr_op {
    /// Equal.
    pub const EQ: u8 = 1;
    /// Not equal.
    pub const NE: u8 = 2;
    /// Greater.
    pub const GT: u8 = 3;
    /// Greater or equal.
    pub const GTE: u8 = 4;
    /// Less.
    pub const LT: u8 = 5;
    /// Less or equal.
    pub const LTE: u8 = 6;
}

/// How `cmpxattr` reads its operands (Ceph: `CEPH_OSD_CMPXATTR_MODE_*`).
pub mod cmpxattr_mode {
    /// As bytes.
    pub const STRING: u8 = 1;
    /// As a number; the attribute holds it in decimal digits.
    pub const U64: u8 = 2;
}

/// Flags of `copy-from` (Ceph: `CEPH_OSD_COPY_FROM_FLAG_*`).
pub mod copy_from {
    /// Part of a flush.
    pub const FLUSH: u8 = 1;
    /// Ignore the pool's overlay.
    pub const IGNORE_OVERLAY: u8 = 2;
    /// Ignore cache logic.
    pub const IGNORE_CACHE: u8 = 4;
    /// The snapshot is a clone's own number.
    pub const MAP_SNAP_CLONE: u8 = 8;
    /// Ordered with writes.
    pub const RWORDERED: u8 = 16;
    /// Use the truncate sequence and size given (`copy-from2`).
    pub const TRUNCATE_SEQ: u8 = 32;
    /// All of them.
    pub const ALL: u8 = 63;
}

/// What `watch` does (Ceph: `CEPH_OSD_WATCH_OP_*`).
pub mod watch_op {
    /// End a watch.
    pub const UNWATCH: u8 = 0;
    /// Begin a watch in the old way.
    pub const LEGACY_WATCH: u8 = 1;
    /// Begin a watch.
    pub const WATCH: u8 = 3;
    /// Take up a watch again.
    pub const RECONNECT: u8 = 5;
    /// Keep a watch alive.
    pub const PING: u8 = 7;
}

/// What a watcher is told (Ceph: `CEPH_WATCH_EVENT_*`, `include/ceph_fs.h`).
pub mod watch_event {
    /// A notification.
    pub const NOTIFY: u8 = 1;
    /// The notification of the receiver is complete.
    pub const NOTIFY_COMPLETE: u8 = 2;
    /// The watch is gone.
    pub const DISCONNECT: u8 = 3;
}

/// Checksum of the `checksum` operation (Ceph: `CEPH_OSD_CHECKSUM_OP_TYPE_*`).
pub mod checksum_type {
    /// xxHash, 32 bits.
    pub const XXHASH32: u8 = 0;
    /// xxHash, 64 bits.
    pub const XXHASH64: u8 = 1;
    /// CRC-32C.
    pub const CRC32C: u8 = 2;
}

/// How an object will be used (Ceph: `CEPH_OSD_ALLOC_HINT_FLAG_*`).
pub mod alloc_hint {
    /// Sequential write.
    pub const SEQUENTIAL_WRITE: u32 = 1;
    /// Random write.
    pub const RANDOM_WRITE: u32 = 2;
    /// Sequential read.
    pub const SEQUENTIAL_READ: u32 = 4;
    /// Random read.
    pub const RANDOM_READ: u32 = 8;
    /// Append only.
    pub const APPEND_ONLY: u32 = 16;
    /// Immutable.
    pub const IMMUTABLE: u32 = 32;
    /// Shortlived.
    pub const SHORTLIVED: u32 = 64;
    /// Longlived.
    pub const LONGLIVED: u32 = 128;
    /// Compressible.
    pub const COMPRESSIBLE: u32 = 256;
    /// Incompressible.
    pub const INCOMPRESSIBLE: u32 = 512;
}

/// What a backoff message says (Ceph: `CEPH_OSD_BACKOFF_OP_*`).
pub mod backoff_op {
    /// Stop sending to a range of objects.
    pub const BLOCK: u8 = 1;
    /// Stopped.
    pub const ACK_BLOCK: u8 = 2;
    /// Go on.
    pub const UNBLOCK: u8 = 3;
}

/// Pool operations that clients ask of monitors (Ceph: `POOL_OP_*`, `include/ceph_fs.h`).
pub mod pool_op {
    /// Create a pool.
    pub const CREATE: u32 = 0x01;
    /// Delete a pool.
    pub const DELETE: u32 = 0x02;
    /// Change the owner; obsolete.
    pub const AUID_CHANGE: u32 = 0x03;
    /// Create a snapshot of the pool.
    pub const CREATE_SNAP: u32 = 0x11;
    /// Delete a snapshot of the pool.
    pub const DELETE_SNAP: u32 = 0x12;
    /// Allocate a snapshot number.
    pub const CREATE_UNMANAGED_SNAP: u32 = 0x21;
    /// Delete a snapshot number.
    pub const DELETE_UNMANAGED_SNAP: u32 = 0x22;
}

/// Flags of the whole OSD map (Ceph: `CEPH_OSDMAP_*`).
pub mod osdmap_flag {
    /// Nearfull.
    pub const NEARFULL: u32 = 1 << 0;
    /// Full.
    pub const FULL: u32 = 1 << 1;
    /// Pauserd.
    pub const PAUSERD: u32 = 1 << 2;
    /// Pausewr.
    pub const PAUSEWR: u32 = 1 << 3;
    /// Pauserec.
    pub const PAUSEREC: u32 = 1 << 4;
    /// Noup.
    pub const NOUP: u32 = 1 << 5;
    /// Nodown.
    pub const NODOWN: u32 = 1 << 6;
    /// Noout.
    pub const NOOUT: u32 = 1 << 7;
    /// Noin.
    pub const NOIN: u32 = 1 << 8;
    /// Nobackfill.
    pub const NOBACKFILL: u32 = 1 << 9;
    /// Norecover.
    pub const NORECOVER: u32 = 1 << 10;
    /// Noscrub.
    pub const NOSCRUB: u32 = 1 << 11;
    /// Nodeep scrub.
    pub const NODEEP_SCRUB: u32 = 1 << 12;
    /// Notieragent.
    pub const NOTIERAGENT: u32 = 1 << 13;
    /// Norebalance.
    pub const NOREBALANCE: u32 = 1 << 14;
    /// Sortbitwise.
    pub const SORTBITWISE: u32 = 1 << 15;
    /// Require jewel.
    pub const REQUIRE_JEWEL: u32 = 1 << 16;
    /// Require kraken.
    pub const REQUIRE_KRAKEN: u32 = 1 << 17;
    /// Require luminous.
    pub const REQUIRE_LUMINOUS: u32 = 1 << 18;
    /// Recovery deletes.
    pub const RECOVERY_DELETES: u32 = 1 << 19;
    /// Purged snapdirs.
    pub const PURGED_SNAPDIRS: u32 = 1 << 20;
    /// Nosnaptrim.
    pub const NOSNAPTRIM: u32 = 1 << 21;
    /// Pglog hardlimit.
    pub const PGLOG_HARDLIMIT: u32 = 1 << 22;
}

/// State of an OSD in the map (Ceph: `CEPH_OSD_EXISTS` and so on).
pub mod osd_state {
    /// Exists.
    pub const EXISTS: u32 = 1 << 0;
    /// Up.
    pub const UP: u32 = 1 << 1;
    /// Autoout.
    pub const AUTOOUT: u32 = 1 << 2;
    /// New.
    pub const NEW: u32 = 1 << 3;
    /// Full.
    pub const FULL: u32 = 1 << 4;
    /// Nearfull.
    pub const NEARFULL: u32 = 1 << 5;
    /// Backfillfull.
    pub const BACKFILLFULL: u32 = 1 << 6;
    /// Destroyed.
    pub const DESTROYED: u32 = 1 << 7;
    /// Noup.
    pub const NOUP: u32 = 1 << 8;
    /// Nodown.
    pub const NODOWN: u32 = 1 << 9;
    /// Noin.
    pub const NOIN: u32 = 1 << 10;
    /// Noout.
    pub const NOOUT: u32 = 1 << 11;
    /// Stop.
    pub const STOP: u32 = 1 << 12;
}

/// Weight of an OSD that is in (Ceph: `CEPH_OSD_IN`): 1.0 in fixed point.
pub const OSD_IN: u32 = 0x10000;
/// Weight of an OSD that is out.
pub const OSD_OUT: u32 = 0;
/// Primary affinity unless set otherwise, and the largest: 1.0 in fixed point.
pub const OSD_PRIMARY_AFFINITY_MAX: u32 = 0x10000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_say_what_they_do() {
        assert_eq!(OpCode::READ.0, 0x1201);
        assert_eq!(OpCode::CALL.0, 0x1401);
        assert!(OpCode::READ.is_read() && !OpCode::READ.is_write());
        assert!(!OpCode::CALL.is_read() && OpCode::CALL.is_exec());
        assert!(OpCode::PGNLS.is_pg() && OpCode::SETXATTR.is_attr() && OpCode::SETXATTR.is_write());
        assert!(OpCode::TMAPUP.is_read() && OpCode::TMAPUP.is_write());
        assert_eq!(OpCode(1).name(), "???");
    }

    #[test]
    fn flags_show_their_names() {
        let flags = OsdFlags::WRITE | OsdFlags::ONDISK | OsdFlags::KNOWN_REDIR;
        assert_eq!(flags.to_string(), "ondisk+write+known_if_redirected");
        assert_eq!(OpFlags::default().to_string(), "-");
        assert!(flags.has(OsdFlags::WRITE) && !flags.any(OsdFlags::READ | OsdFlags::ACK));
    }
}
