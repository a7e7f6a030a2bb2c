//! What a connection remembers when its socket is gone, and which of two sockets wins.

use crate::Message;
use std::collections::{BTreeMap, VecDeque};

/// Sequence numbers, cookies and queues of one connection. With a lossless policy it outlives
/// sockets: what was sent and not acknowledged is sent again, in order, exactly once.
#[derive(Debug, Default)]
pub struct Session {
    /// Chosen by the end that connected; zero for lossy sessions.
    pub client_cookie: u64,
    /// Chosen by the end that accepted; zero until the session exists (and for lossy ones).
    pub server_cookie: u64,
    /// Number of our connection attempt among all of this process.
    pub global_seq: u64,
    /// The peer's.
    pub peer_global_seq: u64,
    /// How often the session was resumed.
    pub connect_seq: u64,
    /// Last message sent.
    pub out_seq: u64,
    /// Last message received.
    pub in_seq: u64,
    /// Messages received since we last told the peer `in_seq`.
    pub(crate) unacked_in: u64,
    /// Sent, not acknowledged; their `seq` is consecutive and ends at `out_seq`. Lossless only.
    sent: VecDeque<Message>,
    /// To be sent again before anything else, with the `seq` that they had.
    again: VecDeque<Message>,
    /// By priority, lowest first.
    queue: BTreeMap<u16, VecDeque<Message>>,
    queued_bytes: usize,
}

impl Session {
    /// Queues a message behind those of its priority.
    pub fn push(&mut self, message: Message) {
        self.queued_bytes += cost(&message);
        self.queue.entry(message.priority).or_default().push_back(message);
    }

    /// Bytes of messages that are waiting to be sent, for the first time or again, or to be
    /// acknowledged.
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Whether anything is waiting to be sent.
    pub fn has_queued(&self) -> bool {
        !self.again.is_empty() || !self.queue.is_empty()
    }

    /// The next message to send, with its sequence number. With `keep` it stays here until it is
    /// acknowledged.
    pub(crate) fn pop(&mut self, keep: bool) -> Option<Message> {
        let mut message = match self.again.pop_front() {
            Some(m) => m,
            None => {
                let mut highest = self.queue.last_entry()?;
                let m = highest.get_mut().pop_front();
                if highest.get().is_empty() {
                    highest.remove();
                }
                m?
            }
        };
        self.out_seq += 1;
        message.seq = self.out_seq;
        if keep {
            self.sent.push_back(message.clone());
        } else {
            self.queued_bytes = self.queued_bytes.saturating_sub(cost(&message));
        }
        Some(message)
    }

    /// The peer has everything up to `seq`.
    pub(crate) fn acked(&mut self, seq: u64) {
        while self.sent.front().is_some_and(|m| m.seq <= seq) {
            if let Some(m) = self.sent.pop_front() {
                self.queued_bytes = self.queued_bytes.saturating_sub(cost(&m));
            }
        }
    }

    /// The socket is gone: what was sent and not acknowledged must be sent again.
    pub fn requeue_sent(&mut self) {
        self.out_seq -= self.sent.len() as u64;
        while let Some(m) = self.sent.pop_back() {
            self.again.push_front(m);
        }
    }

    /// The session is resumed and the peer has everything up to `seq`.
    pub(crate) fn resumed(&mut self, seq: u64) {
        // Those that were never sent have no number.
        while self.again.front().is_some_and(|m| m.seq != 0 && m.seq <= seq) {
            if let Some(m) = self.again.pop_front() {
                self.queued_bytes = self.queued_bytes.saturating_sub(cost(&m));
                self.out_seq += 1;
            }
        }
    }

    /// The peer has forgotten the session: so do we, with everything that was queued.
    pub fn reset(&mut self) {
        *self = Session { global_seq: self.global_seq, ..Session::default() };
    }

