//! Rules of the house that neither the compiler nor clippy keeps.
//!
//! Each finding belongs to a file and a rule. `xtask/tidy-allowed.txt` says how many of a rule a
//! file may have: the debt of files that are older than the rule. A count there may only shrink;
//! `cargo xtask check --shrink` writes what is left.

use crate::{circles, sizes};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// The longest line of a comment or of prose, in characters.
const COLUMNS_MAX: usize = 100;

/// The debt, relative to the checkout.
const ALLOWED: &str = "xtask/tidy-allowed.txt";

/// Pronouns that stand for a thing or a machine. CONTRIBUTING.md says what to write instead.
const PRONOUNS: &[&str] = &["who", "whoever", "nobody", "somebody", "everybody"];

/// Words after "whose" that make it a question for an owner. A clause about the noun in front of it
/// ("a pool whose PGs are mapped") is no finding.
const OWNED: &[&str] = &["it", "they", "this", "that", "these", "those"];

/// A doc that sends its reader away without a word.
const POINTER: &str = concat!("See the ", "module.");

/// Marks of unfinished work.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME")];

/// Pages that name functions and types. A name that the code does not have is a finding.
const NAMING: &[&str] = &["ARCHITECTURE.md"];

/// Where structs are small: what grows into a list of everything is found early.
const SMALL_STRUCTS: &str = "crates/daemons/osd/";

/// The floors of the tree, from the bottom. A crate uses its own floor and those below.
const FLOORS: &[&str] = &["wire", "machines", "daemons", "harness"];

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// A comment or a line of prose is longer than [`COLUMNS_MAX`].
    Columns,
    /// One of [`PRONOUNS`].
    Pronoun,
    /// [`POINTER`].
    Pointer,
    /// One of [`MARKS`].
    Mark,
    /// A relative link to a file, or to a heading, that is not there.
    Link,
    /// A crate depends on one of a floor above.
    Arrow,
    /// A page of [`NAMING`] names what the code does not have.
    Name,
    /// A file is in a circle of too many modules.
    Circle,
    /// A function is too long.
    Function,
    /// A struct of [`SMALL_STRUCTS`] has too many fields.
    Fields,
}

impl Rule {
    const ALL: [Rule; 10] = [
        Rule::Columns,
        Rule::Pronoun,
        Rule::Pointer,
        Rule::Mark,
        Rule::Link,
        Rule::Arrow,
        Rule::Name,
        Rule::Circle,
        Rule::Function,
        Rule::Fields,
    ];

    fn name(self) -> &'static str {
        match self {
            Rule::Columns => "columns",
            Rule::Pronoun => "pronoun",
            Rule::Pointer => "pointer",
            Rule::Mark => "mark",
            Rule::Link => "link",
            Rule::Arrow => "arrow",
            Rule::Name => "name",
            Rule::Circle => "circle",
            Rule::Function => "function",
            Rule::Fields => "fields",
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    line: usize,
    rule: Rule,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.line, self.rule.name(), self.what)
    }
}

type Counts = BTreeMap<(String, Rule), usize>;

/// Checks the checkout at `root`. With `shrink`, lowers the counts of the debt to what is there.
pub fn check(root: &Path, shrink: bool) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot list the files of the checkout with git")?;
    if !listed.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&listed.stderr));
    }
    let mut found: BTreeMap<String, Vec<Finding>> = BTreeMap::new();
    let mut defined = HashSet::new();
    let mut crates: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for path in String::from_utf8_lossy(&listed.stdout).lines() {
        let file = root.join(path);
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let findings = if path.ends_with(".rs") {
            if path.starts_with("crates/") {
                definitions(path, &text, &mut defined);
            }
            let mut findings = rust(&text);
            findings.extend(large(path, &text));
            if let Some((package, below)) = path.split_once("/src/") {
                crates.entry(package.to_owned()).or_default().insert(below.to_owned(), text);
            }
            findings
        } else if path.ends_with(".md") {
            markdown(&text, &|link| leads_somewhere(&file, link))
        } else if path.starts_with("crates/") && path.ends_with("Cargo.toml") {
            arrows(path, &text, &|name| floor_of(root, name))
        } else {
            continue;
        };
        if !findings.is_empty() {
            found.insert(path.to_owned(), findings);
        }
    }
    for (package, files) in &crates {
        for (file, what) in circles::circles(files) {
            let finding = Finding { line: 1, rule: Rule::Circle, what };
            found.entry(format!("{package}/src/{file}")).or_default().push(finding);
        }
    }
    for page in NAMING {
        let text = fs::read_to_string(root.join(page)).unwrap_or_default();
        let findings = names(&text, &defined);
        if !findings.is_empty() {
            found.entry((*page).to_owned()).or_default().extend(findings);
        }
    }
    let allowed_path = root.join(ALLOWED);
    let allowed = parse_allowed(&fs::read_to_string(&allowed_path).unwrap_or_default())?;
    let counts = count(&found);
    if shrink {
        let left = shrunk(&allowed, &counts);
        fs::write(&allowed_path, print_allowed(&left))
            .with_context(|| format!("cannot write {}", allowed_path.display()))?;
    }
    let report = over(&found, &allowed);
    if !report.is_empty() {
        bail!("tidy:\n{report}(the rules stand in CONTRIBUTING.md, the debt in {ALLOWED})");
    }
    Ok(())
}

