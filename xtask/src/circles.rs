//! Circles of modules: files of a crate that use each other.
//!
//! A file uses another if it names an item there: in a `use` declaration, or by a path that begins
//! with `crate`, `super`, `self` or a module below its own. A name that a module only passes on
//! (`pub use`) counts for the module that defines it. Unit tests inside a file do not count.

use crate::code::{blanked, is_word, without_tests, words};
use std::collections::{BTreeMap, BTreeSet};

/// The largest circle that is allowed, in files.
const CIRCLE_FILES_MAX: usize = 3;

/// Renamed imports that lead to each other end here.
const RENAMES_MAX: usize = 8;

/// Names of modules below the crate; the crate itself has none.
type Module = Vec<String>;

/// The files of a crate in circles of more than [`CIRCLE_FILES_MAX`], each with its circle.
/// `files` are paths below `src`, and their texts.
pub fn circles(files: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let mut sources = BTreeMap::new();
    for (path, text) in files {
        if path != "main.rs" || !files.contains_key("lib.rs") {
            sources.insert(module_of(path), Source::new(path, text));
        }
    }
    let crate_of = Crate { sources };
    let uses: BTreeMap<_, _> = crate_of.sources.keys().map(|m| (m, crate_of.used_by(m))).collect();
    let reached: BTreeMap<_, _> = uses.keys().map(|m| (*m, reached(m, &uses))).collect();
    let mut found = Vec::new();
    for (module, source) in &crate_of.sources {
        let circle: Vec<_> = reached[module]
            .iter()
            .filter(|other| reached[*other].contains(module))
            .map(|other| crate_of.sources[other].path.as_str())
            .collect();
        if circle.len() > CIRCLE_FILES_MAX {
            let what = format!("a circle of {} files: {}", circle.len(), circle.join(" "));
            found.push((source.path.clone(), what));
        }
    }
    found
}

fn module_of(path: &str) -> Module {
    let stem = path.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    match stem {
        "lib" | "main" => Module::new(),
        _ => stem.split('/').map(str::to_owned).collect(),
    }
}

/// Every module that can be reached from one.
fn reached(from: &Module, uses: &BTreeMap<&Module, BTreeSet<Module>>) -> BTreeSet<Module> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<_> = uses[from].iter().collect();
    while let Some(module) = next.pop() {
        if seen.insert(module.clone()) {
            next.extend(&uses[module]);
        }
    }
    seen
}

/// An import: the path as it is written, and the name that it has here.
struct Import {
    path: Vec<String>,
    name: String,
    passed_on: bool,
}

/// What the scan knows of a file.
struct Source {
    path: String,
    imports: Vec<Import>,
    /// The text without imports.
    body: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let code = without_tests(&blanked(text));
        let mut imports = Vec::new();
        let mut body = String::new();
        let mut from = 0;
        for at in words(&code, "use") {
            let Some(end) = code[at..].find(';').map(|n| at + n) else { continue };
            if at < from {
                continue;
            }
            let before = code[..at].trim_end();
            let passed_on = before.ends_with("pub") || before.ends_with(')');
            expand("", &code[at + 3..end], &mut |path, name| {
                imports.push(Import { path, name, passed_on });
            });
            body.push_str(&code[from..at]);
            from = end;
        }
        body.push_str(&code[from..]);
        Self { path: path.to_owned(), imports, body }
    }

    /// Whether a name that is passed on is used as well.
    fn uses(&self, name: &str) -> bool {
        words(&self.body, name).any(|at| !self.body[..at].trim_end().ends_with("mod"))
    }

    fn defines(&self, name: &str) -> bool {
        const ITEMS: &[&str] =
            &["struct", "enum", "fn", "trait", "type", "const", "static", "macro_rules!"];
        words(&self.body, name).any(|at| {
            let before = self.body[..at].trim_end();
            let item = ITEMS.iter().find_map(|item| before.strip_suffix(item));
            // `'static` is no item.
            item.is_some_and(|before| !before.ends_with('\'') && !before.ends_with(is_word))
        })
    }
}

/// The paths of an import, with `{}` expanded.
fn expand(prefix: &str, tree: &str, add: &mut dyn FnMut(Vec<String>, String)) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let prefix = format!("{prefix}{}", &tree[..open]);
        let mut depth = 0;
        let mut from = open + 1;
        for (at, c) in tree.char_indices().skip(open + 1) {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    expand(&prefix, &tree[from..at], add);
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
    let whole = format!("{prefix}{path}");
    let mut path: Vec<_> = whole.split("::").map(|s| s.trim().to_owned()).collect();
    if path.len() > 1 && path.last().is_some_and(|s| s == "self") {
        path.pop();
    }
    let name = match alias.trim() {
        "" => path.last().cloned().unwrap_or_default(),
        alias => alias.to_owned(),
    };
    add(path, name);
}

