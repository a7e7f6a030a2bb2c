//! What is proposed to the group: a batch of changes that takes effect as a whole or not at all.

use super::Execution;
use auth::{AuthName, EntityAuth, Rotation};
use bytes::{Bytes, BytesMut};
use denc::{BufMut, Decode, DecodeError, Encode, Features, Reader};
use placement::movement::Job;
use std::collections::BTreeMap;
use types::{
    Epoch, FsMap, LogEntry, MgrMap, MonMap, OsdId, OsdMapIncremental, PgId, ServiceMap, Utime,
};

/// Metadata that a daemon reported, by name.
pub type Metadata = BTreeMap<String, String>;

/// A batch of changes, made by the leader from the newest state that it knew.
#[derive(Clone, Debug, Default)]
pub struct Update {
    /// The leader's clock; the only one that applying may look at.
    pub now: Utime,
    /// The changes, in order.
    pub changes: Vec<Change>,
}

/// One change of the cluster state.
#[derive(Clone, Debug)]
pub enum Change {
    /// The next OSD map. Its epoch must follow the current one, or the whole batch is stale.
    OsdMap(Box<OsdMapIncremental>),
    /// The next monitor map; same rule.
    MonMap(Box<MonMap>),
    /// The next manager map; same rule.
    MgrMap(Box<MgrMap>),
    /// The file system map.
    FsMap(Box<FsMap>),
    /// The service map, as the manager keeps it.
    ServiceMap(Box<ServiceMap>),
    /// An entity's key and caps; `None` removes the entity.
    Auth(AuthName, Option<EntityAuth>),
    /// New rotating secrets. A rotation that was already done is ignored.
    Rotate(Rotation),
    /// Global ids below this may have been handed out.
    GlobalIds(u64),
    /// A setting of the central configuration, by `section[/mask]/option`; `None` removes it.
    Config(String, Option<String>),
    /// A record in the history of configuration changes.
    ConfigLog(ConfigLogEntry),
    /// A value of the configuration-key store.
    Kv(String, Option<Bytes>),
    /// Lines of the cluster log.
    Log(Vec<LogEntry>),
    /// A muted health check; `None` unmutes it.
    Mute(String, Option<Mute>),
    /// What an OSD told about itself.
    OsdMetadata(OsdId, Option<Metadata>),
    /// What a monitor told about itself.
    MonMetadata(String, Option<Metadata>),
    /// What a manager told about itself.
    MgrMetadata(String, Option<Metadata>),
    /// What a metadata server told about itself, by its global id.
    MdsMetadata(u64, Option<Metadata>),
    /// Placement groups that now exist on their OSDs.
    PgsCreated(Vec<PgId>),
    /// Forget OSD maps older than this epoch.
    TrimOsdMaps(Epoch),
    /// Forget lines of the cluster log with a number below this.
    TrimLog(u64),
    /// A request of a client was executed by this batch.
    Executed(Box<Execution>),
    /// A movement job; `None` forgets it.
    Move(u64, Option<Box<Job>>),
    /// Placement groups that lost all copies are to be made anew by the OSDs that act in this
    /// epoch, or in the first one after it in which any does.
    ForceCreate(Vec<PgId>, Epoch),
    /// The commands that the manager serves, as JSON.
    ManagerCommands(Bytes),
}

/// A muted health check (Ceph: `health_mute_t`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mute {
    /// Ends at this time; zero never.
    pub until: Utime,
    /// Stays when the check clears.
    pub sticky: bool,
    /// Summary of the check when it was muted.
    pub summary: String,
    /// How many things the check counted when it was muted; more end the mute.
    pub count: i64,
}

/// A record in the history of configuration changes (Ceph: `ConfigChangeSet`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigLogEntry {
    /// Counts from 1.
    pub version: u64,
    /// When.
    pub stamp: Utime,
    /// The author and the change, for people; empty for a plain set or remove.
    pub name: String,
    /// By key (`section[/mask]/option`): the value before and after.
    pub diff: BTreeMap<String, (Option<String>, Option<String>)>,
}

macro_rules! plain {
    ($t:ident { $($f:ident),* }) => {
        impl Encode for $t {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                denc::envelope(out, 1, 1, |out| { $(self.$f.encode(out, f);)* });
            }
        }
        impl Decode for $t {
            fn decode(r: &mut Reader) -> denc::Result<Self> {
                let (_, mut r) = r.envelope(stringify!($t), 1)?;
                Ok($t { $($f: r.get()?),* })
            }
        }
    };
}
plain!(Mute { until, sticky, summary, count });
plain!(ConfigLogEntry { version, stamp, name, diff });
plain!(Update { now, changes });

macro_rules! changes {
    ($($tag:literal $name:ident ( $($v:ident),* );)*) => {
        impl Encode for Change {
            fn encode(&self, out: &mut BytesMut, f: Features) {
                match self { $(Change::$name($($v),*) => {
                    out.put_u8($tag);
                    denc::with_length(out, |out| { $($v.encode(out, f);)* });
                })* }
            }
        }
        impl Decode for Change {
            fn decode(r: &mut Reader) -> denc::Result<Self> {
                let tag: u8 = r.get()?;
                let mut r = Reader::new(r.get::<Bytes>()?);
                let change = match tag {
                    $($tag => { $(let $v = r.get()?;)* Change::$name($($v),*) })*
                    other => return Err(DecodeError::Invalid { what: "Change", found: other.into() }),
                };
                r.expect_end("Change")?;
                Ok(change)
            }
        }
    };
}
changes! {
    1 OsdMap(inc);
    2 MonMap(map);
    3 MgrMap(map);
    4 FsMap(map);
    5 ServiceMap(map);
    6 Auth(name, auth);
    7 Rotate(rotation);
    8 GlobalIds(max);
    9 Config(key, value);
    10 ConfigLog(entry);
    11 Kv(key, value);
    12 Log(entries);
    13 Mute(code, mute);
    14 OsdMetadata(osd, metadata);
    15 MonMetadata(name, metadata);
    16 MgrMetadata(name, metadata);
    17 PgsCreated(pgs);
    18 TrimOsdMaps(first);
    19 TrimLog(first);
    20 Executed(execution);
    21 MdsMetadata(gid, metadata);
    22 Move(id, job);
    23 ForceCreate(pgs, epoch);
    24 ManagerCommands(json);
}
