//! Advisory locks on objects (Ceph: `cls/lock`).
//!
//! A lock is an attribute `lock.NAME` that lists its holders. A holder is a client and a cookie; it
//! may hold the lock until some time only. Breaking another client's lock changes only this list:
//! before that, the monitors should have its holder on the blocklist.

use crate::context::Object;
use crate::method::{Class, Ignored, RD, RD_WR, decode, encode, method};
use bytes::Bytes;
use denc::Encode;
use denc_derive::Denc;
use std::collections::BTreeMap;
use types::errno::Errno;
use types::{AddrType, EntityAddr, EntityName, Utime};

/// The class.
pub static CLASS: Class = Class {
    name: "lock",
    methods: &[
        method!("lock", RD_WR.promote(), lock),
        method!("unlock", RD_WR.promote(), unlock),
        method!("break_lock", RD_WR, break_lock),
        method!("get_info", RD, get_info),
        method!("list_locks", RD, list_locks),
        method!("assert_locked", RD.promote(), assert_locked),
        method!("set_cookie", RD_WR.promote(), set_cookie),
    ],
};

const PREFIX: &[u8] = b"lock.";

/// How a lock is held (Ceph: `ClsLockType`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Denc)]
pub struct LockType(pub u8);

impl LockType {
    /// It has no holder.
    pub const NONE: LockType = LockType(0);
    /// By one.
    pub const EXCLUSIVE: LockType = LockType(1);
    /// By any number.
    pub const SHARED: LockType = LockType(2);
    /// By one; the object goes with the lock.
    pub const EXCLUSIVE_EPHEMERAL: LockType = LockType(3);

    fn is_valid(self) -> bool {
        (Self::EXCLUSIVE.0..=Self::EXCLUSIVE_EPHEMERAL.0).contains(&self.0)
    }

    fn is_exclusive(self) -> bool {
        self == Self::EXCLUSIVE || self == Self::EXCLUSIVE_EPHEMERAL
    }
}

/// The caller may hold the lock already, and holds it anew.
pub const FLAG_MAY_RENEW: u8 = 1;
/// The caller must hold the lock already.
pub const FLAG_MUST_RENEW: u8 = 2;

/// A holder (Ceph: `locker_id_t`, `cls/lock/cls_lock_types.h`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LockerId {
    /// The client.
    pub locker: EntityName,
    /// What the client calls this holding.
    pub cookie: Bytes,
}

/// What is known of a holder (Ceph: `locker_info_t`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LockerInfo {
    /// When it stops to hold the lock; zero for never.
    pub expiration: Utime,
    /// Its address, of type legacy whatever it speaks: the type does not tell clients apart.
    pub addr: EntityAddr,
    /// What it says of itself.
    pub description: Bytes,
}

/// A lock, and the answer of `get_info` (Ceph: `lock_info_t` and `cls_lock_get_info_reply`, version
/// 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LockInfo {
    /// Its holders.
    pub lockers: BTreeMap<LockerId, LockerInfo>,
    /// How they hold it.
    pub lock_type: LockType,
    /// While it is held, others join only with the same tag.
    pub tag: Bytes,
}

/// Input of `lock` (Ceph: `cls_lock_lock_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct LockOp {
    /// The lock.
    pub name: Bytes,
    /// How to hold it.
    pub lock_type: LockType,
    /// What to call the holding.
    pub cookie: Bytes,
    /// See [`LockInfo::tag`].
    pub tag: Bytes,
    /// What the client says of itself.
    pub description: Bytes,
    /// For how long; zero for ever.
    pub duration: Utime,
    /// [`FLAG_MAY_RENEW`] or [`FLAG_MUST_RENEW`].
    pub flags: u8,
}

/// Input of `unlock` (Ceph: `cls_lock_unlock_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct UnlockOp {
    /// The lock.
    pub name: Bytes,
    /// The holding.
    pub cookie: Bytes,
}

/// Input of `break_lock` (Ceph: `cls_lock_break_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct BreakOp {
    /// The lock.
    pub name: Bytes,
    /// Its holder.
    pub locker: EntityName,
    /// The holding.
    pub cookie: Bytes,
}

