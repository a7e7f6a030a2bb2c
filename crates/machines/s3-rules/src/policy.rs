//! Bucket policies: the JSON language of Amazon's IAM, as far as buckets use it and Ceph's gateway
//! knows it.
//!
//! A policy that holds a word which is not known is refused when it is set: a condition that was
//! ignored would let in what it was to keep out.

use crate::net::Cidr;
use crate::pattern;
use s3::error::{ErrorCode, Result, S3Error};
use s3::{Operation, date};
use serde_json::{Map, Value};
use std::net::IpAddr;

/// The longest policy, in bytes.
pub const BYTES_MAX: usize = 20 << 10;
/// The most statements of a policy.
pub const STATEMENTS_MAX: usize = 256;

/// What a policy says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A statement denies. Nothing overrules that.
    Deny,
    /// A statement allows, none denies.
    Allow,
    /// No statement is about the request.
    Pass,
}

/// A user as policies name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// The tenant; empty for the default one.
    pub tenant: String,
    /// The id within the tenant.
    pub id: String,
}

impl User {
    /// `tenant$id`, or the id alone.
    pub fn full(&self) -> String {
        if self.tenant.is_empty() {
            self.id.clone()
        } else {
            format!("{}${}", self.tenant, self.id)
        }
    }
}

/// What conditions can ask about.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The sender's address.
    pub source_ip: Option<IpAddr>,
    /// Whether the request came over TLS.
    pub secure: bool,
    /// Seconds since 1970.
    pub now: u64,
    /// The sender, if it has a key.
    pub user: Option<User>,
    /// Further keys in lower case (`s3:prefix`, `aws:useragent`, `s3:x-amz-acl`,
    /// `s3:existingobjecttag/name`, ...), each with its values.
    pub values: Vec<(String, Vec<String>)>,
}

impl Context {
    /// Adds a key with one value, if there is one.
    pub fn set(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.values.push((key.to_ascii_lowercase(), vec![value.to_owned()]));
        }
    }

    fn get(&self, key: &str) -> Option<Vec<String>> {
        match key {
            "aws:sourceip" => self.source_ip.map(|a| vec![a.to_string()]),
            "aws:securetransport" => Some(vec![self.secure.to_string()]),
            "aws:currenttime" => Some(vec![date::iso8601(self.now * 1_000_000_000)]),
            "aws:epochtime" => Some(vec![self.now.to_string()]),
            "aws:username" | "aws:userid" => self.user.as_ref().map(|u| vec![u.id.clone()]),
            _ => self.values.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone()),
        }
    }
}

/// What a request wants of what.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The action, `s3:GetObject`.
    pub action: &'a str,
    /// The bucket's tenant.
    pub tenant: &'a str,
    /// The bucket.
    pub bucket: &'a str,
    /// The key; empty for actions on the bucket itself.
    pub key: &'a str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Principal {
    Everyone,
    /// All users of a tenant.
    Tenant(String),
    User(User),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    StringEquals,
    StringEqualsIgnoreCase,
    StringLike,
    NumericEquals,
    NumericLessThan,
    NumericLessThanEquals,
    NumericGreaterThan,
    NumericGreaterThanEquals,
    DateEquals,
    DateLessThan,
    DateLessThanEquals,
    DateGreaterThan,
    DateGreaterThanEquals,
    Bool,
    IpAddress,
    Null,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// The key has one value.
    One,
    /// One of its values must do.
    Any,
    /// All of its values must do; no value does, too.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Condition {
    kind: Kind,
    negated: bool,
    if_exists: bool,
    over: Over,
    key: String,
    values: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Statement {
    allow: bool,
    principals: Vec<Principal>,
    not_principals: bool,
    actions: Vec<String>,
    not_actions: bool,
    resources: Vec<String>,
    not_resources: bool,
    conditions: Vec<Condition>,
}

/// A bucket policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    statements: Vec<Statement>,
}

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::MalformedPolicy, message.into())
}

