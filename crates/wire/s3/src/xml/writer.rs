//! Writes documents.

use std::fmt::{Display, Write};

/// Builds one document, element by element.
pub struct Writer {
    out: String,
    open: Vec<&'static str>,
}

impl Writer {
    /// A document with this root, in S3's namespace if one is given.
    pub fn document(root: &'static str, namespace: Option<&str>) -> Writer {
        let mut out = String::with_capacity(512);
        out.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>");
        match namespace {
            Some(ns) => {
                let _ = write!(out, "<{root} xmlns=\"{ns}\">");
            }
            None => {
                let _ = write!(out, "<{root}>");
            }
        }
        Writer { out, open: vec![root] }
    }

    /// An element with text.
    pub fn text(&mut self, name: &str, text: &str) -> &mut Writer {
        let _ = write!(self.out, "<{name}>");
        escape(&mut self.out, text);
        let _ = write!(self.out, "</{name}>");
        self
    }

    /// An element with a number or another value without special characters.
    pub fn value(&mut self, name: &str, value: impl Display) -> &mut Writer {
        let _ = write!(self.out, "<{name}>{value}</{name}>");
        self
    }

    /// An element with text, if there is one.
    pub fn maybe(&mut self, name: &str, text: Option<&str>) -> &mut Writer {
        if let Some(text) = text {
            self.text(name, text);
        }
        self
    }

    /// Begins an element.
    pub fn open(&mut self, name: &'static str) -> &mut Writer {
        let _ = write!(self.out, "<{name}>");
        self.open.push(name);
        self
    }

    /// Begins an element with attributes.
    pub fn open_with(&mut self, name: &'static str, attributes: &[(&str, &str)]) -> &mut Writer {
        let _ = write!(self.out, "<{name}");
        for (attribute, value) in attributes {
            let _ = write!(self.out, " {attribute}=\"");
            escape(&mut self.out, value);
            self.out.push('"');
        }
        self.out.push('>');
        self.open.push(name);
        self
    }

    /// Text of the element that was begun last.
    pub fn content(&mut self, text: &str) -> &mut Writer {
        escape(&mut self.out, text);
        self
    }

    /// Ends the element that was begun last.
    pub fn close(&mut self) -> &mut Writer {
        if let Some(name) = self.open.pop() {
            let _ = write!(self.out, "</{name}>");
        }
        self
    }

    /// The document; every open element ends.
    pub fn finish(mut self) -> String {
        while !self.open.is_empty() {
            self.close();
        }
        self.out
    }
}

/// Escapes text. Characters that XML 1.0 cannot carry become character references, which is what
/// S3 answers when keys have them.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "&#x{:x};", c as u32);
            }
            c => out.push(c),
        }
    }
}
