//! Feature bits (Ceph: `include/ceph_features.h`, as of 20.2).
//!
//! Bits were reused over the years. Each constant here is the *mask* (Ceph: `CEPH_FEATUREMASK_*`):
//! the bit itself and the marker of its incarnation, so that `features.has(SERVER_NAUTILUS)` is
//! false for an ancient peer that sets the same bit with its old meaning.

use denc::Features;

/// Marker of a bit's second use: the peer is Jewel or later.
const SECOND: u64 = 1 << 57;
/// Marker of a bit's third use: the peer is Mimic or later.
const THIRD: u64 = 1 << 57 | 1 << 28;

macro_rules! features {
    ($($name:ident = $bit:literal $(with $marker:ident)?;)*) => {
        $(
            #[doc = concat!("`CEPH_FEATUREMASK_", stringify!($name), "`.")]
            pub const $name: u64 = 1 << $bit $(| $marker)?;
        )*
        /// Every feature by bit and name.
        pub const NAMES: &[(u32, &str)] = &[$(($bit, stringify!($name))),*];
    };
}

features! {
    UID = 0;
    NOSRCADDR = 1;
    SERVER_NAUTILUS = 2 with THIRD;
    FLOCK = 3;
    SUBSCRIBE2 = 4;
    MONNAMES = 5;
    RECONNECT_SEQ = 6;
    DIRLAYOUTHASH = 7;
    OBJECTLOCATOR = 8;
    PGID64 = 9;
    INCSUBOSDMAP = 10;
    PGPOOL3 = 11;
    OSDREPLYMUX = 12;
    OSDENC = 13;
    SERVER_KRAKEN = 14 with SECOND;
    MONENC = 15;
    SERVER_OCTOPUS = 16 with THIRD;
    OSD_REPOP_MLCOD = 16 with THIRD;
    OS_PERF_STAT_NS = 17 with THIRD;
    CRUSH_TUNABLES = 18;
    OSD_PGLOG_HARDLIMIT = 19 with SECOND;
    SERVER_PACIFIC = 20 with THIRD;
    SERVER_LUMINOUS = 21 with SECOND;
    RESEND_ON_SPLIT = 21 with SECOND;
    RADOS_BACKOFF = 21 with SECOND;
    OSDMAP_PG_UPMAP = 21 with SECOND;
    CRUSH_CHOOSE_ARGS = 21 with SECOND;
    OSD_FIXED_COLLECTION_LIST = 22 with SECOND;
    MSG_AUTH = 23;
    RECOVERY_RESERVATION_2 = 24 with SECOND;
    CRUSH_TUNABLES2 = 25;
    CREATEPOOLID = 26;
    REPLY_CREATE_INODE = 27;
    SERVER_MIMIC = 28 with SECOND;
    MDSENC = 29;
    OSDHASHPSPOOL = 30;
    SERVER_REEF = 31 with THIRD;
    STRETCH_MODE = 32 with THIRD;
    SERVER_QUINCY = 33 with THIRD;
    RANGE_BLOCKLIST = 34 with THIRD;
    OSD_CACHEPOOL = 35;
    CRUSH_V2 = 36;
    EXPORT_PEER = 37;
    CRUSH_MSR = 38 with SECOND;
    OSDMAP_ENC = 39;
    MDS_INLINE_DATA = 40;
    CRUSH_TUNABLES3 = 41;
    OSD_PRIMARY_AFFINITY = 41;
    MSGR_KEEPALIVE2 = 42;
    OSD_POOLRESEND = 43;
    NVMEOFHA = 44 with SECOND;
    OSD_FADVISE_FLAGS = 46;
    MDS_QUOTA = 47;
    CRUSH_V4 = 48;
    SERVER_SQUID = 49 with SECOND;
    SERVER_TENTACLE = 50 with SECOND;
    NEW_OSDOP_ENCODING = 56;
    MON_STATEFUL_SUB = 57;
    SERVER_JEWEL = 57;
    CRUSH_TUNABLES5 = 58;
    NEW_OSDOPREPLY_ENCODING = 58;
    FS_FILE_LAYOUT_V2 = 58;
    FS_BTIME = 59;
    FS_CHANGE_ATTR = 59;
    MSG_ADDR2 = 59;
    OSD_RECOVERY_DELETES = 60;
    CEPHX_V2 = 61;
}

