//! Telling subscribers what is new.

use super::commits::Published;
use super::session::{Session, Subscription};
use super::{Inner, log_watch, mds_messages};
use crate::state::ClusterState;
use bytes::Bytes;
use denc::{Encode, Features};
use messages::{
    FsMapMsg, FsMapUserMsg, KvData, MgrMapMsg, MonMapMsg, OsdMapMsg, Rest, ServiceMapMsg,
};
use std::collections::BTreeMap;
use std::rc::Rc;
use types::{Epoch, features};

impl Inner {
    /// Tells every subscriber what was committed since the last call.
    pub fn publish(&self) {
        let state = self.committed();
        let before = self.published.borrow().clone();
        let after = Published {
            osd: state.osd.last().0,
            mon: state.monmap.epoch.0,
            mgr: state.mgr.epoch.0,
            fs: state.fs.epoch.0,
            service: state.services.epoch.0,
            config: state.config_version,
            ceiling: crate::moves::ceiling(&state),
            kv: state.kv_version,
            log: state.log.next(),
            auth: (state.auth.version(), state.auth.rotating_version()),
            full_cache: if before.osd == state.osd.last().0 {
                before.full_cache.clone()
            } else {
                BTreeMap::new()
            },
        };
        if after == before {
            return;
        }
        if after.auth != before.auth {
            let mut auth = self.auth.borrow_mut();
            auth.keys = (*state.auth).clone();
            auth.keys.set_extra(self.keyring.clone());
        }
        if after.mon != before.mon {
            for info in state.monmap.mon_info.values() {
                self.links.learn(&info.name, &info.public_addrs);
            }
        }
        let new_osd_map = after.osd != before.osd;
        let new_config =
            after.config != before.config || after.ceiling != before.ceiling || new_osd_map;
        if after.config != before.config {
            self.read_configuration();
            self.apply_auth_settings();
        }
        *self.published.borrow_mut() = after;
        let sessions: Vec<Rc<Session>> = self.sessions.borrow().values().cloned().collect();
        for s in sessions {
            let wanted: Vec<String> = s.subs.borrow().keys().cloned().collect();
            for what in wanted {
                // A new OSD map can move an OSD or change its class, and with that its masks.
                if what == "config" && !new_config {
                    continue;
                }
                self.publish_to(&state, &s, &what);
            }
        }
        if new_osd_map {
            self.tell_of_lost_pgs();
        }
    }

    /// Tells one subscriber about one subject, if there is something new for it.
    pub(super) fn publish_one(&self, session: &Rc<Session>, what: &str) {
        self.publish_to(&self.committed(), session, what);
    }

    fn publish_to(&self, state: &ClusterState, s: &Rc<Session>, what: &str) {
        let Some(sub) = s.subs.borrow().get(what).copied() else { return };
        let f = s.conn.features();
        let sent = match what {
            "osdmap" => self.publish_osd_maps(state, s, sub),
            "monmap" => send_if_newer(sub, state.monmap.epoch.0.into(), || {
                self.send(&s.conn, &MonMapMsg { map: state.monmap.to_bytes(f) }, 0);
            }),
            "mgrmap" => send_if_newer(sub, state.mgr.epoch.0.into(), || {
                self.send(&s.conn, &MgrMapMsg { map: Rest(state.mgr.to_bytes(f)) }, 0);
            }),
            "servicemap" => send_if_newer(sub, state.services.epoch.0.into(), || {
                self.send(&s.conn, &ServiceMapMsg { map: Rest(state.services.to_bytes(f)) }, 0);
            }),
            "fsmap" => send_if_newer(sub, state.fs.epoch.0.into(), || {
                let seen = s.seen(state.clone()).fs;
                let m = FsMapMsg { epoch: seen.epoch, map: Rest(seen.to_bytes(f)) };
                self.send(&s.conn, &m, 0);
            }),
            "fsmap.user" => send_if_newer(sub, state.fs.epoch.0.into(), || {
                let map = Rest(s.seen(state.clone()).fs.for_clients().to_bytes(f));
                self.send(&s.conn, &FsMapUserMsg { epoch: state.fs.epoch, map }, 0);
            }),
            "config" => self.publish_config(state, s),
            w if w == "mdsmap" || w.starts_with("mdsmap.") => {
                // Each file system's map has epochs of its own.
                self.mds_map_for(state, s, w).and_then(|map| {
                    send_if_newer(sub, map.epoch.0.into(), || {
                        self.send(&s.conn, &mds_messages::message(state, &map, f), 0);
                    })
                })
            }
            w if log_watch::level(w).is_some() => self.publish_log(state, s, sub, w),
            w => match w.strip_prefix("kv:") {
                Some(prefix) => send_if_newer(sub, state.kv_version.max(1), || {
                    let data = state
                        .kv
                        .range(prefix.to_owned()..)
                        .take_while(|(k, _)| k.starts_with(prefix))
                        .map(|(k, v)| (k.clone(), Some(v.clone())))
                        .collect();
                    let m = KvData {
                        version: state.kv_version,
                        prefix: prefix.to_owned(),
                        incremental: false,
                        data,
                    };
                    self.send(&s.conn, &m, 0);
                }),
                None => None,
            },
        };
        if let Some(next) = sent {
            let mut subs = s.subs.borrow_mut();
            if sub.onetime {
                subs.remove(what);
            } else if let Some(sub) = subs.get_mut(what) {
                sub.next = next;
            }
        }
    }

