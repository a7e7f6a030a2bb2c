//! Rust text as the tidy test reads it: without comments and literals, and without unit tests.

/// The text with comments, strings and characters as spaces. Lines stay where they are.
pub fn blanked(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut before = ' ';
    while let Some(c) = rest.chars().next() {
        let length = skipped(rest, before).min(rest.len());
        if length == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            before = c;
        } else {
            let length = (length..=rest.len()).find(|n| rest.is_char_boundary(*n));
            let (blank, left) = rest.split_at(length.unwrap_or(rest.len()));
            out.extend(blank.chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            rest = left;
            before = ' ';
        }
    }
    out
}

/// How many bytes a comment or a literal has at the beginning of `rest`, or zero.
fn skipped(rest: &str, before: char) -> usize {
    let to = |end: &str, from: usize| {
        rest[from..].find(end).map_or(rest.len(), |at| from + at + end.len())
    };
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return to("*/", 2);
    }
    if rest.starts_with('"') {
        return quoted(rest, '"');
    }
    if rest.starts_with('r') && !is_word(before) {
        let hashes = rest[1..].bytes().take_while(|b| *b == b'#').count();
        if rest[1 + hashes..].starts_with('"') {
            return to(&format!("\"{}", "#".repeat(hashes)), hashes + 2);
        }
    }
    // A lifetime has no second quote where a character has it.
    if let Some(inner) = rest.strip_prefix('\'') {
        let mut chars = inner.chars();
        return match (chars.next(), chars.next()) {
            (Some('\\'), _) => quoted(rest, '\''),
            (Some(c), Some('\'')) => c.len_utf8() + 2,
            _ => 0,
        };
    }
    0
}

/// The length of a literal between two of `quote`, with escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Whether a character may be part of a name.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where the block that opens at `open` closes.
pub fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, b) in code.bytes().enumerate().skip(open) {
        match b {
            b'{' => depth += 1,
            b'}' if depth == 1 => return at,
            b'}' => depth -= 1,
            _ => {}
        }
    }
    code.len()
}

/// Positions of a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !code[..*at].ends_with(is_word) && !code[*at + word.len()..].starts_with(is_word)
    })
}

/// The number of the line of a position.
pub fn line_of(code: &str, at: usize) -> usize {
    code[..at].bytes().filter(|b| *b == b'\n').count() + 1
}

/// Blanked text without modules of tests that stand in the file itself.
pub fn without_tests(code: &str) -> String {
    const TESTS: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(TESTS) {
        let after = &rest[at + TESTS.len()..];
        let end = match after.find(['{', ';']) {
            // Modules with a file of their own stay.
            Some(end) if after[end..].starts_with(';') => 0,
            Some(open) => (closing(after, open) + 1).min(after.len()),
            None => after.len(),
        };
        out.push_str(&rest[..at]);
        rest = &after[end..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blank() {
        let text = "a /* { */ b // {\n\"{\\\"\" r#\"{\"# '{' '\\'' 'a: b\"é\" xr";
        let code = blanked(text);
        assert!(!code.contains(['{', '"', 'é', '#']), "{code}");
        assert_eq!(code.lines().count(), 2);
        let words: Vec<_> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "'a:", "b", "xr"]);
    }

    #[test]
    fn tests_of_the_file_go_and_modules_with_files_stay() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { {} } }\n\
                    #[cfg(test)]\nmod sim;\nfn c() {}\n";
        let code = without_tests(text);
        assert!(code.contains("fn a") && code.contains("mod sim;") && code.contains("fn c"));
        assert!(!code.contains("fn b"));
    }

    #[test]
    fn words_and_blocks_are_found() {
        let code = "fn fnord() { a { b } } fn x";
        assert_eq!(words(code, "fn").collect::<Vec<_>>(), [0, 23]);
        assert_eq!(closing(code, code.find('{').unwrap()), 21);
        assert_eq!(line_of("a\nb\nc", 2), 2);
    }
}
