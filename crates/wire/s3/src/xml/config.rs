//! Configuration documents of buckets and objects.

use super::{Element, Limits, NAMESPACE, Writer, parse};
use crate::date;
use crate::error::{ErrorCode, Result, S3Error};
use std::collections::BTreeSet;

/// The namespace of the attribute that says what a grantee is.
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::MalformedXML, message.into())
}

/// Whether a bucket keeps versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versioning {
    /// Each write makes a version.
    Enabled,
    /// New writes replace the version `null`.
    Suspended,
}

impl Versioning {
    /// Reads `VersioningConfiguration`. MFA delete is refused.
    pub fn parse(bytes: &[u8]) -> Result<Versioning> {
        let root = parse(bytes, "VersioningConfiguration", Limits::CONFIG)?;
        if root.text_of("MfaDelete").is_some_and(|m| m == "Enabled") {
            return Err(S3Error::new(ErrorCode::NotImplemented, "MFA delete is not implemented"));
        }
        match root.text_of("Status") {
            Some("Enabled") => Ok(Versioning::Enabled),
            Some("Suspended") => Ok(Versioning::Suspended),
            other => Err(S3Error::new(
                ErrorCode::IllegalVersioningConfigurationException,
                format!(
                    "Enabled or Suspended was expected as Status, found \"{}\"",
                    other.unwrap_or_default()
                ),
            )),
        }
    }

    /// Writes the document; a bucket that was never versioned has an empty one.
    pub fn to_xml(state: Option<Versioning>) -> String {
        let mut w = Writer::document("VersioningConfiguration", Some(NAMESPACE));
        match state {
            Some(Versioning::Enabled) => {
                w.text("Status", "Enabled");
            }
            Some(Versioning::Suspended) => {
                w.text("Status", "Suspended");
            }
            None => {}
        }
        w.finish()
    }
}

/// Tags of a bucket or an object, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagSet(pub Vec<(String, String)>);

impl TagSet {
    /// The most tags of an object.
    pub const OBJECT_MAX: usize = 10;
    /// The most tags of a bucket.
    pub const BUCKET_MAX: usize = 50;

    /// Reads `Tagging`.
    pub fn parse(bytes: &[u8], max: usize) -> Result<TagSet> {
        let root = parse(bytes, "Tagging", Limits::CONFIG)?;
        let set =
            root.child("TagSet").ok_or_else(|| malformed("TagSet was expected in Tagging"))?;
        let mut tags = Vec::new();
        for t in set.all("Tag") {
            tags.push((t.need_whole("Key")?.to_owned(), t.need_whole("Value")?.to_owned()));
        }
        TagSet::checked(tags, max)
    }

    /// Reads the header `x-amz-tagging`: a query string.
    pub fn of_header(text: &str, max: usize) -> Result<TagSet> {
        let query = crate::uri::Query::parse(text)?;
        TagSet::checked(query.pairs().to_vec(), max)
    }

    fn checked(tags: Vec<(String, String)>, max: usize) -> Result<TagSet> {
        if tags.len() > max {
            return Err(S3Error::new(
                ErrorCode::InvalidTag,
                format!("Object tags cannot be greater than {max}"),
            ));
        }
        let mut seen = BTreeSet::new();
        for (key, value) in &tags {
            if key.is_empty() || key.chars().count() > 128 {
                return Err(S3Error::new(
                    ErrorCode::InvalidTag,
                    "The TagKey you have provided is invalid: 1 to 128 characters were expected",
                ));
            }
            if value.chars().count() > 256 {
                return Err(S3Error::new(
                    ErrorCode::InvalidTag,
                    "The TagValue you have provided is invalid: at most 256 characters were expected",
                ));
            }
            if !seen.insert(key) {
                return Err(S3Error::new(
                    ErrorCode::InvalidTag,
                    "Cannot provide multiple Tags with the same key",
                ));
            }
        }
        Ok(TagSet(tags))
    }

