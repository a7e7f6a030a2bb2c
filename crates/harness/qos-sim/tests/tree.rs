//! The simulation is made of what decides, and of messages.

use std::process::Command;

#[test]
fn it_links_no_daemon_no_messenger_and_no_runtime() {
    let tree = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--offline",
            "--locked",
            "-e",
            "normal",
            "--prefix",
            "none",
            "-p",
            "qos-sim",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8_lossy(&tree.stdout);
    let crates: Vec<&str> = text.lines().filter_map(|l| l.split(' ').next()).collect();
    assert!(crates.contains(&"admission") && crates.contains(&"promises"), "{text}");
    for absent in ["osd", "mgr", "mon", "client", "msgr", "store", "tokio", "socket2"] {
        assert!(!crates.contains(&absent), "qos-sim depends on {absent}:\n{text}");
    }
}
