//! Every message of the protocol, client-facing and our own.
