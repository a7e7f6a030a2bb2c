//! Restriction of a grant to a network.

use std::fmt;
use std::net::IpAddr;

/// `10.0.0.0/8`. A text that is no network matches no address, as in Ceph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    text: String,
    parsed: Option<(IpAddr, u32)>,
}

impl Network {
    /// Of the text in the grant.
    pub fn new(text: String) -> Self {
        let parsed = text
            .split_once('/')
            .and_then(|(addr, bits)| Some((addr.parse().ok()?, bits.parse().ok()?)));
        Network { text, parsed }
    }

    /// Whether `addr` is in it. `None`, an address that is not known, is in no network.
    pub fn contains(&self, addr: Option<IpAddr>) -> bool {
        match (self.parsed, addr) {
            (Some((IpAddr::V4(net), bits)), Some(IpAddr::V4(addr))) => {
                let mask = u32::MAX.checked_shl(32u32.saturating_sub(bits)).unwrap_or(0);
                net.to_bits() & mask == addr.to_bits() & mask
            }
            (Some((IpAddr::V6(net), bits)), Some(IpAddr::V6(addr))) => {
                let mask = u128::MAX.checked_shl(128u32.saturating_sub(bits)).unwrap_or(0);
                net.to_bits() & mask == addr.to_bits() & mask
            }
            _ => false,
        }
    }

    /// Whether a grant with or without a network applies to `addr`.
    pub(super) fn admits(network: &Option<Network>, addr: Option<IpAddr>) -> bool {
        network.as_ref().is_none_or(|n| n.contains(addr))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn membership() {
        let inside = |net: &str, addr: &str| Network::new(net.into()).contains(addr.parse().ok());
        assert!(inside("10.1.0.0/16", "10.1.200.3"));
        assert!(!inside("10.1.0.0/16", "10.2.0.1"));
        assert!(inside("0.0.0.0/0", "1.2.3.4"));
        assert!(inside("1.2.3.4/99", "1.2.3.4"));
        assert!(inside("fe80::/10", "fe80::1"));
        assert!(!inside("0.0.0.0/0", "::1"));
        for bad in ["10.0.0.0", "10.0.0.0/", "10.0.0.0/x", "/8", "[::]/0", "10.0.0.0/-1"] {
            assert!(!inside(bad, "10.0.0.0"), "{bad}");
        }
    }
}
