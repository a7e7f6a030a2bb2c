//! Reads documents into a small tree, within limits.

use crate::error::{ErrorCode, Result, S3Error};
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;
use quick_xml::reader::Reader;

/// How large a document may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the whole document.
    pub bytes: usize,
    /// Elements inside elements.
    pub depth: usize,
    /// Elements in all.
    pub elements: usize,
}

impl Limits {
    /// For configuration documents.
    pub const CONFIG: Limits = Limits { bytes: 256 << 10, depth: 12, elements: 20_000 };
    /// For lists of objects and parts.
    pub const LIST: Limits = Limits { bytes: 4 << 20, depth: 12, elements: 120_000 };
}

/// An element without its namespace: S3 clients disagree about namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// The local name.
    pub name: String,
    /// Attributes as they stand, with prefixes.
    pub attributes: Vec<(String, String)>,
    /// All text directly inside, without blanks around it.
    pub text: String,
    /// The text with its blanks, where it has some around it and no elements stand beside it.
    blank: Option<String>,
    /// The elements inside.
    pub children: Vec<Element>,
}

impl Element {
    /// The first child of a name.
    pub fn child(&self, name: &str) -> Option<&Element> {
        self.children.iter().find(|c| c.name == name)
    }

    /// All children of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |c| c.name == name)
    }

    /// The text of the first child of a name.
    pub fn text_of(&self, name: &str) -> Option<&str> {
        self.child(name).map(|c| c.text.as_str())
    }

    /// The text of a child that must be there, with blanks around it: for names and values that may
    /// have some, such as keys.
    pub fn need_whole(&self, name: &str) -> Result<&str> {
        let text = self.need(name)?;
        Ok(self.child(name).and_then(|c| c.blank.as_deref()).unwrap_or(text))
    }

    /// The text of a child that must be there.
    pub fn need(&self, name: &str) -> Result<&str> {
        self.text_of(name).ok_or_else(|| {
            S3Error::new(
                ErrorCode::MalformedXML,
                format!("{name} was expected in {} and is missing", self.name),
            )
        })
    }

    /// A child that is `true` or `false`.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.text_of(name) {
            None => Ok(None),
            Some(t) if t.eq_ignore_ascii_case("true") => Ok(Some(true)),
            Some(t) if t.eq_ignore_ascii_case("false") => Ok(Some(false)),
            Some(t) => Err(S3Error::new(
                ErrorCode::MalformedXML,
                format!("true or false was expected in {name}, found \"{t}\""),
            )),
        }
    }

    /// A child that is a number.
    pub fn number(&self, name: &str) -> Result<Option<u64>> {
        match self.text_of(name) {
            None => Ok(None),
            Some(t) => t.parse().map(Some).map_err(|_| {
                S3Error::new(
                    ErrorCode::MalformedXML,
                    format!("a number was expected in {name}, found \"{t}\""),
                )
            }),
        }
    }
}

fn malformed(message: impl Into<String>) -> S3Error {
    S3Error::new(ErrorCode::MalformedXML, message.into())
}

