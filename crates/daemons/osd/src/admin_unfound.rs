//! Commands about objects that a placement group lacks (Ceph: `PrimaryLogPG::do_command`).

use crate::core::Core;
use crate::shard::Question;
use crate::shard_admin::{primary, reply};
use command::{Args, Refusal, Reply};
use pg::{GiveUp, Lacking, LostRefused, Pg};
use serde_json::{Map, Value, json};
use std::ops::Bound;
use std::rc::Rc;
use types::{Errno, ObjectId, PgShard, PoolId, SnapId};

/// Objects in one answer (`osd_command_max_records`).
const RECORDS_MAX: usize = 256;

/// An object's name as Ceph shows it (`hobject_t::dump`).
fn name(oid: &ObjectId) -> Value {
    json!({
        "oid": String::from_utf8_lossy(&oid.name),
        "key": String::from_utf8_lossy(&oid.key),
        // Ceph shows the head's number with a sign.
        "snapid": oid.snap.0 as i64,
        "hash": oid.hash,
        "max": i32::from(oid.is_max()),
        "pool": oid.pool.0,
        "namespace": String::from_utf8_lossy(&oid.namespace),
    })
}

/// Such a name, read (`hobject_t::decode`). What is absent is as in the smallest object.
fn parse_name(text: &str) -> Result<ObjectId, Refusal> {
    let bad = |what: &str| Refusal::invalid(format!("error parsing offset: {what}"));
    let value: Value = serde_json::from_str(text).map_err(|_| bad("bad json"))?;
    let fields: &Map<String, Value> = value.as_object().ok_or_else(|| bad("bad json"))?;
    let text = |key: &str| match fields.get(key) {
        None => Ok(bytes::Bytes::new()),
        Some(Value::String(s)) => Ok(bytes::Bytes::copy_from_slice(s.as_bytes())),
        Some(_) => Err(bad(key)),
    };
    let number = |key: &str, absent: i64| match fields.get(key) {
        None => Ok(absent),
        Some(v) => v.as_i64().or_else(|| v.as_u64().map(|n| n as i64)).ok_or_else(|| bad(key)),
    };
    if number("max", 0)? != 0 {
        return Ok(ObjectId::MAX);
    }
    if fields.is_empty() {
        return Ok(ObjectId::MIN);
    }
    let hash = u32::try_from(number("hash", 0)?).map_err(|_| bad("hash"))?;
    let snap = SnapId(number("snapid", 0)? as u64);
    Ok(ObjectId::with_hash(
        PoolId(number("pool", 0)?),
        text("namespace")?,
        text("oid")?,
        text("key")?,
        snap,
        hash,
    ))
}

/// OSDs that may have what is unfound, with what is known of them.
pub(crate) fn might_have_unfound(pg: &Pg, probed: bool) -> Value {
    let shown = pg.unfound_holders().into_iter().filter(|h| probed || h.status != "already probed");
    shown.map(|h| json!({"osd": h.shard.to_string(), "status": h.status})).collect()
}

fn object((oid, l): (&ObjectId, &Lacking)) -> Value {
    json!({
        "oid": name(oid),
        "need": l.item.need.to_string(),
        "have": l.item.have.to_string(),
        "flags": "none",
        "locations": l.locations.iter().map(PgShard::to_string).collect::<Vec<_>>(),
    })
}

/// `list_unfound`; with `all`, also what has only to be copied (`list_missing`).
fn list(core: &Core, args: &Args, all: bool) -> Result<Reply, Refusal> {
    let host = primary(core, args)?;
    let offset = args.str("offset").map(parse_name).transpose()?;
    let value = host.with_pg(|pg| {
        let lacking = pg.lacking();
        let unfound = lacking.values().filter(|l| l.unfound).count();
        let first = offset.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = lacking
            .range::<ObjectId, _>((first, Bound::Unbounded))
            .filter(|(_, l)| all || l.unfound);
        let objects: Vec<Value> =
            rest.by_ref().take(RECORDS_MAX).map(|(oid, l)| object((oid, l))).collect();
        let more = rest.next().is_some();
        let mut value =
            json!({"num_missing": lacking.len(), "num_unfound": unfound, "objects": objects});
        if let Some(offset) = &offset {
            value["offset"] = name(offset);
        }
        let active = pg.phase_name().starts_with("Started/Primary/Active");
        value["state"] =
            if active { "Active" } else { pg.phase_name().rsplit('/').next().unwrap_or_default() }
                .into();
        value["available_might_have_unfound"] = active.into();
        if active {
            value["might_have_unfound"] = might_have_unfound(pg, false);
        }
        value["more"] = more.into();
        value
    });
    reply(args, value)
}

pub(crate) fn list_unfound(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    list(core, args, false)
}

pub(crate) fn list_missing(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    list(core, args, true)
}

/// Gives up unfound objects.
pub(crate) struct MarkUnfoundLost(pub(crate) Args);

impl Question for MarkUnfoundLost {
    type Answer = Result<Reply, Refusal>;

    async fn answer(self, core: &Rc<Core>) -> Self::Answer {
        mark_unfound_lost(core, &self.0).await
    }
}

/// `mark_unfound_lost revert|delete`: answers when it is durable on every acting OSD.
async fn mark_unfound_lost(core: &Core, args: &Args) -> Result<Reply, Refusal> {
    let host = primary(core, args)?;
    let how = match args.req("mulcmd") {
        "revert" => GiveUp::Revert,
        "delete" => GiveUp::Delete,
        _ => {
            return Err(Refusal::invalid(
                "mode must be 'revert' or 'delete'; mark not yet implemented",
            ));
        }
    };
    let (count, done) = match host.mark_unfound_lost(how) {
        Ok(begun) => begun,
        // So that the command can be given twice.
        Err(e @ LostRefused::NothingUnfound) => return Ok(Reply::status(e.to_string())),
        Err(e @ LostRefused::NotPrimary) => return Err(Refusal::new(Errno::EROFS, e.to_string())),
        Err(e @ (LostRefused::NotAllAsked(_) | LostRefused::OnlyDelete)) => {
            return Err(Refusal::invalid(e.to_string()));
        }
    };
    if done.await.is_err() {
        return Err(Refusal::new(
            Errno::EAGAIN,
            format!("pg {} began to peer before all had it; ask again", host.pgid),
        ));
    }
    Ok(Reply::status(format!("pg has {count} objects unfound and apparently lost marking")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_shown() {
        let oid = ObjectId::with_hash(
            PoolId(3),
            bytes::Bytes::from_static(b"ns"),
            bytes::Bytes::from_static(b"n"),
            bytes::Bytes::new(),
            SnapId::NOSNAP,
            0xdead_beef,
        );
        let shown = name(&oid);
        assert_eq!((&shown["oid"], &shown["snapid"]), (&json!("n"), &json!(-2)));
        assert_eq!(parse_name(&shown.to_string()).unwrap(), oid);
        assert_eq!(parse_name("{}").unwrap(), ObjectId::MIN);
        for bad in ["", "[]", r#"{"oid": 5}"#, r#"{"hash": -1}"#, r#"{"snapid": "x"}"#] {
            assert!(parse_name(bad).is_err(), "{bad}");
        }
    }
}
