//! Answers as XML, for clients that ask for `xml` or `xml-pretty` (Ceph: `XMLFormatter`,
//! `common/Formatter.cc`). Handlers write JSON; the text is turned at the end.
//!
//! A section's name is that of its member. The elements of an array are named after the array
//! (`pools` has `pool`s), and the outermost element after the command's words, joined by `_`, where
//! Ceph's names are not known ([`crate::xml_names`]).

use crate::xml_names::Names;
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
        /// The command.
        command: String,
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
                let command = args.prefix().trim().to_owned();
                Ok(Shape::Xml { command, pretty: f == "xml-pretty" })
            }
            Some(other) => Err(Refusal::invalid(format!(
                "format '{other}' is not known: expected plain, json, json-pretty, xml or xml-pretty"
            ))),
        }
    }

    /// The answer in this shape. Text that is no JSON stays what it is.
    pub fn apply(&self, reply: Reply) -> Reply {
        let Shape::Xml { command, pretty } = self else { return reply };
        match serde_json::from_slice::<Value>(&reply.data) {
            Ok(value) => {
                let names = Names::of(command);
                let root = names.root.map_or_else(|| name(command), str::to_owned);
                let mut out = Writer { text: String::new(), names };
                out.element(&root, "", &value, pretty.then_some(0));
                if *pretty {
                    out.text.push('\n');
                }
                Reply { status: reply.status, data: out.text.into() }
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

struct Writer {
    text: String,
    names: Names,
}

impl Writer {
    /// Writes an element of a section.
    fn element(&mut self, tag: &str, section: &str, value: &Value, depth: Option<usize>) {
        self.line(depth);
        let _ = write!(self.text, "<{tag}>");
        let deeper = depth.map(|d| d + 1);
        let nested = match value {
            Value::Object(all) => {
                all.iter().for_each(|(key, v)| self.element(&name(key), tag, v, deeper));
                !all.is_empty()
            }
            Value::Array(all) => {
                let one = self.names.element(tag, section);
                all.iter().for_each(|v| self.element(one, tag, v, deeper));
                !all.is_empty()
            }
            Value::Null => false,
            Value::String(s) => {
                text(&mut self.text, s);
                false
            }
            other => {
                let _ = write!(self.text, "{other}");
                false
            }
        };
        if nested {
            self.line(depth);
        }
        let _ = write!(self.text, "</{tag}>");
    }

    /// Begins a line, if there are lines.
    fn line(&mut self, depth: Option<usize>) {
        if let Some(depth) = depth.filter(|_| !self.text.is_empty()) {
            self.text.push('\n');
            self.text.push_str(&"\t".repeat(depth));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shaped(format: &str, value: &Value) -> String {
        of_command("some command", format, value)
    }

    fn of_command(prefix: &str, format: &str, value: &Value) -> String {
        let args = Args::from_pairs(&[("prefix", json!(prefix)), ("format", json!(format))]);
        let reply = Shape::of(&args).unwrap().apply(Reply::data(value.to_string()));
        String::from_utf8(reply.data.to_vec()).unwrap()
    }

    #[test]
    fn json_becomes_xml() {
        let value = json!({"epoch": 3, "pools": [{"name": "a<&>b", "full": false}], "up:standby": null, "0.1": [], "acting": [1, 2]});
        assert_eq!(
            shaped("xml", &value),
            "<some_command><epoch>3</epoch><pools><pool><name>a&lt;&amp;&gt;b</name><full>false</full></pool></pools>\
             <up_standby></up_standby><_0.1></_0.1><acting><osd>1</osd><osd>2</osd></acting></some_command>"
        );
        assert_eq!(
            shaped("xml-pretty", &json!({"a": {"b": "c"}})),
            "<some_command>\n\t<a>\n\t\t<b>c</b>\n\t</a>\n</some_command>\n"
        );
        assert_eq!(shaped("xml", &json!("a\u{1}b")), "<some_command>a\u{fffd}b</some_command>");
        assert_eq!(shaped("json", &json!([1])), "[1]");
    }

    #[test]
    fn elements_have_ceph_s_names() {
        let xml = |prefix, value| of_command(prefix, "xml", &value);
        assert_eq!(
            xml("config dump", json!([{"section": "osd"}])),
            "<config><option><section>osd</section></option></config>"
        );
        assert_eq!(
            xml("osd tree", json!({"nodes": [{"children": [-2]}], "stray": []})),
            "<tree><nodes><item><children><child>-2</child></children></item></nodes><stray></stray></tree>"
        );
        assert_eq!(
            xml("node ls", json!({"osd": {"host": [0], "other": [1]}})),
            "<nodes><osd><host><osd>0</osd></host><other><osd>1</osd></other></osd></nodes>"
        );
        assert_eq!(xml("osd ls", json!([0])), "<osds><osd>0</osd></osds>");
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