/// The modules of a crate.
struct Crate {
    sources: BTreeMap<Module, Source>,
}

impl Crate {
    /// The modules that a module uses, without itself.
    fn used_by(&self, module: &Module) -> BTreeSet<Module> {
        let source = &self.sources[module];
        let mut used = BTreeSet::new();
        for import in &source.imports {
            if !import.passed_on || source.uses(&import.name) {
                used.extend(self.find(module, &import.path, 0));
            }
        }
        let children = self.sources.keys().filter(|m| m.starts_with(module));
        let children = children.filter_map(|m| m.get(module.len()).map(String::as_str));
        for first in ["crate", "super", "self"].into_iter().chain(children) {
            for at in words(&source.body, first) {
                let path: String =
                    source.body[at..].chars().take_while(|c| is_word(*c) || *c == ':').collect();
                let before = source.body[..at].trim_end();
                // The reach of a visibility is no use.
                // `field: module::Type` is a path, `a::self` is none.
                let is_inside = before.ends_with("::") || before.ends_with('.');
                let is_path = path.contains("::") && !is_inside;
                if is_path && !before.ends_with("(in") {
                    let path: Vec<_> = path.split("::").map(str::to_owned).collect();
                    used.extend(self.find(module, &path, 0));
                }
            }
        }
        used.remove(module);
        used
    }

    /// The module that defines what `path` means in `module`; none for other crates.
    fn find(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (first, mut rest) = path.split_first()?;
        let mut at = module.clone();
        match first.as_str() {
            "crate" => at.clear(),
            "self" => {}
            "super" => _ = at.pop(),
            child => {
                at.push(child.to_owned());
                if !self.sources.contains_key(&at) {
                    return None;
                }
            }
        }
        while let Some((next, left)) = rest.split_first() {
            if next == "super" {
                at.pop();
            } else {
                at.push(next.clone());
                if !self.sources.contains_key(&at) {
                    at.pop();
                    break;
                }
            }
            rest = left;
        }
        let source = self.sources.get(&at)?;
        let Some(name) = rest.first().filter(|name| *name != "*") else { return Some(at) };
        if depth < RENAMES_MAX && !source.defines(name) {
            for import in &source.imports {
                let path = match import.name.as_str() {
                    "*" => {
                        let mut path = import.path.clone();
                        *path.last_mut()? = name.clone();
                        let from = self.find(&at, &import.path, RENAMES_MAX)?;
                        let there = &self.sources[&from];
                        let has = there.defines(name)
                            || there.imports.iter().any(|import| import.name == *name);
                        if !has {
                            continue;
                        }
                        path
                    }
                    own if own == name => import.path.clone(),
                    _ => continue,
                };
                // The name of another crate's item is passed on here.
                return self.find(&at, &path, depth + 1);
            }
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files = files.iter().map(|(p, t)| ((*p).to_owned(), (*t).to_owned())).collect();
        circles(&files).into_iter().map(|(path, _)| path).collect()
    }

    #[test]
    fn a_circle_of_four_files_is_found_and_one_of_three_is_allowed() {
        let mut files = vec![
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::{c::C, d};"),
            ("c.rs", "fn f() { super::a::g() }"),
            ("d.rs", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
        files[4].1 = "use super::{std::x, a as first};";
        assert_eq!(found(&files), ["a.rs", "b.rs", "c.rs", "d.rs"]);
        files[4].1 = "struct D { a: super::a::A }";
        assert_eq!(found(&files), ["a.rs", "b.rs", "c.rs", "d.rs"]);
        files[4].1 = "fn f() { self::a::g() }\nconst TABLE: &[A] = a::TABLE;";
        assert_eq!(found(&files), [""; 0]);
        files[4].1 = "#[cfg(test)]\nmod tests { use crate::a; }\n// crate::a::A\n";
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn a_name_that_is_passed_on_counts_where_it_is_defined() {
        let files = [
            ("lib.rs", "mod m; pub use m::low::Low; pub use m::*;"),
            (
                "m/mod.rs",
                "pub use self::top::Top; mod low; mod mid; mod top; fn f(_: &'static Top) {}",
            ),
            ("m/low.rs", "pub struct Low; pub struct Lower;"),
            ("m/mid.rs", "use crate::Low; use super::low::Lower;"),
            ("m/top.rs", "use crate::m::{Top, mid::Mid}; pub struct Top;"),
        ];
        assert_eq!(found(&files), [""; 0]);
        let mut circle = files;
        circle[2].1 = "use crate::Top; pub struct Low;";
        circle[3].1 = "use super::low::Low; use super::part::Part;";
        let mut circle = circle.to_vec();
        circle.push(("m/part.rs", "use crate::m::Top; pub struct Part;"));
        assert_eq!(found(&circle), ["m/low.rs", "m/mid.rs", "m/part.rs", "m/top.rs"]);
    }
}
