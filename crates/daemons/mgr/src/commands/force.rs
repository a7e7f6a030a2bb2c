//! `pg force-recovery` and its neighbours: the manager finds out for which PGs that makes sense,
//! and tells their primaries.

use super::Context;
use command::{Refusal, Reply};
use messages::OsdForceRecovery;
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;
use types::stats::PgState;
use types::{OsdId, PgId};

/// What is asked of which OSDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The last word of the command.
    what: String,
    /// For [`OsdForceRecovery`].
    pub options: u8,
    /// PGs by their primaries.
    pub groups: BTreeMap<OsdId, Vec<PgId>>,
    /// Remarks on PGs that are left out, and the last reason that is an error.
    remarks: String,
    refused: Option<Errno>,
}

/// What a command does, by its last word.
fn options(what: &str) -> u8 {
    let of = if what.ends_with("backfill") {
        OsdForceRecovery::BACKFILL
    } else {
        OsdForceRecovery::RECOVERY
    };
    if what.starts_with("cancel-") { of | OsdForceRecovery::CANCEL } else { of }
}

/// Why a PG in this state is left out, and whether that is an error: scripts may race with the
/// cluster.
fn pointless(state: PgState, options: u8) -> Option<(&'static str, bool)> {
    let any = |bits: &[PgState]| bits.iter().any(|b| state.has(*b));
    match options {
        OsdForceRecovery::RECOVERY
            if !any(&[PgState::DEGRADED, PgState::RECOVERY_WAIT, PgState::RECOVERING]) =>
        {
            Some(("doesn't require recovery", false))
        }
        OsdForceRecovery::RECOVERY if any(&[PgState::FORCED_RECOVERY]) => {
            Some(("recovery already forced", true))
        }
        OsdForceRecovery::BACKFILL
            if !any(&[PgState::DEGRADED, PgState::BACKFILL_WAIT, PgState::BACKFILLING]) =>
        {
            Some(("doesn't require backfilling", false))
        }
        OsdForceRecovery::BACKFILL if any(&[PgState::FORCED_BACKFILL]) => {
            Some(("backfill already forced", true))
        }
        OsdForceRecovery::RECOVERY | OsdForceRecovery::BACKFILL => None,
        o if o & OsdForceRecovery::BACKFILL != 0 => {
            (!any(&[PgState::FORCED_BACKFILL])).then_some(("backfill not forced", false))
        }
        _ => (!any(&[PgState::FORCED_RECOVERY])).then_some(("recovery not forced", false)),
    }
}

fn order(cx: &Context<'_>, candidates: BTreeSet<PgId>) -> Order {
    let what = cx.args.prefix().rsplit(' ').next().unwrap_or_default().to_owned();
    let options = options(&what);
    let (mut remarks, mut refused) = (String::new(), None);
    let mut groups: BTreeMap<OsdId, Vec<PgId>> = BTreeMap::new();
    for pgid in candidates {
        let Some(stat) = cx.state.pg_map.pgs.get(&pgid) else {
            remarks += &format!("pg {pgid} does not exist; ");
            refused = Some(Errno::ENOENT);
            continue;
        };
        if let Some((why, error)) = pointless(stat.state, options) {
            remarks += &format!("pg {pgid} {why}; ");
            if error {
                refused = Some(Errno::EINVAL);
            }
            continue;
        }
        let primary = cx.map.pg_to_up_acting(pgid).acting_primary;
        if primary.is_some() && cx.map.is_up(primary) {
            groups.entry(primary).or_default().push(pgid);
        }
    }
    if !groups.is_empty() {
        refused = None;
    }
    Order { what, options, groups, remarks, refused }
}

/// `pg force-recovery`, `pg force-backfill`, `pg cancel-force-recovery`, `pg
/// cancel-force-backfill`.
pub fn groups(cx: &Context<'_>) -> Result<Order, Refusal> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Refusal::invalid(format!("invalid pgid '{text}'; ")))
    };
    let candidates: Result<BTreeSet<PgId>, Refusal> =
        cx.args.strs("pgid").iter().map(parse).collect();
    Ok(order(cx, candidates?))
}

