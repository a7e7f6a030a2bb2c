//! Capabilities: those of files in use are kept, all others are given back at once.

use cephfs::{Ino, InodeStat, caps};
use messages::{CapDrop, CapItem, CapOp, ClientCaps};
use std::collections::BTreeMap;
use types::SnapId;
use types::fsmap::Rank;

/// A capability that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Cap {
    pub rank: Rank,
    pub id: u64,
    /// The inode as the last answer had it.
    pub stat: Box<InodeStat>,
    pub issued: u32,
    seq: u32,
    issue_seq: u32,
    migrate_seq: u32,
}

/// A file in use: its data is read or written.
#[derive(Clone, Debug, Default)]
struct Pin {
    users: u32,
    /// What data is read or written under: the server gets it back when that is done.
    busy: u32,
    /// None if the server has taken it, or is gone.
    cap: Option<Cap>,
}

/// Files in use.
#[derive(Default)]
pub(crate) struct Caps(BTreeMap<Ino, Pin>);

/// How a change of a capability is answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is given back.
    Release(CapItem),
    /// Part of it is.
    Update(Box<ClientCaps>),
    /// Later, or there is no need.
    None,
}

impl Caps {
    pub fn get(&self, ino: Ino) -> Option<&Cap> {
        self.0.get(&ino).and_then(|p| p.cap.as_ref())
    }

    /// Data is read or written under these bits from now on.
    pub fn busy(&mut self, ino: Ino, bits: u32) {
        if let Some(pin) = self.0.get_mut(&ino) {
            pin.busy |= bits;
        }
    }

    /// Ends a use; the capability that is to be given back, if that was the last one.
    pub fn unpin(&mut self, ino: Ino) -> Option<(Rank, CapItem)> {
        let pin = self.0.get_mut(&ino)?;
        pin.users = pin.users.saturating_sub(1);
        if pin.users > 0 {
            return None;
        }
        let cap = self.0.remove(&ino)?.cap?;
        Some((cap.rank, item(ino, &cap)))
    }

    /// Takes note of a record in an answer; what is to be given back for it. With `keep` the file
    /// is in use from now on.
    pub fn granted(&mut self, rank: Rank, s: &InodeStat, keep: bool) -> Option<CapItem> {
        if s.snapid != SnapId::NOSNAP {
            return None;
        }
        if keep {
            self.0.entry(s.ino).or_default().users += 1;
        }
        if s.cap.cap_id == 0 {
            return None;
        }
        let cap = Cap {
            rank,
            id: s.cap.cap_id,
            issued: s.cap.caps,
            stat: Box::new(s.clone()),
            seq: s.cap.seq,
            issue_seq: s.cap.seq,
            migrate_seq: s.cap.mseq,
        };
        match self.0.get_mut(&s.ino) {
            Some(pin) => {
                pin.cap = Some(cap);
                None
            }
            None => Some(item(s.ino, &cap)),
        }
    }

    /// Follows the server's change of a capability.
    pub fn changed(&mut self, rank: Rank, m: &ClientCaps) -> Answer {
        let known = |c: &&mut Cap| c.id == m.cap_id && c.rank == rank;
        let Some(pin) = self.0.get_mut(&m.ino).filter(|p| p.cap.is_some()) else {
            return Answer::Release(released(m));
        };
        let busy = pin.busy;
        let Some(cap) = pin.cap.as_mut().filter(known) else {
            return Answer::Release(released(m));
        };
        if m.caps & !cap.issued != 0 {
            cap.issue_seq = m.seq;
        }
        let revoked = cap.issued & !m.caps;
        cap.issued = m.caps;
        cap.seq = m.seq;
        cap.stat.size = m.size;
        cap.stat.max_size = m.max_size;
        (cap.stat.truncate_seq, cap.stat.truncate_size) = (m.truncate_seq, m.truncate_size);
        if m.op != CapOp::REVOKE || revoked & busy != 0 {
            return Answer::None;
        }
        Answer::Update(Box::new(update(m.ino, cap)))
    }

    /// Part of a request: nothing of the capability but the number is kept.
    pub fn drop_with(&mut self, ino: Ino) -> Option<(Rank, CapDrop)> {
        let pin = self.0.get_mut(&ino)?;
        pin.busy = 0;
        let cap = pin.cap.as_mut()?;
        cap.issued &= caps::PIN;
        let drop = CapDrop {
            ino,
            cap_id: cap.id,
            caps: cap.issued,
            wanted: 0,
            seq: cap.seq,
            issue_seq: cap.issue_seq,
            mseq: cap.migrate_seq,
            ..CapDrop::default()
        };
        Some((cap.rank, drop))
    }

