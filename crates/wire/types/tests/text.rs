//! Text from command lines and configuration: whatever it is, reading it ends in a value or an
//! error, and what was read prints as something that reads as the same value.

use proptest::prelude::*;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use types::{EntityAddr, EntityAddrVec, EntityName, Fsid, ObjectId, PgId, SpgId};

fn check<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        match printed.parse::<T>() {
            Ok(again) => assert_eq!(again, value, "{text:?} prints as {printed:?}"),
            Err(_) => panic!("{text:?} prints as {printed:?}, which does not read"),
        }
    }
}

fn check_all(text: &str) {
    check::<PgId>(text);
    check::<SpgId>(text);
    check::<Fsid>(text);
    check::<ObjectId>(text);
    // These leave out parts that were given as their default, or have values that print as unset.
    let _ = text.parse::<EntityName>();
    let _ = text.parse::<EntityAddr>();
    let _ = text.parse::<EntityAddrVec>();
}

proptest! {
    #[test]
    fn any_text(text in any::<String>()) {
        check_all(&text);
    }

    #[test]
    fn nearly_right_text(text in "(v1:|v2:|any:|\\[|osd\\.|client\\.)?[0-9a-fs.:%/\\[\\],-]{0,24}") {
        check_all(&text);
    }

    #[test]
    fn object_names(text in "-?[0-9]{1,3}:[0-9a-f]{1,8}:[a-c%0-9]{0,4}:[a-c%0-9]{0,4}:[a-c%0-9]{0,4}:(head|snapdir|[0-9a-f]{1,3})") {
        check_all(&text);
    }
}
