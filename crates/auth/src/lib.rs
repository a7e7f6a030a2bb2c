//! cephx, keyrings and the capability grammar, without I/O.