    /// Writes the document.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("Tagging", Some(NAMESPACE));
        w.open("TagSet");
        for (key, value) in &self.0 {
            w.open("Tag").text("Key", key).text("Value", value).close();
        }
        w.finish()
    }
}

/// One rule of a bucket's CORS configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsRule {
    /// A name of the owner's.
    pub id: Option<String>,
    /// Origins, each with at most one `*`.
    pub allowed_origins: Vec<String>,
    /// Methods in capitals.
    pub allowed_methods: Vec<String>,
    /// Headers that a preflight may ask for, each with at most one `*`.
    pub allowed_headers: Vec<String>,
    /// Headers that scripts may see.
    pub expose_headers: Vec<String>,
    /// How long a preflight's answer is kept, in seconds.
    pub max_age_seconds: Option<u64>,
}

impl CorsRule {
    /// Whether the rule allows a method of an origin.
    pub fn allows(&self, origin: &str, method: &str) -> bool {
        self.allowed_methods.iter().any(|m| m == method)
            && self.allowed_origins.iter().any(|o| wildcard(o, origin))
    }

    /// Whether the rule allows a header, compared without regard to case.
    pub fn allows_header(&self, header: &str) -> bool {
        let header = header.to_ascii_lowercase();
        self.allowed_headers.iter().any(|h| wildcard(&h.to_ascii_lowercase(), &header))
    }
}

/// Whether a pattern with at most one `*` matches all of `text`.
fn wildcard(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => {
            text.len() >= head.len() + tail.len() && text.starts_with(head) && text.ends_with(tail)
        }
    }
}

/// A bucket's CORS configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors(pub Vec<CorsRule>);

impl Cors {
    /// The most rules.
    pub const RULES_MAX: usize = 100;

    /// Reads `CORSConfiguration`.
    pub fn parse(bytes: &[u8]) -> Result<Cors> {
        let root = parse(bytes, "CORSConfiguration", Limits::CONFIG)?;
        let texts = |e: &Element, name: &str| -> Vec<String> {
            e.all(name).map(|c| c.text.clone()).collect()
        };
        let mut rules = Vec::new();
        for r in root.all("CORSRule") {
            let rule = CorsRule {
                id: r.text_of("ID").map(str::to_owned),
                allowed_origins: texts(r, "AllowedOrigin"),
                allowed_methods: texts(r, "AllowedMethod"),
                allowed_headers: texts(r, "AllowedHeader"),
                expose_headers: texts(r, "ExposeHeader"),
                max_age_seconds: r.number("MaxAgeSeconds")?,
            };
            if rule.allowed_origins.is_empty() || rule.allowed_methods.is_empty() {
                return Err(malformed("AllowedOrigin and AllowedMethod were expected in CORSRule"));
            }
            for m in &rule.allowed_methods {
                if !["GET", "PUT", "HEAD", "POST", "DELETE"].contains(&m.as_str()) {
                    return Err(S3Error::new(
                        ErrorCode::InvalidRequest,
                        format!(
                            "Found unsupported HTTP method in CORS config. Unsupported method is {m}"
                        ),
                    ));
                }
            }
            for o in rule.allowed_origins.iter().chain(&rule.allowed_headers) {
                if o.matches('*').count() > 1 {
                    return Err(S3Error::new(
                        ErrorCode::InvalidRequest,
                        format!("\"{o}\" can not have more than one wildcard."),
                    ));
                }
            }
            rules.push(rule);
        }
        if rules.is_empty() || rules.len() > Cors::RULES_MAX {
            return Err(malformed(format!("1 to {} rules were expected", Cors::RULES_MAX)));
        }
        Ok(Cors(rules))
    }

