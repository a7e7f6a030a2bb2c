//! An aws-chunked body, in pieces: no more comes out than was said.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use s3::chunked::Decoder;
use s3::sig::v4::Payload;

fuzz_target!(|input: (u16, Vec<Vec<u8>>)| {
    let (said, pieces) = input;
    let mut decoder = Decoder::new(&Payload::StreamingUnsignedTrailer, None, said.into());
    let (mut input, mut out) = (Bytes::new(), 0);
    for piece in pieces {
        let mut joined = BytesMut::from(&input[..]);
        joined.extend_from_slice(&piece);
        input = joined.freeze();
        loop {
            match decoder.next(&mut input) {
                Ok(Some(data)) => out += data.len(),
                Ok(None) => break,
                Err(_) => return,
            }
        }
        assert!(out <= usize::from(said), "{out} bytes came, {said} were said");
    }
    if decoder.is_done() && decoder.finish().is_ok() {
        assert_eq!(out, usize::from(said));
    }
});
