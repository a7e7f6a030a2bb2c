//! Requests on users.

use crate::account::{self, user_id};
use crate::api::{AdminApi, Asked};
use crate::caps;
use crate::keys::{self, KeyRequest, Kind, subuser_of};
use crate::quota;
use crate::refusal::{Refusal, Result};
use crate::show;
use rgw::header::CategoryStats;
use rgw::user::UserInfo;
use s3_layout::api::BucketName;
use s3_layout::rgw::{Account, Alias, Stored};
use serde_json::{Value, json};

/// How often a change is tried anew when another gateway changed the user meanwhile.
const ATTEMPTS: u32 = 16;
/// The most names in an answer.
const NAMES_MAX: i64 = 1000;

impl AdminApi {
    /// The user that a request names by id or by access key.
    async fn named(&self, asked: &Asked<'_>) -> Result<Account> {
        let id = user_id(&asked.params);
        let found = match id.is_empty() {
            false => self.records.account(&id).await?,
            true => self.records.account_of(Alias::Key, asked.params.text("access-key")).await?,
        };
        found.ok_or(Refusal::NO_USER)
    }

    /// Changes the user that a request names, in its newest state.
    async fn change(
        &self,
        asked: &Asked<'_>,
        change: impl Fn(&mut UserInfo) -> Result<()>,
    ) -> Result<UserInfo> {
        for _ in 0..ATTEMPTS {
            let old = self.named(asked).await?;
            let mut user = old.info.clone();
            change(&mut user)?;
            match self.records.store_account(Some(&old), &user).await? {
                Stored::Done => return Ok(user),
                Stored::Changed => {}
                Stored::Taken(alias, _) => return Err(taken(alias)),
            }
        }
        Err(Refusal::CONFLICT)
    }

    pub(crate) async fn user_list(&self, asked: &Asked<'_>) -> Result<Value> {
        let max = asked.params.number("max-entries")?.unwrap_or(NAMES_MAX).clamp(0, NAMES_MAX);
        let marker = asked.params.text("marker");
        if max == 0 {
            return Ok(json!({"keys": [], "truncated": true, "count": 0, "marker": marker}));
        }
        let page = self.records.user_names(marker, max as usize).await?;
        let mut shown = json!({
            "keys": page.names, "truncated": page.next.is_some(), "count": page.names.len(),
        });
        if let (Some(next), Some(fields)) = (page.next, shown.as_object_mut()) {
            fields.insert("marker".to_owned(), next.into());
        }
        Ok(shown)
    }

    pub(crate) async fn user_info(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        if user_id(p).is_empty() && p.given("access-key").is_none() {
            return Err(Refusal::ARGUMENT.because("a uid or an access key was expected"));
        }
        let user = self.named(asked).await?.info;
        if p.flag("sync", false) {
            self.records.sync_user_stats(&user.user_id).await?;
        }
        let mut shown = show::user(&user);
        if p.flag("stats", false) {
            let all = self.records.user_stats(&user.user_id).await?.unwrap_or_default();
            let all = CategoryStats {
                total_size: all.total_bytes,
                total_size_rounded: all.total_bytes_rounded,
                num_entries: all.total_entries,
                actual_size: 0,
            };
            if let Some(fields) = shown.as_object_mut() {
                fields.insert("stats".to_owned(), show::stats(&all));
            }
        }
        Ok(shown)
    }

    pub(crate) async fn user_create(&self, asked: &Asked<'_>) -> Result<Value> {
        let here = |p: &rgw::bucket::Placement| self.records.is_placement(p);
        let user = account::create(&asked.params, here, asked.user.system)?;
        if self.records.account(&user.user_id).await?.is_some() {
            return Err(Refusal::USER_EXISTS);
        }
        match self.records.store_account(None, &user).await? {
            Stored::Done => Ok(show::user(&user)),
            Stored::Changed => Err(Refusal::USER_EXISTS),
            Stored::Taken(alias, _) => Err(taken(alias)),
        }
    }

    pub(crate) async fn user_modify(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        if user_id(p).is_empty() {
            return Err(Refusal::NO_USER);
        }
        let here = |p: &rgw::bucket::Placement| self.records.is_placement(p);
        let system = asked.user.system;
        let change = |user: &mut UserInfo| {
            *user = account::modify(user, p, here, system)?;
            Ok(())
        };
        let user = self.change(asked, change).await?;
        if p.has("suspended") {
            self.records.open_buckets(&user.user_id, user.suspended == 0).await?;
        }
        Ok(show::user(&user))
    }

