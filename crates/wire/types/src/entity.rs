//! The entities of a cluster, and their addresses.

use crate::dump::{Dump, shown};
use crate::features;
use bytes::{BufMut, BytesMut};
use denc::{Decode, DecodeError, Encode, Features, Reader, Result, envelope};
use denc_derive::Denc;
use serde_json::{Value, json};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

/// What kind of program a peer is, one bit each (Ceph: `CEPH_ENTITY_TYPE_*`, `include/msgr.h`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
pub struct EntityType(pub u32);

impl EntityType {
    /// A monitor.
    pub const MON: EntityType = EntityType(0x01);
    /// A metadata server.
    pub const MDS: EntityType = EntityType(0x02);
    /// An OSD.
    pub const OSD: EntityType = EntityType(0x04);
    /// A client.
    pub const CLIENT: EntityType = EntityType(0x08);
    /// A manager.
    pub const MGR: EntityType = EntityType(0x10);
    /// The authentication service.
    pub const AUTH: EntityType = EntityType(0x20);
    /// Any of them.
    pub const ANY: EntityType = EntityType(0xff);

    /// Ceph's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::MON => "mon",
            Self::MDS => "mds",
            Self::OSD => "osd",
            Self::CLIENT => "client",
            Self::MGR => "mgr",
            Self::AUTH => "auth",
            _ => "unknown",
        }
    }

    /// The type with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::MON, Self::MDS, Self::OSD, Self::CLIENT, Self::MGR, Self::AUTH]
            .into_iter()
            .find(|t| t.name() == name)
    }
}

impl fmt::Display for EntityType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A participant: its type and number (Ceph: `entity_name_t`, `msg/msg_types.h`; plain, the type in
/// one byte). A client's number is its global id; a negative number means "not assigned yet".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EntityName {
    /// The type.
    pub kind: EntityType,
    /// The number within its type.
    pub num: i64,
}

impl EntityName {
    /// Participant `num` of type `kind`.
    pub const fn new(kind: EntityType, num: i64) -> Self {
        EntityName { kind, num }
    }

    /// OSD `num`.
    pub const fn osd(num: i32) -> Self {
        EntityName { kind: EntityType::OSD, num: num as i64 }
    }

    /// The client with global id `num`.
    pub const fn client(num: i64) -> Self {
        EntityName { kind: EntityType::CLIENT, num }
    }
}

impl Default for EntityName {
    /// No type and number 0, as Ceph leaves it unset.
    fn default() -> Self {
        EntityName { kind: EntityType(0), num: 0 }
    }
}

impl Encode for EntityName {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        // The type has its bits in the lowest byte.
        (self.kind.0 as u8).encode(out, f);
        self.num.encode(out, f);
    }
}
impl Decode for EntityName {
    fn decode(r: &mut Reader) -> Result<Self> {
        let kind = EntityType(r.get::<u8>()?.into());
        Ok(EntityName { kind, num: r.get()? })
    }
}
impl fmt::Display for EntityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.num {
            ..0 => write!(f, "{}.?", self.kind),
            num => write!(f, "{}.{num}", self.kind),
        }
    }
}
impl Dump for EntityName {
    fn dump(&self) -> Value {
        json!({"type": self.kind.name(), "num": self.num as u64})
    }
}

/// The text does not name or locate a participant.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not {1}")]
pub struct ParseEntityError(String, &'static str);

impl FromStr for EntityName {
    type Err = ParseEntityError;

    fn from_str(s: &str) -> std::result::Result<Self, ParseEntityError> {
        let bad = || ParseEntityError(s.to_owned(), "an entity name like osd.3");
        let (kind, num) = s.split_once('.').ok_or_else(bad)?;
        let kind = EntityType::from_name(kind).ok_or_else(bad)?;
        Ok(EntityName { kind, num: num.parse().map_err(|_| bad())? })
    }
}

/// Identity of a client's request: client, incarnation, transaction (Ceph: `osd_reqid_t`,
/// `osd/osd_types.h`, version 2). A resent operation carries the same one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
#[denc(version = 2, compat = 2)]
pub struct ReqId {
    /// The client that asked.
    pub name: EntityName,
    /// The number that the asker gave the request.
    pub tid: u64,
    /// The asker's incarnation.
    pub inc: i32,
}

impl fmt::Display for ReqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}:{}", self.name, self.inc, self.tid)
    }
}
impl Dump for ReqId {
    fn dump(&self) -> Value {
        json!({"name": shown(self.name), "inc": self.inc, "tid": self.tid})
    }
}