    /// Writes the document.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("CORSConfiguration", Some(NAMESPACE));
        for r in &self.0 {
            w.open("CORSRule");
            w.maybe("ID", r.id.as_deref());
            for (name, values) in [
                ("AllowedMethod", &r.allowed_methods),
                ("AllowedOrigin", &r.allowed_origins),
                ("AllowedHeader", &r.allowed_headers),
            ] {
                for v in values {
                    w.text(name, v);
                }
            }
            if let Some(seconds) = r.max_age_seconds {
                w.value("MaxAgeSeconds", seconds);
            }
            for v in &r.expose_headers {
                w.text("ExposeHeader", v);
            }
            w.close();
        }
        w.finish()
    }

    /// The first rule that allows a method of an origin.
    pub fn rule(&self, origin: &str, method: &str) -> Option<&CorsRule> {
        self.0.iter().find(|r| r.allows(origin, method))
    }
}

/// Which ACLs and policies that make things public are refused or ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublicAccessBlock {
    /// Public ACLs are refused.
    pub block_public_acls: bool,
    /// Public ACLs count for nothing.
    pub ignore_public_acls: bool,
    /// Public policies are refused.
    pub block_public_policy: bool,
    /// A public policy lets only the owner's users in.
    pub restrict_public_buckets: bool,
}

impl PublicAccessBlock {
    /// Reads `PublicAccessBlockConfiguration`.
    pub fn parse(bytes: &[u8]) -> Result<PublicAccessBlock> {
        let root = parse(bytes, "PublicAccessBlockConfiguration", Limits::CONFIG)?;
        let flag = |name| root.flag(name).map(|f| f.unwrap_or(false));
        Ok(PublicAccessBlock {
            block_public_acls: flag("BlockPublicAcls")?,
            ignore_public_acls: flag("IgnorePublicAcls")?,
            block_public_policy: flag("BlockPublicPolicy")?,
            restrict_public_buckets: flag("RestrictPublicBuckets")?,
        })
    }

    /// Writes the document.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("PublicAccessBlockConfiguration", Some(NAMESPACE));
        w.value("BlockPublicAcls", self.block_public_acls);
        w.value("IgnorePublicAcls", self.ignore_public_acls);
        w.value("BlockPublicPolicy", self.block_public_policy);
        w.value("RestrictPublicBuckets", self.restrict_public_buckets);
        w.finish()
    }
}

/// Which account owns objects that others write into a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// ACLs are off; the bucket's owner owns all.
    BucketOwnerEnforced,
    /// The bucket's owner owns what is written with `bucket-owner-full-control`.
    BucketOwnerPreferred,
    /// The writer owns.
    ObjectWriter,
}

impl Ownership {
    /// The name in documents and in `x-amz-object-ownership`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Ownership::BucketOwnerEnforced => "BucketOwnerEnforced",
            Ownership::BucketOwnerPreferred => "BucketOwnerPreferred",
            Ownership::ObjectWriter => "ObjectWriter",
        }
    }

    /// Reads a name.
    pub fn of_name(text: &str) -> Result<Ownership> {
        [Ownership::BucketOwnerEnforced, Ownership::BucketOwnerPreferred, Ownership::ObjectWriter]
            .into_iter()
            .find(|o| o.as_str() == text)
            .ok_or_else(|| {
                malformed(format!(
                    "BucketOwnerEnforced, BucketOwnerPreferred or ObjectWriter was expected, found \"{text}\""
                ))
            })
    }

    /// Reads `OwnershipControls`.
    pub fn parse(bytes: &[u8]) -> Result<Ownership> {
        let root = parse(bytes, "OwnershipControls", Limits::CONFIG)?;
        let mut rules = root.all("Rule");
        match (rules.next(), rules.next()) {
            (Some(rule), None) => Ownership::of_name(rule.need("ObjectOwnership")?),
            _ => Err(malformed("exactly one Rule was expected in OwnershipControls")),
        }
    }

    /// Writes the document.
    pub fn to_xml(self) -> String {
        let mut w = Writer::document("OwnershipControls", Some(NAMESPACE));
        w.open("Rule").text("ObjectOwnership", self.as_str());
        w.finish()
    }
}

/// What a grant allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Permission {
    /// Everything.
    FullControl,
    /// Reading data, or listing a bucket.
    Read,
    /// Writing into a bucket.
    Write,
    /// Reading the ACL.
    ReadAcp,
    /// Writing the ACL.
    WriteAcp,
}

