//! A cluster small enough for every run of the tests. A seed always gives the same run, on any machine.

use qos_sim::scenario::Phase;
use qos_sim::{Scenario, run};

#[test]
fn promises_hold_while_everything_changes() {
    let s = Scenario { phase: 6, ..Scenario::default() };
    let report = run(&s);
    println!("{report}");
    for p in &report.phases {
        let name = p.phase.name();
        assert!(p.jain >= 0.99, "{name}: {:?}", p.odd);
        assert!(p.served >= 0.97, "{name}: {}", p.served);
        assert!(p.floors >= 0.99, "{name}: floors were kept in {}", p.floors);
        assert!(p.ceilings >= 0.99, "{name}: ceilings were kept in {}", p.ceilings);
        assert!(p.ceilings_together >= 0.97, "{name}: ceilings were kept by {}", p.ceilings_together);
        // Some 25 tenants are active on an OSD. Another manager tells of all tenants again.
        let from_manager = if p.phase == Phase::Failover { 10_000.0 } else { 4000.0 };
        assert!(p.bytes[0] < 4000.0 && p.bytes[1] < from_manager, "{name}: {:?} bytes each second", p.bytes);
    }
    assert!(report.converged.is_some_and(|s| s <= 2.0), "{:?}", report.converged);
}

#[test]
fn a_seed_always_gives_the_same() {
    let figures = |seed| {
        let report = run(&Scenario { seed, osds: 6, tenants: 20, pools: 3, phase: 2, ..Scenario::default() });
        let phases = report.phases.iter().map(|p| (p.jain.to_bits(), p.bytes.map(f64::to_bits), p.most_bytes)).collect::<Vec<_>>();
        (report.operations, phases)
    };
    assert_eq!(figures(3), figures(3));
    assert_ne!(figures(3), figures(4));
}
