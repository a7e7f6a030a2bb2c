//! Which operation a request asks for: by method, path or host, sub-resource and a few headers.

use crate::error::{ErrorCode, Result, S3Error};
use crate::uri::{self, Query};
use http::HeaderMap;

/// What an operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The service as a whole.
    Service,
    /// A bucket.
    Bucket,
    /// An object.
    Object,
}

macro_rules! operations {
    ($($name:ident: $subject:ident, $action:literal;)*) => {
        /// An S3 operation, by the name that the reference gives it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are those of the reference")]
        pub enum Operation { $($name,)* }

        impl Operation {
            /// All of them.
            pub const ALL: &[Operation] = &[$(Operation::$name,)*];

            /// The name.
            pub const fn name(self) -> &'static str {
                match self { $(Operation::$name => stringify!($name),)* }
            }

            /// What it is about.
            pub const fn subject(self) -> Subject {
                match self { $(Operation::$name => Subject::$subject,)* }
            }

            /// The action that policies name.
            pub const fn action(self) -> &'static str {
                match self { $(Operation::$name => $action,)* }
            }
        }
    };
}

operations! {
    ListBuckets: Service, "s3:ListAllMyBuckets";
    GetAccountUsage: Service, "s3:ListAllMyBuckets";
    PostService: Service, "";

    HeadBucket: Bucket, "s3:ListBucket";
    CreateBucket: Bucket, "s3:CreateBucket";
    DeleteBucket: Bucket, "s3:DeleteBucket";
    ListObjects: Bucket, "s3:ListBucket";
    ListObjectsV2: Bucket, "s3:ListBucket";
    ListObjectVersions: Bucket, "s3:ListBucketVersions";
    ListMultipartUploads: Bucket, "s3:ListBucketMultipartUploads";
    DeleteObjects: Bucket, "s3:DeleteObject";
    PostObject: Bucket, "s3:PutObject";
    GetBucketLocation: Bucket, "s3:GetBucketLocation";
    GetBucketVersioning: Bucket, "s3:GetBucketVersioning";
    PutBucketVersioning: Bucket, "s3:PutBucketVersioning";
    GetBucketAcl: Bucket, "s3:GetBucketAcl";
    PutBucketAcl: Bucket, "s3:PutBucketAcl";
    GetBucketCors: Bucket, "s3:GetBucketCORS";
    PutBucketCors: Bucket, "s3:PutBucketCORS";
    DeleteBucketCors: Bucket, "s3:PutBucketCORS";
    GetBucketTagging: Bucket, "s3:GetBucketTagging";
    PutBucketTagging: Bucket, "s3:PutBucketTagging";
    DeleteBucketTagging: Bucket, "s3:PutBucketTagging";
    GetBucketPolicy: Bucket, "s3:GetBucketPolicy";
    PutBucketPolicy: Bucket, "s3:PutBucketPolicy";
    DeleteBucketPolicy: Bucket, "s3:DeleteBucketPolicy";
    GetBucketPolicyStatus: Bucket, "s3:GetBucketPolicyStatus";
    GetPublicAccessBlock: Bucket, "s3:GetBucketPublicAccessBlock";
    PutPublicAccessBlock: Bucket, "s3:PutBucketPublicAccessBlock";
    DeletePublicAccessBlock: Bucket, "s3:PutBucketPublicAccessBlock";
    GetBucketOwnershipControls: Bucket, "s3:GetBucketOwnershipControls";
    PutBucketOwnershipControls: Bucket, "s3:PutBucketOwnershipControls";
    DeleteBucketOwnershipControls: Bucket, "s3:PutBucketOwnershipControls";
    GetBucketLifecycle: Bucket, "s3:GetLifecycleConfiguration";
    PutBucketLifecycle: Bucket, "s3:PutLifecycleConfiguration";
    DeleteBucketLifecycle: Bucket, "s3:PutLifecycleConfiguration";
    GetBucketRequestPayment: Bucket, "s3:GetBucketRequestPayment";
    PutBucketRequestPayment: Bucket, "s3:PutBucketRequestPayment";
    GetBucketEncryption: Bucket, "s3:GetEncryptionConfiguration";
    PutBucketEncryption: Bucket, "s3:PutEncryptionConfiguration";
    DeleteBucketEncryption: Bucket, "s3:PutEncryptionConfiguration";
    GetBucketLogging: Bucket, "s3:GetBucketLogging";
    PutBucketLogging: Bucket, "s3:PutBucketLogging";
    GetBucketNotification: Bucket, "s3:GetBucketNotification";
    PutBucketNotification: Bucket, "s3:PutBucketNotification";
    GetBucketReplication: Bucket, "s3:GetReplicationConfiguration";
    PutBucketReplication: Bucket, "s3:PutReplicationConfiguration";
    DeleteBucketReplication: Bucket, "s3:PutReplicationConfiguration";
    GetBucketWebsite: Bucket, "s3:GetBucketWebsite";
    PutBucketWebsite: Bucket, "s3:PutBucketWebsite";
    DeleteBucketWebsite: Bucket, "s3:DeleteBucketWebsite";
    GetBucketAccelerate: Bucket, "s3:GetAccelerateConfiguration";
    PutBucketAccelerate: Bucket, "s3:PutAccelerateConfiguration";
    GetBucketAnalytics: Bucket, "s3:GetAnalyticsConfiguration";
    GetBucketInventory: Bucket, "s3:GetInventoryConfiguration";
    GetBucketMetrics: Bucket, "s3:GetMetricsConfiguration";
    GetBucketIntelligentTiering: Bucket, "s3:GetIntelligentTieringConfiguration";
    GetObjectLockConfiguration: Bucket, "s3:GetBucketObjectLockConfiguration";
    PutObjectLockConfiguration: Bucket, "s3:PutBucketObjectLockConfiguration";

    HeadObject: Object, "s3:GetObject";
    GetObject: Object, "s3:GetObject";
    PutObject: Object, "s3:PutObject";
    CopyObject: Object, "s3:PutObject";
    DeleteObject: Object, "s3:DeleteObject";
    GetObjectAcl: Object, "s3:GetObjectAcl";
    PutObjectAcl: Object, "s3:PutObjectAcl";
    GetObjectTagging: Object, "s3:GetObjectTagging";
    PutObjectTagging: Object, "s3:PutObjectTagging";
    DeleteObjectTagging: Object, "s3:DeleteObjectTagging";
    GetObjectAttributes: Object, "s3:GetObjectAttributes";
    GetObjectTorrent: Object, "s3:GetObjectTorrent";
    GetObjectRetention: Object, "s3:GetObjectRetention";
    PutObjectRetention: Object, "s3:PutObjectRetention";
    GetObjectLegalHold: Object, "s3:GetObjectLegalHold";
    PutObjectLegalHold: Object, "s3:PutObjectLegalHold";
    RestoreObject: Object, "s3:RestoreObject";
    SelectObjectContent: Object, "s3:GetObject";
    CreateMultipartUpload: Object, "s3:PutObject";
    UploadPart: Object, "s3:PutObject";
    UploadPartCopy: Object, "s3:PutObject";
    CompleteMultipartUpload: Object, "s3:PutObject";
    AbortMultipartUpload: Object, "s3:AbortMultipartUpload";
    ListParts: Object, "s3:ListMultipartUploadParts";

    Preflight: Object, "";
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The tenant of the bucket, if the request names one (`tenant:bucket`).
    pub tenant: Option<String>,
    /// The bucket; empty for the service.
    pub bucket: String,
    /// The key; empty for a bucket.
    pub key: String,
    /// Whether the bucket stands in the host name.
    pub virtual_host: bool,
    /// What is asked for.
    pub operation: Operation,
}

