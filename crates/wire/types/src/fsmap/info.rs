//! One metadata server (MDS) in a map.

use crate::compat_set::CompatSet;
use crate::dump::{Dump, shown};
use crate::features::SERVER_NAUTILUS;
use crate::{AddrType, EntityAddr, EntityAddrVec, Utime};
use bytes::BytesMut;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;

/// A rank of a file system; -1 is none.
pub type Rank = i32;

/// What an MDS does, or asks to do (Ceph: `CEPH_MDS_STATE_*`, `include/ceph_fs.h`). Clients of
/// the kernel compare these numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct MdsState(pub i32);

impl MdsState {
    /// Does not exist.
    pub const DNE: MdsState = MdsState(0);
    /// Its rank was given up.
    pub const STOPPED: MdsState = MdsState(-1);
    /// Announces itself.
    pub const BOOT: MdsState = MdsState(-4);
    /// Waits for a rank.
    pub const STANDBY: MdsState = MdsState(-5);
    /// Makes a rank that is new.
    pub const CREATING: MdsState = MdsState(-6);
    /// Starts a rank that was stopped.
    pub const STARTING: MdsState = MdsState(-7);
    /// Follows the journal of a rank.
    pub const STANDBY_REPLAY: MdsState = MdsState(-8);
    /// No state.
    pub const NULL: MdsState = MdsState(-10);
    /// Replays the journal.
    pub const REPLAY: MdsState = MdsState(8);
    /// Settles what other ranks know.
    pub const RESOLVE: MdsState = MdsState(9);
    /// Waits for clients to come back.
    pub const RECONNECT: MdsState = MdsState(10);
    /// Joins the caches of other ranks.
    pub const REJOIN: MdsState = MdsState(11);
    /// Repeats requests of clients.
    pub const CLIENTREPLAY: MdsState = MdsState(12);
    /// Serves.
    pub const ACTIVE: MdsState = MdsState(13);
    /// Gives its rank up.
    pub const STOPPING: MdsState = MdsState(14);
    /// Its rank cannot be replayed.
    pub const DAMAGED: MdsState = MdsState(15);

    /// The name that commands show.
    pub const fn name(self) -> &'static str {
        match self {
            MdsState::DNE => "down:dne",
            MdsState::STOPPED => "down:stopped",
            MdsState::DAMAGED => "down:damaged",
            MdsState::BOOT => "up:boot",
            MdsState::STANDBY => "up:standby",
            MdsState::STANDBY_REPLAY => "up:standby-replay",
            MdsState::CREATING => "up:creating",
            MdsState::STARTING => "up:starting",
            MdsState::REPLAY => "up:replay",
            MdsState::RESOLVE => "up:resolve",
            MdsState::RECONNECT => "up:reconnect",
            MdsState::REJOIN => "up:rejoin",
            MdsState::CLIENTREPLAY => "up:clientreplay",
            MdsState::ACTIVE => "up:active",
            MdsState::STOPPING => "up:stopping",
            MdsState::NULL => "null",
            _ => "???",
        }
    }

    /// Whether a rank in this state is on its way to being served.
    pub fn is_degraded(self) -> bool {
        (MdsState::REPLAY..=MdsState::CLIENTREPLAY).contains(&self)
    }

    /// Whether a daemon that holds a rank may go from `self` to `next`. A daemon that replays goes
    /// through the states in order.
    pub fn may_become(self, next: MdsState) -> bool {
        match self {
            s if s == next => true,
            MdsState::REPLAY => next == MdsState::RESOLVE || next == MdsState::RECONNECT,
            MdsState::REJOIN => {
                [MdsState::ACTIVE, MdsState::CLIENTREPLAY, MdsState::STOPPED].contains(&next)
            }
            s if (MdsState::RESOLVE..MdsState::ACTIVE).contains(&s) => next.0 == s.0 + 1,
            _ => true,
        }
    }
}

impl fmt::Display for MdsState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A daemon as maps have it (Ceph 16.2: `MDSMap::mds_info_t`, `mds/MDSMap.h`, version 10, compat 4;
/// version 7 for peers without `SERVER_NAUTILUS`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MdsInfo {
    /// The global id of its session with the monitors: one for each start.
    pub gid: u64,
    /// Its name.
    pub name: String,
    /// Its rank, or -1.
    pub rank: Rank,
    /// The epoch in which it got the rank.
    pub inc: i32,
    /// What it does.
    pub state: MdsState,
    /// The number of the beacon that asked for the state.
    pub state_seq: u64,
    /// Where it listens.
    pub addrs: EntityAddrVec,
    /// Since when no beacons come; zero if they do.
    pub laggy_since: Utime,
    /// Ranks that it may hand subtrees to.
    pub export_targets: BTreeSet<Rank>,
    /// Its features.
    pub features: u64,
    /// The file system that it prefers, or -1.
    pub join_fscid: i32,
    /// Flags; see [`MdsInfo::FROZEN`].
    pub flags: u64,
    /// What it can read and write.
    pub compat: CompatSet,
}

impl MdsInfo {
    /// The monitors leave the daemon alone, whatever happens to it.
    pub const FROZEN: u64 = 1;

    /// A daemon that waits.
    pub fn standby(gid: u64, name: &str, addrs: EntityAddrVec, compat: CompatSet) -> MdsInfo {
        MdsInfo {
            gid,
            name: name.to_owned(),
            rank: -1,
            inc: 0,
            state: MdsState::STANDBY,
            state_seq: 0,
            addrs,
            laggy_since: Utime::ZERO,
            export_targets: BTreeSet::new(),
            features: 0,
            join_fscid: -1,
            flags: 0,
            compat,
        }
    }

