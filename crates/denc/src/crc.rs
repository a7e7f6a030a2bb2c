//! CRC-32C in Ceph's convention: a plain running register, with neither initial nor final inversion.

/// Continues `crc` over `data`. Ceph's usual seed is `u32::MAX` (`-1`), frame preambles use 0.
pub fn crc32c(crc: u32, data: &[u8]) -> u32 {
    !::crc32c::crc32c_append(!crc, data)
}

#[cfg(test)]
mod tests {
    #[test]
    fn known_values() {
        // Ceph src/test/common/test_crc32c.cc, "Small".
        assert_eq!(super::crc32c(0, b"foo bar baz"), 4119623852);
        assert_eq!(super::crc32c(1234, b"foo bar baz"), 881700046);
    }
}
