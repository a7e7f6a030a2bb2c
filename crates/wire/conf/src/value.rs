//! Values and their notation (Ceph 16.2: `src/common/options.cc`, `src/common/strtol.cc`).

use std::fmt;

/// The type of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned number; decimal suffixes (`K` = 1000) as Ceph accepts them.
    Uint,
    /// Signed number.
    Int,
    /// Free text, or one of the allowed words.
    Str,
    /// Floating point.
    Float,
    /// `true`/`false`, `1`/`0` and, in files, `yes`/`no`, `on`/`off`.
    Bool,
    /// A network address.
    Addr,
    /// A list of network addresses.
    Addrvec,
    /// A UUID.
    Uuid,
    /// Bytes; binary suffixes (`K` = 1024), optionally followed by `B` or `iB`.
    Size,
    /// Seconds, or a span such as `5m`, `2 hours`.
    Secs,
    /// Milliseconds.
    Millisecs,
}

impl Kind {
    /// Ceph's name of the type in `config help`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Uint => "uint",
            Kind::Int => "int",
            Kind::Str => "str",
            Kind::Float => "float",
            Kind::Bool => "bool",
            Kind::Addr => "addr",
            Kind::Addrvec => "addrvec",
            Kind::Uuid => "uuid",
            Kind::Size => "size",
            Kind::Secs => "secs",
            Kind::Millisecs => "millisecs",
        }
    }

    /// The type with that name.
    pub fn by_name(name: &str) -> Option<Kind> {
        use Kind::*;
        [Uint, Int, Str, Float, Bool, Addr, Addrvec, Uuid, Size, Secs, Millisecs]
            .into_iter()
            .find(|k| k.name() == name)
    }
}

/// A typed value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Uint`], [`Kind::Size`], [`Kind::Secs`] (seconds) and [`Kind::Millisecs`].
    Uint(u64),
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of [`Kind::Float`].
    Float(f64),
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of all others.
    Str(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Uint(v) => write!(f, "{v}"),
            Value::Int(v) => write!(f, "{v}"),
            Value::Float(v) => write!(f, "{v:.6}"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::Str(v) => f.write_str(v),
        }
    }
}

/// Reads `text` as a value of `kind`. The error says what was expected.
pub fn parse(kind: Kind, text: &str) -> Result<Value, String> {
    let t = text.trim();
    match kind {
        Kind::Uint => scaled(t, 1000).map(Value::Uint),
        Kind::Size => scaled(t, 1024).map(Value::Uint),
        Kind::Int => match t.strip_prefix('-') {
            Some(rest) => scaled(rest, 1000)
                .and_then(|v| i64::try_from(v).map_err(|_| too_large(t)))
                .map(|v| Value::Int(-v)),
            None => scaled(t, 1000)
                .and_then(|v| i64::try_from(v).map_err(|_| too_large(t)))
                .map(Value::Int),
        },
        Kind::Float => match t.parse::<f64>() {
            Ok(v) if v.is_finite() => Ok(Value::Float(v)),
            _ => Err("expected a number such as 0.85".into()),
        },
        Kind::Bool => match t.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(Value::Bool(true)),
            "false" | "no" | "off" | "0" => Ok(Value::Bool(false)),
            // Any other number than zero is true, as for Ceph.
            number => number
                .parse::<i64>()
                .map(|n| Value::Bool(n != 0))
                .map_err(|_| "expected true or false".into()),
        },
        Kind::Secs => span(t).map(Value::Uint),
        Kind::Millisecs => scaled(t, 1000).map(Value::Uint),
        Kind::Uuid => {
            let hex = t.bytes().filter(|b| *b != b'-').all(|b| b.is_ascii_hexdigit());
            let shape = t.len() == 36 && [8, 13, 18, 23].iter().all(|&i| t.as_bytes()[i] == b'-');
            if hex && shape {
                Ok(Value::Str(t.to_ascii_lowercase()))
            } else {
                Err("expected a UUID".into())
            }
        }
        Kind::Str | Kind::Addr | Kind::Addrvec => Ok(Value::Str(text.to_string())),
    }
}

