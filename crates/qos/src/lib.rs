//! Scheduling of operations by class: mClock and WPQ behind one trait, without I/O.
