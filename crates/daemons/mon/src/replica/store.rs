use super::runtime::blocking;
use super::{Answer, Machine, OpenError, Proposal, TypeConfig};
use bytes::Bytes;
use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    AnyError, BasicNode, Entry, EntryPayload, ErrorSubject, ErrorVerb, LogId, LogState,
    OptionalSend, RaftLogReader, RaftSnapshotBuilder, SnapshotMeta, StorageError, StorageIOError,
    StoredMembership, Vote,
};
use redb::backends::FileBackend;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

pub(super) const META: TableDefinition<&str, &[u8]> = TableDefinition::new("meta");
pub(super) const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");
pub(super) const STATE: TableDefinition<&[u8], &[u8]> = TableDefinition::new("state");

/// A changed row: key, and the new value or `None` if the row goes.
pub type Row = (Bytes, Option<Bytes>);

/// All rows of a state.
pub type Rows = BTreeMap<Bytes, Bytes>;

type Io<T> = Result<T, StorageError<u64>>;

fn failed(
    subject: ErrorSubject<u64>,
    verb: ErrorVerb,
    e: impl std::error::Error + 'static,
) -> StorageError<u64> {
    StorageIOError::new(subject, verb, AnyError::new(&e)).into()
}

fn write_failed(e: impl std::error::Error + 'static) -> StorageError<u64> {
    failed(ErrorSubject::Store, ErrorVerb::Write, e)
}

fn read_failed(e: impl std::error::Error + 'static) -> StorageError<u64> {
    failed(ErrorSubject::Store, ErrorVerb::Read, e)
}

/// The file, shared by the log and the state machine.
#[derive(Clone)]
pub(super) struct Shared(pub Arc<Database>);

impl Shared {
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let open = || {
            let mut options = modes::options(modes::SECRET);
            let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
            let file = FileBackend::new(file)?;
            Self::over(Database::builder().set_cache_size(16 << 20).create_with_backend(file)?)
        };
        open().map_err(|source| OpenError::Store { path: path.display().to_string(), source })
    }

    /// Makes the tables that are not there.
    pub fn over(db: Database) -> Result<Self, redb::Error> {
        let txn = db.begin_write()?;
        txn.open_table(META)?;
        txn.open_table(LOG)?;
        txn.open_table(STATE)?;
        txn.commit()?;
        Ok(Shared(Arc::new(db)))
    }

    /// Every row of the state.
    pub fn rows(&self) -> Result<Rows, OpenError> {
        self.try_rows()
            .map(|(rows, _)| rows)
            .map_err(|source| OpenError::Store { path: "state".into(), source })
    }

    /// The member's number. Files from before there were several members have none; they are the
    /// first.
    #[allow(clippy::result_large_err, reason = "openraft's error")]
    pub fn id(&self) -> Io<u64> {
        Ok(self.meta("id")?.unwrap_or(1))
    }

    /// Writes the member's number and the rows that a new group begins with.
    pub fn seed(&self, id: u64, rows: &Rows) -> Result<(), OpenError> {
        self.write(Durability::Immediate, |t| {
            put_meta(t, "id", &id)?;
            put_meta(t, "joining", &true)?;
            let mut table = t.open_table(STATE)?;
            for (k, v) in rows {
                table.insert(&k[..], &v[..])?;
            }
            Ok(())
        })
        .map_err(|source| OpenError::Store { path: "state".into(), source })
    }

    /// Writes that the member has had a vote; if that is lost, it is found out again.
    pub fn joined(&self) -> Result<(), redb::Error> {
        self.write(Durability::None, |t| put_meta(t, "joining", &false))
    }

    /// The rows and the point in the log that they belong to, of one instant.
    pub fn try_rows(&self) -> Result<(Rows, Applied), redb::Error> {
        let txn = self.0.begin_read()?;
        let table = txn.open_table(STATE)?;
        let mut rows = Rows::new();
        for item in table.iter()? {
            let (k, v) = item?;
            rows.insert(Bytes::copy_from_slice(k.value()), Bytes::copy_from_slice(v.value()));
        }
        let applied = match txn.open_table(META)?.get("applied")? {
            Some(v) => serde_json::from_slice(v.value())
                .map_err(|e| redb::Error::Corrupted(e.to_string()))?,
            None => Applied::default(),
        };
        Ok((rows, applied))
    }

    #[allow(clippy::result_large_err, reason = "the error type is the Raft library's")]
    pub fn meta<T: serde::de::DeserializeOwned>(&self, key: &str) -> Io<Option<T>> {
        let read = || -> Result<Option<T>, redb::Error> {
            let txn = self.0.begin_read()?;
            let table = txn.open_table(META)?;
            match table.get(key)? {
                None => Ok(None),
                Some(v) => serde_json::from_slice(v.value())
                    .map(Some)
                    .map_err(|e| redb::Error::Corrupted(e.to_string())),
            }
        };
        read().map_err(read_failed)
    }

    pub fn write(
        &self,
        durability: Durability,
        f: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        let mut txn = self.0.begin_write()?;
        txn.set_durability(durability).map_err(|e| redb::Error::Corrupted(e.to_string()))?;
        f(&txn)?;
        txn.commit()?;
        Ok(())
    }
}

