//! `docs/osd-operations.md` is written from the table of operations.

use std::path::Path;

#[test]
fn the_reference_page_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/osd-operations.md");
    let page = format!(
        "# Operations on objects\n\n\
         What an OSD does with the operations of Ceph's protocol. This page is generated: change the table in\n\
         `crates/messages/src/ops.rs`, then run `SIPHON_WRITE_DOCS=1 cargo test -p messages --test table`.\n\n{}",
        messages::table_markdown()
    );
    if std::env::var_os("SIPHON_WRITE_DOCS").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/osd-operations.md is stale; see the page's head");
}
