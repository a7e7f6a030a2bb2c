//! Keys and subusers of a user's record (16.2 `src/rgw/rgw_user.cc`, `RGWAccessKeyPool` and
//! `RGWSubUserPool`).

use crate::params::Params;
use crate::refusal::{Refusal, Result};
use bytes::Bytes;
use rand::RngExt;
use rgw::acl::perm;
use rgw::user::{AccessKey, SubUser, UserInfo};

/// The two kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    S3,
    Swift,
}

/// What a request says of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyRequest {
    /// The access key; empty if it is not given.
    pub id: String,
    /// The secret; empty if it is not given.
    pub secret: String,
    /// An access key is made up.
    pub make_id: bool,
    /// A secret is made up.
    pub make_secret: bool,
    /// The subuser's name, without its user.
    pub subuser: String,
    /// `None`: not said.
    pub kind: Option<Kind>,
}

impl KeyRequest {
    /// Reads a request; with `generate` what is not given is made up.
    pub fn of(p: &Params<'_>, generate: bool) -> KeyRequest {
        let (id, secret) = (p.text("access-key").to_owned(), p.text("secret-key").to_owned());
        KeyRequest {
            make_id: generate && id.is_empty(),
            make_secret: generate && secret.is_empty(),
            subuser: subuser_of(p).to_owned(),
            kind: match p.text("key-type") {
                "swift" => Some(Kind::Swift),
                "s3" => Some(Kind::S3),
                _ => None,
            },
            id,
            secret,
        }
    }

    /// Whether a key is asked for at all.
    pub fn is_key(&self) -> bool {
        !self.id.is_empty() || !self.secret.is_empty() || self.make_id || self.make_secret
    }

    /// The name of a key of Swift: `USER:SUBUSER`.
    fn swift_id(&self, user: &UserInfo) -> Result<Bytes> {
        if self.subuser.is_empty() {
            return Err(Refusal::ACCESS_KEY.because("a key of Swift is that of a subuser"));
        }
        Ok([&user.user_id.text()[..], b":", self.subuser.as_bytes()].concat().into())
    }

    /// The kind of key: as said, or of Swift for a subuser.
    pub fn kind(&self) -> Kind {
        match self.kind {
            Some(kind) => kind,
            None if self.subuser.is_empty() => Kind::S3,
            None => Kind::Swift,
        }
    }
}

/// The subuser of a request, without the user before the colon.
pub(crate) fn subuser_of<'a>(p: &'a Params<'_>) -> &'a str {
    let text = p.text("subuser");
    text.split_once(':').map_or(text, |(_, name)| name)
}

fn random(letters: &[u8], count: usize) -> Bytes {
    let mut rng = rand::rng();
    let text: Vec<u8> = (0..count).map(|_| letters[rng.random_range(0..letters.len())]).collect();
    text.into()
}

/// Lengths and letters of Ceph's keys (16.2 `src/rgw/rgw_user.h`, `PUBLIC_ID_LEN`,
/// `SECRET_KEY_LEN`).
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ID_LETTERS: usize = 36;
const ID_BYTES: usize = 20;
const SECRET_BYTES: usize = 40;

/// Adds a key, or gives one that is there another secret.
pub(crate) fn add(user: &mut UserInfo, key: &KeyRequest, kind: Kind) -> Result<()> {
    let id: Bytes = match kind {
        Kind::Swift => key.swift_id(user)?,
        Kind::S3 if key.make_id => random(&LETTERS[..ID_LETTERS], ID_BYTES),
        Kind::S3 if key.id.is_empty() => {
            return Err(Refusal::ACCESS_KEY.because("an access key was expected"));
        }
        Kind::S3 => key.id.clone().into(),
    };
    let secret: Bytes = match key.make_secret {
        true => random(LETTERS, SECRET_BYTES),
        false if key.secret.is_empty() => {
            return Err(Refusal::SECRET_KEY.because("a secret key was expected"));
        }
        false => key.secret.clone().into(),
    };
    let keys = match kind {
        Kind::S3 => &mut user.access_keys,
        Kind::Swift => &mut user.swift_keys,
    };
    let subuser: Bytes = key.subuser.clone().into();
    let fresh = AccessKey { id: id.clone(), key: Bytes::new(), subuser };
    keys.entry(id).or_insert(fresh).key = secret;
    Ok(())
}

/// Removes a key.
pub(crate) fn remove(user: &mut UserInfo, key: &KeyRequest) -> Result<()> {
    let gone = match key.kind() {
        Kind::S3 => user.access_keys.remove(key.id.as_bytes()),
        Kind::Swift => {
            let id = key.swift_id(user)?;
            user.swift_keys.remove(&id)
        }
    };
    gone.map(|_| ()).ok_or(Refusal::ACCESS_KEY)
}

