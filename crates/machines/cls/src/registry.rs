//! The table of classes (Ceph: `osd/ClassHandler.cc`).

use crate::method::{Class, Method};
use types::errno::Errno;

/// The classes that are built in.
static BUILTIN: &[&Class] = &[
    &crate::cas::CLASS,
    &crate::cmpomap::CLASS,
    &crate::fifo::CLASS,
    &crate::hello::CLASS,
    &crate::journal::CLASS,
    &crate::lock::CLASS,
    &crate::log::CLASS,
    &crate::numops::CLASS,
    &crate::rbd::CLASS,
    &crate::otp::CLASS,
    &crate::queue::CLASS,
    &crate::refcount::CLASS,
    &crate::rgw::CLASS,
    &crate::rgw_gc::CLASS,
    &crate::timeindex::CLASS,
    &crate::two_phase_queue::CLASS,
    &crate::user::CLASS,
    &crate::version::CLASS,
];

/// The filters of listings that classes have.
static FILTERS: &[(&str, &str)] = &[("hello", "hello")];

/// `osd_class_load_list`'s default, and `osd_class_default_list`'s: what Ceph's developers vouch
/// for.
pub const STOCK_CLASSES: &str = "cephfs hello journal lock log numops otp rbd refcount rgw rgw_gc timeindex \
                                 user version cas cmpomap queue 2pc_queue fifo";

/// A row of the compatibility page.
pub struct Row {
    /// `class`, or `class.method`.
    pub name: String,
    /// Whether it is there.
    pub supported: bool,
    /// What the method does to its object.
    pub text: String,
}

/// Every class that Ceph ships, with the methods of those that are built in.
pub fn rows() -> Vec<Row> {
    let mut names: Vec<&str> = STOCK_CLASSES.split_ascii_whitespace().chain(["lua"]).collect();
    names.sort_unstable();
    let mut rows = Vec::new();
    for name in names {
        let Some(class) = BUILTIN.iter().find(|c| c.name == name) else {
            rows.push(Row { name: name.to_owned(), supported: false, text: String::new() });
            continue;
        };
        rows.extend(class.methods.iter().map(|m| Row {
            name: format!("{name}.{}", m.name),
            supported: true,
            text: m.flags.to_string(),
        }));
    }
    rows
}

/// Names of classes, or all of them.
#[derive(Clone, Debug)]
struct ClassList(Vec<String>);

impl ClassList {
    fn new(list: &str) -> Self {
        ClassList(list.split_ascii_whitespace().map(str::to_owned).collect())
    }

    fn has(&self, class: &[u8]) -> bool {
        self.0.iter().any(|name| name == "*" || name.as_bytes() == class)
    }
}

/// The classes that clients can call, and which of them need no grant of their own.
#[derive(Clone, Debug)]
pub struct Registry {
    load: ClassList,
    default: ClassList,
}

impl Registry {
    /// All built-in classes, with Ceph's default lists.
    pub fn builtin() -> Self {
        Registry::with_lists(STOCK_CLASSES, STOCK_CLASSES)
    }

    /// The built-in classes that `osd_class_load_list` names, of which those in
    /// `osd_class_default_list` need no grant of their own. `*` names all.
    pub fn with_lists(load: &str, default: &str) -> Self {
        Registry { load: ClassList::new(load), default: ClassList::new(default) }
    }

    /// The method. EPERM if the class may not be loaded, EOPNOTSUPP if it or the method is unknown.
    pub fn method(&self, class: &[u8], method: &[u8]) -> Result<&'static Method, Errno> {
        if !self.load.has(class) {
            return Err(Errno::EPERM);
        }
        let class = BUILTIN.iter().find(|c| c.name.as_bytes() == class).ok_or(Errno::EOPNOTSUPP)?;
        class.methods.iter().find(|m| m.name.as_bytes() == method).ok_or(Errno::EOPNOTSUPP)
    }

    /// Whether there is a filter of listings `CLASS.FILTER`: all that exist pass objects whose
    /// attribute has the given value. EPERM if the class may not be loaded, EINVAL if it or the
    /// filter is unknown.
    pub fn listing_filter(&self, name: &[u8]) -> Result<(), Errno> {
        let dot = name.iter().position(|b| *b == b'.').ok_or(Errno::EINVAL)?;
        let (class, filter) = (&name[..dot], &name[dot + 1..]);
        if class.is_empty() || filter.is_empty() {
            return Err(Errno::EINVAL);
        }
        if !self.load.has(class) {
            return Err(Errno::EPERM);
        }
        let known = FILTERS.iter().any(|(c, f)| c.as_bytes() == class && f.as_bytes() == filter);
        if known { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Whether clients may call the class without being granted it by name.
    pub fn allowed_by_default(&self, class: &[u8]) -> bool {
        self.default.has(class)
    }

    /// What is built in, whatever may be loaded.
    pub fn classes() -> &'static [&'static Class] {
        BUILTIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_decide_what_can_be_called() {
        let all = Registry::builtin();
        assert!(all.method(b"hello", b"replay").is_ok() && all.allowed_by_default(b"hello"));
        assert_eq!(all.method(b"hello", b"no such").err(), Some(Errno::EOPNOTSUPP));
        assert_eq!(all.method(b"lua", b"anything").err(), Some(Errno::EPERM));
        assert_eq!(all.method(b"evil", b"anything").err(), Some(Errno::EPERM));
        let some = Registry::with_lists("* ", " lock\tversion");
        assert!(some.method(b"hello", b"replay").is_ok() && some.allowed_by_default(b"version"));
        assert!(!some.allowed_by_default(b"hello") && !some.allowed_by_default(b""));
        assert_eq!(some.method(b"evil", b"anything").err(), Some(Errno::EOPNOTSUPP));
    }

    #[test]
    fn filters_are_of_classes() {
        let all = Registry::builtin();
        assert!(all.listing_filter(b"hello.hello").is_ok());
        for (name, error) in [
            ("hello", Errno::EINVAL),
            (".hello", Errno::EINVAL),
            ("hello.", Errno::EINVAL),
            ("hello.other", Errno::EINVAL),
            ("evil.hello", Errno::EPERM),
        ] {
            assert_eq!(all.listing_filter(name.as_bytes()), Err(error), "{name}");
        }
    }

    #[test]
    fn classes_and_methods_have_names_of_their_own() {
        let mut names: Vec<String> = rows().into_iter().map(|r| r.name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for class in BUILTIN {
            assert!(
                STOCK_CLASSES.split(' ').any(|c| c == class.name),
                "{} can be loaded",
                class.name
            );
        }
    }
}
