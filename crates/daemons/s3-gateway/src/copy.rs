//! Copies: of objects, and of objects into parts of uploads.

use crate::acl;
use crate::answer::{Answer, quoted};
use crate::call::{Call, Handled};
use crate::fail::{Fail, Result};
use crate::limits::{BODY_BYTES, PUT_BYTES_MAX};
use crate::multipart::part_of;
use crate::object::{
    asked_tags, coverage, kept_headers, refuse_unknown, say_version, storage_class,
};
use bytes::Bytes;
use md5::{Digest, Md5};
use s3::checksum::{Algorithm, Checksum, Hasher};
use s3::condition::{Conditions, Of};
use s3::names::check_key;
use s3::range::{Range, Span};
use s3::route::CopySource;
use s3::xml::config::Permission;
use s3::xml::{NAMESPACE, Writer};
use s3::{ErrorCode, S3Error, date};
use s3_layout::api::{NewObject, Sums};
use s3_layout::{Error, Layout, Source, Upload};

/// The object that a request copies from, which its sender may read.
async fn source<L: Layout>(call: &Call<L>) -> Result<(CopySource, L::Bucket, L::Object)> {
    let text = call.header("x-amz-copy-source").unwrap_or_default();
    let source = CopySource::parse(text)?;
    let name = call.bucket_name(source.tenant.as_deref(), &source.bucket);
    let bucket = call.layout().bucket(&name).await?;
    call.expect_owner("x-amz-source-expected-bucket-owner", bucket.as_ref())?;
    let version = source.version_id.as_deref();
    let object = match call.open(&bucket, &source.key, version, false).await {
        Err(fail) if fail.error.code == ErrorCode::MethodNotAllowed => {
            return Err(Fail::new(
                ErrorCode::InvalidRequest,
                "The source of a copy request may not specifically refer to a delete marker by version id.",
            ));
        }
        other => other?,
    };
    let info = object.as_ref();
    let action = if version.is_some() { "s3:GetObjectVersion" } else { "s3:GetObject" };
    if !call.may(bucket.as_ref(), Some(info), action, &source.key, Permission::Read) {
        return Err(ErrorCode::AccessDenied.into());
    }
    Conditions::parse(&call.headers, Of::CopySource)
        .for_copy(&info.etag, info.modified / 1_000_000_000)?;
    Ok((source, bucket, object))
}

/// Whether a directive says that the request's own values count.
fn replaces<L: Layout>(call: &Call<L>, name: &'static str) -> Result<bool> {
    match call.header(name) {
        None => Ok(false),
        Some(t) if t.eq_ignore_ascii_case("COPY") => Ok(false),
        Some(t) if t.eq_ignore_ascii_case("REPLACE") => Ok(true),
        Some(t) => Err(S3Error::argument(name, t, "COPY or REPLACE was expected").into()),
    }
}

fn result(
    root: &'static str,
    etag: &str,
    modified: u64,
    checksum: Option<&Checksum>,
    with_type: bool,
) -> String {
    let mut w = Writer::document(root, Some(NAMESPACE));
    w.text("LastModified", &date::iso8601(modified)).text("ETag", &quoted(etag));
    if let Some(c) = checksum {
        w.text(c.algorithm.element(), &c.text());
        if with_type {
            w.text("ChecksumType", coverage(c));
        }
    }
    w.finish()
}

