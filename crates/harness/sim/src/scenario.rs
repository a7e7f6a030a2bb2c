//! What a run is made of, and what it came to.

use std::collections::BTreeMap;
use std::time::Duration;

use pg::{Erasure, PgConf, PoolKind};

use crate::bug::Bug;
use crate::rng::mix;

/// An erasure-coded pool.
#[derive(Clone, Copy, Debug)]
pub struct Coded {
    /// Its rules.
    pub rules: Erasure,
    /// Bytes of a cell.
    pub cell: u64,
}

/// What a run is made of. Everything else follows from the seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// OSDs.
    pub osds: usize,
    /// Monitors.
    pub monitors: usize,
    /// Replicas wanted.
    pub size: u32,
    /// Replicas needed.
    pub min_size: u32,
    /// PGs of the pool.
    pub pg_num: u32,
    /// Clients; each has one operation under way.
    pub clients: usize,
    /// Operations of each client.
    pub ops: u64,
    /// Objects.
    pub objects: u64,
    /// Thousandths of a chance that a fault is the crash of one OSD; otherwise all crash, or the
    /// placement changes.
    pub crash_one: u64,
    /// Thousandths: all OSDs lose power.
    pub power_cut: u64,
    /// Thousandths: an OSD goes out or comes in.
    pub reweight: u64,
    /// Thousandths: a flush takes long.
    pub slow_flush: u64,
    /// Thousandths: a message takes long.
    pub slow_net: u64,
    /// Thousandths: a crashed OSD stays away for seconds.
    pub slow_restart: u64,
    /// Thousandths: an OSD loses its disk, if all PGs are clean.
    pub lose_disk: u64,
    /// Thousandths of that: another OSD loses its disk, too.
    pub lose_two: u64,
    /// Thousandths: `nobackfill` is set or cleared.
    pub nobackfill: u64,
    /// Thousandths: a copy that is to be filled finds no room at first.
    pub tight: u64,
    /// Thousandths: the next fault comes soon.
    pub hasty: u64,
    /// Thousandths: the pool gets more PGs, or `pgp_num` follows.
    pub pg_num_change: u64,
    /// Logs are so short that an OSD may come back too late to be brought up to date by log.
    pub short_logs: bool,
    /// Whether a second pool is created and deleted.
    pub second_pool: bool,
    /// Thousandths: an OSD is cut off, from all others or from some, in both directions or in one.
    pub cut_off: u64,
    /// Thousandths: the network falls into two parts, OSDs and clients in each, in both directions
    /// or in one.
    pub partition: u64,
    /// Thousandths: connections between OSDs, or of clients, break. OSDs send again what was not
    /// acknowledged.
    pub reset: u64,
    /// Thousandths: the process of an OSD stands still.
    pub pause: u64,
    /// Thousandths: another acting set is asked for.
    pub churn: u64,
    /// Thousandths: a block goes bad.
    pub bad_block: u64,
    /// Thousandths: a bit of an object's data changes on a disk, without a word.
    pub flipped_bit: u64,
    /// Thousandths: a bit changes that no checksum covers, and no client reads, on an OSD that does
    /// not lead.
    pub unseen_bit: u64,
    /// Thousandths: an OSD's disk is slow for some time.
    pub slow_disk: u64,
    /// Thousandths: an OSD's store is full for some time.
    pub full: u64,
    /// Thousandths: an OSD that is called down by mistake is called out as well.
    pub auto_out: u64,
    /// Thousandths: a read of a client takes long.
    pub slow_reads: u64,
    /// Thousandths: a read for recovery that no client waits for waits long.
    pub slow_recovery: u64,
    /// Thousandths: a request of a client comes twice.
    pub duplicates: u64,
    /// Thousandths of requests that delete, whatever they would do otherwise.
    pub deletes: u64,
    /// Thousandths: any acting OSD is asked to read.
    pub balanced: u64,
    /// Thousandths: `norecover` is set or cleared.
    pub norecover: u64,
    /// Thousandths of a chance that an operator, seeing unfound objects, declares OSDs that are
    /// away lost, some of which are. Then, or when all OSDs that may have them are there, the
    /// operator gives the objects up. For clusters of one PG: of others, more may be lost with an
    /// OSD.
    pub give_up: u64,
    /// Thousandths: an OSD with an empty disk comes; one of a new number, or of the number of one
    /// that went.
    pub add_osd: u64,
    /// Thousandths: an OSD is taken out, waited for until nothing is on it, and removed from the
    /// map.
    pub remove_osd: u64,
    /// Thousandths: another size and `min_size` of the pool.
    pub resize: u64,
    /// Thousandths: all monitors are away for a while.
    pub monitors_away: u64,
    /// Thousandths: a monitor dies, stands still, or is cut off from others or from a session, or
    /// the leader is replaced.
    pub monitor_fault: u64,
    /// Thousandths of the maps that are lost with an OSD's session, which is found out late.
    pub lost_maps: u64,
    /// Thousandths of the maps that are late, to OSDs or from monitor to monitor, and those after
    /// them on the link with them.
    pub late_maps: u64,
    /// Thousandths: an OSD that crashes is taken out, and comes back when old maps are gone.
    pub long_away: u64,
    /// Thousandths: the monitors forget old maps.
    pub trim_maps: u64,
    /// Thousandths by which the speed of clocks differs from the world's.
    pub drift: u64,
    /// Thousandths: every half second or so, a snapshot is made or removed. Not with objects that
    /// are given up.
    pub snaps: u64,
    /// The pool is erasure-coded.
    pub erasure: Option<Coded>,
    /// Options of the PGs.
    pub conf: PgConf,
    /// A bug to put back.
    pub bug: Bug,
}

