//! Changes, and the log of the copies that they do not name.

use super::machine_test::*;
use super::recovery_test::coded;
use super::sources_test::{at, from, to};
use crate::msg::{Payload, RepOp};
use crate::proposal::Payloads;
use crate::{Action, PeerMsg, PgConf, Proposal};
use ec::ShardSet;
use types::ShardId;

/// Otherwise, were this OSD to end, the logs of too few shards would hold the rest.
#[test]
fn a_log_is_kept_until_the_shards_that_no_change_names_have_it() {
    let mut pg = coded();
    pg.conf = PgConf {
        min_pg_log_entries: 2,
        target_pg_log_entries: 2,
        max_pg_log_entries: 4,
        pg_log_trim_min: 1,
        ..PgConf::default()
    };
    let (behind, named) = (at(1, 1), at(2, 2));
    let log_to = |actions: &[Action]| -> Option<RepOp> {
        to(actions, behind).into_iter().find_map(|msg| match msg {
            PeerMsg::RepOp(op) => Some((**op).clone()),
            _ => None,
        })
    };
    let mut last = None;
    for tid in 1..=100 {
        let mut small = proposal(tid, "small");
        small.entries[0].written = ShardSet::from_iter([0, 2]);
        let payloads = Payloads::Each([(ShardId(2), Payload::default())].into());
        let version = pg.propose(Proposal { payloads, ..small }).unwrap();
        last = log_to(&drain(&mut pg)).or(last);
        from(&mut pg, named, PeerMsg::RepOpReply { version });
        commit_all(&mut pg);
        assert_eq!(pg.all_committed, version, "the change waits for those that it names alone");
    }
    assert_eq!(pg.log().len(), 100, "osd.1 has not answered");
    // The log goes to it by itself, and the answer is what lets it go.
    let told = last.expect("a copy that lags is told").entries.last().unwrap().entry.version;
    from(&mut pg, behind, PeerMsg::RepOpReply { version: told });
    let mut next = proposal(101, "small");
    next.entries[0].written = ShardSet::from_iter([0, 2]);
    let payloads = Payloads::Each([(ShardId(2), Payload::default())].into());
    pg.propose(Proposal { payloads, ..next }).unwrap();
    assert_eq!(pg.log().tail(), told);
}
