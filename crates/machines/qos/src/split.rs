/// Of a ceiling, the part in thousandths that is divided evenly whatever is asked for: members
/// without demand can begin with it.
const EVEN: u64 = 50;
/// Of a ceiling that several divide, so many thousandths are given to none. Each of them lets whole
/// operations begin, and one that waited for a moment ends in the second after: a second has a few
/// more than its part then, and must not go beyond the ceiling.
const SPARED: u64 = 10;

/// Divides a ceiling over members in proportion to what each is asked for. The parts never add up
/// to more than `total`, and to less only by rounding. Without demand they are even.
pub fn split(total: u64, demand: &[u64]) -> Vec<u64> {
    let members = demand.len() as u128;
    let asked: u128 = demand.iter().map(|d| u128::from(*d)).sum();
    let whole = u128::from(total);
    let even = if asked == 0 { whole } else { whole * u128::from(EVEN) / 1000 };
    let rest = whole - even;
    let part = |d: u64| {
        let by_demand = (rest * u128::from(d)).checked_div(asked).unwrap_or(0);
        // At most the total, which is a u64.
        (even / members + by_demand) as u64
    };
    demand.iter().map(|d| part(*d)).collect()
}

/// A part of a whole, in units of 2^-32: small on the wire, and good for any rate of a tenant.
///
/// Where many places may serve a tenant and few are asked, only those are told a part. The others
/// know their standing part without being told; it is what lets them begin.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Fraction(pub u32);

impl Fraction {
    const WHOLE: u64 = 1 << 32;

    /// The part of a ceiling that each of so many members has of whom nothing is asked.
    pub fn standing(members: u32) -> Self {
        Fraction((Fraction::WHOLE * EVEN / 1000 / u64::from(members.max(1))) as u32)
    }

    /// The part of a ceiling for one of so many members that is asked for `asked` of `all`. Those
    /// of all members add up to no more than the whole, and to 99 % of it where they are several.
    pub fn of_demand(members: u32, asked: f64, all: f64) -> Self {
        let spared = if members > 1 { SPARED } else { 0 };
        let rest = Fraction::WHOLE * (1000 - EVEN - spared) / 1000;
        let by_demand = if all > 0.0 { (asked / all).clamp(0.0, 1.0) * rest as f64 } else { 0.0 };
        // Less than the whole, so it fits.
        Fraction(
            (u64::from(Fraction::standing(members).0) + by_demand as u64).min(u64::from(u32::MAX))
                as u32,
        )
    }

    /// The part of a floor that each of so many members has while it was not told another. A floor
    /// without demand takes nothing from others, so all of it is there for a member that begins.
    pub fn even(members: u32) -> Self {
        Fraction((Fraction::WHOLE / u64::from(members.max(1))).min(u64::from(u32::MAX)) as u32)
    }

    /// The part of a floor for one that is asked for `asked` of `all`: nothing is kept for those
    /// that are not asked.
    pub fn of_floor(members: u32, asked: f64, all: f64) -> Self {
        if all > 0.0 {
            Fraction(((asked / all).clamp(0.0, 1.0) * Fraction::WHOLE as f64) as u32)
        } else {
            Fraction::even(members)
        }
    }

    /// So much of a rate.
    pub fn of(self, whole: u64) -> u64 {
        ((u128::from(whole) * u128::from(self.0)) >> 32) as u64
    }

    /// Whether they are more than the whole together.
    pub fn exceed(parts: impl Iterator<Item = Fraction>) -> bool {
        parts.map(|p| u64::from(p.0)).sum::<u64>() > Fraction::WHOLE
    }

    /// Whether it differs from another by more than so many thousandths of that.
    pub fn differs(self, from: Fraction, thousandths: u64) -> bool {
        u64::from(self.0.abs_diff(from.0)) * 1000 > u64::from(from.0) * thousandths
    }
}
