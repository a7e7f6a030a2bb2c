//! The JSON of a command.
#![no_main]

use command::Args;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(args) = Args::parse(&[text]) {
        args.prefix();
        args.strs("names");
        args.int("number");
        args.text_map();
    }
});
