//! Arithmetic on decimal numbers in omap (Ceph: `cls/numops`).

use crate::context::Object;
use crate::method::{Class, RD_WR, method};
use bytes::Bytes;
use types::errno::Errno;

/// The class.
pub static CLASS: Class =
    Class { name: "numops", methods: &[method!("add", RD_WR, add), method!("mul", RD_WR, mul)] };

/// Significant digits of what is stored.
const DIGITS: usize = 10;

/// A number as `strtod` reads it, if that would read all of the text. Text ends at a NUL, as in C;
/// empty text is 0.
fn parse(text: &[u8]) -> Option<f64> {
    let text = text.split(|b| *b == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(text).ok()?;
    if text.is_empty() {
        return Some(0.0);
    }
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    // A second sign would be read by `parse`.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => parse_hex(hex)?,
        None => digits.parse().ok()?,
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// A hexadecimal number without its prefix: `1.8p3`.
fn parse_hex(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        Some((m, e)) => (m, e.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && part.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for c in whole.chars().chain(part.chars()) {
        value = value * 16.0 + f64::from(c.to_digit(16)?);
    }
    let shift = i32::try_from(part.len()).ok()?.checked_mul(4)?;
    Some(value * 2f64.powi(exponent.checked_sub(shift)?))
}

/// A number as a C++ stream writes it with a precision of [`DIGITS`] (C: `%.10g`).
fn show(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "nan" } else { "inf" };
        return format!("{}{name}", if value.is_sign_negative() { "-" } else { "" });
    }
    let scientific = format!("{value:.*e}", DIGITS - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let short = |digits: &str| match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => digits.to_owned(),
    };
    if (-4..DIGITS as i32).contains(&exponent) {
        let decimals = (DIGITS as i32 - 1 - exponent) as usize;
        return short(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", short(mantissa), exponent.abs())
}

async fn change(
    object: Object<'_>,
    (key, operand): (Bytes, Bytes),
    f: fn(f64, f64) -> f64,
) -> Result<(), Errno> {
    let operand = parse(&operand).ok_or(Errno::EINVAL)?;
    // A value that is absent, or cannot be read, counts as 0.
    let value = match object.map_get_val(&key).await {
        Ok(stored) => parse(&stored).ok_or(Errno::EBADMSG)?,
        Err(_) => 0.0,
    };
    object.map_set_val(&key, show(f(value, operand)).into()).await
}

async fn add(object: Object<'_>, input: (Bytes, Bytes)) -> Result<(), Errno> {
    change(object, input, |a, b| a + b).await
}

async fn mul(object: Object<'_>, input: (Bytes, Bytes)) -> Result<(), Errno> {
    change(object, input, |a, b| a * b).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestObject;

    fn run(o: &mut TestObject, method: &str, operand: &'static str) -> Result<Bytes, Errno> {
        o.exec(
            "numops",
            method,
            &(Bytes::from_static(b"k"), Bytes::from_static(operand.as_bytes())),
        )?;
        Ok(o.stored.omap[&b"k"[..]].clone())
    }

    #[test]
    fn adds_and_multiplies() {
        let mut o = TestObject::new();
        assert_eq!(run(&mut o, "add", "10").unwrap(), "10");
        assert_eq!(run(&mut o, "add", "-0.5").unwrap(), "9.5");
        assert_eq!(run(&mut o, "mul", "2").unwrap(), "19");
        assert_eq!(run(&mut o, "mul", "1e10").unwrap(), "1.9e+11");
        assert_eq!(run(&mut o, "mul", "").unwrap(), "0");
        assert_eq!(run(&mut o, "add", "ten"), Err(Errno::EINVAL));
        o.stored.omap.insert("k".into(), "1x".into());
        assert_eq!(run(&mut o, "add", "1"), Err(Errno::EBADMSG));
        assert_eq!(o.call("numops", "add", "").unwrap_err(), Errno::EINVAL);
        let mut o = TestObject::new();
        assert_eq!(run(&mut o, "mul", "7").unwrap(), "0");
    }

    #[test]
    fn numbers_are_read_as_c_does() {
        for (text, value) in [
            (" 1", 1.0),
            ("+2.", 2.0),
            (".5", 0.5),
            ("0x10", 16.0),
            ("-0x1.8p1", -3.0),
            ("1\0junk", 1.0),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(value), "{text:?}");
        }
        for text in ["1 ", " ", "--1", "+-1", "1e", "0x", "abc", "\u{fc}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert!(parse(b"inf").unwrap().is_infinite() && parse(b"nan").unwrap().is_nan());
    }

    #[test]
    fn numbers_are_written_as_c_does() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (100.0, "100"),
            (1234567890.0, "1234567890"),
            (12345678901.0, "1.23456789e+10"),
            (0.1 + 0.2, "0.3"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (9999999999.9, "1e+10"),
            (2.5e-100, "2.5e-100"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(show(value), text);
        }
    }
}
