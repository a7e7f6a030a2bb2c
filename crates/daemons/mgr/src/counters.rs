//! Counters that daemons of other programs report, as far as commands show them (Ceph:
//! `DaemonPerfCounters`, `mgr/DaemonState.cc`, 16.2). No I/O.

use bytes::Bytes;
use denc::Reader;
use messages::MgrReport;
use std::collections::BTreeMap;
use types::Utime;

/// Counters that one daemon may report.
const COUNTERS_MAX: usize = 10_000;
/// The bit of counters that are an average: two numbers follow (Ceph: `PERFCOUNTER_LONGRUNAVG`).
const LONG_RUN_AVERAGE: u8 = 4;

/// The last two values of a counter, the latest last.
type Values = [(Utime, u64); 2];

/// The counters that one daemon reported.
#[derive(Clone, Debug, Default)]
struct Daemon {
    /// Kinds by path: values come in their order.
    kinds: BTreeMap<String, u8>,
    values: BTreeMap<String, Values>,
}

/// Counters of metadata servers, by name.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    daemons: BTreeMap<String, Daemon>,
}

impl Counters {
    /// Takes a report. A daemon that opens a session anew declares all of its counters again.
    pub fn report(&mut self, m: &MgrReport, now: Utime) -> denc::Result<()> {
        let daemon = self.daemons.entry(m.daemon_name.clone()).or_default();
        for path in &m.undeclare_types {
            daemon.kinds.remove(path);
            daemon.values.remove(path);
        }
        for kind in &m.declare_types {
            if daemon.kinds.len() < COUNTERS_MAX {
                daemon.kinds.insert(kind.path.clone(), kind.kind);
            }
        }
        daemon.read(&m.packed, now)
    }

    /// Forgets daemons that are not among these.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.daemons.retain(|name, _| is_there(name));
    }

    /// A daemon opens a session: what it reported before counts no longer.
    pub fn open(&mut self, daemon: &str) {
        self.daemons.remove(daemon);
    }

    /// The latest value; 0 if there is none.
    pub fn latest(&self, daemon: &str, path: &str) -> u64 {
        self.values(daemon, path).map_or(0, |[_, (_, latest)]| latest)
    }

    /// How much the counter grew in a second; 0 if it is not known.
    pub fn rate(&self, daemon: &str, path: &str) -> f64 {
        let Some([(before, old), (now, new)]) = self.values(daemon, path) else { return 0.0 };
        let seconds = now.since(before).as_secs_f64();
        if before.is_zero() || seconds <= 0.0 {
            return 0.0;
        }
        (new as f64 - old as f64) / seconds
    }

    fn values(&self, daemon: &str, path: &str) -> Option<Values> {
        self.daemons.get(daemon)?.values.get(path).copied()
    }
}

impl Daemon {
    fn read(&mut self, packed: &Bytes, now: Utime) -> denc::Result<()> {
        if packed.is_empty() {
            return Ok(());
        }
        let (_, mut r) = Reader::new(packed.clone()).envelope("counters", 1)?;
        for (path, kind) in &self.kinds {
            let value = r.get()?;
            if kind & LONG_RUN_AVERAGE != 0 {
                r.skip("average", 16)?;
            }
            match self.values.get_mut(path) {
                Some(values) => *values = [values[1], (now, value)],
                None => drop(self.values.insert(path.clone(), [(Utime::ZERO, 0), (now, value)])),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{BytesMut, Encode, Features};
    use messages::PerfCounterType;

    fn report(declare: &[(&str, u8)], values: &[u64]) -> MgrReport {
        let mut packed = BytesMut::new();
        denc::envelope(&mut packed, 1, 1, |out| {
            values.iter().for_each(|v| v.encode(out, Features::ALL));
        });
        let declare_types = declare
            .iter()
            .map(|(path, kind)| PerfCounterType {
                path: (*path).to_owned(),
                kind: *kind,
                ..PerfCounterType::default()
            })
            .collect();
        let daemon_name = "a".to_owned();
        MgrReport { daemon_name, declare_types, packed: packed.freeze(), ..MgrReport::default() }
    }

    #[test]
    fn values_come_in_the_order_of_paths() {
        let mut c = Counters::default();
        // Declared in another order than that of their paths; the average takes three numbers.
        c.report(&report(&[("z", 10), ("m", 5), ("b", 2)], &[1, 20, 30, 40, 5]), Utime::new(10, 0))
            .unwrap();
        assert_eq!((c.latest("a", "b"), c.latest("a", "m"), c.latest("a", "z")), (1, 20, 5));
        assert_eq!(c.rate("a", "z"), 0.0, "one value is no rate");
        c.report(&report(&[], &[1, 20, 30, 40, 25]), Utime::new(15, 0)).unwrap();
        assert_eq!(c.rate("a", "z"), 4.0);
        let gone = MgrReport { undeclare_types: vec!["m".into()], ..report(&[], &[2, 26]) };
        c.report(&gone, Utime::new(20, 0)).unwrap();
        assert_eq!((c.latest("a", "b"), c.latest("a", "m"), c.latest("a", "z")), (2, 0, 26));
        c.keep(|name| name != "a");
        assert_eq!(c.latest("a", "z"), 0);
    }

    #[test]
    fn reports_that_are_too_short_are_refused() {
        let mut c = Counters::default();
        assert!(c.report(&report(&[("b", 2), ("c", 2)], &[1]), Utime::new(10, 0)).is_err());
    }
}