fn count(found: &BTreeMap<String, Vec<Finding>>) -> Counts {
    let mut counts = Counts::new();
    for (path, findings) in found {
        for f in findings {
            *counts.entry((path.clone(), f.rule)).or_default() += 1;
        }
    }
    counts
}

/// The debt that is left: never more than was allowed. An empty list takes what is there.
fn shrunk(allowed: &Counts, counts: &Counts) -> Counts {
    let mut left = counts.clone();
    left.retain(|(_, rule), _| *rule != Rule::Circle);
    if !allowed.is_empty() {
        left.retain(|key, n| {
            *n = (*n).min(allowed.get(key).copied().unwrap_or(0));
            *n > 0
        });
    }
    left
}

/// The findings of each file and rule that has more of them than it may have.
fn over(found: &BTreeMap<String, Vec<Finding>>, allowed: &Counts) -> String {
    let mut report = String::new();
    for (path, findings) in found {
        for rule in Rule::ALL {
            let may = allowed.get(&(path.clone(), rule)).copied().unwrap_or(0);
            let have: Vec<_> = findings.iter().filter(|f| f.rule == rule).collect();
            if have.len() <= may {
                continue;
            }
            if may > 0 {
                let name = rule.name();
                let _ = writeln!(report, "{path}: {} of {name}, {may} are allowed:", have.len());
            }
            for f in have {
                let _ = writeln!(report, "{path}:{f}");
            }
        }
    }
    report
}

fn parse_allowed(text: &str) -> Result<Counts> {
    let mut allowed = Counts::new();
    for line in text.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let fields: Vec<_> = line.split_whitespace().collect();
        let &[count, rule, path] = &fields[..] else {
            bail!("{ALLOWED}: expected `count rule path`, found `{line}`");
        };
        let Some(rule) = Rule::ALL.into_iter().find(|r| r.name() == rule) else {
            bail!("{ALLOWED}: no rule is called `{rule}`");
        };
        if rule == Rule::Circle {
            bail!("{ALLOWED}: a circle is never allowed: {path}");
        }
        let count = count.parse().with_context(|| format!("{ALLOWED}: `{count}` is no count"))?;
        allowed.insert((path.to_owned(), rule), count);
    }
    Ok(allowed)
}

fn print_allowed(counts: &Counts) -> String {
    let mut text = String::from(
        "# How many findings of a rule a file may have: count, rule, path. Counts only shrink\n\
         # (`cargo xtask check --shrink`).\n",
    );
    for ((path, rule), n) in counts {
        let _ = writeln!(text, "{n} {} {path}", rule.name());
    }
    text
}

/// Comments of Rust code. Only comments that have a line for themselves count: a `//` further to
/// the right may be part of a string.
fn rust(text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let comment = line.trim_start();
        if comment.starts_with("//") {
            words(i + 1, comment, &mut findings);
            columns(i + 1, line, &mut findings);
        }
    }
    findings
}

/// Functions and structs that are too large.
fn large(path: &str, text: &str) -> Vec<Finding> {
    let finding = |rule| move |(line, what)| Finding { line, rule, what };
    let mut findings: Vec<_> =
        sizes::functions(text).into_iter().map(finding(Rule::Function)).collect();
    if path.starts_with(SMALL_STRUCTS) {
        findings.extend(sizes::structs(text).into_iter().map(finding(Rule::Fields)));
    }
    findings
}

/// Prose of Markdown: neither code nor rows of tables.
fn markdown(text: &str, leads: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_code = false;
    for (i, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        words(i + 1, line, &mut findings);
        if !trimmed.starts_with('|') {
            columns(i + 1, line, &mut findings);
        }
        for link in links(line) {
            if !leads(link) {
                let what = format!("`{link}` leads nowhere");
                findings.push(Finding { line: i + 1, rule: Rule::Link, what });
            }
        }
    }
    findings
}

fn columns(number: usize, line: &str, findings: &mut Vec<Finding>) {
    let width = line.chars().count();
    // An address, or a path, cannot be broken.
    let breakable = line.trim().trim_start_matches(['/', '!', '*', '-', ' ']).contains(' ');
    if width > COLUMNS_MAX && breakable {
        let what = format!("{width} columns; {COLUMNS_MAX} fit");
        findings.push(Finding { line: number, rule: Rule::Columns, what });
    }
}

