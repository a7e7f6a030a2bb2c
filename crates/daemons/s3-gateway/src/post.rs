//! Uploads by HTML forms.

use crate::acl;
use crate::answer::{Answer, quoted, set};
use crate::auth::{Sender, user_of_key};
use crate::body::Frames;
use crate::call::{Call, Handled};
use crate::fail::Result;
use crate::limits::PUT_BYTES_MAX;
use crate::object::{asked_tags, kept_headers, refuse_unknown, say_version, storage_class};
use bytes::Bytes;
use http::StatusCode;
use md5::{Digest, Md5};
use s3::checksum::{Checksum, Hasher, Promise, promised};
use s3::condition::Conditions;
use s3::names::check_key;
use s3::post::{Fields, Form, FormClaim, LengthRange, Piece, boundary, check_policy};
use s3::xml::Writer;
use s3::xml::config::{Permission, TagSet};
use s3::{ErrorCode, S3Error, uri};
use s3_layout::api::{NewObject, Sums};
use s3_layout::{Error, Layout, Source, Upload};

/// The file of a form on its way to the layout.
struct File {
    frames: Frames,
    form: Form,
    ended: bool,
    bytes: u64,
    range: LengthRange,
    md5: Md5,
    sum: Option<(Checksum, Hasher)>,
}

impl File {
    fn too_long(&self) -> Option<S3Error> {
        (self.bytes > self.range.max).then(|| {
            S3Error::from(ErrorCode::EntityTooLarge)
                .with("ProposedSize", self.bytes.to_string())
                .with("MaxSizeAllowed", self.range.max.to_string())
        })
    }
}

impl Source for File {
    async fn next(&mut self) -> s3_layout::Result<Option<Bytes>> {
        loop {
            match self.form.next_piece()? {
                Some(Piece::File(data)) if data.is_empty() => {}
                Some(Piece::File(data)) => {
                    self.bytes += data.len() as u64;
                    if let Some(e) = self.too_long() {
                        return Err(e.into());
                    }
                    self.md5.update(&data);
                    if let Some((_, h)) = &mut self.sum {
                        h.update(&data);
                    }
                    return Ok(Some(data));
                }
                Some(Piece::End) => {
                    self.ended = true;
                    return Ok(None);
                }
                Some(Piece::Fields(_)) | None => match self.frames.next().await? {
                    Some(bytes) => self.form.feed(&bytes),
                    None => return Ok(None),
                },
            }
        }
    }
}

impl Upload for File {
    fn finish(&mut self) -> s3_layout::Result<Sums> {
        if !self.ended {
            return Err(Error::Refused(ErrorCode::IncompleteBody.into()));
        }
        if self.bytes < self.range.min {
            return Err(Error::Refused(
                S3Error::from(ErrorCode::EntityTooSmall)
                    .with("ProposedSize", self.bytes.to_string())
                    .with("MinSizeAllowed", self.range.min.to_string()),
            ));
        }
        let checksum = match self.sum.take() {
            None => None,
            Some((said, hasher)) => {
                let found = hasher.finish();
                if found.value != said.value {
                    return Err(Error::Refused(ErrorCode::BadDigest.into()));
                }
                Some(found)
            }
        };
        Ok(Sums { md5: std::mem::take(&mut self.md5).finalize().into(), checksum })
    }
}

/// The fields of a form that count as headers of the upload.
fn headers_of(fields: &Fields) -> http::HeaderMap {
    const NAMES: [&str; 9] = [
        "content-type",
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "expires",
        "x-amz-storage-class",
        "x-amz-website-redirect-location",
        "x-amz-acl",
    ];
    let mut headers = http::HeaderMap::new();
    for (name, value) in fields.pairs() {
        let name = name.to_ascii_lowercase();
        let name = if name == "acl" { "x-amz-acl".to_owned() } else { name };
        let signs = ["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"]
            .contains(&name.as_str());
        if NAMES.contains(&name.as_str()) || (name.starts_with("x-amz-") && !signs) {
            set(&mut headers, &name, value);
        }
    }
    headers
}

/// The tags of a form: a document in the field `tagging`.
fn tags_of(fields: &Fields) -> Result<Option<TagSet>> {
    match fields.get("tagging") {
        None => Ok(None),
        Some(text) => Ok(Some(TagSet::parse(text.as_bytes(), TagSet::OBJECT_MAX)?)),
    }
}

/// Reads the fields in front of the file, and what of the file came with them.
async fn fields(frames: &mut Frames, form: &mut Form) -> Result<Fields> {
    loop {
        match form.next_piece()? {
            Some(Piece::Fields(fields)) => return Ok(fields),
            Some(Piece::File(_) | Piece::End) => {
                return Err(ErrorCode::MalformedPOSTRequest.into());
            }
            None => match frames.next().await? {
                Some(bytes) => form.feed(&bytes),
                None => return Err(ErrorCode::IncompleteBody.into()),
            },
        }
    }
}

