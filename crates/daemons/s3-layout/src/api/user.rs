//! Users.

use std::fmt;

/// A user's id.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserId {
    /// The tenant; empty for the default one.
    pub tenant: String,
    /// The id in the tenant.
    pub id: String,
}

impl UserId {
    /// Reads `[TENANT$]ID`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('$') {
            Some((tenant, id)) => UserId { tenant: tenant.into(), id: id.into() },
            None => UserId { tenant: String::new(), id: text.into() },
        }
    }

    /// No user: senders without a key.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }
}

/// `[TENANT$]ID`, as ACLs and documents have it.
impl fmt::Display for UserId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tenant.is_empty() {
            f.write_str(&self.id)
        } else {
            write!(f, "{}${}", self.tenant, self.id)
        }
    }
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The id.
    pub id: UserId,
    /// The name in documents.
    pub display_name: String,
    /// The email address; empty for none.
    pub email: String,
    /// Keys for S3.
    pub keys: Vec<AccessKey>,
    /// All requests are refused.
    pub suspended: bool,
    /// The most buckets; `None` for any number, 0 forbids new ones.
    pub max_buckets: Option<u32>,
    /// May everything, and administer.
    pub admin: bool,
    /// A zone's own user.
    pub system: bool,
    /// Rights of the admin operations API: what, and its mask (`users`, `*`).
    pub caps: Vec<(String, String)>,
    /// The quota of each bucket that has none of its own.
    pub bucket_quota: Quota,
    /// The quota of all buckets together.
    pub user_quota: Quota,
}

/// A key.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey {
    /// The access key.
    pub id: String,
    /// The secret key.
    pub secret: String,
    /// The subuser that it belongs to; empty for the user's own.
    pub subuser: String,
}

/// Logs must not have secrets.
impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccessKey({}, ...)", self.id)
    }
}

/// How much may be stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// It counts.
    pub enabled: bool,
    /// Bytes.
    pub max_bytes: Option<u64>,
    /// Objects.
    pub max_objects: Option<u64>,
}

/// What to change of a user; `None` leaves as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserChange {
    /// The name in documents.
    pub display_name: Option<String>,
    /// All keys.
    pub keys: Option<Vec<AccessKey>>,
    /// All requests are refused.
    pub suspended: Option<bool>,
    /// The most buckets.
    pub max_buckets: Option<Option<u32>>,
    /// The quota of each bucket.
    pub bucket_quota: Option<Quota>,
    /// The quota of all buckets together.
    pub user_quota: Option<Quota>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_secrets() {
        for text in ["u", "t$u"] {
            assert_eq!(UserId::parse(text).to_string(), text);
        }
        let key = AccessKey { id: "A".into(), secret: "geheim".into(), subuser: String::new() };
        assert!(!format!("{key:?}").contains("geheim"));
    }
}
