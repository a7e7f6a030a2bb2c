//! Disks that damage what they hold, and scrubs that must find it.

use pg::MapView;
use types::{ObjectId, OsdId, PgShard, SpgId};

use super::{MS, POOL, World};
use crate::content::{attr_of, object_id, value_of};
use crate::osd::Osd;

/// What a disk does to an object.
#[derive(Clone, Copy, Debug)]
pub(super) enum Damage {
    /// It cannot be read.
    Block,
    /// A bit of the data changes.
    Bit,
    /// A bit changes where no checksum sees it.
    Unseen,
}

impl World {
    /// A disk damages copies of objects that have others. While a write is on its way to them, one
    /// disk may be the only one that has its object as the log says: losing that one, too, is more
    /// than a group of two can stand.
    pub(super) fn spoil(&mut self, osd: OsdId, damage: Damage) {
        let (first, mut left) = (self.rng.range(0, self.scenario.objects), self.rng.range(1, 4));
        if !self.all_clean() {
            return;
        }
        for n in 0..self.scenario.objects {
            let object = (first + n) % self.scenario.objects;
            if self.damage(osd, object, damage) {
                left -= 1;
                if left == 0 {
                    return;
                }
            }
        }
    }

    fn damage(&mut self, osd: OsdId, object: u64, damage: Damage) -> bool {
        let map = self.monitor.map();
        let pgid = self.pgid_of(object, map.epoch);
        let pg::Mapping { acting, primary, .. } = map.mapping(pgid);
        if self.scenario.erasure.is_some() {
            // One shard of an object at a time: a code with one of parity stands no more.
            let oid = object_id(POOL, object / self.scenario.cells());
            let bad = |c: &PgShard| {
                let state = self.osds[c.osd.0 as usize].disk.state();
                let coll = state.colls.get(&SpgId { pgid, shard: c.shard });
                coll.and_then(|c| c.objects.get(&oid)).is_some_and(|o| !o.is_sound())
            };
            let Some(copy) = acting.on(osd) else { return false };
            if acting.iter().any(bad) {
                return false;
            }
            let bit = self.rng.next_u64();
            let disk = &mut self.osds[osd.0 as usize].disk;
            let empty = disk
                .state()
                .colls
                .get(&SpgId { pgid, shard: copy.shard })
                .and_then(|c| c.objects.get(&oid))
                .is_none_or(|o| o.data.is_empty());
            if empty || !disk.flip(SpgId { pgid, shard: copy.shard }, &oid, bit, false) {
                return false;
            }
            self.damaged.insert(oid);
            self.mark("bit of a shard changed");
            return true;
        }
        let pgid = SpgId::from(pgid);
        let oid = object_id(POOL, object);
        let has = self.osds[osd.0 as usize].disk.state().version(pgid, &oid);
        let others = || self.osds.iter().filter(|o| o.id != osd).map(|o| &o.disk);
        let sound = has.is_some() && others().any(|disk| disk.durable().version(pgid, &oid) == has);
        if acting.on(osd).is_none()
            || !sound
            || acting.osds().any(|o| is_damaged(&self.osds[o.0 as usize], pgid, &oid))
        {
            return false;
        }
        let disk = &mut self.osds[osd.0 as usize].disk;
        let (done, what) = match damage {
            Damage::Block => (disk.spoil(pgid, &oid), "block went bad"),
            Damage::Bit => (disk.flip(pgid, &oid, self.rng.next_u64(), false), "bit changed"),
            Damage::Unseen => (
                primary.is_none_or(|p| p.osd != osd)
                    && disk.flip(pgid, &oid, self.rng.next_u64(), true),
                "unseen bit changed",
            ),
        };
        if done {
            self.damaged.insert(oid);
            self.mark(what);
        }
        done
    }

    /// Scrubs complain of nothing but what a disk has damaged.
    pub(super) fn complaint(&mut self, osd: OsdId, text: &str) {
        let of_scrub = [
            "soid",
            "shard",
            "inconsistent objects",
            "errors",
            "stat mismatch",
            "clone",
            "snapset",
        ]
        .iter()
        .any(|w| text.contains(w));
        if !of_scrub {
            return;
        }
        let object = text.contains("soid") || text.contains("shard");
        let known = self.damaged.iter().any(|oid| !object || text.contains(&name_of(oid)));
        if !known || text.contains("stat mismatch") {
            self.note(Err(format!("osd.{osd}: a scrub says: {text}")));
        }
        self.mark("scrub found damage");
    }

    /// Operators repair until no copy differs from others, and none is unreadable or being made.
    pub(super) fn mend(&mut self) -> Result<(), String> {
        for _ in 0..40 {
            let damaged = self.is_damaged();
            if !damaged && self.all_clean() {
                return Ok(());
            }
            if !damaged {
                self.run_until(self.now + 5_000 * MS)?;
                continue;
            }
            self.mark("repair in the calm");
            let map = self.monitor.map().clone();
            for pgid in self.pgids() {
                if let Some(primary) = map.mapping(pgid).primary {
                    let led = SpgId { pgid, shard: primary.shard };
                    self.osds[primary.osd.0 as usize].repair(led, self.now);
                    self.carry_out(primary.osd);
                }
            }
            self.run_until(self.now + 5_000 * MS)?;
        }
        Err(format!("damage stays\n{}", self.describe()))
    }

    /// Whether a copy is unreadable, or differs from others.
    fn is_damaged(&self) -> bool {
        let map = self.monitor.map();
        if self.scenario.erasure.is_some() {
            return self.pgids().into_iter().any(|pgid| {
                map.mapping(pgid).acting.iter().any(|c| {
                    let state = self.osds[c.osd.0 as usize].disk.state();
                    let coll = state.colls.get(&SpgId { pgid, shard: c.shard });
                    coll.is_some_and(|c| c.objects.values().any(|o| !o.is_sound()))
                })
            });
        }
        self.pgids().into_iter().any(|pgid| {
            let copies: Vec<_> =
                map.mapping(pgid).acting.osds().map(|o| &self.osds[o.0 as usize]).collect();
            let pgid = SpgId::from(pgid);
            let objects = |o: &Osd| {
                o.disk.state().colls.get(&pgid).map(|c| c.objects.clone()).unwrap_or_default()
            };
            copies.windows(2).any(|pair| objects(pair[0]) != objects(pair[1]))
                || copies.iter().any(|o| {
                    objects(o)
                        .iter()
                        .any(|(oid, object)| !object.is_sound() || o.disk.is_bad(pgid, oid))
                })
        })
    }
}

/// What the names of an object and its clones begin with.
fn name_of(head: &ObjectId) -> String {
    head.to_string().trim_end_matches("head").to_owned()
}

/// Whether the copy here is not what was written.
fn is_damaged(osd: &Osd, pgid: SpgId, oid: &ObjectId) -> bool {
    let object = osd.disk.state().colls.get(&pgid).and_then(|c| c.objects.get(oid));
    osd.disk.is_bad(pgid, oid)
        || object.is_some_and(|o| !o.is_sound() || o.attr != value_of(o).map_or(0, attr_of))
}