/// A request before routing.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The method in capitals.
    pub method: &'a str,
    /// The path as sent.
    pub path: &'a str,
    /// The parsed query.
    pub query: &'a Query,
    /// The headers, with `host`.
    pub headers: &'a HeaderMap,
}

/// The bucket that a host name holds under one of the gateway's domains (`bucket.s3.example`).
/// A host that is a domain itself, an address or foreign holds none.
pub fn bucket_of_host<'a>(host: &'a str, domains: &[String]) -> Option<&'a str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    domains.iter().find_map(|d| {
        let cut = name.len().checked_sub(d.len() + 1)?;
        let (head, tail) = (name.get(..cut)?, name.get(cut..)?);
        let matches = tail.strip_prefix('.').is_some_and(|t| t.eq_ignore_ascii_case(d));
        (matches && !head.is_empty()).then_some(head)
    })
}

impl Route {
    /// Routes a request. `domains` are the names under which buckets stand in host names.
    pub fn of(target: &Target<'_>, domains: &[String]) -> Result<Route> {
        let path = target.path.strip_prefix('/').unwrap_or(target.path);
        let host = target.headers.get("host").and_then(|h| h.to_str().ok()).unwrap_or_default();
        let (bucket, key, virtual_host) = match bucket_of_host(host, domains) {
            Some(bucket) => (bucket.to_owned(), path, true),
            None => {
                let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
                (uri::decode_text(bucket, false)?, key, false)
            }
        };
        let key = uri::decode_text(key, false)?;
        let (tenant, bucket) = match bucket.split_once(':') {
            Some((tenant, bucket)) => (Some(tenant.to_owned()), bucket.to_owned()),
            None => (None, bucket),
        };
        if target.method == "OPTIONS" {
            let operation = Operation::Preflight;
            return Ok(Route { tenant, bucket, key, virtual_host, operation });
        }
        let operation = if bucket.is_empty() {
            service(target)
        } else if key.is_empty() {
            of_bucket(target.method, target.query)
        } else {
            of_object(target)
        };
        let Some(operation) = operation else {
            return Err(S3Error::from(ErrorCode::MethodNotAllowed)
                .with("Method", target.method)
                .with("ResourceType", if key.is_empty() { "BUCKET" } else { "OBJECT" }));
        };
        Ok(Route { tenant, bucket, key, virtual_host, operation })
    }
}

