//! What this monitor says it is. Tools compare releases by these words.

/// The release whose protocol is spoken.
pub const RELEASE: &str = "squid";

/// For example `19.2.0`.
pub fn short() -> String {
    "19.2.0-siphon".into()
}

/// For example `ceph version 19.2.0-siphon (siphon 0.1.0) squid (stable)`.
pub fn long() -> String {
    format!("ceph version {} (siphon {}) {RELEASE} (stable)", short(), env!("CARGO_PKG_VERSION"))
}
