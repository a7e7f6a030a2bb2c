//! Executing the operations of a request on one object (Ceph: `PrimaryLogPG::do_osd_ops`).
//!
//! Execution reads the store as it was before the request, and collects what changes in
//! [`Mutations`]: as in Ceph, a read does not see bytes, attributes or rows that the same request
//! wrote, but it does see the new size and whether the object exists. The first failure ends the
//! request, and then nothing of it is applied.

use crate::code::{Extent, Op, OpArgs, OpCode, OpExt, OpFlags, OpOutcome};
use crate::copy::CopySource;
use crate::object::{InfoExt, ObjectState, PoolRules, SnapSet, StockRefusals};
use crate::reader::ObjectReader;
use crate::txn::Mutations;
use bytes::{Bytes, BytesMut};
use cls::{Origin, Registry};
use denc::crc::Sum;
use denc::{Encode, Features};
use pg::StatSum;
use store::{AllocHint, Change, WriteHint};
use types::errno::Errno;
use types::{EntityName, IntervalSet, ObjectId, SnapContext, SnapId};

/// Limits from the configuration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// `osd_max_object_size`.
    pub object_size: u64,
    /// `osd_max_object_name_len`.
    pub object_name: usize,
    /// `osd_max_object_namespace_len`.
    pub object_namespace: usize,
    /// `osd_max_attr_size`; 0 for none.
    pub attr_size: u64,
    /// `osd_max_attr_name_len`.
    pub attr_name: usize,
    /// `osd_max_write_size`, in bytes; 0 for none.
    pub write_size: u64,
    /// `osd_max_omap_entries_per_request`.
    pub omap_entries: u64,
    /// `osd_max_omap_bytes_per_request`.
    pub omap_bytes: u64,
    /// `osd_max_write_op_reply_len`.
    pub write_reply: usize,
    /// `osd_max_pgls`.
    pub pgls: u64,
    /// `osd_ec_stock_refusals`: what [`PoolRules::stock`] says is refused.
    pub stock_refusals: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            object_size: 128 << 20,
            object_name: 2048,
            object_namespace: 256,
            attr_size: 0,
            attr_name: 100,
            write_size: 90 << 20,
            omap_entries: 1024,
            omap_bytes: 1 << 30,
            write_reply: 64,
            pgls: 1024,
            stock_refusals: false,
        }
    }
}

/// What stays the same during one request.
pub struct Env<'a, R> {
    /// Reads the PG's objects.
    pub reader: &'a R,
    /// Object classes.
    pub classes: &'a Registry,
    /// Reads objects of other PGs.
    pub copies: &'a dyn CopySource,
    /// Limits.
    pub limits: &'a Limits,
    /// What the pool allows.
    pub pool: PoolRules,
    /// The snap context that writes use.
    pub snapc: &'a SnapContext,
    /// Whether a snapshot was deleted and waits to be trimmed.
    pub snap_removed: &'a dyn Fn(SnapId) -> bool,
    /// The client that asks.
    pub origin: &'a Origin,
    /// Watches and notifications.
    pub watch: &'a WatchEnv<'a>,
    /// Fills a buffer with random bytes, for methods of object classes.
    pub random: fn(&mut [u8]),
}

/// What operations on watches need to know.
pub struct WatchEnv<'a> {
    /// The client, as its request's id names it.
    pub entity: EntityName,
    /// `osd_client_watch_timeout`, in seconds.
    pub watch_timeout: u32,
    /// `osd_default_notify_timeout`, in seconds.
    pub notify_timeout: u32,
    /// Takes note of a ping. False if the watch has no connection.
    pub ping: &'a dyn Fn(&crate::watch::Watcher) -> bool,
    /// A new id of a notification.
    pub next_id: &'a dyn Fn() -> u64,
}

/// Smallest errno that stands for "differs at byte n" rather than for an error (Ceph: `MAX_ERRNO`).
const MAX_ERRNO: i32 = 4095;

/// The client will not read what it writes, or only once.
const DONT_KEEP: OpFlags = OpFlags(OpFlags::FADVISE_DONTNEED.0 | OpFlags::FADVISE_NOCACHE.0);

const COPY_FROM_FLAGS: u8 = 63;
const COPY_FROM_FLAG_TRUNCATE_SEQ: u8 = 32;

