//! Patterns of policies: `*` is any text, `?` any one character.

/// Whether a pattern matches all of a text. The time is linear in the product of both lengths at
/// worst; both are bounded by their parsers.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (p, t): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at_p, mut at_t) = (0, 0);
    // Where to go on if what follows the last star does not match here.
    let mut star: Option<(usize, usize)> = None;
    while at_t < t.len() {
        if at_p < p.len() && p[at_p] == '*' {
            star = Some((at_p, at_t));
            at_p += 1;
        } else if at_p < p.len() && (p[at_p] == '?' || p[at_p] == t[at_t]) {
            at_p += 1;
            at_t += 1;
        } else if let Some((sp, st)) = star {
            star = Some((sp, st + 1));
            at_p = sp + 1;
            at_t = st + 1;
        } else {
            return false;
        }
    }
    p[at_p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn stars_and_marks() {
        for (p, t) in [
            ("*", ""),
            ("a*", "a"),
            ("a*c", "abcbc"),
            ("a?c", "abc"),
            ("*b*", "abc"),
            ("s3:Get*", "s3:GetObject"),
            ("ä?", "äü"),
            ("", ""),
        ] {
            assert!(matches(p, t), "{p} {t}");
        }
        for (p, t) in [("a", "b"), ("a?", "a"), ("*c", "ab"), ("", "a"), ("a*b*c", "acb")] {
            assert!(!matches(p, t), "{p} {t}");
        }
    }
}