/// Which messenger protocol an address speaks (Ceph: `entity_addr_t::type_t`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Denc)]
pub struct AddrType(pub u32);

impl AddrType {
    /// No address.
    pub const NONE: AddrType = AddrType(0);
    /// Messenger v1.
    pub const LEGACY: AddrType = AddrType(1);
    /// Messenger v2.
    pub const MSGR2: AddrType = AddrType(2);
    /// Either: used to match addresses, as in the blocklist.
    pub const ANY: AddrType = AddrType(3);
    /// A network: the nonce is the length of its prefix.
    pub const CIDR: AddrType = AddrType(4);

    /// Ceph's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NONE => "none",
            Self::LEGACY => "v1",
            Self::MSGR2 => "v2",
            Self::ANY => "any",
            Self::CIDR => "cidr",
            _ => "???",
        }
    }
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A process's network address (Ceph: `entity_addr_t`, `msg/msg_types.h`). The nonce tells apart
/// processes that used the same port one after the other.
///
/// Peers without the `MSG_ADDR2` feature get the form of the old protocol: a zero word, the nonce
/// and a whole `sockaddr_storage`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct EntityAddr {
    /// Protocol.
    pub kind: AddrType,
    /// Instance of the process.
    pub nonce: u32,
    /// Where; `None` if the address is blank.
    pub addr: Option<SocketAddr>,
}

impl EntityAddr {
    /// A messenger v2 address.
    pub const fn msgr2(addr: SocketAddr, nonce: u32) -> Self {
        EntityAddr { kind: AddrType::MSGR2, nonce, addr: Some(addr) }
    }

    /// The port, 0 if blank.
    pub fn port(&self) -> u16 {
        self.addr.map_or(0, |a| a.port())
    }

    /// Whether there is no address, or only "any" (0.0.0.0 or ::).
    pub fn is_blank_ip(&self) -> bool {
        self.addr.is_none_or(|a| a.ip().is_unspecified())
    }

    /// Whether both are on the same host.
    pub fn is_same_host(&self, other: &EntityAddr) -> bool {
        match (self.addr, other.addr) {
            (Some(a), Some(b)) => a.ip() == b.ip(),
            _ => false,
        }
    }

    /// Address and nonce without the protocol (Ceph: `get_legacy_str`).
    pub fn legacy_string(&self) -> String {
        format!("{}/{}", Sockaddr(self.addr), self.nonce)
    }

    /// The body of `sockaddr_in` or `sockaddr_in6` behind the family; a blank address is all zero
    /// and as long as the longer of the two.
    fn put_sockaddr(&self, out: &mut BytesMut) {
        match self.addr {
            Some(SocketAddr::V4(a)) => {
                out.put_u16(a.port());
                out.put_slice(&a.ip().octets());
                out.put_bytes(0, 8);
            }
            Some(SocketAddr::V6(a)) => {
                out.put_u16(a.port());
                out.put_u32_le(a.flowinfo());
                out.put_slice(&a.ip().octets());
                out.put_u32_le(a.scope_id());
            }
            None => out.put_bytes(0, 26),
        }
    }

    fn family(&self) -> u16 {
        match self.addr {
            Some(SocketAddr::V4(_)) => AF_INET,
            Some(SocketAddr::V6(_)) => AF_INET6,
            None => 0,
        }
    }

