//! Binary form of the map (Ceph: `OSDMap::encode`/`decode`, 16.2: wrapper version 8, client part 9,
//! OSD part 9 or, for stretched clusters, 10; newer parts only where the map uses what they hold).
//!
//! ```text
//! wrapper { client part { ... }  OSD part { ... }  crc: u32 }
//! ```
//!
//! The checksum covers the wrapper from its first byte, its own four bytes left out.

use super::map::{Osd, OsdInfo, OsdMap, OsdXinfo, StretchMode};
use crate::Release;
use crate::rados::osdmap_flag;
use crate::{AddrType, EntityAddr, EntityAddrVec, Epoch, Utime, features};
use bytes::{BufMut, Bytes, BytesMut};
use crush::CrushMap;
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, crc::crc32c, envelope};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// Marks encodings made on purpose in Ceph's sources; never written.
const RESERVED: u64 = 1 << 62;

pub(super) fn writable(f: Features) -> Features {
    Features(f.0 & !RESERVED)
}

/// Versions for a peer: `[client part, OSD part]` of the steps Jewel, Luminous, Mimic, Nautilus.
pub(super) fn version(f: Features, steps: [u8; 4]) -> u8 {
    if !f.has(features::SERVER_LUMINOUS) {
        steps[0]
    } else if !f.has(features::SERVER_MIMIC) {
        steps[1]
    } else if !f.has(features::SERVER_NAUTILUS) {
        steps[2]
    } else {
        steps[3]
    }
}

/// Computes the checksum over `out[start..]` except the four bytes at `at`, and puts it there.
pub(super) fn seal(out: &mut BytesMut, start: usize, at: usize) -> u32 {
    let crc = crc32c(u32::MAX, &out[start..at]);
    let crc = if at + 4 < out.len() { crc32c(crc, &out[at + 4..]) } else { crc };
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// Verifies what [`seal`] made: `whole` is the wrapper with its six bytes of header, `at` the place
/// of the checksum.
pub(super) fn verify(what: &'static str, whole: &[u8], at: usize) -> Result<()> {
    let (Some(front), Some(found), Some(tail)) =
        (whole.get(..at), whole.get(at..at + 4), whole.get(at + 4..))
    else {
        return Err(DecodeError::Short { what, needed: at + 4, left: whole.len() });
    };
    let crc = crc32c(crc32c(u32::MAX, front), tail);
    if crc.to_le_bytes() != found {
        return Err(DecodeError::Invalid { what, found: u64::from(crc) });
    }
    Ok(())
}

/// Addresses for a peer from before Nautilus, which knows one address for each OSD.
pub(super) fn put_one_addr(addrs: &EntityAddrVec, out: &mut BytesMut, f: Features) {
    addrs.of_type(AddrType::LEGACY).encode(out, f);
}

fn put_addrs<'a>(
    addrs: impl ExactSizeIterator<Item = &'a EntityAddrVec>,
    all: bool,
    out: &mut BytesMut,
    f: Features,
) {
    out.put_u32_le(addrs.len() as u32);
    for a in addrs {
        if all {
            a.encode(out, f);
        } else {
            put_one_addr(a, out, f);
        }
    }
}

/// Ceph sorts addresses by their bytes in memory.
fn memory_order(a: &EntityAddr) -> ([u8; 4], [u8; 4], Vec<u8>) {
    let mut sockaddr = Vec::with_capacity(28);
    match a.addr {
        None => {}
        Some(SocketAddr::V4(v4)) => {
            sockaddr.extend(2u16.to_le_bytes());
            sockaddr.extend(v4.port().to_be_bytes());
            sockaddr.extend(v4.ip().octets());
        }
        Some(SocketAddr::V6(v6)) => {
            sockaddr.extend(10u16.to_le_bytes());
            sockaddr.extend(v6.port().to_be_bytes());
            sockaddr.extend(v6.flowinfo().to_le_bytes());
            sockaddr.extend(v6.ip().octets());
            sockaddr.extend(v6.scope_id().to_le_bytes());
        }
    }
    sockaddr.resize(28, 0);
    (a.kind.0.to_le_bytes(), a.nonce.to_le_bytes(), sockaddr)
}

pub(super) fn put_by_addr(map: &BTreeMap<EntityAddr, Utime>, out: &mut BytesMut, f: Features) {
    let mut sorted: Vec<_> = map.iter().collect();
    sorted.sort_by_key(|(a, _)| memory_order(a));
    out.put_u32_le(sorted.len() as u32);
    for (addr, until) in sorted {
        addr.encode(out, f);
        until.encode(out, f);
    }
}