/// Input of `get_info` (Ceph: `cls_lock_get_info_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct GetInfoOp {
    /// The lock.
    pub name: Bytes,
}

/// Output of `list_locks` (Ceph: `cls_lock_list_locks_reply`, version 1).
#[derive(Clone, Debug, Default, PartialEq, Eq, Denc)]
#[denc(version = 1, compat = 1)]
pub struct ListLocksReply {
    /// Names of locks, held or not.
    pub locks: Vec<Bytes>,
}

/// Input of `assert_locked` (Ceph: `cls_lock_assert_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct AssertOp {
    /// The lock.
    pub name: Bytes,
    /// How it must be held.
    pub lock_type: LockType,
    /// The holding.
    pub cookie: Bytes,
    /// The lock's tag.
    pub tag: Bytes,
}

/// Input of `set_cookie` (Ceph: `cls_lock_set_cookie_op`, version 1).
#[derive(Clone, Debug, Default, Denc)]
#[denc(version = 1, compat = 1)]
pub struct SetCookieOp {
    /// The lock.
    pub name: Bytes,
    /// How it must be held.
    pub lock_type: LockType,
    /// The holding.
    pub cookie: Bytes,
    /// The lock's tag.
    pub tag: Bytes,
    /// What the holding is called from now on.
    pub new_cookie: Bytes,
}

fn attr(name: &[u8]) -> Vec<u8> {
    [PREFIX, name].concat()
}

/// Reads a lock without holders that are out of time. ENOENT if there is no object.
async fn load(object: Object<'_>, name: &[u8]) -> Result<LockInfo, Errno> {
    let stored = match object.getxattr(&attr(name)).await {
        Err(Errno::ENODATA) => return Ok(LockInfo::default()),
        other => other?,
    };
    let mut lock: LockInfo = decode(stored, Errno::EIO)?;
    let now = object.origin().now;
    lock.lockers.retain(|_, l| l.expiration.is_zero() || l.expiration >= now);
    if lock.lockers.is_empty() && lock.lock_type == LockType::EXCLUSIVE_EPHEMERAL {
        // The last holder did not unlock; the object goes now. That it cannot be removed is no
        // reason to refuse the next holder.
        if let Err(e) = object.remove().await {
            tracing::warn!("cannot remove the object of a lock that expired: {e}");
        }
    }
    Ok(lock)
}

async fn store(object: Object<'_>, name: &[u8], lock: &LockInfo) -> Result<(), Errno> {
    let value = lock.to_bytes(object.origin().features);
    object.setxattr(&attr(name), value).await
}

/// The caller's holding of this name.
fn own(object: Object<'_>, cookie: Bytes) -> LockerId {
    LockerId { locker: object.origin().entity, cookie }
}

async fn lock(object: Object<'_>, op: LockOp) -> Result<(), Errno> {
    let (may, must) = (op.flags & FLAG_MAY_RENEW != 0, op.flags & FLAG_MUST_RENEW != 0);
    // The two flags contradict each other about a lock that is not held.
    if !op.lock_type.is_valid() || op.name.is_empty() || (may && must) {
        return Err(Errno::EINVAL);
    }
    let mut lock = match load(object, &op.name).await {
        Err(Errno::ENOENT) => LockInfo::default(),
        other => other?,
    };
    if !lock.lockers.is_empty() && lock.tag != op.tag {
        return Err(Errno::EBUSY);
    }
    let id = own(object, op.cookie);
    match lock.lockers.remove(&id) {
        Some(_) if !may && !must => return Err(Errno::EEXIST),
        None if must => return Err(Errno::ENOENT),
        _ => {}
    }
    if !lock.lockers.is_empty() && (op.lock_type.is_exclusive() || lock.lock_type != op.lock_type) {
        return Err(Errno::EBUSY);
    }
    lock.lock_type = op.lock_type;
    lock.tag = op.tag;
    let origin = object.origin();
    let expiration =
        if op.duration.is_zero() { Utime::ZERO } else { origin.now + op.duration.as_duration() };
    let addr = EntityAddr { kind: AddrType::LEGACY, ..origin.addr };
    lock.lockers.insert(id, LockerInfo { expiration, addr, description: op.description });
    store(object, &op.name, &lock).await
}

