//! What a client may do, by the grants of its key: below which directories, for which users, and
//! whether it may change anything (16.2: `mds/MDSAuthCaps.cc`, `mds/SessionMap.cc`,
//! `Session::check_access`).

use super::{Exec, Mds, fail};
use crate::caps;
use crate::event::CapsUpdate;
use crate::request::{Op, Request};
use crate::types::{ClientId, Ino, Inode, Name};
use std::sync::Arc;
use types::Errno;

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
    rights: Rights,
    client: ClientId,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    write: bool,
    policy: bool,
    new_uid: Option<u32>,
    new_gid: Option<u32>,
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
    fn is_allowed(&self, grant: &Grant, inside: bool, inode: &Inode) -> bool {
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

impl Mds {
    /// Says what a client may do, from now on.
    pub(crate) fn set_rights(&mut self, client: ClientId, rights: Rights) {
        if let Some(session) = self.sessions.get_mut(&client) {
            session.rights = rights;
        }
    }

    /// Notes what the current request does, for [`Mds::permit`].
    pub(crate) fn wishes(&mut self, client: ClientId, request: &Request) {
        let rights = self.sessions.get(&client).map(|s| s.rights.clone()).unwrap_or_default();
        self.wish = match rights {
            Rights::All => None,
            some => Some(Wish::of(some, client, request)),
        };
    }

    /// Fails if the client of the current request may not do with this inode what the request does.
    pub(crate) fn permit(&mut self, ino: Ino) -> Exec<()> {
        match self.wish.take() {
            None => Ok(()),
            Some(wish) => {
                let result = self.permits(&wish, ino);
                self.wish = Some(wish);
                result
            }
        }
    }

    fn permits(&mut self, wish: &Wish, ino: Ino) -> Exec<()> {
        let Rights::Some(grants) = &wish.rights else { return Ok(()) };
        self.chain(ino)?;
        let Some(node) = self.nodes.get(&ino) else { return fail(Errno::EIO) };
        // An inode without a name is below no directory. A client that has capabilities of it could
        // reach it while it had one.
        let kept = match &node.parent {
            Some((dir, _)) if dir.is_stray_dir() => Some(node.caps.contains_key(&wish.client)),
            _ => None,
        };
        let way = if kept.is_some() { Vec::new() } else { self.way_to(ino) };
        // Of another owner's part, the names above its root are not known here.
        let whole = self.conf.owners <= 1 || self.part_of(ino) == Ino::ROOT;
        let inside = |g: &Grant| match kept {
            Some(kept) => kept,
            None => g.path.is_empty() || whole && way.starts_with(&g.path),
        };
        if grants.iter().any(|g| wish.is_allowed(g, inside(g), &node.inode)) {
            Ok(())
        } else {
            fail(Errno::EACCES)
        }
    }

    /// The names from the root to an inode, as far as they are in memory.
    pub(crate) fn way_to(&self, ino: Ino) -> Vec<Name> {
        let (mut names, mut at) = (Vec::new(), ino);
        while let Some((dir, name)) = self.nodes.get(&at).and_then(|n| n.parent.as_ref()) {
            names.push(name.clone());
            at = *dir;
        }
        names.reverse();
        names
    }

    /// What of a client's changes of an inode is taken: all or nothing of them.
    pub(crate) fn dirty_allowed(&mut self, client: ClientId, update: &CapsUpdate) -> Exec<u32> {
        let rights = self.sessions.get(&client).map(|s| s.rights.clone()).unwrap_or_default();
        if update.dirty == 0 || rights == Rights::All {
            return Ok(update.dirty);
        }
        let wish = Wish {
            rights,
            client,
            uid: update.uid,
            gid: update.gid,
            write: true,
            ..Wish::default()
        };
        match self.permits(&wish, update.ino) {
            Ok(()) => Ok(update.dirty),
            Err(super::Stop::Fail(_)) => Ok(0),
            Err(wait) => Err(wait),
        }
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
