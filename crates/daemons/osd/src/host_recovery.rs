//! The host's part of recovery's places: how many objects an OSD recovers at a time
//! ([`pg::places`]).

use crate::core::Core;
use crate::host::PgHost;
use admission::work::Kind;
use std::rc::Rc;

impl Core {
    /// Lets PGs that are next in turn recover an object.
    pub(crate) fn next_places(&self) {
        loop {
            let most = self.settings().recovery_active;
            let next = self.reservations.objects.borrow_mut().next(most);
            let Some(pgid) = next else { break };
            match self.host(pgid) {
                Some(host) => host.background(Kind::Recover),
                None => self.reservations.objects.borrow_mut().leave(pgid),
            }
        }
    }

    /// Objects under recovery, or about to be, over all PGs that this OSD leads.
    pub fn recovering_objects(&self) -> usize {
        self.reservations.objects.borrow().taken()
    }
}

impl PgHost {
    /// The machine has an object to recover.
    pub(crate) fn want_place(&self) {
        self.core.reservations.objects.borrow_mut().ask(self.id);
        self.core.next_places();
    }

    /// The scheduler lets the PG use the place that it was given.
    pub(crate) fn use_place(self: &Rc<Self>) {
        self.handle(pg::Event::StartRecovery { max_objects: 1 });
        self.core.reservations.objects.borrow_mut().used(self.id);
        self.core.next_places();
    }

    /// The PG is gone.
    pub(crate) fn leave_places(&self) {
        self.core.reservations.objects.borrow_mut().leave(self.id);
        self.core.next_places();
    }

    /// Tells how many objects the PG recovers, if that has changed.
    pub(crate) fn tell_recovering(&self) {
        let active = self.with_pg(|pg| pg.recovering_objects());
        if self.tally.recovering.replace(active) != active {
            self.core.reservations.objects.borrow_mut().set_active(self.id, active);
            self.core.next_places();
        }
    }
}