fn words(line: usize, text: &str, findings: &mut Vec<Finding>) {
    let prose = without_code(text);
    if prose.contains(POINTER) {
        let what = format!("\"{POINTER}\": say what the item is for");
        findings.push(Finding { line, rule: Rule::Pointer, what });
    }
    let mut prose = prose.split(|c: char| !c.is_alphanumeric() && c != '_').peekable();
    while let Some(word) = prose.next() {
        if MARKS.contains(&word) {
            let what = format!("{word}: finish it, or write an issue");
            findings.push(Finding { line, rule: Rule::Mark, what });
        }
        let lower = word.to_lowercase();
        let owner = word == "whose" && prose.peek().is_some_and(|next| OWNED.contains(next));
        let asks = owner || word == "Whose";
        if PRONOUNS.contains(&lower.as_str()) || asks {
            let what = format!("\"{word}\": name the thing (tenant, client, OSD, ...)");
            findings.push(Finding { line, rule: Rule::Pronoun, what });
        }
    }
}

/// The text without what stands between backticks.
fn without_code(text: &str) -> String {
    let prose = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    // Names of arguments.
    prose.replace("<who>", "")
}

/// Adds the names that a file of the code defines: parts of its path (crate and modules), items and
/// variants of enums.
fn definitions(path: &str, text: &str, names: &mut HashSet<String>) {
    names.extend(path.trim_end_matches(".rs").split('/').map(|part| part.replace('-', "_")));
    for line in text.lines() {
        let mut words = line
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|w| !w.is_empty())
            .peekable();
        if line.trim_start().starts_with(|c: char| c.is_ascii_uppercase())
            && let Some(variant) = words.peek()
        {
            names.insert((*variant).to_owned());
        }
        while let Some(word) = words.next() {
            let is_item = ["fn", "struct", "enum", "trait", "type", "const", "static", "mod"];
            if is_item.contains(&word)
                && let Some(name) = words.peek()
            {
                names.insert((*name).to_owned());
            }
        }
    }
}

/// Paths between backticks (`module::function`) of which a part is not defined.
fn names(text: &str, defined: &HashSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for code in line.split('`').skip(1).step_by(2).filter(|code| code.contains("::")) {
            let parts = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            for part in parts.filter(|p| !p.is_empty() && !defined.contains(*p)) {
                let what = format!("`{code}`: the code defines no `{part}`");
                findings.push(Finding { line: i + 1, rule: Rule::Name, what });
            }
        }
    }
    findings
}

/// Targets of `[text](target)` that are not addresses of other sites.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split(')').next()?;
        (!target.contains("://") && !target.starts_with("mailto:") && !target.contains(' '))
            .then_some(target)
    })
}

/// Whether a relative link from `page` leads to a file and, in Markdown, to a heading.
fn leads_somewhere(page: &Path, link: &str) -> bool {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => page.to_path_buf(),
        _ => normal(&page.parent().unwrap_or(Path::new("")).join(path)),
    };
    if heading.is_empty() || target.extension().is_none_or(|e| e != "md") {
        return target.exists();
    }
    fs::read_to_string(target)
        .is_ok_and(|text| text.lines().filter(|l| l.starts_with('#')).any(|l| anchor(l) == heading))
}

/// The anchor of a heading, as the usual renderers make it.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Dependencies of a crate on a floor above its own. Those of tests alone may point anywhere.
fn arrows(path: &str, manifest: &str, floor: &dyn Fn(&str) -> Option<usize>) -> Vec<Finding> {
    let Some(own) = path.split('/').nth(1).and_then(|f| FLOORS.iter().position(|x| *x == f)) else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let mut section = "";
    for (i, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            section = line.trim();
        } else if section.ends_with("dependencies]") && !section.contains("dev-") {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            if let Some(above) = floor(name).filter(|f| *f > own) {
                let what = format!("{name} is of a floor above: {}", FLOORS[above]);
                findings.push(Finding { line: i + 1, rule: Rule::Arrow, what });
            }
        }
    }
    findings
}