impl Permission {
    /// All of them, in the order of the reference.
    pub const ALL: [Permission; 5] = [
        Permission::FullControl,
        Permission::Read,
        Permission::Write,
        Permission::ReadAcp,
        Permission::WriteAcp,
    ];

    /// The name in documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Permission::FullControl => "FULL_CONTROL",
            Permission::Read => "READ",
            Permission::Write => "WRITE",
            Permission::ReadAcp => "READ_ACP",
            Permission::WriteAcp => "WRITE_ACP",
        }
    }

    /// The header that grants it.
    pub const fn header(self) -> &'static str {
        match self {
            Permission::FullControl => "x-amz-grant-full-control",
            Permission::Read => "x-amz-grant-read",
            Permission::Write => "x-amz-grant-write",
            Permission::ReadAcp => "x-amz-grant-read-acp",
            Permission::WriteAcp => "x-amz-grant-write-acp",
        }
    }
}

/// The receiver of a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grantee {
    /// A user by id, with the name to show.
    User {
        /// The id.
        id: String,
        /// The name to show.
        display_name: String,
    },
    /// A user by e-mail address; the gateway looks the id up.
    Email(String),
    /// Everyone, signed or not.
    AllUsers,
    /// Every user with a key.
    AuthenticatedUsers,
}

const ALL_USERS: &str = "http://acs.amazonaws.com/groups/global/AllUsers";
const AUTHENTICATED: &str = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers";

impl Grantee {
    fn of_uri(uri: &str) -> Result<Grantee> {
        match uri {
            ALL_USERS => Ok(Grantee::AllUsers),
            AUTHENTICATED => Ok(Grantee::AuthenticatedUsers),
            _ => Err(S3Error::argument("uri", uri, "Invalid group uri")),
        }
    }

    /// Reads one `id="…"`, `uri="…"` or `emailAddress="…"` of a grant header.
    pub fn of_header(text: &str) -> Result<Grantee> {
        let refuse = || S3Error::argument("grant", text, "id=, uri= or emailAddress= was expected");
        let (kind, value) = text.trim().split_once('=').ok_or_else(refuse)?;
        let value = value.trim().trim_matches(['"', '\'']);
        match kind.trim() {
            "id" => Ok(Grantee::User { id: value.into(), display_name: String::new() }),
            "uri" => Grantee::of_uri(value),
            "emailAddress" => Ok(Grantee::Email(value.into())),
            _ => Err(refuse()),
        }
    }
}

/// A grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The receiver.
    pub grantee: Grantee,
    /// What is granted.
    pub permission: Permission,
}

/// An access control policy: an owner and grants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acl {
    /// The owner's id.
    pub owner: String,
    /// The owner's name to show.
    pub owner_name: String,
    /// The grants.
    pub grants: Vec<Grant>,
}

impl Acl {
    /// The most grants.
    pub const GRANTS_MAX: usize = 100;

    /// Reads `AccessControlPolicy`.
    pub fn parse(bytes: &[u8]) -> Result<Acl> {
        let acl = |e: S3Error| {
            if e.code == ErrorCode::MalformedXML {
                S3Error { code: ErrorCode::MalformedACLError, ..e }
            } else {
                e
            }
        };
        Acl::read(bytes).map_err(acl)
    }

