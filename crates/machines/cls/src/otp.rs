//! One-time passwords by time (Ceph: `cls/otp`; RFC 6238). A check is made by one call and its
//! result read by another: a call that fails could not note the attempt.

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, decode, encode, method};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use rgw::otp::{
    CheckResult, OtpCheck, OtpCheckOp, OtpEntries, OtpGetOp, OtpHeader, OtpInfo, OtpInstance,
    OtpRemoveOp, OtpResult, OtpTime, SeedType,
};
use sha1::Sha1;
use types::Utime;
use types::errno::Errno;

/// The class.
pub static CLASS: Class = Class {
    name: "otp",
    methods: &[
        method!("otp_set", RD_WR, set),
        method!("otp_get", RD, get),
        method!("otp_check", RD_WR, check),
        method!("otp_get_result", RD, get_result),
        method!("otp_remove", RD_WR, remove),
        method!("get_current_time", RD, get_current_time),
    ],
};

/// Checks in the time of one password; further ones are not made.
const ATTEMPTS: usize = 5;
const HEADER_KEY: &[u8] = b"header";

fn key(id: &[u8]) -> Bytes {
    [b"otp/", id].concat().into()
}

async fn header(object: Object<'_>) -> Result<OtpHeader, Errno> {
    match object.map_get_val(HEADER_KEY).await {
        Ok(stored) if stored.is_empty() => Ok(OtpHeader::default()),
        Ok(stored) => decode(stored, Errno::EIO),
        Err(Errno::ENOENT | Errno::ENODATA) => Ok(OtpHeader::default()),
        Err(e) => Err(e),
    }
}

async fn instance(object: Object<'_>, id: &[u8]) -> Result<OtpInstance, Errno> {
    decode(object.map_get_val(&key(id)).await?, Errno::EIO)
}

