//! Quotas: JSON in and out, and parameters.

use crate::params::Params;
use crate::refusal::{Refusal, Result};
use rgw::bucket::QuotaInfo;
use serde_json::{Value, json};

/// The longest document that sets a quota.
pub(crate) const DOCUMENT_BYTES_MAX: usize = 1024;

/// A number of bytes in KiB, rounded up (16.2 `src/rgw/rgw_common.h`, `rgw_rounded_kb`).
pub(crate) fn kib(bytes: i64) -> i64 {
    bytes.saturating_add(1023) / 1024
}

/// A quota as it is shown.
pub(crate) fn show(q: &QuotaInfo) -> Value {
    json!({
        "enabled": q.enabled,
        "check_on_raw": q.check_on_raw,
        "max_size": q.max_size,
        "max_size_kb": kib(q.max_size),
        "max_objects": q.max_objects,
    })
}

/// The document of a request.
pub(crate) fn document(body: &[u8]) -> Result<Value> {
    if body.len() > DOCUMENT_BYTES_MAX {
        return Err(Refusal::RANGE);
    }
    serde_json::from_slice(body).map_err(|e| Refusal::ARGUMENT.because(e.to_string()))
}

/// A quota of a document. As in Ceph, a number that is not there is 0.
pub(crate) fn parse(doc: &Value) -> Result<QuotaInfo> {
    let number = |name: &str| -> Result<Option<i64>> {
        let Some(value) = doc.get(name) else { return Ok(None) };
        let text = value.as_str().and_then(|t| t.parse().ok());
        let wrong = || Refusal::ARGUMENT.because(format!("{name}: a number was expected"));
        value.as_i64().or(text).map(Some).ok_or_else(wrong)
    };
    let flag = |name: &str| match doc.get(name) {
        Some(Value::Bool(on)) => *on,
        Some(Value::String(text)) => text == "true",
        Some(Value::Number(n)) => n.as_i64() != Some(0),
        _ => false,
    };
    let max_size = match number("max_size")? {
        Some(bytes) => bytes,
        None => number("max_size_kb")?.unwrap_or(0).saturating_mul(1024),
    };
    Ok(QuotaInfo {
        max_size,
        max_objects: number("max_objects")?.unwrap_or(0),
        enabled: flag("enabled"),
        check_on_raw: flag("check_on_raw"),
    })
}

/// A quota of parameters; what is not given stays.
pub(crate) fn of_params(p: &Params<'_>, old: &QuotaInfo) -> Result<QuotaInfo> {
    let bytes = p.number("max-size")?.unwrap_or(old.max_size);
    Ok(QuotaInfo {
        max_size: p.number("max-size-kb")?.map_or(bytes, |kib| kib.saturating_mul(1024)),
        max_objects: p.number("max-objects")?.unwrap_or(old.max_objects),
        enabled: p.flag("enabled", old.enabled),
        check_on_raw: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3::uri::Query;

    #[test]
    fn documents_and_parameters() {
        let q = parse(&json!({"max_size_kb": "4", "max_objects": -1, "enabled": true})).unwrap();
        assert_eq!((q.max_size, q.max_objects, q.enabled), (4096, -1, true));
        assert_eq!(parse(&show(&q)), Ok(q));
        assert_eq!(
            parse(&json!({})).unwrap(),
            QuotaInfo { max_size: 0, max_objects: 0, ..q_off() }
        );
        assert!(parse(&json!({"max_objects": "many"})).is_err());
        let query = Query::parse("max-size-kb=1&enabled").unwrap();
        let set = of_params(&Params(&query), &QuotaInfo { max_objects: 7, ..q_off() }).unwrap();
        assert_eq!((set.max_size, set.max_objects, set.enabled), (1024, 7, true));
        assert_eq!((kib(-1), kib(1), kib(1024), kib(1025)), (0, 1, 1, 2));
        assert_eq!(document(&[b' '; DOCUMENT_BYTES_MAX + 1]), Err(Refusal::RANGE));
    }

    fn q_off() -> QuotaInfo {
        QuotaInfo::default()
    }
}
