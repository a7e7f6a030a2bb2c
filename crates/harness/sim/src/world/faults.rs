//! What goes wrong: processes and disks that go, networks that are cut.

use types::OsdId;

use super::damage::Damage;
use super::parts::Party;
use super::{Ev, MS, POOL, Time, World, mon_end};
use crate::bug::Bug;
use crate::monitor::MonMsg;
use crate::osd::Clock;
use crate::scenario::Scenario;

/// Kinds of trouble.
#[derive(Clone, Copy)]
enum Trouble {
    Crash,
    PowerCut,
    Reweight,
    LoseDisk,
    NoBackfill,
    PgNum,
    CutOff,
    Pause,
    Churn,
    BadBlock,
    SlowDisk,
    NoRecover,
    Full,
    FlippedBit,
    UnseenBit,
    AddOsd,
    RemoveOsd,
    Resize,
    Partition,
    Reset,
    MonitorsAway,
    TrimMaps,
    MonitorFault,
}

impl Scenario {
    /// How often each kind comes, of a thousand times.
    fn troubles(&self) -> [(Trouble, u64); 23] {
        use Trouble::*;
        [
            (Crash, self.crash_one),
            (PowerCut, self.power_cut),
            (Reweight, self.reweight),
            (LoseDisk, self.lose_disk),
            (NoBackfill, self.nobackfill),
            (PgNum, self.pg_num_change),
            (CutOff, self.cut_off),
            (Pause, self.pause),
            (Churn, self.churn),
            (BadBlock, self.bad_block),
            (SlowDisk, self.slow_disk),
            (NoRecover, self.norecover),
            (Full, self.full),
            (FlippedBit, self.flipped_bit),
            (UnseenBit, self.unseen_bit),
            (AddOsd, self.add_osd),
            (RemoveOsd, self.remove_osd),
            (Resize, self.resize),
            (Partition, self.partition),
            (Reset, self.reset),
            (MonitorsAway, self.monitors_away),
            (TrimMaps, self.trim_maps),
            (MonitorFault, self.monitor_fault),
        ]
    }
}

impl World {
    pub(super) fn fault(&mut self) {
        if self.calm {
            return;
        }
        let troubles = self.scenario.troubles();
        let total: u64 = troubles.iter().map(|(_, often)| often).sum();
        let dice = self.rng.range(0, 1_000.max(total));
        let mut end = 0;
        let hit = troubles.into_iter().find(|(_, often)| {
            end += often;
            dice < end
        });
        if let Some((trouble, _)) = hit {
            self.happen(trouble, dice);
        }
        let next = if self.rng.permille(self.scenario.hasty) {
            self.rng.range(10 * MS, 300 * MS)
        } else {
            self.rng.range(300 * MS, 3_000 * MS)
        };
        self.after(next, Ev::Fault);
    }

    fn any_osd(&mut self) -> OsdId {
        OsdId(self.rng.range(0, self.osds.len() as u64) as i32)
    }

    fn happen(&mut self, trouble: Trouble, dice: u64) {
        let osd = match trouble {
            Trouble::PowerCut | Trouble::LoseDisk | Trouble::NoBackfill | Trouble::PgNum => {
                OsdId(0)
            }
            _ => self.any_osd(),
        };
        match trouble {
            Trouble::Crash => self.crash(osd),
            Trouble::PowerCut => {
                for osd in 0..self.osds.len() {
                    self.crash(OsdId(osd as i32));
                }
            }
            Trouble::Reweight => {
                let is_in = self.monitor.map().osd(osd).is_some_and(|o| o.is_in);
                if !is_in || self.may_go_out() {
                    self.after(0, Ev::Mon(MonMsg::SetIn(osd, !is_in)));
                }
            }
            // Of anything that was acknowledged there must be another copy.
            Trouble::LoseDisk if self.all_clean() => self.lose_disks(),
            Trouble::LoseDisk => {}
            Trouble::NoBackfill => {
                let on = !self.monitor.map().nobackfill;
                self.after(0, Ev::Mon(MonMsg::NoBackfill(on)));
            }
            Trouble::PgNum => self.change_pg_num(dice),
            Trouble::CutOff => self.cut_off(osd),
            Trouble::Pause => self.pause(osd),
            Trouble::Churn => self.churn(),
            Trouble::BadBlock => self.spoil(osd, Damage::Block),
            Trouble::SlowDisk => {
                let until = self.now + self.rng.range(500 * MS, 5_000 * MS);
                self.slow.insert(osd, until);
                self.mark("disk is slow");
            }
            Trouble::NoRecover => {
                let on = !self.monitor.map().norecover;
                self.after(0, Ev::Mon(MonMsg::NoRecover(on)));
            }
            Trouble::Full => {
                let until = self.rng.range(100 * MS, 2_000 * MS);
                self.osds[osd.0 as usize].full = true;
                self.after(0, Ev::Mon(MonMsg::Full(osd, true)));
                self.after(until, Ev::Room(osd));
                self.mark("store is full");
            }
            Trouble::FlippedBit => self.spoil(osd, Damage::Bit),
            Trouble::UnseenBit => self.spoil(osd, Damage::Unseen),
            Trouble::AddOsd => self.add_osd(),
            Trouble::RemoveOsd => self.remove_osd(osd),
            Trouble::Resize => self.resize(),
            Trouble::Partition => self.partition(),
            Trouble::Reset => self.resets(),
            Trouble::MonitorsAway => self.monitors_away(),
            Trouble::TrimMaps => drop(self.trim_maps()),
            Trouble::MonitorFault => self.monitor_fault(),
        }
    }

