//! Seeded random bytes against the state machines. `MSGR_FUZZ_ITERATIONS` extends the run and
//! `MSGR_FUZZ_SEED` moves it; a failure names the seed that repeats it.

mod common;

use auth::ConMode;
use bytes::Bytes;
use common::ends::*;
use common::*;
use msgr::frame::{Encoder, Tag};
use msgr::out::OutBuf;
use rand::RngExt;
use rand::rngs::StdRng;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn mutate(bytes: &mut Vec<u8>, r: &mut StdRng) {
    for _ in 0..r.random_range(1..4) {
        let at = r.random_range(0..=bytes.len());
        match r.random_range(0..6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << r.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][r.random_range(0..5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, r.random()),
            4 if at < bytes.len() => {
                let end = (at + r.random_range(1..16)).min(bytes.len());
                bytes.drain(at..end);
            }
            _ if bytes.len() >= at + 4 => {
                bytes[at..at + 4].copy_from_slice(&r.random::<u32>().to_le_bytes())
            }
            _ => {}
        }
    }
}

const TAGS: [Tag; 20] = [
    Tag::Hello,
    Tag::AuthRequest,
    Tag::AuthBadMethod,
    Tag::AuthReplyMore,
    Tag::AuthRequestMore,
    Tag::AuthDone,
    Tag::AuthSignature,
    Tag::ClientIdent,
    Tag::ServerIdent,
    Tag::IdentMissingFeatures,
    Tag::SessionReconnect,
    Tag::SessionReset,
    Tag::SessionRetry,
    Tag::SessionRetryGlobal,
    Tag::SessionReconnectOk,
    Tag::Wait,
    Tag::Message,
    Tag::Keepalive2,
    Tag::Keepalive2Ack,
    Tag::Ack,
];

/// The first segment and tag of every plain frame in a stream that starts with a banner.
fn frames(stream: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut rest = stream.get(26..).unwrap_or_default();
    let mut all = Vec::new();
    while let Some(head) = rest.get(..32) {
        let len = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
        let Some(payload) = rest.get(32..32 + len) else {
            break;
        };
        all.push((head[0], payload.to_vec()));
        rest = rest.get(32 + len + if len > 0 { 4 } else { 0 }..).unwrap_or_default();
    }
    all
}

/// Well-formed frames with ill-formed contents, at every stage of the handshake and behind it.
#[test]
fn frames_with_wild_contents() {
    let (iterations, base) = (env("MSGR_FUZZ_ITERATIONS", 1_500), env("MSGR_FUZZ_SEED", 0));
    let s = secrets(NOW, &mut rng(1));
    // What proper ends say, in either direction.
    let mut said = Vec::new();
    {
        let (mut c, mut m) = admin_and_mon(&s, ConMode::Crc);
        let mut streams = [Vec::new(), Vec::new()];
        loop {
            let (ab, ba) = (c.take(), m.take());
            if ab.is_empty() && ba.is_empty() {
                break;
            }
            streams[0].extend_from_slice(&ab);
            streams[1].extend_from_slice(&ba);
            m.receive(&ab);
            c.receive(&ba);
        }
        assert!(c.ready && m.ready);
        streams.iter().for_each(|s| said.extend(frames(s)));
        assert!(said.len() > 8, "{}", said.len());
    }
    let mut ready = 0;
    for seed in base..base + iterations {
        let mut r = rng(seed);
        let (mut c, mut m) = admin_and_mon(&s, ConMode::Crc);
        // Properly up to some point.
        for _ in 0..r.random_range(0..8) {
            let (ab, ba) = (c.take(), m.take());
            m.receive(&ab);
            c.receive(&ba);
        }
        ready += u64::from(m.ready);
        for _ in 0..r.random_range(1..6) {
            let (tag, mut payload) = said[r.random_range(0..said.len())].clone();
            if r.random_range(0..4) > 0 {
                mutate(&mut payload, &mut r);
            }
            let tag = if r.random_range(0..4) == 0 {
                TAGS[r.random_range(0..TAGS.len())]
            } else {
                TAGS[usize::from(tag) - 1]
            };
            let mut out = OutBuf::default();
            let extra = [Bytes::from(vec![7; r.random_range(0..100)])];
            let rest: &[&[Bytes]] = if r.random_range(0..8) == 0 { &[&extra] } else { &[] };
            Encoder::default().frame(tag, &payload, rest, None, &mut out).unwrap();
            let victim = if r.random() { &mut m } else { &mut c };
            victim.receive(&out.take());
            let reply = victim.take();
            assert!(reply.len() < 1 << 20, "seed {seed}");
        }
    }
    assert!(ready * 10 > iterations, "established connections were tried, too: {ready}");
}

/// Streams with random damage, in pieces of random size.
#[test]
fn damaged_streams() {
    let (iterations, base) = (env("MSGR_FUZZ_ITERATIONS", 300), env("MSGR_FUZZ_SEED", 0));
    for mode in [ConMode::Crc, ConMode::Secure] {
        let s = secrets(NOW, &mut rng(1));
        for seed in base..base + iterations {
            let mut r = rng(seed);
            let (mut c, mut m) = admin_and_mon(&s, mode);
            let sent = message(1, 30, 40_000);
            c.s.push(sent.clone());
            let damage_in = r.random_range(0..8);
            for round in 0..12 {
                let (ab, ba) = (c.take(), m.take());
                for (bytes, to) in [(ab, &mut m), (ba, &mut c)] {
                    let mut bytes = bytes.to_vec();
                    if round >= damage_in && r.random() {
                        mutate(&mut bytes, &mut r);
                    }
                    let cut = r.random_range(0..=bytes.len());
                    to.receive(&bytes[..cut]);
                    to.receive(&bytes[cut..]);
                }
            }
            assert!(
                m.got.iter().all(|x| *x == flat(&sent, 1)),
                "seed {seed} in {mode:?}: a damaged message got through"
            );
        }
    }
}
