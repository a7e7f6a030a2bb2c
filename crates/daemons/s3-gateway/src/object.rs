//! Objects: read, write, delete.

use crate::acl;
use crate::answer::{Answer, Outgoing, quoted};
use crate::call::{Call, Handled};
use crate::fail::{Fail, Result};
use crate::limits::BODY_BYTES;
use crate::rights::action;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use s3::checksum::Checksum;
use s3::condition::{Conditions, Of};
use s3::names::check_key;
use s3::range::{Range, Span};
use s3::xml::config::{Permission, TagSet};
use s3::xml::multi::Delete;
use s3::xml::{Limits, NAMESPACE, Writer};
use s3::{ErrorCode, Operation, S3Error, date};
use s3_layout::api::{Bucket, NewObject, Object, PartSpan};
use s3_layout::{Layout, Source as _};
use s3_rules::lifecycle;
use std::collections::BTreeMap;
use tokio::task::JoinSet;

/// Headers that are kept with an object, besides `x-amz-meta-*`.
const KEPT: [&str; 7] = [
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
];

/// The type of an object that was written without one.
const DEFAULT_TYPE: &str = "binary/octet-stream";

/// The most bytes of names and values of metadata: what fits into an attribute with room to spare.
const METADATA_BYTES_MAX: usize = 32 << 10;

/// Text of a header: UTF-8, or bytes of ISO 8859-1.
fn text(value: &http::HeaderValue) -> String {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => value.as_bytes().iter().map(|b| char::from(*b)).collect(),
    }
}

/// The headers of a request that are kept with its object.
pub(crate) fn kept_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>> {
    let mut kept = BTreeMap::new();
    let mut bytes = 0;
    for name in headers.keys() {
        let name = name.as_str();
        if !KEPT.contains(&name) && !name.starts_with("x-amz-meta-") {
            continue;
        }
        let mut value: Vec<String> = headers.get_all(name).iter().map(text).collect();
        if name == "content-encoding" {
            // The form of the body on the wire is not that of the object.
            value = value
                .iter()
                .flat_map(|v| v.split(','))
                .map(|v| v.trim().to_owned())
                .filter(|v| !v.is_empty() && v != "aws-chunked")
                .collect();
            if value.is_empty() {
                continue;
            }
        }
        let value = value.join(if name == "content-encoding" { ", " } else { "," });
        bytes += name.len() + value.len();
        kept.insert(name.to_owned(), value);
    }
    if bytes > METADATA_BYTES_MAX {
        return Err(S3Error::from(ErrorCode::MetadataTooLarge)
            .with("Size", bytes.to_string())
            .with("MaxSizeAllowed", METADATA_BYTES_MAX.to_string())
            .into());
    }
    Ok(kept)
}

/// Refuses what a request asks for in headers and the gateway does not do: data would not be
/// encrypted or locked as its owner believes.
pub(crate) fn refuse_unknown(headers: &HeaderMap) -> Result<()> {
    for name in headers.keys() {
        let name = name.as_str();
        let copies = name.strip_prefix("x-amz-copy-source-").map(|n| format!("x-amz-{n}"));
        let name = copies.as_deref().unwrap_or(name);
        let not_there = name.starts_with("x-amz-server-side-encryption")
            || name.starts_with("x-amz-object-lock-")
            || name == "x-amz-write-offset-bytes";
        if not_there {
            return Err(Fail::new(
                ErrorCode::NotImplemented,
                format!("the header {name} implies functionality that is not implemented"),
            ));
        }
    }
    Ok(())
}

/// The tags of a request's header.
pub(crate) fn asked_tags<L: Layout>(call: &Call<L>) -> Result<TagSet> {
    Ok(match call.header("x-amz-tagging") {
        Some(text) => TagSet::of_header(text, TagSet::OBJECT_MAX)?,
        None => TagSet::default(),
    })
}

/// The storage class of a request; empty for the standard one.
pub(crate) fn storage_class<L: Layout>(call: &Call<L>) -> String {
    let class = call.header("x-amz-storage-class").unwrap_or_default();
    if class == "STANDARD" { String::new() } else { class.to_owned() }
}

