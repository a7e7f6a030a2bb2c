/// Of a ceiling, the part in thousandths that is divided evenly whatever is asked for: those who were not
/// asked for anything yet can begin with it.
const EVEN: u64 = 50;

/// Divides a ceiling over members in proportion to what each is asked for. The parts never add up to more
/// than `total`, and to less only by rounding. Without demand they are even.
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
