//! Access control lists as attributes of buckets and objects.

use crate::key::User;
use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeMap;

/// Permissions (Ceph: `RGW_PERM_*`, `rgw/rgw_acl.h`).
pub mod perm {
    /// Read the object, list the bucket.
    pub const READ: u32 = 1;
    /// Write the object, write into the bucket.
    pub const WRITE: u32 = 2;
    /// Read the list.
    pub const READ_ACP: u32 = 4;
    /// Write the list.
    pub const WRITE_ACP: u32 = 8;
    /// All of these.
    pub const FULL_CONTROL: u32 = 15;
}

/// Groups (Ceph: `ACLGroupTypeEnum`).
pub mod group {
    /// None.
    pub const NONE: u32 = 0;
    /// All senders.
    pub const ALL_USERS: u32 = 1;
    /// All senders with a key.
    pub const AUTHENTICATED_USERS: u32 = 2;
}

/// Kinds of grantees (Ceph: `ACLGranteeTypeEnum`).
pub mod grantee {
    /// A user.
    pub const USER: u32 = 0;
    /// A user by its address.
    pub const EMAIL: u32 = 1;
    /// A group.
    pub const GROUP: u32 = 2;
}

/// A number in an envelope (Ceph: `ACLGranteeType` and `ACLPermission`, `rgw/rgw_acl.h`,
/// version 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
struct Wrapped(u32);

/// A grant (Ceph: `ACLGrant`, `rgw/rgw_acl.h`, version 5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclGrant {
    /// The kind of grantee, see [`grantee`].
    pub kind: u32,
    /// The user.
    pub id: User,
    /// The user's address.
    pub email: Bytes,
    /// See [`perm`].
    pub permission: u32,
    /// The user's name.
    pub name: Bytes,
    /// See [`group`].
    pub group: u32,
    /// A site, for Swift.
    pub url: Bytes,
}

impl Encode for AclGrant {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 5, 3, |out| {
            (Wrapped(self.kind), &self.id).encode(out, f);
            // A group's address stood here once.
            (Bytes::new(), &self.email, Wrapped(self.permission)).encode(out, f);
            (&self.name, self.group, &self.url).encode(out, f);
        });
    }
}

impl Decode for AclGrant {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let (v, mut r) = r.envelope("ACLGrant", 5)?;
        let (kind, id): (Wrapped, User) = r.get()?;
        let (_, email, permission): (Bytes, Bytes, Wrapped) = r.get()?;
        let (name, group) = r.get()?;
        let url = if v >= 5 { r.get()? } else { Bytes::new() };
        Ok(AclGrant { kind: kind.0, id, email, permission: permission.0, name, group, url })
    }
}

/// What a site may do (Ceph: `ACLReferer`, `rgw/rgw_acl.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct AclReferer {
    /// The site.
    pub url: Bytes,
    /// See [`perm`].
    pub permission: u32,
}

/// Grants (Ceph: `RGWAccessControlList`, `rgw/rgw_acl.h`, version 4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclList {
    /// Permissions of each user.
    pub users: BTreeMap<Bytes, i32>,
    /// Grants by user; those of groups have an empty key. A key can be there more than once.
    pub grants: Vec<(Bytes, AclGrant)>,
    /// Permissions of each group.
    pub groups: BTreeMap<u32, i32>,
    /// Permissions of sites.
    pub referers: Vec<AclReferer>,
}

impl AclList {
    /// Adds a grant.
    pub fn add(&mut self, grant: AclGrant) {
        let bits = grant.permission as i32;
        let key = if grant.kind == grantee::GROUP {
            *self.groups.entry(grant.group).or_default() |= bits;
            Bytes::new()
        } else {
            let key = grant.id.text();
            *self.users.entry(key.clone()).or_default() |= bits;
            key
        };
        let at = self.grants.partition_point(|(k, _)| *k <= key);
        self.grants.insert(at, (key, grant));
    }
}

impl Encode for AclList {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        denc::envelope(out, 4, 3, |out| {
            // The maps by user and group are there.
            (true, &self.users, &self.grants).encode(out, f);
            (&self.groups, &self.referers).encode(out, f);
        });
    }
}

impl Decode for AclList {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        const WHAT: &str = "RGWAccessControlList";
        let (v, mut r) = r.envelope(WHAT, 4)?;
        if v < 3 {
            return Err(denc::DecodeError::TooOld { what: WHAT, struct_v: v, oldest: 3 });
        }
        let (_, users, grants): (bool, _, _) = r.get()?;
        let groups = r.get()?;
        let referers = if v >= 4 { r.get()? } else { Vec::new() };
        Ok(AclList { users, grants, groups, referers })
    }
}

/// An owner (Ceph: `ACLOwner`, `rgw/rgw_acl.h`, version 3).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 3, compat = 2, oldest = 2)]
pub struct AclOwner {
    /// The user.
    pub id: User,
    /// The user's name.
    pub display_name: Bytes,
}

/// The attribute `user.rgw.acl` (Ceph: `RGWAccessControlPolicy`, `rgw/rgw_acl.h`, version 2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 2, compat = 2, oldest = 2)]
pub struct AccessPolicy {
    /// The owner.
    pub owner: AclOwner,
    /// The grants.
    pub list: AclList,
}