    /// One OSD or two get new disks.
    fn lose_disks(&mut self) {
        let (osd, n) = (self.any_osd(), self.osds.len() as u64);
        self.lose(osd);
        let copies = self.monitor.map().pools.get(&POOL).map_or(0, |p| match p.kind.layout() {
            Some(layout) => 1 + layout.m() as u32,
            None => p.size,
        });
        if copies > 2 && self.rng.permille(self.scenario.lose_two) {
            let other = (osd.0 as u64 + self.rng.range(1, n)) % n;
            self.lose(OsdId(other as i32));
            self.mark("two disks replaced");
        }
    }

    fn change_pg_num(&mut self, dice: u64) {
        let map = self.monitor.map();
        let msg = match map.pools.get(&POOL) {
            Some(_) if map.pgp_num.contains_key(&POOL) && dice.is_multiple_of(2) => {
                Some(MonMsg::PgpNum(POOL))
            }
            Some(pool) if pool.pg_num > 1 && dice.is_multiple_of(3) => {
                Some(MonMsg::PgNum(POOL, pool.pg_num - 1))
            }
            Some(pool) if pool.pg_num < 12 => {
                Some(MonMsg::PgNum(POOL, pool.pg_num + 1 + (dice % 4) as u32))
            }
            _ => None,
        };
        if let Some(msg) = msg {
            self.after(0, Ev::Mon(msg));
        }
    }

    pub(super) fn start(&mut self, osd: OsdId) {
        if self.osds[osd.0 as usize].incarnation != 0 || self.gone.contains(&osd) {
            return;
        }
        self.incarnations += 1;
        let (incarnation, now) = (self.incarnations, self.now);
        let drift = self.scenario.drift;
        let rate = 1_000 - drift + self.rng.range(0, 2 * drift + 1);
        self.osds[osd.0 as usize].clock = Clock { offset: self.rng.range(0, 1 << 40), rate };
        self.osds[osd.0 as usize].start(incarnation, &self.monitor, now);
        self.carry_out(osd);
        let when = self.rng.range(1, 20 * MS);
        self.after(when, Ev::Hunt(Party::Osd(osd)));
    }

    fn crash(&mut self, osd: OsdId) {
        let incarnation = self.osds[osd.0 as usize].incarnation;
        if incarnation == 0 {
            return;
        }
        let unflushed = self.osds[osd.0 as usize].disk.unflushed();
        let survivors = self.rng.range(0, unflushed as u64 + 1) as usize;
        self.osds[osd.0 as usize].stop(survivors);
        self.end_session(Party::Osd(osd));
        for other in 0..self.osds.len() {
            if self.rng.permille(500) {
                self.cut.insert((incarnation, OsdId(other as i32)));
            }
        }
        let noticed = self.rng.range(100 * MS, 2_000 * MS);
        let dead = self.rng.permille(500);
        self.after(noticed, Ev::Mon(MonMsg::Failed(osd, incarnation, dead)));
        let out = self.rng.permille(self.scenario.long_away);
        if out && self.may_go_out() {
            // Long enough for the groups to be clean without it, and old maps to go.
            self.mark("away for long");
            self.after(noticed + 1, Ev::Mon(MonMsg::SetIn(osd, false)));
            self.after(noticed + 1_500 * MS, Ev::LongAway(osd, self.now + 10_000 * MS));
            return;
        }
        let back = if self.rng.permille(self.scenario.slow_restart) {
            self.rng.range(3_000 * MS, 8_000 * MS)
        } else if self.rng.permille(300) {
            self.rng.range(10 * MS, 200 * MS)
        } else {
            self.rng.range(500 * MS, 3_000 * MS)
        };
        self.after(back, Ev::Start(osd));
    }

    /// An OSD crashes and comes back with an empty disk.
    fn lose(&mut self, osd: OsdId) {
        if self.gone.contains(&osd) {
            return;
        }
        self.crash(osd);
        self.osds[osd.0 as usize].replace_disk();
    }

    /// An OSD is away and out until maps are gone that it has not seen, or it comes back for
    /// another reason.
    pub(super) fn long_away(&mut self, osd: OsdId, until: Time) {
        if self.osds[osd.0 as usize].incarnation != 0 {
            return;
        }
        self.trim_maps();
        if self.monitor.oldest > self.osds[osd.0 as usize].disk.state().epoch.next()
            || self.now > until
        {
            self.after(0, Ev::Mon(MonMsg::SetIn(osd, true)));
            self.after(0, Ev::Start(osd));
        } else {
            self.after(300 * MS, Ev::LongAway(osd, until));
        }
    }

