//! The example class (Ceph: `cls/hello/cls_hello.cc`). It shows what the rules for methods are, so
//! clients test them with it.

use crate::context::Object;
use crate::method::{Class, Ignored, Output, RD, RD_WR, Raw, WR, method};
use bytes::{Bytes, BytesMut};
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "hello",
    methods: &[
        method!("say_hello", RD, say_hello),
        method!("record_hello", WR.promote(), record_hello),
        method!("write_return_data", WR, write_return_data),
        method!("writes_dont_return_data", WR, write_return_data),
        method!("write_too_much_return_data", WR, write_too_much_return_data),
        method!("replay", RD, replay),
        method!("turn_it_to_11", RD_WR.promote(), turn_it_to_11),
        method!("bad_reader", WR, bad_reader),
        method!("bad_writer", RD, bad_writer),
    ],
};

/// The longest name that is greeted.
const NAME_LEN: usize = 100;
/// How much of a recorded greeting is read.
const GREETING_LEN: u64 = 1100;

fn greeting(name: &Bytes) -> Result<Bytes, Errno> {
    if name.len() > NAME_LEN {
        return Err(Errno::EINVAL);
    }
    let name: &[u8] = if name.is_empty() { b"world" } else { name };
    Ok([b"Hello, ", name, b"!"].concat().into())
}

/// The caller as `client.4 127.0.0.1:0/1`.
fn caller(object: Object<'_>) -> Bytes {
    let origin = object.origin();
    format!("{} {}", origin.entity, origin.addr).into()
}

async fn say_hello(_: Object<'_>, Raw(name): Raw) -> Result<Bytes, Errno> {
    greeting(&name)
}

async fn record_hello(object: Object<'_>, Raw(name): Raw) -> Result<(), Errno> {
    let greeting = greeting(&name)?;
    if object.stat().await.is_ok() {
        return Err(Errno::EEXIST);
    }
    object.write_full(greeting).await?;
    let who = caller(object);
    object.setxattr(b"said_by", who).await
}

/// Returns a value and data from a write; also with an error.
async fn write_return_data(object: Object<'_>, Raw(input): Raw) -> Result<Output, Errno> {
    object.setxattr(b"foo", Bytes::from_static(b"bar")).await?;
    Ok(if input.is_empty() {
        Output { value: 42, data: Bytes::from_static(b"you might see this") }
    } else {
        Output { value: -Errno::EINVAL.0, data: Bytes::from_static(b"too much input data!") }
    })
}

/// Returns more than a write may (`osd_max_write_op_reply_len`).
async fn write_too_much_return_data(object: Object<'_>, _: Ignored) -> Result<Output, Errno> {
    object.setxattr(b"foo", Bytes::from_static(b"bar")).await?;
    Ok(Output {
        value: 42,
        data: b"you should not see this because it is toooooo long. ".repeat(10).into(),
    })
}

async fn replay(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    object.read(0, GREETING_LEN).await
}

async fn turn_it_to_11(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    if !input.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut text = BytesMut::from(object.read(0, GREETING_LEN).await?);
    text.make_ascii_uppercase();
    object.write_full(text.freeze()).await?;
    let who = caller(object);
    object.setxattr(b"amplified_by", who).await
}

/// Declared as a writer, it reads.
async fn bad_reader(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    object.read(0, 100).await
}

/// Declared as a reader, it writes.
async fn bad_writer(object: Object<'_>, Raw(input): Raw) -> Result<(), Errno> {
    object.write_full(input).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn data(o: Result<Output, Errno>) -> Result<Bytes, Errno> {
        o.map(|o| o.data)
    }

    #[test]
    fn greets() {
        let mut o = TestObject::new();
        assert_eq!(data(o.call("hello", "say_hello", "")).unwrap(), "Hello, world!");
        assert_eq!(data(o.call("hello", "say_hello", "Tester")).unwrap(), "Hello, Tester!");
        assert_eq!(o.call("hello", "say_hello", vec![b'x'; 101]).unwrap_err(), Errno::EINVAL);
        assert!(!o.stored.exists);
    }

    #[test]
    fn records_once_and_replays() {
        let mut o = TestObject::new();
        o.as_client(7).call("hello", "record_hello", "").unwrap();
        assert_eq!(
            o.stored.xattrs[&b"said_by"[..]],
            format!("client.7 {}", crate::testing::address(7))
        );
        assert_eq!(o.call("hello", "record_hello", "").unwrap_err(), Errno::EEXIST);
        assert_eq!(data(o.call("hello", "replay", "")).unwrap(), "Hello, world!");
        o.call("hello", "turn_it_to_11", "").unwrap();
        assert_eq!(data(o.call("hello", "replay", "")).unwrap(), "HELLO, WORLD!");
        assert!(o.stored.xattrs.contains_key(&b"amplified_by"[..]));
    }

    #[test]
    fn a_failing_write_has_output_and_no_effect() {
        let mut o = TestObject::new();
        let failed = o.call("hello", "write_return_data", "x").unwrap();
        assert_eq!((failed.value, &failed.data[..]), (-22, &b"too much input data!"[..]));
        assert!(!o.stored.exists);
        let done = o.call("hello", "write_return_data", "").unwrap();
        assert_eq!((done.value, &done.data[..]), (42, &b"you might see this"[..]));
        assert!(o.stored.exists);
    }

    #[test]
    fn methods_may_do_only_what_they_declare() {
        let mut o = TestObject::new();
        assert_eq!(o.call("hello", "bad_reader", "").unwrap_err(), Errno::EIO);
        assert_eq!(o.call("hello", "bad_writer", "abc").unwrap_err(), Errno::EIO);
        assert!(!o.stored.exists);
    }
}
