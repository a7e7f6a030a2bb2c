//! Address ranges of conditions (`192.0.2.0/24`).

use std::net::IpAddr;

/// A range in CIDR form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    address: IpAddr,
    bits: u32,
}

impl Cidr {
    pub(crate) fn parse(text: &str) -> Option<Cidr> {
        let (address, bits) = match text.split_once('/') {
            Some((a, b)) => (a.parse::<IpAddr>().ok()?, Some(b.parse::<u32>().ok()?)),
            None => (text.parse::<IpAddr>().ok()?, None),
        };
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(width);
        (bits <= width).then_some(Cidr { address, bits })
    }

    pub(crate) fn contains(&self, other: IpAddr) -> bool {
        let (a, b, width) = match (self.address, canonical(other)) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (u128::from(u32::from(a)), u128::from(u32::from(b)), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
            _ => return false,
        };
        let shift = width - self.bits;
        shift == 128 || a >> shift == b >> shift
    }
}

/// An IPv4 address that arrives on an IPv6 socket is the IPv4 address.
fn canonical(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges() {
        let in_range = |r: &str, a: &str| Cidr::parse(r).unwrap().contains(a.parse().unwrap());
        assert!(in_range("192.0.2.0/24", "192.0.2.200"));
        assert!(!in_range("192.0.2.0/24", "192.0.3.1"));
        assert!(in_range("0.0.0.0/0", "8.8.8.8"));
        assert!(in_range("::/0", "2001:db8::1"));
        assert!(in_range("192.0.2.1", "::ffff:192.0.2.1"));
        assert!(!in_range("::/0", "192.0.2.1"));
        for bad in ["", "192.0.2.0/33", "x/8", "1.2.3"] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
    }
}