async fn release(object: Object<'_>, name: Bytes, id: LockerId) -> Result<(), Errno> {
    let mut lock = load(object, &name).await?;
    lock.lockers.remove(&id).ok_or(Errno::ENOENT)?;
    if lock.lock_type == LockType::EXCLUSIVE_EPHEMERAL {
        return object.remove().await;
    }
    store(object, &name, &lock).await
}

async fn unlock(object: Object<'_>, op: UnlockOp) -> Result<(), Errno> {
    let id = own(object, op.cookie);
    release(object, op.name, id).await
}

async fn break_lock(object: Object<'_>, op: BreakOp) -> Result<(), Errno> {
    release(object, op.name, LockerId { locker: op.locker, cookie: op.cookie }).await
}

async fn get_info(object: Object<'_>, op: GetInfoOp) -> Result<Bytes, Errno> {
    let lock = load(object, &op.name).await?;
    Ok(lock.to_bytes(object.origin().features))
}

async fn list_locks(object: Object<'_>, _: Ignored) -> Result<Bytes, Errno> {
    let attrs = object.getxattrs().await?;
    let locks = attrs
        .into_keys()
        .filter(|a| a.starts_with(PREFIX))
        .map(|a| a.slice(PREFIX.len()..))
        .collect();
    Ok(encode(&ListLocksReply { locks }))
}

/// The lock, if the caller holds it in just this way; EBUSY if not.
async fn held(
    object: Object<'_>,
    name: &[u8],
    lock_type: LockType,
    tag: &[u8],
    id: &LockerId,
) -> Result<LockInfo, Errno> {
    if !lock_type.is_valid() || name.is_empty() {
        return Err(Errno::EINVAL);
    }
    let lock = load(object, name).await?;
    if lock.lock_type != lock_type || lock.tag != tag || !lock.lockers.contains_key(id) {
        return Err(Errno::EBUSY);
    }
    Ok(lock)
}

async fn assert_locked(object: Object<'_>, op: AssertOp) -> Result<(), Errno> {
    let id = own(object, op.cookie);
    held(object, &op.name, op.lock_type, &op.tag, &id).await.map(drop)
}