    fn publish_config(&self, state: &ClusterState, s: &Session) -> Option<u64> {
        let host = s.hostname.borrow();
        let host = Some(host.as_str()).filter(|h| !h.is_empty());
        let config = crate::config_db::for_entity(state, s.name.kind.name(), &s.name.id, host);
        let mut sent = s.sent_config.borrow_mut();
        if sent.as_ref() == Some(&config) {
            return None;
        }
        self.send(&s.conn, &messages::Config { config: config.clone() }, 0);
        *sent = Some(config);
        Some(state.config_version + 1)
    }

    fn publish_osd_maps(
        &self,
        state: &ClusterState,
        s: &Session,
        sub: Subscription,
    ) -> Option<u64> {
        let last = state.osd.last();
        if last.0 == 0 || sub.next > u64::from(last.0) {
            return None;
        }
        match sub.next {
            0 => self.send_full_map(state, s),
            next => self.send_maps_from(state, s, Epoch(u32::try_from(next).unwrap_or(u32::MAX))),
        }
        s.osd_epoch.set(last.0);
        Some(u64::from(last.0) + 1)
    }

    /// The bytes of a full map for a peer.
    fn full_map(&self, state: &ClusterState, epoch: Epoch, f: Features) -> Option<Bytes> {
        let key = (epoch.0, f.0 & features::OSDMAP_SIGNIFICANT);
        if let Some(bytes) = self.published.borrow().full_cache.get(&key) {
            return Some(bytes.clone());
        }
        let bytes = state.osd.full(epoch)?.to_bytes(f);
        if epoch == state.osd.last() {
            self.published.borrow_mut().full_cache.insert(key, bytes.clone());
        }
        Some(bytes)
    }

    fn osd_map_message(&self, state: &ClusterState) -> OsdMapMsg {
        OsdMapMsg {
            fsid: state.monmap.fsid,
            oldest: state.osd.first(),
            newest: state.osd.last(),
            ..Default::default()
        }
    }

    pub(super) fn send_full_map(&self, state: &ClusterState, s: &Session) {
        let last = state.osd.last();
        if let Some(bytes) = self.full_map(state, last, s.conn.features()) {
            let mut m = self.osd_map_message(state);
            m.maps.insert(last, bytes);
            self.send(&s.conn, &m, 0);
        }
    }

