//! What the usage log is told of a request.

use crate::call::{Call, Handled};
use s3::Operation;
use s3_layout::Layout;
use s3_layout::api::Usage;

/// The kind of a request, in RGW's words (16.2 `src/rgw/rgw_op.h`, the names of its operations).
fn category(operation: Operation) -> &'static str {
    match operation {
        Operation::ListBuckets => "list_buckets",
        Operation::GetAccountUsage => "get_self_usage",
        Operation::HeadBucket => "stat_bucket",
        Operation::CreateBucket => "create_bucket",
        Operation::DeleteBucket => "delete_bucket",
        Operation::ListObjects | Operation::ListObjectsV2 | Operation::ListObjectVersions => {
            "list_bucket"
        }
        Operation::GetObject | Operation::HeadObject | Operation::GetObjectAttributes => "get_obj",
        Operation::PutObject | Operation::UploadPart | Operation::UploadPartCopy => "put_obj",
        Operation::PostObject => "post_obj",
        Operation::CopyObject => "copy_obj",
        Operation::DeleteObject => "delete_obj",
        Operation::DeleteObjects => "multi_object_delete",
        Operation::CreateMultipartUpload => "init_multipart",
        Operation::CompleteMultipartUpload => "complete_multipart",
        Operation::AbortMultipartUpload => "abort_multipart",
        Operation::ListParts => "list_multipart",
        Operation::ListMultipartUploads => "list_bucket_multiparts",
        Operation::GetBucketAcl | Operation::GetObjectAcl => "get_acls",
        Operation::PutBucketAcl | Operation::PutObjectAcl => "put_acls",
        Operation::GetBucketLocation => "get_bucket_location",
        Operation::GetBucketCors => "get_cors",
        Operation::PutBucketCors => "put_cors",
        Operation::DeleteBucketCors => "delete_cors",
        Operation::Preflight => "options_cors",
        Operation::GetBucketVersioning => "get_bucket_versioning",
        Operation::PutBucketVersioning => "set_bucket_versioning",
        Operation::GetBucketPolicy => "get_bucket_policy",
        Operation::PutBucketPolicy => "put_bucket_policy",
        Operation::DeleteBucketPolicy => "delete_bucket_policy",
        Operation::GetObjectTagging => "get_obj_tags",
        Operation::PutObjectTagging => "put_obj_tags",
        Operation::DeleteObjectTagging => "delete_obj_tags",
        _ => "unknown",
    }
}

/// Notes a request that was answered.
pub(crate) fn note<L: Layout>(call: &Call<L>, handled: &Handled<L>) {
    if !call.gateway.options.usage_log {
        return;
    }
    let sender = call.sender.user.as_ref().map(|u| u.id.clone()).unwrap_or_default();
    let (owner, bucket) = match &call.bucket {
        Some(b) => (b.as_ref().owner.clone(), b.as_ref().name.name.clone()),
        None => (sender, String::new()),
    };
    let length = call.header("content-length").and_then(|l| l.trim().parse().ok());
    call.layout().note_usage(Usage {
        owner,
        payer: None,
        bucket,
        category: category(call.route.operation),
        bytes_sent: handled.as_ref().map_or(0, |a| a.body.length()),
        bytes_received: length.unwrap_or(0),
        succeeded: handled.is_ok(),
    });
}
