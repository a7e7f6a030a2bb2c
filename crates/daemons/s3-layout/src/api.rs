//! The trait [`Layout`] and its words.
//!
//! Texts are UTF-8. Times are nanoseconds since 1970. A version is named by its id as clients see
//! it, `null` for the null version.

mod bucket;
mod error;
mod list;
mod object;
mod upload;
mod user;

pub use bucket::{
    Bucket, BucketChange, BucketEntry, BucketName, BucketPage, BucketStats, NewBucket, Settings,
};
pub use error::{Error, Result};
pub use list::{Entry, List, Listing};
pub use object::{
    Deleted, NewObject, Object, ObjectChange, PartSpan, Source, Sums, Upload, Written,
};
pub use upload::{Complete, NewUpload, Part, PartPage, PendingUpload, UploadPage, Uploads};
pub use user::{AccessKey, Quota, User, UserChange, UserId};

use s3::condition::Conditions;
use s3::range::Span;
use s3::xml::multi::CompletePart;
use std::rc::Rc;

/// Buckets and objects.
///
/// A change that returns `Ok` is durable, and visible to every gateway of the cluster. One that
/// fails, or is given up by dropping its future, leaves either the old state or the new one; data
/// that it wrote beside them is removed later by the layout itself.
///
/// Rights are not looked at here: whether a request is allowed is decided by the caller, from
/// [`User`], [`Bucket::settings`] and [`Object::acl`].
#[allow(async_fn_in_trait, reason = "a layout and its callers live on one thread")]
pub trait Layout: 'static {
    /// A bucket that was looked up. Cheap to clone; it may be as old as the layout's cache, and
    /// calls with it find out when it is too old.
    type Bucket: AsRef<Bucket> + Clone;
    /// An object of which the head was read. Later reads are of this state of the object, or fail.
    type Object: AsRef<Object>;
    /// The bytes of a range.
    type Reader: Source;

    /// A user by id. [`ErrorCode::NoSuchUser`](s3::ErrorCode::NoSuchUser) if there is none.
    async fn user(&self, id: &UserId) -> Result<Rc<User>>;

    /// The user of an access key. `InvalidAccessKeyId` if there is none.
    async fn user_of_key(&self, access_key: &str) -> Result<Rc<User>>;

    /// The user with an email address. `UnresolvableGrantByEmailAddress` if there is none.
    async fn user_of_email(&self, email: &str) -> Result<Rc<User>>;

    /// Makes a user. `InvalidRequest` if the id, a key or the address is in use.
    async fn create_user(&self, user: &User) -> Result<()>;

    /// Changes a user.
    async fn change_user(&self, id: &UserId, change: UserChange) -> Result<()>;

    /// The buckets that a user owns, by name, after `after`.
    async fn buckets_of(&self, owner: &UserId, after: &str, max: usize) -> Result<BucketPage>;

    /// A bucket. `NoSuchBucket` if there is none.
    async fn bucket(&self, name: &BucketName) -> Result<Self::Bucket>;

    /// Makes a bucket. `BucketAlreadyExists` if another user has it, `BucketAlreadyOwnedByYou` if
    /// the owner has it already, `TooManyBuckets` if the owner has as many as allowed.
    async fn create_bucket(&self, new: NewBucket) -> Result<Self::Bucket>;

    /// Removes a bucket. `BucketNotEmpty` if it has objects, versions or delete markers. Uploads
    /// under way are aborted.
    async fn delete_bucket(&self, bucket: &Self::Bucket) -> Result<()>;

    /// Changes settings of a bucket.
    async fn change_bucket(&self, bucket: &Self::Bucket, change: BucketChange) -> Result<()>;

    /// How much is in a bucket.
    async fn bucket_stats(&self, bucket: &Self::Bucket) -> Result<BucketStats>;

    /// Reads the head of an object: of the current version without `version`. `NoSuchKey`,
    /// `NoSuchVersion`, or [`Error::DeleteMarker`]. With `first_bytes` the beginning of the data
    /// is fetched in the same round trip: for GET, not for HEAD.
    async fn open(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        version: Option<&str>,
        first_bytes: bool,
    ) -> Result<Self::Object>;

    /// Reads a range of an object. Nothing is fetched before the first call of
    /// [`Source::next`]; a bounded part of the range is fetched ahead of the reader.
    fn read(&self, object: &Self::Object, span: Span) -> Self::Reader;

    /// The parts of an object that was uploaded in parts, in order; none for others.
    fn parts(&self, object: &Self::Object) -> Vec<PartSpan>;

    /// Writes an object: a new version where the bucket has versions. The object appears after
    /// [`Upload::finish`] agreed, as a whole.
    async fn put(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        new: NewObject,
        body: &mut impl Upload,
    ) -> Result<Written>;

    /// Writes an object that has the bytes of another, or changes what is said of an object if it
    /// is a copy onto itself. Data may be shared rather than copied.
    async fn copy(
        &self,
        source: &Self::Object,
        bucket: &Self::Bucket,
        key: &str,
        new: NewObject,
    ) -> Result<Written>;

    /// Deletes: without `version` the object, which adds a delete marker where the bucket has
    /// versions; with it that version. A key that is not there is no error. `conditions` are
    /// judged against the object in the same step.
    async fn delete(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        version: Option<&str>,
        conditions: &Conditions,
    ) -> Result<Deleted>;

    /// Changes ACL or tags of an object, and returns the version that was changed.
    async fn change_object(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        version: Option<&str>,
        change: ObjectChange,
    ) -> Result<Option<String>>;

    /// Lists objects or versions, in order of key; versions of a key from the newest on.
    async fn list(&self, bucket: &Self::Bucket, what: &List) -> Result<Listing>;

    /// Begins an upload in parts: its id.
    async fn create_upload(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        new: NewUpload,
    ) -> Result<String>;

    /// An upload under way. `NoSuchUpload` if there is none.
    async fn upload(&self, bucket: &Self::Bucket, key: &str, id: &str) -> Result<PendingUpload>;

    /// Writes a part of an upload; one with the same number is replaced. Part copies are read with
    /// [`Layout::read`] and written with this.
    async fn put_part(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        id: &str,
        number: u32,
        bytes: Option<u64>,
        body: &mut impl Upload,
    ) -> Result<Part>;

    /// The parts of an upload with numbers above `after`.
    async fn list_parts(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        id: &str,
        after: u32,
        max: usize,
    ) -> Result<PartPage>;

    /// Makes an object of parts, which `options` are judged of in the same step. `InvalidPart`,
    /// `InvalidPartOrder`, `EntityTooSmall`. An upload that was completed with the same parts
    /// already is answered as the first time.
    async fn complete_upload(
        &self,
        bucket: &Self::Bucket,
        key: &str,
        id: &str,
        parts: &[CompletePart],
        options: &Complete,
    ) -> Result<Written>;

    /// Gives an upload up.
    async fn abort_upload(&self, bucket: &Self::Bucket, key: &str, id: &str) -> Result<()>;

    /// Lists uploads under way, by key and id.
    async fn list_uploads(&self, bucket: &Self::Bucket, what: &Uploads) -> Result<UploadPage>;

    /// Notes a request for the usage log, if that is kept. It is written later.
    fn note_usage(&self, usage: Usage);
}

/// What a request is accounted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The bucket's owner, or the sender if there is no bucket.
    pub owner: UserId,
    /// The sender, if it pays.
    pub payer: Option<UserId>,
    /// The bucket's name; empty for none.
    pub bucket: String,
    /// The kind of request, in RGW's words (`put_obj`, `get_obj`, `list_bucket`, ...).
    pub category: &'static str,
    /// Bytes that were sent to the client.
    pub bytes_sent: u64,
    /// Bytes that came from the client.
    pub bytes_received: u64,
    /// Whether it was answered with success.
    pub succeeded: bool,
}
