//! What clients count, and what the manager is told of it (16.2: `MetricsHandler`,
//! `MetricAggregator`). Each rank tells the manager of its own clients; none collects for others.

use cephfs::MetricSpec;
use messages::{
    ClientCounter, ClientKey, ClientMetric, ClientQuery, ClientReport, ClientRows, MetricValue,
};
use std::collections::BTreeSet;
use types::fsmap::ClientFeatures;
use types::{EntityAddr, Utime};

/// What a client said last, by the numbers of counters: it takes the same room however much a
/// client says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted([(u64, u64); ClientCounter::NAMES.len()]);

/// The number of the first counter that a latency has beside the one of its own kind: the mean.
/// The one behind it has the squares.
const MEANS: u32 = 10;

/// The counters that clients are asked for: those since 16.2.11 send no others.
pub(super) fn all() -> MetricSpec {
    MetricSpec { flags: ClientFeatures((0..u32::from(ClientCounter::COUNT)).collect()) }
}

fn time(t: Utime) -> (u64, u64) {
    (t.sec.into(), t.nsec.into())
}

impl Counted {
    /// Takes in what a client says. Kinds that are not known are left out.
    pub fn take(&mut self, metric: &ClientMetric) -> denc::Result<()> {
        let mut set = |number: u32, value| {
            if let Some(kept) = self.0.get_mut(number as usize) {
                *kept = value;
            }
        };
        match metric.value()? {
            Some(MetricValue::Hits(hits, misses, _)) => set(metric.kind, (hits, misses)),
            Some(MetricValue::Of(some, all)) => set(metric.kind, (some, all)),
            Some(MetricValue::Latency(l)) => {
                set(metric.kind, time(l.time));
                let mean = MEANS + 2 * (metric.kind - ClientMetric::READ_LATENCY);
                set(mean, time(l.mean));
                set(mean + 1, (l.squares, l.count));
            }
            None => {}
        }
        Ok(())
    }

    /// The values of these counters; 0 for those that are not known.
    fn of(&self, counters: &[ClientCounter]) -> Vec<(u64, u64)> {
        let value = |c: &ClientCounter| self.0.get(usize::from(c.0)).copied().unwrap_or_default();
        counters.iter().map(value).collect()
    }
}

/// A client as keys name it: with its address, up to the port.
fn name_of(id: u64, addr: EntityAddr) -> String {
    let all = format!("client.{id} {}", EntityAddr { kind: types::AddrType::ANY, ..addr });
    all.rsplit_once(':').map_or(all.clone(), |(name, _)| name.to_owned())
}

