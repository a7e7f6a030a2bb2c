//! Requests on buckets.

use crate::api::{AdminApi, Asked};
use crate::quota;
use crate::refusal::{Refusal, Result};
use crate::show;
use rgw::acl::{AccessPolicy, AclGrant, AclOwner, grantee, perm};
use rgw::key::User;
use s3_layout::api::BucketName;
use serde_json::{Value, json};

impl AdminApi {
    /// The bucket that a request names: `[TENANT/]NAME`, in the tenant of `uid` if it names none.
    fn bucket_name(&self, asked: &Asked<'_>) -> BucketName {
        let text = asked.params.text("bucket");
        match text.split_once('/') {
            Some((tenant, name)) => BucketName { tenant: tenant.into(), name: name.into() },
            None => BucketName { tenant: show::text(&uid(asked).tenant), name: text.into() },
        }
    }

    /// The same, with user and bucket looked up where they are named: what is not there is
    /// `NoSuchKey`.
    async fn bucket_and_user(&self, asked: &Asked<'_>) -> Result<(BucketName, User, String)> {
        let (name, user) = (self.bucket_name(asked), uid(asked));
        if name.name.is_empty() && user.is_empty() {
            return Err(Refusal::ARGUMENT.because("a bucket or a uid was expected"));
        }
        if !name.name.is_empty() {
            self.records
                .bucket_records(&name, false)
                .await
                .map_err(|e| Refusal::from(e).into_key())?;
        }
        let display = match user.is_empty() {
            true => String::new(),
            false => {
                let account = self.records.account(&user).await?.ok_or(Refusal::NO_KEY)?;
                show::text(&account.info.display_name)
            }
        };
        Ok((name, user, display))
    }

    async fn shown(&self, name: &BucketName) -> Result<Value> {
        Ok(show::bucket(&self.records.bucket_records(name, true).await?))
    }

