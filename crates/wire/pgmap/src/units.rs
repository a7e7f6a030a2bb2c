//! Numbers as Ceph shows them (`byte_u_t`, `si_u_t`: `src/include/types.h`).

/// `1.5 KiB`, `20 GiB`, `7 B`: binary multiples, at most two decimals and about five characters.
pub fn bytes(v: u64) -> String {
    scaled(v, 1024, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"])
}

/// `12.34k`, `7`: decimal multiples.
pub fn si(v: u64) -> String {
    scaled(v, 1000, &["", "k", "M", "G", "T", "P", "E"])
}

fn scaled(v: u64, base: u64, units: &[&str]) -> String {
    let (mut n, mut divisor, mut index) = (v, 1u64, 0);
    while n >= base && index + 1 < units.len() {
        n /= base;
        divisor *= base;
        index += 1;
    }
    let unit = units[index];
    if index == 0 || v.is_multiple_of(divisor) {
        return format!("{n}{unit}");
    }
    // As many decimals as fit into seven characters with the unit.
    let value = v as f64 / divisor as f64;
    for decimals in [2, 1] {
        let text = format!("{value:.decimals$}{unit}");
        if text.len() <= 7 {
            return text;
        }
    }
    format!("{value:.0}{unit}")
}

/// `12.34`, `0`: percentages in `ceph df` (`percentify`).
pub fn percent(v: f64) -> String {
    if v < 0.01 { "0".into() } else { format!("{v:.2}") }
}

/// `0.85`, `0`, `-`: two decimals (`lowprecision_t`).
pub fn low_precision(v: f64) -> String {
    if v < -0.01 {
        "-".into()
    } else if v < 0.001 {
        "0".into()
    } else {
        format!("{v:.2}")
    }
}

/// `0.01959`: weights (`weightf_t`).
pub fn weight(v: f64) -> String {
    if v < -0.01 {
        "-".into()
    } else if v < 0.000001 {
        "0".into()
    } else {
        format!("{v:.5}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_like_ceph() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1 KiB");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(60 << 30), "60 GiB");
        assert_eq!(bytes((59 << 30) + (1 << 28)), "59 GiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(si(12_345), "12.35k");
        assert_eq!(si(999), "999");
        assert_eq!(si(2_000_000), "2M");
        assert_eq!(percent(0.001), "0");
        assert_eq!(weight(0.01953125), "0.01953");
    }
}
