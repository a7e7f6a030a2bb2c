//! Capabilities and keyrings as text.
#![no_main]

use auth::Keyring;
use auth::caps::{MdsCap, MgrCap, MonCap, OsdCap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = text.parse::<MonCap>();
    let _ = text.parse::<OsdCap>();
    let _ = text.parse::<MgrCap>();
    let _ = text.parse::<MdsCap>();
    let _ = text.parse::<Keyring>();
});
