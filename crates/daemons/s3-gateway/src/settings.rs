//! Settings of buckets, and tags of objects.

use crate::answer::Answer;
use crate::call::{Call, Handled};
use crate::fail::{Fail, Result};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use s3::xml::config::{
    Cors, Lifecycle, Ownership, Permission, PublicAccessBlock, TagSet, Versioning,
};
use s3::xml::{Limits, NAMESPACE, Writer};
use s3::{ErrorCode, S3Error};
use s3_layout::Layout;
use s3_layout::api::{BucketChange, ObjectChange, Settings};
use s3_rules::access;
use s3_rules::policy::{self, Policy};

/// A document of the bucket's settings, or the error that says that there is none.
fn show<L: Layout>(
    call: &Call<L>,
    absent: ErrorCode,
    document: impl FnOnce(&Settings) -> Option<String>,
) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    let bucket = call.bucket()?;
    match document(&bucket.as_ref().settings) {
        Some(text) => Ok(Answer::xml(text)),
        None => Err(S3Error::from(absent).with("BucketName", &*bucket.as_ref().name.name).into()),
    }
}

/// The document that a request brings, which its sender may set.
async fn wanted<L: Layout>(call: &mut Call<L>) -> Result<Bytes> {
    call.need_bucket(Permission::WriteAcp)?;
    call.document(Limits::CONFIG.bytes).await
}

async fn change<L: Layout>(call: &Call<L>, change: BucketChange, status: StatusCode) -> Handled<L> {
    call.layout().change_bucket(&call.bucket()?, change).await?;
    Ok(Answer::empty(status))
}

async fn remove<L: Layout>(call: &Call<L>, what: BucketChange) -> Handled<L> {
    call.need_bucket(Permission::WriteAcp)?;
    change(call, what, StatusCode::NO_CONTENT).await
}

pub(crate) async fn get_versioning<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    Ok(Answer::xml(Versioning::to_xml(call.bucket()?.as_ref().versioning)))
}

pub(crate) async fn put_versioning<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let text = wanted(call).await?;
    let state = Versioning::parse(&text)?;
    if call.bucket()?.as_ref().object_lock && state == Versioning::Suspended {
        return Err(Fail::new(
            ErrorCode::InvalidBucketState,
            "An Object Lock configuration is present on this bucket, so the versioning state cannot be changed.",
        ));
    }
    change(call, BucketChange::Versioning(state), StatusCode::OK).await
}

pub(crate) async fn get_cors<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::NoSuchCORSConfiguration, |s| s.cors.as_ref().map(Cors::to_xml))
}

pub(crate) async fn put_cors<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let cors = Cors::parse(&wanted(call).await?)?;
    change(call, BucketChange::Cors(Some(cors)), StatusCode::OK).await
}

pub(crate) async fn delete_cors<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    remove(call, BucketChange::Cors(None)).await
}

pub(crate) async fn get_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::NoSuchTagSet, |s| s.tags.as_ref().map(TagSet::to_xml))
}

pub(crate) async fn put_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let tags = TagSet::parse(&wanted(call).await?, TagSet::BUCKET_MAX)?;
    change(call, BucketChange::Tags(Some(tags)), StatusCode::NO_CONTENT).await
}

pub(crate) async fn delete_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    remove(call, BucketChange::Tags(None)).await
}

pub(crate) async fn get_policy<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_owner_or(Permission::ReadAcp)?;
    let Some(text) = call.bucket()?.as_ref().settings.policy.clone() else {
        return Err(ErrorCode::NoSuchBucketPolicy.into());
    };
    let mut answer = Answer::empty(StatusCode::OK);
    answer.headers.insert("content-type", HeaderValue::from_static("application/json"));
    answer.body = crate::answer::Outgoing::full(text);
    Ok(answer)
}

pub(crate) async fn put_policy<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_owner_or(Permission::WriteAcp)?;
    let text = call.document(policy::BYTES_MAX).await?;
    let bucket = call.bucket()?;
    let policy = Policy::parse(&text, &bucket.as_ref().name.name)?;
    // As S3 has it: such a statement means almost all users.
    if policy.allows_all_others() {
        return Err(Fail::new(
            ErrorCode::MalformedPolicy,
            "Allow with NotPrincipal is not supported",
        ));
    }
    let blocked = bucket.as_ref().settings.public_access.is_some_and(|b| b.block_public_policy);
    if blocked && policy.is_public() {
        return Err(ErrorCode::AccessDenied.into());
    }
    change(call, BucketChange::Policy(Some(text)), StatusCode::NO_CONTENT).await
}

pub(crate) async fn delete_policy<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_owner_or(Permission::WriteAcp)?;
    change(call, BucketChange::Policy(None), StatusCode::NO_CONTENT).await
}