fn service(target: &Target<'_>) -> Option<Operation> {
    match target.method {
        // An extension of Ceph's gateway.
        "GET" if target.query.has("usage") => Some(Operation::GetAccountUsage),
        "GET" | "HEAD" => Some(Operation::ListBuckets),
        "POST" => Some(Operation::PostService),
        _ => None,
    }
}

/// Sub-resources of buckets: the parameter, and what GET, PUT and DELETE of it are.
type SubResource = (&'static str, Option<Operation>, Option<Operation>, Option<Operation>);

const BUCKET_SUBRESOURCES: &[SubResource] = {
    use Operation::*;
    &[
        ("acl", Some(GetBucketAcl), Some(PutBucketAcl), None),
        ("cors", Some(GetBucketCors), Some(PutBucketCors), Some(DeleteBucketCors)),
        ("tagging", Some(GetBucketTagging), Some(PutBucketTagging), Some(DeleteBucketTagging)),
        ("policy", Some(GetBucketPolicy), Some(PutBucketPolicy), Some(DeleteBucketPolicy)),
        ("policyStatus", Some(GetBucketPolicyStatus), None, None),
        (
            "publicAccessBlock",
            Some(GetPublicAccessBlock),
            Some(PutPublicAccessBlock),
            Some(DeletePublicAccessBlock),
        ),
        (
            "ownershipControls",
            Some(GetBucketOwnershipControls),
            Some(PutBucketOwnershipControls),
            Some(DeleteBucketOwnershipControls),
        ),
        (
            "lifecycle",
            Some(GetBucketLifecycle),
            Some(PutBucketLifecycle),
            Some(DeleteBucketLifecycle),
        ),
        ("versioning", Some(GetBucketVersioning), Some(PutBucketVersioning), None),
        ("location", Some(GetBucketLocation), None, None),
        ("requestPayment", Some(GetBucketRequestPayment), Some(PutBucketRequestPayment), None),
        (
            "encryption",
            Some(GetBucketEncryption),
            Some(PutBucketEncryption),
            Some(DeleteBucketEncryption),
        ),
        ("logging", Some(GetBucketLogging), Some(PutBucketLogging), None),
        ("notification", Some(GetBucketNotification), Some(PutBucketNotification), None),
        (
            "replication",
            Some(GetBucketReplication),
            Some(PutBucketReplication),
            Some(DeleteBucketReplication),
        ),
        ("website", Some(GetBucketWebsite), Some(PutBucketWebsite), Some(DeleteBucketWebsite)),
        ("accelerate", Some(GetBucketAccelerate), Some(PutBucketAccelerate), None),
        ("analytics", Some(GetBucketAnalytics), None, None),
        ("inventory", Some(GetBucketInventory), None, None),
        ("metrics", Some(GetBucketMetrics), None, None),
        ("intelligent-tiering", Some(GetBucketIntelligentTiering), None, None),
        ("object-lock", Some(GetObjectLockConfiguration), Some(PutObjectLockConfiguration), None),
        ("uploads", Some(ListMultipartUploads), None, None),
        ("versions", Some(ListObjectVersions), None, None),
    ]
};

fn of_bucket(method: &str, query: &Query) -> Option<Operation> {
    use Operation::*;
    if method == "POST" {
        return Some(if query.has("delete") { DeleteObjects } else { PostObject });
    }
    for (name, get, put, delete) in BUCKET_SUBRESOURCES {
        if query.has(name) {
            return match method {
                "GET" | "HEAD" => *get,
                "PUT" => *put,
                "DELETE" => *delete,
                _ => None,
            };
        }
    }
    match method {
        "GET" if query.get("list-type") == Some("2") => Some(ListObjectsV2),
        "GET" => Some(ListObjects),
        "HEAD" => Some(HeadBucket),
        "PUT" => Some(CreateBucket),
        "DELETE" => Some(DeleteBucket),
        _ => None,
    }
}

fn of_object(target: &Target<'_>) -> Option<Operation> {
    use Operation::*;
    let query = target.query;
    let copies = target.headers.contains_key("x-amz-copy-source");
    match target.method {
        "GET" | "HEAD" => {
            let head = target.method == "HEAD";
            Some(if query.has("uploadId") {
                ListParts
            } else if query.has("acl") {
                GetObjectAcl
            } else if query.has("tagging") {
                GetObjectTagging
            } else if query.has("attributes") {
                GetObjectAttributes
            } else if query.has("torrent") {
                GetObjectTorrent
            } else if query.has("retention") {
                GetObjectRetention
            } else if query.has("legal-hold") {
                GetObjectLegalHold
            } else if head {
                HeadObject
            } else {
                GetObject
            })
        }
        "PUT" => Some(if query.has("uploadId") && query.has("partNumber") {
            if copies { UploadPartCopy } else { UploadPart }
        } else if query.has("acl") {
            PutObjectAcl
        } else if query.has("tagging") {
            PutObjectTagging
        } else if query.has("retention") {
            PutObjectRetention
        } else if query.has("legal-hold") {
            PutObjectLegalHold
        } else if copies {
            CopyObject
        } else {
            PutObject
        }),
        "POST" if query.has("uploads") => Some(CreateMultipartUpload),
        "POST" if query.has("uploadId") => Some(CompleteMultipartUpload),
        "POST" if query.has("restore") => Some(RestoreObject),
        "POST" if query.has("select") => Some(SelectObjectContent),
        "DELETE" => Some(if query.has("uploadId") {
            AbortMultipartUpload
        } else if query.has("tagging") {
            DeleteObjectTagging
        } else {
            DeleteObject
        }),
        _ => None,
    }
}

/// The source of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySource {
    /// The tenant, if one is named.
    pub tenant: Option<String>,
    /// The bucket.
    pub bucket: String,
    /// The key.
    pub key: String,
    /// One version, or the newest.
    pub version_id: Option<String>,
}

