//! A record by its name, as `siphon dencode` reads it. The text of what was read does not fail, and
//! what is written is read again.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use types::dencode::TYPES;

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (number, bytes) = input;
    let kind = &TYPES[usize::from(number) % TYPES.len()];
    let Ok(value) = kind.decode(&Bytes::from(bytes)) else {
        return;
    };
    value.to_json();
    let again = value.encode_for(denc::Features::ALL);
    assert!(kind.decode(&again).is_ok(), "{} does not read what it wrote", kind.name);
});
