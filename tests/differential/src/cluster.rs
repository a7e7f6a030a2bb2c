//! One of the two clusters: performing what the generator asks for.

use crate::compare::{self, Outcome};
use crate::generate::{Part, Place, Step, VersionIs};
use anyhow::{Context, Result, bail, ensure};
use auth::AuthName;
use bytes::{Bytes, BytesMut};
use client::{ClusterConfig, IoCtx, ListCursor, OpOutcome, Operation, Rados, Request, Scope};
use denc::{Decode, Encode, Features};
use messages::{Op, OpArgs};
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};
use types::rados::{OpCode, OsdFlags};
use types::{Epoch, ObjectLocator, PgId, PgNlsResponse, SnapContext, SnapId, Utime};

/// An answer must come within this.
const LIMIT: Duration = Duration::from_secs(60);

/// The profile of erasure-coded pools.
const PROFILE: &str = "differential";

/// How the pools of a run keep objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Three replicas.
    Replicated,
    /// Two data shards and a parity shard, to which objects are appended.
    Appends,
    /// The same with `allow_ec_overwrites`.
    Overwrites,
}

/// A connection.
pub struct Cluster(Rados);

impl Cluster {
    /// Connects as the administrator.
    pub async fn connect(conf: &Path) -> Result<Self> {
        let name = AuthName::new(types::EntityType::CLIENT, "admin");
        let config = ClusterConfig::read(conf, name)?;
        Ok(Cluster(Rados::connect(&config, Duration::from_secs(30)).await?))
    }

    /// Ends the connection.
    pub fn shutdown(&self) {
        self.0.shutdown();
    }

    async fn command(&self, json: serde_json::Value) -> Result<Bytes> {
        let out = self.0.mon_command(&json.to_string(), Bytes::new()).await?;
        out.ok().with_context(|| json.to_string())
    }

    async fn make_pool(&self, name: &str, sort: Sort) -> Result<IoCtx> {
        let mut create = serde_json::json!({"prefix": "osd pool create", "pool": name, "pg_num": 8, "pgp_num": 8});
        if sort != Sort::Replicated {
            let profile = ["k=2", "m=1", "crush-failure-domain=osd"];
            self.command(serde_json::json!({"prefix": "osd erasure-code-profile set", "name": PROFILE, "profile": profile})).await?;
            create["pool_type"] = "erasure".into();
            create["erasure_code_profile"] = PROFILE.into();
        }
        self.command(create).await?;
        if sort == Sort::Overwrites {
            self.command(serde_json::json!({"prefix": "osd pool set", "pool": name, "var": "allow_ec_overwrites", "val": "true"})).await?;
        }
        self.command(serde_json::json!({"prefix": "osd pool application enable", "pool": name, "app": "rados"})).await?;
        Ok(self.0.ioctx(name).await?.with_timeout(LIMIT))
    }

    /// Makes the pools of a run.
    pub async fn make_pools(&self, name: &str, sort: Sort) -> Result<Pools<'_>> {
        let names = [name.to_string(), format!("{name}-snaps")];
        let io = [self.make_pool(&names[0], sort).await?, self.make_pool(&names[1], sort).await?];
        Ok(Pools { cluster: self, names, io, versions: RefCell::default() })
    }
}

/// The pools of a run on one cluster: the one whose snapshots clients manage, and the one with its
/// own.
pub struct Pools<'a> {
    cluster: &'a Cluster,
    names: [String; 2],
    io: [IoCtx; 2],
    /// The version that was reported last for an object.
    versions: RefCell<HashMap<Place, u64>>,
}

/// Says what an operation is.
pub fn describe(part: &Part) -> String {
    match part {
        Part::Same(op) => compare::describe(op),
        other => format!("{other:?}"),
    }
}

/// Changes are as old as the operation's number says, so that both clusters have equal times.
fn time(n: usize) -> Utime {
    Utime::from_duration(Duration::from_secs(1_600_000_000 + n as u64))
}

