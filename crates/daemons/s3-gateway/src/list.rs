//! Lists of objects and versions.

use crate::answer::{Answer, quoted};
use crate::call::{Call, Handled};
use crate::fail::Result;
use crate::object::shown_class;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use s3::xml::config::Permission;
use s3::xml::{NAMESPACE, Writer};
use s3::{S3Error, date, uri};
use s3_layout::Layout;
use s3_layout::api::{Entry, List, Listing};
use std::borrow::Cow;

/// The most members of one answer.
pub(crate) const MEMBERS_MAX: u64 = 1000;

/// How names are written: as they are, or percent-encoded on the client's wish.
#[derive(Clone, Copy)]
pub(crate) struct Encoding(bool);

impl Encoding {
    pub fn of<L: Layout>(call: &Call<L>) -> Result<Encoding> {
        match call.query.get("encoding-type") {
            None | Some("") => Ok(Encoding(false)),
            Some(t) if t.eq_ignore_ascii_case("url") => Ok(Encoding(true)),
            Some(t) => Err(S3Error::argument(
                "encoding-type",
                t,
                "Invalid Encoding Method specified in Request",
            )
            .into()),
        }
    }

    pub fn name<'a>(self, text: &'a str) -> Cow<'a, str> {
        if self.0 { uri::encode(text.as_bytes(), true).into() } else { text.into() }
    }

    pub fn say(self, w: &mut Writer) {
        if self.0 {
            w.text("EncodingType", "url");
        }
    }
}

/// A parameter that bounds an answer.
pub(crate) fn maximum<L: Layout>(call: &Call<L>, name: &'static str) -> Result<u64> {
    if call.query.get(name) == Some("") {
        return Ok(MEMBERS_MAX);
    }
    let most = i32::MAX as u64;
    Ok(call.query.number(name, most)?.unwrap_or(MEMBERS_MAX).min(MEMBERS_MAX))
}

fn query<L: Layout>(call: &Call<L>, after: &str) -> Result<List> {
    let text = |name| call.query.get(name).unwrap_or_default().to_owned();
    // Lists of the gateway always have an order; a delimiter needs one.
    let unordered = call.query.get("allow-unordered").is_some_and(|v| v == "true");
    if unordered && call.query.get("delimiter").is_some_and(|d| !d.is_empty()) {
        return Err(S3Error::argument(
            "allow-unordered",
            "true",
            "allow-unordered and delimiter exclude each other",
        )
        .into());
    }
    Ok(List {
        prefix: text("prefix"),
        delimiter: text("delimiter"),
        after: after.to_owned(),
        after_version: None,
        versions: false,
        max: maximum(call, "max-keys")? as usize,
    })
}

async fn listing<L: Layout>(call: &Call<L>, what: &List) -> Result<Listing> {
    if what.max == 0 {
        return Ok(Listing::default());
    }
    Ok(call.layout().list(&call.bucket()?, what).await?)
}

/// `prefix` is as the operation writes it: the first list of objects leaves it as it is.
fn head(w: &mut Writer, bucket: &str, what: &List, encoding: Encoding, prefix: &str) {
    w.text("Name", bucket).text("Prefix", prefix);
    w.value("MaxKeys", what.max);
    if !what.delimiter.is_empty() {
        w.text("Delimiter", &encoding.name(&what.delimiter));
    }
    encoding.say(w);
}

fn owner(w: &mut Writer, e: &Entry) {
    w.open("Owner").text("ID", &e.owner.to_string()).text("DisplayName", &e.owner_name).close();
}

fn contents(w: &mut Writer, e: &Entry, encoding: Encoding, with_owner: bool) {
    w.open("Contents").text("Key", &encoding.name(&e.key));
    w.text("LastModified", &date::iso8601(e.modified)).text("ETag", &quoted(&e.etag));
    w.value("Size", e.size).text("StorageClass", shown_class(&e.storage_class));
    if with_owner {
        owner(w, e);
    }
    w.close();
}

fn prefixes(w: &mut Writer, list: &[String], encoding: Encoding) {
    for p in list {
        w.open("CommonPrefixes").text("Prefix", &encoding.name(p)).close();
    }
}

