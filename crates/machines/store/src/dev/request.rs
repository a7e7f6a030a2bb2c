//! What goes to a device, and what comes back.

use aligned::AlignedBuf;
use bytes::Bytes;
use smallvec::SmallVec;
use std::io;

/// What a write consists of: slices that follow each other on the device.
pub type Gather = SmallVec<[Bytes; 2]>;

/// What a request gives back: its buffer (reads) and the outcome.
pub(super) type Outcome = (Option<AlignedBuf>, io::Result<()>);
