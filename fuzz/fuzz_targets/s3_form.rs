//! A form upload, in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use s3::post::{Form, boundary};

fuzz_target!(|input: (&str, Vec<&[u8]>)| {
    let (content_type, pieces) = input;
    let _ = boundary(content_type);
    let mut form = Form::new("b");
    for piece in pieces {
        form.feed(piece);
        loop {
            match form.next_piece() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});