pub(crate) async fn objects<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let encoding = Encoding::of(call)?;
    let marker = call.query.get("marker").unwrap_or_default();
    let what = query(call, marker)?;
    let page = listing(call, &what).await?;
    let mut w = Writer::document("ListBucketResult", Some(NAMESPACE));
    head(&mut w, &call.route.bucket, &what, encoding, &what.prefix);
    w.text("Marker", &encoding.name(marker));
    w.value("IsTruncated", page.next.is_some());
    if let Some((key, _)) = &page.next {
        w.text("NextMarker", &encoding.name(key));
    }
    for e in &page.entries {
        contents(&mut w, e, encoding, true);
    }
    prefixes(&mut w, &page.prefixes, encoding);
    Ok(Answer::xml(w.finish()))
}

/// A token holds the key after which the next page begins. It is text of letters for clients that
/// put it into a URL without care.
fn token(after: &str) -> String {
    URL_SAFE_NO_PAD.encode(after)
}

fn of_token(text: &str) -> Result<String> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok();
    bytes.and_then(|b| String::from_utf8(b).ok()).ok_or_else(|| {
        S3Error::argument(
            "continuation-token",
            text,
            "The continuation token provided is incorrect",
        )
        .into()
    })
}

pub(crate) async fn objects_v2<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let encoding = Encoding::of(call)?;
    let start = call.query.get("start-after").unwrap_or_default();
    let given = call.query.get("continuation-token");
    let after = match given {
        Some(text) if !text.is_empty() => of_token(text)?,
        Some(_) | None => start.to_owned(),
    };
    let what = query(call, &after)?;
    let with_owner = call.query.get("fetch-owner").is_some_and(|v| v.eq_ignore_ascii_case("true"));
    let page = listing(call, &what).await?;
    let mut w = Writer::document("ListBucketResult", Some(NAMESPACE));
    head(&mut w, &call.route.bucket, &what, encoding, &encoding.name(&what.prefix));
    w.value("KeyCount", page.entries.len() + page.prefixes.len());
    w.value("IsTruncated", page.next.is_some());
    w.maybe("ContinuationToken", given);
    if let Some((key, _)) = &page.next {
        w.text("NextContinuationToken", &token(key));
    }
    if !start.is_empty() {
        w.text("StartAfter", &encoding.name(start));
    }
    for e in &page.entries {
        contents(&mut w, e, encoding, with_owner);
    }
    prefixes(&mut w, &page.prefixes, encoding);
    Ok(Answer::xml(w.finish()))
}

pub(crate) async fn versions<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    call.need_bucket(Permission::Read)?;
    let encoding = Encoding::of(call)?;
    let key_marker = call.query.get("key-marker").unwrap_or_default();
    let version_marker = call.query.get("version-id-marker").filter(|v| !v.is_empty());
    if version_marker.is_some() && key_marker.is_empty() {
        return Err(S3Error::argument(
            "version-id-marker",
            version_marker.unwrap_or_default(),
            "A version-id marker cannot be specified without a key marker.",
        )
        .into());
    }
    let what = List {
        versions: true,
        after_version: version_marker.map(str::to_owned),
        ..query(call, key_marker)?
    };
    let page = listing(call, &what).await?;
    let mut w = Writer::document("ListVersionsResult", Some(NAMESPACE));
    head(&mut w, &call.route.bucket, &what, encoding, &encoding.name(&what.prefix));
    w.text("KeyMarker", &encoding.name(key_marker));
    w.text("VersionIdMarker", version_marker.unwrap_or_default());
    w.value("IsTruncated", page.next.is_some());
    if let Some((key, version)) = &page.next {
        w.text("NextKeyMarker", &encoding.name(key));
        w.maybe("NextVersionIdMarker", version.as_deref());
    }
    for e in &page.entries {
        w.open(if e.marker { "DeleteMarker" } else { "Version" });
        w.text("Key", &encoding.name(&e.key));
        w.text("VersionId", e.version.as_deref().unwrap_or("null"));
        w.value("IsLatest", e.latest).text("LastModified", &date::iso8601(e.modified));
        if !e.marker {
            w.text("ETag", &quoted(&e.etag)).value("Size", e.size);
            w.text("StorageClass", shown_class(&e.storage_class));
        }
        owner(&mut w, e);
        w.close();
    }
    prefixes(&mut w, &page.prefixes, encoding);
    Ok(Answer::xml(w.finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_hold_any_key() {
        for key in ["a", "a/b c+%", "\u{1}\u{e4}\u{1f600}"] {
            let t = token(key);
            assert!(t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'));
            assert_eq!(of_token(&t).unwrap(), key);
        }
        assert!(of_token("!").is_err() && of_token("_w").is_err());
    }
}