    /// The peer never completed the session; what is queued goes to the next one.
    pub(crate) fn restart(&mut self) {
        self.server_cookie = 0;
        self.connect_seq = 0;
        self.in_seq = 0;
        self.unacked_in = 0;
    }
}

/// What a queued message costs: its payload and a share for itself.
fn cost(m: &Message) -> usize {
    m.payload_len() + std::mem::size_of::<Message>()
}

/// How a peer asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// `CLIENT_IDENT`: a new one.
    New {
        /// The peer's cookie, zero if lossy.
        client_cookie: u64,
        /// The peer's attempt.
        global_seq: u64,
    },
    /// `SESSION_RECONNECT`: the one that it had.
    Resume {
        /// The peer's cookie.
        client_cookie: u64,
        /// The peer's attempt.
        global_seq: u64,
        /// How often it has resumed.
        connect_seq: u64,
        /// What it has received.
        msg_seq: u64,
    },
}

/// What is known of a registered connection with the same peer.
#[derive(Clone, Copy, Debug)]
pub struct Existing {
    /// Its policy.
    pub lossy: bool,
    /// Its policy.
    pub server: bool,
    /// From its session.
    pub client_cookie: u64,
    /// From its session.
    pub server_cookie: u64,
    /// From its session.
    pub peer_global_seq: u64,
    /// From its session.
    pub connect_seq: u64,
    /// It is established, or has no socket and waits.
    pub settled: bool,
}

/// What to do with a peer that asks for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Give it a new one.
    Accept,
    /// The registered connection goes; give it a new one.
    Replace,
    /// The registered connection takes the new socket and starts a new session on it; with `reset`
    /// it forgets the old one.
    Adopt {
        /// Drop what was queued.
        reset: bool,
    },
    /// The registered connection takes the new socket and resumes its session.
    Resume,
    /// Our own attempt to connect wins.
    Wait,
    /// It must start anew; if `full`, what it had queued is lost.
    Reset {
        /// Whether we have lost the session (as opposed to never had it).
        full: bool,
    },
    /// Its count of resumptions is behind.
    Retry {
        /// Ours.
        connect_seq: u64,
    },
    /// Its count of attempts is behind.
    RetryGlobal {
        /// The one that we have seen.
        global_seq: u64,
    },
    /// A delayed duplicate.
    Stale,
}

