//! Refusals as S3 clients know them: a code, an HTTP status, a message, and the XML around them.

use http::StatusCode;
use std::borrow::Cow;
use std::fmt;

macro_rules! codes {
    ($($name:ident = $status:literal, $message:literal;)*) => {
        /// An S3 error code. The name is the code on the wire.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the name is the code, and the table has its message")]
        pub enum ErrorCode { $($name,)* }

        impl ErrorCode {
            /// Every code, for tables and tests.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name,)*];

            /// The code as it stands in the XML document.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => stringify!($name),)* }
            }

            /// The HTTP status of the answer.
            pub const fn status(self) -> u16 {
                match self { $(ErrorCode::$name => $status,)* }
            }

            /// The message if the refusal has none of its own.
            pub const fn message(self) -> &'static str {
                match self { $(ErrorCode::$name => $message,)* }
            }
        }
    };
}

codes! {
    AccessControlListNotSupported = 400, "The bucket does not allow ACLs";
    AccessDenied = 403, "Access Denied";
    AuthorizationHeaderMalformed = 400, "The authorization header you provided is invalid.";
    AuthorizationQueryParametersError = 400, "The authorization query parameters are not valid.";
    BadDigest = 400, "The Content-MD5 or checksum you specified did not match what we received.";
    BucketAlreadyExists = 409, "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please select a different name and try again.";
    BucketAlreadyOwnedByYou = 409, "Your previous request to create the named bucket succeeded and you already own it.";
    BucketNotEmpty = 409, "The bucket you tried to delete is not empty.";
    ConditionalRequestConflict = 409, "A conflicting operation occurred during the conditional request. Try again.";
    EntityTooLarge = 400, "Your proposed upload exceeds the maximum allowed size.";
    EntityTooSmall = 400, "Your proposed upload is smaller than the minimum allowed size.";
    ExpiredToken = 400, "The provided token has expired.";
    IllegalVersioningConfigurationException = 400, "The versioning configuration specified in the request is invalid.";
    IncompleteBody = 400, "You did not provide the number of bytes specified by the Content-Length HTTP header.";
    IncorrectNumberOfFilesInPostRequest = 400, "POST requires exactly one file upload per request.";
    InternalError = 500, "We encountered an internal error. Please try again.";
    InvalidAccessKeyId = 403, "The access key ID you provided does not exist in our records.";
    InvalidArgument = 400, "Invalid Argument";
    InvalidBucketAclWithObjectOwnership = 400, "Bucket cannot have ACLs set with ObjectOwnership's BucketOwnerEnforced setting";
    InvalidBucketName = 400, "The specified bucket is not valid.";
    InvalidBucketState = 409, "The request is not valid with the current state of the bucket.";
    InvalidDigest = 400, "The Content-MD5 or checksum value that you specified is not valid.";
    InvalidLocationConstraint = 400, "The specified location constraint is not valid.";
    InvalidObjectState = 403, "The operation is not valid for the current state of the object.";
    InvalidPart = 400, "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified entity tag may not match the part's entity tag.";
    InvalidPartNumber = 416, "The requested partnumber is not satisfiable";
    InvalidPartOrder = 400, "The list of parts was not in ascending order. The parts list must be specified in order by part number.";
    InvalidPolicyDocument = 400, "The content of the form does not meet the conditions specified in the policy document.";
    InvalidRange = 416, "The requested range is not satisfiable";
    InvalidRequest = 400, "Invalid Request";
    InvalidSecurity = 403, "The provided security credentials are not valid.";
    InvalidStorageClass = 400, "The storage class you specified is not valid.";
    InvalidTag = 400, "The tag provided was not a valid tag.";
    InvalidToken = 400, "The provided token is malformed or otherwise invalid.";
    InvalidURI = 400, "Couldn't parse the specified URI.";
    KeyTooLongError = 400, "Your key is too long.";
    MalformedACLError = 400, "The XML you provided was not well-formed or did not validate against our published schema.";
    MalformedPOSTRequest = 400, "The body of your POST request is not well-formed multipart/form-data.";
    MalformedPolicy = 400, "Policies must be valid JSON and the first byte must be '{'";
    MalformedXML = 400, "The XML you provided was not well-formed or did not validate against our published schema.";
    MaxMessageLengthExceeded = 400, "Your request was too large.";
    MaxPostPreDataLengthExceeded = 400, "Your POST request fields preceding the upload file were too large.";
    MetadataTooLarge = 400, "Your metadata headers exceed the maximum allowed metadata size.";
    MethodNotAllowed = 405, "The specified method is not allowed against this resource.";
    MissingContentLength = 411, "You must provide the Content-Length HTTP header.";
    MissingSecurityHeader = 400, "Your request is missing a required header.";
    NoSuchBucket = 404, "The specified bucket does not exist.";
    NoSuchBucketPolicy = 404, "The bucket policy does not exist";
    NoSuchCORSConfiguration = 404, "The CORS configuration does not exist";
    NoSuchKey = 404, "The specified key does not exist.";
    NoSuchLifecycleConfiguration = 404, "The lifecycle configuration does not exist";
    NoSuchObjectLockConfiguration = 404, "The specified object does not have a ObjectLock configuration";
    NoSuchPublicAccessBlockConfiguration = 404, "The public access block configuration was not found";
    NoSuchTagSet = 404, "The TagSet does not exist";
    NoSuchTagSetError = 404, "The TagSet does not exist";
    NoSuchUpload = 404, "The specified multipart upload does not exist. The upload ID might be invalid, or the multipart upload might have been aborted or completed.";
    NoSuchUser = 404, "The user does not exist.";
    NoSuchVersion = 404, "The specified version does not exist.";
    NoSuchWebsiteConfiguration = 404, "The specified bucket does not have a website configuration";
    NotImplemented = 501, "A header or query you provided implies functionality that is not implemented.";
    NotModified = 304, "Not Modified";
    ObjectLockConfigurationNotFoundError = 404, "Object Lock configuration does not exist for this bucket";
    OperationAborted = 409, "A conflicting conditional operation is currently in progress against this resource. Try again.";
    OwnershipControlsNotFoundError = 404, "The bucket ownership controls were not found";
    PermanentRedirect = 301, "The bucket you are attempting to access must be addressed using the specified endpoint.";
    PreconditionFailed = 412, "At least one of the pre-conditions you specified did not hold";
    QuotaExceeded = 403, "The quota of the user or bucket does not allow this request.";
    RequestTimeout = 400, "Your socket connection to the server was not read from or written to within the timeout period.";
    RequestTimeTooSkewed = 403, "The difference between the request time and the server's time is too large.";
    ServerSideEncryptionConfigurationNotFoundError = 404, "The server side encryption configuration was not found";
    ServiceUnavailable = 503, "Service is unable to handle request.";
    SignatureDoesNotMatch = 403, "The request signature we calculated does not match the signature you provided. Check your key and signing method.";
    SlowDown = 503, "Please reduce your request rate.";
    TooManyBuckets = 400, "You have attempted to create more buckets than allowed.";
    UnexpectedContent = 400, "This request does not support content.";
    UnresolvableGrantByEmailAddress = 400, "The e-mail address you provided does not match any account on record.";
    UserSuspended = 403, "The user is suspended.";
    XAmzContentChecksumMismatch = 400, "The provided 'x-amz-checksum' header does not match what was computed.";
    XAmzContentSHA256Mismatch = 400, "The provided 'x-amz-content-sha256' header does not match what was computed.";
}