impl Policy {
    /// Reads a policy for a bucket: every resource must be of that bucket.
    pub fn parse(bytes: &[u8], bucket: &str) -> Result<Policy> {
        if bytes.len() > BYTES_MAX {
            return Err(malformed(format!("a policy of at most {BYTES_MAX} bytes was expected")));
        }
        let value: Value = serde_json::from_slice(bytes)
            .map_err(|e| malformed(format!("Policies must be valid JSON: {e}")))?;
        let Value::Object(map) = value else {
            return Err(malformed("Policies must be valid JSON and the first byte must be '{'"));
        };
        for key in map.keys() {
            if !["Version", "Id", "Statement"].contains(&key.as_str()) {
                return Err(malformed(format!("Unknown field {key}")));
            }
        }
        match map.get("Version").map(Value::as_str) {
            None | Some(Some("2012-10-17" | "2008-10-17")) => {}
            Some(other) => {
                return Err(malformed(format!(
                    "Version 2012-10-17 or 2008-10-17 was expected, found {}",
                    other.unwrap_or("no text")
                )));
            }
        }
        let list: Vec<&Value> = match map.get("Statement") {
            Some(Value::Array(list)) => list.iter().collect(),
            Some(one @ Value::Object(_)) => vec![one],
            _ => return Err(malformed("Missing required field Statement")),
        };
        if list.is_empty() || list.len() > STATEMENTS_MAX {
            return Err(malformed(format!("1 to {STATEMENTS_MAX} statements were expected")));
        }
        let statements: Vec<Statement> = list.into_iter().map(statement).collect::<Result<_>>()?;
        for r in statements.iter().flat_map(|s| &s.resources) {
            let name = r.split_once('/').map_or(r.as_str(), |(b, _)| b);
            if !pattern::matches(name, bucket) {
                return Err(malformed("Policy has invalid resource").with("Resource", r.clone()));
            }
        }
        Ok(Policy { statements })
    }

    /// What the policy says of a request.
    pub fn judge(&self, asked: &Asked<'_>, context: &Context) -> Verdict {
        let mut verdict = Verdict::Pass;
        for s in &self.statements {
            if s.is_about(asked, context) {
                if !s.allow {
                    return Verdict::Deny;
                }
                verdict = Verdict::Allow;
            }
        }
        verdict
    }

    /// Whether a statement allows something to all principals but some.
    pub fn allows_all_others(&self) -> bool {
        self.statements.iter().any(|s| s.allow && s.not_principals)
    }

    /// Whether the policy lets everyone in: a statement allows all principals, and no condition
    /// narrows it to known addresses or users.
    pub fn is_public(&self) -> bool {
        const NARROWING: [&str; 6] = [
            "aws:sourceip",
            "aws:sourcevpc",
            "aws:sourcevpce",
            "aws:sourcearn",
            "aws:username",
            "aws:userid",
        ];
        self.statements.iter().any(|s| {
            let open = s.not_principals || s.principals.contains(&Principal::Everyone);
            let narrowed = s.conditions.iter().any(|c| {
                NARROWING.contains(&c.key.as_str())
                    && !c.negated
                    && !c.if_exists
                    && c.values.iter().all(|v| !v.contains('*') && !v.ends_with("/0"))
            });
            s.allow && open && !narrowed
        })
    }
}

impl Statement {
    fn is_about(&self, asked: &Asked<'_>, context: &Context) -> bool {
        let user = context.user.as_ref();
        let named = self.principals.iter().any(|p| match (p, user) {
            (Principal::Everyone, _) => true,
            (Principal::Tenant(t), Some(u)) => *t == u.tenant,
            (Principal::User(p), Some(u)) => p == u,
            (_, None) => false,
        });
        let action = self
            .actions
            .iter()
            .any(|a| pattern::matches(&a.to_ascii_lowercase(), &asked.action.to_ascii_lowercase()));
        let resource = if asked.key.is_empty() {
            asked.bucket.to_owned()
        } else {
            format!("{}/{}", asked.bucket, asked.key)
        };
        let named_resource =
            self.resources.iter().any(|r| pattern::matches(&substitute(r, context), &resource));
        named != self.not_principals
            && action != self.not_actions
            && named_resource != self.not_resources
            && self.conditions.iter().all(|c| c.holds(context))
    }
}