/// The answers of a rank to what it is asked about these clients.
pub(super) fn answer(
    queries: &BTreeSet<ClientQuery>,
    rank: u32,
    clients: impl Iterator<Item = (u64, EntityAddr, Counted)> + Clone,
) -> ClientReport {
    let mut report = ClientReport::default();
    for query in queries {
        // Patterns are the manager's own: those of another one cannot be looked up.
        let by_rank = query.keys == ClientQuery::ranks().keys;
        if !by_rank && query.keys != ClientQuery::clients().keys {
            continue;
        }
        let row = |(id, addr, counted): (u64, EntityAddr, Counted)| {
            let mut key: ClientKey = vec![vec![name_of(id, addr)]];
            if by_rank {
                key.insert(0, vec![rank.to_string()]);
            }
            (key, ClientRows::row(&counted.of(&query.counters)))
        };
        let rows = clients.clone().map(row).collect();
        report.answers.insert(query.clone(), ClientRows { counters: query.counters.clone(), rows });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use denc::{Bytes, BytesMut, Encode, Features};

    fn metric(kind: u32, struct_v: u8, numbers: &[u64]) -> ClientMetric {
        let mut fields = BytesMut::new();
        numbers.iter().for_each(|n| n.encode(&mut fields, Features::ALL));
        ClientMetric { kind, struct_v, fields: fields.freeze() }
    }

    /// Seconds and nanoseconds as bytes have them.
    fn stamp(sec: u64, nsec: u64) -> u64 {
        sec | nsec << 32
    }

    #[test]
    fn the_last_word_of_each_kind_is_kept() {
        let mut c = Counted::default();
        c.take(&metric(ClientMetric::CAP_INFO, 1, &[7, 2, 90])).unwrap();
        c.take(&metric(ClientMetric::CAP_INFO, 1, &[8, 2, 90])).unwrap();
        // Of 16.2.10 and before, and of later clients.
        c.take(&metric(ClientMetric::READ_LATENCY, 1, &[stamp(1, 5)])).unwrap();
        let numbers = [stamp(2, 6), stamp(0, 3), 44, 11];
        c.take(&metric(ClientMetric::METADATA_LATENCY, 2, &numbers)).unwrap();
        c.take(&metric(ClientMetric::WRITE_IO_SIZES, 1, &[3, 4096])).unwrap();
        let mut expected = [(0, 0); 16];
        (expected[0], expected[1], expected[3]) = ((8, 2), (1, 5), (2, 6));
        (expected[9], expected[14], expected[15]) = ((3, 4096), (0, 3), (44, 11));
        assert_eq!(c.0, expected);
    }

    #[test]
    fn unknown_kinds_are_left_out_and_short_ones_refused() {
        let mut c = Counted::default();
        c.take(&metric(4711, 9, &[1, 2])).unwrap();
        c.take(&ClientMetric { kind: u32::MAX, struct_v: 1, fields: Bytes::new() }).unwrap();
        assert_eq!(c, Counted::default());
        assert!(c.take(&metric(ClientMetric::DENTRY_LEASE, 1, &[1, 2])).is_err());
        // A version that says more than its bytes have.
        assert!(c.take(&metric(ClientMetric::WRITE_LATENCY, 2, &[stamp(1, 1)])).is_err());
    }

    #[test]
    fn clients_are_named_with_their_address_and_no_port() {
        let name = |addr: &str| name_of(4305, addr.parse().unwrap());
        assert_eq!(name("v1:10.0.0.1:0/7"), "client.4305 10.0.0.1");
        assert_eq!(name("v2:[fe80::1]:0/7"), "client.4305 [fe80::1]");
    }

    #[test]
    fn a_rank_answers_the_questions_that_it_knows() {
        let mut counted = Counted::default();
        counted.take(&metric(ClientMetric::CAP_INFO, 1, &[7, 2, 0])).unwrap();
        let clients = [
            (5, "v1:10.0.0.1:0/7".parse().unwrap(), counted),
            (6, "v1:10.0.0.2:0/8".parse().unwrap(), Counted::default()),
        ];
        let other = ClientQuery { keys: Vec::new(), ..ClientQuery::clients() };
        let mut queries = ClientQuery::all();
        queries.insert(other);
        let report = answer(&queries, 3, clients.into_iter());
        assert_eq!(report.answers.len(), 2);
        let ranks = &report.answers[&ClientQuery::ranks()];
        let key = |c: &str| vec![vec!["3".to_owned()], vec![c.to_owned()]];
        let keys: Vec<_> = ranks.rows.keys().cloned().collect();
        assert_eq!(keys, [key("client.5 10.0.0.1"), key("client.6 10.0.0.2")]);
        assert!(ranks.rows.values().all(Bytes::is_empty));
        let all = &report.answers[&ClientQuery::clients()];
        let row = &all.rows[&vec![vec!["client.5 10.0.0.1".to_owned()]]];
        assert_eq!(all.values(row).unwrap()[0], (7, 2));
        let silent = &all.rows[&vec![vec!["client.6 10.0.0.2".to_owned()]]];
        assert_eq!(all.values(silent).unwrap(), [(0, 0); 16]);
    }
}