    /// Reads what [`Self::put_sockaddr`] wrote. A short one is filled up with zeros.
    fn get_sockaddr(family: u16, r: &mut Reader) -> Result<Option<SocketAddr>> {
        let mut raw = [0u8; 26];
        let body = r.rest();
        let most = match family {
            AF_INET => 14,
            _ => 26,
        };
        if body.len() > most {
            return Err(DecodeError::Invalid { what: "sockaddr length", found: body.len() as u64 });
        }
        for (to, from) in raw.iter_mut().zip(&body) {
            *to = *from;
        }
        let mut r = Reader::new(bytes::Bytes::copy_from_slice(&raw));
        let port = u16::from_be_bytes(r.array("port")?);
        match family {
            0 => Ok(None),
            AF_INET => Ok(Some((Ipv4Addr::from(r.array::<4>("IPv4 address")?), port).into())),
            AF_INET6 => {
                let flow = r.get()?;
                let ip = Ipv6Addr::from(r.array::<16>("IPv6 address")?);
                Ok(Some(SocketAddrV6::new(ip, port, flow, r.get()?).into()))
            }
            other => Err(DecodeError::Invalid { what: "address family", found: other.into() }),
        }
    }

    /// The old form, its first marker byte already read.
    fn decode_legacy(r: &mut Reader) -> Result<Self> {
        r.skip("legacy address", 3)?;
        let nonce = r.get()?;
        let mut storage = r.sub("sockaddr_storage", 128)?;
        let family = u16::from_be_bytes(storage.array("address family")?);
        let len = if family == AF_INET { 14 } else { 26 };
        let addr = Self::get_sockaddr(family, &mut storage.sub("sockaddr", len)?)?;
        let kind = if addr.is_some() { AddrType::LEGACY } else { AddrType::NONE };
        Ok(EntityAddr { kind, nonce, addr })
    }

    /// The new form, its marker already read.
    fn decode_msgr2(r: &mut Reader) -> Result<Self> {
        let (_, mut body) = r.envelope("entity_addr_t", 1)?;
        let kind = body.get()?;
        let nonce = body.get()?;
        let len: u32 = body.get()?;
        let addr = match len {
            0 => None,
            1 => return Err(DecodeError::Invalid { what: "sockaddr length", found: 1 }),
            len => {
                let mut sockaddr = body.sub("sockaddr", len as usize)?;
                let family = sockaddr.get()?;
                Self::get_sockaddr(family, &mut sockaddr)?
            }
        };
        Ok(EntityAddr { kind, nonce, addr })
    }
}

impl Encode for EntityAddr {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !f.has(features::MSG_ADDR2) {
            0u32.encode(out, f);
            self.nonce.encode(out, f);
            let start = out.len();
            out.put_u16(self.family());
            self.put_sockaddr(out);
            out.put_bytes(0, 128 - (out.len() - start));
            return;
        }
        out.put_u8(1);
        envelope(out, 1, 1, |out| {
            // Peers before Nautilus do not know "any".
            let before_nautilus = !f.has(features::SERVER_NAUTILUS);
            match self.kind {
                AddrType::ANY if before_nautilus => AddrType::LEGACY.encode(out, f),
                kind => kind.encode(out, f),
            }
            self.nonce.encode(out, f);
            denc::with_length(out, |out| {
                self.family().encode(out, f);
                self.put_sockaddr(out);
            });
        });
    }
}
impl Decode for EntityAddr {
    fn decode(r: &mut Reader) -> Result<Self> {
        match r.get::<u8>()? {
            0 => Self::decode_legacy(r),
            1 => Self::decode_msgr2(r),
            marker => {
                Err(DecodeError::Invalid { what: "entity_addr_t marker", found: marker.into() })
            }
        }
    }
}

struct Sockaddr(Option<SocketAddr>);

impl fmt::Display for Sockaddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(SocketAddr::V4(a)) => write!(f, "{a}"),
            // Without the scope, which SocketAddr would show.
            Some(SocketAddr::V6(a)) => write!(f, "[{}]:{}", a.ip(), a.port()),
            None => f.write_str("(unrecognized address family 0)"),
        }
    }
}

impl fmt::Display for EntityAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            AddrType::NONE => return f.write_str("-"),
            AddrType::ANY => {}
            kind => write!(f, "{}:", kind.name())?,
        }
        write!(f, "{}/{}", Sockaddr(self.addr), self.nonce)
    }
}

impl FromStr for EntityAddr {
    type Err = ParseEntityError;