/// Says when the bucket's lifecycle lets an object expire, if it does.
pub(crate) fn say_expiration<R>(
    answer: &mut Answer<R>,
    bucket: &Bucket,
    key: &str,
    tags: &TagSet,
    modified: u64,
) {
    if let Some(lifecycle) = &bucket.settings.lifecycle {
        let said = lifecycle::expiration(lifecycle, key, &tags.0, modified / SECOND);
        answer.maybe("x-amz-expiration", said.as_deref());
    }
}

/// Says which version was written. As with Ceph's gateway, the null version is none.
pub(crate) fn say_version<R>(answer: &mut Answer<R>, version: Option<&str>) {
    answer.maybe("x-amz-version-id", version.filter(|v| *v != "null"));
}

/// Says a checksum in headers.
pub(crate) fn say_checksum<R>(answer: &mut Answer<R>, checksum: Option<&Checksum>) {
    if let Some(c) = checksum {
        answer.header(c.algorithm.header(), c.text());
        answer.header("x-amz-checksum-type", coverage(c));
    }
}

/// What a checksum covers: a composite one says of how many parts it is.
pub(crate) fn coverage(checksum: &Checksum) -> &'static str {
    if checksum.parts.is_some() { "COMPOSITE" } else { "FULL_OBJECT" }
}

/// The storage class as documents have it.
pub(crate) fn shown_class(class: &str) -> &str {
    if class.is_empty() { "STANDARD" } else { class }
}

const SECOND: u64 = 1_000_000_000;

pub(crate) async fn put<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let key = call.route.key.clone();
    check_key(&key)?;
    refuse_unknown(&call.headers)?;
    let bucket = call.bucket()?;
    let declared = call.declared()?;
    let new = NewObject {
        bytes: declared.bytes,
        headers: kept_headers(&call.headers)?,
        acl: acl::of_new_object(call, bucket.as_ref()).await?,
        tags: asked_tags(call)?,
        storage_class: storage_class(call),
        conditions: Conditions::parse(&call.headers, Of::Target),
    };
    let mut body = call.inbound(declared, None)?;
    let tags = new.tags.clone();
    let written = call.layout().put(&bucket, &key, new, &mut body).await?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.header("etag", quoted(&written.etag));
    say_expiration(&mut answer, bucket.as_ref(), &key, &tags, written.modified);
    say_version(&mut answer, written.version.as_deref());
    say_checksum(&mut answer, written.checksum.as_ref());
    Ok(answer)
}

/// Headers of an answer that a signed request may choose.
const OVERRIDES: [(&str, &str); 6] = [
    ("response-content-type", "content-type"),
    ("response-cache-control", "cache-control"),
    ("response-content-disposition", "content-disposition"),
    ("response-content-encoding", "content-encoding"),
    ("response-content-language", "content-language"),
    ("response-expires", "expires"),
];

/// What a GET or HEAD is about: all of an object, or some of it.
struct Wanted {
    span: Option<Span>,
    partial: bool,
    /// The part that was asked for, if the object has parts.
    part: Option<PartSpan>,
    parts: Option<usize>,
}

fn wanted<L: Layout>(call: &Call<L>, object: &L::Object) -> Result<Wanted> {
    let size = object.as_ref().size;
    let whole = || (size > 0).then_some(Span { offset: 0, length: size });
    let range = call.header("range").and_then(Range::parse);
    let Some(number) = call.query.number("partNumber", u64::from(s3::xml::multi::PARTS_MAX))?
    else {
        return Ok(match range {
            Some(r) => {
                Wanted { span: Some(r.resolve(size)?), partial: true, part: None, parts: None }
            }
            None => Wanted { span: whole(), partial: false, part: None, parts: None },
        });
    };
    if range.is_some() {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "Cannot specify both Range header and partNumber query parameter",
        ));
    }
    let parts = call.layout().parts(object);
    if parts.is_empty() && number == 1 {
        return Ok(Wanted { span: whole(), partial: true, part: None, parts: None });
    }
    let part = parts.iter().find(|p| u64::from(p.number) == number).cloned();
    // As Ceph's gateway has it (20.1); S3 itself answers InvalidPartNumber.
    let part = part.ok_or_else(|| Fail::from(ErrorCode::InvalidPart))?;
    let span = (part.length > 0).then_some(Span { offset: part.offset, length: part.length });
    Ok(Wanted { span, partial: true, part: Some(part), parts: Some(parts.len()) })
}

