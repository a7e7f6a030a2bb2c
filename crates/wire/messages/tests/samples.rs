//! Messages that stock clients and daemons exchanged: what was read is written back byte for byte.

use bytes::Bytes;
use cephfs::{DirPage, FileLock, OpenCreated};
use denc::{Decode, Encode, Features};
use messages::{AnyMessage, ClientMetric, ClientReply, FsOp, OpArgs, Payload};
use proptest::prelude::*;
use std::collections::BTreeMap;
use types::message::Message;

fn unhex(text: &str) -> Bytes {
    if text == "-" {
        return Bytes::new();
    }
    let digits: Vec<u8> =
        text.chars().map(|c| c.to_digit(16).expect("a hexadecimal digit") as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect::<Vec<_>>().into()
}

fn samples(text: &str) -> Vec<Message> {
    let mut samples = Vec::new();
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        let mut m = Message::new(number(), Bytes::new());
        m.version = number();
        m.compat_version = number();
        m.front = unhex(words.next().unwrap());
        m.middle = unhex(words.next().unwrap());
        m.data = Some(unhex(words.next().unwrap())).filter(|d| !d.is_empty()).into_iter().collect();
        samples.push(m);
    }
    samples
}

macro_rules! encode_any {
    ($any:expr, $features:expr, $($name:ident),*) => {
        match $any {
            $( AnyMessage::$name(m) => m.encode($features), )*
            other => panic!("no sample of this kind was expected: {other:?}"),
        }
    };
}

fn encode(any: &AnyMessage, features: Features) -> Message {
    encode_any!(
        any,
        features,
        MonMapMsg,
        MonGetMap,
        Statfs,
        StatfsReply,
        MonSubscribe,
        MonGetVersion,
        MonGetVersionReply,
        OsdMapMsg,
        OsdOp,
        OsdOpReply,
        WatchNotify,
        MonCommand,
        MonCommandAck,
        GetPoolStats,
        GetPoolStatsReply,
        Config,
        Command,
        CommandReply,
        MgrMapMsg,
        MgrCommand,
        MgrCommandReply,
        ClientSession,
        ClientRequest,
        ClientReply,
        ClientCaps,
        ClientCapRelease,
        ClientLease,
        ClientMetrics,
        ClientQuota,
        ClientReconnect,
        ClientSnap
    )
}

/// The bytes that mean something: OSDs leave the length of their output in the arguments of an
/// operation in a reply, also where the operation has other arguments than a range.
fn used(any: &AnyMessage, front: &[u8]) -> Vec<u8> {
    let mut front = front.to_vec();
    if let AnyMessage::OsdOpReply(reply) = any {
        let ops = 4 + reply.object.len() + 17 + 8 + 4 + 12 + 4 + 4;
        for (i, op) in reply.ops.iter().enumerate() {
            if !matches!(op.args, OpArgs::Extent { .. }) {
                front[ops + 38 * i + 6..][..28].fill(0);
            }
        }
    }
    front
}

const SAMPLES: &str = include_str!("samples/pacific.txt");
const FS_SAMPLES: &str = include_str!("samples/pacific-fs.txt");

/// Reads all samples and writes them again; how many there were of each type.
fn check(text: &str) -> BTreeMap<u16, usize> {
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for sample in &samples(text) {
        let any = AnyMessage::decode(sample)
            .unwrap_or_else(|e| panic!("type {}: {e:?}", sample.msg_type));
        let again = encode(&any, types::features::PACIFIC);
        let what = format!("{any:?}");
        assert_eq!(used(&any, &again.front), used(&any, &sample.front), "{what}");
        assert_eq!(again.middle, sample.middle, "{what}");
        assert_eq!(again.data.concat(), sample.data.concat(), "{what}");
        assert_eq!(
            (again.version, again.compat_version),
            (sample.version, sample.compat_version),
            "{what}"
        );
        *seen.entry(sample.msg_type).or_default() += 1;
    }
    seen
}