    fn read(bytes: &[u8]) -> Result<Acl> {
        let root = parse(bytes, "AccessControlPolicy", Limits::CONFIG)?;
        let owner = root.child("Owner").ok_or_else(|| malformed("Owner was expected"))?;
        let list = root
            .child("AccessControlList")
            .ok_or_else(|| malformed("AccessControlList was expected"))?;
        let mut grants = Vec::new();
        for g in list.all("Grant") {
            let grantee = g.child("Grantee").ok_or_else(|| malformed("Grantee was expected"))?;
            let grantee = if let Some(uri) = grantee.text_of("URI") {
                Grantee::of_uri(uri)?
            } else if let Some(mail) = grantee.text_of("EmailAddress") {
                Grantee::Email(mail.to_owned())
            } else {
                Grantee::User {
                    id: grantee.need("ID")?.to_owned(),
                    display_name: grantee.text_of("DisplayName").unwrap_or_default().to_owned(),
                }
            };
            let name = g.need("Permission")?;
            let permission = Permission::ALL
                .into_iter()
                .find(|p| p.as_str() == name)
                .ok_or_else(|| malformed(format!("\"{name}\" is no permission")))?;
            grants.push(Grant { grantee, permission });
        }
        if grants.len() > Acl::GRANTS_MAX {
            return Err(malformed(format!("at most {} grants were expected", Acl::GRANTS_MAX)));
        }
        Ok(Acl {
            owner: owner.need("ID")?.to_owned(),
            owner_name: owner.text_of("DisplayName").unwrap_or_default().to_owned(),
            grants,
        })
    }

    /// Writes the document.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("AccessControlPolicy", Some(NAMESPACE));
        w.open("Owner").text("ID", &self.owner).text("DisplayName", &self.owner_name).close();
        w.open("AccessControlList");
        for g in &self.grants {
            w.open("Grant");
            let kind = match g.grantee {
                Grantee::User { .. } => "CanonicalUser",
                Grantee::Email(_) => "AmazonCustomerByEmail",
                Grantee::AllUsers | Grantee::AuthenticatedUsers => "Group",
            };
            w.open_with("Grantee", &[("xmlns:xsi", XSI), ("xsi:type", kind)]);
            match &g.grantee {
                Grantee::User { id, display_name } => {
                    w.text("ID", id).text("DisplayName", display_name);
                }
                Grantee::Email(mail) => {
                    w.text("EmailAddress", mail);
                }
                Grantee::AllUsers => {
                    w.text("URI", ALL_USERS);
                }
                Grantee::AuthenticatedUsers => {
                    w.text("URI", AUTHENTICATED);
                }
            }
            w.close();
            w.text("Permission", g.permission.as_str()).close();
        }
        w.finish()
    }
}

/// Reads `CreateBucketConfiguration`: the location constraint, if there is one.
pub fn parse_location(bytes: &[u8]) -> Result<Option<String>> {
    let root = parse(bytes, "CreateBucketConfiguration", Limits::CONFIG)?;
    Ok(root.text_of("LocationConstraint").filter(|l| !l.is_empty()).map(str::to_owned))
}

/// When a lifecycle rule acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So many days after the object was made.
    Days(u64),
    /// At a date, in seconds; midnight UTC.
    Date(u64),
}

/// One rule of a bucket's lifecycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LifecycleRule {
    /// The rule's name.
    pub id: String,
    /// Whether the rule acts.
    pub enabled: bool,
    /// Keys that begin so.
    pub prefix: String,
    /// Objects with all of these tags.
    pub tags: Vec<(String, String)>,
    /// Objects larger than this, in bytes.
    pub larger_than: Option<u64>,
    /// Objects smaller than this, in bytes.
    pub smaller_than: Option<u64>,
    /// Current versions expire.
    pub expiration: Option<When>,
    /// Delete markers without other versions go.
    pub expired_delete_marker: bool,
    /// Noncurrent versions go so many days after they were replaced.
    pub noncurrent_days: Option<u64>,
    /// So many newer noncurrent versions stay.
    pub noncurrent_keep: Option<u64>,
    /// Unfinished uploads go after so many days.
    pub abort_upload_days: Option<u64>,
    /// The form of the filter in the document (`Prefix` of old, or `Filter`).
    pub old_prefix: bool,
}

/// A bucket's lifecycle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifecycle(pub Vec<LifecycleRule>);

impl Lifecycle {
    /// The most rules.
    pub const RULES_MAX: usize = 1000;