fn to_json<T: serde::Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the value has only string keys and finite numbers")
}

pub(super) fn put_meta<T: serde::Serialize>(
    txn: &redb::WriteTransaction,
    key: &str,
    value: &T,
) -> Result<(), redb::Error> {
    txn.open_table(META)?.insert(key, to_json(value).as_slice())?;
    Ok(())
}

/// What the rows of the state correspond to.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
pub(super) struct Applied {
    pub log_id: Option<LogId<u64>>,
    pub membership: StoredMembership<u64, BasicNode>,
}

/// One log entry: the JSON of its id, a tag, then the payload. Proposals stay raw, because they are
/// most of the log and are binary.
pub(super) mod entry {
    use super::*;

    pub fn encode(e: &Entry<TypeConfig>) -> Vec<u8> {
        let id = to_json(&e.log_id);
        let mut out = Vec::with_capacity(id.len() + 32);
        out.extend_from_slice(&(id.len() as u32).to_le_bytes());
        out.extend_from_slice(&id);
        match &e.payload {
            EntryPayload::Blank => out.push(0),
            EntryPayload::Normal(p) => {
                out.push(1);
                out.extend_from_slice(&p.0);
            }
            EntryPayload::Membership(m) => {
                out.push(2);
                out.extend_from_slice(&to_json(m));
            }
        }
        out
    }

    pub fn decode(b: &[u8]) -> Result<Entry<TypeConfig>, redb::Error> {
        let bad = || redb::Error::Corrupted("log entry".into());
        let (len, rest) = b.split_first_chunk::<4>().ok_or_else(bad)?;
        let (id, rest) =
            rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(bad)?;
        let (tag, body) = rest.split_first().ok_or_else(bad)?;
        let payload = match tag {
            0 => EntryPayload::Blank,
            1 => EntryPayload::Normal(Proposal(Bytes::copy_from_slice(body))),
            2 => EntryPayload::Membership(serde_json::from_slice(body).map_err(|_| bad())?),
            _ => return Err(bad()),
        };
        Ok(Entry { log_id: serde_json::from_slice(id).map_err(|_| bad())?, payload })
    }
}