    /// Another rank has the file.
    pub fn exported(&mut self, ino: Ino, cap_id: u64) {
        if let Some(pin) = self.0.get_mut(&ino)
            && pin.cap.as_ref().is_some_and(|c| c.id == cap_id)
        {
            pin.cap = None;
        }
    }

    /// A rank knows of no capability any more.
    pub fn forget(&mut self, rank: Rank) {
        for pin in self.0.values_mut() {
            if pin.cap.as_ref().is_some_and(|c| c.rank == rank) {
                pin.cap = None;
            }
        }
    }
}

fn released(m: &ClientCaps) -> CapItem {
    CapItem { ino: m.ino, cap_id: m.cap_id, migrate_seq: m.migrate_seq, seq: m.seq }
}

/// Says what is left of a capability. Nothing was changed under it.
fn update(ino: Ino, cap: &Cap) -> ClientCaps {
    let s = &cap.stat;
    ClientCaps {
        op: CapOp::UPDATE,
        ino,
        cap_id: cap.id,
        seq: cap.seq,
        issue_seq: cap.issue_seq,
        caps: cap.issued,
        wanted: s.cap.wanted,
        migrate_seq: cap.migrate_seq,
        uid: s.uid,
        gid: s.gid,
        mode: s.mode,
        nlink: s.nlink,
        size: s.size,
        truncate_size: s.truncate_size,
        truncate_seq: s.truncate_seq,
        mtime: s.mtime,
        atime: s.atime,
        ctime: s.ctime,
        btime: s.btime,
        layout: s.layout.clone(),
        time_warp_seq: s.time_warp_seq,
        change_attr: s.change_attr,
        inline_version: s.inline_version,
        ..ClientCaps::default()
    }
}

fn item(ino: Ino, cap: &Cap) -> CapItem {
    CapItem { ino, cap_id: cap.id, migrate_seq: cap.migrate_seq, seq: cap.seq }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cephfs::ReplyCap;

    fn record(ino: u64, cap_id: u64, seq: u32) -> InodeStat {
        let bits = caps::PIN | caps::FILE_SHARED | caps::FILE_RD;
        let cap = ReplyCap { caps: bits, cap_id, seq, ..ReplyCap::default() };
        InodeStat { ino: Ino(ino), cap, ..InodeStat::default() }
    }

    fn revoke(ino: u64, cap_id: u64, seq: u32, caps: u32) -> ClientCaps {
        ClientCaps { op: CapOp::REVOKE, ino: Ino(ino), cap_id, seq, caps, ..ClientCaps::default() }
    }

    #[test]
    fn what_is_not_in_use_is_given_back() {
        let mut c = Caps::default();
        let back = c.granted(0, &record(1, 5, 3), false).unwrap();
        assert_eq!((back.ino, back.cap_id, back.seq), (Ino(1), 5, 3));
        assert!(c.get(Ino(1)).is_none());
        assert!(c.granted(0, &record(1, 0, 0), false).is_none(), "no capability was given");
        let Answer::Release(back) = c.changed(0, &revoke(1, 5, 4, 0)) else { panic!() };
        assert_eq!((back.cap_id, back.seq), (5, 4));
    }

    #[test]
    fn what_is_in_use_stays_until_the_last_use_ends() {
        let mut c = Caps::default();
        assert!(c.granted(0, &record(1, 5, 3), true).is_none());
        assert!(c.granted(0, &record(1, 5, 4), true).is_none());
        c.busy(Ino(1), caps::FILE_RD);
        let Answer::Update(m) = c.changed(0, &revoke(1, 5, 5, caps::PIN | caps::FILE_RD)) else {
            panic!("nothing is read under what is revoked")
        };
        assert_eq!((m.op, m.seq, m.caps), (CapOp::UPDATE, 5, caps::PIN | caps::FILE_RD));
        assert!(matches!(c.changed(0, &revoke(1, 5, 6, 0)), Answer::None));
        assert_eq!(c.get(Ino(1)).unwrap().issued, 0);
        assert!(matches!(c.changed(1, &revoke(1, 5, 7, 0)), Answer::Release(_)));
        assert!(c.unpin(Ino(1)).is_none());
        let (rank, back) = c.unpin(Ino(1)).unwrap();
        assert_eq!((rank, back.cap_id, back.seq), (0, 5, 6), "as far as it was heard of");
        assert!(c.unpin(Ino(1)).is_none());
    }

    #[test]
    fn a_rank_that_is_gone_takes_its_capabilities() {
        let mut c = Caps::default();
        c.granted(0, &record(1, 5, 3), true);
        c.granted(1, &record(2, 6, 3), true);
        c.forget(0);
        assert!(c.get(Ino(1)).is_none() && c.get(Ino(2)).is_some());
        c.exported(Ino(2), 6);
        assert!(c.get(Ino(2)).is_none());
        assert!(c.unpin(Ino(2)).is_none());
    }
}
