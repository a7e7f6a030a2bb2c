//! Releases of Ceph, as maps name them.

use denc_derive::Denc;
use std::cmp::Ordering;
use std::fmt;

/// A Ceph release by number (Ceph: `ceph_release_t`, `common/ceph_releases.h`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Denc)]
pub struct Release(pub u8);

impl Release {
    /// Nothing required.
    pub const UNKNOWN: Release = Release(0);
    /// Jewel.
    pub const JEWEL: Release = Release(10);
    /// Kraken.
    pub const KRAKEN: Release = Release(11);
    /// Luminous.
    pub const LUMINOUS: Release = Release(12);
    /// Mimic.
    pub const MIMIC: Release = Release(13);
    /// Nautilus.
    pub const NAUTILUS: Release = Release(14);
    /// Octopus.
    pub const OCTOPUS: Release = Release(15);
    /// Pacific.
    pub const PACIFIC: Release = Release(16);
    /// Quincy.
    pub const QUINCY: Release = Release(17);
    /// Reef.
    pub const REEF: Release = Release(18);
    /// Squid.
    pub const SQUID: Release = Release(19);
    /// In an increment: no change.
    pub const UNCHANGED: Release = Release(0xff);

    const NAMES: [&str; 21] = [
        "unknown",
        "argonaut",
        "bobtail",
        "cuttlefish",
        "dumpling",
        "emperor",
        "firefly",
        "giant",
        "hammer",
        "infernalis",
        "jewel",
        "kraken",
        "luminous",
        "mimic",
        "nautilus",
        "octopus",
        "pacific",
        "quincy",
        "reef",
        "squid",
        "tentacle",
    ];

    /// Its name, `unknown` for numbers without one.
    pub fn name(self) -> &'static str {
        Self::NAMES.get(usize::from(self.0)).copied().unwrap_or("unknown")
    }

    /// The release with this name.
    pub fn by_name(name: &str) -> Option<Release> {
        Self::NAMES.iter().skip(1).position(|n| *n == name).map(|i| Release(i as u8 + 1))
    }

    /// Whether this is a release or "unknown" rather than "no change": numbers with the top bit set
    /// come before all others.
    pub fn is_change(self) -> bool {
        self.0 < 0x80
    }
}

impl Ord for Release {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.is_change(), self.0).cmp(&(other.is_change(), other.0))
    }
}
impl PartialOrd for Release {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_have_names() {
        assert_eq!(Release::SQUID.name(), "squid");
        assert_eq!(Release::by_name("pacific"), Some(Release::PACIFIC));
        assert_eq!(Release::by_name("unknown"), None);
        assert_eq!(Release(200).name(), "unknown");
        assert!(Release::UNCHANGED < Release::UNKNOWN, "no change comes before all others");
    }
}
