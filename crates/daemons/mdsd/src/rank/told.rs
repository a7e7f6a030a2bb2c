//! What clients say that they counted, and the manager hears of it.

use super::{Rank, counted};
use messages::{ClientMetric, ClientQuery, ClientReport};
use std::collections::BTreeSet;

impl Rank {
    /// What the manager is told of the rank's clients.
    pub fn report_clients(&self, queries: &BTreeSet<ClientQuery>) -> ClientReport {
        let clients = self.clients.borrow();
        let open = clients.iter().filter(|(_, c)| c.open);
        let each = open.map(|(id, c)| (*id, c.info.addr, c.counted));
        counted::answer(queries, self.store.rank, each)
    }

    /// A client says what it counted. False if that cannot be read.
    pub(super) fn counted(&self, id: u64, metrics: &[ClientMetric]) -> bool {
        let mut clients = self.clients.borrow_mut();
        let Some(client) = clients.get_mut(&id) else { return true };
        metrics.iter().all(|m| match client.counted.take(m) {
            Ok(()) => true,
            Err(e) => {
                tracing::warn!("a statistic of kind {} of client.{id}: {e}", m.kind);
                false
            }
        })
    }
}
