//! The calm, and judgement.

use std::fmt::Write as _;

use ec::{Code, Shard};
use pg::{Erasure, MapView};
use std::collections::BTreeMap;
use types::{Epoch, OsdId, PgId, PgShard, ShardId, SnapId, SpgId};

use super::{Ev, POOL, SECOND, World};
use crate::content::{object_id, value_of};
use crate::disk::Coll;
use crate::history::{Did, Done};
use crate::map::MapModel;
use crate::monitor::MonMsg;
use crate::snaps::{At, locate};

impl World {
    pub(super) fn settle(&mut self) {
        for osd in 0..self.osds.len() {
            self.after(0, Ev::Room(OsdId(osd as i32)));
        }
        for osd in 0..self.osds.len() {
            let osd = OsdId(osd as i32);
            self.after(0, Ev::Mon(MonMsg::SetIn(osd, true)));
            self.after(1, Ev::Start(osd));
        }
        self.after(0, Ev::Mon(MonMsg::Size(POOL, self.scenario.size, self.scenario.min_size)));
        self.after(0, Ev::Mon(MonMsg::NoBackfill(false)));
        self.after(0, Ev::Mon(MonMsg::NoRecover(false)));
        self.after(0, Ev::Mon(MonMsg::PgpNum(POOL)));
        self.after(0, Ev::Mon(MonMsg::DeletePool(SECOND)));
        self.remove_some_snapshots();
    }

    /// All PGs are clean with the newest map, and clients are done.
    pub(super) fn is_settled(&self) -> bool {
        let map = self.monitor.map();
        map.pools.get(&POOL).is_some_and(|p| p.pg_num_pending == p.pg_num)
            && !map.pools.contains_key(&SECOND)
            && self.clients.iter().all(|c| c.left == 0 && c.current.is_none())
            && self.all_clean()
            && self.all_trimmed()
            && self.all_applied()
    }

    /// All monitors show what is agreed on.
    fn all_applied(&self) -> bool {
        self.group.mons.iter().all(|m| m.running && m.applied + 1 == self.group.commits.len())
    }

