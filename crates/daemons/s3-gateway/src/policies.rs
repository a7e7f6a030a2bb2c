//! Policies of buckets, read once.

use bytes::Bytes;
use s3_layout::api::Bucket;
use s3_rules::policy::Policy;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Policies that were read, by the id of their bucket.
#[derive(Default)]
pub(crate) struct Policies(RefCell<HashMap<String, (Bytes, Option<Rc<Policy>>)>>);

/// Above so many, all are read anew.
const POLICIES_KEPT: usize = 4096;

impl Policies {
    /// The policy of a bucket that has one. `None` if its text cannot be read.
    pub fn of(&self, bucket: &Bucket, text: &Bytes) -> Option<Rc<Policy>> {
        let mut kept = self.0.borrow_mut();
        if let Some((known, policy)) = kept.get(&bucket.id)
            && known == text
        {
            return policy.clone();
        }
        if kept.len() >= POLICIES_KEPT {
            kept.clear();
        }
        let policy = Policy::parse(text, &bucket.name.name).ok().map(Rc::new);
        kept.insert(bucket.id.clone(), (text.clone(), policy.clone()));
        policy
    }
}