/// Replaces `${aws:username}` and its kin; an unknown variable stays and matches nothing.
fn substitute(text: &str, context: &Context) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        out.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else { break };
        let name = &rest[at + 2..at + end];
        match name {
            "*" | "?" | "$" => out.push_str(name),
            _ => match context.get(&name.to_ascii_lowercase()) {
                Some(values) if values.len() == 1 => out.push_str(&values[0]),
                _ => out.push_str(&rest[at..=at + end]),
            },
        }
        rest = &rest[at + end + 1..];
    }
    out.push_str(rest);
    out
}

impl Condition {
    fn holds(&self, context: &Context) -> bool {
        let values = context.get(&self.key);
        if self.kind == Kind::Null {
            let wants_absent = self.values.iter().any(|v| v.eq_ignore_ascii_case("true"));
            return values.is_none() == wants_absent;
        }
        let Some(values) = values else {
            return self.if_exists || self.over == Over::All || self.negated;
        };
        let one = |v: &String| {
            let found = self.values.iter().any(|w| self.compare(v, &substitute(w, context)));
            found != self.negated
        };
        match self.over {
            Over::One | Over::Any => values.iter().any(one),
            Over::All => values.iter().all(one),
        }
    }

    fn compare(&self, value: &str, wanted: &str) -> bool {
        let numbers = || Some((value.parse::<f64>().ok()?, wanted.parse::<f64>().ok()?));
        let dates = || Some((moment(value)?, moment(wanted)?));
        match self.kind {
            Kind::StringEquals => value == wanted,
            Kind::StringEqualsIgnoreCase => value.eq_ignore_ascii_case(wanted),
            Kind::StringLike => pattern::matches(wanted, value),
            Kind::NumericEquals => numbers().is_some_and(|(a, b)| a == b),
            Kind::NumericLessThan => numbers().is_some_and(|(a, b)| a < b),
            Kind::NumericLessThanEquals => numbers().is_some_and(|(a, b)| a <= b),
            Kind::NumericGreaterThan => numbers().is_some_and(|(a, b)| a > b),
            Kind::NumericGreaterThanEquals => numbers().is_some_and(|(a, b)| a >= b),
            Kind::DateEquals => dates().is_some_and(|(a, b)| a == b),
            Kind::DateLessThan => dates().is_some_and(|(a, b)| a < b),
            Kind::DateLessThanEquals => dates().is_some_and(|(a, b)| a <= b),
            Kind::DateGreaterThan => dates().is_some_and(|(a, b)| a > b),
            Kind::DateGreaterThanEquals => dates().is_some_and(|(a, b)| a >= b),
            Kind::Bool => value.eq_ignore_ascii_case(wanted),
            Kind::IpAddress => match (value.parse(), Cidr::parse(wanted)) {
                (Ok(address), Some(range)) => range.contains(address),
                _ => false,
            },
            Kind::Null => false,
        }
    }
}

fn moment(text: &str) -> Option<u64> {
    date::parse_iso8601(text).or_else(|| text.parse().ok())
}

fn texts(value: &Value, what: &str) -> Result<Vec<String>> {
    let list: Vec<&Value> = match value {
        Value::Array(list) => list.iter().collect(),
        one => vec![one],
    };
    list.into_iter()
        .map(|v| match v {
            Value::String(s) => Ok(s.clone()),
            Value::Bool(b) => Ok(b.to_string()),
            Value::Number(n) => Ok(n.to_string()),
            _ => Err(malformed(format!("text was expected in {what}"))),
        })
        .collect()
}

/// One of two fields, of which exactly one must be there.
fn either<'a>(map: &'a Map<String, Value>, yes: &str, no: &str) -> Result<(&'a Value, bool)> {
    match (map.get(yes), map.get(no)) {
        (Some(v), None) => Ok((v, false)),
        (None, Some(v)) => Ok((v, true)),
        (None, None) => Err(malformed(format!("Missing required field {yes}"))),
        (Some(_), Some(_)) => Err(malformed(format!("{yes} and {no} exclude each other"))),
    }
}