    /// All OSDs are up and all PGs are clean with the newest map.
    pub(super) fn all_clean(&self) -> bool {
        let map = self.monitor.map();
        map.osds.iter().all(|o| o.up || !o.exists)
            && self.osds.iter().all(|o| match map.osd(o.id) {
                Some(known) => known.incarnation == o.incarnation,
                None => self.gone.contains(&o.id),
            })
            && self.pgids().into_iter().all(|pgid| {
                map.mapping(pgid).primary.is_some_and(|primary| {
                    let mut pgs = self.osds[primary.osd.0 as usize].pgs();
                    let led = SpgId { pgid, shard: primary.shard };
                    pgs.any(|(id, pg)| *id == led && pg.is_clean() && pg.epoch() == map.epoch)
                })
            })
    }

    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        for osd in &self.osds {
            let _ = writeln!(
                text,
                "osd.{} incarnation {} map {:?}",
                osd.id,
                osd.incarnation,
                self.monitor.map().osd(osd.id)
            );
            for (pgid, pg) in osd.pgs() {
                let _ = writeln!(
                    text,
                    "  {pgid} {} {} {:?} {:?} missing {:?} {:?}",
                    pg.state(),
                    pg.phase_name(),
                    pg.mapping(),
                    pg.info(),
                    pg.missing(),
                    pg.backfills().collect::<Vec<_>>()
                );
            }
        }
        let _ = writeln!(
            text,
            "leader {:?} of term {}, {} agreed on, commands {:?}",
            self.group.leader,
            self.group.term,
            self.group.commits.len(),
            self.group.commands
        );
        for (number, m) in self.group.mons.iter().enumerate() {
            let _ = writeln!(text, "mon.{number} {m:?}");
        }
        let _ = writeln!(text, "sessions {:?}", self.sessions);
        for c in self.clients.iter().filter(|c| c.current.is_some()) {
            let _ = writeln!(text, "client {c:?}");
        }
        text
    }

    /// Replicas are identical, what is there is what clients wrote, and no copy is where it should
    /// not be.
    pub(super) fn judge(&mut self) -> Result<(), String> {
        let map = self.monitor.map().clone();
        if !self.all_applied() {
            return Err(format!("monitors differ\n{}", self.describe()));
        }
        for osd in &mut self.osds {
            let all = osd.disk.unflushed();
            osd.disk.crash(all);
        }
        for pgid in self.pgids() {
            self.judge_group(pgid, &map)?;
        }
        for osd in &self.osds {
            if let Some(pg) = osd.disk.state().colls.keys().find(|pg| {
                pg.pgid.pool == SECOND || pg.pgid.seed >= map.pools[&pg.pgid.pool].pg_num
            }) {
                return Err(format!(
                    "osd.{} still has a copy of {pg}, which does not exist",
                    osd.id
                ));
            }
        }
        self.read_everything(&map)?;
        self.history.check()
    }

    /// The copies of a group are where they should be, alike, and what their rows say.
    fn judge_group(&self, pgid: PgId, map: &MapModel) -> Result<(), String> {
        let pg::Mapping { up, acting, .. } = map.mapping(pgid);
        if acting.len() != self.scenario.size as usize || up.iter().any(|o| !acting.contains(o)) {
            return Err(format!("{pgid}: up {up:?}, acting {acting:?}"));
        }
        if let Some(coded) = self.scenario.erasure {
            self.judge_shards(pgid, &acting, &coded.rules)?;
        }
        let state = |c: &PgShard| self.osds[c.osd.0 as usize].disk.state();
        let coll = |c: &PgShard| state(c).colls.get(&SpgId { pgid, shard: c.shard }).cloned();
        let first =
            coll(&acting[0]).ok_or(format!("{pgid}: no collection on osd.{}", acting[0]))?;
        if self.scenario.erasure.is_none() {
            for osd in &acting[1..] {
                let other = coll(osd).ok_or(format!("{pgid}: no collection on osd.{osd}"))?;
                self.compare_replicas(&first, &other)
                    .map_err(|wrong| format!("{pgid}: osd.{} and osd.{osd}: {wrong}", acting[0]))?;
            }
        }
        for osd in &self.osds {
            let here = osd.disk.state().colls.keys().filter(|c| c.pgid == pgid);
            let left = |c: &SpgId| !acting.contains(&PgShard { osd: osd.id, shard: c.shard });
            if here.into_iter().any(left) {
                return Err(format!("{pgid}: osd.{} still has a copy", osd.id));
            }
        }
        let loaded = pg::rows::load(SpgId { pgid, shard: acting[0].shard }, first.rows.clone())
            .map_err(|e| e.to_string())?;
        let counted = loaded.info.stats_invalid
            || loaded.info.stats.num_objects == first.objects.len() as i64;
        let live = map.snaps.get(&pgid.pool).map(|s| s.live.clone()).unwrap_or_default();
        for osd in acting.iter() {
            clones(&state(osd).colls[&SpgId { pgid, shard: osd.shard }], &live)
                .map_err(|wrong| format!("{pgid} on osd.{osd}: {wrong}"))?;
        }
        let bits = pgid.split_bits(map.pools[&pgid.pool].pg_num);
        if let Some(oid) = first.objects.keys().find(|o| !pgid.contains_hash(bits, o.hash)) {
            return Err(format!("{pgid} has {oid}, which belongs elsewhere"));
        }
        if !loaded.missing.is_empty() || !counted {
            return Err(format!(
                "{pgid}: {} objects, {:?}",
                first.objects.len(),
                loaded.info.stats
            ));
        }
        Ok(())
    }

    /// Two replicas hold the same.
    fn compare_replicas(&self, a: &Coll, b: &Coll) -> Result<(), String> {
        if a.objects != b.objects {
            return Err(format!("replicas differ\n{:#?}\n{:#?}", a.objects, b.objects));
        }
        let log = |c: &Coll| {
            c.rows
                .iter()
                .filter(|(k, _)| k[0] == b'l')
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect::<Vec<_>>()
        };
        // Trimming is not in step; what both have must be the same.
        let (a, b) = (log(a), log(b));
        if !a.ends_with(&b) && !b.ends_with(&a) || (!self.scenario.short_logs && a != b) {
            return Err("logs differ".into());
        }
        Ok(())
    }

    /// One last read of everything, straight from the primary's disk.
    fn read_everything(&mut self, map: &MapModel) -> Result<(), String> {
        let cells = self.scenario.cells();
        for object in 0..self.scenario.objects {
            let pgid = self.pgid_of(object, map.epoch);
            let primary = map.mapping(pgid).primary.ok_or("no primary")?;
            let state = self.osds[primary.osd.0 as usize].disk.state();
            let coll = &state.colls[&SpgId { pgid, shard: primary.shard }];
            let last = |did| Done {
                client: usize::MAX,
                did,
                epoch: Epoch(u32::MAX),
                start: u64::MAX - 1,
                end: u64::MAX,
            };
            let oid = object_id(POOL, object / cells);
            let ops = self.history.objects.entry(object).or_default();
            if cells > 1 {
                // That shards hold what rows say was judged before.
                let row = crate::cells::row(object % cells);
                let value = coll.objects.get(&oid).and_then(|o| o.omap.get(&row));
                let word = |v: &bytes::Bytes| {
                    u64::from_le_bytes(v[..].try_into().expect("written by this model"))
                };
                ops.push(last(Did::Read(value.map(word))));
                continue;
            }
            ops.push(last(Did::Read(coll.objects.get(&oid).and_then(value_of))));
            for snap in map.snaps.get(&POOL).into_iter().flat_map(|s| &s.live) {
                let at = match coll
                    .objects
                    .get(&oid)
                    .map_or(At::Head, |head| locate(&head.snapset, *snap))
                {
                    At::Head => Some(oid.clone()),
                    At::Clone(clone) => Some(oid.at(clone)),
                    At::Nothing => None,
                };
                ops.push(last(Did::ReadAt(
                    *snap,
                    at.and_then(|oid| coll.objects.get(&oid)).and_then(value_of),
                )));
            }
        }
        Ok(())
    }
}

