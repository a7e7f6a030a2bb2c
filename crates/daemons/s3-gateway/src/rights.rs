//! Whether a request may go on: what is asked for, in the words of policies and ACLs.

use crate::call::Call;
use crate::fail::Result;
use crate::gateway::Gateway;
use s3::xml::config::{Ownership, Permission};
use s3::{ErrorCode, Operation};
use s3_layout::Layout;
use s3_layout::api::{Bucket, Object};
use s3_rules::access::{BucketRules, allowed};
use s3_rules::policy::{Asked, Context, User};

/// The action of an operation, which differs where the request names a version.
pub(crate) fn action(operation: Operation, versioned: bool) -> &'static str {
    match (operation.action(), versioned) {
        ("s3:GetObject", true) => "s3:GetObjectVersion",
        ("s3:DeleteObject", true) => "s3:DeleteObjectVersion",
        ("s3:GetObjectAcl", true) => "s3:GetObjectVersionAcl",
        ("s3:PutObjectAcl", true) => "s3:PutObjectVersionAcl",
        ("s3:GetObjectTagging", true) => "s3:GetObjectVersionTagging",
        ("s3:PutObjectTagging", true) => "s3:PutObjectVersionTagging",
        ("s3:DeleteObjectTagging", true) => "s3:DeleteObjectVersionTagging",
        ("s3:GetObjectAttributes", true) => "s3:GetObjectVersionAttributes",
        (action, _) => action,
    }
}

/// Headers and parameters that conditions can ask about, and the keys under which they do.
const HEADER_KEYS: [&str; 13] = [
    "x-amz-acl",
    "x-amz-copy-source",
    "x-amz-content-sha256",
    "x-amz-metadata-directive",
    "x-amz-storage-class",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-grant-read",
    "x-amz-grant-write",
    "x-amz-grant-read-acp",
    "x-amz-grant-write-acp",
    "x-amz-grant-full-control",
];

impl<L: Layout> Call<L> {
    fn context(&self, object: Option<&Object>) -> Context {
        let mut c = Context {
            source_ip: Some(self.peer),
            secure: self.gateway.is_secure(),
            now: self.now,
            user: self
                .sender
                .user
                .as_ref()
                .map(|u| User { tenant: u.id.tenant.clone(), id: u.id.id.clone() }),
            values: Vec::new(),
        };
        for name in HEADER_KEYS {
            c.set(&format!("s3:{name}"), self.header(name));
        }
        for (key, parameter) in [
            ("s3:prefix", "prefix"),
            ("s3:delimiter", "delimiter"),
            ("s3:max-keys", "max-keys"),
            ("s3:versionid", "versionId"),
        ] {
            c.set(key, self.query.get(parameter));
        }
        c.set("aws:useragent", self.header("user-agent"));
        c.set("aws:referer", self.header("referer"));
        c.set("s3:x-amz-object-ownership", self.header("x-amz-object-ownership"));
        c.set("s3:authtype", self.sender.auth_type);
        for (key, value) in object.iter().flat_map(|o| &o.tags.0) {
            // Names of tags keep their case.
            c.values.push((format!("s3:existingobjecttag/{key}"), vec![value.clone()]));
        }
        if let Some(Ok(tags)) = self
            .header("x-amz-tagging")
            .map(|t| s3::xml::config::TagSet::of_header(t, s3::xml::config::TagSet::OBJECT_MAX))
        {
            let names = tags.0.iter().map(|(k, _)| k.clone()).collect();
            c.values.push(("s3:requestobjecttagkeys".to_owned(), names));
            for (key, value) in tags.0 {
                c.values.push((format!("s3:requestobjecttag/{key}"), vec![value]));
            }
        }
        c
    }