    /// `[v1:|v2:|any:]address[:port][/nonce]`; without a protocol, v2. `-` is no address.
    fn from_str(s: &str) -> std::result::Result<Self, ParseEntityError> {
        let bad = || ParseEntityError(s.to_owned(), "an address like v2:10.0.0.1:3300/0");
        if s == "-" {
            return Ok(EntityAddr::default());
        }
        let (kind, rest) = match s.split_once(':') {
            Some(("v1", rest)) => (AddrType::LEGACY, rest),
            Some(("v2", rest)) => (AddrType::MSGR2, rest),
            Some(("any", rest)) => (AddrType::ANY, rest),
            _ => (AddrType::MSGR2, s),
        };
        let (place, nonce) = match rest.split_once('/') {
            Some((place, nonce)) => (place, nonce.parse().map_err(|_| bad())?),
            None => (rest, 0),
        };
        let bare = place.strip_prefix('[').and_then(|p| p.strip_suffix(']')).unwrap_or(place);
        let addr = match bare.parse::<IpAddr>() {
            Ok(ip) => SocketAddr::new(ip, 0),
            Err(_) => place.parse().map_err(|_| bad())?,
        };
        Ok(EntityAddr { kind, nonce, addr: Some(addr) })
    }
}
impl Dump for EntityAddr {
    fn dump(&self) -> Value {
        json!({"type": self.kind.name(), "addr": shown(Sockaddr(self.addr)), "nonce": self.nonce})
    }
}

/// The addresses under which one process can be reached (Ceph: `entity_addrvec_t`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct EntityAddrVec(pub Vec<EntityAddr>);

impl EntityAddrVec {
    /// One address.
    pub fn one(addr: EntityAddr) -> Self {
        EntityAddrVec(vec![addr])
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The first address of this protocol, or a blank one.
    pub fn of_type(&self, kind: AddrType) -> EntityAddr {
        self.0.iter().find(|a| a.kind == kind).copied().unwrap_or_default()
    }

    /// The messenger v2 address, or a blank one.
    pub fn msgr2(&self) -> EntityAddr {
        self.of_type(AddrType::MSGR2)
    }

    /// The messenger v1 address, or else the first, or else a blank one (Ceph:
    /// `legacy_or_front_addr`).
    pub fn legacy_or_front(&self) -> EntityAddr {
        let front = self.0.first().copied().unwrap_or_default();
        self.0.iter().find(|a| a.kind == AddrType::LEGACY).copied().unwrap_or(front)
    }

    /// Ceph: `get_legacy_str`.
    pub fn legacy_string(&self) -> String {
        self.legacy_or_front().legacy_string()
    }

    /// Whether `addr` is one of them.
    pub fn contains(&self, addr: &EntityAddr) -> bool {
        self.0.contains(addr)
    }
}

impl From<EntityAddr> for EntityAddrVec {
    fn from(addr: EntityAddr) -> Self {
        Self::one(addr)
    }
}

impl Encode for EntityAddrVec {
    fn encode(&self, out: &mut BytesMut, f: Features) {
        if !f.has(features::MSG_ADDR2) {
            self.of_type(AddrType::LEGACY).encode(out, Features(0));
            return;
        }
        out.put_u8(2);
        self.0.encode(out, f);
    }
}
impl Decode for EntityAddrVec {
    fn decode(r: &mut Reader) -> Result<Self> {
        Ok(match r.get::<u8>()? {
            0 => Self::one(EntityAddr::decode_legacy(r)?),
            1 => Self::one(EntityAddr::decode_msgr2(r)?),
            2 => EntityAddrVec(r.get()?),
            marker => {
                return Err(DecodeError::Invalid {
                    what: "entity_addrvec_t marker",
                    found: marker.into(),
                });
            }
        })
    }
}
impl fmt::Display for EntityAddrVec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => Ok(()),
            [one] => one.fmt(f),
            all => {
                f.write_str("[")?;
                for (i, addr) in all.iter().enumerate() {
                    let comma = if i > 0 { "," } else { "" };
                    write!(f, "{comma}{addr}")?;
                }
                f.write_str("]")
            }
        }
    }
}
impl FromStr for EntityAddrVec {
    type Err = ParseEntityError;

