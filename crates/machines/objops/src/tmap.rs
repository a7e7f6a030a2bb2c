//! Trivial maps: an object's data as a header and sorted rows, which a request updates in one step
//! (Ceph: `PrimaryLogPG::do_tmapup`). The directory of RBD's first format is one.

use crate::code::{Extent, Op, OpArgs, OpFlags, OpOutcome};
use crate::exec::{Exec, put};
use crate::reader::ObjectReader;
use bytes::{Bytes, BytesMut};
use denc::{Encode, Features, Reader};
use std::collections::BTreeMap;
use types::errno::Errno;

/// Steps of an update (Ceph: `CEPH_OSD_TMAP_*`).
mod step {
    pub const HEADER: u8 = b'h';
    pub const SET: u8 = b's';
    pub const CREATE: u8 = b'c';
    pub const REMOVE: u8 = b'r';
    pub const REMOVE_SLOPPY: u8 = b'R';
}

/// An empty map becomes an empty omap rather than an error (Ceph: `CEPH_OSD_TMAP2OMAP_NULLOK`).
const NULL_OK: u8 = 1;

fn invalid(_: denc::DecodeError) -> Errno {
    Errno::EINVAL
}

/// A header and rows in the order of their keys' bytes.
#[derive(Clone, Debug, Default, PartialEq)]
struct TrivialMap {
    header: Bytes,
    rows: BTreeMap<Bytes, Bytes>,
}

impl TrivialMap {
    /// An object without data is an empty map. What follows the rows is not part of the map.
    fn decode(data: Bytes) -> Result<Self, Errno> {
        if data.is_empty() {
            return Ok(Self::default());
        }
        let mut r = Reader::new(data);
        let header = r.get().map_err(invalid)?;
        let rows: Vec<(Bytes, Bytes)> = r.get().map_err(invalid)?;
        Ok(TrivialMap { header, rows: rows.into_iter().collect() })
    }

    fn encode(&self) -> Bytes {
        let mut b = BytesMut::new();
        self.header.encode(&mut b, Features::ALL);
        self.rows.encode(&mut b, Features::ALL);
        b.freeze()
    }

    /// Applies the steps. As long as their keys are in order, Ceph merges them with the rows as
    /// they were; the first key out of order makes it begin again with other rules.
    fn update(&self, steps: &Bytes) -> Result<Self, Errno> {
        match self.merge(steps)? {
            Some(map) => Ok(map),
            None => self.apply_unsorted(steps),
        }
    }

    /// Steps in the order of their keys: a header only at the front, and rows looked up as they
    /// were before the request. Nothing if a key is out of order.
    fn merge(&self, steps: &Bytes) -> Result<Option<Self>, Errno> {
        let mut map = self.clone();
        let mut r = Reader::new(steps.clone());
        if steps.first() == Some(&step::HEADER) {
            r.get::<u8>().map_err(invalid)?;
            map.header = r.get().map_err(invalid)?;
        }
        let mut last = Bytes::new();
        while r.left() > 0 {
            let (what, key): (u8, Bytes) = r.get().map_err(invalid)?;
            if key < last {
                return Ok(None);
            }
            let exists = self.rows.contains_key(&key) && map.rows.contains_key(&key);
            match what {
                step::SET => {
                    map.rows.insert(key.clone(), r.get().map_err(invalid)?);
                }
                step::CREATE if exists => return Err(Errno::EEXIST),
                step::CREATE => {
                    map.rows.insert(key.clone(), r.get().map_err(invalid)?);
                }
                step::REMOVE if !exists => return Err(Errno::ENOENT),
                step::REMOVE | step::REMOVE_SLOPPY => {
                    map.rows.remove(&key);
                }
                _ => return Err(Errno::EINVAL),
            }
            last = key;
        }
        Ok(Some(map))
    }

    /// Steps one after the other, a header anywhere; these rules have no exclusive creation.
    fn apply_unsorted(&self, steps: &Bytes) -> Result<Self, Errno> {
        let mut map = self.clone();
        let mut r = Reader::new(steps.clone());
        while r.left() > 0 {
            match r.get::<u8>().map_err(invalid)? {
                step::HEADER => map.header = r.get().map_err(invalid)?,
                step::SET => {
                    let (key, value) = r.get().map_err(invalid)?;
                    map.rows.insert(key, value);
                }
                step::REMOVE => {
                    let key: Bytes = r.get().map_err(invalid)?;
                    map.rows.remove(&key).ok_or(Errno::ENOENT)?;
                }
                step::REMOVE_SLOPPY => {
                    let key: Bytes = r.get().map_err(invalid)?;
                    map.rows.remove(&key);
                }
                _ => return Err(Errno::EINVAL),
            }
        }
        Ok(map)
    }
}

