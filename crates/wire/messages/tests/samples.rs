//! Messages that stock clients and daemons exchanged: what was read is written back byte for byte.

use bytes::Bytes;
use denc::Features;
use messages::{AnyMessage, OpArgs, Payload};
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
        MgrCommandReply
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

#[test]
fn messages_of_pacific_are_understood_completely() {
    let samples = samples(include_str!("samples/pacific.txt"));
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    for sample in &samples {
        let any = AnyMessage::decode(sample)
            .unwrap_or_else(|e| panic!("type {}: {e:?}", sample.msg_type));
        let again = encode(&any, types::features::PACIFIC);
        let what = format!("{any:?}");
        assert_eq!(used(&any, &again.front), used(&any, &sample.front), "{what}");
        assert_eq!(again.data.concat(), sample.data.concat(), "{what}");
        assert_eq!(
            (again.version, again.compat_version),
            (sample.version, sample.compat_version),
            "{what}"
        );
        *seen.entry(sample.msg_type).or_default() += 1;
    }
    assert!(seen.len() >= 20 && seen[&42] > 10 && seen[&43] > 10, "{seen:?}");
}
