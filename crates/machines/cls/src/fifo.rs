//! A queue over several objects (Ceph: `cls/fifo`): one that lists the parts, and parts with
//! entries. A part begins with its header, in [`PART_HEADER_BYTES`]. In front of each entry stand
//! fixed fields: the length of the entry, and the time when it came.

use crate::context::Object;
use crate::method::{Class, Output, RD, RD_WR, decode, encode, method};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use denc_derive::Denc;
use rgw::fifo::{
    CreateMetaOp, DataParams, FifoInfo, GetMetaOp, GetMetaRet, GetPartInfoOp, InitPartOp,
    JournalOp, ListPartOp, ListPartRet, Objv, PartEntry, PartHeader, PartInfoRet, PushPartOp,
    TrimPartOp, UpdateMetaOp,
};
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "fifo",
    methods: &[
        method!("create_meta", RD_WR, create_meta),
        method!("get_meta", RD, get_meta),
        method!("update_meta", RD_WR, update_meta),
        method!("init_part", RD_WR, init_part),
        method!("push_part", RD_WR, push_part),
        method!("trim_part", RD_WR, trim_part),
        method!("part_list", RD, list_part),
        method!("get_part_info", RD, get_part_info),
    ],
};

/// Room for a part's header (Ceph: `CLS_FIFO_MAX_PART_HEADER_SIZE`).
const PART_HEADER_BYTES: u64 = 512;
/// Bytes of [`Fixed`].
const FIXED_BYTES: u64 = 5 * 8 + 4;
/// Bytes of [`EntryHeader`].
const ENTRY_HEADER_BYTES: u64 = 6 + 8;
/// Bytes in front of an entry.
const ENTRY_OVERHEAD_BYTES: u64 = FIXED_BYTES + ENTRY_HEADER_BYTES;
/// Entries in one answer at most (Ceph: `MAX_LIST_ENTRIES`).
const MAX_LIST: i32 = 512;
/// Bytes that are read at a time.
const PREFETCH_BYTES: u64 = 128 * 1024;

/// What comes first in front of an entry (Ceph: `entry_header_pre`, `cls/fifo/cls_fifo.cc`).
#[derive(Denc)]
struct Fixed {
    magic: u64,
    fixed_size: u64,
    header_size: u64,
    data_size: u64,
    index: u64,
    reserved: u32,
}

/// What comes next (Ceph: `entry_header`, `cls/fifo/cls_fifo.cc`, version 1).
#[derive(Denc)]
#[denc(version = 1, compat = 1)]
struct EntryHeader {
    mtime: Utime,
}

