//! Watches and notifications as operations. What keeps them alive is in `objecter::linger`.

use super::Operation;
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features};
use messages::{Op, OpArgs};
use types::rados::OpCode;

/// `prot_ver` of a notification; nothing reads it.
const NOTIFY_VERSION: u32 = 1;

impl Operation {
    /// Lists the watchers: [`OpOutcome::watchers`](crate::OpOutcome::watchers).
    pub fn list_watchers(self) -> Self {
        self.plain(OpCode::LIST_WATCHERS)
    }

    pub(crate) fn watch(self, cookie: u64, what: u8, generation: u32, timeout: u32) -> Self {
        let args = OpArgs::Watch { cookie, ver: 0, op: what, gen_: generation, timeout };
        self.op(Op::new(OpCode::WATCH, args))
    }

    pub(crate) fn notify(self, cookie: u64, timeout: u32, payload: &Bytes) -> Self {
        let mut input = BytesMut::new();
        (NOTIFY_VERSION, timeout).encode(&mut input, Features::ALL);
        payload.encode(&mut input, Features::ALL);
        self.op(Op::with_input(OpCode::NOTIFY, OpArgs::Notify { cookie }, input.freeze()))
    }

    pub(crate) fn notify_ack(self, id: u64, cookie: u64, reply: &Bytes) -> Self {
        let mut input = BytesMut::new();
        (id, cookie).encode(&mut input, Features::ALL);
        reply.encode(&mut input, Features::ALL);
        let args = OpArgs::Watch { cookie: 0, ver: 0, op: 0, gen_: 0, timeout: 0 };
        self.op(Op::with_input(OpCode::NOTIFY_ACK, args, input.freeze()))
    }
}