pub(crate) async fn copy<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let key = call.route.key.clone();
    check_key(&key)?;
    refuse_unknown(&call.headers)?;
    let (named, from, object) = source(call).await?;
    let info = object.as_ref();
    let bucket = call.bucket()?;
    let new_metadata = replaces(call, "x-amz-metadata-directive")?;
    let new_tags = replaces(call, "x-amz-tagging-directive")?;
    let class = storage_class(call);
    if info.size > PUT_BYTES_MAX {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            format!(
                "The specified copy source is larger than the maximum allowable size for a copy source: {PUT_BYTES_MAX}"
            ),
        ));
    }
    let onto_itself =
        from.as_ref().id == bucket.as_ref().id && named.key == key && named.version_id.is_none();
    let changes = new_metadata
        || call.headers.contains_key("x-amz-storage-class")
        || call.headers.contains_key("x-amz-website-redirect-location");
    if onto_itself && !changes {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata, storage class, website redirect location or encryption attributes.",
        ));
    }
    let mut headers =
        if new_metadata { kept_headers(&call.headers)? } else { info.headers.clone() };
    if let Some(to) = call.header("x-amz-website-redirect-location") {
        headers.insert("x-amz-website-redirect-location".to_owned(), to.to_owned());
    }
    let new = NewObject {
        bytes: Some(info.size),
        headers,
        acl: acl::of_new_object(call, bucket.as_ref()).await?,
        tags: if new_tags { asked_tags(call)? } else { info.tags.clone() },
        storage_class: class,
        conditions: Conditions::parse(&call.headers, Of::Target),
    };
    let held = call.gateway.gate.more(info.size.min(BODY_BYTES)).await?;
    let written = call.layout().copy(&object, &bucket, &key, new).await?;
    drop(held);
    let sum = written.checksum.as_ref();
    let text = result("CopyObjectResult", &written.etag, written.modified, sum, true);
    let mut answer = Answer::xml(text);
    say_version(&mut answer, written.version.as_deref());
    answer.maybe("x-amz-copy-source-version-id", info.version.as_deref());
    Ok(answer)
}

/// Bytes of an object on their way into a part.
struct Copying<R> {
    reader: Option<R>,
    left: u64,
    md5: Md5,
    hasher: Option<Hasher>,
}

impl<R: Source> Source for Copying<R> {
    async fn next(&mut self) -> s3_layout::Result<Option<Bytes>> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let Some(piece) = reader.next().await? else { return Ok(None) };
        self.left = self.left.saturating_sub(piece.len() as u64);
        self.md5.update(&piece);
        if let Some(h) = &mut self.hasher {
            h.update(&piece);
        }
        Ok(Some(piece))
    }
}

impl<R: Source> Upload for Copying<R> {
    fn finish(&mut self) -> s3_layout::Result<Sums> {
        if self.left > 0 {
            return Err(Error::Internal(format!(
                "the source of a part ended {} bytes early",
                self.left
            )));
        }
        let md5 = std::mem::take(&mut self.md5).finalize().into();
        Ok(Sums { md5, checksum: self.hasher.take().map(Hasher::finish) })
    }
}

pub(crate) async fn part_copy<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    refuse_unknown(&call.headers)?;
    let (id, number) = part_of(call)?;
    let (bucket, key) = (call.bucket()?, call.route.key.clone());
    let (_, _, object) = source(call).await?;
    let info = object.as_ref();
    let span = match call.header("x-amz-copy-source-range") {
        None => (info.size > 0).then_some(Span { offset: 0, length: info.size }),
        Some(text) => {
            let range = Range::parse_copy(text)?;
            // Unlike a GET, a copy must name bytes that are all there.
            match range {
                Range::FromTo(_, last) if last >= info.size => {
                    return Err(Fail::new(
                        ErrorCode::InvalidRange,
                        format!(
                            "Range specified is not valid for source object of size: {}",
                            info.size
                        ),
                    ));
                }
                range => Some(range.resolve(info.size)?),
            }
        }
    };
    let length = span.map_or(0, |s| s.length);
    if length > PUT_BYTES_MAX {
        return Err(ErrorCode::EntityTooLarge.into());
    }
    let upload = call.layout().upload(&bucket, &key, &id).await?;
    let algorithm: Option<Algorithm> = upload.checksum.map(|(a, _)| a);
    let mut body = Copying {
        reader: span.map(|s| call.layout().read(&object, s)),
        left: length,
        md5: Md5::new(),
        hasher: algorithm.map(Hasher::new),
    };
    let held = call.gateway.gate.more(length.min(BODY_BYTES)).await?;
    let part = call.layout().put_part(&bucket, &key, &id, number, Some(length), &mut body).await?;
    drop(held);
    let sum = part.checksum.as_ref();
    let mut answer = Answer::xml(result("CopyPartResult", &part.etag, part.modified, sum, false));
    answer.maybe("x-amz-copy-source-version-id", info.version.as_deref());
    Ok(answer)
}
