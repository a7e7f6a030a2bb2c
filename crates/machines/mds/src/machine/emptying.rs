//! The cache is emptied when an operator asks for it: clients give back what they can spare, and
//! all goes that can be read again.

use super::Mds;
use crate::action::Action;

impl Mds {
    /// Empties the cache, as far as that can be, or ends that. When no more can go there is
    /// [`Action::Emptied`]. It takes effect with the next event.
    pub fn set_emptying(&mut self, on: bool) {
        self.emptying = on;
        self.barren = 0;
        self.recalled = None;
    }

    /// Clients that have more than what each may keep.
    pub fn clients_to_ask(&self) -> usize {
        let sessions = self.sessions.values().filter(|s| !s.evicting);
        sessions.filter(|s| s.inodes.len() > self.conf.bounds.caps_min).count()
    }

    /// Says when no more can go.
    pub(crate) fn perhaps_emptied(&mut self) {
        if self.emptying && self.clients_to_ask() == 0 && (self.queue.len() == 0 || self.is_stuck())
        {
            self.emptying = false;
            self.out.push_back(Action::Emptied);
        }
    }
}