/// One request in execution.
pub struct Exec<'a, R> {
    pub(crate) env: &'a Env<'a, R>,
    /// The object's key in the store.
    pub(crate) key: Bytes,
    /// Before the request.
    pub(crate) old: &'a ObjectState,
    pub(crate) old_snapset: &'a SnapSet,
    /// After the operations so far.
    pub new: ObjectState,
    /// The head's snap set.
    pub snapset: SnapSet,
    /// What changes.
    pub txn: Mutations,
    /// How the PG's totals change.
    pub stats: StatSum,
    /// Bytes of the object that changed: no longer shared with its newest clone.
    pub modified: IntervalSet,
    /// The change is one that users see.
    pub user_modify: bool,
    /// Something changes although `txn` is empty.
    pub modify: bool,
    /// The user version that a copy brings along.
    pub user_version: Option<u64>,
    /// A copy keeps its source's modification time.
    pub keep_mtime: bool,
    /// Offset of the first read, for the reply's data alignment.
    pub data_offset: Option<u64>,
    /// What becomes of watches when the request succeeds.
    pub effects: Option<Box<crate::watch::Effects>>,
    pub(crate) reads: u32,
    pub(crate) writes: u32,
    /// The request failed, whatever the failed operation's flags say.
    fatal: bool,
    /// Operations executed, those of class methods included.
    pub(crate) executed: u32,
    /// The result of the operation before, which a few operations pass on.
    carried: i32,
}

/// Rounds bytes up to KiB.
pub(crate) fn kib(bytes: usize) -> i64 {
    bytes.div_ceil(1024) as i64
}

impl<'a, R: ObjectReader> Exec<'a, R> {
    /// Begins a request on an object in state `old`, with the head's `snapset`.
    pub fn new(
        env: &'a Env<'a, R>,
        key: Bytes,
        old: &'a ObjectState,
        snapset: &'a SnapSet,
    ) -> Self {
        Exec {
            env,
            key,
            old,
            old_snapset: snapset,
            new: old.clone(),
            snapset: snapset.clone(),
            txn: Mutations::new(),
            stats: StatSum::default(),
            modified: IntervalSet::default(),
            user_modify: false,
            modify: false,
            user_version: None,
            keep_mtime: false,
            data_offset: None,
            effects: None,
            reads: 0,
            writes: 0,
            fatal: false,
            executed: 0,
            carried: 0,
        }
    }

    /// The object.
    pub fn oid(&self) -> &ObjectId {
        &self.old.oid
    }

    /// Executes operations until one fails. Returns the last result and one outcome for each
    /// operation that ran.
    pub async fn run(&mut self, ops: &[Op]) -> (i32, Vec<OpOutcome>) {
        let mut result = 0;
        let mut outcomes = Vec::with_capacity(ops.len());
        for op in ops {
            self.carried = result;
            let outcome = self.one(op).await;
            result = outcome.rval;
            outcomes.push(outcome);
            if result < 0 && op.flags.has(OpFlags::FAILOK) && !self.fatal {
                result = 0;
            }
            if result < 0 {
                break;
            }
        }
        if self.fatal {
            outcomes.iter_mut().for_each(|o| o.outdata.clear());
        }
        (result, outcomes)
    }

    /// Executes one operation.
    pub(crate) async fn one(&mut self, op: &Op) -> OpOutcome {
        let mut out = OpOutcome::default();
        if op.is_user_modify() {
            self.user_modify = true;
        }
        out.rval = match self.dispatch(op, &mut out).await {
            Ok(r) => r,
            Err(e) => -e.0,
        };
        self.executed += 1;
        out
    }

