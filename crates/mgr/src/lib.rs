//! The manager endpoint: statistics and the commands that read them.
