//! Messenger v2.1: a connection state machine without I/O, and a thin transport over it.
