//! Documents, policies, targets and headers of S3 requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use s3::xml::config::{
    Acl, Cors, Lifecycle, Ownership, PublicAccessBlock, TagSet, Versioning, parse_location,
};
use s3::xml::multi::{Delete, parse_complete};

fuzz_target!(|input: (u8, Vec<u8>)| {
    let (kind, bytes) = input;
    match kind % 14 {
        0 => drop(Versioning::parse(&bytes)),
        1 => drop(TagSet::parse(&bytes, 50)),
        2 => drop(Cors::parse(&bytes)),
        3 => drop(PublicAccessBlock::parse(&bytes)),
        4 => drop(Ownership::parse(&bytes)),
        5 => drop(Acl::parse(&bytes)),
        6 => drop(parse_location(&bytes)),
        7 => drop(Lifecycle::parse(&bytes)),
        8 => drop(Delete::parse(&bytes)),
        9 => drop(parse_complete(&bytes)),
        10 => drop(s3_rules::policy::Policy::parse(&bytes, "bucket")),
        kind => {
            let Ok(text) = std::str::from_utf8(&bytes) else {
                return;
            };
            match kind {
                11 => drop(s3::uri::Query::parse(text)),
                12 => drop(s3::route::CopySource::parse(text)),
                _ => drop((s3::range::Range::parse(text), s3::range::Range::parse_copy(text))),
            }
        }
    }
});
