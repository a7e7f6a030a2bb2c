//! CRUSH: the placement function, bit-exact with Ceph's.