    async fn dispatch(&mut self, op: &Op, out: &mut OpOutcome) -> Result<i32, Errno> {
        let mut extent = op.extent();
        if op.code.uses_extent() && extent.truncate_seq == 1 && extent.truncate_size == u64::MAX {
            extent.truncate_size = 0;
            extent.truncate_seq = 0;
        }
        let mut code = op.code;
        if code == OpCode::ZERO && self.new.exists {
            let max = self.env.limits.object_size;
            let end = extent.offset.saturating_add(extent.length);
            if extent.offset < max && (1..=max).contains(&extent.length) && end >= self.new.oi.size
            {
                if extent.offset >= self.new.oi.size {
                    return Ok(self.carried);
                }
                code = OpCode::TRUNCATE;
                // The length counts for the size check of a truncation as it did for the zeroing.
            }
        }
        if self.is_refused_by_stock(code) {
            return Err(Errno::EOPNOTSUPP);
        }
        match code {
            OpCode::READ | OpCode::SYNC_READ => self.read(extent, out).await,
            OpCode::SPARSE_READ => self.sparse_read(extent, out).await,
            OpCode::MAPEXT => self.mapext(extent, out).await,
            OpCode::CMPEXT => self.cmpext(extent, &op.indata).await,
            OpCode::CHECKSUM => self.checksum(op, out).await,
            OpCode::STAT => self.stat(out).map(|_| self.carried),
            OpCode::ISDIRTY => {
                self.reads += 1;
                self.stats.num_rd += 1;
                put(out, &self.new.oi.is_dirty());
                Ok(0)
            }
            OpCode::ASSERT_VER => self.assert_ver(op).map(|_| self.carried),
            OpCode::LIST_WATCHERS => self.list_watchers(out),
            OpCode::NOTIFY => self.notify(op, out).map(|_| self.carried),
            OpCode::NOTIFY_ACK => self.notify_ack(op).map(|_| self.carried),
            OpCode::WATCH => self.watch(op),
            OpCode::LIST_SNAPS => self.list_snaps(out),
            OpCode::GETXATTR => self.getxattr(op, out).await,
            OpCode::GETXATTRS => self.getxattrs(out).await,
            OpCode::CMPXATTR => self.cmpxattr(op).await,
            OpCode::SETXATTR => self.setxattr(op),
            OpCode::RMXATTR => self.rmxattr(op),
            OpCode::OMAPGETKEYS => self.omap_get_keys(op, out).await.map(|_| self.carried),
            OpCode::OMAPGETVALS => self.omap_get_vals(op, out).await.map(|_| self.carried),
            OpCode::OMAPGETHEADER => self.omap_get_header(out).await.map(|_| self.carried),
            OpCode::OMAPGETVALSBYKEYS => self.omap_get_by_keys(op, out).await.map(|_| self.carried),
            OpCode::OMAP_CMP => self.omap_cmp(op).await.map(|_| self.carried),
            OpCode::OMAPSETVALS => self.omap_set(op),
            OpCode::OMAPSETHEADER => self.omap_set_header(op),
            OpCode::OMAPCLEAR => self.omap_clear(),
            OpCode::OMAPRMKEYS => self.omap_rm(op),
            OpCode::OMAPRMKEYRANGE => self.omap_rm_range(op),
            OpCode::WRITE => {
                self.writes += 1;
                if extent.length != op.indata.len() as u64 {
                    return Err(Errno::EINVAL);
                }
                self.write(extent, op.indata.clone(), op.flags)
            }
            OpCode::WRITEFULL => self.write_full(extent, &op.indata, op.flags),
            OpCode::APPEND => {
                self.writes += 1;
                if extent.length != op.indata.len() as u64 {
                    return Err(Errno::EINVAL);
                }
                let at = Extent {
                    offset: self.new.oi.size,
                    length: extent.length,
                    truncate_seq: self.new.oi.truncate_seq as u32,
                    truncate_size: 0,
                };
                self.write(at, op.indata.clone(), OpFlags(0))
            }
            OpCode::TMAPGET => self.tmap_get(out).await,
            OpCode::TMAPPUT => self.tmap_put(op),
            OpCode::TMAPUP => self.tmap_update(op).await,
            OpCode::TMAP2OMAP => self.tmap_to_omap(op).await,
            OpCode::WRITESAME => self.write_same(op),
            OpCode::ZERO => self.zero(extent),
            OpCode::CREATE => self.create(op),
            OpCode::TRIMTRUNC => {
                extent.offset = extent.truncate_size;
                self.truncate(extent)
            }
            OpCode::TRUNCATE => self.truncate(extent),
            OpCode::DELETE => {
                self.writes += 1;
                self.delete(false)
            }
            OpCode::ROLLBACK => {
                let OpArgs::Snap { snapid } = op.args else { return Err(Errno::EINVAL) };
                self.rollback(snapid).await
            }
            OpCode::SETALLOCHINT => self.set_alloc_hint(op),
            OpCode::STARTSYNC => {
                self.push_nop();
                Ok(0)
            }
            OpCode::UNDIRTY => {
                // The dirty flag means something only to a cache tier; there are none.
                self.writes += 1;
                Ok(0)
            }
            OpCode::CACHE_FLUSH
            | OpCode::CACHE_TRY_FLUSH
            | OpCode::CACHE_EVICT
            | OpCode::CACHE_PIN
            | OpCode::CACHE_UNPIN => Err(Errno::EINVAL),
            OpCode::CALL => self.call(op, out).await,
            OpCode::COPY_GET => self.copy_get(op, out).await,
            OpCode::COPY_FROM | OpCode::COPY_FROM2 => self.copy_from(op).await,
            _ => Err(Errno::EOPNOTSUPP),
        }
    }

