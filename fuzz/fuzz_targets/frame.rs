//! A stream of bytes at a messenger's socket, in pieces. A frame is announced before room is made.
#![no_main]

use bytes::BufMut;
use libfuzzer_sys::fuzz_target;
use msgr::frame::{Decoder, Progress};

/// A session refuses larger frames when it sees their lengths.
const FRAME_BYTES_MAX: usize = 1 << 20;

fuzz_target!(|pieces: Vec<Vec<u8>>| {
    let mut decoder = Decoder::default();
    for piece in pieces {
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let mut slot = decoder.read_slot();
            let n = slot.remaining_mut().min(rest.len()).min(slot.chunk_mut().len());
            assert!(n > 0, "there is no room for what the socket has");
            slot.put_slice(&rest[..n]);
            rest = &rest[n..];
            loop {
                match decoder.poll() {
                    Ok(Progress::Starved) => break,
                    Ok(Progress::Head(head)) if head.total() > FRAME_BYTES_MAX => return,
                    Ok(_) => {}
                    Err(_) => return,
                }
            }
        }
    }
});
