//! The object store on one file or block device.