async fn set_cookie(object: Object<'_>, op: SetCookieOp) -> Result<(), Errno> {
    let id = own(object, op.cookie);
    let mut lock = held(object, &op.name, op.lock_type, &op.tag, &id).await?;
    let renamed = own(object, op.new_cookie);
    if lock.lockers.contains_key(&renamed) {
        return Err(Errno::EBUSY);
    }
    if let Some(info) = lock.lockers.remove(&id) {
        lock.lockers.insert(renamed, info);
    }
    store(object, &op.name, &lock).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestObject, address, client};

    fn b(s: &'static str) -> Bytes {
        Bytes::from_static(s.as_bytes())
    }

    fn op(lock_type: LockType, cookie: &'static str) -> LockOp {
        LockOp { name: b("l"), lock_type, cookie: b(cookie), ..LockOp::default() }
    }

    fn take(o: &mut TestObject, n: i64, op: &LockOp) -> Result<(), Errno> {
        o.as_client(n).exec("lock", "lock", op).map(drop)
    }

    fn info(o: &mut TestObject) -> LockInfo {
        o.query("lock", "get_info", &GetInfoOp { name: b("l") }).unwrap()
    }

    fn release(o: &mut TestObject, n: i64, cookie: &'static str) -> Result<(), Errno> {
        o.as_client(n)
            .exec("lock", "unlock", &UnlockOp { name: b("l"), cookie: b(cookie) })
            .map(drop)
    }

    #[test]
    fn an_exclusive_lock_has_one_holder() {
        let mut o = TestObject::new();
        let x = op(LockType::EXCLUSIVE, "c");
        take(&mut o, 1, &x).unwrap();
        assert_eq!(take(&mut o, 1, &x), Err(Errno::EEXIST));
        assert_eq!(take(&mut o, 2, &x), Err(Errno::EBUSY));
        assert_eq!(take(&mut o, 1, &op(LockType::EXCLUSIVE, "other")), Err(Errno::EBUSY));
        let i = info(&mut o);
        let (id, locker) = i.lockers.first_key_value().unwrap();
        assert_eq!(id, &LockerId { locker: client(1), cookie: b("c") });
        assert_eq!(locker.addr, EntityAddr { kind: AddrType::LEGACY, ..address(1) });
        assert_eq!(i.lock_type, LockType::EXCLUSIVE);
        assert_eq!(release(&mut o, 2, "c"), Err(Errno::ENOENT));
        assert_eq!(release(&mut o, 1, "d"), Err(Errno::ENOENT));
        release(&mut o, 1, "c").unwrap();
        assert!(info(&mut o).lockers.is_empty());
        take(&mut o, 2, &x).unwrap();
    }

    #[test]
    fn shared_locks_are_shared_with_the_same_tag() {
        let mut o = TestObject::new();
        let shared = LockOp { tag: b("t"), ..op(LockType::SHARED, "c") };
        take(&mut o, 1, &shared).unwrap();
        take(&mut o, 2, &shared).unwrap();
        assert_eq!(take(&mut o, 3, &LockOp { tag: b("u"), ..shared.clone() }), Err(Errno::EBUSY));
        assert_eq!(
            take(&mut o, 3, &LockOp { tag: b("t"), ..op(LockType::EXCLUSIVE, "c") }),
            Err(Errno::EBUSY)
        );
        assert_eq!(info(&mut o).lockers.len(), 2);
        // A sole holder may change the type while renewing.
        release(&mut o, 2, "c").unwrap();
        let upgrade = LockOp { tag: b("t"), flags: FLAG_MAY_RENEW, ..op(LockType::EXCLUSIVE, "c") };
        take(&mut o, 1, &upgrade).unwrap();
        assert_eq!(info(&mut o).lock_type, LockType::EXCLUSIVE);
    }

    #[test]
    fn renewing() {
        let mut o = TestObject::new();
        let with = |flags| LockOp { flags, ..op(LockType::EXCLUSIVE, "c") };
        assert_eq!(take(&mut o, 1, &with(FLAG_MAY_RENEW | FLAG_MUST_RENEW)), Err(Errno::EINVAL));
        assert_eq!(take(&mut o, 1, &with(FLAG_MUST_RENEW)), Err(Errno::ENOENT));
        take(&mut o, 1, &with(FLAG_MAY_RENEW)).unwrap();
        take(&mut o, 1, &with(FLAG_MAY_RENEW)).unwrap();
        take(&mut o, 1, &with(FLAG_MUST_RENEW)).unwrap();
        assert_eq!(take(&mut o, 2, &with(FLAG_MAY_RENEW)), Err(Errno::EBUSY));
    }

    #[test]
    fn a_lock_expires() {
        let mut o = TestObject::new();
        let brief = LockOp { duration: Utime::new(5, 0), ..op(LockType::EXCLUSIVE, "c") };
        take(&mut o, 1, &brief).unwrap();
        o.origin.now = Utime::new(1005, 0);
        assert_eq!(
            info(&mut o).lockers.first_key_value().unwrap().1.expiration,
            Utime::new(1005, 0)
        );
        assert_eq!(take(&mut o, 2, &brief), Err(Errno::EBUSY));
        o.origin.now = Utime::new(1005, 1);
        assert!(info(&mut o).lockers.is_empty());
        take(&mut o, 2, &brief).unwrap();
    }

    #[test]
    fn an_ephemeral_lock_takes_its_object_along() {
        let mut o = TestObject::new();
        let x = op(LockType::EXCLUSIVE_EPHEMERAL, "c");
        take(&mut o, 1, &x).unwrap();
        assert!(o.stored.exists);
        release(&mut o, 1, "c").unwrap();
        assert!(!o.stored.exists);
        // One that expired goes at the first look by a client that may write.
        take(&mut o, 1, &LockOp { duration: Utime::new(1, 0), ..x.clone() }).unwrap();
        o.stored.data = b"x".to_vec();
        o.origin.now = Utime::new(2000, 0);
        assert_eq!(o.exec("lock", "get_info", &GetInfoOp { name: b("l") }), Err(Errno::EIO));
        take(&mut o, 2, &x).unwrap();
        assert!(o.stored.data.is_empty());
    }

    #[test]
    fn breaking_names_the_holder() {
        let mut o = TestObject::new();
        let gone = |o: &mut TestObject, n, cookie| {
            let op = BreakOp { name: b("l"), locker: client(n), cookie: b(cookie) };
            o.as_client(9).exec("lock", "break_lock", &op).map(drop)
        };
        assert_eq!(gone(&mut o, 1, "c"), Err(Errno::ENOENT));
        take(&mut o, 1, &op(LockType::EXCLUSIVE, "c")).unwrap();
        assert_eq!(gone(&mut o, 2, "c"), Err(Errno::ENOENT));
        gone(&mut o, 1, "c").unwrap();
        assert!(info(&mut o).lockers.is_empty());
    }

    #[test]
    fn locks_are_listed() {
        let mut o = TestObject::new();
        for name in ["a", "b"] {
            take(&mut o, 1, &LockOp { name: b(name), ..op(LockType::SHARED, "c") }).unwrap();
        }
        o.stored.xattrs.insert(b("lockless"), b(""));
        let listed: ListLocksReply = o.query("lock", "list_locks", &()).unwrap();
        assert_eq!(listed.locks, ["a", "b"]);
        assert_eq!(
            take(&mut o, 1, &LockOp { name: b(""), ..op(LockType::SHARED, "c") }),
            Err(Errno::EINVAL)
        );
        assert_eq!(take(&mut o, 1, &op(LockType(4), "c")), Err(Errno::EINVAL));
        assert_eq!(o.call("lock", "lock", "short").unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn asserting_and_renaming() {
        let mut o = TestObject::new();
        let tag = b("t");
        take(&mut o, 1, &LockOp { tag: tag.clone(), ..op(LockType::EXCLUSIVE, "c") }).unwrap();
        let assert = AssertOp {
            name: b("l"),
            lock_type: LockType::EXCLUSIVE,
            cookie: b("c"),
            tag: tag.clone(),
        };
        let check = |o: &mut TestObject, n, op: &AssertOp| {
            o.as_client(n).exec("lock", "assert_locked", op).map(drop)
        };
        check(&mut o, 1, &assert).unwrap();
        for (n, wrong) in [
            (2, assert.clone()),
            (1, AssertOp { lock_type: LockType::SHARED, ..assert.clone() }),
            (1, AssertOp { tag: b("u"), ..assert.clone() }),
            (1, AssertOp { cookie: b("d"), ..assert.clone() }),
            (1, AssertOp { name: b("m"), ..assert.clone() }),
        ] {
            assert_eq!(check(&mut o, n, &wrong), Err(Errno::EBUSY), "{n} {wrong:?}");
        }
        assert_eq!(check(&mut o, 1, &AssertOp { name: b(""), ..assert }), Err(Errno::EINVAL));
        let rename = SetCookieOp {
            name: b("l"),
            lock_type: LockType::EXCLUSIVE,
            cookie: b("c"),
            tag,
            new_cookie: b("d"),
        };
        o.as_client(1).exec("lock", "set_cookie", &rename).unwrap();
        assert_eq!(info(&mut o).lockers.first_key_value().unwrap().0.cookie, "d");
        assert_eq!(o.exec("lock", "set_cookie", &rename), Err(Errno::EBUSY));
        let same = SetCookieOp { cookie: b("d"), ..rename };
        assert_eq!(o.exec("lock", "set_cookie", &same), Err(Errno::EBUSY), "the cookie is in use");
    }

    #[test]
    fn bytes_are_ceph_s() {
        let op = LockOp {
            name: b("n"),
            lock_type: LockType::SHARED,
            cookie: b("c"),
            tag: b("t"),
            description: b("d"),
            duration: Utime::new(1, 2),
            flags: 1,
        };
        let mut expected = vec![1, 1, 30, 0, 0, 0, 1, 0, 0, 0, b'n', 2];
        for c in [b'c', b't', b'd'] {
            expected.extend([1, 0, 0, 0, c]);
        }
        expected.extend([1, 0, 0, 0, 2, 0, 0, 0, 1]);
        assert_eq!(encode(&op), expected);
    }
}
