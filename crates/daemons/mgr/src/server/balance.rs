//! Balances the cluster by itself, while this manager serves and an operator wants it.

use super::Inner;
use crate::balancer::{self, Move, Settings};
use crate::commands::Ordered;
use bytes::Bytes;
use client::{MonClient, wall_clock};
use command::Refusal;
use std::rc::Weak;
use std::time::{Duration, Instant};
use types::errno::Errno;

/// How often it is looked whether it is time to act: settings can be changed meanwhile.
const TICK: Duration = Duration::from_secs(1);

/// How often the monitors are asked for movement jobs.
const MOVES_PERIOD: Duration = Duration::from_secs(3);

/// Makes a plan and carries it out, every `mgr/balancer/sleep_interval`, until this manager is
/// replaced.
pub(super) async fn balance(inner: Weak<Inner>) {
    let (mut last, mut heard): (Option<Instant>, Option<Instant>) = (None, None);
    loop {
        tokio::time::sleep(TICK).await;
        let Some(m) = inner.upgrade() else { return };
        if m.stopping.get() || !m.serves() {
            return;
        }
        if heard.is_none_or(|h| h.elapsed() >= MOVES_PERIOD) {
            heard = Some(Instant::now());
            m.hear_of_moves().await;
        }
        let interval =
            Duration::from_secs(m.frame.conf.borrow().u64("mgr/balancer/sleep_interval"));
        let now = wall_clock();
        let acts = {
            let state = m.state.borrow();
            let settings = &state.balancer.borrow().settings;
            settings.active && settings.permits(now)
        };
        if !acts || last.is_some_and(|l| l.elapsed() < interval) {
            continue;
        }
        last = Some(Instant::now());
        m.follow_map();
        let made = {
            let state = m.state.borrow();
            let pools = state.balancer.borrow().settings.pools.clone();
            let began = Instant::now();
            let made = balancer::optimize(&state, &format!("auto_{}", now.gmtime()), pools);
            state.balancer.borrow_mut().note(now, began.elapsed(), &made);
            made
        };
        let Ok(plan) = made else { continue };
        let ordered = Ordered { orders: plan.orders(), ..Ordered::default() };
        match carry_out(&m.frame.mon, ordered).await {
            Ok(_) => {
                let (upmaps, leads) = (plan.proposals.len(), plan.leads.len());
                tracing::info!("balancer: {upmaps} upmaps and {leads} primaries changed");
            }
            Err(refusal) => tracing::warn!("balancer: {}", refusal.message),
        }
    }
}

/// Gives the monitors commands, and answers when they have carried out all of them.
pub(super) async fn carry_out(mon: &MonClient, ordered: Ordered) -> crate::commands::Answer {
    for order in ordered.orders {
        match mon.command(&order.to_string(), Bytes::new()).await {
            Ok(o) if o.code >= 0 => {}
            Ok(o) => {
                return Err(Refusal {
                    errno: Errno(o.code.saturating_neg()),
                    message: o.status,
                    data: o.output,
                });
            }
            Err(e) => return Err(Refusal::new(Errno::ENOTCONN, e.to_string())),
        }
    }
    Ok(ordered.reply)
}

impl Inner {
    /// Asks the monitors which movement jobs are open. Without an answer, what is known stays.
    async fn hear_of_moves(&self) {
        let command = serde_json::json!({"prefix": "move ls", "format": "json"}).to_string();
        let asked = self.frame.mon.command(&command, Bytes::new());
        let Ok(Ok(answer)) = tokio::time::timeout(MOVES_PERIOD, asked).await else { return };
        if let Some(open) = Move::open(&answer.output).filter(|_| answer.code == 0) {
            self.state.borrow().balancer.borrow_mut().moves = open;
        }
    }

    /// Takes over what an operator set of the balancer.
    pub(super) fn apply_balancer_settings(&self) {
        let settings = Settings::from_conf(&self.frame.conf.borrow());
        self.state.borrow().balancer.borrow_mut().settings = settings;
    }
}
