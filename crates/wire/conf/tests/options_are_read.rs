//! An option that a daemon is said to read stands somewhere in the daemons' code. Without that it
//! would be accepted and ignored.

use std::fs;
use std::path::Path;

/// Read under a name that is put together, or by the client libraries alone.
const COMPOSED: &[&str] = &["osd_mclock_scheduler_"];

fn sources(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.file_name().is_some_and(|n| n != "conf" && n != "tests" && n != "target") {
                sources(&path, text);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_option_of_a_daemon_is_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut text = String::new();
    sources(crates, &mut text);
    assert!(text.len() > 1 << 20, "the sources are there");
    let unread: Vec<&str> = conf::schema::all()
        .into_iter()
        .filter(|o| o.services.iter().any(|s| *s != "client"))
        .map(|o| o.name)
        .filter(|n| !COMPOSED.iter().any(|c| n.starts_with(c)))
        .filter(|n| !text.contains(&format!("\"{n}\"")))
        .collect();
    assert!(unread.is_empty(), "accepted and ignored: {unread:?}");
}
