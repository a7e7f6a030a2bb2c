//! Omap: ordered rows and a header of an object.

use crate::code::{Op, OpOutcome};
use crate::exec::{Exec, kib, put};
use crate::object::InfoExt;
use crate::reader::{ObjectReader, OmapRows};
use bytes::{BufMut, Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use std::collections::{BTreeMap, BTreeSet};
use store::Change;
use types::errno::Errno;

fn invalid(_: denc::DecodeError) -> Errno {
    Errno::EINVAL
}

fn reader(op: &Op) -> Reader {
    Reader::new(op.indata.clone())
}

/// How `omap-cmp` orders two values: Ceph's buffers compare their bytes as signed numbers.
fn order(a: &Bytes, b: &Bytes) -> std::cmp::Ordering {
    let signed = |v: &u8| v.cast_signed();
    a.iter().map(signed).cmp(b.iter().map(signed))
}

/// The rows of a page as a reply has them: count, rows, whether there are more.
fn put_page(out: &mut OpOutcome, page: &OmapRows, values: bool) {
    let mut b = BytesMut::with_capacity(16 + page.rows.len() * 32);
    b.put_u32_le(page.rows.len() as u32);
    for (k, v) in &page.rows {
        k.encode(&mut b, Features::ALL);
        if values {
            v.encode(&mut b, Features::ALL);
        }
    }
    page.more.encode(&mut b, Features::ALL);
    out.outdata.push(b.freeze());
}

impl<R: ObjectReader> Exec<'_, R> {
    async fn omap_page(&self, after: &Bytes, prefix: &Bytes, max: u64) -> Result<OmapRows, Errno> {
        let limits = self.env.limits;
        if !self.new.oi.is_omap() {
            return Ok(OmapRows::default());
        }
        // Of an object that this request makes, the store knows nothing yet: that is ENOENT, not
        // empty.
        let max = max.min(limits.omap_entries) as usize;
        let (start, inclusive) = if prefix > after { (prefix, true) } else { (after, false) };
        // A page of no rows still says whether there are any.
        let mut page = self
            .env
            .reader
            .omap_list(&self.key, start, inclusive, max.max(1), limits.omap_bytes as usize)
            .await?;
        if let Some(end) = page.rows.iter().position(|(k, _)| !k.starts_with(prefix)) {
            page.rows.truncate(end);
            page.more = false;
        } else if page.more && !prefix.is_empty() {
            // More rows, but perhaps none with the prefix.
            if let Some((last, _)) = page.rows.last() {
                let next = self.env.reader.omap_list(&self.key, last, false, 1, 1).await?;
                page.more = next.rows.first().is_some_and(|(k, _)| k.starts_with(prefix));
            }
        }
        if page.rows.len() > max {
            page.rows.truncate(max);
            page.more = true;
        }
        Ok(page)
    }

    fn count_read(&mut self, out: &OpOutcome) {
        self.stats.num_rd += 1;
        self.stats.num_rd_kb += kib(out.out_len());
    }

    pub(crate) async fn omap_get_keys(
        &mut self,
        op: &Op,
        out: &mut OpOutcome,
    ) -> Result<i32, Errno> {
        self.reads += 1;
        let (after, max): (Bytes, u64) = reader(op).get().map_err(invalid)?;
        let page = self.omap_page(&after, &Bytes::new(), max).await?;
        put_page(out, &page, false);
        self.count_read(out);
        Ok(0)
    }

    pub(crate) async fn omap_get_vals(
        &mut self,
        op: &Op,
        out: &mut OpOutcome,
    ) -> Result<i32, Errno> {
        self.reads += 1;
        let (after, max, prefix): (Bytes, u64, Bytes) = reader(op).get().map_err(invalid)?;
        let page = self.omap_page(&after, &prefix, max).await?;
        put_page(out, &page, true);
        self.count_read(out);
        Ok(0)
    }

    pub(crate) async fn omap_get_header(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        if !self.new.oi.is_omap() {
            return Ok(0);
        }
        self.reads += 1;
        // An object that this request makes has no header yet.
        if self.old.exists {
            out.outdata.push(self.env.reader.omap_header(&self.key).await?);
        }
        self.count_read(out);
        Ok(0)
    }

    async fn omap_rows(&self, names: Vec<Bytes>) -> Result<Vec<(Bytes, Bytes)>, Errno> {
        if !self.new.oi.is_omap() {
            return Ok(Vec::new());
        }
        self.env.reader.omap_get(&self.key, names).await
    }

    pub(crate) async fn omap_get_by_keys(
        &mut self,
        op: &Op,
        out: &mut OpOutcome,
    ) -> Result<i32, Errno> {
        self.reads += 1;
        let names: BTreeSet<Bytes> = reader(op).get().map_err(invalid)?;
        let rows = match self.omap_rows(names.into_iter().collect()).await {
            // The request makes the object: unlike the other reads of rows, this one is not
            // refused.
            Err(Errno::ENOENT) => Vec::new(),
            other => other?,
        };
        put(out, &rows);
        self.count_read(out);
        Ok(0)
    }

    pub(crate) async fn omap_cmp(&mut self, op: &Op) -> Result<i32, Errno> {
        self.reads += 1;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        let wanted: BTreeMap<Bytes, (Bytes, i32)> = reader(op).get().map_err(invalid)?;
        let found: BTreeMap<Bytes, Bytes> =
            self.omap_rows(wanted.keys().cloned().collect()).await?.into_iter().collect();
        self.stats.num_rd += 1;
        let empty = Bytes::new();
        for (name, (value, comparison)) in &wanted {
            let row = found.get(name).unwrap_or(&empty);
            // Only these three comparisons exist here (Ceph refuses the others).
            let holds = match comparison {
                1 => row == value,
                3 => order(row, value).is_gt(),
                5 => order(row, value).is_lt(),
                _ => return Err(Errno::EINVAL),
            };
            if !holds {
                return Err(Errno::ECANCELED);
            }
        }
        Ok(0)
    }

    pub(crate) fn omap_set(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let rows: Vec<(Bytes, Bytes)> = reader(op).get().map_err(invalid)?;
        self.maybe_create();
        if !rows.is_empty() {
            self.push(Change::OmapSet(rows));
        }
        self.modify = true;
        self.new.oi.set_omap(true);
        self.stats.num_wr += 1;
        self.stats.num_wr_kb += kib(op.indata.len());
        Ok(0)
    }

    pub(crate) fn omap_set_header(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        self.maybe_create();
        self.push(Change::OmapHeader(op.indata.clone()));
        self.new.oi.set_omap(true);
        self.stats.num_wr += 1;
        Ok(0)
    }

    pub(crate) fn omap_clear(&mut self) -> Result<i32, Errno> {
        self.writes += 1;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        if self.new.oi.is_omap() {
            self.push(Change::OmapClear);
            self.new.oi.set_omap(false);
            self.stats.num_wr += 1;
        }
        Ok(0)
    }

    pub(crate) fn omap_rm(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        let rows: Vec<Bytes> = reader(op).get().map_err(invalid)?;
        self.push(Change::OmapRm(rows));
        self.stats.num_wr += 1;
        Ok(0)
    }

    pub(crate) fn omap_rm_range(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        if !self.visible() {
            return Err(Errno::ENOENT);
        }
        let (start, end): (Bytes, Bytes) = reader(op).get().map_err(invalid)?;
        self.push(Change::OmapRmRange { start, end: Some(end) });
        self.stats.num_wr += 1;
        Ok(0)
    }
}