    /// Whether the sender may do `action` on a bucket (with an empty key) or a key in it. With an
    /// object, its ACL counts in place of the bucket's.
    pub fn may(
        &self,
        bucket: &Bucket,
        object: Option<&Object>,
        action: &str,
        key: &str,
        needs: Permission,
    ) -> bool {
        if self.sender.is_admin() {
            return true;
        }
        let owner = bucket.owner.to_string();
        let is_owner = self.sender.user.as_ref().is_some_and(|u| u.id == bucket.owner);
        let policy = match &bucket.settings.policy {
            None => None,
            Some(text) => match self.gateway.policies.of(bucket, text) {
                // What the policy was to keep out is not known.
                None if !is_owner => return false,
                policy => policy,
            },
        };
        let rules = BucketRules {
            owner: &owner,
            policy: policy.as_deref(),
            acl: &bucket.settings.acl,
            block: bucket.settings.public_access.unwrap_or_default(),
            ownership: bucket.settings.ownership.unwrap_or(Ownership::ObjectWriter),
        };
        let asked = Asked { action, tenant: &bucket.name.tenant, bucket: &bucket.name.name, key };
        allowed(&rules, object.map(|o| &o.acl), &asked, needs, &self.context(object))
    }

    /// Refuses the request if its sender expects another owner of the bucket.
    pub fn expect_owner(&self, header: &str, bucket: &Bucket) -> Result<()> {
        match self.header(header) {
            Some(id) if id != bucket.owner.to_string() => Err(ErrorCode::AccessDenied.into()),
            _ => Ok(()),
        }
    }

    /// Refuses the request unless the sender may do what it asks for, judged by the bucket's ACL.
    pub fn need_bucket(&self, needs: Permission) -> Result<()> {
        let bucket = self.bucket()?;
        let operation = self.route.operation;
        let versioned = self.query.has("versionId");
        let key = &self.route.key;
        if self.may(bucket.as_ref(), None, action(operation, versioned), key, needs) {
            Ok(())
        } else {
            Err(ErrorCode::AccessDenied.into())
        }
    }

    /// [`Call::need_bucket`] for settings that guard the bucket: the owner is never locked out of
    /// them.
    pub fn need_owner_or(&self, needs: Permission) -> Result<()> {
        let bucket = self.bucket()?;
        if self.sender.user.as_ref().is_some_and(|u| u.id == bucket.as_ref().owner) {
            return Ok(());
        }
        self.need_bucket(needs)
    }

    /// Refuses the request unless the sender may do what it asks for, judged by the object's ACL.
    pub fn need_object(&self, object: &Object, needs: Permission) -> Result<()> {
        let bucket = self.bucket()?;
        let versioned = self.query.has("versionId");
        let action = action(self.route.operation, versioned);
        if self.may(bucket.as_ref(), Some(object), action, &object.key, needs) {
            Ok(())
        } else {
            Err(ErrorCode::AccessDenied.into())
        }
    }

    /// Looks an object up. That a key is not there is told only to senders that may list the
    /// bucket.
    pub async fn open(
        &self,
        bucket: &L::Bucket,
        key: &str,
        version: Option<&str>,
        first_bytes: bool,
    ) -> Result<L::Object> {
        match self.layout().open(bucket, key, version, first_bytes).await {
            Ok(object) => Ok(object),
            Err(e) => {
                let absent = matches!(
                    e.code(),
                    ErrorCode::NoSuchKey | ErrorCode::NoSuchVersion | ErrorCode::MethodNotAllowed
                );
                let lists =
                    || self.may(bucket.as_ref(), None, "s3:ListBucket", "", Permission::Read);
                if absent && !lists() { Err(ErrorCode::AccessDenied.into()) } else { Err(e.into()) }
            }
        }
    }
}

impl<L: Layout> Gateway<L> {
    /// Whether a policy lets everyone in.
    pub(crate) fn has_public_policy(&self, bucket: &Bucket) -> bool {
        let text = bucket.settings.policy.as_ref();
        text.and_then(|t| self.policies.of(bucket, t)).is_some_and(|p| p.is_public())
    }
}
