//! One verdict from a bucket's policy, ACLs, ownership and public access block.
//!
//! The order is Ceph's: a policy that denies ends it; one that allows is enough; the owner of the
//! bucket or object may; else ACLs decide.

use crate::policy::{Asked, Context, Policy, User, Verdict};
use s3::xml::config::{Acl, Grantee, Ownership, Permission, PublicAccessBlock};

/// What is known of the bucket that a request is about.
#[derive(Clone, Copy, Debug)]
pub struct BucketRules<'a> {
    /// The owner's full id (`tenant$user`).
    pub owner: &'a str,
    /// The policy, if there is one.
    pub policy: Option<&'a Policy>,
    /// The bucket's ACL.
    pub acl: &'a Acl,
    /// Which of the public settings count.
    pub block: PublicAccessBlock,
    /// Which account owns objects.
    pub ownership: Ownership,
}

/// Whether the request may go on.
pub fn allowed(
    bucket: &BucketRules<'_>,
    object: Option<&Acl>,
    asked: &Asked<'_>,
    needs: Permission,
    context: &Context,
) -> bool {
    let user = context.user.as_ref().map(User::full);
    let is_owner = user.as_deref() == Some(bucket.owner);
    if let Some(policy) = bucket.policy {
        match policy.judge(asked, context) {
            Verdict::Deny => return false,
            // A public policy of a restricted bucket lets in the owner's tenant alone.
            Verdict::Allow => {
                let restricted = bucket.block.restrict_public_buckets && policy.is_public();
                if !restricted || is_owner {
                    return true;
                }
            }
            Verdict::Pass => {}
        }
    }
    if is_owner && bucket.ownership == Ownership::BucketOwnerEnforced {
        return true;
    }
    let acl = object.unwrap_or(bucket.acl);
    if user.as_deref() == Some(acl.owner.as_str()) {
        return true;
    }
    if bucket.ownership == Ownership::BucketOwnerEnforced {
        return false;
    }
    grants(acl, user.as_deref(), needs, bucket.block.ignore_public_acls)
}

/// Whether an ACL grants a permission to a user, or to anonymous senders.
pub fn grants(acl: &Acl, user: Option<&str>, needs: Permission, ignore_public: bool) -> bool {
    acl.grants.iter().any(|g| {
        let to = match &g.grantee {
            Grantee::User { id, .. } => user == Some(id),
            Grantee::AllUsers => !ignore_public,
            Grantee::AuthenticatedUsers => !ignore_public && user.is_some(),
            Grantee::Email(_) => false,
        };
        to && (g.permission == needs || g.permission == Permission::FullControl)
    })
}

/// Whether an ACL grants anything to all users or to all users with a key.
pub fn is_public(acl: &Acl) -> bool {
    acl.grants.iter().any(|g| matches!(g.grantee, Grantee::AllUsers | Grantee::AuthenticatedUsers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3::xml::config::Grant;

    fn acl(owner: &str, grants: &[(Grantee, Permission)]) -> Acl {
        let grants =
            grants.iter().map(|(g, p)| Grant { grantee: g.clone(), permission: *p }).collect();
        Acl { owner: owner.into(), owner_name: owner.into(), grants }
    }

    fn user(id: &str) -> Option<User> {
        Some(User { tenant: String::new(), id: id.into() })
    }

    #[test]
    fn policy_then_owner_then_acl() {
        let public = acl("o", &[(Grantee::AllUsers, Permission::Read)]);
        let policy = Policy::parse(
            br#"{"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject",
                "Resource": "arn:aws:s3:::b/secret"}]}"#,
            "b",
        )
        .unwrap();
        let mut rules = BucketRules {
            owner: "o",
            policy: Some(&policy),
            acl: &public,
            block: PublicAccessBlock::default(),
            ownership: Ownership::ObjectWriter,
        };
        let ask = |rules: &BucketRules<'_>, u: Option<User>, key: &str| {
            let asked = Asked { action: "s3:GetObject", tenant: "", bucket: "b", key };
            let context = Context { user: u, ..Context::default() };
            allowed(rules, None, &asked, Permission::Read, &context)
        };
        assert!(ask(&rules, None, "k"));
        assert!(!ask(&rules, None, "secret"));
        assert!(!ask(&rules, user("o"), "secret"), "a denial holds for the owner, too");
        rules.block.ignore_public_acls = true;
        assert!(!ask(&rules, None, "k"));
        assert!(ask(&rules, user("o"), "k"));
        rules.ownership = Ownership::BucketOwnerEnforced;
        rules.block.ignore_public_acls = false;
        assert!(!ask(&rules, user("x"), "k"), "ACLs are off");
    }

    #[test]
    fn public_policies_of_restricted_buckets() {
        let private = acl("o", &[]);
        let policy = Policy::parse(
            br#"{"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject",
                "Resource": "arn:aws:s3:::b/*"}]}"#,
            "b",
        )
        .unwrap();
        let mut rules = BucketRules {
            owner: "o",
            policy: Some(&policy),
            acl: &private,
            block: PublicAccessBlock::default(),
            ownership: Ownership::ObjectWriter,
        };
        let asked = Asked { action: "s3:GetObject", tenant: "", bucket: "b", key: "k" };
        let anyone = Context::default();
        assert!(allowed(&rules, None, &asked, Permission::Read, &anyone));
        rules.block.restrict_public_buckets = true;
        assert!(!allowed(&rules, None, &asked, Permission::Read, &anyone));
        let owner = Context { user: user("o"), ..Context::default() };
        assert!(allowed(&rules, None, &asked, Permission::Read, &owner));
        assert!(is_public(&acl("o", &[(Grantee::AuthenticatedUsers, Permission::Read)])));
    }
}
