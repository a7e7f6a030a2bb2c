//! A message of any type and version from a peer: understood or refused.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use messages::AnyMessage;
use types::message::Message;

fuzz_target!(|input: (u8, u16, u8, u8, Vec<u8>, Vec<u8>, Vec<u8>)| {
    let (number, other, version, compat, front, middle, data) = input;
    let known = AnyMessage::TYPES;
    let kind = known.get(usize::from(number)).map_or(other, |(kind, _)| *kind);
    let mut m = Message::new(kind, Bytes::from(front));
    m.version = version.into();
    m.compat_version = compat.into();
    m.middle = Bytes::from(middle);
    m.data =
        if data.is_empty() { Vec::new() } else { vec![Bytes::from(data)] }.into_iter().collect();
    let _ = AnyMessage::decode(&m);
});