/// The same of all PGs of pools.
pub fn pools(cx: &Context<'_>) -> Result<Order, Refusal> {
    let names = cx.args.strs("who");
    if names.is_empty() {
        return Err(Refusal::invalid("must specify one or more pool names".to_string()));
    }
    let mut candidates = BTreeSet::new();
    for name in names {
        let found = cx.map.pool_names.iter().find(|(_, n)| **n == name).map(|(id, _)| *id);
        let pool = found
            .ok_or_else(|| Refusal::new(Errno::ENOENT, format!("unrecognized pool '{name}'")))?;
        candidates
            .extend((0..cx.map.pool(pool).map_or(0, |p| p.pg_num)).map(|seed| PgId { pool, seed }));
    }
    Ok(order(cx, candidates))
}

impl Order {
    /// What the caller is told, given the OSDs that could not be reached.
    pub fn answer(&self, unreached: &BTreeSet<OsdId>) -> Result<Reply, Refusal> {
        let mut text = self.remarks.clone();
        let mut refused = self.refused;
        for (osd, groups) in &self.groups {
            if unreached.contains(osd) {
                text += &format!("osd.{} is not currently connected", osd.0);
                refused = Some(Errno::EAGAIN);
                continue;
            }
            let list: Vec<String> = groups.iter().map(PgId::to_string).collect();
            text += &format!(
                "instructing pg(s) [{}] on osd.{} to {}; ",
                list.join(","),
                osd.0,
                self.what
            );
        }
        match refused {
            Some(errno) => Err(Refusal::new(errno, text)),
            None => Ok(Reply::status(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_that_need_it_are_told() {
        let r = OsdForceRecovery::RECOVERY;
        let b = OsdForceRecovery::BACKFILL;
        let cancel = OsdForceRecovery::CANCEL;
        assert_eq!(
            ["force-recovery", "force-backfill", "cancel-force-recovery", "cancel-force-backfill"]
                .map(options),
            [r, b, r | cancel, b | cancel]
        );
        let clean = PgState::ACTIVE | PgState::CLEAN;
        let waits = PgState::ACTIVE | PgState::BACKFILL_WAIT;
        assert_eq!(pointless(clean, r), Some(("doesn't require recovery", false)));
        assert_eq!(pointless(waits, r), Some(("doesn't require recovery", false)));
        assert_eq!(pointless(waits, b), None);
        assert_eq!(
            pointless(waits | PgState::FORCED_BACKFILL, b),
            Some(("backfill already forced", true))
        );
        assert_eq!(pointless(waits | PgState::FORCED_BACKFILL, b | cancel), None);
        assert_eq!(pointless(PgState::ACTIVE | PgState::DEGRADED, r), None);
        assert_eq!(pointless(waits, r | cancel), Some(("recovery not forced", false)));
    }

    #[test]
    fn who_cannot_be_reached_is_named() {
        let pg = |seed| PgId { pool: types::PoolId(1), seed };
        let groups = [(OsdId(0), vec![pg(0), pg(2)]), (OsdId(3), vec![pg(1)])].into();
        let order = Order {
            what: "force-recovery".into(),
            options: 1,
            groups,
            remarks: "pg 1.5 doesn't require recovery; ".into(),
            refused: None,
        };
        let said = order.answer(&BTreeSet::new()).unwrap().status;
        assert_eq!(
            said,
            "pg 1.5 doesn't require recovery; instructing pg(s) [1.0,1.2] on osd.0 to force-recovery; instructing pg(s) [1.1] on osd.3 to force-recovery; "
        );
        let refused = order.answer(&[OsdId(3)].into()).unwrap_err();
        assert_eq!(
            (refused.errno, refused.message.ends_with("osd.3 is not currently connected")),
            (Errno::EAGAIN, true)
        );
    }
}