    /// What Ceph refuses in this pool, if the OSD is asked to refuse that, too.
    fn stock(&self) -> Option<StockRefusals> {
        self.env.pool.stock.filter(|_| self.env.limits.stock_refusals)
    }

    /// Refuses a write that does not append whole stripes to whole stripes, if Ceph does.
    fn refuse_overwrite(&self, offset: u64) -> Result<(), Errno> {
        let end = if self.new.exists { self.new.oi.size } else { 0 };
        match self.stock().and_then(|s| s.append_unit) {
            Some(unit) if offset != end || !offset.is_multiple_of(unit) => Err(Errno::EOPNOTSUPP),
            _ => Ok(()),
        }
    }

    /// Whether Ceph refuses an operation in this pool, whatever its arguments are.
    fn is_refused_by_stock(&self, code: OpCode) -> bool {
        let Some(stock) = self.stock() else { return false };
        match code {
            OpCode::SYNC_READ
            | OpCode::MAPEXT
            | OpCode::TMAPGET
            | OpCode::TMAPPUT
            | OpCode::TMAPUP
            | OpCode::OMAPSETVALS
            | OpCode::OMAPSETHEADER
            | OpCode::OMAPCLEAR
            | OpCode::OMAPRMKEYS
            | OpCode::OMAPRMKEYRANGE => true,
            OpCode::TMAP2OMAP => self.new.oi.size > 0,
            OpCode::ZERO | OpCode::TRIMTRUNC | OpCode::TRUNCATE => stock.append_unit.is_some(),
            _ => false,
        }
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), Errno> {
        let max = self.env.limits.object_size;
        if offset >= max || length > max || offset + length > max {
            return Err(Errno::EFBIG);
        }
        Ok(())
    }

    /// Whether clients see the object.
    pub(crate) fn visible(&self) -> bool {
        self.new.exists && !self.new.oi.is_whiteout()
    }

    /// Makes the object exist, if it does not, without a change of its own.
    pub(crate) fn create_silently(&mut self) -> bool {
        if !self.new.exists {
            self.stats.num_objects += 1;
            self.new.exists = true;
            return true;
        }
        if self.new.oi.is_whiteout() {
            self.new.oi.set_whiteout(false);
            self.stats.num_whiteouts -= 1;
        }
        false
    }

    pub(crate) fn maybe_create(&mut self) {
        if self.create_silently() {
            self.push(Change::Touch);
        }
    }

    pub(crate) fn push(&mut self, change: Change) {
        self.txn.push(&self.old.oid, change);
    }

    /// Something is logged and the object info rewritten, although no byte changes.
    pub(crate) fn push_nop(&mut self) {
        self.modify = true;
    }

    fn set_size(&mut self, size: u64) {
        self.stats.num_bytes += size as i64 - self.new.oi.size as i64;
        self.new.oi.size = size;
    }

    // --- reads ---

    pub(crate) async fn read(&mut self, e: Extent, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        self.data_offset.get_or_insert(e.offset);
        let (data, sum) = self.read_range(e).await?;
        let len: usize = data.iter().map(Bytes::len).sum();
        out.outdata = data;
        out.out_sum = sum;
        out.echo_length = Some(len as u64);
        self.stats.num_rd += 1;
        self.stats.num_rd_kb += kib(len);
        Ok(0)
    }

    /// The object's size as the client of a read knows it: a truncation may be on its way.
    fn size_for(&self, e: &Extent) -> u64 {
        let oi = &self.new.oi;
        let end = e.offset.saturating_add(e.length);
        if oi.truncate_seq < u64::from(e.truncate_seq) && end > e.truncate_size {
            oi.size.min(e.truncate_size)
        } else {
            oi.size
        }
    }

