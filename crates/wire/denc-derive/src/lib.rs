//! `#[derive(Denc)]`: a wire type declares its form with attributes, so that the type reads as the
//! specification of its bytes.
//!
//! On a struct:
//! * no attribute: the fields one after the other, without an envelope;
//! * `#[denc(version = 5, compat = 1)]`: in an envelope with these two numbers;
//! * `#[denc(oldest = 2)]`: an envelope below this version is refused (`DecodeError::TooOld`).
//!
//! On a field:
//! * `#[denc(since = 3)]`: written always; read only if the envelope's `struct_v` is at least 3,
//!   otherwise `Default`;
//! * `#[denc(skip)]`: never on the wire, `Default` when read;
//! * `#[denc(with = "path")]`: the module `path` has `encode(&T, &mut BytesMut, Features)` and
//!   `decode(&mut Reader) -> Result<T>`.
//!
//! On an enum without data: `#[denc(repr = "u8")]` and explicit discriminants. A number that no
//! variant has is refused when read.
//!
//! What follows the last known field inside an envelope is skipped: that is how a newer writer adds
//! fields.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::ParseStream;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Error, Fields, Index, LitInt, LitStr, Path, Result};

/// Generates `denc::Encode` and `denc::Decode`; see the crate's page for the attributes.
#[proc_macro_derive(Denc, attributes(denc))]
pub fn denc(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<Tokens> {
    let attrs = ContainerAttrs::parse(&input.attrs)?;
    match &input.data {
        Data::Struct(data) => {
            if let Some(repr) = &attrs.repr {
                return Err(Error::new(repr.span(), "`repr` belongs on an enum"));
            }
            expand_struct(input, &attrs, &data.fields)
        }
        Data::Enum(data) => expand_enum(input, &attrs, data),
        Data::Union(_) => Err(Error::new(input.span(), "a union has no wire form")),
    }
}

#[derive(Default)]
struct ContainerAttrs {
    version: Option<u8>,
    compat: Option<u8>,
    oldest: Option<u8>,
    repr: Option<syn::Ident>,
}

impl ContainerAttrs {
    fn parse(attrs: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attr in attrs.iter().filter(|a| a.path().is_ident("denc")) {
            attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("version") {
                    found.version = Some(number(meta.value()?)?);
                } else if meta.path.is_ident("compat") {
                    found.compat = Some(number(meta.value()?)?);
                } else if meta.path.is_ident("oldest") {
                    found.oldest = Some(number(meta.value()?)?);
                } else if meta.path.is_ident("repr") {
                    let text: LitStr = meta.value()?.parse()?;
                    found.repr = Some(text.parse()?);
                } else {
                    return Err(meta.error("expected `version`, `compat`, `oldest` or `repr`"));
                }
                Ok(())
            })?;
            if found.version.is_none() && (found.compat.is_some() || found.oldest.is_some()) {
                return Err(Error::new(attr.span(), "`compat` and `oldest` need `version`"));
            }
            if let (Some(version), Some(compat)) = (found.version, found.compat)
                && compat > version
            {
                return Err(Error::new(attr.span(), "`compat` cannot be above `version`"));
            }
        }
        Ok(found)
    }
}

#[derive(Default)]
struct FieldAttrs {
    since: Option<u8>,
    skip: bool,
    with: Option<Path>,
}

impl FieldAttrs {
    fn parse(attrs: &[Attribute]) -> Result<Self> {
        let mut found = Self::default();
        for attr in attrs.iter().filter(|a| a.path().is_ident("denc")) {
            attr.parse_nested_meta(|meta| {
                if meta.path.is_ident("since") {
                    found.since = Some(number(meta.value()?)?);
                } else if meta.path.is_ident("skip") {
                    found.skip = true;
                } else if meta.path.is_ident("with") {
                    let text: LitStr = meta.value()?.parse()?;
                    found.with = Some(text.parse()?);
                } else {
                    return Err(meta.error("expected `since`, `skip` or `with`"));
                }
                Ok(())
            })?;
            if found.skip && (found.since.is_some() || found.with.is_some()) {
                return Err(Error::new(attr.span(), "a skipped field takes no other attribute"));
            }
        }
        Ok(found)
    }
}

fn number(value: ParseStream) -> Result<u8> {
    value.parse::<LitInt>()?.base10_parse()
}

