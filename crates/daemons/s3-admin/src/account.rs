//! What a request makes of a user's record (16.2 `src/rgw/rgw_user.cc`, `RGWUser::execute_add` and
//! `execute_modify`).

use crate::caps;
use crate::keys::{self, KeyRequest, Kind};
use crate::params::Params;
use crate::refusal::{Refusal, Result};
use rgw::bucket::Placement;
use rgw::key::User;
use rgw::user::{DEFAULT_MAX_BUCKETS, OP_MASK_ALL, UserInfo};

/// The user that a request names; empty if it names none.
pub(crate) fn user_id(p: &Params<'_>) -> User {
    let mut id = User::parse(&p.text("uid").to_owned().into());
    if let Some((user, _)) = p.text("subuser").split_once(':') {
        let named = User::parse(&user.to_owned().into());
        if named.tenant.is_empty() {
            id.id = named.id;
        } else {
            id = named;
        }
    }
    id
}

/// Kinds of operations, `read, write, delete` or `*`.
fn op_mask(text: &str) -> u32 {
    let bit = |word: &str| match word {
        "*" => OP_MASK_ALL,
        "read" => 1,
        "write" => 2,
        "delete" => 4,
        _ => 0,
    };
    text.split([';', ',', '=', ' ', '\t']).fold(0, |bits, word| bits | bit(word))
}

fn max_buckets(n: i64) -> i32 {
    if n < 0 { -1 } else { i32::try_from(n).unwrap_or(i32::MAX) }
}

/// A flag of a record.
fn bit(on: bool) -> u8 {
    on.into()
}

/// What is set alike in new users and others. `is_system`: the sender is a system user, and may
/// make others.
fn set(
    user: &mut UserInfo,
    p: &Params<'_>,
    is_placement: impl Fn(&Placement) -> bool,
    is_system: bool,
) -> Result<()> {
    if p.flag("system", false) && !is_system {
        return Err(Refusal::ARGUMENT.because("only a system user makes system users"));
    }
    if let Some(name) = p.given("display-name") {
        user.display_name = name.to_owned().into();
    }
    if p.has("suspended") {
        user.suspended = bit(p.flag("suspended", false));
    }
    if p.has("system") {
        user.system = bit(p.flag("system", false));
    }
    if let Some(text) = p.given("op-mask") {
        user.op_mask = op_mask(text);
    }
    if let Some(text) = p.given("default-placement") {
        let (name, class) = text.split_once('/').unwrap_or((text, ""));
        let placement =
            Placement { name: name.to_owned().into(), storage_class: class.to_owned().into() };
        if !is_placement(&placement) {
            return Err(Refusal::ARGUMENT.because("there is no such placement target"));
        }
        user.default_placement = placement;
    }
    if let Some(text) = p.given("placement-tags") {
        let tags = text.split(',').filter(|t| !t.is_empty());
        user.placement_tags = tags.map(|t| t.to_owned().into()).collect();
    }
    Ok(())
}

/// A new user.
pub(crate) fn create(
    p: &Params<'_>,
    is_placement: impl Fn(&Placement) -> bool,
    is_system: bool,
) -> Result<UserInfo> {
    let mut user = UserInfo { user_id: user_id(p), ..UserInfo::default() };
    if let Some(tenant) = p.given("tenant") {
        user.user_id.tenant = tenant.to_owned().into();
    }
    if user.user_id.is_empty() {
        return Err(Refusal::ARGUMENT.because("a uid was expected"));
    }
    if p.given("display-name").is_none() {
        return Err(Refusal::ARGUMENT.because("a display name was expected"));
    }
    let good = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    if !user.user_id.tenant.iter().all(good) {
        return Err(Refusal::TENANT_NAME);
    }
    set(&mut user, p, is_placement, is_system)?;
    user.email = p.text("email").to_lowercase().into();
    user.max_buckets = p.number("max-buckets")?.map_or(DEFAULT_MAX_BUCKETS, max_buckets);
    let key = KeyRequest::of(p, p.flag("generate-key", true));
    if key.is_key() {
        keys::add(&mut user, &key, key.kind.unwrap_or(Kind::S3))?;
    }
    if let Some(text) = p.given("user-caps") {
        caps::change(&mut user.caps, text, true)?;
    }
    Ok(user)
}

/// A changed user.
pub(crate) fn modify(
    old: &UserInfo,
    p: &Params<'_>,
    is_placement: impl Fn(&Placement) -> bool,
    is_system: bool,
) -> Result<UserInfo> {
    let mut user = old.clone();
    set(&mut user, p, is_placement, is_system)?;
    if p.has("email") {
        user.email = p.text("email").to_lowercase().into();
    }
    if let Some(n) = p.number("max-buckets")? {
        user.max_buckets = max_buckets(n);
    }
    let key = KeyRequest::of(p, p.flag("generate-key", false));
    if key.is_key() {
        keys::add(&mut user, &key, key.kind.unwrap_or(Kind::S3))?;
    }
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3::uri::Query;

    fn made(query: &str) -> Result<UserInfo> {
        create(&Params(&Query::parse(query).unwrap()), |p| p.name == "here", false)
    }

    #[test]
    fn a_user_is_made_as_it_is_asked_for() {
        let u = made(
            "uid=ann&display-name=Ann&tenant=t&email=A@B&max-buckets=-7&user-caps=users=read\
             &op-mask=read,delete&default-placement=here/COLD&suspended",
        )
        .unwrap();
        assert_eq!(u.user_id.text(), "t$ann");
        assert_eq!((&u.email[..], u.max_buckets, u.op_mask), (&b"a@b"[..], -1, 5));
        assert_eq!((u.suspended, u.access_keys.len(), u.caps.caps.len()), (1, 1, 1));
        assert_eq!(u.default_placement.storage_class, "COLD");
        assert_eq!(made("uid=a&display-name=A&generate-key=false").unwrap().access_keys.len(), 0);
        assert_eq!(made("uid=a&display-name=A").unwrap().max_buckets, DEFAULT_MAX_BUCKETS);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (query, code) in [
            ("uid=a", "InvalidArgument"),
            ("display-name=A", "InvalidArgument"),
            ("uid=a&display-name=A&tenant=t-", "InvalidTenantName"),
            ("uid=a&display-name=A&system=true", "InvalidArgument"),
            ("uid=a&display-name=A&default-placement=gone", "InvalidArgument"),
            ("uid=a&display-name=A&user-caps=wrong", "InvalidCapability"),
            ("uid=a&display-name=A&max-buckets=x", "InvalidArgument"),
            ("uid=a&display-name=A&generate-key=false&access-key=k", "InvalidSecretKey"),
        ] {
            assert_eq!(made(query).unwrap_err().code, code, "{query}");
        }
    }

    #[test]
    fn what_is_not_named_stays() {
        let old = made("uid=ann&display-name=Ann&email=a@b&max-buckets=5").unwrap();
        let change = |query: &str| {
            modify(&old, &Params(&Query::parse(query).unwrap()), |_| true, false).unwrap()
        };
        assert_eq!(change("uid=ann"), old);
        assert!(change("uid=ann&email=").email.is_empty());
        let u = change("uid=ann&max-buckets=0&suspended=1&user-caps=users=*");
        assert_eq!((u.max_buckets, u.suspended, &u.email), (0, 1, &old.email));
        assert!(u.caps.caps.is_empty(), "capabilities have a request of their own");
    }
}