    async fn read_range(&self, e: Extent) -> Result<(Vec<Bytes>, Option<Sum>), Errno> {
        let size = self.size_for(&e);
        let length = if e.length == 0 { size } else { e.length };
        if e.offset >= size {
            return Ok((Vec::new(), None));
        }
        self.env.reader.read_summed(&self.key, e.offset, length.min(size - e.offset)).await
    }

    async fn sparse_read(&mut self, e: Extent, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        // Ceph 16.2 refuses one with a truncation; 18 and later serve it as a read.
        let length = e.length.min(self.size_for(&e).saturating_sub(e.offset));
        let extents = self.env.reader.extents(&self.key, e.offset, length).await?;
        let mut data = Vec::with_capacity(extents.len());
        let mut total = 0;
        for &(offset, length) in &extents {
            for piece in self.env.reader.read(&self.key, offset, length).await? {
                total += piece.len();
                data.push(piece);
            }
        }
        let mut head = BytesMut::with_capacity(8 + extents.len() * 16);
        extents.encode(&mut head, Features::ALL);
        (total as u32).encode(&mut head, Features::ALL);
        out.outdata.push(head.freeze());
        out.outdata.extend(data);
        out.echo_length = Some(total as u64);
        self.stats.num_rd += 1;
        self.stats.num_rd_kb += kib(total);
        Ok(0)
    }

    async fn mapext(&mut self, e: Extent, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        self.stats.num_rd += 1;
        let extents = self.env.reader.extents(&self.key, e.offset, e.length).await?;
        put(out, &extents);
        self.stats.num_rd_kb += kib(out.out_len());
        Ok(0)
    }

    async fn cmpext(&mut self, mut e: Extent, expected: &Bytes) -> Result<i32, Errno> {
        self.reads += 1;
        let oi = &self.new.oi;
        let mut size = oi.size;
        let end = e.offset.saturating_add(e.length);
        if oi.truncate_seq < u64::from(e.truncate_seq) && end > e.truncate_size {
            size = e.truncate_size;
        }
        e.length = if e.offset >= size { 0 } else { e.length.min(size - e.offset) };
        let data = if e.length == 0 || !self.old.visible() {
            Vec::new()
        } else {
            self.read_range(e).await?.0
        };
        // What lies behind the object's end compares as zeros.
        let found = data.iter().flat_map(|b| b.iter().copied()).chain(std::iter::repeat(0));
        match expected.iter().zip(found).position(|(a, b)| *a != b) {
            None => Ok(0),
            Some(at) => Err(Errno(MAX_ERRNO.saturating_add(i32::try_from(at).unwrap_or(i32::MAX)))),
        }
    }

    async fn checksum(&mut self, op: &Op, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.reads += 1;
        let OpArgs::Checksum { offset, mut length, chunk_size, kind } = op.args else {
            return Err(Errno::EINVAL);
        };
        let chunk = u64::from(chunk_size);
        if chunk > 0 && (length == 0 || length % chunk != 0) {
            return Err(Errno::EINVAL);
        }
        let size = self.new.oi.size;
        if offset == 0 && length == 0 {
            length = size;
        } else if offset >= size {
            return Ok(0);
        } else if offset.saturating_add(length) > size {
            length = size - offset;
            if chunk > 0 && length % chunk != 0 {
                return Err(Errno::EINVAL);
            }
        }
        let kind = crate::checksum::ChecksumKind::from_number(kind).ok_or(Errno::EINVAL)?;
        let init = op.indata.get(..kind.width()).ok_or(Errno::EINVAL)?;
        let mut sums = BytesMut::new();
        if length == 0 {
            0u32.encode(&mut sums, Features::ALL);
            out.outdata.push(sums.freeze());
            return Ok(0);
        }
        let data = self.env.reader.read(&self.key, offset, length).await?;
        let data: Bytes = if let [one] = &data[..] { one.clone() } else { data.concat().into() };
        if data.len() as u64 != length {
            return Err(Errno::EINVAL);
        }
        self.stats.num_rd += 1;
        self.stats.num_rd_kb += kib(data.len());
        let chunk = if chunk == 0 { data.len() } else { chunk as usize };
        ((data.len() / chunk) as u32).encode(&mut sums, Features::ALL);
        for piece in data.chunks_exact(chunk) {
            kind.append(init, piece, &mut sums);
        }
        out.outdata.push(sums.freeze());
        Ok(0)
    }