/// The permissions of a subuser that a request names.
pub(crate) fn permissions(text: &str) -> Result<u32> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "" => 0,
        "read" => perm::READ,
        "write" => perm::WRITE,
        "readwrite" => perm::READ | perm::WRITE,
        "full" => perm::FULL_CONTROL,
        _ => return Err(Refusal::ARGUMENT.because("access: read, write, readwrite or full")),
    })
}

/// Adds a subuser with a key.
pub(crate) fn add_subuser(user: &mut UserInfo, mut key: KeyRequest, mask: u32) -> Result<()> {
    if key.subuser.is_empty() {
        return Err(Refusal::ARGUMENT.because("a subuser was expected"));
    }
    let kind = key.kind.unwrap_or(Kind::Swift);
    key.make_id |= kind == Kind::S3 && key.id.is_empty();
    key.make_secret |= key.secret.is_empty();
    add(user, &key, kind)?;
    let name: Bytes = key.subuser.into();
    user.subusers.entry(name.clone()).or_insert(SubUser { name, perm_mask: mask });
    Ok(())
}

/// Changes a subuser's permissions, and its key if one is named.
pub(crate) fn change_subuser(user: &mut UserInfo, key: &KeyRequest, mask: u32) -> Result<()> {
    if key.subuser.is_empty() {
        return Err(Refusal::ARGUMENT.because("a subuser was expected"));
    }
    if !user.subusers.contains_key(key.subuser.as_bytes()) {
        return Err(Refusal::NO_SUBUSER);
    }
    if key.is_key() {
        add(user, key, key.kind.unwrap_or(Kind::Swift))?;
    }
    if let Some(subuser) = user.subusers.get_mut(key.subuser.as_bytes()) {
        subuser.perm_mask = mask;
    }
    Ok(())
}

/// Removes a subuser with its keys.
pub(crate) fn remove_subuser(user: &mut UserInfo, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Refusal::ARGUMENT.because("a subuser was expected"));
    }
    user.subusers.remove(name.as_bytes()).ok_or(Refusal::NO_SUBUSER)?;
    user.access_keys.retain(|_, key| key.subuser != name);
    user.swift_keys.retain(|_, key| key.subuser != name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rgw::key::User;
    use s3::uri::Query;

    fn user() -> UserInfo {
        let user_id = User { id: "ann".into(), ..User::default() };
        UserInfo { user_id, ..UserInfo::default() }
    }

    fn request(query: &str, generate: bool) -> KeyRequest {
        KeyRequest::of(&Params(&Query::parse(query).unwrap()), generate)
    }

    #[test]
    fn keys_are_made_given_another_secret_and_removed() {
        let mut u = user();
        let made = request("", true);
        add(&mut u, &made, made.kind()).unwrap();
        let [key] = u.access_keys.values().cloned().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((key.id.len(), key.key.len()), (ID_BYTES, SECRET_BYTES));
        let id = String::from_utf8(key.id.to_vec()).unwrap();
        let again = request(&format!("access-key={id}&secret-key=new"), true);
        add(&mut u, &again, again.kind()).unwrap();
        assert_eq!(u.access_keys[&key.id].key, "new");
        remove(&mut u, &again).unwrap();
        assert_eq!(remove(&mut u, &again), Err(Refusal::ACCESS_KEY));
    }

    #[test]
    fn what_is_missing_is_refused() {
        let mut u = user();
        let code = |u: &mut UserInfo, query: &str| {
            let r = request(query, false);
            add(u, &r, r.kind()).unwrap_err().code
        };
        assert_eq!(code(&mut u, "secret-key=s"), "InvalidAccessKeyId");
        assert_eq!(code(&mut u, "access-key=a"), "InvalidSecretKey");
        assert_eq!(code(&mut u, "key-type=swift&secret-key=s"), "InvalidAccessKeyId");
        assert_eq!(u, user());
    }

    #[test]
    fn a_subuser_has_keys_which_go_with_it() {
        let mut u = user();
        add_subuser(&mut u, request("subuser=ann:s&key-type=s3", false), perm::READ).unwrap();
        add_subuser(&mut u, request("subuser=s", false), perm::WRITE).unwrap();
        // The second request made a key of Swift and left the permissions.
        assert_eq!(u.subusers[&b"s"[..]].perm_mask, perm::READ);
        assert_eq!(u.swift_keys.keys().next().unwrap(), "ann:s");
        change_subuser(&mut u, &request("subuser=s", false), perm::FULL_CONTROL).unwrap();
        assert_eq!(u.subusers[&b"s"[..]].perm_mask, perm::FULL_CONTROL);
        let other = request("access-key=own&secret-key=s", false);
        add(&mut u, &other, Kind::S3).unwrap();
        remove_subuser(&mut u, "s").unwrap();
        assert!(u.subusers.is_empty() && u.swift_keys.is_empty());
        assert_eq!(u.access_keys.keys().collect::<Vec<_>>(), ["own"]);
        assert_eq!(remove_subuser(&mut u, "s"), Err(Refusal::NO_SUBUSER));
    }
}