impl Encode for OsdInfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        out.put_u8(1);
        for e in [
            self.last_clean_begin,
            self.last_clean_end,
            self.up_from,
            self.up_thru,
            self.down_at,
            self.lost_at,
        ] {
            e.encode(out, f);
        }
    }
}
impl Decode for OsdInfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        r.skip("osd_info_t version", 1)?;
        Ok(OsdInfo {
            last_clean_begin: r.get()?,
            last_clean_end: r.get()?,
            up_from: r.get()?,
            up_thru: r.get()?,
            down_at: r.get()?,
            lost_at: r.get()?,
        })
    }
}

impl Encode for OsdXinfo {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        let v = if f.has(features::SERVER_OCTOPUS) { 4 } else { 3 };
        envelope(out, v, 1, |out| {
            self.down_stamp.encode(out, f);
            self.laggy_probability.encode(out, f);
            self.laggy_interval.encode(out, f);
            self.features.encode(out, f);
            self.old_weight.encode(out, f);
            if v >= 4 {
                self.last_purged_snaps_scrub.encode(out, f);
                self.dead_epoch.encode(out, f);
            }
        });
    }
}
impl Decode for OsdXinfo {
    fn decode(r: &mut Reader) -> Result<Self> {
        let (v, mut r) = r.envelope("osd_xinfo_t", 4)?;
        let mut x = OsdXinfo {
            down_stamp: r.get()?,
            laggy_probability: r.get()?,
            laggy_interval: r.get()?,
            ..OsdXinfo::default()
        };
        if v >= 2 {
            x.features = r.get()?;
        }
        if v >= 3 {
            x.old_weight = r.get()?;
        }
        if v >= 4 {
            x.last_purged_snaps_scrub = r.get()?;
            x.dead_epoch = r.get()?;
        }
        Ok(x)
    }
}

impl Encode for OsdMap {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        self.encode_sealed(out, f);
    }
}

impl OsdMap {
    /// The map's bytes for these features, and their checksum.
    pub fn to_bytes_with_crc(&self, f: Features) -> (Bytes, u32) {
        let mut out = BytesMut::new();
        let crc = self.encode_sealed(&mut out, f);
        (out.freeze(), crc)
    }

    /// The checksum that an increment which leads to this map must carry, given the features by
    /// which increments are encoded.
    pub fn crc(&self, f: Features) -> u32 {
        self.to_bytes_with_crc(f).1
    }

    fn encode_sealed(&self, out: &mut BytesMut, f: Features) -> u32 {
        let f = writable(f);
        let start = out.len();
        let mut at = 0;
        envelope(out, 8, 7, |out| {
            self.encode_client_part(out, f);
            self.encode_osd_part(out, f);
            at = out.len();
            out.put_u32_le(0);
        });
        seal(out, start, at)
    }

    fn encode_client_part(&self, out: &mut BytesMut, f: Features) {
        let mut v = version(f, [3, 6, 7, 9]);
        if v == 9 && !self.pg_upmap_primaries.is_empty() {
            v = 10;
        }
        envelope(out, v, 1, |out| {
            self.fsid.encode(out, f);
            self.epoch.encode(out, f);
            self.created.encode(out, f);
            self.modified.encode(out, f);
            self.pools.encode(out, f);
            self.pool_names.encode(out, f);
            self.pool_max.encode(out, f);
            let mut flags = self.flags;
            if v < 4 {
                flags |= match self.require_osd_release {
                    r if r >= Release::LUMINOUS => {
                        osdmap_flag::REQUIRE_LUMINOUS | osdmap_flag::RECOVERY_DELETES
                    }
                    Release::KRAKEN => osdmap_flag::REQUIRE_KRAKEN,
                    Release::JEWEL => osdmap_flag::REQUIRE_JEWEL,
                    _ => 0,
                };
            }
            flags.encode(out, f);
            self.max_osd().encode(out, f);
            out.put_u32_le(self.osds.len() as u32);
            for osd in &self.osds {
                if v >= 5 {
                    out.put_u32_le(osd.state);
                } else {
                    out.put_u8(osd.state as u8);
                }
            }
            self.weights.encode(out, f);
            put_addrs(self.osds.iter().map(|o| &o.client_addrs), v >= 8, out, f);
            self.pg_temp.encode(out, f);
            self.primary_temp.encode(out, f);
            self.primary_affinity.as_deref().unwrap_or(&[]).encode(out, f);
            denc::with_length(out, |out| self.crush.encode(out, f));
            self.erasure_code_profiles.encode(out, f);
            if v >= 4 {
                self.pg_upmap.encode(out, f);
                self.pg_upmap_items.encode(out, f);
            }
            if v >= 6 {
                self.crush_version.encode(out, f);
            }
            if v >= 7 {
                self.new_removed_snaps.encode(out, f);
                self.new_purged_snaps.encode(out, f);
            }
            if v >= 9 {
                self.last_up_change.encode(out, f);
                self.last_in_change.encode(out, f);
            }
            if v >= 10 {
                self.pg_upmap_primaries.encode(out, f);
            }
        });
    }