/// So many random characters.
fn random_text(object: &mut (dyn crate::ObjectContext + '_), len: usize) -> Bytes {
    let mut random = vec![0; len];
    object.random(&mut random);
    let mut text = STANDARD.encode(random).into_bytes();
    text.truncate(len);
    text.into()
}

async fn read_part(object: Object<'_>) -> Result<PartHeader, Errno> {
    decode(object.read(0, PART_HEADER_BYTES).await?, Errno::EIO)
}

async fn write_part(object: Object<'_>, header: &PartHeader) -> Result<(), Errno> {
    let bytes = encode(header);
    if bytes.len() as u64 > PART_HEADER_BYTES {
        return Err(Errno::EIO);
    }
    object.write(0, bytes).await
}

fn is_full(part: &PartHeader) -> bool {
    part.next_ofs > part.params.full_size_threshold
}

/// ENODATA if the object is empty, ECANCELED if the queue has another version.
async fn read_meta(object: Object<'_>, version: Option<&Objv>) -> Result<FifoInfo, Errno> {
    object.stat().await?;
    let bytes = object.read(0, 0).await?;
    if bytes.is_empty() {
        return Err(Errno::ENODATA);
    }
    let info: FifoInfo = decode(bytes, Errno::EIO)?;
    match version {
        Some(version) if *version != info.version => Err(Errno::ECANCELED),
        _ => Ok(info),
    }
}

/// Makes a queue. EEXIST if there is one that differs.
async fn create_meta(object: Object<'_>, op: CreateMetaOp) -> Result<(), Errno> {
    if op.id.is_empty()
        || op.max_part_size == 0
        || op.max_entry_size == 0
        || op.max_entry_size > op.max_part_size
    {
        return Err(Errno::EINVAL);
    }
    match object.stat().await {
        Err(Errno::ENOENT) => {}
        Err(e) => return Err(e),
        Ok(_) if op.exclusive => return Err(Errno::EEXIST),
        Ok(_) => {
            let info: FifoInfo = decode(object.read(0, 0).await?, Errno::EIO)?;
            let same = info.id == op.id
                && op.oid_prefix.is_none_or(|prefix| prefix == info.oid_prefix)
                && op.version.is_none_or(|version| version == info.version);
            return if same { Ok(()) } else { Err(Errno::EEXIST) };
        }
    }
    let mut version = match op.version {
        Some(version) => version,
        None => Objv { instance: random_text(object, 16), ver: 1 },
    };
    let oid_prefix = match op.oid_prefix {
        Some(prefix) => prefix,
        None => [&op.id[..], b".", &random_text(object, 11)].concat().into(),
    };
    if version.instance.is_empty() {
        version.instance = random_text(object, 15);
    }
    let full_size_threshold =
        op.max_part_size.wrapping_sub(op.max_entry_size).wrapping_sub(ENTRY_OVERHEAD_BYTES);
    let params = DataParams {
        max_part_size: op.max_part_size,
        max_entry_size: op.max_entry_size,
        full_size_threshold,
    };
    let info = FifoInfo { id: op.id, version, oid_prefix, params, ..FifoInfo::default() };
    object.write_full(encode(&info)).await
}

async fn get_meta(object: Object<'_>, op: GetMetaOp) -> Result<Bytes, Errno> {
    let info = read_meta(object, op.version.as_ref()).await?;
    Ok(encode(&GetMetaRet {
        info,
        part_header_size: PART_HEADER_BYTES as u32,
        part_entry_overhead: ENTRY_OVERHEAD_BYTES as u32,
    }))
}

/// EINVAL if a change begins that is under way.
async fn update_meta(object: Object<'_>, op: UpdateMetaOp) -> Result<(), Errno> {
    if op.version.instance.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut info = read_meta(object, Some(&op.version)).await?;
    let set = |field: &mut i64, value: Option<u64>| {
        if let Some(value) = value {
            *field = value as i64;
        }
    };
    set(&mut info.tail_part_num, op.tail_part_num);
    set(&mut info.min_push_part_num, op.min_push_part_num);
    set(&mut info.max_push_part_num, op.max_push_part_num);
    for entry in op.journal_entries_add {
        let (part, tag) = (entry.part_num, entry.part_tag.clone());
        let creates = entry.op == JournalOp::CREATE;
        if !info.journal.add(entry) {
            return Err(Errno::EINVAL);
        }
        if creates {
            info.tags.insert(part, tag);
        }
    }
    for entry in op.journal_entries_rm {
        info.journal.remove(entry.part_num);
    }
    if let Some(head) = op.head_part_num {
        info.tags.remove(&info.head_part_num);
        info.head_part_num = head as i64;
        info.head_tag = info.tags.get(&info.head_part_num).cloned().unwrap_or_default();
    }
    info.version.ver = info.version.ver.wrapping_add(1);
    object.write_full(encode(&info)).await
}

/// Makes a part. EEXIST if there is one that differs.
async fn init_part(object: Object<'_>, op: InitPartOp) -> Result<(), Errno> {
    if op.tag.is_empty() {
        return Err(Errno::EINVAL);
    }
    match object.stat().await {
        Err(Errno::ENOENT) | Ok((0, _)) => {}
        Err(e) => return Err(e),
        Ok(_) => {
            let part = read_part(object).await?;
            let same = part.tag == op.tag && part.params == op.params;
            return if same { Ok(()) } else { Err(Errno::EEXIST) };
        }
    }
    let mut magic = [0; 8];
    object.random(&mut magic);
    let part = PartHeader {
        tag: op.tag,
        params: op.params,
        magic: u64::from_le_bytes(magic),
        min_ofs: PART_HEADER_BYTES,
        next_ofs: PART_HEADER_BYTES,
        max_time: object.origin().now,
        ..PartHeader::default()
    };
    write_part(object, &part).await
}

/// Adds entries, and returns how many it took until the part was full. ERANGE if it is full at the
/// beginning.
async fn push_part(object: Object<'_>, op: PushPartOp) -> Result<Output, Errno> {
    if op.tag.is_empty() {
        return Err(Errno::EINVAL);
    }
    let mut part = read_part(object).await?;
    let overhead = (op.data.len() as u64).wrapping_mul(ENTRY_OVERHEAD_BYTES);
    if part.tag != op.tag || op.total_len.wrapping_add(overhead) > part.params.max_part_size {
        return Err(Errno::EINVAL);
    }
    if is_full(&part) {
        return Err(Errno::ERANGE);
    }
    if op.data.iter().map(|d| d.len() as u64).sum::<u64>() != op.total_len {
        return Err(Errno::EINVAL);
    }
    let now = object.origin().now;
    let header = encode(&EntryHeader { mtime: now });
    let at = part.next_ofs;
    let mut out = BytesMut::new();
    let mut pushed = 0;
    for data in op.data {
        if is_full(&part) {
            break;
        }
        let fixed = Fixed {
            magic: part.magic,
            fixed_size: FIXED_BYTES,
            header_size: header.len() as u64,
            data_size: data.len() as u64,
            index: part.max_index,
            reserved: 0,
        };
        out.put_slice(&encode(&fixed));
        out.put_slice(&header);
        out.put_slice(&data);
        part.last_ofs = part.next_ofs;
        part.next_ofs = at.wrapping_add(out.len() as u64);
        part.max_index = part.max_index.wrapping_add(1);
        pushed += 1;
    }
    part.max_time = now;
    object.write(at, out.freeze()).await?;
    write_part(object, &part).await?;
    if pushed == 0 {
        return Err(Errno::EFAULT);
    }
    Ok(Output { value: pushed, data: Bytes::new() })
}

/// Reads a part's entries from an offset on.
struct EntryReader<'p> {
    part: &'p PartHeader,
    ofs: u64,
    data: Bytes,
}