impl World {
    /// Shards are what the code makes of objects, and hold what clients wrote.
    fn judge_shards(&self, pgid: PgId, acting: &[PgShard], rules: &Erasure) -> Result<(), String> {
        let layout = rules.layout;
        let code = Code::new(rules.technique, layout.k(), layout.m()).expect("a code");
        let cell = self.scenario.erasure.map_or(0, |e| e.cell);
        let mut colls: BTreeMap<Shard, &Coll> = BTreeMap::new();
        for c in acting {
            let state = self.osds[c.osd.0 as usize].disk.state();
            let coll = state.colls.get(&SpgId { pgid, shard: c.shard });
            let coll = coll.ok_or(format!("{pgid}: no collection on osd.{c}"))?;
            if !coll.undo.is_empty() {
                return Err(format!("{pgid} on osd.{c}: what takes changes back stays for ever"));
            }
            let loaded = pg::rows::load(SpgId { pgid, shard: c.shard }, coll.rows.clone())
                .map_err(|e| e.to_string())?;
            if !loaded.missing.is_empty() {
                return Err(format!("{pgid} on osd.{c}: {:?} is missing", loaded.missing));
            }
            colls.insert(c.shard.0 as Shard, coll);
        }
        let lead = layout.primary_capable();
        let first = &colls[&lead.iter().next().expect("one may lead")].objects;
        for coll in colls.values() {
            if let Some(oid) = coll.objects.keys().find(|oid| !first.contains_key(oid)) {
                return Err(format!("{pgid}: a shard of {oid} is left, which does not exist"));
            }
        }
        for (oid, object) in first {
            let wrong = |what: String| Err(format!("{pgid}: {oid}: {what}"));
            let Some(known) = object.lead() else { return wrong("it is not known".into()) };
            let rows = layout.shard_size(layout.k() as Shard, known.size) as usize;
            let mut shards = Vec::new();
            for (shard, coll) in &colls {
                let expected = known.shards.get(&ShardId(*shard as i8)).copied();
                let expected = expected.unwrap_or(object.version);
                let here = coll.objects.get(oid);
                let has = here.map(|o| o.version).unwrap_or_default();
                if has != expected {
                    return wrong(format!("shard {shard} has {has}, expected {expected}"));
                }
                let mut bytes = here.map(|o| o.data.clone()).unwrap_or_default();
                if bytes.len() as u64 > layout.shard_size(*shard, known.size) {
                    return wrong(format!("shard {shard} is too long"));
                }
                bytes.resize(rows, 0);
                shards.push(bytes);
                if lead.contains(*shard)
                    && here.is_none_or(|o| (o.lead(), &o.omap) != (Some(known), &object.omap))
                {
                    return wrong(format!("shard {shard} knows something else: {here:?}"));
                }
            }
            let (data, parity) = shards.split_at(layout.k());
            let mut made = vec![vec![0; rows]; layout.m()];
            code.encode(
                &data.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                &mut made.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            );
            if made != parity {
                return wrong("parity is not what the code makes of the data".into());
            }
            let byte = |at: u64| {
                let (shard, offset) = layout.locate(at);
                data[usize::from(shard)].get(offset as usize).copied().unwrap_or(0)
            };
            for n in 0..crate::cells::CELLS {
                let bytes: Vec<u8> = (n * cell..(n + 1) * cell).map(byte).collect();
                let value = crate::cells::value_of(&bytes, cell)
                    .map_err(|torn| format!("{pgid}: {oid}: {torn}"))?;
                let row = object.omap.get(&crate::cells::row(n)).cloned();
                if row != value.map(crate::cells::row_value) {
                    return wrong(format!("cell {n} holds {value:?}, and its row says {row:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Clones are those of their heads, for snapshots that there are, and are found by them.
fn clones(coll: &Coll, live: &[SnapId]) -> Result<(), String> {
    for oid in coll.objects.keys().filter(|o| !o.is_head()) {
        let head = coll.objects.get(&oid.head()).ok_or(format!("clone {oid} has no head"))?;
        if !head.snapset.clones.contains(&oid.snap) {
            return Err(format!("clone {oid} is not one of its head's: {:?}", head.snapset));
        }
    }
    for (oid, head) in &coll.objects {
        for clone in &head.snapset.clones {
            let snaps = head.snapset.clone_snaps.get(clone).cloned().unwrap_or_default();
            let clone = oid.at(*clone);
            if !coll.objects.contains_key(&clone) {
                return Err(format!("clone {clone} is missing"));
            }
            if snaps.is_empty() || snaps.iter().any(|s| !live.contains(s)) {
                return Err(format!(
                    "clone {clone} is left of removed snapshots: {snaps:?} of {live:?}"
                ));
            }
            if coll.snaps(&clone) != snaps
                || snaps
                    .iter()
                    .any(|s| !coll.mapper.contains_key(&pg::snap_mapper::snap_row(*s, &clone).0))
            {
                return Err(format!(
                    "clone {clone} of {snaps:?} is not found by its snapshots: {:?}",
                    coll.snaps(&clone)
                ));
            }
        }
        if head.whiteout && head.snapset.clones.is_empty() {
            return Err(format!("{oid} is deleted, and stays for nothing"));
        }
    }
    Ok(())
}