    /// Reads `LifecycleConfiguration`. Transitions are refused.
    pub fn parse(bytes: &[u8]) -> Result<Lifecycle> {
        let root = parse(bytes, "LifecycleConfiguration", Limits::CONFIG)?;
        let mut rules: Vec<LifecycleRule> = Vec::new();
        for (at, r) in root.all("Rule").enumerate() {
            let rule = lifecycle_rule(r, at)?;
            if rules.iter().any(|other| other.id == rule.id) {
                return Err(S3Error::new(
                    ErrorCode::InvalidArgument,
                    "Rule ID must be unique. Found same ID for more than one rule",
                ));
            }
            rules.push(rule);
        }
        if rules.is_empty() || rules.len() > Lifecycle::RULES_MAX {
            return Err(malformed(format!("1 to {} rules were expected", Lifecycle::RULES_MAX)));
        }
        Ok(Lifecycle(rules))
    }

    /// Writes the document.
    pub fn to_xml(&self) -> String {
        let mut w = Writer::document("LifecycleConfiguration", Some(NAMESPACE));
        for r in &self.0 {
            w.open("Rule").text("ID", &r.id);
            filter_xml(&mut w, r);
            w.text("Status", if r.enabled { "Enabled" } else { "Disabled" });
            if r.expiration.is_some() || r.expired_delete_marker {
                w.open("Expiration");
                match r.expiration {
                    Some(When::Days(n)) => {
                        w.value("Days", n);
                    }
                    Some(When::Date(t)) => {
                        w.text("Date", &date::iso8601(t * 1_000_000_000));
                    }
                    None => {}
                }
                if r.expired_delete_marker {
                    w.text("ExpiredObjectDeleteMarker", "true");
                }
                w.close();
            }
            if r.noncurrent_days.is_some() || r.noncurrent_keep.is_some() {
                w.open("NoncurrentVersionExpiration");
                if let Some(n) = r.noncurrent_days {
                    w.value("NoncurrentDays", n);
                }
                if let Some(n) = r.noncurrent_keep {
                    w.value("NewerNoncurrentVersions", n);
                }
                w.close();
            }
            if let Some(n) = r.abort_upload_days {
                w.open("AbortIncompleteMultipartUpload").value("DaysAfterInitiation", n).close();
            }
            w.close();
        }
        w.finish()
    }
}

fn filter_xml(w: &mut Writer, r: &LifecycleRule) {
    if r.old_prefix {
        w.text("Prefix", &r.prefix);
        return;
    }
    let conditions = usize::from(!r.prefix.is_empty())
        + r.tags.len()
        + usize::from(r.larger_than.is_some())
        + usize::from(r.smaller_than.is_some());
    w.open("Filter");
    if conditions > 1 {
        w.open("And");
    }
    if !r.prefix.is_empty() || conditions == 0 {
        w.text("Prefix", &r.prefix);
    }
    for (key, value) in &r.tags {
        w.open("Tag").text("Key", key).text("Value", value).close();
    }
    if let Some(n) = r.larger_than {
        w.value("ObjectSizeGreaterThan", n);
    }
    if let Some(n) = r.smaller_than {
        w.value("ObjectSizeLessThan", n);
    }
    if conditions > 1 {
        w.close();
    }
    w.close();
}

fn positive(e: &Element, name: &str) -> Result<Option<u64>> {
    match e.number(name)? {
        Some(0) => Err(S3Error::new(
            ErrorCode::InvalidArgument,
            format!("'{name}' for the lifecycle action must be a positive integer"),
        )),
        n => Ok(n),
    }
}

fn midnight(text: &str) -> Result<u64> {
    date::parse_iso8601(text)
        .filter(|t| t % 86_400 == 0)
        .ok_or_else(|| malformed("'Date' must be at midnight GMT"))
}

