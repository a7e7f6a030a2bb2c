//! A backtracking reader of capability texts.

use super::{Arguments, Constraint, Perm};

/// Longer texts are refused: no operator writes them, and the memory for grants is bounded by it.
/// In bytes.
pub(super) const TEXT_MAX: usize = 64 << 10;

/// A position in a text. Every reader either succeeds and advances, or fails and leaves it alone;
/// the exceptions say so.
#[derive(Clone, Copy)]
pub(super) struct Parser<'a> {
    pub rest: &'a str,
}

impl<'a> Parser<'a> {
    pub fn new(text: &'a str) -> Self {
        Parser { rest: text }
    }

    /// Runs `f`; if it fails, as if it had not been run.
    pub fn attempt<T>(&mut self, f: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        let before = *self;
        let result = f(self);
        if result.is_none() {
            *self = before;
        }
        result
    }

    pub fn lit(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    /// The longest non-empty run of bytes that satisfy `class`.
    pub fn run(&mut self, class: impl Fn(char) -> bool) -> Option<&'a str> {
        let end = self.rest.find(|c| !class(c)).unwrap_or(self.rest.len());
        let (run, rest) = self.rest.split_at(end);
        if run.is_empty() {
            return None;
        }
        self.rest = rest;
        Some(run)
    }

    pub fn skip(&mut self, class: impl Fn(char) -> bool) {
        self.run(class);
    }

    /// Between words.
    pub fn spaces(&mut self) -> Option<()> {
        self.run(is_space).map(drop)
    }

    /// `word=` or `word `.
    pub fn keyword(&mut self, word: &str) -> Option<()> {
        self.attempt(|p| {
            p.lit(word)?;
            p.lit("=").or_else(|| p.spaces())
        })
    }

    fn quoted(&mut self, may_be_empty: bool) -> Option<String> {
        self.attempt(|p| {
            let quote = p.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let (inner, rest) = p.rest.get(1..)?.split_once(quote)?;
            if inner.is_empty() && !may_be_empty {
                return None;
            }
            p.rest = rest;
            Some(inner.to_owned())
        })
    }

    /// A quoted string or a bare word.
    pub fn string(&mut self) -> Option<String> {
        self.quoted(false).or_else(|| self.run(is_word).map(str::to_owned))
    }

    /// The same, but quotes may hold nothing.
    pub fn string_or_empty(&mut self) -> Option<String> {
        self.quoted(true).or_else(|| self.run(is_word).map(str::to_owned))
    }

    /// ` network ADDRESS/BITS`, or nothing.
    pub fn network(&mut self) -> Option<String> {
        self.attempt(|p| {
            p.spaces()?;
            p.lit("network")?;
            p.spaces()?;
            p.run(|c| c.is_ascii_hexdigit() || "/.:][".contains(c)).map(str::to_owned)
        })
    }

    /// `*`, `all`, or letters in this order, at least one.
    pub fn perm(&mut self) -> Option<Perm> {
        if self.lit("*").or_else(|| self.lit("all")).is_some() {
            return Some(Perm::ANY);
        }
        let mut perm = Perm::NONE;
        for (letter, bit) in [("r", Perm::R), ("w", Perm::W), ("x", Perm::X)] {
            if self.lit(letter).is_some() {
                perm = perm | bit;
            }
        }
        (perm != Perm::NONE).then_some(perm)
    }

    /// `key=value`, `key prefix value` or `key regex value`. Managers allow spaces around the `=`.
    fn argument(&mut self, loose: bool) -> Option<(String, Constraint)> {
        self.attempt(|p| {
            let key = p.string()?;
            let equal = p.attempt(|p| {
                if loose {
                    p.skip(is_space);
                }
                p.lit("=")?;
                if loose {
                    p.skip(is_space);
                }
                p.string().map(Constraint::Equal)
            });
            let worded = |p: &mut Self, word: &str| {
                p.attempt(|p| {
                    p.spaces()?;
                    p.lit(word)?;
                    p.spaces()?;
                    p.string()
                })
            };
            let constraint = equal
                .or_else(|| worded(p, "prefix").map(Constraint::Prefix))
                .or_else(|| worded(p, "regex").map(Constraint::regex))?;
            Some((key, constraint))
        })
    }

    /// One or more arguments between spaces. Of a key given twice the first counts.
    pub fn arguments(&mut self, loose: bool) -> Option<Arguments> {
        let mut all = Arguments::new();
        let (key, constraint) = self.argument(loose)?;
        all.insert(key, constraint);
        while let Some((key, constraint)) = self.attempt(|p| {
            p.spaces()?;
            p.argument(loose)
        }) {
            all.entry(key).or_insert(constraint);
        }
        Some(all)
    }

    /// `allow `.
    pub fn allow(&mut self) -> Option<()> {
        self.attempt(|p| {
            p.lit("allow")?;
            p.spaces()
        })
    }

    /// Grants between commas or semicolons, to the end of the text; `blanks` around the separator.
    pub fn grants<T>(
        &mut self,
        blanks: bool,
        mut grant: impl FnMut(&mut Self) -> Option<T>,
    ) -> Vec<T> {
        let mut all = Vec::new();
        all.extend(grant(self));
        while !all.is_empty() {
            let next = self.attempt(|p| {
                if blanks {
                    p.skip(|c| c == ' ');
                }
                p.lit(";").or_else(|| p.lit(","))?;
                if blanks {
                    p.skip(|c| c == ' ');
                }
                grant(p)
            });
            match next {
                Some(g) => all.push(g),
                None => break,
            }
        }
        all
    }
}

pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\t')
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_./-".contains(c)
}