impl<'p> EntryReader<'p> {
    fn new(part: &'p PartHeader, ofs: u64) -> Self {
        EntryReader { part, ofs: ofs.max(part.min_ofs), data: Bytes::new() }
    }

    fn at_end(&self) -> bool {
        self.ofs >= self.part.next_ofs
    }

    /// Has so many bytes at hand; ERANGE if there are not as many.
    async fn fetch(&mut self, object: Object<'_>, len: u64) -> Result<(), Errno> {
        if (self.data.len() as u64) < len {
            let from = self.ofs.wrapping_add(self.data.len() as u64);
            let more = object.read(from, PREFETCH_BYTES).await?;
            self.data = [&self.data[..], &more].concat().into();
        }
        if (self.data.len() as u64) < len { Err(Errno::ERANGE) } else { Ok(()) }
    }

    async fn take(&mut self, object: Object<'_>, len: u64) -> Result<Bytes, Errno> {
        self.fetch(object, len).await?;
        self.ofs = self.ofs.wrapping_add(len);
        Ok(self.data.split_to(len as usize))
    }

    /// The fixed fields of the next entry: ENOENT at the end, ERANGE if they are not those of an
    /// entry of the part.
    async fn peek(&mut self, object: Object<'_>) -> Result<Fixed, Errno> {
        if self.at_end() {
            return Err(Errno::ENOENT);
        }
        self.fetch(object, FIXED_BYTES).await?;
        let fixed: Fixed = decode(self.data.slice(..FIXED_BYTES as usize), Errno::ERANGE)?;
        if fixed.magic == self.part.magic { Ok(fixed) } else { Err(Errno::ERANGE) }
    }

    async fn next(&mut self, object: Object<'_>) -> Result<PartEntry, Errno> {
        let fixed = self.peek(object).await?;
        let ofs = self.ofs;
        self.take(object, fixed.fixed_size).await?;
        let header = self.take(object, fixed.header_size).await?;
        let header: EntryHeader = decode(header, Errno::EIO)?;
        let data = self.take(object, fixed.data_size).await?;
        Ok(PartEntry { data, ofs, mtime: header.mtime })
    }
}

