//! What our daemons say they are. Tools compare releases by these words.

/// The release of the protocol that is spoken.
pub const RELEASE: &str = "squid";

/// The version in Ceph's numbering, with our own mark.
pub const SHORT: &str = "19.2.0-siphon";

/// The long form: `ceph version 19.2.0-siphon (siphon 0.1.0) squid (stable)`.
pub const LONG: &str =
    concat!("ceph version 19.2.0-siphon (siphon ", env!("CARGO_PKG_VERSION"), ") squid (stable)");
