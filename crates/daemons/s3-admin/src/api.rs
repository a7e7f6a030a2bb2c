//! The API behind a gateway: which request is asked for, whether its sender may, and the answer.

use crate::refusal::{Refusal, Result};
use crate::{caps, table};
use s3::uri::Query;
use s3_gateway::{AdminAnswer, AdminFuture, AdminRequest, Administration};
use s3_layout::api::User;
use s3_layout::rgw::{Admin, Rgw};
use serde_json::{Value, json};

/// The admin operations API of a zone.
pub struct AdminApi {
    pub(crate) records: Admin,
    /// The cluster's id.
    fsid: String,
}

/// A request with a sender that is known.
pub(crate) struct Asked<'a> {
    pub method: &'a str,
    /// What comes after the entry.
    pub resource: &'a str,
    pub params: crate::params::Params<'a>,
    pub user: &'a User,
    pub body: &'a [u8],
}

impl Asked<'_> {
    /// Refuses the request unless its sender has the capability.
    pub fn need(&self, kind: &str, bits: u32) -> Result<()> {
        if caps::allow(&self.user.caps, kind, bits) { Ok(()) } else { Err(Refusal::DENIED) }
    }
}

impl AdminApi {
    /// The API over the records of a layout.
    pub fn new(layout: &Rgw, fsid: String) -> AdminApi {
        AdminApi { records: layout.admin(), fsid }
    }

    async fn run(&self, request: AdminRequest<'_>) -> AdminAnswer {
        let query: &Query = request.query;
        let params = crate::params::Params(query);
        let format = params.text("format");
        if !format.is_empty() && !format.eq_ignore_ascii_case("json") {
            return refused(Refusal::NOT_IMPLEMENTED.because("answers are JSON"), request.id);
        }
        let asked = Asked {
            method: request.method,
            resource: request.resource.trim_matches('/'),
            params,
            user: request.user,
            body: request.body,
        };
        match table::run(self, &asked).await {
            Ok(Value::Null) => AdminAnswer { status: 200, body: String::new() },
            Ok(value) => AdminAnswer { status: 200, body: value.to_string() },
            Err(refusal) => refused(refusal, request.id),
        }
    }

    pub(crate) async fn metadata_users(&self, asked: &Asked<'_>) -> Result<Value> {
        if asked.params.has("max-entries") {
            return self.user_list(asked).await;
        }
        Ok(self.records.user_names("", 0).await?.names.into())
    }

    pub(crate) async fn metadata_buckets(&self, _: &Asked<'_>) -> Result<Value> {
        Ok(self.records.bucket_names("", 0).await?.names.into())
    }

    pub(crate) async fn info(&self, _: &Asked<'_>) -> Result<Value> {
        let backend = json!({"name": "rados", "cluster_id": self.fsid});
        Ok(json!({"info": {"storage_backends": [backend]}}))
    }

    pub(crate) async fn lifecycle(&self, _: &Asked<'_>) -> Result<Value> {
        let found = self.records.lifecycle_progress().await?;
        let buckets = found.buckets.iter().map(|b| {
            json!({"bucket": b.bucket, "status": b.status, "started": b.started, "behind_seconds": b.behind})
        });
        Ok(json!({
            "behind_seconds": found.behind(),
            "buckets": buckets.collect::<Vec<_>>(),
        }))
    }
}

fn refused(refusal: Refusal, id: &str) -> AdminAnswer {
    let mut body = json!({"Code": refusal.code});
    if let Some(fields) = body.as_object_mut() {
        if !refusal.message.is_empty() {
            fields.insert("Message".to_owned(), refusal.message.into());
        }
        fields.insert("RequestId".to_owned(), id.into());
        fields.insert("HostId".to_owned(), id.into());
    }
    AdminAnswer { status: refusal.status, body: body.to_string() }
}

impl Administration for AdminApi {
    fn answer<'a>(&'a self, request: AdminRequest<'a>) -> AdminFuture<'a> {
        Box::pin(self.run(request))
    }
}
