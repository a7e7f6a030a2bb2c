//! Load generators for the benchmarks: clients of S3 and of file systems that measure and verify.
//!
//! * [`measure`]: latencies in HDR histograms, merged over workers, as JSON.
//! * [`pace`]: closed and open loop; an open loop measures from the intended start of a request.
//! * [`lines`]: commands as lines, so that a driver can read the servers' processor time between
//!   two pieces of work, and take turns between systems.
//! * [`s3`]: content follows from key and version, and every body is compared.
//! * [`fs`]: clients of a file system, several in one process.
//!
//! The programs `s3-load` and `fs-load` are driven by `bench/s3.py` and `bench/fs.py`.

#![forbid(unsafe_code)]

pub mod fs;
pub mod lines;
pub mod measure;
pub mod pace;
pub mod s3;
