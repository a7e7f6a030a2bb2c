//! Copies that turn out to be bad: the object becomes missing there, and recovery does the rest.
//!
//! It is found by a client's read on the primary, a read for recovery on any OSD, or a scrub. The
//! item of the missing set says that the copy has nothing, and is durable like any other, so a
//! repair that is interrupted goes on. (Ceph: `PrimaryLogPG::rep_repair_primary_object`,
//! `PeeringState::force_object_missing`.)

use types::{Eversion, LogPriority, ObjectId, PgShard};

use crate::action::{Action, Persist};
use crate::missing::MissingItem;
use crate::msg::PeerMsg;
use crate::rows;
use crate::shard_read::ShardAnswer;

use super::parts::recovery::Read;
use super::{Pg, Phase};

impl Pg {
    /// The host cannot read this object, which has this version. Without anybody to ask for a good
    /// copy it stays as it is: some of it may still be of use.
    pub(super) fn handle_object_damaged(&mut self, oid: ObjectId, version: Eversion) {
        if self.phase != Phase::Active || self.missing.contains(&oid) {
            return;
        }
        let good: Vec<PgShard> = if self.backend().rebuilds() {
            let others = self.sources_of(&oid).into_iter().filter(|c| *c != self.me);
            let others: Vec<PgShard> = others.collect();
            if self.can_read(&others) { others } else { Vec::new() }
        } else {
            self.who_has(&oid).collect()
        };
        if good.is_empty() {
            self.log_error(format!("{} missing primary copy of {oid}, unfound", self.info.pgid));
            return;
        }
        let places: Vec<String> = good.iter().map(PgShard::to_string).collect();
        self.log_error(format!(
            "{} missing primary copy of {oid}, will try copies on {}",
            self.info.pgid,
            places.join(",")
        ));
        self.recovery.hurry(oid.clone());
        self.lose_own(oid, version);
        self.check_recovery();
    }

    /// Another copy cannot read its shard of this object.
    pub(super) fn handle_shard_damaged(
        &mut self,
        shard: PgShard,
        oid: ObjectId,
        version: Eversion,
    ) {
        if self.phase != Phase::Active || shard == self.me || self.recovery.is_active(&oid) {
            return;
        }
        if !self.sources_of(&oid).contains(&shard) {
            return;
        }
        // It may have been written since it was read.
        let changes = |op: crate::LogOp| op.is_update() || op.is_delete();
        let newest = self.log.iter().rev().find(|e| e.entry.oid == oid && changes(e.entry.op));
        if newest.is_some_and(|e| e.entry.op.is_delete()) {
            return;
        }
        let version = newest.map_or(version, |e| e.entry.version.max(version));
        self.recovery.hurry(oid.clone());
        self.lose_source(shard, &oid, version);
        self.recover(oid);
        self.check_recovery();
    }

    /// Acting replicas that lack nothing of this object, as far as is known.
    fn who_has(&self, oid: &ObjectId) -> impl Iterator<Item = PgShard> {
        self.replicas().into_iter().filter(|o| {
            self.map.is_up(o.osd)
                && self
                    .peers
                    .get(o)
                    .is_some_and(|p| p.missing.as_ref().is_some_and(|m| !m.contains(oid)))
        })
    }

    pub(super) fn log_error(&mut self, text: String) {
        self.actions.push_back(Action::ClusterLog { prio: LogPriority::ERROR, text });
    }

    /// The content of an object turned out unreadable here: recover it like any other missing one.
    pub(super) fn lose_own(&mut self, oid: ObjectId, version: Eversion) {
        self.clean = false;
        self.disturb_scrub(&oid);
        self.repairs.objects.insert(oid.clone());
        self.mark_own(vec![(oid.clone(), version)]);
        self.recover(oid);
    }

    /// The same of a shard; recovery is begun by the caller.
    pub(super) fn lose_own_shard(&mut self, oid: &ObjectId, version: Eversion) {
        if !self.missing.contains(oid) {
            self.clean = false;
            self.disturb_scrub(oid);
            self.repairs.objects.insert(oid.clone());
            self.mark_own(vec![(oid.clone(), version)]);
        }
    }

    /// How often objects were found bad in this copy. Reads of the own copy that a change of this
    /// number falls into may have met an object that is half made again.
    pub fn losses(&self) -> u64 {
        self.repairs.losses
    }