impl Default for Scenario {
    fn default() -> Self {
        let conf = PgConf {
            recovery_max_chunk: 16,
            recovery_max_omap_entries: 1,
            recovery_max_active: 2,
            async_recovery_min_cost: 4,
            epoch_persisted_max_stale: 3,
            removal_batch: 2,
            read_lease: Duration::from_millis(600),
            scrub_chunk_min: 1,
            scrub_chunk_max: 3,
            scrub_max_preemptions: 1,
            ..PgConf::default()
        };
        Self {
            osds: 4,
            monitors: 3,
            size: 3,
            min_size: 2,
            pg_num: 2,
            clients: 4,
            ops: 40,
            objects: 8,
            crash_one: 700,
            power_cut: 150,
            reweight: 150,
            slow_flush: 50,
            slow_net: 10,
            slow_restart: 250,
            lose_disk: 0,
            lose_two: 0,
            nobackfill: 0,
            tight: 0,
            hasty: 300,
            pg_num_change: 0,
            short_logs: false,
            second_pool: true,
            cut_off: 0,
            partition: 0,
            reset: 0,
            pause: 0,
            churn: 0,
            bad_block: 0,
            flipped_bit: 0,
            unseen_bit: 0,
            slow_disk: 0,
            full: 0,
            auto_out: 0,
            slow_reads: 10,
            slow_recovery: 100,
            deletes: 0,
            duplicates: 0,
            balanced: 100,
            norecover: 0,
            give_up: 0,
            monitors_away: 0,
            monitor_fault: 0,
            lost_maps: 0,
            late_maps: 0,
            long_away: 0,
            trim_maps: 0,
            add_osd: 0,
            remove_osd: 0,
            resize: 0,
            drift: 10,
            snaps: 0,
            erasure: None,
            conf,
            bug: Bug::None,
        }
    }
}

impl Scenario {
    /// How the pool keeps its objects.
    pub fn kind(&self) -> PoolKind {
        self.erasure.map_or(PoolKind::Replicated, |e| PoolKind::Erasure(e.rules))
    }

    /// Cells of an object; one if objects are written as a whole.
    pub fn cells(&self) -> u64 {
        self.erasure.map_or(1, |_| crate::cells::CELLS)
    }

