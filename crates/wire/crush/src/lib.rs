//! CRUSH: the placement function, bit-exact with Ceph's.
//!
//! A [`CrushMap`] is a forest of weighted buckets over devices, and rules that walk it. Clients and
//! daemons compute where data lives from it, each on its own, so every number here must come out
//! exactly as in Ceph's implementation (`src/crush`, release 16.2), its oddities included.
//!
//! * [`CrushMap`], [`Bucket`], [`Rule`], [`Tunables`], [`ChooseArgs`]: the data, with Ceph's binary
//!   form.
//! * [`CrushMap::do_rule`]: the mapper, with a [`Workspace`] that bounds its effort.
//! * `build`, `classes`, `rules`: what a monitor does to a map.
//! * `dump`, [`tree`]: the JSON and text views of the command line.
//! * [`CrushMap::validate`]: what a map from outside must satisfy before a cluster uses it.

#![forbid(unsafe_code)]

mod bucket;
mod build;
mod classes;
mod dump;
mod encode;
mod error;
pub mod hash;
mod ln;
mod map;
mod mapper;
mod names;
mod rules;
mod shifts;
pub mod tree;
mod validate;
mod weights;

pub use bucket::{Algorithm, Body, Bucket};
pub use dump::float;
pub use error::CrushError;
pub use map::{
    ChooseArg, ChooseArgs, CrushMap, DEFAULT_CHOOSE_ARGS, MAX_DEPTH, MAX_RULES, Rule, Step,
    Tunables, op,
};
pub use mapper::{ITEM_NONE, ITEM_UNDEF, Workspace, is_out};
pub use names::{Names, is_valid_name};
pub use rules::{Domains, RuleMode};
pub use shifts::Shifts;