impl Pools<'_> {
    fn io(&self, pool_snaps: bool) -> &IoCtx {
        &self.io[usize::from(pool_snaps)]
    }

    /// Performs a request and makes the answer comparable.
    pub async fn perform(&self, step: &Step, n: usize) -> Result<Outcome> {
        let ops = step.parts.iter().map(|p| self.resolve(p, &step.place)).collect();
        let operation = Operation { ops, flags: step.flags };
        let before = self.versions.borrow().get(&step.place).copied();
        let answer =
            self.request(&step.place, operation, step.read_at, step.snapc.clone(), n).await?;
        // Of a clone, a version says nothing about the head.
        let head = step.read_at == SnapId::NOSNAP;
        if answer.result >= 0 && head {
            self.versions.borrow_mut().insert(step.place.clone(), answer.user_version);
        }
        Ok(compare::outcome(&answer, before.filter(|_| head)))
    }

    async fn request(
        &self,
        place: &Place,
        operation: Operation,
        snapid: SnapId,
        snapc: SnapContext,
        n: usize,
    ) -> Result<OpOutcome> {
        let io = self.io(place.pool_snaps);
        let flags = operation.request_flags();
        let bytes = |s: &str| Bytes::copy_from_slice(s.as_bytes());
        let scope = Scope::Object {
            pool: io.pool(),
            namespace: bytes(&place.namespace),
            key: bytes(&place.key),
            name: bytes(&place.name),
        };
        let request = Request { scope, ops: operation.ops, flags, snapid, snapc, mtime: time(n) };
        let answer = io.rados().objecter().submit(request);
        Ok(tokio::time::timeout(LIMIT, answer).await.context("no answer")??)
    }

    /// The version that stands for another on this cluster.
    fn version(&self, of: &Place, v: VersionIs) -> u64 {
        match v {
            VersionIs::Zero => 0,
            // Not 0, which would mean something else.
            VersionIs::LastPlus(n) => self
                .versions
                .borrow()
                .get(of)
                .copied()
                .unwrap_or(1000)
                .saturating_add_signed(n)
                .max(1),
        }
    }

    fn resolve(&self, part: &Part, place: &Place) -> Op {
        match part {
            Part::Same(op) => op.clone(),
            Part::AssertVersion(v) => {
                Op::new(OpCode::ASSERT_VER, OpArgs::AssertVer { ver: self.version(place, *v) })
            }
            Part::CopyFrom { code, from, snapid, version, flags, truncate, op_flags } => {
                let locator = ObjectLocator {
                    pool: self.io(from.pool_snaps).pool(),
                    key: Bytes::copy_from_slice(from.key.as_bytes()),
                    namespace: Bytes::copy_from_slice(from.namespace.as_bytes()),
                    ..ObjectLocator::default()
                };
                let mut input = BytesMut::new();
                from.name.as_str().encode(&mut input, Features::ALL);
                locator.encode(&mut input, Features::ALL);
                if let Some((seq, size)) = truncate {
                    seq.encode(&mut input, Features::ALL);
                    size.encode(&mut input, Features::ALL);
                }
                let src_version = self.version(from, *version);
                let args = OpArgs::CopyFrom {
                    snapid: *snapid,
                    src_version,
                    flags: *flags,
                    src_fadvise_flags: 0,
                };
                Op { flags: *op_flags, ..Op::with_input(*code, args, input.freeze()) }
            }
        }
    }

    /// Takes a snapshot.
    pub async fn make_snapshot(&self, pool_snaps: bool) -> Result<SnapId> {
        if !pool_snaps {
            return Ok(self.io(false).create_snapshot().await?);
        }
        let before = self.pool_snapshots().await?;
        let snap = format!("snap-{}", before.iter().map(|(s, _)| s.0).max().unwrap_or_default());
        self.cluster.command(serde_json::json!({"prefix": "osd pool mksnap", "pool": self.names[1], "snap": snap})).await?;
        let after = self.pool_snapshots().await?;
        let made = after
            .iter()
            .find(|(_, name)| *name == snap)
            .context("the new snapshot is not in the map")?;
        Ok(made.0)
    }

    async fn pool_snapshots(&self) -> Result<Vec<(SnapId, String)>> {
        let map = self.cluster.0.objecter().wait_latest().await?;
        let pool = map.pool(self.io(true).pool()).context("the pool is gone")?;
        Ok(pool.snaps.iter().map(|(id, s)| (*id, s.name.clone())).collect())
    }

    /// Removes a snapshot of the pool whose clients manage them.
    pub async fn remove_snapshot(&self, snapid: SnapId) -> Result<()> {
        Ok(self.io(false).remove_snapshot(snapid).await?)
    }

    /// The answer to the request for an object's snapshots.
    pub async fn snapshots(&self, place: &Place) -> Result<(i32, Bytes)> {
        let operation = Operation::new().op(Op::new(OpCode::LIST_SNAPS, OpArgs::extent(0, 0)));
        let answer =
            self.request(place, operation, SnapId::SNAPDIR, SnapContext::default(), 0).await?;
        let out = if answer.result < 0 { Bytes::new() } else { answer.output(0) };
        Ok((answer.result, out))
    }

    /// Waits until no clone belongs to a removed snapshot.
    pub async fn wait_trimmed(
        &self,
        places: &[Place],
        removed: SnapId,
        deadline: Instant,
    ) -> Result<()> {
        for place in places {
            loop {
                let (result, out) = self.snapshots(place).await?;
                if result < 0 {
                    break;
                }
                let list = types::replies::ListSnapsResponse::from_bytes(&out)?;
                if !list.clones.iter().any(|c| c.snaps.contains(&removed)) {
                    break;
                }
                ensure!(Instant::now() < deadline, "{place:?} still has snapshot {}", removed.0);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    /// All that an object has: data, attributes, omap, snapshots.
    pub async fn everything(&self, place: &Place) -> Result<Vec<Outcome>> {
        let mut all = Vec::new();
        // A huge object's data is mostly a hole.
        let operation = match place.name.starts_with("large") {
            true => Operation::new().read(0, 1 << 20),
            false => Operation::new().read(0, 0),
        };
        let rest = Operation::new().stat().get_xattrs().omap_header().omap_values(b"", 1000, b"");
        for (operation, snapid) in [
            (operation, SnapId::NOSNAP),
            (rest, SnapId::NOSNAP),
            (
                Operation::new().op(Op::new(OpCode::LIST_SNAPS, OpArgs::extent(0, 0))),
                SnapId::SNAPDIR,
            ),
        ] {
            let answer = self.request(place, operation, snapid, SnapContext::default(), 0).await?;
            all.push(compare::outcome(&answer, None));
        }
        Ok(all)
    }

    /// Lists a pool page by page: namespaces, names and locators in their order. Where the pages
    /// end is not part of it: a stock OSD counts clones and other namespaces too, and may answer
    /// with an empty page.
    pub async fn list(
        &self,
        pool_snaps: bool,
        namespace: Option<&str>,
        page: u64,
        filter: Option<&(String, Bytes)>,
    ) -> Result<Vec<(String, String, String)>> {
        let io = self.io(pool_snaps);
        let mut all = Vec::new();
        let mut pages = 0;
        let mut cursor = ListCursor::START;
        while !cursor.is_end() {
            let map = self.cluster.0.objecter().wait_epoch(Epoch(1)).await?;
            let pool = map.pool(io.pool()).context("the pool is gone")?;
            let pgid = pool.raw_pg_to_pg(PgId::new(io.pool(), cursor.0.hash));
            // One name stands for all namespaces.
            let namespace = Bytes::copy_from_slice(namespace.unwrap_or("\x01").as_bytes());
            let mut input = BytesMut::new();
            let code = match filter {
                None => OpCode::PGNLS,
                Some((attr, value)) => {
                    for s in ["", "", "plain", attr.as_str()] {
                        s.encode(&mut input, Features::ALL);
                    }
                    value.encode(&mut input, Features::ALL);
                    OpCode::PGNLS_FILTER
                }
            };
            cursor.0.encode(&mut input, Features::ALL);
            let op = Op::with_input(
                code,
                OpArgs::Pgls { count: page, start_epoch: map.epoch.0 },
                input.freeze(),
            );
            let request = Request {
                scope: Scope::Pg { pgid, namespace },
                ops: vec![op],
                flags: OsdFlags::READ | OsdFlags::PGOP | OsdFlags::IGNORE_OVERLAY,
                snapid: SnapId::NOSNAP,
                snapc: SnapContext::default(),
                mtime: time(0),
            };
            let answer = tokio::time::timeout(LIMIT, io.rados().objecter().submit(request))
                .await
                .context("no answer")??;
            if answer.result < 0 {
                bail!("a listing failed with {}", answer.result);
            }
            let response = PgNlsResponse::from_bytes(&answer.output(0))?;
            let text = |b: &Bytes| String::from_utf8_lossy(b).into_owned();
            all.extend(
                response
                    .entries
                    .iter()
                    .map(|o| (text(&o.namespace), text(&o.name), text(&o.locator))),
            );
            cursor = ListCursor(response.handle);
            pages += 1;
            ensure!(pages < 100_000, "a listing does not end");
        }
        Ok(all)
    }

    /// Removes the pools.
    pub async fn drop_pools(&self) -> Result<()> {
        for name in &self.names {
            let json = serde_json::json!({"prefix": "osd pool delete", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true});
            self.cluster.command(json).await?;
        }
        Ok(())
    }
}