    pub(crate) async fn bucket_info(&self, asked: &Asked<'_>) -> Result<Value> {
        let (name, user) = (self.bucket_name(asked), uid(asked));
        let stats = asked.params.flag("stats", false);
        if !name.name.is_empty() {
            let found = self.bucket_and_user(asked).await;
            found.map_err(|e| if e == Refusal::NO_KEY { Refusal::NO_BUCKET } else { e })?;
        }
        if user.is_empty() && !name.name.is_empty() {
            return self.shown(&name).await;
        }
        let names: Vec<BucketName> = if user.is_empty() {
            let all = self.records.bucket_names("", 0).await?.names;
            let split = |n: String| match n.split_once('/') {
                Some((tenant, name)) => BucketName { tenant: tenant.into(), name: name.into() },
                None => BucketName { tenant: String::new(), name: n },
            };
            all.into_iter().map(split).collect()
        } else {
            let tenant = show::text(&user.tenant);
            let own = self.records.buckets_of(&user).await?.into_iter();
            own.filter(|n| name.name.is_empty() || *n == name.name)
                .map(|name| BucketName { tenant: tenant.clone(), name })
                .collect()
        };
        let mut shown = Vec::new();
        for one in names {
            if !stats {
                let listed = if user.is_empty() { one.to_string() } else { one.name };
                shown.push(listed.into());
                continue;
            }
            match self.shown(&one).await {
                Ok(value) => shown.push(value),
                // It was removed meanwhile.
                Err(e) if e.code == Refusal::NO_BUCKET.code => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Value::Array(shown))
    }

    pub(crate) async fn bucket_policy(&self, asked: &Asked<'_>) -> Result<Value> {
        let name = self.bucket_name(asked);
        if name.name.is_empty() {
            return Err(Refusal::ARGUMENT.because("a bucket was expected"));
        }
        let policy = self.records.policy(&name, asked.params.text("object")).await;
        Ok(show::policy(&policy.map_err(|e| Refusal::from(e).into_key())?))
    }

    pub(crate) async fn bucket_index(&self, asked: &Asked<'_>) -> Result<Value> {
        if asked.params.flag("check-objects", false) {
            return Err(Refusal::NOT_IMPLEMENTED
                .because("lists compare entries with objects by themselves"));
        }
        let (name, _, _) = self.bucket_and_user(asked).await?;
        if name.name.is_empty() {
            return Err(Refusal::ARGUMENT.because("a bucket was expected"));
        }
        let found = self.records.check_index(&name, asked.params.flag("fix", false)).await?;
        Ok(json!({
            "invalid_multipart_entries": found.lost_parts,
            "check_result": {
                "existing_header": {"usage": show::usage_of(&found.existing)},
                "calculated_header": {"usage": show::usage_of(&found.calculated)},
            },
        }))
    }

    pub(crate) async fn bucket_quota(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        if !p.has("uid") || !p.has("bucket") {
            return Err(Refusal::ARGUMENT.because("a uid and a bucket were expected"));
        }
        let (name, _, _) = self.bucket_and_user(asked).await?;
        let quota = match asked.body.is_empty() {
            false => quota::parse(&quota::document(asked.body)?)?,
            true => {
                let old = self.records.bucket_records(&name, false).await?.instance.quota;
                quota::of_params(p, &old)?
            }
        };
        self.records.set_bucket_quota(&name, quota).await?;
        Ok(Value::Null)
    }

    pub(crate) async fn bucket_link(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        let (name, user, display) = self.bucket_and_user(asked).await?;
        if user.is_empty() || name.name.is_empty() {
            return Err(Refusal::ARGUMENT.because("a uid and a bucket were expected"));
        }
        if p.given("new-bucket-name").is_some() || user.tenant != name.tenant {
            return Err(Refusal::NOT_IMPLEMENTED
                .because("a bucket keeps its name and its tenant; radosgw-admin can change them"));
        }
        let id = self.records.bucket_records(&name, false).await?.instance.bucket.bucket_id;
        if p.given("bucket-id").is_some_and(|named| id != named) {
            return Err(Refusal::ARGUMENT.because("the bucket has another id"));
        }
        self.records.link_bucket(&name, &user, &own_acl(&user, display)).await?;
        Ok(Value::Null)
    }

    pub(crate) async fn bucket_unlink(&self, asked: &Asked<'_>) -> Result<Value> {
        let (name, user, _) = self.bucket_and_user(asked).await?;
        if user.is_empty() || name.name.is_empty() {
            return Err(Refusal::ARGUMENT.because("a uid and a bucket were expected"));
        }
        match self.records.unlink_bucket(&name, &user).await? {
            true => Ok(Value::Null),
            false => Err(Refusal::ARGUMENT.because("another user has the bucket")),
        }
    }

    pub(crate) async fn bucket_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        let name = self.bucket_name(asked);
        if name.name.is_empty() {
            return Err(Refusal::ARGUMENT.because("a bucket was expected"));
        }
        let purge = asked.params.flag("purge-objects", false);
        self.records.remove_bucket(&name, purge).await?;
        Ok(Value::Null)
    }

    pub(crate) async fn object_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        let (name, key) = (self.bucket_name(asked), asked.params.text("object"));
        if name.name.is_empty() || key.is_empty() {
            return Err(Refusal::ARGUMENT.because("a bucket and an object were expected"));
        }
        let removed = self.records.remove_object(&name, key).await;
        removed.map_err(|e| Refusal::from(e).into_key())?;
        Ok(Value::Null)
    }
}

fn uid(asked: &Asked<'_>) -> User {
    User::parse(&asked.params.text("uid").to_owned().into())
}

/// An ACL that gives its owner all rights.
fn own_acl(user: &User, display_name: String) -> AccessPolicy {
    let owner = AclOwner { id: user.clone(), display_name: display_name.clone().into() };
    let mut policy = AccessPolicy { owner, ..AccessPolicy::default() };
    policy.list.add(AclGrant {
        kind: grantee::USER,
        id: user.clone(),
        name: display_name.into(),
        permission: perm::FULL_CONTROL,
        ..AclGrant::default()
    });
    policy
}