    /// An erasure-coded pool in trouble: the seed decides shape, stripe unit and kind of trouble.
    pub fn coded(seed: u64) -> Self {
        let (k, m) = [(2, 1), (2, 2), (4, 2)][(seed % 3) as usize];
        let unit = 4096 * (1 + mix(seed ^ 1) % 3);
        let technique = [
            ec::Technique::JerasureReedSolVan,
            ec::Technique::IsaReedSolVan,
            ec::Technique::IsaCauchy,
        ][(mix(seed ^ 2) % 3) as usize];
        let layout = ec::Layout::new(k, m, unit).expect("a layout");
        // From a part of a block to more than a stripe.
        let cell =
            [700, 4096, unit + 512, unit * k as u64, 3 * unit + 1000][(mix(seed ^ 3) % 5) as usize];
        let size = (k + m) as u32;
        let base =
            Self::crashes([0, 1, 4, 5, 6, 7, 8, 9][(seed / 3 % 8) as usize] + seed / 3 % 3 * 10);
        let spare = base.osds.saturating_sub(base.size as usize).min(2);
        let conf = PgConf {
            recovery_max_chunk: [1 << 10, unit / 2, 8 << 20][(mix(seed ^ 4) % 3) as usize],
            ..base.conf.clone()
        };
        let base = Self {
            osds: size as usize + spare,
            size,
            // Also the least that can serve.
            min_size: k as u32 + u32::from(m > 1 && !mix(seed ^ 5).is_multiple_of(4)),
            objects: base.objects.max(8).next_multiple_of(crate::cells::CELLS),
            ops: base.ops,
            erasure: Some(Coded { rules: Erasure { layout, technique }, cell }),
            second_pool: false,
            balanced: 0,
            snaps: 0,
            resize: 0,
            conf,
            ..base
        };
        let base = if seed / 24 % 2 == 1 { base.bad_monitors() } else { base };
        let base = if seed / 48 % 2 == 1 { base.cut_off(seed) } else { base };
        let conf = PgConf { scrub_auto_repair: seed.is_multiple_of(2), ..base.conf.clone() };
        // An object must do without a damaged shard while others are away: not with disks that are
        // lost, and not where k shards may serve.
        let spare = base.lose_disk == 0 && m > 1 && base.min_size > k as u32;
        let flipped_bit = if spare && seed % 4 == 3 { 160 } else { 0 };
        let monitors = [1, 3][(seed % 2) as usize];
        Self { balanced: 0, churn: 0, monitors, flipped_bit, conf, ..base }
    }

    /// The seed also decides the shape of the cluster and the kind of trouble.
    pub fn shape(seed: u64) -> Self {
        let base = Self { monitors: [1, 3, 5][(mix(seed) % 3) as usize], ..Self::crashes(seed) };
        let base = if seed / 40 % 2 == 1 { base.bad_monitors() } else { base };
        let base = if seed % 3 == 1 { Self { snaps: 700, ..base } } else { base };
        match seed / 10 % 4 {
            1 => base.cut_off(seed),
            2 => base.bad_disks(),
            3 => base.bad_disks().cut_off(seed),
            _ => base,
        }
    }

    /// OSDs that are cut off or stand still, and are called down without knowing it.
    pub fn cut_off(self, seed: u64) -> Self {
        let lease = [200, 600, 2_000][(seed / 40 % 3) as usize];
        let conf = PgConf { read_lease: Duration::from_millis(lease), ..self.conf };
        let part = |n: u64| n / 2;
        Self {
            cut_off: 200,
            partition: 80,
            reset: 120,
            pause: 130,
            auto_out: 100,
            churn: 50,
            duplicates: 30,
            balanced: 300,
            crash_one: part(self.crash_one),
            power_cut: part(self.power_cut),
            reweight: part(self.reweight),
            lose_disk: part(self.lose_disk),
            conf,
            ..self
        }
    }

    /// Monitors that fail, maps that are late or lost, or gone for ever when an OSD comes back.
    pub fn bad_monitors(self) -> Self {
        Self {
            monitors_away: 40,
            monitor_fault: 250,
            lost_maps: 30,
            late_maps: 60,
            long_away: 150,
            trim_maps: 60,
            ..self
        }
    }

