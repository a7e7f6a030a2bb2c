//! Requests of web pages from other origins.

use crate::answer::{Answer, set};
use crate::call::{Call, Handled};
use crate::fail::Fail;
use http::{HeaderMap, StatusCode};
use s3::ErrorCode;
use s3::xml::config::CorsRule;
use s3_layout::Layout;
use s3_layout::api::Bucket;

fn say(headers: &mut HeaderMap, rule: &CorsRule, origin: &str) {
    if rule.allowed_origins.iter().any(|o| o == "*") {
        set(headers, "access-control-allow-origin", "*");
    } else {
        set(headers, "access-control-allow-origin", origin);
        set(headers, "access-control-allow-credentials", "true");
    }
    set(headers, "access-control-allow-methods", &rule.allowed_methods.join(", "));
    if !rule.expose_headers.is_empty() {
        set(headers, "access-control-expose-headers", &rule.expose_headers.join(", "));
    }
    if let Some(seconds) = rule.max_age_seconds {
        set(headers, "access-control-max-age", &seconds.to_string());
    }
    set(headers, "vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method");
}

/// Adds what a browser needs to show the answer to a page, if the bucket allows the page's origin.
pub(crate) fn add<L: Layout>(headers: &mut HeaderMap, call: &Call<L>, bucket: &Bucket) {
    let Some(origin) = call.header("origin") else { return };
    // As with Ceph's gateway, the page may name the method that counts.
    let method = call.header("access-control-request-method").unwrap_or(&call.method);
    let rule = bucket.settings.cors.as_ref().and_then(|c| c.rule(origin, method));
    if let Some(rule) = rule {
        say(headers, rule, origin);
    }
}

/// `OPTIONS`: whether a page may send a request.
pub(crate) async fn preflight<L: Layout>(call: &mut Call<L>) -> Handled<L> {
    let refuse = |why: &'static str| Fail::new(ErrorCode::AccessDenied, why);
    let Some(origin) = call.header("origin") else {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "Insufficient information. Origin request header needed.",
        ));
    };
    let Some(method) = call.header("access-control-request-method") else {
        return Err(Fail::new(
            ErrorCode::InvalidRequest,
            "Insufficient information. Access-Control-Request-Method header needed.",
        ));
    };
    let bucket = call.bucket()?;
    let Some(cors) = &bucket.as_ref().settings.cors else {
        return Err(refuse("CORSResponse: CORS is not enabled for this bucket."));
    };
    let asked: Vec<&str> = call
        .header("access-control-request-headers")
        .unwrap_or_default()
        .split(',')
        .map(str::trim)
        .filter(|h| !h.is_empty())
        .collect();
    let rule = cors
        .0
        .iter()
        .find(|r| r.allows(origin, method) && asked.iter().all(|h| r.allows_header(h)));
    let Some(rule) = rule else {
        return Err(refuse("CORSResponse: This CORS request is not allowed."));
    };
    let mut answer = Answer::empty(StatusCode::OK);
    say(&mut answer.headers, rule, origin);
    if !asked.is_empty() {
        answer.header("access-control-allow-headers", asked.join(", "));
    }
    Ok(answer)
}
