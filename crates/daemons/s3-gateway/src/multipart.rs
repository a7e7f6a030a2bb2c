//! Uploads in parts.

use crate::acl;
use crate::answer::{Answer, quoted};
use crate::call::{Call, Handled};
use crate::fail::{Fail, Result};
use crate::list::{Encoding, maximum};
use crate::object::{asked_tags, coverage, kept_headers, refuse_unknown, say_checksum};
use crate::object::{say_version, shown_class, storage_class};
use http::StatusCode;
use s3::checksum::{Algorithm, Coverage, Promise, promised};
use s3::condition::{Conditions, Of};
use s3::names::check_key;
use s3::xml::config::Permission;
use s3::xml::multi::{CompletePart, PARTS_MAX, parse_complete};
use s3::xml::{Limits, NAMESPACE, Writer};
use s3::{ErrorCode, S3Error, date, etag};
use s3_layout::Layout;
use s3_layout::api::{Complete, NewUpload, PendingUpload, Uploads, Written};

/// The checksum that a new upload asks for.
fn asked_checksum<L: Layout>(call: &Call<L>) -> Result<Option<(Algorithm, Coverage)>> {
    let coverage = call.header("x-amz-checksum-type").map(Coverage::parse).transpose()?;
    let Some(name) = call.header("x-amz-checksum-algorithm") else {
        return match coverage {
            None => Ok(None),
            Some(_) => Err(Fail::new(
                ErrorCode::InvalidRequest,
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )),
        };
    };
    let algorithm = Algorithm::parse(name)?;
    let coverage = coverage.unwrap_or(algorithm.default_coverage());
    if !algorithm.allows(coverage) {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            format!(
                "The {} checksum type cannot be used with the {} checksum algorithm.",
                coverage.as_str(),
                algorithm.name()
            ),
        ));
    }
    Ok(Some((algorithm, coverage)))
}

pub(crate) async fn create<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let key = call.route.key.clone();
    check_key(&key)?;
    refuse_unknown(&call.headers)?;
    let bucket = call.bucket()?;
    let checksum = asked_checksum(call)?;
    let new = NewUpload {
        headers: kept_headers(&call.headers)?,
        acl: acl::of_new_object(call, bucket.as_ref()).await?,
        tags: asked_tags(call)?,
        storage_class: storage_class(call),
        checksum,
    };
    let id = call.layout().create_upload(&bucket, &key, new).await?;
    let mut w = Writer::document("InitiateMultipartUploadResult", Some(NAMESPACE));
    w.text("Bucket", &call.route.bucket).text("Key", &key).text("UploadId", &id);
    let mut answer = Answer::xml(w.finish());
    if let Some((algorithm, coverage)) = checksum {
        answer.header("x-amz-checksum-algorithm", algorithm.name());
        answer.header("x-amz-checksum-type", coverage.as_str());
    }
    Ok(answer)
}

/// The upload and the number of the part that a request names.
pub(crate) fn part_of<L: Layout>(call: &Call<L>) -> Result<(String, u32)> {
    let id = call.query.get("uploadId").unwrap_or_default().to_owned();
    let text = call.query.get("partNumber").unwrap_or_default();
    match text.parse::<u32>() {
        Ok(n) if (1..=PARTS_MAX).contains(&n) => Ok((id, n)),
        _ => Err(S3Error::argument(
            "partNumber",
            text,
            format!("Part number must be an integer between 1 and {PARTS_MAX}, inclusive"),
        )
        .into()),
    }
}

