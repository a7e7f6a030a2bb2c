//! Object classes on a request in execution: everything a method does is an operation in its
//! caller's request, so a method can do exactly what its client could have sent.

use crate::code::{Op, OpArgs, OpCode, OpFlags, OpOutcome, on_extent};
use crate::exec::Exec;
use crate::reader::ObjectReader;
use bytes::Bytes;
use cls::context::Access;
use cls::{ObjectContext, Origin, Page};
use denc::{Decode, Encode, Features};
use std::collections::{BTreeMap, BTreeSet};
use types::errno::Errno;
use types::replies::{ListWatchersResponse, WatchItem};

/// An operation on omap, with its arguments as its input.
fn omap(code: OpCode, input: &impl Encode) -> Op {
    Op::with_input(code, OpArgs::default(), input.to_bytes(Features::ALL))
}

/// What an operation of our own put out.
fn decode<T: Decode>(data: Bytes) -> Result<T, Errno> {
    denc::Reader::new(data).get().map_err(|_| Errno::EIO)
}

impl<R: ObjectReader> Exec<'_, R> {
    async fn class_op(&mut self, op: &Op) -> Result<Bytes, Errno> {
        let done: OpOutcome = self.one(op).await;
        if done.rval < 0 { Err(Errno(-done.rval)) } else { Ok(done.out_bytes()) }
    }

    /// Runs an operation without output.
    fn change(&mut self, op: Op) -> Access<'_, ()> {
        Box::pin(async move { self.class_op(&op).await.map(drop) })
    }

    /// Runs an operation and decodes its output.
    fn query<T: Decode>(&mut self, op: Op) -> Access<'_, T> {
        Box::pin(async move { decode(self.class_op(&op).await?) })
    }

    /// Runs an operation and gives its output as it is.
    fn fetch(&mut self, op: Op) -> Access<'_, Bytes> {
        Box::pin(async move { self.class_op(&op).await })
    }
}

impl<R: ObjectReader> ObjectContext for Exec<'_, R> {
    fn origin(&self) -> &Origin {
        self.env.origin
    }

    fn subop(&self) -> u32 {
        self.executed
    }

    fn random(&mut self, out: &mut [u8]) {
        (self.env.random)(out);
    }

    fn stat(&mut self) -> Access<'_, (u64, types::Utime)> {
        self.query(Op::new(OpCode::STAT, OpArgs::default()))
    }

    fn create(&mut self, exclusive: bool) -> Access<'_, ()> {
        let flags = if exclusive { OpFlags::EXCL } else { OpFlags(0) };
        self.change(Op { flags, ..Op::new(OpCode::CREATE, OpArgs::default()) })
    }

    fn remove(&mut self) -> Access<'_, ()> {
        self.change(Op::new(OpCode::DELETE, OpArgs::default()))
    }

    fn read(&mut self, offset: u64, length: u64) -> Access<'_, Bytes> {
        self.fetch(on_extent(OpCode::SYNC_READ, offset, length))
    }

    fn write(&mut self, offset: u64, data: Bytes) -> Access<'_, ()> {
        self.change(crate::code::write_op(offset, data))
    }

    fn write_full(&mut self, data: Bytes) -> Access<'_, ()> {
        let op = on_extent(OpCode::WRITEFULL, 0, data.len() as u64);
        self.change(Op { indata: data, ..op })
    }

    fn truncate(&mut self, size: u64) -> Access<'_, ()> {
        self.change(on_extent(OpCode::TRUNCATE, size, 0))
    }

    fn zero(&mut self, offset: u64, length: u64) -> Access<'_, ()> {
        self.change(on_extent(OpCode::ZERO, offset, length))
    }

    fn getxattr<'a>(&'a mut self, name: &'a [u8]) -> Access<'a, Bytes> {
        self.fetch(Op::xattr(OpCode::GETXATTR, name, b""))
    }

    fn getxattrs(&mut self) -> Access<'_, BTreeMap<Bytes, Bytes>> {
        self.query(Op::new(OpCode::GETXATTRS, OpArgs::default()))
    }

    fn setxattr<'a>(&'a mut self, name: &'a [u8], value: Bytes) -> Access<'a, ()> {
        self.change(Op::xattr(OpCode::SETXATTR, name, &value))
    }

    fn map_get_header(&mut self) -> Access<'_, Bytes> {
        self.fetch(Op::new(OpCode::OMAPGETHEADER, OpArgs::default()))
    }

    fn map_set_header(&mut self, header: Bytes) -> Access<'_, ()> {
        self.change(Op::with_input(OpCode::OMAPSETHEADER, OpArgs::default(), header))
    }

    fn map_get_vals_by_keys<'a>(
        &'a mut self,
        keys: &'a BTreeSet<Bytes>,
    ) -> Access<'a, BTreeMap<Bytes, Bytes>> {
        self.query(omap(OpCode::OMAPGETVALSBYKEYS, keys))
    }

    fn map_get_keys<'a>(
        &'a mut self,
        start_after: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<Vec<Bytes>>> {
        Box::pin(async move {
            let op = omap(OpCode::OMAPGETKEYS, &(Bytes::copy_from_slice(start_after), max));
            let (rows, more) = self.query(op).await?;
            Ok(Page { rows, more })
        })
    }

    fn map_get_vals<'a>(
        &'a mut self,
        start_after: &'a [u8],
        prefix: &'a [u8],
        max: u64,
    ) -> Access<'a, Page<BTreeMap<Bytes, Bytes>>> {
        Box::pin(async move {
            let input = (Bytes::copy_from_slice(start_after), max, Bytes::copy_from_slice(prefix));
            let (rows, more) = self.query(omap(OpCode::OMAPGETVALS, &input)).await?;
            Ok(Page { rows, more })
        })
    }

    fn map_set_vals(&mut self, rows: BTreeMap<Bytes, Bytes>) -> Access<'_, ()> {
        self.change(omap(OpCode::OMAPSETVALS, &rows))
    }

    fn map_remove_key<'a>(&'a mut self, key: &'a [u8]) -> Access<'a, ()> {
        self.change(omap(OpCode::OMAPRMKEYS, &vec![Bytes::copy_from_slice(key)]))
    }

    fn map_remove_range<'a>(&'a mut self, begin: &'a [u8], end: &'a [u8]) -> Access<'a, ()> {
        let range = (Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end));
        self.change(omap(OpCode::OMAPRMKEYRANGE, &range))
    }

    fn map_clear(&mut self) -> Access<'_, ()> {
        self.change(Op::new(OpCode::OMAPCLEAR, OpArgs::default()))
    }

    fn list_watchers(&mut self) -> Access<'_, Vec<WatchItem>> {
        Box::pin(async move {
            let op = Op::new(OpCode::LIST_WATCHERS, OpArgs::default());
            Ok(self.query::<ListWatchersResponse>(op).await?.entries)
        })
    }
}
