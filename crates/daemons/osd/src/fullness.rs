//! How full the store is, against the ratios of the map (Ceph: `OSDService::check_full_status`).

use store::StatFs;
use types::OsdMap;
use types::rados::osd_state as state;

/// A level, in rising order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fullness {
    /// There is room.
    None,
    /// Operators are warned.
    Near,
    /// No PG moves here.
    Backfill,
    /// Pools with a PG here take no more data.
    Full,
    /// This OSD takes no more data, whatever the map says.
    Failsafe,
}

impl Fullness {
    /// The level of a store. Ratios that are out of order count as the ones below them; a ratio of
    /// 0 is a mistake, and leaves the failsafe alone.
    pub fn of(space: &StatFs, map: &OsdMap, failsafe: f64) -> Fullness {
        let failsafe = failsafe_ratio(map, failsafe);
        let (near, backfill, full) = ratios(map).unwrap_or((failsafe, failsafe, failsafe));
        match used(space) {
            u if u > failsafe => Fullness::Failsafe,
            u if u > full => Fullness::Full,
            u if u > backfill => Fullness::Backfill,
            u if u > near => Fullness::Near,
            _ => Fullness::None,
        }
    }

    /// The bit of the OSD's state in the map.
    pub fn bit(self) -> u32 {
        match self {
            Fullness::None => 0,
            Fullness::Near => state::NEARFULL,
            Fullness::Backfill => state::BACKFILLFULL,
            Fullness::Full | Fullness::Failsafe => state::FULL,
        }
    }
}

/// The bits of an OSD's state that say how full it is.
pub const BITS: u32 = state::NEARFULL | state::BACKFILLFULL | state::FULL;

/// The ratios of the map in order, unless one is 0.
fn ratios(map: &OsdMap) -> Option<(f64, f64, f64)> {
    let near = f64::from(map.nearfull_ratio);
    let backfill = f64::from(map.backfillfull_ratio);
    let full = f64::from(map.full_ratio);
    let sane = near > 0.0 && backfill > 0.0 && full > 0.0;
    sane.then(|| (near, backfill.max(near), full.max(backfill).max(near)))
}

/// The used part from which the OSD itself stops writes: what the option says, but no less than the
/// ratio from which the map does.
pub fn failsafe_ratio(map: &OsdMap, option: f64) -> f64 {
    ratios(map).map_or(option, |(_, _, full)| option.max(full))
}

/// The used part above which no PG moves here.
pub fn backfillfull_ratio(map: &OsdMap, failsafe: f64) -> f64 {
    ratios(map).map_or_else(|| failsafe_ratio(map, failsafe), |(_, backfill, _)| backfill)
}

/// The part of the store that is not available. What the store keeps for its own work counts as
/// used.
pub fn used(space: &StatFs) -> f64 {
    match space.total {
        0 => 0.0,
        total => 1.0 - space.available as f64 / total as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(used: u64, near: f32, backfill: f32, full: f32) -> Fullness {
        let space = StatFs { total: 1000, available: 1000 - used, ..StatFs::default() };
        let map = OsdMap {
            nearfull_ratio: near,
            backfillfull_ratio: backfill,
            full_ratio: full,
            ..OsdMap::default()
        };
        Fullness::of(&space, &map, 0.97)
    }

    #[test]
    fn levels_rise_with_what_is_used() {
        let usual = |used| at(used, 0.85, 0.90, 0.95);
        assert_eq!([0, 840, 860, 910, 960, 980].map(usual), {
            use Fullness::*;
            [None, None, Near, Backfill, Full, Failsafe]
        });
        assert_eq!(Fullness::of(&StatFs::default(), &OsdMap::default(), 0.97), Fullness::None);
    }

    #[test]
    fn ratios_out_of_order_count_as_the_ones_below() {
        assert_eq!(at(500, 0.6, 0.4, 0.3), Fullness::None);
        assert_eq!(at(650, 0.6, 0.4, 0.3), Fullness::Full);
        assert_eq!(at(980, 0.5, 0.5, 0.99), Fullness::Backfill, "the failsafe is not below full");
        assert_eq!(at(900, 0.0, 0.9, 0.95), Fullness::None);
        assert_eq!(at(980, 0.0, 0.9, 0.95), Fullness::Failsafe);
    }
}