fn too_large(t: &str) -> String {
    format!("{t} is too large")
}

/// A number with a suffix of powers of `base`.
fn scaled(t: &str, base: u64) -> Result<u64, String> {
    if let Some(hex) = t.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map_err(|_| format!("expected a number, found {t:?}"));
    }
    let digits = t.bytes().take_while(u8::is_ascii_digit).count();
    let (number, suffix) = t.split_at(digits);
    let number: u64 = number.parse().map_err(|_| {
        if digits == 0 { format!("expected a number, found {t:?}") } else { too_large(t) }
    })?;
    let suffix = suffix.trim();
    let (unit, base) = match suffix.strip_suffix("iB").or(suffix.strip_suffix('i')) {
        Some(u) if !u.is_empty() => (u, 1024),
        _ => (suffix.strip_suffix('B').unwrap_or(suffix), base),
    };
    let power = match unit {
        "" => 0,
        "K" | "k" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return Err(format!("unit prefix not recognized: '{suffix}'")),
    };
    base.checked_pow(power).and_then(|f| number.checked_mul(f)).ok_or_else(|| too_large(t))
}

/// A span of time in whole seconds: `90`, `5m`, `1h30m`, `2 days`.
fn span(t: &str) -> Result<u64, String> {
    if let Ok(v) = t.parse::<u64>() {
        return Ok(v);
    }
    if let Ok(v) = t.parse::<f64>()
        && (0.0..1e15).contains(&v)
    {
        return Ok(v as u64);
    }
    let err = || format!("expected seconds or a span such as 5m or 2h, found {t:?}");
    let mut rest = t;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| err())?;
        rest = rest[digits..].trim_start();
        let letters = rest.bytes().take_while(u8::is_ascii_alphabetic).count();
        let unit = match &rest[..letters] {
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600,
            "d" | "day" | "days" => 86400,
            "w" | "wk" | "week" | "weeks" => 7 * 86400,
            "mo" | "month" | "months" => 30 * 86400,
            "y" | "yr" | "year" | "years" => 365 * 86400,
            _ => return Err(err()),
        };
        total = number
            .checked_mul(unit)
            .and_then(|v| total.checked_add(v))
            .ok_or_else(|| too_large(t))?;
        rest = rest[letters..].trim_start();
    }
    if t.is_empty() { Err(err()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notation() {
        assert_eq!(parse(Kind::Size, "4K"), Ok(Value::Uint(4096)));
        assert_eq!(parse(Kind::Size, "4KiB"), Ok(Value::Uint(4096)));
        assert_eq!(parse(Kind::Size, "90M"), Ok(Value::Uint(90 << 20)));
        assert_eq!(parse(Kind::Uint, "4K"), Ok(Value::Uint(4000)));
        assert_eq!(parse(Kind::Uint, "4Ki"), Ok(Value::Uint(4096)));
        assert_eq!(parse(Kind::Int, "-5"), Ok(Value::Int(-5)));
        assert_eq!(parse(Kind::Secs, "1h30m"), Ok(Value::Uint(5400)));
        assert_eq!(parse(Kind::Secs, "2 days"), Ok(Value::Uint(172800)));
        assert_eq!(parse(Kind::Bool, "Yes"), Ok(Value::Bool(true)));
        assert!(parse(Kind::Bool, "maybe").is_err());
        assert!(parse(Kind::Uint, "-1").is_err());
        assert!(parse(Kind::Uint, "99999999999999999999").is_err());
        assert!(parse(Kind::Size, "99999999999G").is_err());
        assert!(parse(Kind::Size, "4Q").is_err());
        assert!(parse(Kind::Float, "nan").is_err());
        assert!(parse(Kind::Uuid, "nonsense").is_err());
        assert!(parse(Kind::Secs, "").is_err());
    }
}