pub(crate) async fn upload_part<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    refuse_unknown(&call.headers)?;
    let (id, number) = part_of(call)?;
    let (bucket, key) = (call.bucket()?, call.route.key.clone());
    let declared = call.declared()?;
    let upload = call.layout().upload(&bucket, &key, &id).await?;
    let wanted = upload.checksum.map(|(algorithm, _)| algorithm);
    let promised = match &declared.promise {
        Some(Promise::Header(c)) => Some(c.algorithm),
        Some(Promise::Trailer(a)) => Some(*a),
        None => None,
    };
    if let (Some(wanted), Some(promised)) = (wanted, promised)
        && wanted != promised
    {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            format!(
                "Checksum Type mismatch occurred, expected checksum Type: {}, actual checksum Type: {}",
                wanted.name().to_lowercase(),
                promised.name().to_lowercase()
            ),
        ));
    }
    let bytes = declared.bytes;
    let mut body = call.inbound(declared, wanted)?;
    let part = call.layout().put_part(&bucket, &key, &id, number, bytes, &mut body).await?;
    let mut answer = Answer::empty(StatusCode::OK);
    answer.header("etag", quoted(&part.etag));
    if let Some(c) = &part.checksum {
        answer.header(c.algorithm.header(), c.text());
    }
    Ok(answer)
}

/// The address of an object, as the request wrote it.
fn address<L: Layout>(call: &Call<L>) -> String {
    let host = call.header("host").unwrap_or_default();
    let key = s3::uri::encode(call.route.key.as_bytes(), true);
    if call.route.virtual_host {
        format!("http://{host}/{key}")
    } else {
        format!("http://{host}/{}/{key}", call.route.bucket)
    }
}

/// What the headers say of the object to be. Its checksum is taken out of them: it is not that of
/// the document.
fn completes<L: Layout>(call: &mut Call<L>) -> Result<Complete> {
    let checksum = match promised(&call.headers)? {
        Some(Promise::Header(c)) => Some(c),
        Some(Promise::Trailer(_)) | None => None,
    };
    for a in Algorithm::ALL {
        call.headers.remove(a.header());
    }
    call.headers.remove("x-amz-sdk-checksum-algorithm");
    let bytes = match call.header("x-amz-mp-object-size") {
        None => None,
        Some(text) => Some(text.trim().parse::<u64>().map_err(|_| {
            Fail::new(ErrorCode::InvalidRequest, "x-amz-mp-object-size must be a number")
        })?),
    };
    let conditions = Conditions::parse(&call.headers, Of::Target);
    Ok(Complete { conditions, checksum, bytes })
}

/// What an upload that is not there any more has become, if the object is made of these parts: the
/// client asks again because it had no answer.
async fn completed<L: Layout>(
    call: &Call<L>,
    bucket: &L::Bucket,
    parts: &[CompletePart],
) -> Option<Written> {
    let digests: Option<Vec<_>> = parts.iter().map(|p| etag::unhex::<16>(&p.etag)).collect();
    let made = etag::of_parts(digests?.iter());
    let object = call.layout().open(bucket, &call.route.key, None, false).await.ok()?;
    let info = object.as_ref();
    (info.etag == made).then(|| Written {
        version: info.version.clone(),
        etag: made,
        modified: info.modified,
        size: info.size,
        checksum: info.checksum.clone(),
    })
}

pub(crate) async fn complete<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let id = call.query.get("uploadId").unwrap_or_default().to_owned();
    let (bucket, key) = (call.bucket()?, call.route.key.clone());
    let options = completes(call)?;
    let text = call.document(Limits::LIST.bytes).await?;
    let parts = parse_complete(&text)?;
    let written = match call.layout().complete_upload(&bucket, &key, &id, &parts, &options).await {
        Err(e) if e.code() == ErrorCode::NoSuchUpload => {
            completed(call, &bucket, &parts).await.ok_or(e)?
        }
        done => done?,
    };
    let mut w = Writer::document("CompleteMultipartUploadResult", Some(NAMESPACE));
    w.text("Location", &address(call)).text("Bucket", &call.route.bucket).text("Key", &key);
    w.text("ETag", &quoted(&written.etag));
    if let Some(c) = &written.checksum {
        w.text(c.algorithm.element(), &c.text()).text("ChecksumType", coverage(c));
    }
    let mut answer = Answer::xml(w.finish());
    say_version(&mut answer, written.version.as_deref());
    say_checksum(&mut answer, written.checksum.as_ref());
    Ok(answer)
}

