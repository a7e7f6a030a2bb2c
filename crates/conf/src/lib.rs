//! The table of options, their values and sections, and the ceph.conf file format.