/// The log half of the file.
#[derive(Clone)]
pub(super) struct Log(pub Shared);

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Io<Vec<Entry<TypeConfig>>> {
        let read = || -> Result<Vec<Entry<TypeConfig>>, redb::Error> {
            let txn = self.0.0.begin_read()?;
            let table = txn.open_table(LOG)?;
            let mut out = Vec::new();
            for item in table.range(range.clone())? {
                out.push(entry::decode(item?.1.value())?);
            }
            Ok(out)
        };
        read().map_err(|e| failed(ErrorSubject::Logs, ErrorVerb::Read, e))
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Io<LogState<TypeConfig>> {
        let purged = self.0.meta("purged")?;
        let read = || -> Result<Option<LogId<u64>>, redb::Error> {
            let txn = self.0.0.begin_read()?;
            let table = txn.open_table(LOG)?;
            let last = table.last()?;
            last.map(|(_, v)| Ok(entry::decode(v.value())?.log_id)).transpose()
        };
        let last = read().map_err(read_failed)?;
        Ok(LogState { last_purged_log_id: purged, last_log_id: last.or(purged) })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Io<()> {
        self.0
            .write(Durability::Immediate, |t| put_meta(t, "vote", vote))
            .map_err(|e| failed(ErrorSubject::Vote, ErrorVerb::Write, e))
    }

    async fn read_vote(&mut self) -> Io<Option<Vote<u64>>> {
        self.0.meta("vote")
    }

    async fn save_committed(&mut self, committed: Option<LogId<u64>>) -> Io<()> {
        self.0
            .write(Durability::None, |t| put_meta(t, "committed", &committed))
            .map_err(write_failed)
    }

    async fn read_committed(&mut self) -> Io<Option<LogId<u64>>> {
        Ok(self.0.meta::<Option<LogId<u64>>>("committed")?.flatten())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Io<()>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let encoded: Vec<_> =
            entries.into_iter().map(|e| (e.log_id.index, entry::encode(&e))).collect();
        let shared = self.0.clone();
        // The flush blocks; the monitor's thread has sessions to serve meanwhile.
        let done = blocking(move || {
            shared.write(Durability::Immediate, |t| {
                let mut table = t.open_table(LOG)?;
                for (index, bytes) in &encoded {
                    table.insert(index, bytes.as_slice())?;
                }
                Ok(())
            })
        })
        .await;
        match done {
            Ok(Ok(())) => {
                callback.log_io_completed(Ok(()));
                Ok(())
            }
            Ok(Err(e)) => {
                callback.log_io_completed(Err(std::io::Error::other(e.to_string())));
                Err(failed(ErrorSubject::Logs, ErrorVerb::Write, e))
            }
            Err(e) => {
                callback.log_io_completed(Err(std::io::Error::other(e.to_string())));
                Err(failed(ErrorSubject::Logs, ErrorVerb::Write, e))
            }
        }
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Io<()> {
        self.0
            .write(Durability::Immediate, |t| {
                t.open_table(LOG)?.retain_in(log_id.index.., |_, _| false)?;
                Ok(())
            })
            .map_err(|e| failed(ErrorSubject::Logs, ErrorVerb::Delete, e))
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Io<()> {
        self.0
            .write(Durability::None, |t| {
                t.open_table(LOG)?.retain_in(..=log_id.index, |_, _| false)?;
                put_meta(t, "purged", &log_id)
            })
            .map_err(|e| failed(ErrorSubject::Logs, ErrorVerb::Delete, e))
    }
}

/// The state half of the file and the machine it belongs to.
pub(super) struct StateMachine<M> {
    pub shared: Shared,
    pub machine: Arc<RwLock<M>>,
    /// Index of the last entry that the machine has.
    pub index: Arc<AtomicU64>,
}

impl<M: Machine> RaftStateMachine<TypeConfig> for StateMachine<M> {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Io<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        let a: Applied = self.shared.meta("applied")?.unwrap_or_default();
        self.index.store(a.log_id.map_or(0, |l| l.index), Ordering::Release);
        Ok((a.log_id, a.membership))
    }

    async fn apply<I>(&mut self, entries: I) -> Io<Vec<Answer>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut applied: Applied = self.shared.meta("applied")?.unwrap_or_default();
        let (mut answers, mut changed) = (Vec::new(), Vec::new());
        {
            let mut machine = self.machine.write().unwrap_or_else(|e| e.into_inner());
            for e in entries {
                applied.log_id = Some(e.log_id);
                answers.push(match e.payload {
                    EntryPayload::Blank => Answer::default(),
                    EntryPayload::Normal(p) => Answer(machine.apply(&p.0, &mut changed)),
                    EntryPayload::Membership(m) => {
                        applied.membership = StoredMembership::new(Some(e.log_id), m);
                        Answer::default()
                    }
                });
            }
        }
        self.shared
            .write(Durability::None, |t| {
                let mut table = t.open_table(STATE)?;
                for (k, v) in &changed {
                    match v {
                        Some(v) => drop(table.insert(&k[..], &v[..])?),
                        None => drop(table.remove(&k[..])?),
                    }
                }
                drop(table);
                put_meta(t, "applied", &applied)
            })
            .map_err(|e| failed(ErrorSubject::StateMachine, ErrorVerb::Write, e))?;
        self.index.store(applied.log_id.map_or(0, |l| l.index), Ordering::Release);
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder(self.shared.clone())
    }

    async fn begin_receiving_snapshot(&mut self) -> Io<Box<Cursor<Vec<u8>>>> {
        Ok(Box::new(Cursor::new(Vec::new())))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Io<()> {
        let subject = || ErrorSubject::Snapshot(Some(meta.signature()));
        let rows = decode_rows(snapshot.into_inner().into())
            .map_err(|e| failed(subject(), ErrorVerb::Read, e))?;
        let machine = M::load(&rows)
            .map_err(|e| failed(subject(), ErrorVerb::Read, std::io::Error::other(e)))?;
        let applied =
            Applied { log_id: meta.last_log_id, membership: meta.last_membership.clone() };
        self.shared
            .write(Durability::Immediate, |t| {
                let mut table = t.open_table(STATE)?;
                table.retain(|_, _| false)?;
                for (k, v) in &rows {
                    table.insert(&k[..], &v[..])?;
                }
                drop(table);
                put_meta(t, "applied", &applied)
            })
            .map_err(|e| failed(subject(), ErrorVerb::Write, e))?;
        *self.machine.write().unwrap_or_else(|e| e.into_inner()) = machine;
        self.index.store(applied.log_id.map_or(0, |l| l.index), Ordering::Release);
        Ok(())
    }

    /// The file itself is the snapshot: it is read when it is needed.
    async fn get_current_snapshot(&mut self) -> Io<Option<Snapshot<TypeConfig>>> {
        match self.shared.meta::<Option<LogId<u64>>>("purged")? {
            Some(_) => Builder(self.shared.clone()).build_snapshot().await.map(Some),
            None => Ok(None),
        }
    }
}

/// Reads the rows of one instant.
pub(super) struct Builder(Shared);

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    async fn build_snapshot(&mut self) -> Io<Snapshot<TypeConfig>> {
        let (rows, applied) = self
            .0
            .try_rows()
            .map_err(|e| failed(ErrorSubject::StateMachine, ErrorVerb::Read, e))?;
        let meta = SnapshotMeta {
            last_log_id: applied.log_id,
            last_membership: applied.membership,
            snapshot_id: applied.log_id.map_or_else(|| "empty".into(), |l| l.to_string()),
        };
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(encode_rows(&rows))) })
    }
}

fn encode_rows(rows: &Rows) -> Vec<u8> {
    use denc::Encode;
    rows.to_bytes(denc::Features::ALL).into()
}

fn decode_rows(bytes: Bytes) -> Result<Rows, denc::DecodeError> {
    use denc::Decode;
    Rows::from_bytes(&bytes)
}
