//! Functions and structs that are too large to have one idea.

use crate::code::{blanked, closing, is_word, line_of, words};

/// The longest function, in lines.
const FUNCTION_LINES_MAX: usize = 100;

/// In a longer function, how many lines may stand outside of its longest `match`.
const BESIDE_MATCH_LINES_MAX: usize = 40;

/// The largest struct of an OSD, in fields.
const FIELDS_MAX: usize = 20;

/// Line and description of functions over [`FUNCTION_LINES_MAX`] of which one `match` is not the
/// idea.
pub fn functions(text: &str) -> Vec<(usize, String)> {
    let code = blanked(text);
    let mut found = Vec::new();
    for at in words(&code, "fn") {
        let name: String =
            code[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
        let Some(open) = body(&code, at).filter(|_| !name.is_empty()) else { continue };
        let end = closing(&code, open);
        let lines = line_of(&code, end) - line_of(&code, at) + 1;
        if lines <= FUNCTION_LINES_MAX {
            continue;
        }
        let inner = &code[open..end];
        let longest = words(inner, "match")
            .filter_map(|m| {
                let open = m + inner[m..].find('{')?;
                Some(line_of(inner, closing(inner, open)) - line_of(inner, open) + 1)
            })
            .max()
            .unwrap_or(0);
        if lines.saturating_sub(longest) > BESIDE_MATCH_LINES_MAX {
            let what = format!("`{name}` has {lines} lines; {FUNCTION_LINES_MAX} are enough");
            found.push((line_of(&code, at), what));
        }
    }
    found
}

/// Where the body of a function opens; a declaration has none.
fn body(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0;
    for (at, b) in code.bytes().enumerate().skip(at) {
        match b {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(at),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// Line and description of structs over [`FIELDS_MAX`].
pub fn structs(text: &str) -> Vec<(usize, String)> {
    let code = blanked(text);
    let mut found = Vec::new();
    for at in words(&code, "struct") {
        let Some(open) = code[at..].find(['{', ';']).map(|n| at + n) else { continue };
        if code[open..].starts_with(';') {
            continue;
        }
        let count = fields(&code[open + 1..closing(&code, open)]);
        if count > FIELDS_MAX {
            let name = code[at + 6..open].trim();
            let what = format!("`{name}` has {count} fields; {FIELDS_MAX} are enough");
            found.push((line_of(&code, at), what));
        }
    }
    found
}

/// How many fields stand in a struct: single colons outside of any brackets.
fn fields(inner: &str) -> usize {
    let mut depth = 0;
    let mut count = 0;
    let bytes = inner.as_bytes();
    for (at, b) in bytes.iter().enumerate() {
        match b {
            b'(' | b'[' | b'{' | b'<' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] == b'-' => {}
            b')' | b']' | b'}' | b'>' => depth -= 1,
            b':' if depth == 0 => {
                let path = bytes.get(at + 1) == Some(&b':') || (at > 0 && bytes[at - 1] == b':');
                count += usize::from(!path);
            }
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_are_found_unless_a_match_is_the_idea() {
        let lines = "    a();\n".repeat(FUNCTION_LINES_MAX);
        let long = format!("fn short(x: [u8; 2]) {{\n}}\nfn long() {{\n{lines}}}\n");
        let found = functions(&long);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].0 == 3 && found[0].1.starts_with("`long` has 102 lines"), "{found:?}");
        let arms = "        1 => {}\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(functions(&format!("fn m() {{\n    match x {{\n{arms}    }}\n}}\n")), []);
        assert_eq!(functions("trait T {\n    fn declared(&self);\n}\n"), []);
    }

    #[test]
    fn large_structs_are_found() {
        let fields =
            |n: usize| "    pub(crate) a: Rc<dyn Fn(u8) -> std::vec::Vec<u8>>,\n".repeat(n);
        let text = |n| format!("struct Core<T: Copy> {{\n{}}}\nstruct Unit;\n", fields(n));
        assert_eq!(structs(&text(FIELDS_MAX)), []);
        let found = structs(&text(FIELDS_MAX + 1));
        assert_eq!(found.len(), 1);
        assert!(found[0].1.contains("has 21 fields"), "{found:?}");
    }
}