fn lifecycle_rule(r: &Element, at: usize) -> Result<LifecycleRule> {
    for date in r.all("Transition").filter_map(|t| t.text_of("Date")) {
        midnight(date)?;
    }
    if r.child("Transition").is_some() || r.child("NoncurrentVersionTransition").is_some() {
        return Err(S3Error::new(
            ErrorCode::NotImplemented,
            "Transitions of lifecycle rules are not implemented",
        ));
    }
    let mut rule = LifecycleRule::default();
    let id = r.text_of("ID").unwrap_or_default();
    if id.len() > 255 {
        return Err(S3Error::new(
            ErrorCode::InvalidArgument,
            "ID length should not exceed allowed limit of 255",
        ));
    }
    rule.id = if id.is_empty() { format!("rule-{at}") } else { id.to_owned() };
    rule.enabled = match r.need("Status")? {
        "Enabled" => true,
        "Disabled" => false,
        other => {
            return Err(malformed(format!("Enabled or Disabled was expected, found \"{other}\"")));
        }
    };
    match (r.child("Filter"), r.text_of("Prefix")) {
        (Some(f), None) => {
            let inside = f.child("And").unwrap_or(f);
            rule.prefix = inside.text_of("Prefix").unwrap_or_default().to_owned();
            for t in inside.all("Tag") {
                rule.tags.push((t.need("Key")?.to_owned(), t.need("Value")?.to_owned()));
            }
            rule.larger_than = inside.number("ObjectSizeGreaterThan")?;
            rule.smaller_than = inside.number("ObjectSizeLessThan")?;
        }
        (None, Some(prefix)) => {
            rule.prefix = prefix.to_owned();
            rule.old_prefix = true;
        }
        (None, None) => return Err(malformed("Filter or Prefix was expected in Rule")),
        (Some(_), Some(_)) => {
            return Err(malformed("either Filter or Prefix was expected in Rule, found both"));
        }
    }
    if let Some(e) = r.child("Expiration") {
        let days = positive(e, "Days")?;
        rule.expired_delete_marker = e.flag("ExpiredObjectDeleteMarker")?.unwrap_or(false);
        let date = match e.text_of("Date") {
            None => None,
            Some(text) => Some(midnight(text)?),
        };
        rule.expiration = match (days, date) {
            (Some(n), None) => Some(When::Days(n)),
            (None, Some(t)) => Some(When::Date(t)),
            (None, None) if rule.expired_delete_marker => None,
            _ => return Err(malformed("one of Days and Date was expected in Expiration")),
        };
    }
    if let Some(e) = r.child("NoncurrentVersionExpiration") {
        rule.noncurrent_days = positive(e, "NoncurrentDays")?;
        rule.noncurrent_keep = positive(e, "NewerNoncurrentVersions")?;
    }
    if let Some(e) = r.child("AbortIncompleteMultipartUpload") {
        rule.abort_upload_days = positive(e, "DaysAfterInitiation")?;
    }
    let acts = rule.expiration.is_some()
        || rule.expired_delete_marker
        || rule.noncurrent_days.is_some()
        || rule.noncurrent_keep.is_some()
        || rule.abort_upload_days.is_some();
    if !acts {
        return Err(S3Error::new(
            ErrorCode::InvalidRequest,
            "At least one action needs to be specified in a rule",
        ));
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versioning() {
        for v in [Versioning::Enabled, Versioning::Suspended] {
            assert_eq!(Versioning::parse(Versioning::to_xml(Some(v)).as_bytes()).unwrap(), v);
        }
        let e = Versioning::parse(Versioning::to_xml(None).as_bytes()).unwrap_err();
        assert_eq!(e.code, ErrorCode::IllegalVersioningConfigurationException);
    }

    #[test]
    fn tags() {
        let t = TagSet(vec![("a".into(), "<1>".into()), ("b".into(), String::new())]);
        assert_eq!(TagSet::parse(t.to_xml().as_bytes(), 10).unwrap(), t);
        assert_eq!(TagSet::of_header("a=%3C1%3E&b=", 10).unwrap(), t);
        for bad in ["a=1&a=2", &"k".repeat(129), "=v", &format!("a={}", "v".repeat(257))] {
            assert_eq!(TagSet::of_header(bad, 10).unwrap_err().code, ErrorCode::InvalidTag);
        }
        let eleven: Vec<String> = (0..11).map(|n| format!("k{n}=v")).collect();
        assert!(TagSet::of_header(&eleven.join("&"), 10).is_err());
    }

    #[test]
    fn cors() {
        let c = Cors(vec![CorsRule {
            id: Some("x".into()),
            allowed_origins: vec!["https://*.example.com".into()],
            allowed_methods: vec!["GET".into()],
            allowed_headers: vec!["x-amz-*".into()],
            expose_headers: vec!["etag".into()],
            max_age_seconds: Some(60),
        }]);
        assert_eq!(Cors::parse(c.to_xml().as_bytes()).unwrap(), c);
        assert!(c.rule("https://a.example.com", "GET").is_some());
        assert!(c.rule("https://a.example.com", "PUT").is_none());
        assert!(c.rule("https://example.com", "GET").is_none());
        assert!(c.0[0].allows_header("X-Amz-Date"));
        let two = "<CORSConfiguration><CORSRule><AllowedMethod>GET</AllowedMethod><AllowedOrigin>*a*</AllowedOrigin></CORSRule></CORSConfiguration>";
        assert_eq!(Cors::parse(two.as_bytes()).unwrap_err().code, ErrorCode::InvalidRequest);
    }

    #[test]
    fn small_documents() {
        let p = PublicAccessBlock { block_public_policy: true, ..Default::default() };
        assert_eq!(PublicAccessBlock::parse(p.to_xml().as_bytes()).unwrap(), p);
        let o = Ownership::BucketOwnerEnforced;
        assert_eq!(Ownership::parse(o.to_xml().as_bytes()).unwrap(), o);
        let l = "<CreateBucketConfiguration><LocationConstraint>eu</LocationConstraint></CreateBucketConfiguration>";
        assert_eq!(parse_location(l.as_bytes()).unwrap().as_deref(), Some("eu"));
    }

    #[test]
    fn acl() {
        let a = Acl {
            owner: "u".into(),
            owner_name: "U".into(),
            grants: vec![
                Grant {
                    grantee: Grantee::User { id: "u".into(), display_name: "U".into() },
                    permission: Permission::FullControl,
                },
                Grant { grantee: Grantee::AllUsers, permission: Permission::Read },
            ],
        };
        assert_eq!(Acl::parse(a.to_xml().as_bytes()).unwrap(), a);
        let e = Acl::parse(b"<AccessControlPolicy/>").unwrap_err();
        assert_eq!(e.code, ErrorCode::MalformedACLError);
        assert_eq!(
            Grantee::of_header("uri=\"http://acs.amazonaws.com/groups/global/AllUsers\"").unwrap(),
            Grantee::AllUsers
        );
        assert!(Grantee::of_header("name=x").is_err());
    }

    #[test]
    fn lifecycle() {
        let l = Lifecycle(vec![
            LifecycleRule {
                id: "a".into(),
                enabled: true,
                prefix: "logs/".into(),
                tags: vec![("k".into(), "v".into())],
                expiration: Some(When::Days(3)),
                ..Default::default()
            },
            LifecycleRule {
                id: "b".into(),
                prefix: String::new(),
                old_prefix: true,
                expiration: Some(When::Date(86_400 * 20_000)),
                noncurrent_days: Some(2),
                noncurrent_keep: Some(1),
                abort_upload_days: Some(7),
                ..Default::default()
            },
            LifecycleRule { id: "c".into(), expired_delete_marker: true, ..Default::default() },
        ]);
        assert_eq!(Lifecycle::parse(l.to_xml().as_bytes()).unwrap(), l);
        for bad in [
            "<Rule><Status>Enabled</Status><Prefix/></Rule>",
            "<Rule><Status>On</Status><Prefix/><Expiration><Days>1</Days></Expiration></Rule>",
            "<Rule><Status>Enabled</Status><Prefix/><Expiration><Days>0</Days></Expiration></Rule>",
            "<Rule><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>",
            "",
        ] {
            let doc = format!("<LifecycleConfiguration>{bad}</LifecycleConfiguration>");
            assert!(Lifecycle::parse(doc.as_bytes()).is_err(), "{bad}");
        }
    }
}
