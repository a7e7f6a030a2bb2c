//! Buckets: list, make, look at, remove.

use crate::acl;
use crate::answer::Answer;
use crate::call::{Call, Handled};
use crate::fail::Result;
use http::StatusCode;
use s3::names::{BucketRules, check_bucket};
use s3::xml::config::{Ownership, Permission, parse_location};
use s3::xml::{Limits, NAMESPACE, Writer};
use s3::{ErrorCode, date};
use s3_layout::Layout;
use s3_layout::api::{BucketName, BucketStats, Error, NewBucket, User};

/// How many buckets are asked for at a time, and how many are answered at most.
const PAGE: usize = 1000;
const BUCKETS_MAX: u64 = 10_000;

pub(crate) async fn list_buckets<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    // As with Ceph's gateway, a sender without a key has no buckets.
    let user = call.sender.user.clone().unwrap_or_default();
    let max = call.query.number("max-buckets", BUCKETS_MAX)?.unwrap_or(BUCKETS_MAX) as usize;
    let prefix = call.query.get("prefix").unwrap_or_default();
    let mut after = call.query.get("continuation-token").unwrap_or_default().to_owned();
    let account = call.sender.account();
    let mut w = Writer::document("ListAllMyBucketsResult", Some(NAMESPACE));
    w.open("Owner").text("ID", &account.id).text("DisplayName", &account.name).close();
    w.open("Buckets");
    let (mut count, mut next) = (0, None);
    'pages: loop {
        if user.id.is_empty() {
            break;
        }
        let page = call.layout().buckets_of(&user.id, &after, PAGE).await?;
        for b in &page.buckets {
            if b.name.starts_with(prefix) {
                if count == max {
                    next = Some(after);
                    break 'pages;
                }
                count += 1;
                w.open("Bucket").text("Name", &b.name);
                w.text("CreationDate", &date::iso8601(b.created)).close();
            }
            after.clone_from(&b.name);
        }
        if !page.more || page.buckets.is_empty() {
            break;
        }
    }
    w.close();
    w.maybe("ContinuationToken", next.as_deref());
    Ok(Answer::xml(w.finish()))
}

pub(crate) async fn head<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.header("x-amz-bucket-region", &call.gateway.options.region);
    // As Ceph's gateway tells its own users (20.1, `read-stats`).
    if call.query.get("read-stats") == Some("true") {
        let stats = call.layout().bucket_stats(&call.bucket()?).await?;
        answer.header("x-rgw-object-count", stats.objects.to_string());
        answer.header("x-rgw-bytes-used", stats.bytes.to_string());
        quotas(call, &mut answer)?;
    }
    Ok(answer)
}

/// -1 is no limit.
fn limit_text(limit: Option<u64>) -> String {
    limit.map_or("-1".to_owned(), |n| n.to_string())
}

/// Of buckets 0 is no limit, and -1 is none at all.
fn buckets_allowed(user: &User) -> Option<u64> {
    let most = user.max_buckets.unwrap_or(0);
    (user.max_buckets != Some(0)).then_some(u64::from(most))
}

/// Quotas of the sender, and how much its buckets hold (16.2, `RGWGetUsage_ObjStore_S3`). Stock
/// reads nothing of the usage log here, and has the two quotas of buckets under each other's name.
pub(crate) async fn account_usage<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let Some(user) = call.sender.user.clone() else {
        return Err(ErrorCode::AccessDenied.into());
    };
    let (mut used, mut all) = (Vec::new(), BucketStats::default());
    let mut after = String::new();
    loop {
        let page = call.layout().buckets_of(&user.id, &after, PAGE).await?;
        for b in &page.buckets {
            let name = BucketName { tenant: user.id.tenant.clone(), name: b.name.clone() };
            let stats = match call.layout().bucket(&name).await {
                Ok(bucket) => call.layout().bucket_stats(&bucket).await?,
                // Removed since it was listed.
                Err(Error::Refused(e)) if e.code == ErrorCode::NoSuchBucket => continue,
                Err(e) => return Err(e.into()),
            };
            all.objects += stats.objects;
            all.bytes += stats.bytes;
            all.rounded += stats.rounded;
            used.push((b.name.clone(), stats));
        }
        match page.buckets.last() {
            Some(last) if page.more => after.clone_from(&last.name),
            _ => break,
        }
    }
    let mut w = Writer::document("Usage", None);
    w.open("Entries").close();
    w.open("Summary");
    for (name, value) in [
        ("QuotaMaxBytes", limit_text(user.user_quota.max_bytes)),
        ("QuotaMaxBuckets", limit_text(buckets_allowed(&user))),
        ("QuotaMaxObjCount", limit_text(user.user_quota.max_objects)),
        ("QuotaMaxBytesPerBucket", limit_text(user.bucket_quota.max_bytes)),
        ("QuotaMaxObjCountPerBucket", limit_text(user.bucket_quota.max_objects)),
        ("TotalBytes", all.bytes.to_string()),
        ("TotalBytesRounded", all.rounded.to_string()),
        ("TotalEntries", all.objects.to_string()),
    ] {
        w.text(name, &value);
    }
    w.close();
    w.open("CapacityUsed").open("User").open("Buckets");
    for (name, stats) in &used {
        w.open("Entry").text("Bucket", name);
        w.text("Bytes", &stats.bytes.to_string());
        w.text("Bytes_Rounded", &stats.rounded.to_string()).close();
    }
    w.close().close().close();
    Ok(Answer::xml(w.finish()))
}