    /// Incremental maps from `first` to the newest, in as many messages as the limits ask for. If
    /// `first` is trimmed, a full map of the oldest epoch comes first.
    pub(super) fn send_maps_from(&self, state: &ClusterState, s: &Session, first: Epoch) {
        let f = s.conn.features();
        let (most, most_bytes) = {
            let conf = self.conf.borrow();
            (
                conf.i64("osd_map_message_max").max(1) as usize,
                conf.u64("osd_map_message_max_bytes") as usize,
            )
        };
        let last = state.osd.last();
        let mut next = first;
        let mut m = self.osd_map_message(state);
        let mut bytes_in = 0;
        if first <= state.osd.first() {
            let oldest = state.osd.first();
            let Some(full) = self.full_map(state, oldest, f) else { return };
            bytes_in += full.len();
            m.maps.insert(oldest, full);
            next = oldest.next();
        }
        while next <= last {
            let Some(inc) = self.incremental(state, next, f) else { return };
            let held = m.maps.len() + m.incremental_maps.len();
            if held > 0 && (held >= most || bytes_in + inc.len() > most_bytes) {
                self.send(&s.conn, &m, 0);
                m = self.osd_map_message(state);
                bytes_in = 0;
            }
            bytes_in += inc.len();
            m.incremental_maps.insert(next, inc);
            next = next.next();
        }
        if m.last().is_some() {
            self.send(&s.conn, &m, 0);
        }
    }

    /// An incremental map for a peer: as it is stored, or encoded anew for a peer with other
    /// features.
    fn incremental(&self, state: &ClusterState, epoch: Epoch, f: Features) -> Option<Bytes> {
        use denc::Decode;
        let bytes = state.osd.incremental(epoch)?;
        if f.has(features::OSDMAP_SIGNIFICANT) {
            return Some(bytes.clone());
        }
        let mut inc = types::OsdMapIncremental::from_bytes(bytes).ok()?;
        if !inc.fullmap.is_empty() {
            inc.fullmap = types::OsdMap::from_bytes(&inc.fullmap).ok()?.to_bytes(f);
        }
        Some(inc.to_bytes(f))
    }

    /// `MMonGetOSDMap`: maps by epoch.
    pub(super) fn get_osd_map(&self, s: &Session, m: messages::MonGetOsdMap, tid: u64) {
        if !s.may("osd", "r") {
            return;
        }
        let state = self.committed();
        let f = s.conn.features();
        let (most, most_bytes) = {
            let conf = self.conf.borrow();
            (
                conf.i64("osd_map_message_max").max(1) as usize,
                conf.u64("osd_map_message_max_bytes") as usize,
            )
        };
        let mut reply = self.osd_map_message(&state);
        let mut bytes_in = 0;
        let clamp =
            |a: Epoch, b: Epoch| (a.0.max(state.osd.first().0), b.0.min(state.osd.last().0));
        let (from, to) = clamp(m.full_first, m.full_last);
        if m.full_last.0 > 0 {
            for e in (from..=to).map(Epoch) {
                if reply.maps.len() >= most || bytes_in >= most_bytes {
                    break;
                }
                let Some(bytes) = self.full_map(&state, e, f) else { break };
                bytes_in += bytes.len();
                reply.maps.insert(e, bytes);
            }
        }
        let (from, to) = clamp(m.inc_first, m.inc_last);
        if m.inc_last.0 > 0 {
            for e in (from..=to).map(Epoch) {
                if reply.maps.len() + reply.incremental_maps.len() >= most || bytes_in >= most_bytes
                {
                    break;
                }
                let Some(bytes) = self.incremental(&state, e, f) else { continue };
                bytes_in += bytes.len();
                reply.incremental_maps.insert(e, bytes);
            }
        }
        self.send(&s.conn, &reply, tid);
    }

    /// `MGetConfig`: the options of an entity, once.
    pub(super) fn get_config(&self, s: &Session, m: messages::GetConfig, tid: u64) {
        let state = self.committed();
        let kind = m.entity_type.name();
        let host = Some(m.host.as_str()).filter(|h| !h.is_empty());
        let config = crate::config_db::for_entity(&state, kind, &m.entity_id, host);
        self.send(&s.conn, &messages::Config { config }, tid);
    }
}

/// Sends if the subscriber does not have `version` yet; returns the version that it wants next.
fn send_if_newer(sub: Subscription, version: u64, send: impl FnOnce()) -> Option<u64> {
    if version == 0 || sub.next > version {
        return None;
    }
    send();
    Some(version + 1)
}
