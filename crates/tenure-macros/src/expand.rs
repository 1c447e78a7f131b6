//! Rewrites the function into a call of `Lock::run`, `Lock::try_run` or `Lock::transaction`.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Error, Item, Result, ReturnType, Signature, Type, Visibility, parse_quote};

use crate::args::{Args, Call};

/// A function whose body is not parsed.
struct Function {
    attributes: Vec<Attribute>,
    visibility: Visibility,
    signature: Signature,
    body: Group,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        let signature = input.parse()?;
        match input.parse()? {
            TokenTree::Group(body) if input.is_empty() => Ok(Self {
                attributes,
                visibility,
                signature,
                body,
            }),
            other => Err(Error::new(
                other.span(),
                "expected the body of the function",
            )),
        }
    }
}

pub(crate) fn locked(args: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let function: Function =
        syn::parse2(function.clone()).map_err(|err| not_a_function(function, err))?;
    let returned = returned(&function.signature)?;
    let Args { lock, guard, call } = Args::parse(args)?;

    let Function {
        attributes,
        visibility,
        signature,
        body,
    } = function;
    let guard = guard.map_or_else(|| quote!(_), Ident::into_token_stream);
    if let (Call::Transaction { .. }, None) = (&call, &signature.asyncness) {
        let message = "a transaction is async: make this an `async fn`";
        return Err(Error::new(signature.fn_token.span, message));
    }
    let (asynchronous, awaited) = match signature.asyncness.as_ref() {
        Some(_) => (quote!(async), quote!(.await)),
        None => (TokenStream::new(), TokenStream::new()),
    };
    // An error about the conversion of errors points at the type that the function returns.
    let converted = quote_spanned!(returned.span()=> ?);
    // With mixed-site hygiene the body cannot see these names, and they hide none of its own.
    let [lock_name, outcome] = ["lock", "outcome"].map(|name| Ident::new(name, Span::mixed_site()));
    let block = with_type(&body, &returned, &outcome);
    let call = match call {
        Call::Run => quote! {
            #lock_name.run(#asynchronous move |#guard| #block) #awaited #converted
        },
        Call::TryRun => {
            let skipped = quote_spanned! {returned.span()=>
                ::core::result::Result::Ok(::core::option::Option::None)
            };
            quote! {
                match #lock_name.try_run(#asynchronous move |#guard| #block) #awaited #converted {
                    ::core::option::Option::Some(#outcome) => #outcome,
                    ::core::option::Option::None => #skipped,
                }
            }
        }
        Call::Transaction { pool, tx } => quote! {
            #lock_name.transaction(#pool, async move |#tx, #guard| #block).await
        },
    };
    // The closure moves the arguments into the body: then its future is `Send` when they are, and the body may return
    // what it borrows from them.
    Ok(quote! {
        #(#attributes)*
        #visibility #signature {
            let #lock_name = #lock;
            #call
        }
    })
}

/// The body, which begins with a `return` of the right type that is never reached. The type behind the arguments of an
/// async closure gives its body no expected type (rustc 1.95), so no value would be coerced.
fn with_type(body: &Group, returned: &Type, outcome: &Ident) -> Group {
    let statements = body.stream();
    let mut block = Group::new(
        Delimiter::Brace,
        quote! {
            if let ::core::option::Option::Some(#outcome) = ::core::option::Option::None::<#returned> {
                return #outcome;
            }
            #statements
        },
    );
    block.set_span(body.span());
    block
}

fn not_a_function(item: TokenStream, err: Error) -> Error {
    let Ok(item) = syn::parse2::<Item>(item) else {
        return err;
    };
    let (span, but) = match &item {
        Item::Struct(item) => (item.struct_token.span, ", not on a struct"),
        Item::Enum(item) => (item.enum_token.span, ", not on an enum"),
        Item::Impl(item) => (item.impl_token.span, "; put it on the methods of the impl"),
        Item::Trait(item) => (item.trait_token.span, "; put it on the methods of an impl"),
        other => (other.span(), ""),
    };
    Error::new(
        span,
        format!("`#[tenure::locked]` goes on a function with a body{but}"),
    )
}

/// The type that the body returns.
fn returned(signature: &Signature) -> Result<Type> {
    if let Some(constness) = &signature.constness {
        return Err(Error::new(
            constness.span,
            "a const fn cannot take a lock: it may run at compile time",
        ));
    }
    const WANTED: &str = "a locked function returns `Result<T, E>` with `E: From<tenure::Error>`: acquiring may fail";
    match &signature.output {
        ReturnType::Default => Err(Error::new(signature.ident.span(), WANTED)),
        ReturnType::Type(_, ty) => {
            let mut ty = (**ty).clone();
            match &ty {
                Type::Path(_) | Type::Macro(_) | Type::Group(_) | Type::Paren(_) => {}
                other => return Err(Error::new(other.span(), WANTED)),
            }
            Opened.visit_type_mut(&mut ty);
            Ok(ty)
        }
    }
}

/// Replaces `impl Trait`, which is not allowed within a function, by an inferred type.
struct Opened;

impl VisitMut for Opened {
    fn visit_type_mut(&mut self, ty: &mut Type) {
        if matches!(ty, Type::ImplTrait(_)) {
            *ty = parse_quote!(_);
        } else {
            visit_mut::visit_type_mut(self, ty);
        }
    }
}