    /// Whether no beacons come.
    pub fn is_laggy(&self) -> bool {
        !self.laggy_since.is_zero()
    }

    /// Whether the monitors leave it alone.
    pub fn is_frozen(&self) -> bool {
        self.flags & Self::FROZEN != 0
    }

    /// The daemon as the cluster log names it.
    pub fn human_name(&self) -> String {
        format!("daemon mds.{}", self.name)
    }

    /// The address that peers without address vectors get.
    fn legacy(&self) -> EntityAddr {
        EntityAddr { kind: AddrType::LEGACY, ..self.addrs.legacy_or_front() }
    }
}

impl Encode for MdsInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let new = f.has(SERVER_NAUTILUS);
        envelope(out, if new { 10 } else { 7 }, 4, |out| {
            self.gid.encode(out, f);
            self.name.encode(out, f);
            self.rank.encode(out, f);
            self.inc.encode(out, f);
            self.state.0.encode(out, f);
            self.state_seq.encode(out, f);
            match new {
                true => self.addrs.encode(out, f),
                false => self.legacy().encode(out, f),
            }
            self.laggy_since.encode(out, f);
            // A rank and a name to wait for, which daemons had before 14.2.
            (-1i32).encode(out, f);
            String::new().encode(out, f);
            self.export_targets.encode(out, f);
            self.features.encode(out, f);
            self.join_fscid.encode(out, f);
            false.encode(out, f);
            if new {
                self.flags.encode(out, f);
                self.compat.encode(out, f);
            }
        });
    }
}

impl Decode for MdsInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (struct_v, mut r) = r.envelope("mds_info_t", 10)?;
        if struct_v < 7 {
            return Err(DecodeError::TooOld { what: "mds_info_t", struct_v, oldest: 7 });
        }
        let mut info = MdsInfo {
            gid: r.get()?,
            name: r.get()?,
            rank: r.get()?,
            inc: r.get()?,
            state: MdsState(r.get()?),
            state_seq: r.get()?,
            addrs: match struct_v >= 8 {
                true => r.get()?,
                false => EntityAddrVec::one(r.get()?),
            },
            laggy_since: r.get()?,
            export_targets: BTreeSet::new(),
            features: 0,
            join_fscid: -1,
            flags: 0,
            compat: super::default_compat(),
        };
        r.get::<i32>()?;
        r.get::<String>()?;
        info.export_targets = r.get()?;
        info.features = r.get()?;
        info.join_fscid = r.get()?;
        r.get::<bool>()?;
        if struct_v >= 9 {
            info.flags = r.get()?;
        }
        if struct_v >= 10 {
            info.compat = r.get()?;
        }
        Ok(info)
    }
}

impl Dump for MdsInfo {
    fn dump(&self) -> Value {
        let mut v = json!({
            "gid": self.gid,
            "name": self.name,
            "rank": self.rank,
            "incarnation": self.inc,
            "state": self.state.name(),
            "state_seq": self.state_seq,
            "addr": self.addrs.legacy_string(),
            "addrs": self.addrs.dump(),
            "join_fscid": self.join_fscid,
        });
        if self.is_laggy() {
            v["laggy_since"] = shown(self.laggy_since);
        }
        v["export_targets"] = json!(self.export_targets);
        v["features"] = json!(self.features);
        v["flags"] = json!(self.flags);
        v["compat"] = self.compat.dump();
        v
    }
}

impl fmt::Display for MdsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[mds.{}{{{}:{}}} state {} seq {}",
            self.name, self.rank, self.gid, self.state, self.state_seq
        )?;
        if self.is_laggy() {
            write!(f, " laggy since {}", self.laggy_since)?;
        }
        if !self.export_targets.is_empty() {
            write!(f, " export targets {}", super::list(&self.export_targets))?;
        }
        if self.is_frozen() {
            write!(f, " frozen")?;
        }
        if self.join_fscid != -1 {
            write!(f, " join_fscid={}", self.join_fscid)?;
        }
        write!(f, " addr {} compat {}]", self.addrs, self.compat.lite())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_returns_in_both_forms() {
        let addr = EntityAddr::msgr2(([127, 0, 0, 1], 6800).into(), 7);
        let mut info =
            MdsInfo::standby(4100, "a", EntityAddrVec::one(addr), super::super::default_compat());
        info.export_targets = [1, 2].into();
        info.flags = MdsInfo::FROZEN;
        assert_eq!(MdsInfo::from_bytes(&info.to_bytes(Features::ALL)).unwrap(), info);
        let old = MdsInfo::from_bytes(&info.to_bytes(Features(0))).unwrap();
        assert_eq!((old.gid, old.flags, old.export_targets.len()), (4100, 0, 2));
    }

    #[test]
    fn ranks_come_up_in_order() {
        use MdsState as S;
        assert!(S::REPLAY.may_become(S::RECONNECT) && S::REPLAY.may_become(S::RESOLVE));
        assert!(!S::REPLAY.may_become(S::ACTIVE));
        assert!(S::RESOLVE.may_become(S::RECONNECT) && !S::RESOLVE.may_become(S::REJOIN));
        assert!(S::REJOIN.may_become(S::ACTIVE) && S::CREATING.may_become(S::ACTIVE));
        assert!(S::CLIENTREPLAY.may_become(S::ACTIVE));
        assert!(!S::CLIENTREPLAY.may_become(S::REPLAY));
    }
}