/// The headers that tell of an object.
fn describe<R>(answer: &mut Answer<R>, info: &Object) {
    answer.header("etag", quoted(&info.etag));
    answer.header("last-modified", date::http_date(info.modified / SECOND));
    answer.header("accept-ranges", "bytes");
    answer.maybe("x-amz-version-id", info.version.as_deref());
    answer.header("content-type", DEFAULT_TYPE);
    for (name, value) in &info.headers {
        answer.header(name, value);
    }
    if !info.tags.0.is_empty() {
        answer.header("x-amz-tagging-count", info.tags.0.len().to_string());
    }
    if !info.storage_class.is_empty() && info.storage_class != "STANDARD" {
        answer.header("x-amz-storage-class", &info.storage_class);
    }
}

pub(crate) async fn get<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let is_head = call.is_head();
    refuse_unknown(&call.headers)?;
    let (bucket, version) = (call.bucket()?, call.version()?);
    let object = call.open(&bucket, &call.route.key, version.as_deref(), !is_head).await?;
    let info = object.as_ref();
    call.need_object(info, Permission::Read)?;
    let conditions = Conditions::parse(&call.headers, Of::Target);
    if let Err(e) = conditions.for_read(&info.etag, info.modified / SECOND) {
        let mut fail = Fail::from(e);
        fail.headers.push(("etag", quoted(&info.etag)));
        fail.headers.push(("last-modified", date::http_date(info.modified / SECOND)));
        fail.headers.extend(info.version.clone().map(|v| ("x-amz-version-id", v)));
        return Err(fail);
    }
    let wanted = wanted(call, &object)?;
    let status = match wanted.span {
        Some(_) if wanted.partial => StatusCode::PARTIAL_CONTENT,
        _ => StatusCode::OK,
    };
    let mut answer = Answer::empty(status);
    describe(&mut answer, info);
    if version.is_none() {
        say_expiration(&mut answer, bucket.as_ref(), &info.key, &info.tags, info.modified);
    }
    for (parameter, header) in OVERRIDES {
        if let Some(value) = call.query.get(parameter) {
            if call.sender.user.is_none() {
                return Err(Fail::new(
                    ErrorCode::InvalidRequest,
                    "Request specific response headers cannot be used for anonymous GET requests.",
                ));
            }
            answer.header(header, value);
        }
    }
    if let (true, Some(span)) = (wanted.partial, wanted.span) {
        answer.header("content-range", span.content_range(info.size));
    }
    if let Some(count) = wanted.parts {
        answer.header("x-amz-mp-parts-count", count.to_string());
    }
    let sums =
        call.header("x-amz-checksum-mode").is_some_and(|m| m.eq_ignore_ascii_case("ENABLED"));
    let all = wanted.span.is_none_or(|s| s.length == info.size) && wanted.part.is_none();
    if sums && all {
        say_checksum(&mut answer, info.checksum.as_ref());
    } else if let (true, Some(c)) = (sums, wanted.part.and_then(|p| p.checksum)) {
        answer.header(c.algorithm.header(), c.text());
        if let Some(whole) = &info.checksum {
            answer.header("x-amz-checksum-type", coverage(whole));
        }
    }
    let length = wanted.span.map_or(0, |s| s.length);
    if is_head {
        answer.header("content-length", length.to_string());
        return Ok(answer);
    }
    let Some(span) = wanted.span else { return Ok(answer) };
    let held = call.gateway.gate.more(length.min(BODY_BYTES)).await?;
    let mut reader = call.layout().read(&object, span);
    // The first piece is here before the head of the answer goes: what fails at once is told.
    let first = reader.next().await?.unwrap_or_else(Bytes::new);
    answer.body = Outgoing::stream(first, reader, length);
    answer.body.hold(held);
    Ok(answer)
}

