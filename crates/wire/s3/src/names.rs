//! Names of buckets and keys: which are allowed.

use crate::error::{ErrorCode, Result, S3Error};

/// The longest key, in bytes of UTF-8.
pub const KEY_BYTES_MAX: usize = 1024;

/// How strict bucket names are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketRules {
    /// Amazon's rules for new buckets: 3 to 63 lower-case letters, digits, dots and hyphens.
    Strict,
    /// `rgw_relaxed_s3_bucket_names`: up to 255 characters, upper case and underscores, too.
    Relaxed,
}

/// Whether a bucket may be made with this name.
pub fn check_bucket(name: &str, rules: BucketRules) -> Result<()> {
    let refuse = |why: &str| {
        Err(S3Error::new(
            ErrorCode::InvalidBucketName,
            format!("The specified bucket is not valid: {why}"),
        )
        .with("BucketName", name))
    };
    let relaxed = rules == BucketRules::Relaxed;
    let longest = if relaxed { 255 } else { 63 };
    if name.len() < 3 || name.len() > longest {
        return refuse("3 to 63 characters were expected");
    }
    let allowed = |b: u8| {
        matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.')
            || (relaxed && matches!(b, b'A'..=b'Z' | b'_'))
    };
    if !name.bytes().all(allowed) {
        return refuse("lower-case letters, digits, '.' and '-' were expected");
    }
    if relaxed {
        return Ok(());
    }
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = name.as_bytes();
    if !edge(bytes[0]) || !edge(bytes[bytes.len() - 1]) {
        return refuse("it must begin and end with a letter or a digit");
    }
    if name.contains("..") || name.contains(".-") || name.contains("-.") {
        return refuse("labels between dots must begin and end with a letter or a digit");
    }
    if name.split('.').count() == 4 && name.split('.').all(|p| p.parse::<u8>().is_ok()) {
        return refuse("it must not look like an IP address");
    }
    Ok(())
}

/// Whether an object may have this key.
pub fn check_key(key: &str) -> Result<()> {
    if key.len() > KEY_BYTES_MAX {
        return Err(S3Error::from(ErrorCode::KeyTooLongError)
            .with("Size", key.len().to_string())
            .with("MaxSizeAllowed", KEY_BYTES_MAX.to_string()));
    }
    if key.contains('\0') {
        return Err(S3Error::argument("Key", "", "A key must not contain a zero byte"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_names() {
        for good in ["abc", "a-b.c1", "123", "a".repeat(63).as_str()] {
            check_bucket(good, BucketRules::Strict).unwrap();
        }
        for bad in ["ab", "Abc", "-ab", "ab-", "a..b", "a.-b", "192.168.5.4", "a_b", "äbc"] {
            assert!(check_bucket(bad, BucketRules::Strict).is_err(), "{bad}");
        }
        check_bucket("My_Bucket", BucketRules::Relaxed).unwrap();
        assert!(check_bucket("a/b", BucketRules::Relaxed).is_err());
    }

    #[test]
    fn keys() {
        check_key(&"k".repeat(1024)).unwrap();
        assert_eq!(check_key(&"k".repeat(1025)).unwrap_err().code, ErrorCode::KeyTooLongError);
        assert!(check_key("a\0b").is_err());
    }
}