    fn encode_osd_part(&self, out: &mut BytesMut, f: Features) {
        let mut v = version(f, [1, 5, 6, 9]);
        if self.stretch.enabled {
            v = v.max(10);
        }
        if !self.range_blocklist.is_empty() {
            v = v.max(11);
        }
        if self.allow_crimson {
            v = v.max(12);
        }
        envelope(out, v, 1, |out| {
            put_addrs(self.osds.iter().map(|o| &o.hb_back_addrs), v >= 7, out, f);
            out.put_u32_le(self.osds.len() as u32);
            self.osds.iter().for_each(|o| o.info.encode(out, f));
            put_by_addr(&self.blocklist, out, f);
            put_addrs(self.osds.iter().map(|o| &o.cluster_addrs), v >= 7, out, f);
            self.cluster_snapshot_epoch.encode(out, f);
            self.cluster_snapshot.encode(out, f);
            out.put_u32_le(self.osds.len() as u32);
            self.osds.iter().for_each(|o| o.uuid.encode(out, f));
            out.put_u32_le(self.osds.len() as u32);
            self.osds.iter().for_each(|o| o.xinfo.encode(out, f));
            put_addrs(self.osds.iter().map(|o| &o.hb_front_addrs), v >= 7, out, f);
            if v >= 2 {
                self.nearfull_ratio.encode(out, f);
                self.full_ratio.encode(out, f);
                self.backfillfull_ratio.encode(out, f);
            }
            if v >= 5 {
                self.require_min_compat_client.encode(out, f);
                self.require_osd_release.encode(out, f);
            }
            if v >= 6 {
                self.removed_snaps_queue.encode(out, f);
            }
            if v >= 8 {
                self.crush_node_flags.encode(out, f);
            }
            if v >= 9 {
                self.device_class_flags.encode(out, f);
            }
            if v >= 10 {
                let s = &self.stretch;
                s.enabled.encode(out, f);
                s.bucket_count.encode(out, f);
                s.degraded.encode(out, f);
                s.recovering.encode(out, f);
                s.bucket.encode(out, f);
            }
            if v >= 11 {
                put_by_addr(&self.range_blocklist, out, f);
            }
            if v >= 12 {
                self.allow_crimson.encode(out, f);
            }
        });
    }
}

/// Puts a vector by OSD where it belongs, which fails unless it has an entry for each OSD.
fn spread<T>(
    what: &'static str,
    osds: &mut [Osd],
    values: Vec<T>,
    put: impl Fn(&mut Osd, T),
) -> Result<()> {
    if values.len() != osds.len() {
        return Err(DecodeError::Invalid { what, found: values.len() as u64 });
    }
    osds.iter_mut().zip(values).for_each(|(osd, value)| put(osd, value));
    Ok(())
}

impl Decode for OsdMap {
    fn decode(r: &mut Reader) -> Result<Self> {
        let whole = r.clone();
        let begin = r.position();
        let (struct_v, mut body) = r.envelope("OSDMap", 8)?;
        if struct_v < 7 {
            return Err(DecodeError::TooOld { what: "OSDMap", struct_v, oldest: 7 });
        }
        let mut map = OsdMap::default();
        let (v, mut client) = body.envelope("OSDMap client part", 10)?;
        map.decode_client_part(v, &mut client)?;
        let (v, mut osd) = body.envelope("OSDMap OSD part", 12)?;
        map.decode_osd_part(v, &mut osd)?;
        if struct_v >= 8 {
            let len = r.position() - begin;
            verify("OSDMap crc", whole.peek().get(..len).unwrap_or(&[]), 6 + body.position())?;
        }
        Ok(map)
    }
}

