//! The table of operations: what is there, and which function answers it.

use crate::call::{Call, Handled};
use crate::fail::Fail;
use crate::{acl, bucket, copy, cors, list, multipart, object, post, settings};
use s3::{ErrorCode, Operation};
use s3_layout::Layout;

macro_rules! table {
    ($($operation:ident => $handler:path $(, $note:literal)?;)*) => {
        /// Whether an operation is there, and what is to be said of it.
        pub const fn is_there(operation: Operation) -> Option<&'static str> {
            match operation {
                $(Operation::$operation => Some(concat!($($note)?)),)*
                _ => None,
            }
        }

        /// Runs a request. What is not in the table is `NotImplemented`.
        pub(crate) async fn run<L: Layout>(call: &mut Call<L>) -> Handled<L> {
            // Each operation's state is on the heap, only while it is under way.
            match call.route.operation {
                $(Operation::$operation => Box::pin($handler(call)).await,)*
                other => Err(Fail::new(
                    ErrorCode::NotImplemented,
                    format!("{} is not implemented", other.name()),
                )),
            }
        }
    };
}

table! {
    ListBuckets => bucket::list_buckets;
    GetAccountUsage => bucket::account_usage, "of Ceph's gateway: `GET /?usage`, without the usage log";
    HeadBucket => bucket::head;
    CreateBucket => bucket::create;
    DeleteBucket => bucket::delete;
    GetBucketLocation => bucket::location;

    ListObjects => list::objects;
    ListObjectsV2 => list::objects_v2;
    ListObjectVersions => list::versions;

    GetObject => object::get;
    HeadObject => object::get;
    PutObject => object::put;
    DeleteObject => object::delete;
    DeleteObjects => object::delete_many;
    GetObjectAttributes => object::attributes;
    CopyObject => copy::copy;
    PostObject => post::post;

    CreateMultipartUpload => multipart::create;
    UploadPart => multipart::upload_part;
    UploadPartCopy => copy::part_copy;
    CompleteMultipartUpload => multipart::complete;
    AbortMultipartUpload => multipart::abort;
    ListParts => multipart::list_parts;
    ListMultipartUploads => multipart::list_uploads;

    GetBucketAcl => acl::get_bucket;
    PutBucketAcl => acl::put_bucket;
    GetObjectAcl => acl::get_object;
    PutObjectAcl => acl::put_object;

    GetBucketVersioning => settings::get_versioning;
    PutBucketVersioning => settings::put_versioning, "without MFA delete";
    GetBucketCors => settings::get_cors;
    PutBucketCors => settings::put_cors;
    DeleteBucketCors => settings::delete_cors;
    Preflight => cors::preflight, "`OPTIONS` of browsers";
    GetBucketTagging => settings::get_tags;
    PutBucketTagging => settings::put_tags;
    DeleteBucketTagging => settings::delete_tags;
    GetObjectTagging => settings::get_object_tags;
    PutObjectTagging => settings::put_object_tags;
    DeleteObjectTagging => settings::delete_object_tags;
    GetBucketPolicy => settings::get_policy;
    PutBucketPolicy => settings::put_policy;
    DeleteBucketPolicy => settings::delete_policy;
    GetBucketPolicyStatus => settings::policy_status;
    GetPublicAccessBlock => settings::get_block;
    PutPublicAccessBlock => settings::put_block;
    DeletePublicAccessBlock => settings::delete_block;
    GetBucketOwnershipControls => settings::get_ownership;
    PutBucketOwnershipControls => settings::put_ownership;
    DeleteBucketOwnershipControls => settings::delete_ownership;

    GetBucketLifecycle => settings::get_lifecycle;
    PutBucketLifecycle => settings::put_lifecycle, "without transitions";
    DeleteBucketLifecycle => settings::delete_lifecycle;
    GetBucketRequestPayment => settings::request_payment, "the bucket's owner pays";
    GetBucketLogging => settings::logging, "there is none";
    GetBucketNotification => settings::notification, "there is none";
    GetBucketAccelerate => settings::accelerate, "there is none";
    GetBucketEncryption => settings::encryption, "there is none";
    GetBucketWebsite => settings::website, "there is none";
    GetObjectLockConfiguration => settings::object_lock, "there is none";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_there() {
        assert_eq!(is_there(Operation::GetObject), Some(""));
        assert_eq!(is_there(Operation::SelectObjectContent), None);
        let there = Operation::ALL.iter().filter(|o| is_there(**o).is_some()).count();
        assert!(there > 50 && there < Operation::ALL.len());
    }
}
