//! A placement group as a pure state machine.
