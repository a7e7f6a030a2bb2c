//! The tenants of a pool, and the OSDs that serve them.

use messages::TenantNumber;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use types::OsdId;

/// An OSD that had to do with PGs of a pool and is gone is expected back for so long: it is told of
/// the pool's tenants when it comes, ...
const EXPECTED: f64 = 600.0;

/// ... and has so long, once it is up, to be part of PGs again.
pub(crate) const BACK: f64 = 10.0;

/// The OSDs that serve a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Serving {
    /// They lead PGs of it: rates are divided over them.
    pub leads: BTreeSet<OsdId>,
    /// They have to do with its PGs, leading ones among them. Each of them may lead one in a
    /// moment, so it knows the pool's tenants.
    pub acts: BTreeSet<OsdId>,
}

impl From<BTreeSet<OsdId>> for Serving {
    fn from(leads: BTreeSet<OsdId>) -> Self {
        Serving { acts: leads.clone(), leads }
    }
}

/// Tenants of a pool, or those that may be anywhere: the OSDs that may be asked for them are the
/// same.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) serving: Serving,
    /// Those that are gone or have just come back, and until when they count.
    pub(crate) expected: BTreeMap<OsdId, f64>,
    /// What OSDs are told of the number of those that lead.
    pub(crate) members: u32,
    /// Of what changed last.
    pub(crate) version: u64,
    pub(crate) tenants: BTreeSet<TenantNumber>,
    pub(crate) gone: VecDeque<(u64, TenantNumber)>,
    /// What went before this is forgotten.
    pub(crate) since: u64,
}

impl Group {
    /// Takes the OSDs that serve; true if those are others than before. One that is down but still
    /// there stops, and may be back soon.
    pub(crate) fn serve(
        &mut self,
        mut now_serving: Serving,
        is_there: impl Fn(&OsdId) -> bool,
        now: f64,
    ) -> bool {
        for osd in
            self.serving.acts.iter().filter(|osd| !now_serving.acts.contains(osd) && !is_there(osd))
        {
            self.expected.entry(*osd).or_insert(now + EXPECTED);
        }
        self.expected.retain(|osd, until| {
            if is_there(osd) {
                *until = until.min(now + BACK);
            }
            now < *until && !now_serving.acts.contains(osd)
        });
        now_serving
            .leads
            .extend(self.expected.keys().filter(|osd| self.serving.leads.contains(osd)));
        now_serving.acts.extend(self.expected.keys());
        std::mem::replace(&mut self.serving, now_serving) != self.serving
    }

    /// The number of OSDs that rates are divided over. With many it says a few more than there are,
    /// and stays the same while some come and go: all tenants would have to be told again.
    pub(crate) fn count(&mut self) -> bool {
        let real = self.serving.leads.len() as u32;
        if real <= self.members && u64::from(real) * 4 >= u64::from(self.members) * 3 {
            return false;
        }
        self.members = real + real / 8;
        true
    }
}
