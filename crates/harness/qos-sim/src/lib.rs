//! What tenants are promised, over a whole cluster, in virtual time.
//!
//! The manager's coordinator ([`promises::Tenants`]) and the OSDs' schedulers
//! ([`admission::OsdQueue`]) are the ones of the daemons, and so are the messages between
//! them, encoded and decoded. Devices, clients, connections and clocks are modelled; everything
//! follows from a seed.
//!
//! * [`scenario`]: how large, how long, what goes wrong, and what each tenant wants;
//! * `world`: the events of OSDs and the manager;
//! * [`streams`]: clients that ask for so much each second, whatever they get;
//! * [`steady`]: clients that always have as much under way, and what they got;
//! * [`skewed`]: the same with objects that lie unevenly, and what each keeps of what it has alone;
//! * [`fair`]: what every tenant should get, worked out without schedulers;
//! * [`report`]: what every tenant got.
//!
//! `cargo run --release -p qos-sim -- --help`

#![forbid(unsafe_code)]

pub mod fair;
pub mod random;
pub mod report;
pub mod scenario;
pub mod skewed;
pub mod steady;
pub mod streams;
mod world;

pub use report::Report;
pub use scenario::Scenario;
pub use streams::run;