pub(crate) async fn delete<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let (bucket, version) = (call.bucket()?, call.version()?);
    let conditions = Conditions::of_delete(&call.headers)?;
    let key = &call.route.key;
    let deleted = call.layout().delete(&bucket, key, version.as_deref(), &conditions).await?;
    let mut answer = Answer::empty(StatusCode::NO_CONTENT);
    answer.maybe("x-amz-version-id", deleted.version.as_deref());
    if deleted.marker {
        answer.header("x-amz-delete-marker", "true");
    }
    Ok(answer)
}

/// How many objects of one request are deleted at the same time.
const DELETES_AT_A_TIME: usize = 16;

pub(crate) async fn delete_many<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let bucket = call.bucket()?;
    let text = call.document(Limits::LIST.bytes).await?;
    let asked = Delete::parse(&text)?;
    let mut outcomes = Vec::new();
    outcomes.resize_with(asked.objects.len(), || None);
    let mut under_way = JoinSet::new();
    for (at, o) in asked.objects.iter().enumerate() {
        let what = action(Operation::DeleteObject, o.version_id.is_some());
        if !call.may(bucket.as_ref(), None, what, &o.key, Permission::Write) {
            outcomes[at] = Some(Err(S3Error::from(ErrorCode::AccessDenied)));
            continue;
        }
        if under_way.len() >= DELETES_AT_A_TIME
            && let Some(Ok((done, outcome))) = under_way.join_next().await
        {
            outcomes[done] = Some(outcome);
        }
        let (gateway, bucket, o) = (call.gateway.clone(), bucket.clone(), o.clone());
        under_way.spawn_local(async move {
            let version = o.version_id.as_deref();
            let deleted = gateway.layout.delete(&bucket, &o.key, version, &o.conditions).await;
            (at, deleted.map_err(|e| Fail::from(e).error))
        });
    }
    while let Some(Ok((at, outcome))) = under_way.join_next().await {
        outcomes[at] = Some(outcome);
    }
    let mut w = Writer::document("DeleteResult", Some(NAMESPACE));
    for (o, outcome) in asked.objects.iter().zip(outcomes) {
        match outcome.unwrap_or_else(|| Err(ErrorCode::InternalError.into())) {
            Ok(_) if asked.quiet => {}
            Ok(deleted) => {
                w.open("Deleted").text("Key", &o.key);
                w.maybe("VersionId", o.version_id.as_deref());
                if deleted.marker {
                    w.text("DeleteMarker", "true");
                    w.maybe("DeleteMarkerVersionId", deleted.version.as_deref());
                }
                w.close();
            }
            Err(e) => {
                w.open("Error").text("Key", &o.key);
                w.maybe("VersionId", o.version_id.as_deref());
                w.text("Code", e.code.as_str()).text("Message", &e.message).close();
            }
        }
    }
    Ok(Answer::xml(w.finish()))
}

/// The most parts of one answer.
const PARTS_SHOWN_MAX: u64 = 1000;

