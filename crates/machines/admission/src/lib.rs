//! Admission: which requests and which background work an OSD does next, and what is kept of why.
//!
//! There is no clock and no I/O here: `now` is an argument, and so are the device's counters and
//! the processor's time. What must be known of a request stands in [`Request`].
//!
//! * [`request`]: the seam to requests; [`work`]: what is scheduled, and the [`Queue`] that orders
//!   it; [`plain`]: requests without a client, for simulations.
//! * [`scheduler`]: one of the schedulers of [`qos`], behind [`ceilings`] (limits of images),
//!   [`tenants`] (what tenants are promised; [`owners`] finds the owner of an object) and [`front`]
//!   (background work that clients hold back); [`costs`]: what operations cost, and what there is
//!   for all;
//!   [`classes`]: what classes of operations get; [`ignored`]: settings that do not hold.
//! * [`limited`]: this OSD's part of limits; [`asked`]: when the manager is told what is asked for;
//!   [`news`]: when it is told at once.
//! * [`legs`]: where the time of operations goes; [`waits`]: how long they wait.
//! * [`meter`]: what operations cost here, and what the OSD can do, as it is learned.

#![forbid(unsafe_code)]
// Tests begin at some moment; from there on, they say what time it is.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod asked;
pub mod ceilings;
pub mod classes;
pub mod costs;
pub mod front;
#[cfg(test)]
mod front_test;
pub mod ignored;
pub mod legs;
pub mod limited;
pub mod meter;
pub mod news;
pub mod owners;
pub mod plain;
pub mod request;
pub mod scheduler;
#[cfg(test)]
mod seen_test;
pub mod tenants;
#[cfg(test)]
mod tenants_test;
pub mod waits;
pub mod work;

pub use request::{Held, Payer, Request, Tags};
pub use scheduler::OsdQueue;
pub use work::{Next, Queue, Work};
