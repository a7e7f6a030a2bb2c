//! The table of requests: what is there, which capability it needs, and what answers it.

use crate::api::{AdminApi, Asked};
use crate::caps::{READ, WRITE};
use crate::refusal::{Refusal, Result};
use serde_json::Value;

/// A request of the admin operations API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The method of HTTP.
    pub method: &'static str,
    /// What comes after the entry: `user`, `bucket`.
    pub resource: &'static str,
    /// The parameter without a value that names a part of it; empty for none.
    pub part: &'static str,
    /// The capability that it needs, as it is granted: `users=read`.
    pub needs: &'static str,
    /// Whether it is there.
    pub is_there: bool,
    /// What is to be said of it.
    pub note: &'static str,
}

macro_rules! table {
    (
        there {
            $($method:literal $resource:literal $part:literal $kind:literal $bits:ident
                => $handler:ident $(, $note:literal)?;)*
        }
        absent {
            $($no_method:literal $no_resource:literal $no_part:literal $(, $no_note:literal)?;)*
        }
    ) => {
        /// All requests. Of one resource and method the ones with a part come first.
        pub const ENTRIES: &[Entry] = &[
            $(Entry {
                method: $method, resource: $resource, part: $part,
                needs: concat!($kind, "=", stringify!($bits)), is_there: true,
                note: concat!($($note)?),
            },)*
            $(Entry {
                method: $no_method, resource: $no_resource, part: $no_part,
                needs: "", is_there: false, note: concat!($($no_note)?),
            },)*
        ];

        /// Answers a request.
        pub(crate) async fn run(api: &AdminApi, asked: &Asked<'_>) -> Result<Value> {
            let is = |method: &str, resource: &str, part: &str| {
                method == asked.method
                    && resource == asked.resource
                    && (part.is_empty() || asked.params.has(part))
            };
            $(if is($no_method, $no_resource, $no_part) {
                return Err(Refusal::NOT_IMPLEMENTED);
            })*
            $(if is($method, $resource, $part) {
                asked.need($kind, $bits)?;
                return Box::pin(api.$handler(asked)).await;
            })*
            Err(Refusal::METHOD)
        }
    };
}

table! {
    there {
        "GET" "user" "quota" "users" READ => quota_info;
        "GET" "user" "list" "users" READ => user_list, "markers are our own";
        "GET" "user" "" "users" READ => user_info;
        "PUT" "user" "subuser" "users" WRITE => subuser_create;
        "PUT" "user" "key" "users" WRITE => key_create;
        "PUT" "user" "caps" "users" WRITE => caps_add;
        "PUT" "user" "quota" "users" WRITE => quota_set;
        "PUT" "user" "" "users" WRITE => user_create;
        "POST" "user" "subuser" "users" WRITE => subuser_modify;
        "POST" "user" "" "users" WRITE => user_modify;
        "DELETE" "user" "subuser" "users" WRITE => subuser_remove;
        "DELETE" "user" "key" "users" WRITE => key_remove;
        "DELETE" "user" "caps" "users" WRITE => caps_remove;
        "DELETE" "user" "" "users" WRITE => user_remove;

        "GET" "bucket" "policy" "buckets" READ => bucket_policy;
        "GET" "bucket" "index" "buckets" WRITE => bucket_index,
            "one document; without `check-objects`; parts without an upload are named and stay";
        "GET" "bucket" "" "buckets" READ => bucket_info;
        "PUT" "bucket" "quota" "buckets" WRITE => bucket_quota;
        "PUT" "bucket" "" "buckets" WRITE => bucket_link, "within a tenant, without `new-bucket-name`";
        "POST" "bucket" "" "buckets" WRITE => bucket_unlink;
        "DELETE" "bucket" "object" "buckets" WRITE => object_remove;
        "DELETE" "bucket" "" "buckets" WRITE => bucket_remove;

        "GET" "usage" "" "usage" READ => usage_get;
        "DELETE" "usage" "" "usage" WRITE => usage_trim,
            "all of it only with `remove-all`, also of one bucket";

        "GET" "metadata/user" "" "metadata" READ => metadata_users, "names";
        "GET" "metadata/bucket" "" "metadata" READ => metadata_buckets, "names";
        "GET" "info" "" "info" READ => info, "as 17.2 has it";
        "GET" "lifecycle" "" "buckets" READ => lifecycle, "our own: how far lifecycle is behind";
    }
    absent {
        "GET" "metadata/user" "key", "records as JSON";
        "GET" "metadata/user" "myself", "records as JSON";
        "GET" "metadata/bucket" "key", "records as JSON";
        "PUT" "metadata/user" "", "records as JSON";
        "PUT" "metadata/bucket" "", "records as JSON";
        "DELETE" "metadata/user" "";
        "DELETE" "metadata/bucket" "";
        "PUT" "bucket" "sync", "there is one zone";
        "GET" "user" "policy", "policies of users";
        "PUT" "user" "policy", "policies of users";
        "DELETE" "user" "policy", "policies of users";
        "GET" "ratelimit" "", "see tenants in [s3.md](s3.md)";
        "POST" "ratelimit" "", "see tenants in [s3.md](s3.md)";
        "GET" "log" "", "there is one zone";
        "GET" "config" "", "there is one zone";
        "GET" "realm" "", "there is one zone";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_with_a_part_comes_before_the_one_without() {
        for (at, entry) in ENTRIES.iter().enumerate().filter(|(_, e)| e.part.is_empty()) {
            let hides = |later: &&Entry| {
                (later.method, later.resource) == (entry.method, entry.resource)
                    && later.is_there == entry.is_there
            };
            assert_eq!(ENTRIES[at + 1..].iter().find(hides), None, "{entry:?}");
        }
        assert!(ENTRIES.iter().any(|e| !e.is_there) && ENTRIES[0].needs == "users=READ");
    }
}