    fn stat(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.stats.num_rd += 1;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        put(out, &(self.new.oi.size, self.new.oi.mtime));
        Ok(0)
    }

    fn assert_ver(&mut self, op: &Op) -> Result<i32, Errno> {
        self.reads += 1;
        let OpArgs::AssertVer { ver } = op.args else { return Err(Errno::EINVAL) };
        match ver.cmp(&self.new.oi.user_version) {
            _ if ver == 0 => Err(Errno::EINVAL),
            std::cmp::Ordering::Less => Err(Errno::ERANGE),
            std::cmp::Ordering::Greater => Err(Errno::EOVERFLOW),
            std::cmp::Ordering::Equal => Ok(0),
        }
    }

    // --- data ---

    pub(crate) fn write(
        &mut self,
        mut e: Extent,
        mut data: Bytes,
        flags: OpFlags,
    ) -> Result<i32, Errno> {
        let seq = self.new.oi.truncate_seq;
        let size = self.new.oi.size;
        self.refuse_overwrite(e.offset)?;
        if seq != 0 && seq > u64::from(e.truncate_seq) && e.offset.saturating_add(e.length) > size {
            // The write was sent before a truncation that has happened meanwhile.
            e.length = size.saturating_sub(e.offset).min(e.length);
            data.truncate(e.length as usize);
        }
        if u64::from(e.truncate_seq) > seq {
            // The write overtook its client's truncation: do that first.
            self.new.oi.truncate_seq = e.truncate_seq.into();
            self.new.oi.truncate_size = e.truncate_size;
            if self.visible() {
                if e.truncate_size > self.env.limits.object_size {
                    return Err(Errno::EFBIG);
                }
                self.push(Change::Truncate { size: e.truncate_size });
                if size > e.truncate_size {
                    self.modified.insert(e.truncate_size, size - e.truncate_size);
                }
                self.set_size(e.truncate_size);
            }
        }
        self.check_range(e.offset, e.length)?;
        self.maybe_create();
        if e.length == 0 {
            if e.offset > self.new.oi.size {
                self.push(Change::Truncate { size: e.offset });
                self.set_size(e.offset);
            } else {
                self.push_nop();
            }
        } else {
            let hint = self.write_hint(flags);
            self.push(Change::Write { off: e.offset, data: data.into(), hint });
        }
        self.wrote(e.offset, e.length);
        Ok(0)
    }

    fn wrote(&mut self, offset: u64, length: u64) {
        if length > 0 {
            self.modified.insert(offset, length);
            if offset + length > self.new.oi.size {
                self.set_size(offset + length);
            }
        }
        self.stats.num_wr += 1;
        self.stats.num_wr_kb += kib(length as usize);
    }

    pub(crate) fn write_full(
        &mut self,
        e: Extent,
        data: &Bytes,
        flags: OpFlags,
    ) -> Result<i32, Errno> {
        self.writes += 1;
        if e.length != data.len() as u64 {
            return Err(Errno::EINVAL);
        }
        self.check_range(0, e.length)?;
        self.maybe_create();
        let size = self.new.oi.size;
        if e.length < size {
            self.push(Change::Truncate { size: e.length });
        }
        if e.length > 0 {
            let hint = self.write_hint(flags);
            self.push(Change::Write { off: 0, data: data.clone().into(), hint });
        }
        if size > 0 {
            self.modified.insert(0, size);
        }
        self.set_size(e.length);
        self.stats.num_wr += 1;
        self.stats.num_wr_kb += kib(data.len());
        Ok(0)
    }

    fn write_same(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::WriteSame { offset, length, data_length } = op.args else {
            return Err(Errno::EINVAL);
        };
        if length == 0 {
            return Ok(0);
        }
        if data_length == 0 || length % data_length != 0 || data_length != op.indata.len() as u64 {
            return Err(Errno::EINVAL);
        }
        self.refuse_overwrite(offset)?;
        // Before the pattern is repeated: the length is the client's.
        self.check_range(offset, length)?;
        let data: Bytes = op.indata.repeat((length / data_length) as usize).into();
        self.write(Extent { offset, length, ..Extent::default() }, data, op.flags)
    }