/// Tells the bucket's owner its quotas (16.2, `dump_bucket_metadata`).
fn quotas<L: Layout>(call: &Call<L>, answer: &mut Answer<L::Reader>) -> Result<()> {
    let owner = &call.bucket()?.as_ref().owner.clone();
    let Some(user) = call.sender.user.as_ref().filter(|user| user.id == *owner) else {
        return Ok(());
    };
    for (name, limit) in [
        ("x-rgw-quota-user-size", user.user_quota.max_bytes),
        ("x-rgw-quota-user-objects", user.user_quota.max_objects),
        ("x-rgw-quota-max-buckets", buckets_allowed(user)),
        ("x-rgw-quota-bucket-size", user.bucket_quota.max_bytes),
        ("x-rgw-quota-bucket-objects", user.bucket_quota.max_objects),
    ] {
        answer.header(name, limit_text(limit));
    }
    Ok(())
}

fn ownership<L: Layout>(call: &Call<L>) -> Result<Option<Ownership>> {
    Ok(call.header("x-amz-object-ownership").map(Ownership::of_name).transpose()?)
}

pub(crate) async fn create<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let user = call.sender.known()?.clone();
    let relaxed = call.gateway.options.relaxed_bucket_names;
    let rules = if relaxed { BucketRules::Relaxed } else { BucketRules::Strict };
    check_bucket(&call.route.bucket, rules)?;
    let name = call.bucket_name(call.route.tenant.as_deref(), &call.route.bucket);
    if name.tenant != user.id.tenant && !call.sender.is_admin() {
        return Err(ErrorCode::AccessDenied.into());
    }
    let ownership = ownership(call)?;
    let acl = acl::of_new_bucket(call, ownership).await?;
    let text = call.document(Limits::CONFIG.bytes).await?;
    let location = if text.is_empty() { None } else { parse_location(&text)? };
    let object_lock = call
        .header("x-amz-bucket-object-lock-enabled")
        .is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let made = call
        .layout()
        .create_bucket(NewBucket {
            name: name.clone(),
            owner: user.id.clone(),
            acl: acl.clone(),
            location: location.unwrap_or_default(),
            object_lock,
            ownership,
        })
        .await;
    match made {
        Ok(_) => {}
        // Ceph's gateway answers a repetition as the first request, if it would give the same
        // rights.
        Err(e) if e.code() == ErrorCode::BucketAlreadyOwnedByYou => {
            let there = call.layout().bucket(&name).await?;
            if there.as_ref().settings.acl != acl {
                return Err(ErrorCode::BucketAlreadyExists.into());
            }
        }
        Err(e) => return Err(e.into()),
    }
    let mut answer = Answer::empty(StatusCode::OK);
    answer.header("location", format!("/{}", call.route.bucket));
    Ok(answer)
}

pub(crate) async fn delete<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    call.layout().delete_bucket(&call.bucket()?).await?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

pub(crate) async fn location<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::ReadAcp)?;
    let bucket = call.bucket()?;
    let location = &bucket.as_ref().location;
    let zone_group = location.split(':').next().filter(|name| !name.is_empty());
    let zone_group = zone_group.unwrap_or(&call.gateway.options.region);
    let mut w = Writer::document("LocationConstraint", Some(NAMESPACE));
    w.content(zone_group);
    Ok(Answer::xml(w.finish()))
}
