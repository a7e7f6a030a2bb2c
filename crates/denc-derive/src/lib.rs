//! `#[derive(Denc)]`: a wire type declares its form with attributes.
use proc_macro::TokenStream;
/// Placeholder until the derive lands.
#[proc_macro_derive(Denc, attributes(denc))]
pub fn denc(_: TokenStream) -> TokenStream { TokenStream::new() }
