//! What a client may do, by the grants of its key: below which directories, for which users, and
//! whether it may change anything (16.2: `mds/MDSAuthCaps.cc`, `mds/SessionMap.cc`,
//! `Session::check_access`).

use crate::caps;
use crate::request::{Op, Request};
use crate::types::{ClientId, Inode, Name};
use std::sync::Arc;

/// One grant of a key (Ceph: `MDSCapGrant`). All of them allow to read.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Grant {
    /// What is there may be changed.
    pub write: bool,
    /// Virtual attributes may be set: layouts, quotas, promises.
    pub policy: bool,
    /// The names from the root to the directory below which it holds.
    pub path: Vec<Name>,
    /// It does not let user 0 or group 0 change anything.
    pub root_squash: bool,
    /// It holds for this user alone, and for what the mode of an inode allows the user, with these
    /// groups.
    pub user: Option<(u32, Vec<u32>)>,
}

/// What a client may do.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Rights {
    /// All that the shell lets through.
    #[default]
    All,
    /// What one of these grants allows.
    Some(Arc<[Grant]>),
}

/// What a request does with an inode.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Wish {
    pub rights: Rights,
    pub client: ClientId,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub write: bool,
    pub policy: bool,
    pub new_uid: Option<u32>,
    pub new_gid: Option<u32>,
}

impl Wish {
    /// What a request of a client with these rights does.
    pub fn of(rights: Rights, client: ClientId, request: &Request) -> Self {
        let mut wish = Wish {
            rights,
            client,
            uid: request.uid,
            gid: request.gid,
            groups: request.groups.clone(),
            write: request.op.is_write(),
            ..Wish::default()
        };
        match &request.op {
            Op::Open { wanted, .. } => {
                wish.write |= wanted & (caps::FILE_WR | caps::FILE_BUFFER) != 0;
            }
            // A lock changes nothing that is at rest.
            Op::SetLock(_) => wish.write = false,
            Op::Setxattr { name, .. } | Op::Rmxattr { name } => {
                wish.policy = name.starts_with(b"ceph.");
            }
            Op::SetLayout(_) | Op::SetDirLayout(_) => wish.policy = true,
            Op::Setattr(set) => (wish.new_uid, wish.new_gid) = (set.uid, set.gid),
            _ => {}
        }
        wish
    }

    /// Whether a grant allows it, of an inode that is `inside` the grant's path.
    pub fn is_allowed(&self, grant: &Grant, inside: bool, inode: &Inode) -> bool {
        let root = self.uid == 0 || self.gid == 0;
        if !inside
            || self.write && (!grant.write || grant.root_squash && root)
            || self.policy && !grant.policy
        {
            return false;
        }
        let Some((user, groups)) = &grant.user else { return true };
        if *user != self.uid {
            return false;
        }
        let is_in =
            |gid: u32| groups.contains(&gid) && (gid == self.gid || self.groups.contains(&gid));
        let owns = inode.uid == self.uid;
        if self.new_uid.is_some_and(|new| !owns || new != self.uid)
            || self.new_gid.is_some_and(|new| !owns || !is_in(new))
        {
            return false;
        }
        let shift = if owns {
            6
        } else if is_in(inode.gid) {
            3
        } else {
            0
        };
        let needs = if self.write { 0o2 } else { 0o4 };
        inode.mode >> shift & needs == needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(uid: u32, gid: u32, write: bool) -> Wish {
        Wish { uid, gid, write, ..Wish::default() }
    }

    #[test]
    fn root_is_squashed_where_it_changes_something() {
        let grant = Grant { write: true, root_squash: true, ..Grant::default() };
        let inode = Inode::default();
        assert!(wish(0, 0, false).is_allowed(&grant, true, &inode));
        assert!(!wish(0, 5, true).is_allowed(&grant, true, &inode));
        assert!(!wish(5, 0, true).is_allowed(&grant, true, &inode));
        assert!(wish(5, 5, true).is_allowed(&grant, true, &inode));
        assert!(!wish(5, 5, true).is_allowed(&grant, false, &inode));
    }

    #[test]
    fn a_user_has_what_modes_allow() {
        let grant = Grant { write: true, user: Some((5, vec![7, 8])), ..Grant::default() };
        let inode = |uid, gid, mode| Inode { uid, gid, mode, ..Inode::default() };
        for (inode, gid, write, allowed) in [
            (inode(5, 1, 0o600), 1, true, true),
            (inode(5, 1, 0o477), 1, true, false),
            (inode(1, 7, 0o060), 7, true, true),
            // A group of the caller that the grant does not name, and the other way round.
            (inode(1, 1, 0o060), 1, true, false),
            (inode(1, 8, 0o060), 7, true, false),
            (inode(1, 1, 0o004), 7, false, true),
            (inode(1, 1, 0o004), 7, true, false),
        ] {
            assert_eq!(wish(5, gid, write).is_allowed(&grant, true, &inode), allowed, "{inode:?}");
        }
        assert!(!wish(6, 7, false).is_allowed(&grant, true, &inode(6, 7, 0o777)));
        let give = Wish { new_uid: Some(6), ..wish(5, 7, true) };
        assert!(!give.is_allowed(&grant, true, &inode(5, 7, 0o777)));
        let group = |new| Wish { new_gid: Some(new), ..wish(5, 7, true) };
        assert!(group(7).is_allowed(&grant, true, &inode(5, 1, 0o777)));
        assert!(!group(8).is_allowed(&grant, true, &inode(5, 1, 0o777)));
    }
}