pub(crate) async fn post<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let content_type = call.header("content-type").unwrap_or_default().to_owned();
    let mut form = Form::new(&boundary(&content_type)?);
    let mut frames = call.form()?;
    let fields = fields(&mut frames, &mut form).await?;
    let claim = FormClaim::of(&fields, call.gateway.options.allow_v2)?;
    if let Some(access_key) = claim.access_key() {
        let (user, secret) = user_of_key(call.layout(), access_key).await?;
        claim.verify(&fields, &secret)?;
        call.sender = Sender { user: Some(user), auth_type: Some("POST"), ..Sender::default() };
    }
    let range = check_policy(&fields, &call.route.bucket, call.now)?;
    let name = call.bucket_name(call.route.tenant.as_deref(), &call.route.bucket);
    let bucket = call.layout().bucket(&name).await?;
    call.bucket = Some(bucket.clone());
    let key = fields.key()?;
    check_key(&key)?;
    call.route.key.clone_from(&key);
    let origin = call.header("origin").map(str::to_owned);
    call.headers = headers_of(&fields);
    refuse_unknown(&call.headers)?;
    call.need_bucket(Permission::Write)?;
    let sum = match promised(&call.headers)? {
        Some(Promise::Header(c)) => {
            let hasher = Hasher::new(c.algorithm);
            Some((c, hasher))
        }
        Some(Promise::Trailer(_)) | None => None,
    };
    let new = NewObject {
        bytes: None,
        headers: kept_headers(&call.headers)?,
        acl: acl::of_new_object(call, bucket.as_ref()).await?,
        tags: match tags_of(&fields)? {
            Some(tags) => tags,
            None => asked_tags(call)?,
        },
        storage_class: storage_class(call),
        conditions: Conditions::default(),
    };
    let range = range.unwrap_or(LengthRange { min: 0, max: PUT_BYTES_MAX });
    let range = LengthRange { max: range.max.min(PUT_BYTES_MAX), ..range };
    let mut body = File { frames, form, ended: false, bytes: 0, range, md5: Md5::new(), sum };
    let written = call.layout().put(&bucket, &key, new, &mut body).await?;

    let etag = quoted(&written.etag);
    let place = format!("/{}/{}", call.route.bucket, uri::encode(key.as_bytes(), true));
    let redirect = fields.get("success_action_redirect").or(fields.get("redirect"));
    let mut answer = match (redirect, fields.get("success_action_status")) {
        (Some(to), _) if to.starts_with("http://") || to.starts_with("https://") => {
            let mut answer = Answer::empty(StatusCode::SEE_OTHER);
            let joint = if to.contains('?') { '&' } else { '?' };
            let encode = |t: &str| uri::encode(t.as_bytes(), false);
            let to = format!(
                "{to}{joint}bucket={}&key={}&etag={}",
                encode(&call.route.bucket),
                encode(&key),
                encode(&etag)
            );
            answer.header("location", to);
            answer
        }
        (_, Some("201")) => {
            let mut w = Writer::document("PostResponse", None);
            w.text("Location", &place).text("Bucket", &call.route.bucket);
            w.text("Key", &key).text("ETag", &etag);
            let mut answer = Answer::xml(w.finish());
            answer.status = StatusCode::CREATED;
            answer
        }
        (_, Some("200")) => Answer::empty(StatusCode::OK),
        _ => Answer::empty(StatusCode::NO_CONTENT),
    };
    if answer.status != StatusCode::SEE_OTHER {
        answer.header("location", place);
    }
    answer.header("etag", &etag);
    say_version(&mut answer, written.version.as_deref());
    if let Some(origin) = origin {
        set(&mut call.headers, "origin", &origin);
        let mut extra = http::HeaderMap::new();
        crate::cors::add(&mut extra, call, bucket.as_ref());
        answer.headers.extend(extra);
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_headers() {
        let mut form = Form::new("b");
        form.feed(b"--b\r\nContent-Disposition: form-data; name=\"acl\"\r\n\r\npublic-read\r\n--b\r\nContent-Disposition: form-data; name=\"x-amz-meta-a\"\r\n\r\n1\r\n--b\r\nContent-Disposition: form-data; name=\"x-amz-signature\"\r\n\r\n1\r\n--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nx\r\n--b--\r\n");
        let Ok(Some(Piece::Fields(fields))) = form.next_piece() else { panic!() };
        let h = headers_of(&fields);
        assert_eq!(h["x-amz-acl"], "public-read");
        assert_eq!(h["x-amz-meta-a"], "1");
        assert!(!h.contains_key("x-amz-signature"));
    }
}
