//! Copies of objects that replicas lack.

use super::machine_test::*;
use crate::log_entry::LogOp;
use crate::missing::MissingItem;
use crate::{Action, Event, ObjectStatus, PeerMsg, Proposal};
use smallvec::smallvec;
use types::Utime;

/// A copy may wait for the room that the deletion of its object gives.
#[test]
fn a_deletion_goes_ahead_of_the_copy_of_its_object() {
    let mut pg = active(3);
    let version = pg.propose(proposal(1, "a")).unwrap();
    drain(&mut pg);
    for osd in [1, 2] {
        from(&mut pg, osd, PeerMsg::RepOpReply { version });
    }
    commit_all(&mut pg);
    let item = MissingItem { need: version, have: Default::default() };
    pg.clean = false;
    pg.peers.get_mut(&on(2)).unwrap().missing.as_mut().unwrap().set(oid("a"), item);
    pg.handle(Event::RecoverNow(oid("a")), Utime::default());
    let asked = drain(&mut pg);
    assert!(asked.iter().any(|a| matches!(a, Action::ReadObject { .. })), "{asked:?}");
    // The copy waits for room. Other writes wait for it.
    assert_eq!(pg.object_status(&oid("a")), ObjectStatus::Degraded);
    assert!(pg.may_overtake_copy(&oid("a")));
    let entries = smallvec![change(LogOp::Delete, oid("a"), version)];
    pg.propose(Proposal { entries, ..proposal(2, "a") }).unwrap();
    let actions = drain(&mut pg);
    let ready = |a: &Action| matches!(a, Action::ObjectReady(o) if *o == oid("a"));
    assert!(actions.iter().any(ready), "{actions:?}");
    let told: Vec<_> = actions
        .iter()
        .filter_map(|a| match a {
            Action::Send { to, msg: PeerMsg::RepOp(op), .. } => Some((to[0], to.len(), op)),
            _ => None,
        })
        .map(|(to, n, op)| (to, n, op.log_only, op.payload.data.is_empty()))
        .collect();
    assert_eq!(told, [(on(2), 1, true, true), (on(1), 1, false, false)]);
    assert!(pg.all_recovered() && !pg.recovery.is_active(&oid("a")));
}