    /// Disks that fail, are slow, or are full, and orders that move PGs about.
    pub fn bad_disks(self) -> Self {
        let part = |n: u64| n * 6 / 10;
        let damage = |n: u64| if self.lose_disk == 0 && self.size > 2 { n } else { 0 };
        let conf = PgConf { scrub_auto_repair: true, ..self.conf };
        Self {
            // Of what cannot be read here there must be another copy: not with disks that are lost,
            // and not in groups of two, where the other copy may be the one that had a write which
            // was never acknowledged, and takes it back. Nor with snapshots: a clone of what cannot
            // be read cannot be read either, and may be the only one while others have not heard of
            // the write that made it.
            bad_block: if self.snaps == 0 { damage(80) } else { 0 },
            flipped_bit: if self.snaps == 0 { damage(160) } else { 0 },
            unseen_bit: damage(60),
            conf,
            resize: if self.lose_disk == 0 { 0 } else { self.resize },
            slow_disk: 80,
            full: 70,
            churn: 100,
            duplicates: 30,
            crash_one: part(self.crash_one),
            power_cut: part(self.power_cut),
            reweight: part(self.reweight),
            lose_disk: part(self.lose_disk),
            ..self
        }
    }

    /// Crashes, and nothing else.
    pub fn crashes(seed: u64) -> Self {
        let base = Self::default();
        match seed % 10 {
            shape @ 6..10 => {
                let conf = PgConf {
                    backfill_scan: [1, 3, 8][(seed / 10 % 3) as usize],
                    min_pg_log_entries: 3,
                    target_pg_log_entries: 4,
                    max_pg_log_entries: 12,
                    pg_log_trim_min: 2,
                    // More than other clients write while a request is under way.
                    pg_log_dups_tracked: 120,
                    ..base.conf.clone()
                };
                let base = Self { conf, short_logs: true, tight: 100, objects: 24, ..base };
                match shape {
                    // Restarts that take long.
                    6 => Self { reweight: 0, pg_num: 1, slow_restart: 600, ..base },
                    // Disks are replaced.
                    7 => Self {
                        osds: 3,
                        reweight: 0,
                        resize: 60,
                        pg_num_change: 80,
                        lose_disk: 400,
                        lose_two: 500,
                        min_size: 2 - (seed / 10 % 2) as u32,
                        crash_one: 450,
                        power_cut: 50,
                        ops: 60,
                        ..base
                    },
                    // OSDs come and go.
                    8 => Self {
                        osds: 6,
                        add_osd: 80,
                        remove_osd: 80,
                        resize: 40,
                        pg_num_change: 100,
                        reweight: 450,
                        lose_disk: 50,
                        nobackfill: 50,
                        crash_one: 300,
                        power_cut: 50,
                        ops: 60,
                        ..base
                    },
                    // All of it, with slow disks.
                    _ => Self {
                        osds: 5,
                        add_osd: 50,
                        remove_osd: 50,
                        pg_num_change: 100,
                        reweight: 250,
                        lose_disk: 150,
                        lose_two: 300,
                        nobackfill: 50,
                        crash_one: 350,
                        power_cut: 100,
                        slow_flush: 300,
                        slow_net: 60,
                        hasty: 600,
                        ops: 60,
                        ..base
                    },
                }
            }
            0 => Self { osds: 3, reweight: 0, crash_one: 850, ..base },
            1 => Self { osds: 3, power_cut: 600, crash_one: 400, reweight: 0, ..base },
            2 => Self {
                osds: 2,
                size: 2,
                min_size: 1,
                reweight: 0,
                crash_one: 500,
                power_cut: 400,
                slow_flush: 300,
                ..base
            },
            3 => Self {
                osds: 6,
                pg_num: 1,
                add_osd: 80,
                remove_osd: 80,
                resize: 60,
                pg_num_change: 150,
                objects: 16,
                crash_one: 400,
                reweight: 350,
                power_cut: 100,
                ..base
            },
            5 => Self {
                osds: 4,
                pg_num: 1,
                resize: 80,
                pg_num_change: 150,
                objects: 16,
                crash_one: 500,
                power_cut: 250,
                reweight: 100,
                ..base
            },
            4 => Self { objects: 2, clients: 4, ops: 28, slow_net: 150, ..base },
            _ => base,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Hash over everything that happened.
    pub trace: u64,
    /// Events processed.
    pub events: u64,
    /// Map epochs.
    pub epochs: u32,
    /// Operations answered.
    pub answered: u64,
    /// How often something rare happened.
    pub marks: BTreeMap<&'static str, u64>,
}
