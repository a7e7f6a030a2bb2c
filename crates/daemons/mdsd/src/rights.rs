//! What a client may do, by the `mds` capability of its key.

use auth::caps::MdsCap;
use messages::FsOp;
use msgr::Connection;

/// What a client may do with the file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Change something.
    pub write: bool,
    /// Set layouts and quotas.
    pub policy: bool,
}

impl Rights {
    /// The rights for a file system, or why there are none. A grant for a path, a user, a network
    /// or for all but root cannot be enforced here: it gives nothing.
    pub fn of(caps: &str, fs: &str) -> Result<Rights, String> {
        let caps: MdsCap = caps.parse().map_err(|e| format!("its mds caps make no sense: {e}"))?;
        let (mut rights, mut reads, mut passed_over) = (Rights::default(), false, None);
        for grant in &caps.grants {
            if grant.fs_name.as_ref().is_some_and(|name| name != fs && name != "*") {
                continue;
            }
            let path = grant.path.as_deref().is_some_and(|p| !p.trim_matches('/').is_empty());
            let limit = if path {
                Some("path=")
            } else if grant.root_squash {
                Some("root_squash")
            } else if grant.uid.is_some() {
                Some("uid=")
            } else if grant.network.is_some() {
                Some("network")
            } else {
                None
            };
            if limit.is_some() {
                passed_over = limit;
                continue;
            }
            let all = grant.spec == "*";
            reads = true;
            rights.write |= all || grant.spec.contains('w');
            rights.policy |= all || grant.spec.contains('p');
        }
        match (reads, passed_over) {
            (true, _) => Ok(rights),
            (false, Some(limit)) => Err(format!(
                "its mds caps are limited by {limit}, which this server cannot enforce: give it \
                 caps for the whole file system"
            )),
            (false, None) => Err(format!("its mds caps do not name the file system {fs}")),
        }
    }

    /// The rights of a connection.
    pub fn of_connection(conn: &Connection, fs: &str) -> Result<Rights, String> {
        let caps = conn.auth_caps();
        if caps.allow_all {
            return Ok(Rights { write: true, policy: true });
        }
        Rights::of(&caps.text, fs)
    }

    /// Whether a request is allowed. Opening counts as a change if it is for writing.
    pub fn allow(self, op: FsOp, writes: bool, attribute: &[u8]) -> bool {
        if !(op.is_write() || writes) || op == FsOp::SETFILELOCK {
            return true;
        }
        let policy = [FsOp::SETLAYOUT, FsOp::SETDIRLAYOUT].contains(&op)
            || [FsOp::SETXATTR, FsOp::RMXATTR].contains(&op) && attribute.starts_with(b"ceph.");
        self.write && (self.policy || !policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_give_what_can_be_enforced() {
        let all = Rights { write: true, policy: true };
        let rw = Rights { write: true, policy: false };
        for (caps, rights) in [
            ("allow *", Ok(all)),
            ("allow", Ok(all)),
            ("allow rw", Ok(rw)),
            ("allow r", Ok(Rights::default())),
            ("allow rwp fsname=cephfs", Ok(all)),
            ("allow rw path=/", Ok(rw)),
            ("allow r, allow rw fsname=other", Ok(Rights::default())),
        ] {
            assert_eq!(Rights::of(caps, "cephfs"), rights, "{caps}");
        }
        for (caps, why) in [
            ("allow rw path=/home", "path="),
            ("allow rw fsname=other", "do not name"),
            ("allow rw root_squash", "root_squash"),
            ("allow rw uid=5", "uid="),
            ("", "make no sense"),
        ] {
            let refused = Rights::of(caps, "cephfs").unwrap_err();
            assert!(refused.contains(why), "{caps}: {refused}");
        }
    }

    #[test]
    fn reading_and_locking_need_no_right_to_write() {
        let r = Rights::default();
        assert!(r.allow(FsOp::GETATTR, false, b"") && r.allow(FsOp::SETFILELOCK, false, b""));
        assert!(!r.allow(FsOp::MKDIR, false, b"") && !r.allow(FsOp::OPEN, true, b""));
        let rw = Rights { write: true, policy: false };
        assert!(rw.allow(FsOp::SETXATTR, false, b"user.a"));
        assert!(!rw.allow(FsOp::SETXATTR, false, b"ceph.quota"));
        assert!(!rw.allow(FsOp::SETLAYOUT, false, b""));
    }
}