    /// Cuts an OSD off for a while; perhaps it is called down and does not know it. Clients on its
    /// side of the cut do not hear of it either.
    fn cut_off(&mut self, osd: OsdId) {
        let until = self.now + self.rng.range(300 * MS, 6_000 * MS);
        let me = i64::from(osd.0);
        let (mut out, mut inward) = (true, true);
        match self.rng.range(0, 4) {
            0 => out = false,
            1 => inward = false,
            _ => {}
        }
        let everybody = self.rng.permille(500);
        let monitors: Vec<i64> = (0..self.group.mons.len()).map(mon_end).collect();
        let mut ends: Vec<i64> = Vec::new();
        for other in (0..self.osds.len() as i64).filter(|o| *o != me) {
            if everybody || self.rng.permille(500) {
                ends.push(other);
            }
        }
        if everybody || !self.rng.permille(300) {
            ends.extend(&monitors);
        }
        for end in ends {
            for link in
                [out.then_some((me, end)), inward.then_some((end, me))].into_iter().flatten()
            {
                self.block(link, until);
            }
        }
        for client in 0..self.clients.len() as i64 {
            if self.rng.permille(500) {
                for mon in &monitors {
                    self.block((*mon, 1000 + client), until);
                }
            }
        }
        self.mark("cut off");
        self.doubt_soon(Party::Osd(osd), 500 * MS, 3_000 * MS);
        self.suspect(osd);
    }

    /// The network falls into two parts for a while. Most monitors are in one.
    fn partition(&mut self) {
        let until = self.now + self.rng.range(300 * MS, 6_000 * MS);
        let one_way = self.rng.range(0, 4);
        let mut ends: Vec<i64> = (0..self.osds.len() as i64).collect();
        ends.extend((0..self.clients.len() as i64).map(|c| 1000 + c));
        let mut away: Vec<bool> = ends.iter().map(|_| self.rng.permille(400)).collect();
        for mon in 0..self.group.mons.len() {
            ends.push(mon_end(mon));
            away.push(self.rng.permille(300));
        }
        let side = |i: usize| away.get(i).copied().unwrap_or(false);
        for (i, a) in ends.iter().enumerate() {
            for (j, b) in ends.iter().enumerate() {
                let silent = match one_way {
                    0 => side(i) && !side(j),
                    1 => !side(i) && side(j),
                    _ => side(i) != side(j),
                };
                if silent {
                    self.block((*a, *b), until);
                }
            }
        }
        self.mark(if one_way < 2 { "partition in one direction" } else { "partition" });
        for party in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.doubt_soon(party, 500 * MS, 3_000 * MS);
        }
        self.after_cut();
        for at in 0..self.osds.len() {
            if side(at) {
                self.suspect(OsdId(at as i32));
            }
            for other in 0..at {
                // Connections do not survive it, or find out late.
                if side(at) != side(other) && self.rng.permille(500) {
                    self.at(until, Ev::Reset(OsdId(at as i32), OsdId(other as i32)));
                }
            }
        }
    }

    /// Connections break: of OSDs with each other, or of a client.
    fn resets(&mut self) {
        self.mark("connections reset");
        let n = self.osds.len() as u64;
        for _ in 0..self.rng.range(1, 5) {
            let (a, b) = (self.rng.range(0, n), self.rng.range(1, n));
            self.reset(OsdId(a as i32), OsdId(((a + b) % n) as i32));
        }
        let client = self.rng.range(0, self.clients.len() as u64) as usize;
        let of_client = |ev: &Ev| match ev {
            Ev::Op { op, .. } => op.client == client,
            Ev::Answer { client: c, .. } | Ev::Refused { client: c, .. } => *c == client,
            _ => false,
        };
        let lost: Vec<u64> =
            self.events.iter().filter(|(_, ev)| of_client(ev)).map(|(n, _)| *n).collect();
        for event in lost {
            if let Some(Ev::Answer { .. }) = self.events.remove(&event) {
                self.mark("answer lost");
            }
        }
        let back = self.rng.range(MS, 300 * MS);
        self.after(back, Ev::Resend(client));
    }

    /// A process stands still.
    fn pause(&mut self, osd: OsdId) {
        let until = self.now + self.rng.range(200 * MS, 5_000 * MS);
        let end = self.paused.entry(osd).or_default();
        *end = until.max(*end);
        self.mark("paused");
        self.suspect(osd);
    }

    fn suspect(&mut self, osd: OsdId) {
        let incarnation = self.osds[osd.0 as usize].incarnation;
        if incarnation != 0 && self.rng.permille(750) {
            let noticed = self.rng.range(20 * MS, 2_500 * MS);
            let dead = self.scenario.bug == Bug::SilentIsDead;
            self.after(noticed, Ev::Mon(MonMsg::Failed(osd, incarnation, dead)));
            if self.may_go_out() && self.rng.permille(self.scenario.auto_out) {
                self.after(noticed + 1, Ev::Mon(MonMsg::SetIn(osd, false)));
            }
        }
    }
}