pub(crate) async fn attributes<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    const KNOWN: [&str; 5] = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];
    let mut asked = Vec::new();
    for value in call.headers.get_all("x-amz-object-attributes") {
        for name in value.to_str().unwrap_or_default().split(',').map(str::trim) {
            if !KNOWN.contains(&name) {
                return Err(S3Error::argument(
                    "x-amz-object-attributes",
                    name,
                    "Invalid attribute name specified",
                )
                .into());
            }
            asked.push(name.to_owned());
        }
    }
    if asked.is_empty() {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "The x-amz-object-attributes header specifying the attributes to be retrieved is missing",
        ));
    }
    let number = |name: &str, default: u64| match call.header(name) {
        None => Ok(default),
        Some(text) => text
            .trim()
            .parse::<u64>()
            .map_err(|_| Fail::new(ErrorCode::InvalidArgument, format!("{name} must be a number"))),
    };
    let max = number("x-amz-max-parts", PARTS_SHOWN_MAX)?.min(PARTS_SHOWN_MAX) as usize;
    let after = number("x-amz-part-number-marker", 0)?;
    let (bucket, version) = (call.bucket()?, call.version()?);
    let object = call.open(&bucket, &call.route.key, version.as_deref(), false).await?;
    let info = object.as_ref();
    call.need_object(info, Permission::Read)?;
    let has = |name: &str| asked.iter().any(|a| a == name);
    let mut w = Writer::document("GetObjectAttributesResponse", Some(NAMESPACE));
    if has("ETag") {
        w.text("ETag", &info.etag);
    }
    if let (true, Some(c)) = (has("Checksum"), &info.checksum) {
        w.open("Checksum").text(c.algorithm.element(), &c.text());
        w.text("ChecksumType", coverage(c)).close();
    }
    let parts = call.layout().parts(&object);
    if has("ObjectParts") && !parts.is_empty() {
        let rest: Vec<_> = parts.iter().filter(|p| u64::from(p.number) > after).collect();
        let shown = &rest[..rest.len().min(max)];
        w.open("ObjectParts").value("PartsCount", parts.len());
        w.value("PartNumberMarker", after);
        w.value("NextPartNumberMarker", shown.last().map_or(after, |p| u64::from(p.number)));
        w.value("MaxParts", max).value("IsTruncated", shown.len() < rest.len());
        for p in shown {
            w.open("Part").value("PartNumber", p.number).value("Size", p.length);
            if let Some(c) = &p.checksum {
                w.text(c.algorithm.element(), &c.text());
            }
            w.close();
        }
        w.close();
    }
    if has("StorageClass") {
        w.text("StorageClass", shown_class(&info.storage_class));
    }
    if has("ObjectSize") {
        w.value("ObjectSize", info.size);
    }
    let mut answer = Answer::xml(w.finish());
    answer.header("last-modified", date::http_date(info.modified / SECOND));
    answer.maybe("x-amz-version-id", info.version.as_deref());
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_headers_are_those_of_the_object() {
        let mut h = HeaderMap::new();
        for (n, v) in [
            ("content-type", &b"text/plain"[..]),
            ("content-encoding", b"aws-chunked, gzip"),
            ("x-amz-meta-a", b"1"),
            ("x-amz-meta-b", "\u{e4}".as_bytes()),
            ("x-amz-meta-c", b"\xe4"),
            ("x-amz-acl", b"private"),
            ("authorization", b"secret"),
        ] {
            let v = http::HeaderValue::from_bytes(v).unwrap();
            h.append(http::HeaderName::from_static(n), v);
        }
        h.append("x-amz-meta-a", "2".parse().unwrap());
        let kept = kept_headers(&h).unwrap();
        let get = |n: &str| kept.get(n).map(String::as_str);
        assert_eq!(get("content-encoding"), Some("gzip"));
        assert_eq!(get("x-amz-meta-a"), Some("1,2"));
        assert_eq!(get("x-amz-meta-b"), Some("\u{e4}"));
        assert_eq!(get("x-amz-meta-c"), Some("\u{e4}"));
        assert_eq!(kept.len(), 5);
        h.insert("content-encoding", "aws-chunked".parse().unwrap());
        assert!(!kept_headers(&h).unwrap().contains_key("content-encoding"));
        h.insert("x-amz-meta-d", "x".repeat(METADATA_BYTES_MAX).parse().unwrap());
        assert_eq!(kept_headers(&h).unwrap_err().error.code, ErrorCode::MetadataTooLarge);
    }

    #[test]
    fn encryption_is_refused_and_not_ignored() {
        for name in [
            "x-amz-server-side-encryption",
            "x-amz-server-side-encryption-customer-key",
            "x-amz-copy-source-server-side-encryption-customer-key",
            "x-amz-object-lock-mode",
        ] {
            let mut h = HeaderMap::new();
            h.insert(http::HeaderName::from_static(name), "x".parse().unwrap());
            let refused = refuse_unknown(&h).unwrap_err();
            assert_eq!(refused.error.code, ErrorCode::NotImplemented, "{name}");
        }
        let mut h = HeaderMap::new();
        h.insert("x-amz-copy-source-if-match", "x".parse().unwrap());
        refuse_unknown(&h).unwrap();
    }
}
