//! More owners do more: the same machines, in virtual time.

use mds_sim::scaling::{Load, requests_a_second};

fn growth(load: Load) -> Vec<(u16, u64)> {
    let figures: Vec<_> = [1, 2, 4, 8, 16]
        .into_iter()
        .map(|owners| (owners, requests_a_second(owners, 320, load)))
        .collect();
    eprintln!("{load:?}: owners and requests a second {figures:?}");
    figures
}

#[test]
fn creates_in_directories_of_their_own_grow_with_the_owners() {
    let figures = growth(Load::Create);
    for pair in figures.windows(2) {
        assert!(pair[1].1 * 10 > pair[0].1 * 14, "{figures:?}");
    }
}

#[test]
fn directories_that_two_owners_make_grow_with_the_owners() {
    let figures = growth(Load::Mkdir);
    assert!(figures[4].1 > 3 * figures[1].1, "{figures:?}");
}