/// A refusal of one request: its code, what went wrong in words, and further elements of the
/// document (`BucketName`, `ArgumentName`, ...).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct S3Error {
    /// The code.
    pub code: ErrorCode,
    /// The message: what was expected, what was found.
    pub message: Cow<'static, str>,
    /// Further elements, in order.
    pub details: Vec<(&'static str, String)>,
}

impl fmt::Display for S3Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

/// What the parsers and checks of this crate return.
pub type Result<T> = std::result::Result<T, S3Error>;

impl From<ErrorCode> for S3Error {
    fn from(code: ErrorCode) -> S3Error {
        S3Error { code, message: Cow::Borrowed(code.message()), details: Vec::new() }
    }
}

impl S3Error {
    /// A refusal with a message of its own.
    pub fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> S3Error {
        S3Error { code, message: message.into(), details: Vec::new() }
    }

    /// `InvalidArgument` that names the argument and its value, as clients show it.
    pub fn argument(
        name: &'static str,
        value: impl Into<String>,
        message: impl Into<Cow<'static, str>>,
    ) -> S3Error {
        S3Error {
            code: ErrorCode::InvalidArgument,
            message: message.into(),
            details: vec![("ArgumentName", name.into()), ("ArgumentValue", value.into())],
        }
    }

    /// Adds an element to the document.
    pub fn with(mut self, element: &'static str, value: impl Into<String>) -> S3Error {
        self.details.push((element, value.into()));
        self
    }

    /// The HTTP status of the answer.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The document of the answer's body. An answer to HEAD, and a 304, have none.
    pub fn to_xml(&self, resource: &str, request_id: &str, host_id: &str) -> String {
        let mut w = crate::xml::Writer::document("Error", None);
        w.text("Code", self.code.as_str());
        w.text("Message", &self.message);
        for (name, value) in &self.details {
            w.text(name, value);
        }
        if !resource.is_empty() {
            w.text("Resource", resource);
        }
        w.text("RequestId", request_id);
        w.text("HostId", host_id);
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_a_status() {
        for code in ErrorCode::ALL {
            assert!(StatusCode::from_u16(code.status()).is_ok(), "{}", code.as_str());
            assert!(!code.message().is_empty());
        }
    }

    #[test]
    fn a_document_escapes_what_the_request_said() {
        let e = S3Error::from(ErrorCode::NoSuchKey).with("Key", "a<b>&\"c");
        let xml = e.to_xml("/b/a<b>", "tx1", "h");
        assert!(
            xml.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>NoSuchKey")
        );
        assert!(xml.contains("<Key>a&lt;b&gt;&amp;&quot;c</Key>"), "{xml}");
        assert!(xml.ends_with("<RequestId>tx1</RequestId><HostId>h</HostId></Error>"), "{xml}");
    }
}
