//! Watches and notifications, as far as they are operations on an object. What follows for
//! connections is left in [`Effects`] until the request has succeeded.

use crate::code::{Op, OpArgs, OpOutcome};
use crate::exec::Exec;
use crate::reader::ObjectReader;
use crate::watch::{Begun, Effects, NotifyAck, NotifyStart};
use bytes::Bytes;
use denc::{Encode, Features, Reader};
use types::Errno;
use types::object_info::WatchInfo;
use types::rados::watch_op;
use types::replies::{ListWatchersResponse, WatchItem};

impl<R: ObjectReader> Exec<'_, R> {
    fn effects(&mut self) -> &mut Effects {
        self.effects.get_or_insert_default()
    }

    /// `CEPH_OSD_OP_WATCH`.
    pub(crate) fn watch(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::Watch { cookie, op: what, timeout, .. } = op.args else {
            return Err(Errno::EINVAL);
        };
        if !self.new.exists {
            return Err(Errno::ENOENT);
        }
        let env = self.env.watch;
        let watcher = (cookie, env.entity);
        let timeout = if timeout == 0 { env.watch_timeout } else { timeout };
        let known = self.new.oi.watchers.contains_key(&watcher);
        match what {
            watch_op::WATCH | watch_op::LEGACY_WATCH => {
                if !known {
                    let info =
                        WatchInfo { cookie, timeout_seconds: timeout, addr: self.env.origin.addr };
                    self.new.oi.watchers.insert(watcher, info);
                    self.push_nop();
                }
                self.effects().begun.push(Begun {
                    cookie,
                    timeout,
                    pings: what == watch_op::WATCH,
                });
            }
            watch_op::RECONNECT if known => {
                self.effects().begun.push(Begun { cookie, timeout, pings: true })
            }
            watch_op::PING if known && (env.ping)(&watcher) => {}
            // The client must take it up again.
            watch_op::PING if known => return Err(Errno::ETIMEDOUT),
            watch_op::RECONNECT | watch_op::PING => return Err(Errno::ENOTCONN),
            watch_op::UNWATCH if known => {
                self.new.oi.watchers.remove(&watcher);
                self.push_nop();
                self.effects().ended.push((watcher, false));
            }
            _ => {}
        }
        Ok(0)
    }

    /// The object is deleted: its watchers are told.
    pub(crate) fn end_watches(&mut self) {
        let gone = std::mem::take(&mut self.new.oi.watchers);
        if !gone.is_empty() {
            self.effects().ended.extend(gone.into_keys().map(|w| (w, true)));
        }
    }

    /// `CEPH_OSD_OP_NOTIFY`.
    pub(crate) fn notify(&mut self, op: &Op, out: &mut OpOutcome) -> Result<(), Errno> {
        self.reads += 1;
        let OpArgs::Notify { cookie } = op.args else { return Err(Errno::EINVAL) };
        let (timeout, payload) = parse_notify(&op.indata);
        let timeout = if timeout == 0 { self.env.watch.notify_timeout } else { timeout };
        let id = (self.env.watch.next_id)();
        // It is kept longer than the request.
        let payload = Bytes::copy_from_slice(&payload);
        self.effects().notifies.push(NotifyStart { id, cookie, timeout, payload });
        crate::exec::put(out, &id);
        Ok(())
    }

    /// `CEPH_OSD_OP_NOTIFY_ACK`.
    pub(crate) fn notify_ack(&mut self, op: &Op) -> Result<(), Errno> {
        self.reads += 1;
        let OpArgs::Watch { cookie, .. } = op.args else { return Err(Errno::EINVAL) };
        // Clients that send nothing else have the notification's id where the cookie of a watch
        // would be.
        let ack = parse_ack(&op.indata).unwrap_or(NotifyAck {
            id: cookie,
            cookie: None,
            reply: Bytes::new(),
        });
        self.effects().acks.push(ack);
        Ok(())
    }

    /// `CEPH_OSD_OP_LIST_WATCHERS`.
    pub(crate) fn list_watchers(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        self.stats.num_rd += 1;
        let features = match self.env.origin.features {
            Features(0) => Features::ALL,
            some => some,
        };
        let watchers = self.new.oi.watchers.iter();
        let response = ListWatchersResponse {
            entries: watchers
                .map(|((cookie, name), w)| WatchItem {
                    name: *name,
                    cookie: *cookie,
                    timeout_seconds: w.timeout_seconds,
                    addr: w.addr,
                })
                .collect(),
        };
        out.outdata.push(response.to_bytes(features));
        Ok(0)
    }
}

/// A version that means nothing, the timeout, the payload. What cannot be read is the default.
fn parse_notify(data: &Bytes) -> (u32, Bytes) {
    Reader::new(data.clone())
        .get::<(u32, u32, Bytes)>()
        .map_or_else(|_| Default::default(), |(_, t, p)| (t, p))
}

fn parse_ack(data: &Bytes) -> Option<NotifyAck> {
    let mut r = Reader::new(data.clone());
    let (id, cookie) = r.get::<(u64, u64)>().ok()?;
    let reply = if r.left() == 0 { Bytes::new() } else { r.get::<Bytes>().ok()? };
    Some(NotifyAck { id, cookie: Some(cookie), reply: Bytes::copy_from_slice(&reply) })
}
