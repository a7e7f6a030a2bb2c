//! Names of objects, users and zones.

use bytes::{Bytes, BytesMut};
use denc::{Decode, Encode, Features, Reader};
use denc_derive::Denc;
use std::collections::BTreeSet;

/// An object of a bucket (Ceph: `cls_rgw_obj_key`, `cls/rgw/cls_rgw_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ObjKey {
    /// Its name.
    pub name: Bytes,
    /// Which of its versions; empty for the object of a bucket without versions and for the null
    /// version.
    pub instance: Bytes,
}

impl ObjKey {
    /// The name without a version.
    pub fn plain(name: Bytes) -> Self {
        ObjKey { name, instance: Bytes::new() }
    }
}

/// A user (Ceph: `rgw_user`, `rgw/rgw_basic_types.h`). In records it is the text
/// `[TENANT$][NS$]ID`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct User {
    /// The tenant; empty for the default one.
    pub tenant: Bytes,
    /// What the id is in (`oidc`); usually empty.
    pub ns: Bytes,
    /// The id.
    pub id: Bytes,
}

impl User {
    /// The user that a text names.
    pub fn parse(text: &Bytes) -> Self {
        let cut = |text: &Bytes| {
            let at = text.iter().position(|b| *b == b'$')?;
            Some((text.slice(..at), text.slice(at + 1..)))
        };
        let Some((tenant, rest)) = cut(text) else {
            return User { id: text.clone(), ..User::default() };
        };
        let (ns, id) = cut(&rest).unwrap_or((Bytes::new(), rest));
        User { tenant, ns, id }
    }

    /// The text.
    pub fn text(&self) -> Bytes {
        match (self.tenant.is_empty(), self.ns.is_empty()) {
            (true, true) => self.id.clone(),
            (false, true) => [&self.tenant[..], b"$", &self.id].concat().into(),
            (_, false) => [&self.tenant[..], b"$", &self.ns, b"$", &self.id].concat().into(),
        }
    }

    /// No user.
    pub fn is_empty(&self) -> bool {
        self.id.is_empty()
    }
}

impl Encode for User {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.text().encode(out, f);
    }
}

impl Decode for User {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(User::parse(&r.get()?))
    }
}

/// A zone that has seen a change (Ceph: `rgw_zone_set_entry`, `cls/rgw/cls_rgw_types.h`). In
/// records it is the text `ZONE[:LOCATION]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneEntry {
    /// The zone.
    pub zone: Bytes,
    /// The bucket in it, where changes of one zone go to several.
    pub location: Option<Bytes>,
}

impl Encode for ZoneEntry {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        match &self.location {
            None => self.zone.encode(out, f),
            Some(l) => Bytes::from([&self.zone[..], b":", l].concat()).encode(out, f),
        }
    }
}

impl Decode for ZoneEntry {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        let text: Bytes = r.get()?;
        Ok(match text.iter().position(|b| *b == b':') {
            None => ZoneEntry { zone: text, location: None },
            Some(at) => ZoneEntry { zone: text.slice(..at), location: Some(text.slice(at + 1..)) },
        })
    }
}

/// The zones that have seen a change (Ceph: `rgw_zone_set`, `cls/rgw/cls_rgw_types.h`).
pub type ZoneSet = BTreeSet<ZoneEntry>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_read_from_text() {
        for (text, tenant, ns, id) in [
            ("u", "", "", "u"),
            ("t$u", "t", "", "u"),
            ("t$n$u", "t", "n", "u"),
            ("$n$u", "", "n", "u"),
        ] {
            let user = User::parse(&text.into());
            assert_eq!(user, User { tenant: tenant.into(), ns: ns.into(), id: id.into() });
            assert_eq!(user.text(), text);
        }
        assert_eq!(User::parse(&"$u".into()).text(), "u", "an empty tenant is none");
    }

    #[test]
    fn zones_are_in_order_of_zone_then_location() {
        let texts = ["a", "a:", "a:x", "a-b"].map(Bytes::from);
        let mut out = BytesMut::new();
        texts.to_vec().encode(&mut out, Features::ALL);
        let bytes = out.freeze();
        let set = ZoneSet::from_bytes(&bytes).unwrap();
        assert_eq!(set.to_bytes(Features::ALL), bytes);
    }
}
