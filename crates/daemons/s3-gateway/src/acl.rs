//! ACLs: of new buckets and objects, and operations on them.

use crate::answer::Answer;
use crate::call::{Call, Handled};
use crate::fail::{Fail, Result};
use http::StatusCode;
use s3::xml::Limits;
use s3::xml::config::{Acl, Grant, Grantee, Ownership, Permission};
use s3::{ErrorCode, S3Error};
use s3_layout::Layout;
use s3_layout::api::{Bucket, ObjectChange, UserId};
use s3_rules::access::is_public;
use s3_rules::canned::{self, Account, Asked, Canned};

/// The owner of a bucket with its name to show.
pub(crate) fn owner_of(bucket: &Bucket) -> Account {
    let acl = &bucket.settings.acl;
    let id = bucket.owner.to_string();
    let name = if acl.owner == id { acl.owner_name.clone() } else { String::new() };
    Account { id, name }
}

/// Looks the receivers of grants up: ids must exist, addresses become ids.
async fn resolve<L: Layout>(layout: &L, grants: Vec<Grant>) -> Result<Vec<Grant>> {
    let mut out = Vec::with_capacity(grants.len());
    for g in grants {
        let user = match &g.grantee {
            Grantee::AllUsers | Grantee::AuthenticatedUsers => {
                out.push(g);
                continue;
            }
            Grantee::User { id, .. } => match layout.user(&UserId::parse(id)).await {
                Ok(user) => user,
                Err(e) if e.code() == ErrorCode::NoSuchUser => {
                    return Err(S3Error::argument("CanonicalUser/ID", id, "Invalid id").into());
                }
                Err(e) => return Err(e.into()),
            },
            Grantee::Email(mail) => layout.user_of_email(mail).await?,
        };
        let grantee =
            Grantee::User { id: user.id.to_string(), display_name: user.display_name.clone() };
        out.push(Grant { grantee, permission: g.permission });
    }
    Ok(out)
}

/// The ACL that headers ask for; `None` if they say nothing.
async fn of_headers<L: Layout>(
    call: &Call<L>,
    owner: &Account,
    bucket_owner: &Account,
) -> Result<Option<Acl>> {
    match canned::asked(&call.headers)? {
        Asked::Nothing => Ok(None),
        Asked::Canned(c) => Ok(Some(canned::acl(c, owner, bucket_owner))),
        Asked::Grants(grants) => Ok(Some(Acl {
            owner: owner.id.clone(),
            owner_name: owner.name.clone(),
            grants: resolve(call.layout(), grants).await?,
        })),
    }
}

/// Refuses an ACL that the public access block does not allow.
fn check_public(bucket: &Bucket, acl: &Acl) -> Result<()> {
    let blocked = bucket.settings.public_access.is_some_and(|b| b.block_public_acls);
    if blocked && is_public(acl) { Err(ErrorCode::AccessDenied.into()) } else { Ok(()) }
}

/// The ACL of a new bucket.
pub(crate) async fn of_new_bucket<L: Layout>(
    call: &Call<L>,
    ownership: Option<Ownership>,
) -> Result<Acl> {
    let owner = call.sender.account();
    let asked = of_headers(call, &owner, &owner).await?;
    if asked.is_some() && ownership == Some(Ownership::BucketOwnerEnforced) {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        ));
    }
    Ok(asked.unwrap_or_else(|| canned::acl(Canned::Private, &owner, &owner)))
}

/// The ACL of a new object, with the account that is to own it.
pub(crate) async fn of_new_object<L: Layout>(call: &Call<L>, bucket: &Bucket) -> Result<Acl> {
    let asked = canned::asked(&call.headers)?;
    let (sender, bucket_owner) = (call.sender.account(), owner_of(bucket));
    let full_control = asked == Asked::Canned(Canned::BucketOwnerFullControl);
    let owner = match bucket.settings.ownership.unwrap_or(Ownership::ObjectWriter) {
        Ownership::BucketOwnerEnforced => {
            if asked != Asked::Nothing && !full_control {
                return Err(ErrorCode::AccessControlListNotSupported.into());
            }
            return Ok(canned::acl(Canned::Private, &bucket_owner, &bucket_owner));
        }
        Ownership::BucketOwnerPreferred if full_control => &bucket_owner,
        Ownership::BucketOwnerPreferred | Ownership::ObjectWriter => &sender,
    };
    let acl = of_headers(call, owner, &bucket_owner)
        .await?
        .unwrap_or_else(|| canned::acl(Canned::Private, owner, &bucket_owner));
    check_public(bucket, &acl)?;
    Ok(acl)
}

/// The ACL that a request sets in place of `old`: in headers or as a document.
async fn wanted<L: Layout>(call: &mut Call<L>, bucket: &Bucket, old: &Acl) -> Result<Acl> {
    if bucket.settings.ownership == Some(Ownership::BucketOwnerEnforced) {
        return Err(ErrorCode::AccessControlListNotSupported.into());
    }
    let owner = Account { id: old.owner.clone(), name: old.owner_name.clone() };
    let text = call.document(Limits::CONFIG.bytes).await?;
    let acl = match of_headers(call, &owner, &owner_of(bucket)).await? {
        Some(_) if !text.is_empty() => {
            return Err(Fail::new(
                ErrorCode::InvalidRequest,
                "an ACL in headers or a document was expected, found both",
            ));
        }
        Some(acl) => acl,
        None if text.is_empty() => return Err(ErrorCode::MissingSecurityHeader.into()),
        None => {
            let new = Acl::parse(&text)?;
            if new.owner != owner.id {
                return Err(ErrorCode::AccessDenied.into());
            }
            let grants = resolve(call.layout(), new.grants).await?;
            Acl { owner: owner.id, owner_name: owner.name, grants }
        }
    };
    check_public(bucket, &acl)?;
    Ok(acl)
}

pub(crate) async fn get_bucket<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    Ok(Answer::xml(call.bucket()?.as_ref().settings.acl.to_xml()))
}

pub(crate) async fn put_bucket<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::WriteAcp)?;
    let bucket = call.bucket()?;
    let acl = wanted(call, bucket.as_ref(), &bucket.as_ref().settings.acl).await?;
    call.layout().change_bucket(&bucket, s3_layout::api::BucketChange::Acl(acl)).await?;
    Ok(Answer::empty(StatusCode::OK))
}

pub(crate) async fn get_object<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let (bucket, version) = (call.bucket()?, call.version()?);
    let object = call.open(&bucket, &call.route.key, version.as_deref(), false).await?;
    let object = object.as_ref();
    call.need_object(object, Permission::ReadAcp)?;
    let mut answer = Answer::xml(object.acl.to_xml());
    answer.maybe("x-amz-version-id", object.version.as_deref());
    Ok(answer)
}

pub(crate) async fn put_object<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let (bucket, version) = (call.bucket()?, call.version()?);
    let key = call.route.key.clone();
    let object = call.open(&bucket, &key, version.as_deref(), false).await?;
    call.need_object(object.as_ref(), Permission::WriteAcp)?;
    let acl = wanted(call, bucket.as_ref(), &object.as_ref().acl).await?;
    let change = ObjectChange { acl: Some(acl), tags: None };
    let changed = call.layout().change_object(&bucket, &key, version.as_deref(), change).await?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.maybe("x-amz-version-id", changed.as_deref());
    Ok(answer)
}