/// What 16.2.15 (Pacific) advertises.
pub const PACIFIC: Features = Features(0x3f01_cfbd_fffd_ffff);
/// What 18.2 (Reef) advertises.
pub const REEF: Features = Features(0x3f01_cfbf_fffd_ffff);
/// What 19.2 (Squid) advertises and we encode: without the CRUSH and gateway features that only new
/// kinds of maps need.
pub const SQUID: Features = Features(REEF.0 | SERVER_SQUID);

/// What our own daemons advertise.
pub const SUPPORTED: Features = SQUID;

/// Features that change how an OSD map is encoded (Ceph: `OSDMap::SIGNIFICANT_FEATURES`). Two peers
/// that agree on these can share the same bytes.
pub const OSDMAP_SIGNIFICANT: u64 = PGID64
    | PGPOOL3
    | OSDENC
    | OSDMAP_ENC
    | OSD_POOLRESEND
    | NEW_OSDOP_ENCODING
    | MSG_ADDR2
    | CRUSH_TUNABLES5
    | CRUSH_CHOOSE_ARGS
    | SERVER_LUMINOUS
    | SERVER_MIMIC
    | SERVER_NAUTILUS
    | SERVER_OCTOPUS
    | SERVER_SQUID;

/// The part of a peer's features that decides the encoding of an OSD map.
pub fn significant(features: Features) -> Features {
    Features(features.0 & OSDMAP_SIGNIFICANT)
}

/// The newest release of whose client features a peer has all (Ceph: `ceph_release_from_features`).
/// The first release is named of those that look alike.
pub fn client_release(features: Features) -> &'static str {
    const STEPS: [(&str, u64); 7] = [
        ("bobtail", CRUSH_TUNABLES2 | OSDHASHPSPOOL),
        ("firefly", CRUSH_TUNABLES3 | OSD_PRIMARY_AFFINITY | OSD_CACHEPOOL),
        ("hammer", CRUSH_V4),
        ("jewel", CRUSH_TUNABLES5),
        ("kraken", MSG_ADDR2),
        ("luminous", CRUSH_CHOOSE_ARGS),
        ("squid", CRUSH_MSR),
    ];
    let mut release = "argonaut";
    for (name, needed) in STEPS {
        if !features.has(needed) {
            break;
        }
        release = name;
    }
    release
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_their_features() {
        for older in
            [SERVER_LUMINOUS, SERVER_MIMIC, SERVER_NAUTILUS, SERVER_OCTOPUS, SERVER_PACIFIC]
        {
            assert!(PACIFIC.has(older));
        }
        assert!(!PACIFIC.has(SERVER_QUINCY) && REEF.has(SERVER_QUINCY) && REEF.has(SERVER_REEF));
        assert!(!REEF.has(SERVER_SQUID) && SQUID.has(SERVER_SQUID) && !SQUID.has(SERVER_TENTACLE));
        assert_eq!(client_release(PACIFIC), "luminous");
        assert_eq!(client_release(Features(0)), "argonaut");
    }

    #[test]
    fn an_ancient_bit_is_not_taken_for_a_new_one() {
        assert!(!Features(1 << 2).has(SERVER_NAUTILUS));
        assert!(!Features(1 << 2 | 1 << 57).has(SERVER_NAUTILUS));
    }

    #[test]
    fn pacific_is_the_sum_of_its_features() {
        let new = [
            "SERVER_REEF",
            "SERVER_QUINCY",
            "CRUSH_MSR",
            "NVMEOFHA",
            "SERVER_SQUID",
            "SERVER_TENTACLE",
        ];
        // Bit 17 is known but not advertised; bit 31 was still advertised with its first meaning.
        let sum = NAMES
            .iter()
            .filter(|(bit, name)| !new.contains(name) && *bit != 17)
            .fold(1u64 << 31, |sum, (bit, _)| sum | 1 << bit);
        assert_eq!(PACIFIC.0, sum);
    }
}
