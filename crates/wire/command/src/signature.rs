//! Ceph's compact notation of a command: words separated by spaces, each either a literal or a list
//! of `key=value` pairs separated by commas (`ceph:src/mon/MonCommands.h`,
//! `src/common/cmdparse.cc`).

use std::collections::BTreeMap;

/// An argument's description.
#[derive(Clone, Debug, PartialEq)]
pub struct Arg {
    /// Every pair, in key order: the order in which they are described to clients.
    pub pairs: BTreeMap<&'static str, &'static str>,
}

impl Arg {
    /// The parameter's name.
    pub fn name(&self) -> &'static str {
        self.pairs.get("name").copied().unwrap_or_default()
    }

    /// The type's name, such as `CephInt`.
    pub fn kind(&self) -> &'static str {
        self.pairs.get("type").copied().unwrap_or_default()
    }

    /// Whether it may be left out.
    pub fn optional(&self) -> bool {
        self.pairs.get("req").is_some_and(|r| r.eq_ignore_ascii_case("false"))
    }

    /// Whether it repeats.
    pub fn many(&self) -> bool {
        self.pairs.contains_key("n")
    }

    /// The bounds of a number, inclusive.
    pub fn range(&self) -> Option<(f64, f64)> {
        let range = self.pairs.get("range")?;
        let (low, high) = range.split_once('|').unwrap_or((range, "inf"));
        Some((low.parse().ok()?, high.parse().ok()?))
    }

    /// The choices of a `CephChoices`.
    pub fn choices(&self) -> impl Iterator<Item = &'static str> {
        self.pairs.get("strings").copied().unwrap_or_default().split('|').filter(|s| !s.is_empty())
    }
}

/// One word of a signature.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// A literal.
    Literal(&'static str),
    /// An argument.
    Arg(Arg),
}

/// A parsed signature.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature(pub Vec<Word>);

impl Signature {
    /// Parses; the text is the program's own, so there is nothing to refuse.
    pub fn parse(text: &'static str) -> Self {
        Signature(
            text.split_ascii_whitespace()
                .map(|w| {
                    if !w.contains(['=', ',']) {
                        return Word::Literal(w);
                    }
                    Word::Arg(Arg {
                        pairs: w.split(',').filter_map(|kv| kv.split_once('=')).collect(),
                    })
                })
                .collect(),
        )
    }

    /// The arguments in order.
    pub fn args(&self) -> impl Iterator<Item = &Arg> {
        self.0.iter().filter_map(|w| match w {
            Word::Arg(a) => Some(a),
            Word::Literal(_) => None,
        })
    }
}

/// The literal words in front of the first argument.
pub(super) fn prefix(text: &'static str) -> &'static str {
    let mut end = 0;
    for word in text.split(' ') {
        if word.contains(['=', ',']) {
            break;
        }
        end += word.len() + 1;
    }
    text.get(..end.saturating_sub(1)).unwrap_or(text).trim_end()
}
