//! Documents: a bounded reader, a writer, and the types of what requests and answers carry.

mod reader;
mod writer;

pub mod config;
pub mod multi;

pub use reader::{Element, Limits, parse};
pub use writer::Writer;

/// The namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