/// Decides between a peer's request and the registered connection with the same peer, if there is
/// one (`ProtocolV2::handle_existing_connection`, `handle_reconnect`). Two processes that connect
/// to each other at the same time must decide alike, so the tie is broken by address:
/// `peer_is_lower` says that the peer's address sorts before ours.
pub fn decide(
    opening: &Opening,
    existing: Option<&Existing>,
    resetcheck: bool,
    peer_is_lower: bool,
) -> Verdict {
    match (*opening, existing) {
        (Opening::New { .. }, None) => Verdict::Accept,
        (Opening::New { client_cookie, global_seq }, Some(e)) => {
            if e.peer_global_seq > global_seq {
                Verdict::Stale
            } else if e.lossy {
                Verdict::Replace
            } else if e.server_cookie != 0
                && e.client_cookie != 0
                && e.client_cookie != client_cookie
            {
                Verdict::Adopt { reset: resetcheck }
            } else if e.client_cookie == client_cookie || e.settled || peer_is_lower || e.server {
                Verdict::Adopt { reset: false }
            } else {
                Verdict::Wait
            }
        }
        (Opening::Resume { .. }, None) => Verdict::Reset { full: true },
        (Opening::Resume { client_cookie, global_seq, connect_seq, .. }, Some(e)) => {
            if e.client_cookie != client_cookie {
                Verdict::Reset { full: resetcheck }
            } else if e.server_cookie == 0 {
                Verdict::Reset { full: false }
            } else if e.peer_global_seq > global_seq {
                Verdict::RetryGlobal { global_seq: e.peer_global_seq }
            } else if e.connect_seq > connect_seq {
                Verdict::Retry { connect_seq: e.connect_seq }
            } else if e.connect_seq == connect_seq && !peer_is_lower && !e.server {
                Verdict::Wait
            } else {
                Verdict::Resume
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn msg(n: u64, priority: u16) -> Message {
        Message { tid: n, priority, ..Message::new(1, Bytes::new()) }
    }

    #[test]
    fn unacknowledged_messages_are_sent_again_once() {
        let mut s = Session::default();
        (0..6).for_each(|n| s.push(msg(n, 127)));
        for want in 1..=4 {
            assert_eq!(s.pop(true).unwrap().seq, want);
        }
        s.acked(1);
        s.requeue_sent();
        s.resumed(2); // the peer got 2, only its acknowledgement was lost
        let rest: Vec<_> = std::iter::from_fn(|| s.pop(true)).map(|m| (m.seq, m.tid)).collect();
        assert_eq!(rest, [(3, 2), (4, 3), (5, 4), (6, 5)]);
        s.acked(6);
        assert_eq!(s.queued_bytes(), 0);
    }

    #[test]
    fn higher_priorities_overtake() {
        let mut s = Session::default();
        for (n, p) in [(0, 64), (1, 127), (2, 196), (3, 127)] {
            s.push(msg(n, p));
        }
        let order: Vec<_> = std::iter::from_fn(|| s.pop(false)).map(|m| m.tid).collect();
        assert_eq!(order, [2, 1, 3, 0]);
        assert_eq!(s.queued_bytes(), 0);
    }

    const SESSION: Existing = Existing {
        lossy: false,
        server: false,
        client_cookie: 7,
        server_cookie: 8,
        peer_global_seq: 5,
        connect_seq: 2,
        settled: true,
    };

    #[test]
    fn races_are_decided_alike_on_both_sides() {
        // Both ends are connecting and neither has a session.
        let racing = Existing {
            client_cookie: 9,
            server_cookie: 0,
            peer_global_seq: 0,
            connect_seq: 0,
            settled: false,
            ..SESSION
        };
        let open = Opening::New { client_cookie: 3, global_seq: 1 };
        let low = decide(&open, Some(&racing), false, false);
        let high = decide(&open, Some(&racing), false, true);
        assert_eq!((low, high), (Verdict::Wait, Verdict::Adopt { reset: false }));
    }

    #[test]
    fn a_session_resumes_only_in_order() {
        let resume = |client_cookie, global_seq, connect_seq| Opening::Resume {
            client_cookie,
            global_seq,
            connect_seq,
            msg_seq: 0,
        };
        let d = |o: Opening| decide(&o, Some(&SESSION), true, true);
        assert_eq!(d(resume(7, 5, 3)), Verdict::Resume);
        assert_eq!(d(resume(7, 4, 3)), Verdict::RetryGlobal { global_seq: 5 });
        assert_eq!(d(resume(7, 5, 1)), Verdict::Retry { connect_seq: 2 });
        assert_eq!(d(resume(1, 5, 3)), Verdict::Reset { full: true });
        assert_eq!(decide(&resume(7, 5, 3), None, true, true), Verdict::Reset { full: true });
        let fresh = Existing { server_cookie: 0, ..SESSION };
        assert_eq!(
            decide(&resume(7, 5, 3), Some(&fresh), true, true),
            Verdict::Reset { full: false }
        );
        assert_eq!(d(Opening::New { client_cookie: 1, global_seq: 4 }), Verdict::Stale);
        assert_eq!(
            d(Opening::New { client_cookie: 1, global_seq: 6 }),
            Verdict::Adopt { reset: true }
        );
        let lossy = Existing { lossy: true, ..SESSION };
        assert_eq!(
            decide(&Opening::New { client_cookie: 0, global_seq: 6 }, Some(&lossy), true, true),
            Verdict::Replace
        );
    }
}
