//! How far the other monitors' clocks are from the leader's (Ceph: `Monitor::timecheck`,
//! `src/mon/Monitor.cc`).
//!
//! Every answer to what the leader tells the others once a second says what time it is there.

use super::Inner;
use super::clock::now;
use std::rc::Rc;
use std::time::{Duration, Instant};
use types::Utime;
use types::log::LogPriority;

impl Inner {
    /// What another monitor's clock says, as it answered after `latency`.
    pub(super) fn clock_told(self: &Rc<Self>, name: &str, theirs: Utime, latency: Duration) {
        if !self.leads() {
            return;
        }
        let ahead = theirs.as_secs_f64() - now().as_secs_f64();
        let (allowed, backoff) = {
            let conf = self.conf.borrow();
            (conf.f64("mon_clock_drift_allowed"), conf.f64("mon_clock_drift_warn_backoff"))
        };
        let text = {
            let mut checks = self.timechecks.borrow_mut();
            checks.measured(name, ahead, latency.as_secs_f64());
            let wrong = checks.skews().get(name).and_then(|s| s.complaint(allowed));
            checks.warns(name, wrong.is_some(), backoff, Instant::now()).then_some(wrong).flatten()
        };
        if let Some(text) = text {
            self.change_and_forget(|p| {
                self.log_line(p, LogPriority::WARN, format!("mon.{name} {text}"))
            });
        }
    }
}