fn floor_of(root: &Path, name: &str) -> Option<usize> {
    if name.is_empty() {
        return None;
    }
    FLOORS.iter().position(|f| root.join("crates").join(f).join(name).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(findings: &[Finding]) -> Vec<Rule> {
        findings.iter().map(|f| f.rule).collect()
    }

    #[test]
    fn comments_are_read_and_code_is_not() {
        let long = "x ".repeat(60);
        assert_eq!(rules(&rust(&format!("    // {long}\n"))), [Rule::Columns]);
        assert_eq!(rules(&rust(&format!("    let a = \"{long}\";\n"))), []);
        assert_eq!(rules(&rust("/// Whoever waits, and whose it is.\n")), [Rule::Pronoun; 2]);
        assert_eq!(rules(&rust("/// Pools whose PGs are mapped; `<who>`, <who>.\n")), []);
        assert_eq!(rules(&rust("/// The column `who`, and a whole word: wholly.\n")), []);
        assert_eq!(rules(&rust(&format!("/// {POINTER}\n"))), [Rule::Pointer]);
        assert_eq!(rules(&rust(&format!("// {}: later\n", MARKS[0]))), [Rule::Mark]);
        assert_eq!(rules(&rust(&format!("// https://example.org/{}\n", "x".repeat(99)))), []);
    }

    #[test]
    fn prose_is_read_without_code_and_wide_tables() {
        let long = "x ".repeat(60);
        let nowhere = |_: &str| false;
        assert_eq!(rules(&markdown(&long, &nowhere)), [Rule::Columns]);
        assert_eq!(rules(&markdown(&format!("| {long} |"), &nowhere)), []);
        assert_eq!(rules(&markdown(&format!("```\n{long} nobody\n```\n"), &nowhere)), []);
        assert_eq!(rules(&markdown("see [a](b.md) and [c](https://d.e)", &nowhere)), [Rule::Link]);
    }

    #[test]
    fn links_lead_to_files_and_headings() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.md"), "# A title, with `code`\n").unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        let page = dir.path().join("sub/b.md");
        for (link, leads) in [
            ("../a.md", true),
            ("../a.md#a-title-with-code", true),
            ("../a.md#another", false),
            ("a.md", false),
            ("../sub", true),
        ] {
            assert_eq!(leads_somewhere(&page, link), leads, "{link}");
        }
    }

    #[test]
    fn pages_name_what_is_there() {
        let mut defined = HashSet::new();
        let code = "pub(crate) async fn route(&self) {}\nenum Action {\n    Persist(u8),\n}\n";
        definitions("crates/machines/qos-sim/src/core/scheduling.rs", code, &mut defined);
        let page = "`qos_sim::scheduling`, `Action::Persist` and `core::route` are there; `route`\n\
                    is no path, `Action::Reply` and `core::rout` are not there.\n";
        let found = names(page, &defined);
        assert_eq!(rules(&found), [Rule::Name; 2]);
        assert!(found.iter().all(|f| f.line == 2), "{found:?}");
    }

    #[test]
    fn arrows_point_down() {
        let floor = |name: &str| match name {
            "types" => Some(0),
            "pg" => Some(1),
            "osd" => Some(2),
            _ => None,
        };
        let manifest = "[dependencies]\ntypes.workspace = true\nosd.workspace = true\nserde = \"1\"\n\
                        [dev-dependencies]\nosd.workspace = true\n";
        let found = arrows("crates/machines/pg/Cargo.toml", manifest, &floor);
        assert_eq!((rules(&found), found[0].line), (vec![Rule::Arrow], 3));
        assert_eq!(arrows("crates/daemons/osd/Cargo.toml", manifest, &floor), []);
    }

    #[test]
    fn debt_is_allowed_and_only_shrinks() {
        let allowed = parse_allowed("# debt\n2 pronoun a.md\n1 link a.md\n").unwrap();
        let finding = |rule| Finding { line: 1, rule, what: "x".to_owned() };
        let mut found = BTreeMap::new();
        found.insert("a.md".to_owned(), vec![finding(Rule::Pronoun); 2]);
        assert_eq!(over(&found, &allowed), "");
        let left = shrunk(&allowed, &count(&found));
        assert!(print_allowed(&left).ends_with("\n2 pronoun a.md\n"));
        found.get_mut("a.md").unwrap().push(finding(Rule::Pronoun));
        assert!(over(&found, &allowed).starts_with("a.md: 3 of pronoun, 2 are allowed:\n"));
        assert_eq!(shrunk(&allowed, &count(&found)), left);
        found.insert("b.md".to_owned(), vec![finding(Rule::Mark)]);
        assert!(over(&found, &allowed).contains("b.md:1: mark: x"));
    }

    #[test]
    fn no_circle_is_debt() {
        let circle = Finding { line: 1, rule: Rule::Circle, what: "a circle".to_owned() };
        let found = BTreeMap::from([("a.rs".to_owned(), vec![circle])]);
        assert_eq!(shrunk(&Counts::new(), &count(&found)), Counts::new());
        assert_eq!(over(&found, &Counts::new()), "a.rs:1: circle: a circle\n");
        assert!(parse_allowed("1 circle a.rs\n").is_err());
    }
}