/// Reads a document whose root has this name.
pub fn parse(bytes: &[u8], root: &str, limits: Limits) -> Result<Element> {
    if bytes.len() > limits.bytes {
        return Err(S3Error::new(
            ErrorCode::MaxMessageLengthExceeded,
            format!("a document of at most {} bytes was expected", limits.bytes),
        ));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| malformed("the document is not UTF-8"))?;
    let mut reader = Reader::from_str(text);
    reader.config_mut().check_end_names = true;
    let mut stack: Vec<Element> = Vec::new();
    let mut done: Option<Element> = None;
    let mut count = 0;
    loop {
        let event = reader.read_event().map_err(|e| {
            malformed(format!("not well-formed at byte {}: {e}", reader.error_position()))
        })?;
        match event {
            Event::Start(start) | Event::Empty(start) if done.is_some() => {
                let name = start.local_name().as_ref().to_owned();
                return Err(malformed(format!("<{name}> follows the document's end")));
            }
            Event::Start(start) => {
                count += 1;
                if count > limits.elements || stack.len() >= limits.depth {
                    return Err(malformed(format!(
                        "at most {} elements, {} deep, were expected",
                        limits.elements, limits.depth
                    )));
                }
                stack.push(element(&start)?);
            }
            Event::Empty(start) => {
                count += 1;
                if count > limits.elements {
                    return Err(malformed("too many elements"));
                }
                let e = element(&start)?;
                match stack.last_mut() {
                    Some(parent) => parent.children.push(e),
                    None => done = Some(e),
                }
            }
            Event::End(_) => {
                let Some(mut e) = stack.pop() else {
                    return Err(malformed("an end without a begin"));
                };
                let trimmed = e.text.trim();
                if trimmed.len() < e.text.len() {
                    let trimmed = trimmed.to_owned();
                    let whole = std::mem::replace(&mut e.text, trimmed);
                    e.blank = e.children.is_empty().then_some(whole);
                }
                match stack.last_mut() {
                    Some(parent) => parent.children.push(e),
                    None => done = Some(e),
                }
            }
            Event::Text(t) => {
                push(&mut stack, &t)?;
            }
            Event::CData(t) => {
                push(&mut stack, &t)?;
            }
            Event::GeneralRef(r) => {
                let character =
                    r.resolve_char_ref().map_err(|e| malformed(format!("a reference: {e}")))?;
                match character {
                    Some(c) => push(&mut stack, c.encode_utf8(&mut [0; 4]))?,
                    None => {
                        let Some(text) = resolve_xml_entity(&r) else {
                            let name: &str = &r;
                            return Err(malformed(format!("the entity &{name}; is not known")));
                        };
                        push(&mut stack, text)?;
                    }
                }
            }
            Event::DocType(_) => return Err(malformed("a document type is not allowed")),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) => {}
            Event::Eof => break,
        }
    }
    match done {
        Some(e) if stack.is_empty() && e.name == root => Ok(e),
        Some(e) if stack.is_empty() => {
            Err(malformed(format!("<{root}> was expected as root, found <{}>", e.name)))
        }
        _ => Err(malformed("the document ends early")),
    }
}

fn push(stack: &mut [Element], text: &str) -> Result<()> {
    match stack.last_mut() {
        Some(e) => e.text.push_str(text),
        None if text.trim_start_matches('\u{feff}').trim().is_empty() => {}
        None => return Err(malformed("text stands outside of the document")),
    }
    Ok(())
}

fn element(start: &quick_xml::events::BytesStart<'_>) -> Result<Element> {
    let name = start.local_name().as_ref().to_owned();
    let mut attributes = Vec::new();
    for a in start.attributes().take(32) {
        let a = a.map_err(|e| malformed(format!("an attribute of <{name}>: {e}")))?;
        let value = a
            .normalized_value(quick_xml::XmlVersion::Implicit1_0)
            .map_err(|e| malformed(format!("an attribute of <{name}>: {e}")))?;
        attributes.push((a.key.as_ref().to_owned(), value.into_owned()));
    }
    Ok(Element { name, attributes, ..Element::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Element> {
        parse(text.as_bytes(), "R", Limits { bytes: 10_000, depth: 4, elements: 100 })
    }

    #[test]
    fn tree() {
        let e = read(
            "<?xml version='1.0'?><R xmlns='x'><a>1 &amp; &#65;</a><p:b xmlns:p='y' p:t='u'/><c>true</c><a><![CDATA[<]]></a></R>",
        )
        .unwrap();
        assert_eq!(e.need("a").unwrap(), "1 & A");
        assert_eq!(e.all("a").count(), 2);
        assert_eq!(e.all("a").last().unwrap().text, "<");
        assert_eq!(e.flag("c").unwrap(), Some(true));
        assert!(e.child("b").unwrap().attributes.contains(&("p:t".into(), "u".into())));
    }

    #[test]
    fn refusals() {
        for bad in [
            "",
            "x",
            "<R>",
            "<R></S>",
            "<S></S>",
            "<R/><R/>",
            "<R/>x",
            "<R><a><b><c><d/></c></b></a></R>x",
            "<R><a><b><c><d></d></c></b></a></R>",
            "<!DOCTYPE R [<!ENTITY a 'b'>]><R>&a;</R>",
            "<R>&nope;</R>",
        ] {
            assert_eq!(read(bad).unwrap_err().code, ErrorCode::MalformedXML, "{bad}");
        }
        let many = format!("<R>{}</R>", "<a/>".repeat(101));
        assert!(read(&many).is_err());
        let long = format!("<R>{}</R>", "a".repeat(10_001));
        assert_eq!(read(&long).unwrap_err().code, ErrorCode::MaxMessageLengthExceeded);
    }
}
