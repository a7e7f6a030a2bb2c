//! What a request may do, worked out from its operations before it is queued (Ceph: `OpInfo`,
//! `osd/osd_op_util.cc`): it decides which capabilities it needs, where it is ordered and which
//! copies may serve it.

use crate::code::{Op, OpCode, OpExt, OsdFlags};
use bytes::Bytes;
use cls::Registry;
use types::errno::Errno;

/// A class that a request calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassUse {
    /// The class's name.
    pub class: Bytes,
    /// The method's name.
    pub method: Bytes,
    /// The method reads.
    pub read: bool,
    /// The method writes.
    pub write: bool,
    /// The class needs no grant of its own.
    pub allowed_by_default: bool,
}

/// What a request does to its object.
#[derive(Clone, Debug, Default)]
pub struct OpInfo {
    read: bool,
    write: bool,
    class_read: bool,
    class_write: bool,
    cache: bool,
    pg_op: bool,
    force_rwordered: bool,
    flag_rwordered: bool,
    returnvec: bool,
    /// Classes called.
    pub classes: Vec<ClassUse>,
}

impl OpInfo {
    /// Classifies a request. EINVAL if it does nothing at all, EOPNOTSUPP for an unknown class
    /// method.
    pub fn new(request_flags: OsdFlags, ops: &[Op], classes: &Registry) -> Result<Self, Errno> {
        let mut info = OpInfo {
            force_rwordered: request_flags.has(OsdFlags::RWORDERED),
            flag_rwordered: request_flags.has(OsdFlags::RWORDERED),
            returnvec: request_flags.has(OsdFlags::RETURNVEC),
            ..OpInfo::default()
        };
        for op in ops {
            if op.is_watch_ping() {
                // A ping changes nothing on disk but is pipelined behind the writes before it.
                info.force_rwordered = true;
            } else if op.code.is_write() {
                info.write = true;
            }
            info.read |= op.code.is_read() || op.code == OpCode::WATCH;
            info.pg_op |= op.code.is_pg();
            info.cache |= op.code.is_cache();
            if op.code == OpCode::CALL {
                info.add_class(op, classes)?;
            }
        }
        let anything = info.read
            || info.write
            || info.class_read
            || info.class_write
            || info.cache
            || info.pg_op
            || info.force_rwordered
            || info.returnvec;
        if anything { Ok(info) } else { Err(Errno::EINVAL) }
    }

    fn add_class(&mut self, op: &Op, classes: &Registry) -> Result<(), Errno> {
        let (class, method, _) = op.call_parts().map_err(|_| Errno::EINVAL)?;
        let flags = classes.method(&class, &method)?.flags;
        self.class_read |= flags.read;
        self.class_write |= flags.write;
        self.classes.push(ClassUse {
            allowed_by_default: classes.allowed_by_default(&class),
            class,
            method,
            read: flags.read,
            write: flags.write,
        });
        Ok(())
    }

    /// It reads the object.
    pub fn may_read(&self) -> bool {
        self.read || self.class_read
    }

    /// It changes the object.
    pub fn may_write(&self) -> bool {
        self.write || self.class_write
    }

    /// It moves the object between tiers.
    pub fn may_cache(&self) -> bool {
        self.cache
    }

    /// It is ordered with writes: earlier writes of the object are executed before it, later ones
    /// after it.
    pub fn rwordered(&self) -> bool {
        self.may_write() || self.cache || self.force_rwordered
    }

    /// It changes nothing, and its client wants it executed and answered behind its earlier writes
    /// of the object, and ahead of later ones. Pings of watches are ordered with the execution of
    /// writes only: they wait for no replica.
    pub fn is_ordered_read(&self) -> bool {
        self.flag_rwordered && !self.may_write() && !self.cache
    }

    /// It addresses a PG.
    pub fn includes_pg_op(&self) -> bool {
        self.pg_op
    }

    /// It needs the `r` capability. What a class method reads is covered by the class's own
    /// capability.
    pub fn need_read_cap(&self) -> bool {
        self.read
    }

    /// It needs the `w` capability.
    pub fn need_write_cap(&self) -> bool {
        self.write
    }

    /// Writes of the request may return values and buffers.
    pub fn allows_returnvec(&self) -> bool {
        self.returnvec
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::{OpArgs, on_extent, write_op};
    use types::rados::watch_op;

    fn info(ops: &[Op]) -> OpInfo {
        OpInfo::new(OsdFlags(0), ops, &Registry::builtin()).unwrap()
    }

    #[test]
    fn reads_and_writes_are_told_apart() {
        let read = info(&[on_extent(OpCode::READ, 0, 1)]);
        assert!(read.may_read() && !read.may_write() && !read.rwordered());
        let write = info(&[write_op(0, &b"x"[..])]);
        assert!(write.may_write() && !write.may_read() && write.rwordered());
        let both = info(&[on_extent(OpCode::STAT, 0, 0), write_op(0, &b"x"[..])]);
        assert!(both.may_write() && both.may_read());
        assert!(
            info(&[Op::new(OpCode::PGNLS, OpArgs::Pgls { count: 1, start_epoch: 0 })])
                .includes_pg_op()
        );
    }

    #[test]
    fn a_read_is_ordered_by_its_flag() {
        let ordered = |op: Op| OpInfo::new(OsdFlags::RWORDERED, &[op], &Registry::builtin());
        let read = ordered(on_extent(OpCode::READ, 0, 1)).unwrap();
        assert!(read.is_ordered_read() && read.rwordered() && !read.may_write());
        assert!(!ordered(write_op(0, &b"x"[..])).unwrap().is_ordered_read());
        assert!(!info(&[on_extent(OpCode::READ, 0, 1)]).is_ordered_read());
    }

    #[test]
    fn a_watch_ping_is_ordered_but_writes_nothing() {
        let args = OpArgs::Watch { cookie: 1, ver: 0, op: watch_op::PING, gen_: 0, timeout: 0 };
        let ping = Op::new(OpCode::WATCH, args);
        let ping = info(&[ping]);
        assert!(!ping.may_write() && ping.rwordered() && !ping.is_ordered_read());
    }

    #[test]
    fn empty_requests_and_unknown_classes_are_refused() {
        let refused = |ops: &[Op]| OpInfo::new(OsdFlags(0), ops, &Registry::builtin()).unwrap_err();
        assert_eq!(refused(&[]), Errno::EINVAL);
        let call = Op::call("rgw_gc", "no such", b"").unwrap();
        assert_eq!(refused(std::slice::from_ref(&call)), Errno::EOPNOTSUPP);
        assert_eq!(refused(&[Op::call("evil", "m", b"").unwrap()]), Errno::EPERM);
        let args = OpArgs::Call { class_len: 3, method_len: 6, argc: 0, indata_len: 200 };
        assert_eq!(refused(&[Op { args, ..call }]), Errno::EINVAL);
    }

    #[test]
    fn a_call_needs_what_its_method_does() {
        let call = |method| info(&[Op::call("hello", method, b"").unwrap()]);
        let read = call("replay");
        assert!(read.may_read() && !read.may_write() && !read.need_read_cap());
        assert!(read.classes[0].allowed_by_default);
        let write = call("turn_it_to_11");
        assert!(write.may_read() && write.may_write() && !write.need_write_cap());
    }
}
