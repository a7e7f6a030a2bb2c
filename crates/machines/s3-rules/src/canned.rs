//! ACLs that a request names in headers: canned ones (`x-amz-acl`) and single grants
//! (`x-amz-grant-*`).

use http::HeaderMap;
use s3::error::{ErrorCode, Result, S3Error};
use s3::xml::config::{Acl, Grant, Grantee, Permission};

/// A canned ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canned {
    /// The owner alone.
    Private,
    /// Everyone reads.
    PublicRead,
    /// Everyone reads and writes.
    PublicReadWrite,
    /// Every user with a key reads.
    AuthenticatedRead,
    /// The bucket's owner reads.
    BucketOwnerRead,
    /// The bucket's owner has full control.
    BucketOwnerFullControl,
}

impl Canned {
    /// Reads the value of `x-amz-acl`.
    pub fn parse(text: &str) -> Result<Canned> {
        Ok(match text {
            "private" => Canned::Private,
            "public-read" => Canned::PublicRead,
            "public-read-write" => Canned::PublicReadWrite,
            "authenticated-read" => Canned::AuthenticatedRead,
            "bucket-owner-read" => Canned::BucketOwnerRead,
            "bucket-owner-full-control" => Canned::BucketOwnerFullControl,
            _ => return Err(S3Error::argument("x-amz-acl", text, "a canned ACL was expected")),
        })
    }
}

/// An account: its id and its name to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// The full id (`tenant$user`).
    pub id: String,
    /// The name to show.
    pub name: String,
}

fn grant(to: &Account, permission: Permission) -> Grant {
    let grantee = Grantee::User { id: to.id.clone(), display_name: to.name.clone() };
    Grant { grantee, permission }
}

/// The ACL that a canned one stands for.
pub fn acl(canned: Canned, owner: &Account, bucket_owner: &Account) -> Acl {
    let mut grants = vec![grant(owner, Permission::FullControl)];
    let everyone = |permission| Grant { grantee: Grantee::AllUsers, permission };
    match canned {
        Canned::Private => {}
        Canned::PublicRead => grants.push(everyone(Permission::Read)),
        Canned::PublicReadWrite => {
            grants.push(everyone(Permission::Read));
            grants.push(everyone(Permission::Write));
        }
        Canned::AuthenticatedRead => grants
            .push(Grant { grantee: Grantee::AuthenticatedUsers, permission: Permission::Read }),
        Canned::BucketOwnerRead if owner.id != bucket_owner.id => {
            grants.push(grant(bucket_owner, Permission::Read));
        }
        Canned::BucketOwnerFullControl if owner.id != bucket_owner.id => {
            grants.push(grant(bucket_owner, Permission::FullControl));
        }
        Canned::BucketOwnerRead | Canned::BucketOwnerFullControl => {}
    }
    // Ceph has groups first: they have no id.
    grants.sort_by_key(|g| matches!(g.grantee, Grantee::User { .. }));
    Acl { owner: owner.id.clone(), owner_name: owner.name.clone(), grants }
}

/// What the headers of a request say of an ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// A canned ACL.
    Canned(Canned),
    /// Single grants. Ids and addresses in them are not known to exist.
    Grants(Vec<Grant>),
}

/// Reads the headers. A canned ACL and grants exclude each other.
pub fn asked(headers: &HeaderMap) -> Result<Asked> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let mut grants = Vec::new();
    // In Ceph's order.
    for permission in [
        Permission::Read,
        Permission::Write,
        Permission::ReadAcp,
        Permission::WriteAcp,
        Permission::FullControl,
    ] {
        let Some(list) = text(permission.header()) else { continue };
        for one in list.split(',').filter(|o| !o.trim().is_empty()) {
            if grants.len() == Acl::GRANTS_MAX {
                return Err(S3Error::new(
                    ErrorCode::InvalidRequest,
                    format!("at most {} grants were expected", Acl::GRANTS_MAX),
                ));
            }
            grants.push(Grant { grantee: Grantee::of_header(one)?, permission });
        }
    }
    match (text("x-amz-acl"), grants.is_empty()) {
        (None, true) => Ok(Asked::Nothing),
        (None, false) => Ok(Asked::Grants(grants)),
        (Some(name), true) => Canned::parse(name).map(Asked::Canned),
        (Some(_), false) => Err(S3Error::new(
            ErrorCode::InvalidRequest,
            "Specifying both Canned ACLs and Header Grants is not allowed",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn headers_are_read() {
        assert_eq!(asked(&headers(&[])), Ok(Asked::Nothing));
        let canned = asked(&headers(&[("x-amz-acl", "public-read")]));
        assert_eq!(canned, Ok(Asked::Canned(Canned::PublicRead)));
        assert!(asked(&headers(&[("x-amz-acl", "publik")])).is_err());
        let grants = asked(&headers(&[
            ("x-amz-grant-read", "id=\"a\", emailAddress=b@c"),
            ("x-amz-grant-write-acp", "uri=http://acs.amazonaws.com/groups/global/AllUsers"),
        ]));
        let Ok(Asked::Grants(grants)) = grants else { panic!("{grants:?}") };
        assert_eq!(grants.len(), 3);
        assert_eq!(grants[1].grantee, Grantee::Email("b@c".into()));
        let both = headers(&[("x-amz-acl", "private"), ("x-amz-grant-read", "id=a")]);
        assert_eq!(asked(&both).unwrap_err().code, ErrorCode::InvalidRequest);
    }

    #[test]
    fn canned_acls_grant_what_their_names_say() {
        let (a, b) = (
            Account { id: "a".into(), name: "A".into() },
            Account { id: "b".into(), name: "B".into() },
        );
        let may =
            |canned, user, needs| crate::access::grants(&acl(canned, &a, &b), user, needs, false);
        assert!(!may(Canned::Private, Some("b"), Permission::Read));
        assert!(may(Canned::Private, Some("a"), Permission::WriteAcp));
        assert!(may(Canned::PublicRead, None, Permission::Read));
        assert!(!may(Canned::PublicRead, None, Permission::Write));
        assert!(may(Canned::PublicReadWrite, None, Permission::Write));
        assert!(!may(Canned::AuthenticatedRead, None, Permission::Read));
        assert!(may(Canned::AuthenticatedRead, Some("c"), Permission::Read));
        assert!(may(Canned::BucketOwnerRead, Some("b"), Permission::Read));
        assert!(!may(Canned::BucketOwnerRead, Some("b"), Permission::WriteAcp));
        assert!(may(Canned::BucketOwnerFullControl, Some("b"), Permission::WriteAcp));
    }
}
