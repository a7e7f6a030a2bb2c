//! What answers requests of administrators.

use s3::uri::Query;
use s3_layout::api::User;
use std::pin::Pin;

/// A request of an administrator. Its signature holds.
#[derive(Clone, Copy)]
pub struct AdminRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The path after the entry.
    pub resource: &'a str,
    /// Parameters.
    pub query: &'a Query,
    /// The sender.
    pub user: &'a User,
    /// The body.
    pub body: &'a [u8],
    /// The request's id.
    pub id: &'a str,
}

/// Its answer, a document of JSON or nothing.
pub struct AdminAnswer {
    /// The status of HTTP.
    pub status: u16,
    /// The document.
    pub body: String,
}

/// A document on its way.
pub type AdminFuture<'a> = Pin<Box<dyn Future<Output = AdminAnswer> + 'a>>;

/// What answers requests of administrators. Whether a sender may is looked at there.
pub trait Administration {
    /// Answers a request.
    fn answer<'a>(&'a self, request: AdminRequest<'a>) -> AdminFuture<'a>;
}