    pub(crate) async fn user_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        if user_id(&asked.params).is_empty() {
            return Err(Refusal::NO_USER);
        }
        let user = self.named(asked).await?;
        let owner = &user.info.user_id;
        for name in self.records.buckets_of(owner).await? {
            if !asked.params.flag("purge-data", false) {
                return Err(Refusal::EXISTS.because("the user has buckets"));
            }
            let name = BucketName { tenant: show::text(&owner.tenant), name };
            self.records.remove_bucket(&name, true).await?;
        }
        match self.records.remove_account(&user).await? {
            true => Ok(Value::Null),
            false => Err(Refusal::CONFLICT),
        }
    }

    pub(crate) async fn key_create(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        let key = KeyRequest::of(p, p.flag("generate-key", true));
        let user = self.change(asked, |user| keys::add(user, &key, key.kind())).await?;
        Ok(match key.kind() {
            Kind::S3 => show::keys(&user),
            Kind::Swift => show::swift_keys(&user),
        })
    }

    pub(crate) async fn key_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        let key = KeyRequest::of(&asked.params, false);
        self.change(asked, |user| keys::remove(user, &key)).await?;
        Ok(Value::Null)
    }

    pub(crate) async fn subuser_create(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        let mut key = KeyRequest::of(p, false);
        key.make_secret = p.flag("generate-secret", false);
        key.make_id = p.flag("gen-access-key", false);
        let mask = keys::permissions(p.text("access"))?;
        let change = |user: &mut UserInfo| keys::add_subuser(user, key.clone(), mask);
        Ok(show::subusers(&self.change(asked, change).await?))
    }

    pub(crate) async fn subuser_modify(&self, asked: &Asked<'_>) -> Result<Value> {
        let p = &asked.params;
        let mut key = KeyRequest::of(p, false);
        key.make_secret = p.flag("generate-secret", false);
        // The access key does not count here.
        key.id.clear();
        let mask = keys::permissions(p.text("access"))?;
        let change = |user: &mut UserInfo| keys::change_subuser(user, &key, mask);
        Ok(show::subusers(&self.change(asked, change).await?))
    }

    pub(crate) async fn subuser_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        let name = subuser_of(&asked.params);
        self.change(asked, |user| keys::remove_subuser(user, name)).await?;
        Ok(Value::Null)
    }

    async fn change_caps(&self, asked: &Asked<'_>, add: bool) -> Result<Value> {
        let text = asked.params.text("user-caps");
        let change = |user: &mut UserInfo| caps::change(&mut user.caps, text, add);
        Ok(show::user_caps(&self.change(asked, change).await?.caps))
    }

    pub(crate) async fn caps_add(&self, asked: &Asked<'_>) -> Result<Value> {
        self.change_caps(asked, true).await
    }

    pub(crate) async fn caps_remove(&self, asked: &Asked<'_>) -> Result<Value> {
        self.change_caps(asked, false).await
    }

    pub(crate) async fn quota_info(&self, asked: &Asked<'_>) -> Result<Value> {
        let scope = Scope::of(asked)?;
        let user = self.named(asked).await?.info;
        let (bucket, all) = (quota::show(&user.bucket_quota), quota::show(&user.user_quota));
        Ok(match scope {
            Scope::Both => json!({"bucket_quota": bucket, "user_quota": all}),
            Scope::Bucket => bucket,
            Scope::User => all,
        })
    }

    pub(crate) async fn quota_set(&self, asked: &Asked<'_>) -> Result<Value> {
        let scope = Scope::of(asked)?;
        let doc = match asked.body.is_empty() {
            true => None,
            false => Some(quota::document(asked.body)?),
        };
        if doc.is_none() && matches!(scope, Scope::Both) {
            return Err(Refusal::ARGUMENT.because("a quota-type or a document was expected"));
        }
        let change = |user: &mut UserInfo| {
            let one = |old| match &doc {
                Some(doc) => quota::parse(doc),
                None => quota::of_params(&asked.params, old),
            };
            match (&scope, &doc) {
                (Scope::User, _) => user.user_quota = one(&user.user_quota)?,
                (Scope::Bucket, _) => user.bucket_quota = one(&user.bucket_quota)?,
                (Scope::Both, doc) => {
                    let part = |name| {
                        let part = doc.as_ref().and_then(|d| d.get(name));
                        part.map_or(Ok(Default::default()), quota::parse)
                    };
                    user.user_quota = part("user_quota")?;
                    user.bucket_quota = part("bucket_quota")?;
                }
            }
            Ok(())
        };
        self.change(asked, change).await?;
        Ok(Value::Null)
    }
}

/// Which quotas of a user.
enum Scope {
    Both,
    Bucket,
    User,
}

impl Scope {
    fn of(asked: &Asked<'_>) -> Result<Scope> {
        if user_id(&asked.params).is_empty() {
            return Err(Refusal::ARGUMENT.because("a uid was expected"));
        }
        match asked.params.text("quota-type") {
            "" => Ok(Scope::Both),
            "bucket" => Ok(Scope::Bucket),
            "user" => Ok(Scope::User),
            _ => Err(Refusal::ARGUMENT.because("quota-type: user or bucket was expected")),
        }
    }
}

fn taken(alias: Alias) -> Refusal {
    match alias {
        Alias::Email => Refusal::EMAIL_EXISTS,
        Alias::Key | Alias::SwiftKey => Refusal::KEY_EXISTS,
    }
}