async fn write(object: Object<'_>, instance: &OtpInstance) -> Result<(), Errno> {
    object.map_set_val(&key(&instance.otp.id), encode(instance)).await
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let (pairs, odd) = text.as_chunks::<2>();
    if !odd.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Base 32, in small or capital letters, with spaces, and with or without padding.
fn base32(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|b| *b != b' ').collect();
    let digits = text.iter().position(|b| *b == b'=').unwrap_or(text.len());
    let (digits, padding) = text.split_at(digits);
    let padded = !padding.is_empty() && text.len().is_multiple_of(8) && padding.len() < 8;
    let lengths_fit = matches!(digits.len() % 8, 0 | 2 | 4 | 5 | 7);
    if !lengths_fit || !(padding.is_empty() || padded) || padding.iter().any(|b| *b != b'=') {
        return None;
    }
    let (mut out, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for digit in digits {
        let value = match digit.to_ascii_uppercase() {
            letter @ b'A'..=b'Z' => letter - b'A',
            number @ b'2'..=b'7' => number - b'2' + 26,
            _ => return None,
        };
        bits = bits << 5 | u32::from(value);
        held += 5;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

/// The password of a step, with as many digits as the given one has (RFC 4226).
fn password(secret: &[u8], step: u64, digits: usize) -> String {
    let mut mac = Hmac::<Sha1>::new_from_slice(secret).expect("a key of any length");
    mac.update(&step.to_be_bytes());
    let sum = mac.finalize().into_bytes();
    let at = usize::from(sum[19] & 0xf);
    let word = u32::from_be_bytes([sum[at], sum[at + 1], sum[at + 2], sum[at + 3]]) & 0x7fff_ffff;
    format!("{:0digits$}", u64::from(word) % 10u64.pow(digits as u32))
}

/// How many steps a password is off, in either direction; `None` if it is wrong.
fn distance(otp: &OtpInfo, secs: u32, given: &[u8]) -> Option<u32> {
    if !matches!(given.len(), 6..=8) || otp.step_size == 0 {
        return None;
    }
    let step = (i64::from(secs) - i64::from(otp.time_ofs)) / i64::from(otp.step_size);
    let right = |step: i64| password(&otp.seed_bin, step as u64, given.len()).as_bytes() == given;
    // No token is more steps away than these, and each costs two hashes.
    const MAX_WINDOW: u32 = 1024;
    (0..=otp.window.min(MAX_WINDOW))
        .find(|n| right(step + i64::from(*n)) || (*n > 0 && right(step - i64::from(*n))))
}

/// A password is right if it is one of the window and comes after the last one that was.
fn verify(instance: &mut OtpInstance, now: Utime, given: &[u8]) -> bool {
    let Some(off) = distance(&instance.otp, now.sec, given) else { return false };
    let step = now.sec.wrapping_sub(instance.otp.time_ofs as u32) / instance.otp.step_size;
    let index = u64::from(off.wrapping_add(step));
    if index <= instance.last_success {
        return false;
    }
    instance.last_success = index;
    true
}

fn trim(instance: &mut OtpInstance, now: Utime) {
    let since = now
        .as_duration()
        .saturating_sub(std::time::Duration::from_secs(instance.otp.step_size.into()));
    let expired = instance.last_checks.iter().position(|c| c.timestamp.as_duration() >= since);
    instance.last_checks.drain(..expired.unwrap_or(instance.last_checks.len()));
}

/// EINVAL if a seed cannot be read.
async fn set(object: Object<'_>, op: OtpEntries) -> Result<(), Errno> {
    let mut header = header(object).await?;
    for entry in op.entries {
        let mut stored = match instance(object, &entry.id).await {
            Ok(stored) => stored,
            Err(Errno::ENOENT) => OtpInstance::default(),
            Err(e) => return Err(e),
        };
        stored.otp = entry;
        let seed = match stored.otp.seed_type {
            SeedType::BASE32 => base32(&stored.otp.seed),
            _ => hex(&stored.otp.seed),
        };
        stored.otp.seed_bin = seed.ok_or(Errno::EINVAL)?.into();
        write(object, &stored).await?;
        header.ids.insert(stored.otp.id);
    }
    object.map_set_val(HEADER_KEY, encode(&header)).await
}

async fn remove(object: Object<'_>, op: OtpRemoveOp) -> Result<(), Errno> {
    let mut header = header(object).await?;
    let mut removed = false;
    for id in op.ids {
        if header.ids.remove(&id) {
            object.map_remove_key(&key(&id)).await?;
            removed = true;
        }
    }
    if removed { object.map_set_val(HEADER_KEY, encode(&header)).await } else { Ok(()) }
}

async fn get(object: Object<'_>, op: OtpGetOp) -> Result<Bytes, Errno> {
    let header = header(object).await?;
    let ids = if op.get_all { header.ids.iter().cloned().collect() } else { op.ids };
    let mut ret = OtpEntries::default();
    for id in ids {
        if header.ids.contains(&id) {
            ret.entries.push(instance(object, &id).await?.otp);
        }
    }
    Ok(encode(&ret))
}

async fn check(object: Object<'_>, op: OtpCheckOp) -> Result<(), Errno> {
    let mut instance = instance(object, &op.id).await?;
    let now = object.origin().now;
    trim(&mut instance, now);
    if instance.last_checks.len() >= ATTEMPTS {
        return Ok(());
    }
    let right = verify(&mut instance, now, &op.val);
    let result = if right { CheckResult::SUCCESS } else { CheckResult::FAIL };
    instance.last_checks.push(OtpCheck { token: op.token, timestamp: now, result });
    write(object, &instance).await
}

async fn get_result(object: Object<'_>, op: OtpCheckOp) -> Result<Bytes, Errno> {
    let mut instance = instance(object, &op.id).await?;
    let now = object.origin().now;
    trim(&mut instance, now);
    let found = instance.last_checks.into_iter().rev().find(|c| c.token == op.token);
    let unknown = OtpCheck { token: op.token, timestamp: now, result: CheckResult::UNKNOWN };
    Ok(encode(&OtpResult { result: found.unwrap_or(unknown) }))
}

async fn get_current_time(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    Ok(encode(&OtpTime { time: object.origin().now }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    /// The secret of RFC 6238's examples.
    const SECRET: &[u8] = b"12345678901234567890";

    fn generator() -> OtpInfo {
        OtpInfo {
            id: "g".into(),
            seed: "3132333435363738393031323334353637383930".into(),
            seed_type: SeedType::HEX,
            ..OtpInfo::default()
        }
    }

    fn made() -> TestObject {
        let mut o = TestObject::new();
        o.exec("otp", "otp_set", &OtpEntries { entries: vec![generator()] }).unwrap();
        o
    }

    fn ask(o: &mut TestObject, val: String, token: &'static str) -> CheckResult {
        let op = OtpCheckOp { id: "g".into(), val: val.into(), token: token.into() };
        o.exec("otp", "otp_check", &op).unwrap();
        o.query::<_, OtpResult>("otp", "otp_get_result", &op).unwrap().result.result
    }

    #[test]
    fn passwords_are_those_of_the_rfc() {
        for (secs, expected) in
            [(59, "94287082"), (1111111109, "07081804"), (2000000000, "69279037")]
        {
            assert_eq!(password(SECRET, secs / 30, 8), expected);
        }
    }

    #[test]
    fn seeds_are_hexadecimal_or_base32() {
        assert_eq!(hex(b"00fF"), Some(vec![0, 255]));
        assert_eq!(hex(b"0"), None);
        assert_eq!(hex(b"0g"), None);
        for text in ["GEZDGNBVGY3TQOJQ", "gezd gnbv gy3t qojq"] {
            assert_eq!(base32(text.as_bytes()).as_deref(), Some(&b"1234567890"[..]));
        }
        assert_eq!(base32(b"MZXW6YQ=").as_deref(), Some(&b"foob"[..]));
        assert_eq!(base32(b"MZXW6YQ").as_deref(), Some(&b"foob"[..]));
        assert_eq!(base32(b"MZX"), None);
        assert_eq!(base32(b"M1======"), None);
        let mut o = TestObject::new();
        let bad = OtpInfo { seed: "x".into(), ..generator() };
        let set = o.exec("otp", "otp_set", &OtpEntries { entries: vec![bad] });
        assert_eq!(set, Err(Errno::EINVAL));
    }

    #[test]
    fn a_password_is_good_once_and_in_its_window() {
        let mut o = made();
        let step = 1000 / 30;
        let of = |step| password(SECRET, step, 6);
        assert_eq!(ask(&mut o, of(step), "a"), CheckResult::SUCCESS);
        assert_eq!(ask(&mut o, of(step), "b"), CheckResult::FAIL, "it was used");
        assert_eq!(ask(&mut o, of(step + 3), "c"), CheckResult::FAIL, "outside the window");
        assert_eq!(ask(&mut o, of(step + 2), "d"), CheckResult::SUCCESS);
        assert_eq!(ask(&mut o, "1".into(), "e"), CheckResult::FAIL);
        assert_eq!(ask(&mut o, of(step + 3), "f"), CheckResult::UNKNOWN, "too many attempts");
        o.origin.now = Utime::new(1000 + 31, 0);
        assert_eq!(ask(&mut o, of(step + 3), "g"), CheckResult::SUCCESS);
    }

    #[test]
    fn generators_are_listed_and_removed() {
        let mut o = made();
        let get = |o: &mut TestObject, op: OtpGetOp| -> Vec<OtpInfo> {
            o.query::<_, OtpEntries>("otp", "otp_get", &op).unwrap().entries
        };
        let all = OtpGetOp { get_all: true, ids: vec![] };
        let found = get(&mut o, all.clone());
        assert_eq!((found.len(), &found[0].seed_bin[..]), (1, SECRET));
        assert!(get(&mut o, OtpGetOp { get_all: false, ids: vec!["x".into()] }).is_empty());
        o.exec("otp", "otp_remove", &OtpRemoveOp { ids: vec!["g".into(), "x".into()] }).unwrap();
        assert!(get(&mut o, all).is_empty());
        let op = OtpCheckOp { id: "g".into(), ..OtpCheckOp::default() };
        assert_eq!(o.exec("otp", "otp_check", &op), Err(Errno::ENOENT));
        let time: OtpTime = o.query("otp", "get_current_time", &()).unwrap();
        assert_eq!(time.time, o.origin.now);
    }
}