fn statement(value: &Value) -> Result<Statement> {
    let Value::Object(map) = value else {
        return Err(malformed("a Statement must be an object"));
    };
    const KNOWN: [&str; 9] = [
        "Sid",
        "Effect",
        "Principal",
        "NotPrincipal",
        "Action",
        "NotAction",
        "Resource",
        "NotResource",
        "Condition",
    ];
    for key in map.keys() {
        if !KNOWN.contains(&key.as_str()) {
            return Err(malformed(format!("Unknown field {key} in a Statement")));
        }
    }
    let allow = match map.get("Effect").and_then(Value::as_str) {
        Some("Allow") => true,
        Some("Deny") => false,
        _ => return Err(malformed("Effect must be Allow or Deny")),
    };
    let (p, not_principals) = either(map, "Principal", "NotPrincipal")?;
    let principals = principals(p)?;
    let (a, not_actions) = either(map, "Action", "NotAction")?;
    let actions = texts(a, "Action")?;
    for a in &actions {
        let known = Operation::ALL
            .iter()
            .any(|o| pattern::matches(&a.to_ascii_lowercase(), &o.action().to_ascii_lowercase()));
        if !known && !FURTHER_ACTIONS.iter().any(|f| pattern::matches(&a.to_ascii_lowercase(), f)) {
            return Err(malformed("Policy has invalid action").with("Action", a.clone()));
        }
    }
    let (r, not_resources) = either(map, "Resource", "NotResource")?;
    let mut resources = Vec::new();
    for r in texts(r, "Resource")? {
        resources.push(resource(&r)?);
    }
    let conditions = match map.get("Condition") {
        None => Vec::new(),
        Some(Value::Object(c)) => conditions(c)?,
        Some(_) => return Err(malformed("Condition must be an object")),
    };
    Ok(Statement {
        allow,
        principals,
        not_principals,
        actions,
        not_actions,
        resources,
        not_resources,
        conditions,
    })
}

/// Actions of policies that are not the action of one operation, in lower case.
const FURTHER_ACTIONS: &[&str] = &[
    "s3:getobjectversion",
    "s3:deleteobjectversion",
    "s3:getobjectversionacl",
    "s3:putobjectversionacl",
    "s3:getobjectversiontagging",
    "s3:putobjectversiontagging",
    "s3:deleteobjectversiontagging",
    "s3:getobjectversiontorrent",
    "s3:getobjectversionattributes",
    "s3:bypassgovernanceretention",
    "s3:replicateobject",
    "s3:replicatedelete",
    "s3:replicatetags",
    "s3:listallmybuckets",
];

/// The part of an ARN behind `arn:aws:s3:REGION:ACCOUNT:`, in which a tenant may stand as account.
fn resource(text: &str) -> Result<String> {
    if text == "*" {
        return Ok("*".to_owned());
    }
    let mut words = text.splitn(6, ':');
    match (words.next(), words.next(), words.next(), words.next(), words.next(), words.next()) {
        (Some("arn"), Some("aws" | "*"), Some("s3" | "*"), Some(_), Some(_), Some(rest))
            if !rest.is_empty() =>
        {
            Ok(rest.to_owned())
        }
        _ => Err(malformed("Policy has invalid resource: arn:aws:s3:::BUCKET/KEY was expected")
            .with("Resource", text)),
    }
}

fn principals(value: &Value) -> Result<Vec<Principal>> {
    let invalid = |text: &str| malformed("Invalid principal in policy").with("Principal", text);
    let list = match value {
        Value::String(s) if s == "*" => return Ok(vec![Principal::Everyone]),
        Value::Object(map) => {
            let mut list = Vec::new();
            for (kind, v) in map {
                match kind.as_str() {
                    "AWS" | "CanonicalUser" => list.extend(texts(v, "Principal")?),
                    other => return Err(invalid(other)),
                }
            }
            list
        }
        other => return Err(invalid(&other.to_string())),
    };
    list.into_iter()
        .map(|text| {
            if text == "*" {
                return Ok(Principal::Everyone);
            }
            let Some(rest) = text.strip_prefix("arn:aws:iam::") else {
                let user = match text.split_once('$') {
                    Some((t, u)) => User { tenant: t.into(), id: u.into() },
                    None => User { tenant: String::new(), id: text.clone() },
                };
                let plain = !user.id.is_empty() && !text.contains([':', '/', ' ', '*']);
                return if plain { Ok(Principal::User(user)) } else { Err(invalid(&text)) };
            };
            let (tenant, who) = rest.split_once(':').ok_or_else(|| invalid(&text))?;
            match who.split_once('/') {
                None if who == "root" || who == "*" => Ok(Principal::Tenant(tenant.to_owned())),
                Some(("user", "*")) => Ok(Principal::Tenant(tenant.to_owned())),
                Some(("user", id)) if !id.is_empty() => {
                    Ok(Principal::User(User { tenant: tenant.to_owned(), id: id.to_owned() }))
                }
                _ => Err(invalid(&text)),
            }
        })
        .collect()
}