    /// One address, or `[address,address]`.
    fn from_str(s: &str) -> std::result::Result<Self, ParseEntityError> {
        if let Ok(addr) = s.parse::<EntityAddr>() {
            return Ok(Self::one(addr));
        }
        let inner = s.strip_prefix('[').and_then(|s| s.strip_suffix(']'));
        let inner = inner
            .ok_or_else(|| ParseEntityError(s.to_owned(), "an address or [address,address]"))?;
        Ok(EntityAddrVec(inner.split(',').map(str::parse).collect::<std::result::Result<_, _>>()?))
    }
}
impl Dump for EntityAddrVec {
    fn dump(&self) -> Value {
        json!({"addrvec": crate::dump::list(&self.0)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn addr(s: &str) -> EntityAddr {
        s.parse().unwrap()
    }

    #[test]
    fn a_v2_address_has_the_new_form() {
        let bytes = addr("v2:127.0.0.1:3300/7").to_bytes(Features::ALL);
        let expected = [
            1, 1, 1, 28, 0, 0, 0, // marker, envelope
            2, 0, 0, 0, 7, 0, 0, 0, 16, 0, 0, 0, // type, nonce, sockaddr length
            2, 0, 0x0c, 0xe4, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(bytes.as_ref(), expected);
        assert_eq!(EntityAddr::from_bytes(&bytes).unwrap(), addr("v2:127.0.0.1:3300/7"));
    }

    #[test]
    fn peers_without_addr2_get_a_sockaddr_storage() {
        let bytes = addr("v1:1.2.3.4:5/6").to_bytes(Features(0));
        assert_eq!(bytes.len(), 4 + 4 + 128);
        assert_eq!(bytes[..16], [0, 0, 0, 0, 6, 0, 0, 0, 0, 2, 0, 5, 1, 2, 3, 4]);
        assert_eq!(EntityAddr::from_bytes(&bytes).unwrap(), addr("v1:1.2.3.4:5/6"));
        let both: EntityAddrVec = "[v2:1.2.3.4:3300/6,v1:1.2.3.4:5/6]".parse().unwrap();
        assert_eq!(both.to_bytes(Features(0)), bytes);
        assert_eq!(
            EntityAddrVec::from_bytes(&bytes).unwrap(),
            EntityAddrVec::one(addr("v1:1.2.3.4:5/6"))
        );
    }

    #[test]
    fn addresses_parse_what_they_print() {
        for text in ["v2:127.0.0.1:3300/7", "v1:[::1]:6789/0", "-", "10.0.0.1:0/123"] {
            let kind = if text.starts_with('1') { format!("any:{text}") } else { text.to_owned() };
            assert_eq!(addr(&kind).to_string(), text);
        }
        assert_eq!(addr("10.0.0.1").to_string(), "v2:10.0.0.1:0/0");
        assert_eq!(addr("[fe80::1]").to_string(), "v2:[fe80::1]:0/0");
        let vec: EntityAddrVec = "[v2:127.0.0.1:1/0,v1:127.0.0.1:2/0]".parse().unwrap();
        assert_eq!(vec.to_string(), "[v2:127.0.0.1:1/0,v1:127.0.0.1:2/0]");
        for bad in ["", "v2:", "v2:1.2.3", "v2:1.2.3.4:99999/0", "v2:1.2.3.4:1/x", "["] {
            assert!(bad.parse::<EntityAddr>().is_err(), "{bad}");
            assert!(bad.parse::<EntityAddrVec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn hostile_addresses_are_refused() {
        for bad in [&[9u8][..], &[1, 1, 1, 13, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5]] {
            assert!(EntityAddr::from_bytes(&Bytes::copy_from_slice(bad)).is_err());
        }
    }

    #[test]
    fn names() {
        assert_eq!("osd.3".parse::<EntityName>().unwrap(), EntityName::osd(3));
        assert_eq!(EntityName::client(-1).to_string(), "client.?");
        assert_eq!(
            EntityName::client(4100).to_bytes(Features::ALL).as_ref(),
            [8, 4, 16, 0, 0, 0, 0, 0, 0]
        );
        assert!("foo.3".parse::<EntityName>().is_err());
    }
}
