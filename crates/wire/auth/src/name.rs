//! The name that an entity authenticates with.

use bytes::BytesMut;
use denc::{Decode, Encode, Features, Reader};
use std::fmt;
use std::str::FromStr;
use types::EntityType;

/// `client.admin`, `osd.3`: C++ `EntityName`, `src/common/entity_name.h` (plain: `u32` type, string
/// id). Not to be confused with `entity_name_t` (type and number), which is what messages carry.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthName {
    /// The kind of entity; one of Ceph's six, or unknown if it came from the wire.
    pub kind: EntityType,
    /// The part after the dot; empty for `mon.`.
    pub id: String,
}

impl AuthName {
    /// A name of its parts.
    pub fn new(kind: EntityType, id: impl Into<String>) -> Self {
        AuthName { kind, id: id.into() }
    }

    /// `mon.`: all monitors share its key.
    pub fn mon() -> Self {
        AuthName::new(EntityType::MON, "")
    }

    /// Whether the entity is a daemon of the cluster (as opposed to one of its clients).
    pub fn is_daemon(&self) -> bool {
        [EntityType::MON, EntityType::OSD, EntityType::MDS, EntityType::MGR].contains(&self.kind)
    }
}

impl fmt::Display for AuthName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.kind, self.id)
    }
}

impl fmt::Debug for AuthName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is no `TYPE.ID`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not an entity name: expected TYPE.ID with a type of auth, mon, osd, mds, mgr, client"
)]
pub struct BadName(pub String);

impl FromStr for AuthName {
    type Err = BadName;

    fn from_str(s: &str) -> Result<Self, BadName> {
        let bad = || BadName(s.to_owned());
        let (kind, id) = s.split_once('.').ok_or_else(bad)?;
        let kind = EntityType::from_name(kind).ok_or_else(bad)?;
        Ok(AuthName::new(kind, id))
    }
}

impl Encode for AuthName {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.kind.encode(out, f);
        self.id.encode(out, f);
    }
}

impl Decode for AuthName {
    fn decode(r: &mut Reader) -> denc::Result<Self> {
        Ok(AuthName { kind: r.get()?, id: r.get()? })
    }
}