impl<R: ObjectReader> Exec<'_, R> {
    async fn whole(&mut self) -> Result<Bytes, Errno> {
        let mut all = OpOutcome::default();
        self.read(Extent::default(), &mut all).await?;
        Ok(all.out_bytes())
    }

    fn write_map(&mut self, data: &Bytes) -> Result<i32, Errno> {
        self.write_full(Extent { length: data.len() as u64, ..Extent::default() }, data, OpFlags(0))
    }

    pub(crate) async fn tmap_get(&mut self, out: &mut OpOutcome) -> Result<i32, Errno> {
        self.read(Extent::default(), out).await
    }

    /// Replaces the map. Rows out of order are sorted; a map in order is stored as it came.
    pub(crate) fn tmap_put(&mut self, op: &Op) -> Result<i32, Errno> {
        let mut r = Reader::new(op.indata.clone());
        let header: Bytes = r.get().map_err(invalid)?;
        let rows: Vec<(Bytes, Bytes)> = r.get().map_err(invalid)?;
        if rows.is_sorted_by(|a, b| a.0 <= b.0) {
            return self.write_map(&op.indata);
        }
        self.write_map(&TrivialMap { header, rows: rows.into_iter().collect() }.encode())
    }

    pub(crate) async fn tmap_update(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        if op.indata.is_empty() {
            return Ok(0);
        }
        let map = TrivialMap::decode(self.whole().await?)?;
        self.write_map(&map.update(&op.indata)?.encode())
    }

    /// Turns the map into omap: the data goes, header and rows stay.
    pub(crate) async fn tmap_to_omap(&mut self, op: &Op) -> Result<i32, Errno> {
        self.writes += 1;
        let OpArgs::Tmap2Omap { flags } = op.args else { return Err(Errno::EINVAL) };
        if self.new.oi.size == 0 {
            return if flags & NULL_OK != 0 { Ok(0) } else { Err(Errno::ENODATA) };
        }
        let map = TrivialMap::decode(self.whole().await?)?;
        let mut rows = OpOutcome::default();
        put(&mut rows, &map.rows);
        self.truncate(Extent::default())?;
        self.omap_set_header(&Op { indata: map.header, ..Op::default() })?;
        self.omap_set(&Op { indata: rows.out_bytes(), ..Op::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: u8, key: &str, value: Option<&str>) -> Vec<u8> {
        let mut b = BytesMut::new();
        (what, Bytes::copy_from_slice(key.as_bytes())).encode(&mut b, Features::ALL);
        if let Some(v) = value {
            Bytes::copy_from_slice(v.as_bytes()).encode(&mut b, Features::ALL);
        }
        b.to_vec()
    }

    fn header(text: &str) -> Vec<u8> {
        row(step::HEADER, text, None)
    }

    fn map(header: &str, rows: &[(&str, &str)]) -> TrivialMap {
        let own = |s: &str| Bytes::copy_from_slice(s.as_bytes());
        TrivialMap {
            header: own(header),
            rows: rows.iter().map(|(k, v)| (own(k), own(v))).collect(),
        }
    }

    fn updated(before: &TrivialMap, steps: &[Vec<u8>]) -> Result<TrivialMap, Errno> {
        before.update(&steps.concat().into())
    }

    #[test]
    fn the_encoding_is_a_header_and_a_map() {
        let m = map("h", &[("a", "1")]);
        assert_eq!(&m.encode()[..], b"\x01\0\0\0h\x01\0\0\0\x01\0\0\0a\x01\0\0\x001");
        assert_eq!(TrivialMap::decode(m.encode()), Ok(m.clone()));
        assert_eq!(TrivialMap::decode(Bytes::new()), Ok(TrivialMap::default()));
        let cut = m.encode();
        assert_eq!(TrivialMap::decode(cut.slice(..cut.len() - 1)), Err(Errno::EINVAL));
    }

    #[test]
    fn steps_in_order_are_merged() {
        let m = map("h", &[("b", "1"), ("d", "2")]);
        let steps = [
            header("new"),
            row(b's', "a", Some("0")),
            row(b'r', "b", None),
            row(b'c', "c", Some("3")),
            row(b'R', "x", None),
        ];
        assert_eq!(updated(&m, &steps), Ok(map("new", &[("a", "0"), ("c", "3"), ("d", "2")])));
        assert_eq!(updated(&m, &[row(b'c', "b", Some(""))]), Err(Errno::EEXIST));
        assert_eq!(updated(&m, &[row(b'r', "a", None)]), Err(Errno::ENOENT));
        assert_eq!(updated(&m, &[row(b'?', "a", None)]), Err(Errno::EINVAL));
        assert_eq!(updated(&m, &[row(b's', "a", None)]), Err(Errno::EINVAL), "a value is missing");
        assert_eq!(updated(&m, &[row(b's', "a", Some("")), header("late")]), Err(Errno::EINVAL));
    }

    #[test]
    fn steps_out_of_order_are_applied_one_by_one() {
        let m = map("", &[("b", "1")]);
        let steps = [
            row(b's', "z", Some("9")),
            row(b's', "a", Some("0")),
            row(b'r', "z", None),
            header("late"),
            row(b'R', "q", None),
        ];
        assert_eq!(updated(&m, &steps), Ok(map("late", &[("a", "0"), ("b", "1")])));
        assert_eq!(
            updated(&m, &[row(b's', "z", Some("")), row(b'c', "a", Some(""))]),
            Err(Errno::EINVAL)
        );
        assert_eq!(
            updated(&m, &[row(b's', "z", Some("")), row(b'r', "a", None)]),
            Err(Errno::ENOENT)
        );
    }
}
