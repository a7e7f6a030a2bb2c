//! JSON in the shape of Ceph's `dump()` member functions.

use bytes::Bytes;
use serde_json::Value;

pub use crush::float;

/// A type that `ceph ... -f json` or `ceph-dencoder dump_json` shows. Field names, nesting and
/// order are Ceph's.
pub trait Dump {
    /// The value as Ceph's `JSONFormatter` would render it.
    fn dump(&self) -> Value;
}

/// Names are bytes; JSON is text. What is not UTF-8 is replaced, as a terminal would.
pub fn text(bytes: &Bytes) -> Value {
    Value::String(String::from_utf8_lossy(bytes).into_owned())
}

/// A value shown through its `Display` form (Ceph: `dump_stream`).
pub fn shown(value: impl std::fmt::Display) -> Value {
    Value::String(value.to_string())
}

/// An array of dumped values.
pub fn list<'a, T: Dump + 'a>(items: impl IntoIterator<Item = &'a T>) -> Value {
    Value::Array(items.into_iter().map(Dump::dump).collect())
}

impl Dump for crush::CrushMap {
    fn dump(&self) -> Value {
        crush::CrushMap::dump(self)
    }
}
