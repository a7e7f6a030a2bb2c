//! Answers as XML, for clients that ask for `xml` or `xml-pretty` (Ceph: `XMLFormatter`,
//! `common/Formatter.cc`). Handlers write JSON; the text is turned at the end.
//!
//! A section's name is that of its member; the elements of an array are named after the array
//! (`pools` has `pool`s). JSON does not know the names that Ceph gives to outermost sections: the
//! outermost element is the command's words, joined by `_`.

use crate::{Args, Refusal, Reply};
use serde_json::Value;
use std::fmt::Write as _;

/// Into what an answer is turned before it goes out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    /// Left as the handler wrote it.
    #[default]
    AsIs,
    /// Turned from JSON into XML.
    Xml {
        /// The outermost element.
        root: String,
        /// Indented.
        pretty: bool,
    },
}

impl Shape {
    /// The shape that the arguments ask for. A format that is not known is refused: data in another
    /// one with success would be taken for what was asked for.
    pub fn of(args: &Args) -> Result<Shape, Refusal> {
        match args.str("format") {
            None | Some("" | "plain" | "json" | "json-compact" | "json-pretty") => Ok(Shape::AsIs),
            Some(f @ ("xml" | "xml-pretty")) => {
                Ok(Shape::Xml { root: name(args.prefix()), pretty: f == "xml-pretty" })
            }
            Some(other) => Err(Refusal::invalid(format!(
                "format '{other}' is not known: expected plain, json, json-pretty, xml or xml-pretty"
            ))),
        }
    }

    /// The answer in this shape. Text that is no JSON stays what it is.
    pub fn apply(&self, reply: Reply) -> Reply {
        let Shape::Xml { root, pretty } = self else { return reply };
        match serde_json::from_slice::<Value>(&reply.data) {
            Ok(value) => {
                let mut out = String::new();
                element(&mut out, root, &value, pretty.then_some(0));
                if *pretty {
                    out.push('\n');
                }
                Reply { status: reply.status, data: out.into() }
            }
            Err(_) => reply,
        }
    }
}

/// A text as the name of an element: other characters than XML allows become `_`.
fn name(text: &str) -> String {
    let mut out: String = text
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.') { c } else { '_' })
        .collect();
    if !out.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        out.insert(0, '_');
    }
    out
}

/// What an element of an array is called.
fn singular(of: &str) -> &str {
    match of.strip_suffix('s') {
        Some(one) if !one.is_empty() && !one.ends_with('s') => one,
        _ => "item",
    }
}

fn text(out: &mut String, of: &str) {
    for c in of.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            '\t' | '\n' | '\r' => out.push(c),
            // XML has no way to write these.
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
}

fn element(out: &mut String, tag: &str, value: &Value, depth: Option<usize>) {
    let line = |out: &mut String, depth: Option<usize>| {
        if let Some(depth) = depth.filter(|_| !out.is_empty()) {
            out.push('\n');
            out.push_str(&"\t".repeat(depth));
        }
    };
    line(out, depth);
    let _ = write!(out, "<{tag}>");
    let deeper = depth.map(|d| d + 1);
    let nested = match value {
        Value::Object(all) => {
            all.iter().for_each(|(key, v)| element(out, &name(key), v, deeper));
            !all.is_empty()
        }
        Value::Array(all) => {
            all.iter().for_each(|v| element(out, singular(tag), v, deeper));
            !all.is_empty()
        }
        Value::Null => false,
        Value::String(s) => {
            text(out, s);
            false
        }
        other => {
            let _ = write!(out, "{other}");
            false
        }
    };
    if nested {
        line(out, depth);
    }
    let _ = write!(out, "</{tag}>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shaped(format: &str, value: &Value) -> String {
        let args = Args::from_pairs(&[("prefix", json!("osd dump")), ("format", json!(format))]);
        let reply = Shape::of(&args).unwrap().apply(Reply::data(value.to_string()));
        String::from_utf8(reply.data.to_vec()).unwrap()
    }

    #[test]
    fn json_becomes_xml() {
        let value = json!({"epoch": 3, "pools": [{"name": "a<&>b", "full": false}], "up:standby": null, "0.1": [], "acting": [1, 2]});
        assert_eq!(
            shaped("xml", &value),
            "<osd_dump><epoch>3</epoch><pools><pool><name>a&lt;&amp;&gt;b</name><full>false</full></pool></pools>\
             <up_standby></up_standby><_0.1></_0.1><acting><item>1</item><item>2</item></acting></osd_dump>"
        );
        assert_eq!(
            shaped("xml-pretty", &json!({"a": {"b": "c"}})),
            "<osd_dump>\n\t<a>\n\t\t<b>c</b>\n\t</a>\n</osd_dump>\n"
        );
        assert_eq!(shaped("xml", &json!("a\u{1}b")), "<osd_dump>a\u{fffd}b</osd_dump>");
        assert_eq!(shaped("json", &json!([1])), "[1]");
    }

    #[test]
    fn text_stays_and_unknown_formats_are_refused() {
        let of = |format: &str| Shape::of(&Args::from_pairs(&[("format", json!(format))]));
        let text = Reply::data("no JSON");
        assert_eq!(of("xml").unwrap().apply(text.clone()), text);
        for unknown in ["html", "yaml", "JSON"] {
            assert_eq!(of(unknown).unwrap_err().errno, types::errno::Errno::EINVAL);
        }
    }
}
