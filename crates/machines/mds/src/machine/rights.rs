//! Whether a client may do with an inode what it asks for: its [`Rights`] beside what is in memory.

use super::Mds;
use super::operation::{Exec, Stop, fail};
use crate::event::CapsUpdate;
use crate::request::Request;
use crate::rights::{Grant, Rights, Wish};
use crate::types::{ClientId, Ino, Name};
use types::Errno;

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
        let part = self.part_of(ino);
        let (whole, way) = match self.way_above(part) {
            Some(above) => (true, [above, way].concat()),
            None => (self.conf.owners <= 1 || part == Ino::ROOT, way),
        };
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
            Err(Stop::Fail(_)) => Ok(0),
            Err(wait) => Err(wait),
        }
    }
}
