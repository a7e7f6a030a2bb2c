//! docs/compatibility.md is what the program writes from its own tables.

use std::path::Path;
use std::process::Command;

#[test]
fn the_page_is_what_the_program_writes() {
    let out = Command::new(env!("CARGO_BIN_EXE_siphon")).arg("compatibility").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/compatibility.md");
    let page = std::fs::read(&path).unwrap();
    assert!(page == out.stdout, "docs/compatibility.md is out of date: run `cargo xtask docs`");
}
