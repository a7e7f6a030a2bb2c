//! What a client may do, by the `mds` capability of its key. What a grant says of paths, users and
//! root is for the core to decide: it knows the inodes.

use auth::caps::{MdsCap, MdsGrant, Network};
use messages::FsOp;
use msgr::Connection;
use std::net::IpAddr;

/// What a client may do with the file system.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    /// Change something.
    pub write: bool,
    /// Set layouts and quotas.
    pub policy: bool,
    /// What the core is told of it.
    pub core: mds::Rights,
}

impl Rights {
    /// The rights for a file system of a client at an address, or why there are none.
    pub fn of(caps: &str, fs: &str, from: Option<IpAddr>) -> Result<Rights, String> {
        let caps: MdsCap = caps.parse().map_err(|e| format!("its mds caps make no sense: {e}"))?;
        let of_fs = |g: &&MdsGrant| g.fs_name.as_ref().is_none_or(|name| name == fs || name == "*");
        let here = |g: &&MdsGrant| {
            g.network.as_ref().is_none_or(|net| Network::new(net.clone()).contains(from))
        };
        let (mut for_fs, mut kept) = (false, Vec::new());
        for grant in caps.grants.iter().filter(of_fs) {
            for_fs = true;
            if here(&grant) {
                kept.push(grant_of(grant));
            }
        }
        if kept.is_empty() {
            return Err(match for_fs {
                true => "its mds caps are for other networks".to_owned(),
                false => format!("its mds caps do not name the file system {fs}"),
            });
        }
        let limited = |g: &mds::Grant| !g.path.is_empty() || g.root_squash || g.user.is_some();
        Ok(Rights {
            write: kept.iter().any(|g| g.write),
            policy: kept.iter().any(|g| g.policy),
            core: match kept.iter().any(limited) {
                true => mds::Rights::Some(kept.into()),
                false => mds::Rights::All,
            },
        })
    }

    /// The rights of a connection.
    pub fn of_connection(conn: &Connection, fs: &str) -> Result<Rights, String> {
        let caps = conn.auth_caps();
        if caps.allow_all {
            return Ok(Rights { write: true, policy: true, core: mds::Rights::All });
        }
        Rights::of(&caps.text, fs, conn.peer_socket_addr().map(|a| a.ip()))
    }

    /// Whether a request is allowed. Opening counts as a change if it is for writing.
    pub fn allow(&self, op: FsOp, writes: bool, attribute: &[u8]) -> bool {
        if !(op.is_write() || writes) || op == FsOp::SETFILELOCK {
            return true;
        }
        let policy = [FsOp::SETLAYOUT, FsOp::SETDIRLAYOUT].contains(&op)
            || [FsOp::SETXATTR, FsOp::RMXATTR].contains(&op) && attribute.starts_with(b"ceph.");
        self.write && (self.policy || !policy)
    }
}

/// A grant as the core knows it.
fn grant_of(grant: &MdsGrant) -> mds::Grant {
    let all = grant.spec == "*";
    let path = grant.path.as_deref().unwrap_or_default();
    let names = path.split('/').filter(|name| !name.is_empty());
    mds::Grant {
        write: all || grant.spec.contains('w'),
        policy: all || grant.spec.contains('p'),
        path: names.map(|name| mds::Name::copy_from_slice(name.as_bytes())).collect(),
        root_squash: grant.root_squash,
        user: grant.uid.map(|uid| (uid, grant.gids.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(write: bool, policy: bool) -> Rights {
        Rights { write, policy, core: mds::Rights::All }
    }

    #[test]
    fn caps_of_the_whole_file_system() {
        for (caps, rights) in [
            ("allow *", plain(true, true)),
            ("allow", plain(true, true)),
            ("allow rw", plain(true, false)),
            ("allow r", plain(false, false)),
            ("allow rwp fsname=cephfs", plain(true, true)),
            ("allow rw path=/", plain(true, false)),
            ("allow r, allow rw fsname=other", plain(false, false)),
            ("allow r, allow rw network 10.0.0.0/8", plain(false, false)),
            ("allow r, allow rw network 192.168.0.0/16", plain(true, false)),
        ] {
            let from = "192.168.1.2".parse().ok();
            assert_eq!(Rights::of(caps, "cephfs", from), Ok(rights), "{caps}");
        }
        for (caps, why) in [
            ("allow rw fsname=other", "do not name"),
            ("allow rw network 10.0.0.0/8", "other networks"),
            ("", "make no sense"),
        ] {
            let refused = Rights::of(caps, "cephfs", None).unwrap_err();
            assert!(refused.contains(why), "{caps}: {refused}");
        }
    }

    #[test]
    fn the_core_hears_of_limits() {
        let grant = mds::Grant { write: true, ..mds::Grant::default() };
        let name = |n: &'static str| mds::Name::from_static(n.as_bytes());
        for (caps, grants) in [
            (
                "allow rw path=/a/b",
                vec![mds::Grant { path: vec![name("a"), name("b")], ..grant.clone() }],
            ),
            (
                "allow rw uid=5 gids=6,7",
                vec![mds::Grant { user: Some((5, vec![6, 7])), ..grant.clone() }],
            ),
            (
                "allow r, allow rw fsname=cephfs root_squash",
                vec![mds::Grant::default(), mds::Grant { root_squash: true, ..grant.clone() }],
            ),
        ] {
            let rights = Rights::of(caps, "cephfs", None).unwrap();
            assert_eq!(rights.core, mds::Rights::Some(grants.into()), "{caps}");
            assert!(rights.write && !rights.policy);
        }
    }

    #[test]
    fn reading_and_locking_need_no_right_to_write() {
        let r = Rights::default();
        assert!(r.allow(FsOp::GETATTR, false, b"") && r.allow(FsOp::SETFILELOCK, false, b""));
        assert!(!r.allow(FsOp::MKDIR, false, b"") && !r.allow(FsOp::OPEN, true, b""));
        let rw = plain(true, false);
        assert!(rw.allow(FsOp::SETXATTR, false, b"user.a"));
        assert!(!rw.allow(FsOp::SETXATTR, false, b"ceph.quota"));
        assert!(!rw.allow(FsOp::SETLAYOUT, false, b""));
    }
}
