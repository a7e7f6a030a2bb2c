//! Two subvolumes beside each other, in virtual time: neither gets more for asking more.

use mds_sim::shares::{Load, Machine, requests_a_second};

/// The core is what there is least of.
const SLOW_CORE: Machine = Machine { at_once: 4, request_us: 120, log_us: 300 };
/// The log is what most requests wait for.
const FAST_CORE: Machine = Machine { at_once: 4, request_us: 30, log_us: 300 };

fn figures(machine: Machine, load: Load, clients: &[u64]) -> Vec<u64> {
    let figures = requests_a_second(machine, load, clients);
    eprintln!("{machine:?} {load:?}, clients {clients:?}: {figures:?} a second");
    figures
}

fn are_halves(figures: &[u64]) -> bool {
    let total: u64 = figures.iter().sum();
    figures.iter().all(|f| (total * 45 / 100..=total * 55 / 100).contains(f))
}

#[test]
fn of_creates_each_has_half_of_a_busy_core() {
    for clients in [[5, 5], [5, 20]] {
        let both = figures(SLOW_CORE, Load::Create, &clients);
        assert!(are_halves(&both), "{clients:?}: {both:?}");
        // That is what order costs: the core is busy to two thirds at least.
        assert!(both.iter().sum::<u64>() * 130 > 640_000, "{both:?}");
    }
}

#[test]
fn of_stats_each_has_half() {
    for machine in [SLOW_CORE, FAST_CORE] {
        let both = figures(machine, Load::Stat, &[5, 20]);
        assert!(are_halves(&both), "{both:?}");
    }
}

#[test]
fn with_time_left_each_has_half_of_what_it_has_alone() {
    let alone = figures(FAST_CORE, Load::Create, &[5]);
    let both = figures(FAST_CORE, Load::Create, &[5, 20]);
    assert!(both[0] * 100 > alone[0] * 48, "{both:?}, alone {alone:?}");
}

#[test]
fn one_subvolume_alone_has_the_whole_core() {
    // A create takes 130 microseconds of the core with its message.
    let alone = figures(SLOW_CORE, Load::Create, &[20]);
    assert!(alone[0] * 130 > 800_000, "{alone:?}");
    let alone = figures(SLOW_CORE, Load::Stat, &[20]);
    assert!(alone[0] * 130 > 950_000, "{alone:?}");
}