#[test]
fn messages_of_pacific_are_understood_completely() {
    let seen = check(SAMPLES);
    assert!(seen.len() >= 20 && seen[&42] > 10 && seen[&43] > 10, "{seen:?}");
}

#[test]
fn messages_about_file_systems_are_understood_completely() {
    let seen = check(FS_SAMPLES);
    assert!(seen.len() >= 10 && seen[&24] > 20 && seen[&26] > 20 && seen[&0x310] > 7, "{seen:?}");
}

fn again<T: Decode + Encode>(bytes: &Bytes) -> denc::Result<Bytes> {
    Ok(T::from_bytes(bytes)?.to_bytes(Features::ALL))
}

/// The parts of a reply that stay bytes, after a way through their types.
fn parts_again(reply: &ClientReply) -> denc::Result<(Bytes, Bytes)> {
    let extra = match reply.op {
        _ if reply.extra.is_empty() => Bytes::new(),
        FsOp::READDIR | FsOp::LSSNAP => again::<DirPage>(&reply.extra)?,
        FsOp::CREATE => again::<OpenCreated>(&reply.extra)?,
        FsOp::SETFILELOCK | FsOp::GETFILELOCK => again::<FileLock>(&reply.extra)?,
        _ => reply.extra.clone(),
    };
    let realms = cephfs::snap::decode_trace(&reply.snap_trace)?;
    Ok((extra, cephfs::snap::encode_trace(&realms)))
}

#[test]
fn parts_of_replies_are_understood_completely() {
    let (mut pages, mut created, mut realms) = (0, 0, 0);
    for sample in samples(FS_SAMPLES) {
        match AnyMessage::decode(&sample).unwrap() {
            AnyMessage::ClientReply(reply) => {
                let (extra, trace) = parts_again(&reply).unwrap();
                assert_eq!((&extra, &trace), (&reply.extra, &reply.snap_trace), "{}", reply.op);
                pages += usize::from(reply.op == FsOp::READDIR && !extra.is_empty());
                created += usize::from(reply.op == FsOp::CREATE && !extra.is_empty());
                realms += usize::from(!trace.is_empty());
            }
            AnyMessage::ClientMetrics(m) => {
                let known = |m: &ClientMetric| m.value().unwrap().is_some();
                assert!(!m.metrics.is_empty() && m.metrics.iter().all(known));
            }
            AnyMessage::ClientReconnect(m) => assert!(!m.caps.is_empty() && !m.realms.is_empty()),
            _ => {}
        }
    }
    assert!(pages > 0 && created > 0 && realms > 10, "{pages} {created} {realms}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damaged_messages_of_file_systems_never_panic(
        which: usize,
        edits in prop::collection::vec((any::<usize>(), prop::sample::select(vec![0u8, 1, 2, 0x7f, 0x80, 0xff])), 1..6),
        version in prop_oneof![8 => Just(None), 1 => (0u16..14).prop_map(Some)],
        cut in prop_oneof![9 => Just(0usize), 1 => any::<usize>()],
    ) {
        let mut samples = samples(FS_SAMPLES);
        let which = which % samples.len();
        let m = &mut samples[which];
        let damaged = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            if bytes.is_empty() {
                return Bytes::new();
            }
            for (at, byte) in &edits {
                let at = at % bytes.len();
                bytes[at] = *byte;
            }
            bytes.truncate(bytes.len() - cut % bytes.len());
            bytes.into()
        };
        m.front = damaged(&m.front);
        m.middle = damaged(&m.middle);
        m.data = [damaged(&m.data.concat())].into_iter().filter(|d| !d.is_empty()).collect();
        m.version = version.unwrap_or(m.version);
        if let Ok(any) = AnyMessage::decode(m) {
            if let AnyMessage::ClientReply(reply) = &any {
                let _ = parts_again(reply);
            }
            // What was once read has a stable form.
            let once = encode(&any, types::features::PACIFIC);
            let twice = encode(&AnyMessage::decode(&once).unwrap(), types::features::PACIFIC);
            assert_eq!((once.front, once.middle, once.data), (twice.front, twice.middle, twice.data));
        }
    }
}
