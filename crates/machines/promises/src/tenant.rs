//! A tenant, and the OSDs that are asked for something for it.

use crate::spec::Promise;
use messages::{ShareOfRate, TenantDemand, TenantNumber, TenantShare};
use qos::Fraction;
use std::collections::{BTreeMap, BTreeSet};
use types::OsdId;

/// Over about so many seconds demand is smoothed.
const SMOOTHING: f64 = 0.5;

/// A floor is missed, as far as dividing it goes, when its tenant gets less than so many times of
/// it: it is to be kept in each second.
const KEPT: f64 = 1.15;

/// What waits for a floor that is missed altogether is to be done within so many seconds.
const DRAIN: f64 = 0.1;

/// The weight of an OSD without demand, beside others with demand, fades from floors within about
/// so many seconds. Tenants' demand that ends on several OSDs within this time ends together.
const FADING: f64 = 0.1;

const TOGETHER: f64 = 0.3;

/// An OSD that rests is left out when it counts for less than this part of all that a tenant's
/// floor is divided by.
const FADED: f64 = 0.005;

/// A tenant that a specification describes, with names that OSDs know.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// Name, and what makes an operation its; without number and rates.
    pub whose: TenantShare,
    /// What it is promised by all OSDs together.
    pub promise: Promise,
}

/// An OSD that is asked for something for a tenant.
#[derive(Clone, Copy, Default)]
pub(crate) struct Member {
    /// Operations and bytes each second, smoothed.
    pub(crate) came: [f64; 2],
    pub(crate) waits: [f64; 2],
    pub(crate) queued: f64,
    /// Nothing is asked of it now. It counts for floors as it did, less and less while others are
    /// asked.
    pub(crate) rests: bool,
    /// For so long others were asked since.
    pub(crate) faded: f64,
    /// When something was heard of it; of one that rests, since when it counts for what it does.
    pub(crate) heard: f64,
    /// What it was told.
    pub(crate) told: Option<[Fraction; 3]>,
}

impl Member {
    pub(crate) fn take(&mut self, d: &TenantDemand, now: f64) {
        if std::mem::take(&mut self.rests) {
            self.heard = 0.0;
        }
        let seconds = f64::from(d.millis.max(1)) / 1000.0;
        let keep = if self.heard == 0.0 { 0.0 } else { (-seconds / SMOOTHING).exp() };
        for (had, came) in self.came.iter_mut().zip([f64::from(d.ops), d.bytes as f64]) {
            *had = *had * keep + came / seconds * (1.0 - keep);
        }
        self.waits = [f64::from(d.waiting_ops), d.waiting_bytes as f64];
        self.queued = f64::from(d.queued_ops);
        self.heard = now;
    }

    /// What counts for ceilings of operations, for those of bytes, and for floors, of which so much
    /// is missed ([`Tenant::missed`]).
    pub(crate) fn asked(&self, missed: f64) -> [f64; 3] {
        let [ops, bytes] = [0, 1].map(|i| self.came[i] + self.waits[i]);
        let floor = ops + self.queued * missed / DRAIN;
        if self.rests {
            [0.0, 0.0, floor * (-self.faded / FADING).exp()]
        } else {
            [ops, bytes, floor]
        }
    }
}

pub(crate) struct Tenant {
    pub(crate) resolved: Resolved,
    /// When it became what it is.
    pub(crate) version: u64,
    pub(crate) members: BTreeMap<OsdId, Member>,
    /// Members that are asked for nothing any more and were not told yet that their part is a
    /// standing one.
    pub(crate) left: BTreeSet<OsdId>,
}

impl Tenant {
    pub(crate) fn is_divided(&self) -> bool {
        self.has_floor() || !self.resolved.promise.ceilings.is_unlimited()
    }

    pub(crate) fn has_floor(&self) -> bool {
        self.resolved.promise.floors != [0, 0]
    }

    /// The part of its floor that it does not get on OSDs that count, from 0 to 1. Where it gets
    /// its floor, parts are as what comes: clients keep what they have under way, so what has
    /// gathered on the slowest OSD is no sign that more is due there, and with all of the floor
    /// there they would get a multiple of it, from the others by share. Where it is missed, more is
    /// due where requests wait.
    pub(crate) fn missed(&self, counts: impl Fn(&OsdId) -> bool) -> f64 {
        let came = self
            .members
            .iter()
            .filter(|(osd, m)| !m.rests && counts(osd))
            .fold([0.0; 2], |sum, (_, m)| [0, 1].map(|i| sum[i] + m.came[i]));
        let floors = self.resolved.promise.floors.map(|f| f as f64 / 1000.0 * KEPT);
        // If both are given, the lower one decides.
        let kept = floors
            .iter()
            .zip(came)
            .filter(|(floor, _)| **floor > 0.0)
            .map(|(floor, came)| came / floor)
            .fold(0.0, f64::max);
        (1.0 - kept).max(0.0)
    }

    /// The demand on an OSD ends. A tenant that stops everywhere finds its floor as it left it;
    /// otherwise its next operations would wait until all its OSDs have reported and been told.
    /// True if it is news.
    pub(crate) fn rest(&mut self, osd: OsdId, now: f64) -> bool {
        let keeps = self.has_floor();
        match self.members.get_mut(&osd) {
            None => return false,
            Some(m) if m.rests => return false,
            Some(m) if keeps => (m.rests, m.faded, m.heard, m.queued) = (true, 0.0, now, 0.0),
            Some(_) => {
                self.members.remove(&osd);
                self.left.insert(osd);
            }
        }
        true
    }

    /// Those that rest fade while others are asked, until nothing is left that counts.
    pub(crate) fn fade(&mut self, now: f64) {
        if self.members.values().all(|m| m.rests) {
            // They stopped together, and reported one after the other. Time without any demand does
            // not count.
            for m in self.members.values_mut() {
                m.heard = now;
                m.faded = if m.faded < TOGETHER { 0.0 } else { m.faded };
            }
            return;
        }
        for m in self.members.values_mut().filter(|m| m.rests) {
            m.faded += now - m.heard;
            m.heard = now;
        }
        let all: f64 = self.members.values().map(|m| m.asked(0.0)[2]).sum();
        let left = &mut self.left;
        self.members.retain(|osd, m| {
            let stays = !m.rests || m.asked(0.0)[2] > all * FADED;
            if !stays {
                left.insert(*osd);
            }
            stays
        });
    }

    pub(crate) fn share(&self, number: TenantNumber, osds: u32) -> TenantShare {
        let p = &self.resolved.promise;
        let whole = |each_second, saved, peak| ShareOfRate { each_second, saved, peak, part: 0 };
        let mut share =
            TenantShare { number, weight: p.weight, osds, ..self.resolved.whose.clone() };
        if !p.ceilings.is_unlimited() {
            share.ceilings = [p.ceilings.iops, p.ceilings.bps]
                .map(|r| whole(r.each_second, r.saved, r.peak))
                .into();
        }
        if p.floors != [0, 0] {
            share.floors = p.floors.map(|f| whole(f, 0, 0)).into();
        }
        share
    }
}