impl CopySource {
    /// Reads `x-amz-copy-source`: `bucket/key`, percent-encoded, with `?versionId=` perhaps.
    pub fn parse(text: &str) -> Result<CopySource> {
        let refuse = || {
            S3Error::argument(
                "x-amz-copy-source",
                text,
                "Copy Source must mention the source bucket and key: sourcebucket/sourcekey",
            )
        };
        let (path, version_id) = match text.rsplit_once("?versionId=") {
            Some((path, id)) => (path, Some(uri::decode_text(id, false)?)),
            None => (text, None),
        };
        let path = uri::decode_text(path.strip_prefix('/').unwrap_or(path), false)?;
        let (bucket, key) = path.split_once('/').ok_or_else(refuse)?;
        if bucket.is_empty() || key.is_empty() {
            return Err(refuse());
        }
        let (tenant, bucket) = match bucket.split_once(':') {
            Some((t, b)) => (Some(t.to_owned()), b),
            None => (None, bucket),
        };
        Ok(CopySource { tenant, bucket: bucket.to_owned(), key: key.to_owned(), version_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, target: &str, headers: &[(&str, &str)]) -> Result<Route> {
        let mut h = HeaderMap::new();
        for (n, v) in headers {
            h.insert(http::HeaderName::from_bytes(n.as_bytes()).unwrap(), v.parse().unwrap());
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = Query::parse(query)?;
        Route::of(&Target { method, path, query: &query, headers: &h }, &["s3.example".to_owned()])
    }

    #[test]
    fn operations() {
        use Operation::*;
        for (method, target, expected) in [
            ("GET", "/", ListBuckets),
            ("GET", "/?usage", GetAccountUsage),
            ("PUT", "/b", CreateBucket),
            ("PUT", "/b/", CreateBucket),
            ("GET", "/b?list-type=2&prefix=x", ListObjectsV2),
            ("GET", "/b?versions", ListObjectVersions),
            ("GET", "/b?uploads", ListMultipartUploads),
            ("POST", "/b?delete", DeleteObjects),
            ("POST", "/b", PostObject),
            ("DELETE", "/b?cors", DeleteBucketCors),
            ("GET", "/b/k", GetObject),
            ("HEAD", "/b/k?partNumber=1", HeadObject),
            ("PUT", "/b/k?partNumber=1&uploadId=u", UploadPart),
            ("POST", "/b/k?uploads", CreateMultipartUpload),
            ("POST", "/b/k?uploadId=u", CompleteMultipartUpload),
            ("DELETE", "/b/k?uploadId=u", AbortMultipartUpload),
            ("GET", "/b/k?attributes", GetObjectAttributes),
            ("OPTIONS", "/b/k", Preflight),
        ] {
            assert_eq!(
                route(method, target, &[]).unwrap().operation,
                expected,
                "{method} {target}"
            );
        }
        let copy = [("x-amz-copy-source", "a/b")];
        assert_eq!(route("PUT", "/b/k", &copy).unwrap().operation, CopyObject);
        for (method, target) in
            [("PUT", "/"), ("POST", "/b/k"), ("DELETE", "/b?acl"), ("FOO", "/b")]
        {
            assert_eq!(route(method, target, &[]).unwrap_err().code, ErrorCode::MethodNotAllowed);
        }
    }

    #[test]
    fn names() {
        let r = route("GET", "/t:b/a%20b//c", &[]).unwrap();
        assert_eq!((r.tenant.as_deref(), &*r.bucket, &*r.key), (Some("t"), "b", "a b//c"));
        let r = route("GET", "/k/x", &[("host", "my.bucket.s3.example:8000")]).unwrap();
        assert_eq!((&*r.bucket, &*r.key, r.virtual_host), ("my.bucket", "k/x", true));
        let r = route("GET", "/b/x", &[("host", "s3.example")]).unwrap();
        assert_eq!((&*r.bucket, r.virtual_host), ("b", false));
        assert!(route("GET", "/b/%ff", &[]).is_err());
    }

    #[test]
    fn copy_sources() {
        let s = CopySource::parse("/b/k%2Fx?versionId=null").unwrap();
        assert_eq!((&*s.bucket, &*s.key, s.version_id.as_deref()), ("b", "k/x", Some("null")));
        for bad in ["b", "/b", "b/", ""] {
            assert!(CopySource::parse(bad).is_err(), "{bad}");
        }
    }
}