pub(crate) async fn abort<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Write)?;
    let id = call.query.get("uploadId").unwrap_or_default();
    call.layout().abort_upload(&call.bucket()?, &call.route.key, id).await?;
    Ok(Answer::empty(StatusCode::NO_CONTENT))
}

fn owner(w: &mut Writer, upload: &PendingUpload) {
    let id = upload.owner.to_string();
    w.open("Initiator").text("ID", &id).text("DisplayName", &upload.owner_name).close();
    w.open("Owner").text("ID", &id).text("DisplayName", &upload.owner_name).close();
    w.text("StorageClass", shown_class(&upload.storage_class));
}

fn checksum(w: &mut Writer, upload: &PendingUpload) {
    if let Some((algorithm, coverage)) = upload.checksum {
        w.text("ChecksumAlgorithm", algorithm.name()).text("ChecksumType", coverage.as_str());
    }
}

pub(crate) async fn list_parts<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let encoding = Encoding::of(call)?;
    let id = call.query.get("uploadId").unwrap_or_default();
    let after = call.query.number("part-number-marker", i32::MAX as u64)?.unwrap_or(0) as u32;
    let max = maximum(call, "max-parts")? as usize;
    let (bucket, key) = (call.bucket()?, &call.route.key);
    let page = call.layout().list_parts(&bucket, key, id, after, max).await?;
    let mut w = Writer::document("ListPartsResult", Some(NAMESPACE));
    w.text("Bucket", &call.route.bucket).text("Key", &encoding.name(key)).text("UploadId", id);
    encoding.say(&mut w);
    owner(&mut w, &page.upload);
    checksum(&mut w, &page.upload);
    w.value("PartNumberMarker", after);
    w.value("NextPartNumberMarker", page.parts.last().map_or(after, |p| p.number));
    w.value("MaxParts", max).value("IsTruncated", page.more);
    for p in &page.parts {
        w.open("Part").value("PartNumber", p.number);
        w.text("LastModified", &date::iso8601(p.modified)).text("ETag", &quoted(&p.etag));
        w.value("Size", p.size);
        if let Some(c) = &p.checksum {
            w.text(c.algorithm.element(), &c.text());
        }
        w.close();
    }
    Ok(Answer::xml(w.finish()))
}

pub(crate) async fn list_uploads<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let encoding = Encoding::of(call)?;
    let text = |name| call.query.get(name).unwrap_or_default().to_owned();
    let after = text("key-marker");
    // Without a key an upload means nothing.
    let after_id = if after.is_empty() { String::new() } else { text("upload-id-marker") };
    let what = Uploads {
        prefix: text("prefix"),
        delimiter: text("delimiter"),
        after,
        after_id,
        max: maximum(call, "max-uploads")?.max(1) as usize,
    };
    let page = call.layout().list_uploads(&call.bucket()?, &what).await?;
    let mut w = Writer::document("ListMultipartUploadsResult", Some(NAMESPACE));
    w.text("Bucket", &call.route.bucket).text("KeyMarker", &encoding.name(&what.after));
    w.text("UploadIdMarker", &what.after_id);
    if let Some((key, id)) = &page.next {
        w.text("NextKeyMarker", &encoding.name(key)).text("NextUploadIdMarker", id);
    }
    w.value("MaxUploads", what.max).value("IsTruncated", page.next.is_some());
    w.text("Prefix", &encoding.name(&what.prefix));
    if !what.delimiter.is_empty() {
        w.text("Delimiter", &encoding.name(&what.delimiter));
    }
    encoding.say(&mut w);
    for u in &page.uploads {
        w.open("Upload").text("Key", &encoding.name(&u.key)).text("UploadId", &u.id);
        owner(&mut w, u);
        w.text("Initiated", &date::iso8601(u.initiated));
        checksum(&mut w, u);
        w.close();
    }
    for p in &page.prefixes {
        w.open("CommonPrefixes").text("Prefix", &encoding.name(p)).close();
    }
    Ok(Answer::xml(w.finish()))
}