    fn zero(&mut self, e: Extent) -> Result<i32, Errno> {
        self.writes += 1;
        self.check_range(e.offset, e.length)?;
        if e.length > 0 && self.visible() {
            self.push(Change::Zero { off: e.offset, len: e.length });
            self.modified.insert(e.offset, e.length);
            self.stats.num_wr += 1;
        }
        Ok(0)
    }

    fn create(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        if self.visible() && op.flags.has(OpFlags::EXCL) {
            return Err(Errno::EEXIST);
        }
        if !op.indata.is_empty() {
            // A category, which no client uses any more.
            denc::Reader::new(op.indata.clone()).get::<Bytes>().map_err(|_| Errno::EINVAL)?;
        }
        self.maybe_create();
        self.push_nop();
        Ok(0)
    }

    pub(crate) fn truncate(&mut self, e: Extent) -> Result<i32, Errno> {
        self.writes += 1;
        if !self.visible() {
            return Ok(0);
        }
        self.check_range(e.offset, e.length)?;
        if e.truncate_seq != 0 {
            if e.offset != e.truncate_size {
                return Err(Errno::EINVAL);
            }
            if u64::from(e.truncate_seq) <= self.new.oi.truncate_seq {
                return Ok(0);
            }
            self.new.oi.truncate_seq = e.truncate_seq.into();
            self.new.oi.truncate_size = e.truncate_size;
        }
        self.push(Change::Truncate { size: e.offset });
        let size = self.new.oi.size;
        if size > e.offset {
            self.modified.insert(e.offset, size - e.offset);
        }
        self.set_size(e.offset);
        self.stats.num_wr += 1;
        Ok(0)
    }

    /// Deletes the object. One that has clones, or is about to get one, stays as a whiteout that
    /// carries its snap set (Ceph: `_delete_oid`).
    pub(crate) fn delete(&mut self, no_whiteout: bool) -> Result<i32, Errno> {
        let about_to_clone = self.env.snapc.snaps.first().is_some_and(|s| *s > self.snapset.seq);
        let whiteout = !no_whiteout && (!self.snapset.clones.is_empty() || about_to_clone);
        if !self.new.exists || (self.new.oi.is_whiteout() && whiteout) {
            return Err(Errno::ENOENT);
        }
        self.push(Change::Remove);
        let size = self.new.oi.size;
        if size > 0 {
            self.modified.insert(0, size);
        }
        self.stats.num_wr += 1;
        self.set_size(0);
        self.end_watches();
        if whiteout {
            self.new.oi.set_whiteout(true);
            self.stats.num_whiteouts += 1;
            self.push(Change::Touch);
            return Ok(0);
        }
        self.stats.num_objects -= 1;
        if self.new.oi.is_whiteout() {
            self.stats.num_whiteouts -= 1;
            self.new.oi.set_whiteout(false);
        }
        self.new.exists = false;
        Ok(0)
    }

    fn write_hint(&self, flags: OpFlags) -> WriteHint {
        if flags.any(DONT_KEEP) || self.env.pool.write_dont_need {
            WriteHint::DontNeed
        } else {
            WriteHint::Normal
        }
    }

    fn set_alloc_hint(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::AllocHint { expected_object_size, expected_write_size, flags } = op.args else {
            return Err(Errno::EINVAL);
        };
        self.maybe_create();
        let oi = &mut self.new.oi;
        (oi.expected_object_size, oi.expected_write_size) =
            (expected_object_size, expected_write_size);
        oi.alloc_hint_flags = flags;
        self.push(Change::Hint(AllocHint {
            object_size: expected_object_size,
            write_size: expected_write_size,
            flags,
        }));
        Ok(0)
    }

    // --- classes ---

    async fn call(&mut self, op: &Op, out: &mut OpOutcome) -> Result<i32, Errno> {
        let (class, method, input) = op.call_parts().map_err(|_| Errno::EINVAL)?;
        let found = self.env.classes.method(&class, &method)?;
        let flags = found.flags;
        if flags.write {
            self.user_modify = true;
        }
        let (reads, writes) = (self.reads, self.writes);
        self.carried = 0;
        let result = (found.run)(self, input).await;
        if (self.reads > reads && !flags.read) || (self.writes > writes && !flags.write) {
            tracing::error!(
                class = %class.escape_ascii(),
                method = %method.escape_ascii(),
                "a class method did what it is not declared to do"
            );
            return Err(Errno::EIO);
        }
        let output = result?;
        out.echo_length = Some(output.data.len() as u64);
        out.outdata.push(output.data);
        // A negative value is an error that has output.
        Ok(output.value)
    }