impl OsdMap {
    fn decode_client_part(&mut self, v: u8, r: &mut Reader) -> Result<()> {
        self.fsid = r.get()?;
        self.epoch = r.get()?;
        self.created = r.get()?;
        self.modified = r.get()?;
        self.pools = r.get()?;
        self.pool_names = r.get()?;
        self.pool_max = r.get()?;
        self.flags = r.get()?;
        let max_osd: i32 = r.get()?;
        let states: Vec<u32> = if v >= 5 {
            r.get()?
        } else {
            r.get::<Vec<u8>>()?.into_iter().map(u32::from).collect()
        };
        if i64::from(max_osd) != states.len() as i64 || states.len() > OsdMap::MAX_OSD {
            return Err(DecodeError::Invalid {
                what: "OSDMap.max_osd",
                found: max_osd as u32 as u64,
            });
        }
        self.osds = vec![Osd::default(); states.len()];
        spread("OSDMap.osd_state", &mut self.osds, states, |o, s| o.state = s)?;
        self.weights = r.get()?;
        if self.weights.len() != self.osds.len() {
            return Err(DecodeError::Invalid {
                what: "OSDMap.osd_weight",
                found: self.weights.len() as u64,
            });
        }
        spread("OSDMap.client_addrs", &mut self.osds, r.get()?, |o, a| o.client_addrs = a)?;
        self.pg_temp = r.get()?;
        self.primary_temp = r.get()?;
        if v >= 2 {
            let affinity: Vec<u32> = r.get()?;
            if !affinity.is_empty() && affinity.len() != self.osds.len() {
                return Err(DecodeError::Invalid {
                    what: "OSDMap.primary_affinity",
                    found: affinity.len() as u64,
                });
            }
            self.primary_affinity = Some(affinity).filter(|a| !a.is_empty());
        }
        let crush: Bytes = r.get()?;
        self.crush = Arc::new(CrushMap::decode(&mut Reader::new(crush))?);
        if v >= 3 {
            self.erasure_code_profiles = r.get()?;
        }
        if v >= 4 {
            self.pg_upmap = r.get()?;
            self.pg_upmap_items = r.get()?;
        }
        if v >= 6 {
            self.crush_version = r.get()?;
        }
        if v >= 7 {
            self.new_removed_snaps = r.get()?;
            self.new_purged_snaps = r.get()?;
        }
        if v >= 9 {
            self.last_up_change = r.get()?;
            self.last_in_change = r.get()?;
        }
        if v >= 10 {
            self.pg_upmap_primaries = r.get()?;
        }
        Ok(())
    }

    fn decode_osd_part(&mut self, v: u8, r: &mut Reader) -> Result<()> {
        let osds = &mut self.osds;
        spread("OSDMap.hb_back_addrs", osds, r.get()?, |o, a| o.hb_back_addrs = a)?;
        spread("OSDMap.osd_info", osds, r.get()?, |o, i| o.info = i)?;
        self.blocklist = r.get()?;
        spread("OSDMap.cluster_addrs", osds, r.get()?, |o, a| o.cluster_addrs = a)?;
        self.cluster_snapshot_epoch = r.get::<Epoch>()?;
        self.cluster_snapshot = r.get()?;
        spread("OSDMap.osd_uuid", osds, r.get()?, |o, u| o.uuid = u)?;
        spread("OSDMap.osd_xinfo", osds, r.get()?, |o, x| o.xinfo = x)?;
        spread("OSDMap.hb_front_addrs", osds, r.get()?, |o, a| o.hb_front_addrs = a)?;
        if v >= 2 {
            self.nearfull_ratio = r.get()?;
            self.full_ratio = r.get()?;
        }
        if v >= 3 {
            self.backfillfull_ratio = r.get()?;
        }
        if v == 4 {
            let name: String = r.get()?;
            self.require_min_compat_client = Release::by_name(&name).unwrap_or_default();
        }
        let legacy = osdmap_flag::REQUIRE_JEWEL
            | osdmap_flag::REQUIRE_KRAKEN
            | osdmap_flag::REQUIRE_LUMINOUS;
        if v >= 5 {
            self.require_min_compat_client = r.get()?;
            self.require_osd_release = r.get()?;
        } else if self.flags & osdmap_flag::REQUIRE_LUMINOUS != 0 {
            self.require_osd_release = Release::LUMINOUS;
        } else if self.flags & osdmap_flag::REQUIRE_KRAKEN != 0 {
            self.require_osd_release = Release::KRAKEN;
        } else if self.flags & osdmap_flag::REQUIRE_JEWEL != 0 {
            self.require_osd_release = Release::JEWEL;
        }
        if self.require_osd_release >= Release::NAUTILUS && v >= 5 {
            self.flags |= osdmap_flag::PGLOG_HARDLIMIT;
        }
        if self.require_osd_release >= Release::LUMINOUS {
            self.flags &= !legacy;
            self.flags |= osdmap_flag::RECOVERY_DELETES;
        }
        if v >= 6 {
            self.removed_snaps_queue = r.get()?;
        }
        if v >= 8 {
            self.crush_node_flags = r.get()?;
        }
        if v >= 9 {
            self.device_class_flags = r.get()?;
        }
        if v >= 10 {
            self.stretch = StretchMode {
                enabled: r.get()?,
                bucket_count: r.get()?,
                degraded: r.get()?,
                recovering: r.get()?,
                bucket: r.get()?,
            };
        }
        if v >= 11 {
            self.range_blocklist = r.get()?;
        }
        if v >= 12 {
            self.allow_crimson = r.get()?;
        }
        Ok(())
    }
}
