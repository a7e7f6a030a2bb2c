//! Calls on the objects that hold data.

use crate::context::Object;
use crate::method::encode;
use ::rgw::object::{MtimeCheck, ObjCheckAttrsPrefix, ObjCheckMtime, ObjRemoveOp, ObjStorePgVerOp};
use bytes::Bytes;
use std::collections::BTreeMap;
use types::Utime;
use types::errno::Errno;

/// The attributes; none if there is no object.
async fn attributes(object: Object<'_>) -> Result<BTreeMap<Bytes, Bytes>, Errno> {
    match object.getxattrs().await {
        Err(Errno::ENOENT) => Ok(BTreeMap::new()),
        other => other,
    }
}

/// Removes the object, and makes an empty one of attributes that are to be kept.
pub(super) async fn remove(object: Object<'_>, op: ObjRemoveOp) -> Result<(), Errno> {
    if op.keep_attr_prefixes.is_empty() {
        return object.remove().await;
    }
    let mut kept = attributes(object).await?;
    kept.retain(|name, _| op.keep_attr_prefixes.iter().any(|p| name.starts_with(p)));
    object.remove().await?;
    if kept.is_empty() {
        return Ok(());
    }
    object.create(false).await?;
    for (name, value) in kept {
        object.setxattr(&name, value).await?;
    }
    Ok(())
}

/// Stores the group's user version: with the object's own it tells which of two writes was the
/// later.
pub(super) async fn store_pg_ver(object: Object<'_>, op: ObjStorePgVerOp) -> Result<(), Errno> {
    let version = object.origin().last_user_version;
    object.setxattr(&op.attr, encode(&version)).await
}

/// ECANCELED if there are such attributes and should not be, or the other way round.
pub(super) async fn check_attrs_prefix(
    object: Object<'_>,
    op: ObjCheckAttrsPrefix,
) -> Result<(), Errno> {
    if op.check_prefix.is_empty() {
        return Err(Errno::EINVAL);
    }
    let exist = attributes(object).await?.keys().any(|name| name.starts_with(&op.check_prefix));
    if exist == op.fail_if_exist { Err(Errno::ECANCELED) } else { Ok(()) }
}

/// ECANCELED if the modification time is not as it should be. An object that does not exist has the
/// earliest time.
pub(super) async fn check_mtime(object: Object<'_>, op: ObjCheckMtime) -> Result<(), Errno> {
    let mtime = match object.stat().await {
        Ok((_, mtime)) => mtime,
        Err(Errno::ENOENT) => Utime::ZERO,
        Err(e) => return Err(e),
    };
    let precise = |t: Utime| (t.sec, if op.high_precision_time { t.nsec } else { 0 });
    let (found, given) = (precise(mtime), precise(op.mtime));
    let holds = match op.check {
        MtimeCheck::EQ => found == given,
        MtimeCheck::LT => found < given,
        MtimeCheck::LE => found <= given,
        MtimeCheck::GT => found > given,
        MtimeCheck::GE => found >= given,
        _ => return Err(Errno::EINVAL),
    };
    if holds { Ok(()) } else { Err(Errno::ECANCELED) }
}
