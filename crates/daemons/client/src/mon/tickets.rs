//! Tickets of services, and the rotating secrets of our own.

use super::{Inner, MonClient};
use crate::clock::wall_clock;
use crate::error::{ClientError, Result};
use auth::Context;
use messages::{Auth, Payload};
use std::time::Duration;
use types::EntityType;

/// `CEPH_AUTH_CEPHX`.
const CEPHX: u32 = 2;

impl MonClient {
    /// Waits until there is a ticket for `service`, asking for one if there is not.
    pub async fn wait_ticket(&self, service: EntityType, limit: Duration) -> Result<()> {
        let ready = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.state.borrow().down {
                    return Err(ClientError::Shutdown);
                }
                if !self.0.uses_tickets() || self.0.auth.borrow().has_ticket(service, wall_clock())
                {
                    return Ok(());
                }
                self.0.renew_tickets();
                changed.await;
            }
        };
        tokio::time::timeout(limit, ready)
            .await
            .unwrap_or(Err(ClientError::Timeout("waiting for a ticket")))
    }

    /// Waits until a daemon has its service's rotating secrets, without which it can accept no
    /// client.
    pub async fn wait_rotating(&self, limit: Duration) -> Result<()> {
        let ready = async {
            loop {
                let changed = self.0.changed.notified();
                if self.0.state.borrow().down {
                    return Err(ClientError::Shutdown);
                }
                if !self.0.uses_tickets()
                    || self.0.auth.borrow().rotating_request(wall_clock()).is_none()
                {
                    return Ok(());
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, ready)
            .await
            .unwrap_or(Err(ClientError::Timeout("waiting for rotating secrets")))
    }

    /// A service refused our ticket: it is thrown away and another one asked for.
    pub fn ticket_refused(&self, service: EntityType) {
        self.0.auth.borrow_mut().invalidate_ticket(service);
        self.0.renew_tickets();
    }
}

impl Inner {
    pub(super) fn uses_tickets(&self) -> bool {
        self.config.policy.methods(EntityType::MON).first() == Some(&auth::AuthMethod::Cephx)
    }

    /// Asks for tickets and rotating secrets that are due.
    pub(super) fn renew_tickets(&self) {
        let Some(session) = self.state.borrow().session.clone() else { return };
        if !self.uses_tickets() {
            return;
        }
        let now = wall_clock();
        let tickets = session.with_client_auth(|conn| {
            self.auth.borrow_mut().mauth_request(&mut Context { now, rng: &mut rand::rng() }, conn)
        });
        let rotating = self.auth.borrow().rotating_request(now);
        let tickets = match tickets {
            Some(Ok(request)) => request,
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot ask for tickets");
                None
            }
            None => None,
        };
        for payload in [tickets, rotating].into_iter().flatten() {
            let auth = Auth { protocol: CEPHX, payload, ..Auth::default() };
            session.send(auth.encode(session.features()));
        }
    }
}
