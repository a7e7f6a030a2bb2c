//! Reading objects of other PGs for `COPY_FROM`: as a client of the cluster.

use crate::osd_map::MapAt;
use bytes::{Bytes, BytesMut};
use client::{MonClient, Objecter, Request, Scope};
use cls::LocalFuture;
use denc::{Decode, Encode, Features};
use objops::copy::{Copied, CopyCursor, CopyData, CopyRequest, CopySource};
use objops::{Op, OpArgs, OpCode, OsdFlags};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use types::rados::copy_from;
use types::{Epoch, Errno, ObjectId, ObjectLocator, SnapContext, SnapId, Utime};

/// Reads of objects of other OSDs, for copies. The client exists only once the first copy is asked
/// for.
pub struct Copies {
    mon: MonClient,
    objecter: OnceCell<Objecter>,
    map: RefCell<Option<Rc<MapAt>>>,
    /// Bytes in one portion (`osd_copyfrom_max_chunk`).
    portion: Cell<u64>,
}

impl Copies {
    /// Copies over the session of `mon`.
    pub fn new(mon: MonClient) -> Rc<Self> {
        Rc::new(Copies {
            mon,
            objecter: OnceCell::new(),
            map: RefCell::default(),
            portion: Cell::new(8 << 20),
        })
    }

    /// Changes how many bytes are read at a time.
    pub fn set_portion(&self, bytes: u64) {
        self.portion.set(bytes);
    }

    /// Takes a new map.
    pub fn set_map(&self, map: Rc<MapAt>) {
        *self.map.borrow_mut() = Some(map);
    }

    /// Passes what a monitor sent to the client, if there is one.
    pub fn handle_mon_message(&self, m: &msgr::Message) {
        if let Some(o) = self.objecter.get() {
            o.handle_mon_message(m);
        }
    }

    /// The reads that have no answer yet, and the newest map that the client has.
    pub fn in_flight(&self) -> (Epoch, Vec<client::InFlight>) {
        self.objecter
            .get()
            .map_or_else(Default::default, |o| (o.shared_map().epoch(), o.in_flight()))
    }

    /// Ends the client.
    pub fn shutdown(&self) {
        if let Some(o) = self.objecter.get() {
            o.shutdown();
        }
    }
}

impl CopySource for Copies {
    fn resolve(&self, name: &Bytes, l: &ObjectLocator, snap: SnapId) -> Option<ObjectId> {
        use crate::map::ClusterMap;
        self.map.borrow().as_ref()?.object(l.pool, &l.namespace, name, &l.key, snap)
    }

    fn fetch(&self, request: CopyRequest) -> LocalFuture<'_, Result<Copied, Errno>> {
        Box::pin(async move {
            let objecter = self.objecter.get_or_init(|| Objecter::new(self.mon.clone()));
            let mut flags = OsdFlags::READ;
            for (bit, flag) in [
                (copy_from::FLUSH, OsdFlags::FLUSH),
                (copy_from::IGNORE_OVERLAY, OsdFlags::IGNORE_OVERLAY),
                (copy_from::IGNORE_CACHE, OsdFlags::IGNORE_CACHE),
                (copy_from::MAP_SNAP_CLONE, OsdFlags::MAP_SNAP_CLONE),
                (copy_from::RWORDERED, OsdFlags::RWORDERED),
            ] {
                if request.flags & bit != 0 {
                    flags |= flag;
                }
            }
            let mut copied = Copied { user_version: request.version, ..Copied::default() };
            let mut cursor = CopyCursor::default();
            while !cursor.is_complete() {
                let mut ops = Vec::with_capacity(2);
                if copied.user_version != 0 {
                    // All portions must be of one version.
                    ops.push(Op::new(
                        OpCode::ASSERT_VER,
                        OpArgs::AssertVer { ver: copied.user_version },
                    ));
                }
                let mut input = BytesMut::new();
                cursor.encode(&mut input, Features::ALL);
                self.portion.get().encode(&mut input, Features::ALL);
                ops.push(Op::with_input(
                    OpCode::COPY_GET,
                    OpArgs::CopyGet { max: 0 },
                    input.freeze(),
                ));
                let at = ops.len() - 1;
                let outcome = objecter
                    .submit(Request {
                        scope: Scope::Object {
                            pool: request.source.pool,
                            namespace: request.source.namespace.clone(),
                            key: request.source.key.clone(),
                            name: request.source.name.clone(),
                        },
                        ops,
                        flags,
                        snapid: request.source.snap,
                        snapc: SnapContext::default(),
                        mtime: Utime::ZERO,
                    })
                    .await
                    .and_then(client::OpOutcome::ok)
                    .map_err(|e| e.errno())?;
                let portion = CopyData::from_bytes(&outcome.output(at)).map_err(|_| Errno::EIO)?;
                if portion.cursor == cursor {
                    // No progress: the source would be asked for ever.
                    return Err(Errno::EIO);
                }
                copied.user_version = outcome.user_version;
                let offset = cursor.data_offset;
                cursor = portion.cursor.clone();
                copied.add(offset, portion, request.max_bytes)?;
            }
            Ok(copied)
        })
    }
}