pub(crate) async fn policy_status<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_owner_or(Permission::ReadAcp)?;
    let bucket = call.bucket()?;
    let mut w = Writer::document("PolicyStatus", Some(NAMESPACE));
    // As with Ceph's gateway, an ACL counts too (16.2, `RGWGetBucketPolicyStatus`).
    let public = call.gateway.has_public_policy(bucket.as_ref())
        || access::is_public(&bucket.as_ref().settings.acl);
    w.value("IsPublic", public);
    Ok(Answer::xml(w.finish()))
}

pub(crate) async fn get_block<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::NoSuchPublicAccessBlockConfiguration, |s| {
        s.public_access.as_ref().map(PublicAccessBlock::to_xml)
    })
}

pub(crate) async fn put_block<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let block = PublicAccessBlock::parse(&wanted(call).await?)?;
    change(call, BucketChange::PublicAccess(Some(block)), StatusCode::OK).await
}

pub(crate) async fn delete_block<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    remove(call, BucketChange::PublicAccess(None)).await
}

pub(crate) async fn get_ownership<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::OwnershipControlsNotFoundError, |s| s.ownership.map(Ownership::to_xml))
}

pub(crate) async fn put_ownership<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let ownership = Ownership::parse(&wanted(call).await?)?;
    let bucket = call.bucket()?;
    let acl = &bucket.as_ref().settings.acl;
    let shared = acl.grants.iter().any(
        |g| !matches!(&g.grantee, s3::xml::config::Grantee::User { id, .. } if *id == acl.owner),
    );
    if ownership == Ownership::BucketOwnerEnforced && shared {
        return Err(Fail::new(
            ErrorCode::InvalidBucketAclWithObjectOwnership,
            "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting",
        ));
    }
    change(call, BucketChange::Ownership(Some(ownership)), StatusCode::OK).await
}

pub(crate) async fn delete_ownership<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    remove(call, BucketChange::Ownership(None)).await
}

pub(crate) async fn get_lifecycle<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::NoSuchLifecycleConfiguration, |s| {
        s.lifecycle.as_ref().map(|l| l.to_xml())
    })
}

pub(crate) async fn put_lifecycle<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let lifecycle = Lifecycle::parse(&wanted(call).await?)?;
    change(call, BucketChange::Lifecycle(Some(lifecycle)), StatusCode::OK).await
}

pub(crate) async fn delete_lifecycle<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    remove(call, BucketChange::Lifecycle(None)).await
}

/// An empty document of this name: nothing is set, and nothing can be.
fn nothing<L: Layout>(call: &Call<L>, root: &'static str) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    Ok(Answer::xml(Writer::document(root, Some(NAMESPACE)).finish()))
}

pub(crate) async fn request_payment<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    let mut w = Writer::document("RequestPaymentConfiguration", Some(NAMESPACE));
    w.text("Payer", "BucketOwner");
    Ok(Answer::xml(w.finish()))
}

pub(crate) async fn logging<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    nothing(call, "BucketLoggingStatus")
}

pub(crate) async fn notification<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    nothing(call, "NotificationConfiguration")
}

pub(crate) async fn accelerate<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    nothing(call, "AccelerateConfiguration")
}

pub(crate) async fn encryption<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::ServerSideEncryptionConfigurationNotFoundError, |_| None)
}

pub(crate) async fn website<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::NoSuchWebsiteConfiguration, |_| None)
}

pub(crate) async fn object_lock<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    show(call, ErrorCode::ObjectLockConfigurationNotFoundError, |_| None)
}

pub(crate) async fn get_object_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let (bucket, version) = (call.bucket()?, call.version()?);
    let object = call.open(&bucket, &call.route.key, version.as_deref(), false).await?;
    let object = object.as_ref();
    call.need_object(object, Permission::Read)?;
    let mut answer = Answer::xml(object.tags.to_xml());
    answer.maybe("x-amz-version-id", object.version.as_deref());
    Ok(answer)
}

async fn set_object_tags<L: Layout>(
    call: &mut Call<L>,
    tags: Option<TagSet>,
    status: StatusCode,
) -> Handled<L> {
    let (bucket, version) = (call.bucket()?, call.version()?);
    let key = call.route.key.clone();
    let object = call.open(&bucket, &key, version.as_deref(), false).await?;
    call.need_object(object.as_ref(), Permission::Write)?;
    let tags = match tags {
        Some(tags) => tags,
        None => {
            let text = call.document(Limits::CONFIG.bytes).await?;
            TagSet::parse(&text, TagSet::OBJECT_MAX)?
        }
    };
    let change = ObjectChange { acl: None, tags: Some(tags) };
    let changed = call.layout().change_object(&bucket, &key, version.as_deref(), change).await?;
    let mut answer = Answer::empty(status);
    answer.maybe("x-amz-version-id", changed.as_deref());
    Ok(answer)
}

pub(crate) async fn put_object_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    set_object_tags(call, None, StatusCode::OK).await
}

pub(crate) async fn delete_object_tags<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    set_object_tags(call, Some(TagSet::default()), StatusCode::NO_CONTENT).await
}