    /// What others read of an object that is made again from here on: half an object has its
    /// version, too.
    fn disown_reads(&mut self, oid: &ObjectId) {
        let of = |read: &mut Read| match read {
            Read::Shard { oid: o, .. } | Read::Answer { oid: o, .. } => o == oid,
            Read::Revert(..) | Read::Push(..) | Read::Rebuild(_) => false,
        };
        let reads = self.recovery.reads.extract_if(.., |_, read| of(read));
        for (_, read) in reads.collect::<Vec<_>>() {
            match read {
                Read::Shard { to, asked, id, .. } => {
                    let answer = ShardAnswer::Lacks { version: Eversion::default() };
                    self.answer(to, asked, PeerMsg::ShardRead { id, answer });
                }
                Read::Answer { to, asked, oid, version } => {
                    self.answer(to, asked, PeerMsg::PullFailed { oid, version });
                }
                Read::Revert(..) | Read::Push(..) | Read::Rebuild(_) => {}
            }
        }
    }

    /// Makes objects missing in this copy.
    pub(super) fn mark_own(&mut self, objects: Vec<(ObjectId, Eversion)>) {
        let mut persist = Persist::default();
        self.repairs.losses += 1;
        for (oid, need) in objects {
            self.disown_reads(&oid);
            let item = MissingItem { need, have: Eversion::default() };
            persist.rows.set.push(rows::missing_row(&oid, &item));
            self.missing.set(oid.clone(), item);
            self.repairs.own.insert(oid);
        }
        self.update_last_complete();
        persist.rows.set.push(rows::fast_row(&self.info));
        self.persist(persist);
    }

    /// The primary: a copy that it asked for is not there as it should be. Both know from here on
    /// that it is missing, if it is written with the PG.
    pub(super) fn lose_source(&mut self, shard: PgShard, oid: &ObjectId, version: Eversion) {
        let Some(missing) = self.peers.get_mut(&shard).and_then(|p| p.missing.as_mut()) else {
            return;
        };
        let known = missing.get(oid).copied();
        let need = known.map_or(version, |i| i.need);
        missing.set(oid.clone(), MissingItem { need, have: Eversion::default() });
        if known.is_none()
            && (self.mapping.acting.contains(&shard) || self.followers().any(|f| f == shard))
        {
            self.log_error(format!(
                "{} copy of {oid} on osd.{shard} cannot be read",
                self.info.pgid
            ));
            self.clean = false;
            self.repairs.objects.insert(oid.clone());
            self.send(shard, PeerMsg::MarkMissing { objects: vec![(oid.clone(), need)] });
        }
    }

    /// The primary: these copies are bad. They are in the missing sets of both sides from here on.
    pub(super) fn lose_copies(&mut self, shard: PgShard, objects: Vec<(ObjectId, Eversion)>) {
        self.clean = false;
        self.repairs.objects.extend(objects.iter().map(|(oid, _)| oid.clone()));
        if shard == self.me {
            self.mark_own(objects);
            return;
        }
        let Some(missing) = self.peers.get_mut(&shard).and_then(|p| p.missing.as_mut()) else {
            return;
        };
        for (oid, need) in &objects {
            missing.set(oid.clone(), MissingItem { need: *need, have: Eversion::default() });
        }
        self.send(shard, PeerMsg::MarkMissing { objects });
    }

    /// The primary says that copies here are bad.
    pub(super) fn handle_mark_missing(&mut self, mut objects: Vec<(ObjectId, Eversion)>) {
        if self.phase != Phase::ReplicaActive {
            return;
        }
        let head = self.info.last_update;
        objects.retain(|(oid, version)| *version <= head && self.info.last_backfill.covers(oid));
        if !objects.is_empty() {
            self.mark_own(objects);
        }
    }

    /// The copy here is whole again.
    pub(super) fn own_recovered(&mut self, oid: &ObjectId) {
        if self.repairs.own.remove(oid) {
            self.info.scrub.repaired += u64::from(self.is_primary());
            self.actions.push_back(Action::CopyRepaired(oid.clone()));
        }
    }

    /// These replicas have the object again.
    pub(super) fn replicas_recovered(&mut self, oid: &ObjectId, copies: usize) {
        if self.repairs.objects.contains(oid) {
            self.info.scrub.repaired += copies as u64;
        }
    }

    /// No copy lacks the object any more.
    pub(super) fn object_recovered(&mut self, oid: &ObjectId) {
        self.disturb_scrub(oid);
        self.repairs.objects.remove(oid);
    }
}
