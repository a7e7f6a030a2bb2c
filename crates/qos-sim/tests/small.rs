//! A cluster small enough for every run of the tests. A seed always gives the same run, on any machine.

use qos_sim::scenario::Phase;
use qos_sim::{Scenario, run};

/// In one run a tenant that gets ten operations each second got nine or eleven by chance in some second; these are means of several.
#[test]
fn promises_hold_while_everything_changes() {
    let reports: Vec<_> = (1..=4).map(|seed| run(&Scenario { seed, phase: 6, ..Scenario::default() })).collect();
    reports.iter().for_each(|r| println!("{r}"));
    let mean = |of: &dyn Fn(&qos_sim::Report) -> f64| reports.iter().map(of).sum::<f64>() / reports.len() as f64;
    for (at, phase) in qos_sim::scenario::PHASES.into_iter().enumerate() {
        let name = phase.name();
        let jain = mean(&|r| r.phases[at].jain);
        assert!(jain >= 0.99, "{name}: {jain} {:?}", reports[0].phases[at].odd);
        let served = mean(&|r| r.phases[at].served);
        assert!(served >= 0.97, "{name}: {served}");
        let floors = mean(&|r| r.phases[at].floors);
        assert!(floors >= 0.97, "{name}: floors were kept in {floors}");
        let ceilings = mean(&|r| r.phases[at].ceilings);
        assert!(ceilings >= 0.99, "{name}: ceilings were kept in {ceilings}");
        let together = mean(&|r| r.phases[at].ceilings_together);
        assert!(together >= 0.97, "{name}: ceilings were kept by {together}");
        // Some 25 tenants are active on an OSD. Another manager tells of all tenants again.
        let from_manager = if phase == Phase::Failover { 10_000.0 } else { 4000.0 };
        let bytes = [0, 1].map(|way| mean(&|r| r.phases[at].bytes[way]));
        assert!(bytes[0] < 4000.0 && bytes[1] < from_manager, "{name}: {bytes:?} bytes each second");
    }
    let converged = reports.iter().map(|r| r.converged.expect("rates became fair")).sum::<f64>() / 4.0;
    assert!(converged <= 1.5, "{converged}");
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