fn check_tag(part: &PartHeader, tag: Option<Bytes>) -> Result<(), Errno> {
    if tag.is_none_or(|tag| tag == part.tag) { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Forgets entries; a full part of which none is left is removed.
async fn trim_part(object: Object<'_>, op: TrimPartOp) -> Result<(), Errno> {
    let mut part = read_part(object).await?;
    check_tag(&part, op.tag)?;
    if op.ofs < part.min_ofs || (op.exclusive && op.ofs == part.min_ofs) {
        return Ok(());
    }
    if op.ofs >= part.next_ofs {
        if is_full(&part) {
            return object.remove().await;
        }
        part.min_ofs = part.next_ofs;
        part.min_index = part.max_index;
    } else {
        let mut reader = EntryReader::new(&part, op.ofs);
        let mut index = reader.peek(object).await?.index;
        if !op.exclusive {
            reader.next(object).await?;
            index = index.wrapping_add(1);
        }
        let min_ofs = reader.ofs;
        part.min_index = index;
        part.min_ofs = min_ofs;
    }
    write_part(object, &part).await
}

async fn list_part(object: Object<'_>, op: ListPartOp) -> Result<Bytes, Errno> {
    let part = read_part(object).await?;
    check_tag(&part, op.tag)?;
    let mut reader = EntryReader::new(&part, op.ofs);
    if op.ofs >= part.min_ofs && !reader.at_end() {
        reader.next(object).await?;
    }
    let mut ret = ListPartRet { tag: part.tag.clone(), ..ListPartRet::default() };
    for _ in 0..op.max_entries.min(MAX_LIST) {
        if reader.at_end() {
            break;
        }
        ret.entries.push(reader.next(object).await?);
    }
    ret.more = !reader.at_end();
    ret.full_part = is_full(&part);
    Ok(encode(&ret))
}

async fn get_part_info(object: Object<'_>, _: GetPartInfoOp) -> Result<Bytes, Errno> {
    Ok(encode(&PartInfoRet { header: read_part(object).await? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;
    use rgw::fifo::JournalEntry;

    fn create(exclusive: bool) -> CreateMetaOp {
        CreateMetaOp {
            id: "q".into(),
            max_part_size: 1000,
            max_entry_size: 100,
            exclusive,
            ..CreateMetaOp::default()
        }
    }

    fn meta(o: &mut TestObject) -> FifoInfo {
        o.query::<_, GetMetaRet>("fifo", "get_meta", &GetMetaOp::default()).unwrap().info
    }

    #[test]
    fn a_queue_is_made_and_found_again() {
        let mut o = TestObject::new();
        let get = GetMetaOp::default();
        assert_eq!(o.exec("fifo", "get_meta", &get), Err(Errno::ENOENT));
        let bad = CreateMetaOp { max_entry_size: 1001, ..create(false) };
        assert_eq!(o.exec("fifo", "create_meta", &bad), Err(Errno::EINVAL));
        o.exec("fifo", "create_meta", &create(true)).unwrap();
        let info = meta(&mut o);
        assert_eq!((info.version.instance.len(), info.version.ver), (16, 1));
        assert_eq!(info.params.full_size_threshold, 1000 - 100 - 58);
        assert!(info.oid_prefix.starts_with(b"q.") && info.oid_prefix.len() == 13);
        o.exec("fifo", "create_meta", &create(false)).unwrap();
        assert_eq!(o.exec("fifo", "create_meta", &create(true)), Err(Errno::EEXIST));
        let other = CreateMetaOp { oid_prefix: Some("p".into()), ..create(false) };
        assert_eq!(o.exec("fifo", "create_meta", &other), Err(Errno::EEXIST));
        let other = GetMetaOp { version: Some(Objv::default()) };
        assert_eq!(o.exec("fifo", "get_meta", &other), Err(Errno::ECANCELED));
    }

    #[test]
    fn parts_are_announced_made_and_become_the_head() {
        let mut o = TestObject::new();
        o.exec("fifo", "create_meta", &create(true)).unwrap();
        let entry = JournalEntry { op: JournalOp::CREATE, part_num: 0, part_tag: "t".into() };
        let begin = UpdateMetaOp {
            version: meta(&mut o).version,
            max_push_part_num: Some(0),
            journal_entries_add: vec![entry.clone()],
            ..UpdateMetaOp::default()
        };
        o.exec("fifo", "update_meta", &begin).unwrap();
        assert_eq!(o.exec("fifo", "update_meta", &begin), Err(Errno::ECANCELED), "it has changed");
        let again = UpdateMetaOp { version: meta(&mut o).version, ..begin };
        assert_eq!(o.exec("fifo", "update_meta", &again), Err(Errno::EINVAL), "it is under way");
        let end = UpdateMetaOp {
            version: meta(&mut o).version,
            head_part_num: Some(0),
            journal_entries_rm: vec![entry],
            ..UpdateMetaOp::default()
        };
        o.exec("fifo", "update_meta", &end).unwrap();
        let info = meta(&mut o);
        assert_eq!((info.head_part_num, &info.head_tag[..], info.version.ver), (0, &b"t"[..], 3));
        assert_eq!(info.journal, Default::default());
        let none = UpdateMetaOp::default();
        assert_eq!(o.exec("fifo", "update_meta", &none), Err(Errno::EINVAL));
    }

    fn part() -> TestObject {
        let mut o = TestObject::new();
        let params =
            DataParams { max_part_size: 1000, max_entry_size: 100, full_size_threshold: 842 };
        let op = InitPartOp { tag: "t".into(), params };
        o.exec("fifo", "init_part", &op).unwrap();
        o.exec("fifo", "init_part", &op).unwrap();
        let other = InitPartOp { tag: "u".into(), ..op };
        assert_eq!(o.exec("fifo", "init_part", &other), Err(Errno::EEXIST));
        o
    }

    fn push(o: &mut TestObject, entries: &[&str]) -> Result<i32, Errno> {
        let data: Vec<Bytes> =
            entries.iter().map(|e| Bytes::copy_from_slice(e.as_bytes())).collect();
        let total_len = data.iter().map(|d| d.len() as u64).sum();
        let op = PushPartOp { tag: "t".into(), data, total_len };
        o.call("fifo", "push_part", encode(&op)).map(|out| out.value)
    }

    fn list(o: &mut TestObject, ofs: u64, max_entries: i32) -> ListPartRet {
        let op = ListPartOp { tag: Some("t".into()), ofs, max_entries };
        o.query("fifo", "part_list", &op).unwrap()
    }

    fn trim(o: &mut TestObject, ofs: u64, exclusive: bool) {
        let op = TrimPartOp { tag: None, ofs, exclusive };
        o.exec("fifo", "trim_part", &op).unwrap();
    }

    #[test]
    fn a_part_takes_entries_until_it_is_full() {
        let mut o = part();
        assert_eq!(push(&mut o, &["a", "bb"]), Ok(2));
        let wrong = PushPartOp { tag: "x".into(), ..PushPartOp::default() };
        assert_eq!(o.exec("fifo", "push_part", &wrong), Err(Errno::EINVAL));
        let wrong = PushPartOp { tag: "t".into(), total_len: 1, ..PushPartOp::default() };
        assert_eq!(o.exec("fifo", "push_part", &wrong), Err(Errno::EINVAL));
        assert_eq!(push(&mut o, &[&"x".repeat(2000)]), Err(Errno::EINVAL));
        let hundred = "x".repeat(100);
        assert_eq!(push(&mut o, &[&hundred, &hundred, &hundred]), Ok(2), "two fit");
        assert_eq!(push(&mut o, &["y"]), Err(Errno::ERANGE));
        let all = list(&mut o, 0, 100);
        assert_eq!((all.entries.len(), all.more, all.full_part), (4, false, true));
        assert_eq!(&all.entries[1].data[..], b"bb");
        assert_eq!(all.entries[1].ofs, 512 + 58 + 1);
        let two = list(&mut o, 0, 2);
        assert!(two.more);
        assert_eq!(list(&mut o, two.entries[1].ofs, 100).entries, all.entries[2..]);
    }

    #[test]
    fn trimming_forgets_entries_and_removes_a_full_part() {
        let mut o = part();
        push(&mut o, &["a", "b", "c"]).unwrap();
        let all = list(&mut o, 0, 100).entries;
        trim(&mut o, all[1].ofs, true);
        assert_eq!(list(&mut o, 0, 100).entries, all[1..]);
        trim(&mut o, all[1].ofs, false);
        assert_eq!(list(&mut o, 0, 100).entries, all[2..]);
        trim(&mut o, all[0].ofs, false);
        assert_eq!(list(&mut o, 0, 100).entries, all[2..], "it is trimmed already");
        trim(&mut o, 10_000, false);
        assert!(list(&mut o, 0, 100).entries.is_empty());
        let info: PartInfoRet = o.query("fifo", "get_part_info", &GetPartInfoOp {}).unwrap();
        assert_eq!((info.header.min_index, info.header.max_index), (3, 3));
        let hundred = "x".repeat(100);
        push(&mut o, &[&hundred, &hundred]).unwrap();
        assert!(list(&mut o, 0, 100).full_part);
        trim(&mut o, 10_000, false);
        assert!(!o.stored.exists);
    }

    #[test]
    fn a_damaged_entry_is_an_error() {
        let mut o = part();
        push(&mut o, &["a"]).unwrap();
        o.stored.data[512] ^= 1;
        let op = ListPartOp { tag: None, ofs: 0, max_entries: 10 };
        assert_eq!(o.exec("fifo", "part_list", &op), Err(Errno::ERANGE));
        o.stored.data[512] ^= 1;
        o.stored.data[512 + 24..512 + 32].fill(0xff);
        assert_eq!(o.exec("fifo", "part_list", &op), Err(Errno::ERANGE));
    }
}