fn expand_struct(input: &DeriveInput, attrs: &ContainerAttrs, fields: &Fields) -> Result<Tokens> {
    let mut writes = Vec::new();
    let mut reads = Vec::new();
    let mut bindings = Vec::new();
    let mut last_since = 0;
    for (i, field) in fields.iter().enumerate() {
        let ty = &field.ty;
        let fa = FieldAttrs::parse(&field.attrs)?;
        let binding = format_ident!("field_{i}");
        let member = match &field.ident {
            Some(name) => quote!(#name),
            None => {
                let index = Index::from(i);
                quote!(#index)
            }
        };
        if fa.skip {
            reads.push(quote!(let #binding = <#ty as ::core::default::Default>::default();));
            bindings.push((member, binding));
            continue;
        }
        let (write, read) = match &fa.with {
            Some(path) => {
                (quote!(#path::encode(&self.#member, out, features);), quote!(#path::decode(r)?))
            }
            None => (
                quote!(::denc::Encode::encode(&self.#member, out, features);),
                quote!(<#ty as ::denc::Decode>::decode(r)?),
            ),
        };
        writes.push(write);
        match fa.since {
            Some(since) => {
                let Some(version) = attrs.version else {
                    return Err(Error::new(field.span(), "`since` needs a struct with `version`"));
                };
                if since > version || since < last_since {
                    return Err(Error::new(
                        field.span(),
                        "`since` must rise with the fields, up to `version`",
                    ));
                }
                last_since = since;
                reads.push(quote! {
                    let #binding: #ty = if struct_v >= #since {
                        #read
                    } else {
                        ::core::default::Default::default()
                    };
                });
            }
            None => {
                if last_since > 0 {
                    return Err(Error::new(
                        field.span(),
                        "a field after one with `since` needs `since` too",
                    ));
                }
                reads.push(quote!(let #binding: #ty = #read;));
            }
        }
        bindings.push((member, binding));
    }
    let members = bindings.iter().map(|(m, b)| quote!(#m: #b));
    let build = quote!(::core::result::Result::Ok(Self { #(#members),* }));

    let (encode_body, decode_body) = match attrs.version {
        None => (quote!(#(#writes)*), quote!(#(#reads)* #build)),
        Some(version) => {
            let compat = attrs.compat.unwrap_or(1);
            let what = input.ident.to_string();
            let oldest = attrs.oldest.map(|oldest| {
                quote! {
                    if struct_v < #oldest {
                        return ::core::result::Result::Err(::denc::DecodeError::TooOld {
                            what: #what,
                            struct_v,
                            oldest: #oldest,
                        });
                    }
                }
            });
            (
                quote!(::denc::envelope(out, #version, #compat, |out| { #(#writes)* });),
                quote! {
                    let (struct_v, mut body) = r.envelope(#what, #version)?;
                    let _ = struct_v;
                    let r = &mut body;
                    let _ = &r;
                    #oldest
                    #(#reads)*
                    #build
                },
            )
        }
    };
    Ok(implement(input, encode_body, decode_body))
}

fn expand_enum(
    input: &DeriveInput,
    attrs: &ContainerAttrs,
    data: &syn::DataEnum,
) -> Result<Tokens> {
    let Some(repr) = &attrs.repr else {
        return Err(Error::new(input.span(), "an enum needs `#[denc(repr = \"...\")]`"));
    };
    let what = input.ident.to_string();
    let mut to_number = Vec::new();
    let mut from_number = Vec::new();
    for variant in &data.variants {
        let (Fields::Unit, Some((_, value))) = (&variant.fields, &variant.discriminant) else {
            return Err(Error::new(variant.span(), "a variant needs a discriminant and no data"));
        };
        let name = &variant.ident;
        to_number.push(quote!(Self::#name => #value));
        from_number.push(quote!(n if n == #value => Self::#name));
    }
    let encode_body = quote! {
        let number: #repr = match self { #(#to_number),* };
        ::denc::Encode::encode(&number, out, features);
    };
    let decode_body = quote! {
        let number = <#repr as ::denc::Decode>::decode(r)?;
        ::core::result::Result::Ok(match number {
            #(#from_number,)*
            other => return ::core::result::Result::Err(::denc::DecodeError::Invalid {
                what: #what,
                found: other as u64,
            }),
        })
    };
    Ok(implement(input, encode_body, decode_body))
}

fn implement(input: &DeriveInput, encode_body: Tokens, decode_body: Tokens) -> Tokens {
    let name = &input.ident;
    let mut encode_generics = input.generics.clone();
    let mut decode_generics = input.generics.clone();
    for p in encode_generics.type_params_mut() {
        p.bounds.push(syn::parse_quote!(::denc::Encode));
    }
    for p in decode_generics.type_params_mut() {
        p.bounds.push(syn::parse_quote!(::denc::Decode));
    }
    let (encode_impl, ty, where_clause) = encode_generics.split_for_impl();
    let (decode_impl, _, _) = decode_generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #encode_impl ::denc::Encode for #name #ty #where_clause {
            fn encode(&self, out: &mut ::denc::BytesMut, features: ::denc::Features) {
                let _ = (&out, features);
                #encode_body
            }
        }
        #[automatically_derived]
        impl #decode_impl ::denc::Decode for #name #ty #where_clause {
            fn decode(r: &mut ::denc::Reader) -> ::denc::Result<Self> {
                let _ = &r;
                #decode_body
            }
        }
    }
}
