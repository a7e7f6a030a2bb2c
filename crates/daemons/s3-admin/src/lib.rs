//! The admin operations API of Ceph's gateway over the records of RGW's layout: users, keys,
//! capabilities, quotas, buckets, usage. Requests and answers are those of 16.2's `radosgw`
//! ([0034](../../../../docs/decisions/0034-admin-operations.md)).
//!
//! * `params`, `refusal`: what is asked, and why not.
//! * `caps`, `keys`, `quota`, `account`: pure changes of records.
//! * `show`: records as JSON.
//! * `users`, `buckets`, `usage`, `api`: requests that read and write records.

#![forbid(unsafe_code)]

mod account;
mod api;
mod buckets;
mod caps;
mod keys;
mod params;
mod quota;
mod refusal;
mod show;
pub mod table;
mod usage;
mod users;

pub use api::AdminApi;