    // --- copies ---

    async fn copy_from(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::CopyFrom { snapid, src_version, flags, .. } = op.args else {
            return Err(Errno::EINVAL);
        };
        if op.code == OpCode::COPY_FROM2 && flags & !COPY_FROM_FLAGS != 0 {
            return Err(Errno::EINVAL);
        }
        let mut r = denc::Reader::new(op.indata.clone());
        let invalid = |_| Errno::EINVAL;
        let name: Bytes = r.get().map_err(invalid)?;
        let locator: types::ObjectLocator = r.get().map_err(invalid)?;
        let truncate = if op.code == OpCode::COPY_FROM2 && flags & COPY_FROM_FLAG_TRUNCATE_SEQ != 0
        {
            Some((r.get::<u32>().map_err(invalid)?, r.get::<u64>().map_err(invalid)?))
        } else {
            None
        };
        let source = self.env.copies.resolve(&name, &locator, snapid).ok_or(Errno::ENOENT)?;
        if source == self.old.oid {
            return Err(Errno::EINVAL);
        }
        if source.head() == self.old.oid.head() {
            // Its own snapshot, which it would have to read while it waits for that read. There is
            // ROLLBACK.
            return Err(Errno::EOPNOTSUPP);
        }
        let copied = self
            .env
            .copies
            .fetch(crate::copy::CopyRequest {
                source,
                locator,
                version: src_version,
                flags,
                max_bytes: self.env.limits.object_size,
            })
            .await
            // As in Ceph, FAILOK is for what the operation itself refuses, not for the source's
            // errors.
            .inspect_err(|_| self.fatal = true)?;
        if self.stock().is_some() && !(copied.omap.is_empty() && copied.omap_header.is_empty()) {
            self.fatal = true;
            return Err(Errno::EOPNOTSUPP);
        }
        self.finish_copy(copied, truncate);
        Ok(0)
    }

    fn finish_copy(&mut self, c: crate::copy::Copied, truncate: Option<(u32, u64)>) {
        if self.new.exists {
            self.push(Change::Remove);
        } else {
            self.stats.num_objects += 1;
            self.new.exists = true;
        }
        self.push(Change::Touch);
        for (off, data) in c.data {
            self.push(Change::Write { off, data: data.into(), hint: WriteHint::Normal });
        }
        self.push(Change::Truncate { size: c.size });
        let attrs: smallvec::SmallVec<[(Bytes, Bytes); 2]> =
            c.attrs.into_iter().map(|(k, v)| (crate::attrs::stored_name(&k), v)).collect();
        if !attrs.is_empty() {
            self.push(Change::SetAttrs(attrs));
        }
        let has_omap = !c.omap_header.is_empty() || !c.omap.is_empty();
        if !c.omap_header.is_empty() {
            self.push(Change::OmapHeader(c.omap_header));
        }
        if !c.omap.is_empty() {
            self.push(Change::OmapSet(c.omap));
        }
        if self.new.oi.is_whiteout() {
            self.new.oi.set_whiteout(false);
            self.stats.num_whiteouts -= 1;
        }
        self.new.oi.set_omap(has_omap);
        (self.new.oi.truncate_seq, self.new.oi.truncate_size) = match truncate {
            Some((seq, size)) => (seq.into(), size),
            None => (c.truncate_seq.into(), c.truncate_size),
        };
        self.new.oi.mtime = c.mtime;
        self.keep_mtime = true;
        self.user_version = Some(c.user_version);
        let size = self.new.oi.size;
        if size > 0 {
            self.modified.insert(0, size);
        }
        self.set_size(c.size);
        self.stats.num_wr += 1;
        self.stats.num_wr_kb += kib(c.size as usize);
    }
}

/// Appends a value to an operation's output.
pub(crate) fn put<T: Encode>(out: &mut OpOutcome, value: &T) {
    out.outdata.push(value.to_bytes(Features::ALL));
}
