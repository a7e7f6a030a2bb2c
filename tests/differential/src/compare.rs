//! What must be equal in the answers of two clusters.
//!
//! Left out, because clusters may differ in it without being wrong:
//! * versions: a cluster may spend versions on work of its own, so only whether a request moved its
//!   object's version is compared;
//! * holes: which ranges a store allocates is its own affair, but what it calls a hole must read as
//!   zeros;
//! * the result of a copy inside a failed request: a stock OSD leaves there that it had begun
//!   (EINPROGRESS);
//! * the code of a zeroing, which stock OSDs may change into that of a truncation;
//! * the output of write operations of a failed request, which the protocol does not define.

use anyhow::{Result, ensure};
use bytes::Bytes;
use client::OpOutcome;
use denc::Reader;
use messages::{Op, OpArgs};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use types::rados::OpCode;

/// What can be compared of an answer.
#[derive(PartialEq)]
pub struct Outcome {
    /// Of the request.
    pub result: i32,
    /// Of its operations.
    pub ops: Vec<(OpCode, i32, Bytes)>,
    /// How the object's version compares with the one before, if both are known.
    pub moved: Option<Ordering>,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.result, self.moved)?;
        for (code, rval, out) in &self.ops {
            write!(f, " {}={rval}[{}]{}", code.name(), out.len(), hex(out))?;
        }
        Ok(())
    }
}

fn hex(b: &Bytes) -> String {
    let head: String = b.iter().take(64).map(|b| format!("{b:02x}")).collect();
    if b.len() > 64 { format!("{head}.. crc {:08x}", denc::crc::crc32c(0, b)) } else { head }
}

/// Says what an operation is, without its data.
pub fn describe(op: &Op) -> String {
    format!("{} {:?} flags {:#x} in {}", op.code.name(), op.args, op.flags.0, hex(&op.indata))
}

/// Makes an answer comparable. `before` is the object's version before the request, if known.
pub fn outcome(answer: &OpOutcome, before: Option<u64>) -> Outcome {
    let failed = answer.result < 0;
    let mut ops = Vec::with_capacity(answer.ops.len());
    let mut last_read = Bytes::new();
    for op in &answer.ops {
        let out =
            if failed && op.code.is_write() { Bytes::new() } else { comparable(op, &last_read) };
        if op.code == OpCode::READ {
            last_read = op.outdata.clone();
        }
        let copy = matches!(op.code, OpCode::COPY_FROM | OpCode::COPY_FROM2);
        let rval = if failed && copy { 0 } else { op.rval };
        // A stock OSD echoes a zeroing at the object's end as the truncation that it makes of it.
        let code = if op.code == OpCode::ZERO { OpCode::TRUNCATE } else { op.code };
        ops.push((code, rval, out));
    }
    // A copy has its source's version, which is of another placement group.
    let copy = answer.ops.iter().any(|o| matches!(o.code, OpCode::COPY_FROM | OpCode::COPY_FROM2));
    let moved = before.filter(|_| !failed && !copy).map(|v| answer.user_version.cmp(&v));
    Outcome { result: answer.result, ops, moved }
}

fn comparable(op: &Op, last_read: &Bytes) -> Bytes {
    match op.code {
        OpCode::SPARSE_READ => flatten(&op.outdata).unwrap_or_else(|_| op.outdata.clone()),
        OpCode::MAPEXT => {
            let OpArgs::Extent { offset, .. } = op.args else { return op.outdata.clone() };
            mask(&op.outdata, offset, last_read).unwrap_or_else(|_| op.outdata.clone())
        }
        _ => op.outdata.clone(),
    }
}

fn without_trailing_zeros(mut flat: Vec<u8>) -> Bytes {
    while flat.last() == Some(&0) {
        flat.pop();
    }
    flat.into()
}

/// A sparse read's data with zeros where there is a hole.
fn flatten(out: &Bytes) -> Result<Bytes> {
    let mut r = Reader::new(out.clone());
    let extents: BTreeMap<u64, u64> = r.get()?;
    let data: Bytes = r.get()?;
    ensure!(r.left() == 0, "bytes behind the data");
    let (mut flat, mut at) = (Vec::new(), 0);
    for (offset, length) in extents {
        ensure!(offset as usize >= flat.len() && offset < 1 << 32, "extents are not in order");
        flat.resize(offset as usize, 0);
        let piece = data.get(at..at + length as usize);
        ensure!(piece.is_some(), "less data than the extents say");
        flat.extend_from_slice(piece.unwrap_or_default());
        at += length as usize;
    }
    ensure!(at == data.len(), "more data than the extents say");
    Ok(without_trailing_zeros(flat))
}

/// The data that was read, with zeros where the store says that there is a hole.
fn mask(extents: &Bytes, start: u64, data: &Bytes) -> Result<Bytes> {
    let extents: BTreeMap<u64, u64> = denc::Decode::from_bytes(extents)?;
    let mut flat = vec![0; data.len()];
    for (offset, length) in extents {
        ensure!(offset >= start && length > 0, "an extent is outside the range");
        let from = ((offset - start) as usize).min(data.len());
        let to = (from + length as usize).min(data.len());
        flat[from..to].copy_from_slice(&data[from..to]);
    }
    Ok(without_trailing_zeros(flat))
}