/// Keys that conditions may name, in lower case; `…/` stands for a name behind a slash.
const KEYS: &[&str] = &[
    "aws:sourceip",
    "aws:securetransport",
    "aws:currenttime",
    "aws:epochtime",
    "aws:useragent",
    "aws:referer",
    "aws:username",
    "aws:userid",
    "aws:principaltype",
    "s3:prefix",
    "s3:delimiter",
    "s3:max-keys",
    "s3:versionid",
    "s3:authtype",
    "s3:signatureversion",
    "s3:signatureage",
    "s3:x-amz-acl",
    "s3:x-amz-copy-source",
    "s3:x-amz-content-sha256",
    "s3:x-amz-metadata-directive",
    "s3:x-amz-storage-class",
    "s3:x-amz-server-side-encryption",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
    "s3:x-amz-server-side-encryption-customer-algorithm",
    "s3:x-amz-grant-read",
    "s3:x-amz-grant-write",
    "s3:x-amz-grant-read-acp",
    "s3:x-amz-grant-write-acp",
    "s3:x-amz-grant-full-control",
    "s3:x-amz-object-ownership",
    "s3:locationconstraint",
    "s3:requestobjecttagkeys",
    "s3:existingobjecttag/",
    "s3:requestobjecttag/",
];

fn conditions(map: &Map<String, Value>) -> Result<Vec<Condition>> {
    let mut out = Vec::new();
    for (operator, keys) in map {
        let Value::Object(keys) = keys else {
            return Err(malformed(format!("{operator} must hold an object")));
        };
        let (over, name) = match operator.split_once(':') {
            Some(("ForAnyValue", rest)) => (Over::Any, rest),
            Some(("ForAllValues", rest)) => (Over::All, rest),
            Some(_) => return Err(malformed(format!("unknown condition {operator}"))),
            None => (Over::One, operator.as_str()),
        };
        let (name, if_exists) = match name.strip_suffix("IfExists") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let (kind, negated) = match name {
            "StringEquals" | "ArnEquals" => (Kind::StringEquals, false),
            "StringNotEquals" | "ArnNotEquals" => (Kind::StringEquals, true),
            "StringEqualsIgnoreCase" => (Kind::StringEqualsIgnoreCase, false),
            "StringNotEqualsIgnoreCase" => (Kind::StringEqualsIgnoreCase, true),
            "StringLike" | "ArnLike" => (Kind::StringLike, false),
            "StringNotLike" | "ArnNotLike" => (Kind::StringLike, true),
            "NumericEquals" => (Kind::NumericEquals, false),
            "NumericNotEquals" => (Kind::NumericEquals, true),
            "NumericLessThan" => (Kind::NumericLessThan, false),
            "NumericLessThanEquals" => (Kind::NumericLessThanEquals, false),
            "NumericGreaterThan" => (Kind::NumericGreaterThan, false),
            "NumericGreaterThanEquals" => (Kind::NumericGreaterThanEquals, false),
            "DateEquals" => (Kind::DateEquals, false),
            "DateNotEquals" => (Kind::DateEquals, true),
            "DateLessThan" => (Kind::DateLessThan, false),
            "DateLessThanEquals" => (Kind::DateLessThanEquals, false),
            "DateGreaterThan" => (Kind::DateGreaterThan, false),
            "DateGreaterThanEquals" => (Kind::DateGreaterThanEquals, false),
            "Bool" => (Kind::Bool, false),
            "IpAddress" => (Kind::IpAddress, false),
            "NotIpAddress" => (Kind::IpAddress, true),
            "Null" if !if_exists => (Kind::Null, false),
            _ => return Err(malformed(format!("unknown condition {operator}"))),
        };
        for (key, values) in keys {
            let lower = key.to_ascii_lowercase();
            let known = KEYS.iter().any(|k| {
                if k.ends_with('/') {
                    lower.len() > k.len() && lower.starts_with(k)
                } else {
                    lower == *k
                }
            });
            if !known {
                return Err(malformed(format!("unknown condition key {key}")));
            }
            let values = texts(values, key)?;
            let valid = match kind {
                Kind::IpAddress => values.iter().all(|v| Cidr::parse(v).is_some()),
                Kind::NumericEquals
                | Kind::NumericLessThan
                | Kind::NumericLessThanEquals
                | Kind::NumericGreaterThan
                | Kind::NumericGreaterThanEquals => values.iter().all(|v| v.parse::<f64>().is_ok()),
                Kind::DateEquals
                | Kind::DateLessThan
                | Kind::DateLessThanEquals
                | Kind::DateGreaterThan
                | Kind::DateGreaterThanEquals => values.iter().all(|v| moment(v).is_some()),
                Kind::Bool | Kind::Null => values
                    .iter()
                    .all(|v| v.eq_ignore_ascii_case("true") || v.eq_ignore_ascii_case("false")),
                _ => true,
            };
            if !valid || values.is_empty() {
                return Err(malformed(format!("a value of {key} does not fit {operator}")));
            }
            // Tag names keep their case: they are compared as they are.
            let key = match lower.find('/') {
                Some(at) => format!("{}{}", &lower[..at], &key[at..]),
                None => lower,
            };
            out.push(Condition { kind, negated, if_exists, over, key, values });
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(statement: &str) -> Result<Policy> {
        Policy::parse(
            format!(r#"{{"Version": "2012-10-17", "Statement": [{statement}]}}"#).as_bytes(),
            "b",
        )
    }

    fn judge(p: &Policy, user: Option<&str>, action: &str, key: &str, c: &Context) -> Verdict {
        let user = user.map(|u| match u.split_once('$') {
            Some((t, i)) => User { tenant: t.into(), id: i.into() },
            None => User { tenant: String::new(), id: u.into() },
        });
        let context = Context { user, ..c.clone() };
        p.judge(&Asked { action, tenant: "", bucket: "b", key }, &context)
    }

    #[test]
    fn principals_actions_resources() {
        let p = policy(
            r#"{"Effect": "Allow", "Principal": {"AWS": ["arn:aws:iam::t:user/u", "arn:aws:iam:::user/v"]},
                "Action": ["s3:Get*"], "Resource": ["arn:aws:s3:::b/x/*"]},
               {"Effect": "Deny", "Principal": "*", "Action": "s3:GetObjectAcl", "Resource": "arn:aws:s3:::b/*"}"#,
        )
        .unwrap();
        let c = Context::default();
        assert_eq!(judge(&p, Some("t$u"), "s3:GetObject", "x/1", &c), Verdict::Allow);
        assert_eq!(judge(&p, Some("v"), "s3:getobject", "x/1", &c), Verdict::Allow);
        assert_eq!(judge(&p, Some("u"), "s3:GetObject", "x/1", &c), Verdict::Pass);
        assert_eq!(judge(&p, None, "s3:GetObject", "x/1", &c), Verdict::Pass);
        assert_eq!(judge(&p, Some("v"), "s3:GetObject", "y/1", &c), Verdict::Pass);
        assert_eq!(judge(&p, Some("v"), "s3:GetObjectAcl", "x/1", &c), Verdict::Deny);
        assert!(!p.is_public());
    }

    #[test]
    fn conditions_hold_or_not() {
        let with = |condition: &str| {
            policy(&format!(
                r#"{{"Effect": "Allow", "Principal": "*", "Action": "s3:ListBucket",
                    "Resource": "arn:aws:s3:::b", "Condition": {condition}}}"#
            ))
        };
        let mut c = Context {
            source_ip: Some("192.0.2.7".parse().unwrap()),
            now: 1_795_716_000,
            ..Context::default()
        };
        c.set("s3:prefix", Some("home/me"));
        c.set("s3:max-keys", Some("10"));
        let verdict = |condition: &str| {
            judge(&with(condition).unwrap(), None, "s3:ListBucket", "", &c) == Verdict::Allow
        };
        assert!(verdict(r#"{"StringLike": {"s3:prefix": ["home/*"]}}"#));
        assert!(!verdict(r#"{"StringNotLike": {"s3:prefix": "home/*"}}"#));
        assert!(verdict(r#"{"NumericLessThanEquals": {"s3:max-keys": 10}}"#));
        assert!(!verdict(r#"{"NumericLessThan": {"s3:max-keys": "10"}}"#));
        assert!(verdict(r#"{"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}"#));
        assert!(!verdict(r#"{"NotIpAddress": {"aws:SourceIp": ["192.0.2.0/24"]}}"#));
        assert!(verdict(r#"{"DateLessThan": {"aws:CurrentTime": "2027-01-01T00:00:00Z"}}"#));
        assert!(verdict(r#"{"Bool": {"aws:SecureTransport": "false"}}"#));
        assert!(verdict(r#"{"Null": {"s3:delimiter": "true"}}"#));
        assert!(!verdict(r#"{"StringEquals": {"s3:delimiter": "/"}}"#));
        assert!(verdict(r#"{"StringEqualsIfExists": {"s3:delimiter": "/"}}"#));
        assert!(verdict(r#"{"StringNotEquals": {"s3:delimiter": "/"}}"#));
        assert!(verdict(r#"{"ForAllValues:StringEquals": {"s3:RequestObjectTagKeys": ["a"]}}"#));
        assert!(with(r#"{"StringEquals": {"s3:nonsense": "x"}}"#).is_err());
        assert!(with(r#"{"StringMatches": {"s3:prefix": "x"}}"#).is_err());
        assert!(with(r#"{"IpAddress": {"aws:SourceIp": "x"}}"#).is_err());
        let open = with(r#"{"StringLike": {"s3:prefix": "*"}}"#).unwrap();
        assert!(open.is_public());
        let narrow = with(r#"{"IpAddress": {"aws:SourceIp": "192.0.2.0/24"}}"#).unwrap();
        assert!(!narrow.is_public());
        assert!(with(r#"{"IpAddress": {"aws:SourceIp": "0.0.0.0/0"}}"#).unwrap().is_public());
    }

    #[test]
    fn variables() {
        let p = policy(
            r#"{"Effect": "Allow", "Principal": "*", "Action": "s3:*",
                "Resource": "arn:aws:s3:::b/home/${aws:username}/*"}"#,
        )
        .unwrap();
        let c = Context::default();
        assert_eq!(judge(&p, Some("u"), "s3:PutObject", "home/u/1", &c), Verdict::Allow);
        assert_eq!(judge(&p, Some("v"), "s3:PutObject", "home/u/1", &c), Verdict::Pass);
        assert_eq!(judge(&p, None, "s3:PutObject", "home/u/1", &c), Verdict::Pass);
    }

    #[test]
    fn refusals() {
        for bad in [
            "",
            "[]",
            r#"{"Statement": []}"#,
            r#"{"Version": "2010", "Statement": []}"#,
            r#"{"Statement": [{"Effect": "Maybe"}]}"#,
            r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:Nope", "Resource": "*"}]}"#,
            r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::other/*"}]}"#,
            r#"{"Statement": [{"Effect": "Allow", "Principal": {"Service": "x"}, "Action": "s3:*", "Resource": "*"}]}"#,
            r#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "*", "More": 1}]}"#,
        ] {
            let e = Policy::parse(bad.as_bytes(), "b").unwrap_err();
            assert_eq!(e.code, ErrorCode::MalformedPolicy, "{bad}");
        }
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        assert!(Policy::parse(deep.as_bytes(), "b").is_err());
    }
}
