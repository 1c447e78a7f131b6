//! The arguments of the attribute. They are parsed once, and every mistake is reported at its place in the source.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ExprLit, Ident, Lit, LitBool, LitStr, Meta, Result, Token};

/// All arguments, in the order of the documentation.
const KNOWN: [&str; 21] = [
    "client",
    "name",
    "names",
    "wait",
    "ttl",
    "min_lease",
    "drift",
    "renew",
    "max_hold",
    "min_hold",
    "lock_delay",
    "shared",
    "permits",
    "fair",
    "local_hand_overs",
    "label",
    "owner",
    "guard",
    "skip",
    "transaction",
    "tx",
];

/// The parts of the arguments that the expansion needs.
pub(crate) struct Args {
    /// `client.lock(name).wait(..)`: the lock with all its options.
    pub(crate) lock: TokenStream,
    /// The name of the guard in the body.
    pub(crate) guard: Option<Ident>,
    pub(crate) call: Call,
}

/// The method of the lock that runs the body.
pub(crate) enum Call {
    Run,
    TryRun,
    Transaction {
        pool: TokenStream,
        /// The name of the transaction in the body.
        tx: Ident,
    },
}

impl Args {
    pub(crate) fn parse(tokens: TokenStream) -> Result<Self> {
        let given = Punctuated::<Meta, Token![,]>::parse_terminated.parse2(tokens)?;
        let mut errors = Errors::default();
        let mut seen = Seen::default();
        for meta in &given {
            errors.keep(seen.argument(meta));
        }
        errors.keep(seen.excludes("name", "names", "one lock has one name, or several"));
        errors.keep(seen.excludes("shared", "permits", "a hold has one mode"));
        errors.keep(seen.excludes("skip", "wait", "a body that is skipped does not wait"));
        errors.keep(seen.excludes("skip", "transaction", "a transaction waits for its lock"));
        if seen.has("transaction") != seen.has("tx") {
            let (argument, what, example) = match seen.has("tx") {
                true => ("transaction", "the pool of the transaction", "self.pool"),
                false => ("tx", "what the body calls its transaction", "tx"),
            };
            errors.keep(missing(argument, what, example));
        }
        if !seen.has("client") {
            errors.keep(missing(
                "client",
                "the `tenure::Client` to lock with",
                "self.locks",
            ));
        }
        if !seen.has("name") && !seen.has("names") {
            errors.keep(missing("name", "what to lock", "\"order:{id}\""));
        }
        errors.into_result()?;
        let is_skipped = seen.has("skip");
        let call = match seen.pool.zip(seen.tx) {
            Some((pool, tx)) => Call::Transaction { pool, tx },
            None if is_skipped => Call::TryRun,
            None => Call::Run,
        };
        let (client, target, options) = (seen.client, seen.target, seen.options);
        Ok(Self {
            lock: quote!((#client) #target #(#options)*),
            guard: seen.guard,
            call,
        })
    }
}

fn missing(argument: &str, what: &str, example: &str) -> Result<()> {
    Err(Error::new(
        Span::call_site(),
        format!("`{argument}` is missing: {what}, for example `{argument} = {example}`"),
    ))
}

#[derive(Default)]
struct Seen {
    names: Vec<Ident>,
    client: TokenStream,
    /// `.lock(..)` or `.lock_all(..)`.
    target: TokenStream,
    /// Further calls of the same chain, in the order given.
    options: Vec<TokenStream>,
    guard: Option<Ident>,
    pool: Option<TokenStream>,
    tx: Option<Ident>,
}

impl Seen {
    fn has(&self, name: &str) -> bool {
        self.names.iter().any(|seen| seen == name)
    }

    fn excludes(&self, one: &str, other: &str, why: &str) -> Result<()> {
        let second = self
            .names
            .iter()
            .rfind(|seen| *seen == one || *seen == other);
        match second {
            Some(second) if self.has(one) && self.has(other) => Err(Error::new(
                second.span(),
                format!("`{one}` and `{other}` exclude each other: {why}"),
            )),
            _ => Ok(()),
        }
    }

    fn argument(&mut self, meta: &Meta) -> Result<()> {
        let path = meta.path();
        let Some(argument) = path
            .get_ident()
            .filter(|ident| KNOWN.iter().any(|known| ident == known))
        else {
            return Err(Error::new(
                path.span(),
                format!(
                    "there is no argument `{}`; known are {}",
                    path.to_token_stream(),
                    KNOWN.map(|known| format!("`{known}`")).join(", ")
                ),
            ));
        };
        let text = argument.to_string();
        if self.has(&text) {
            return Err(Error::new(
                argument.span(),
                format!("`{argument}` is given twice"),
            ));
        }
        // Remembered before its value is read: a mistake in the value must not be reported as a missing argument.
        self.names.push(argument.clone());
        self.set(argument, &text, meta)
    }

    fn set(&mut self, argument: &Ident, text: &str, meta: &Meta) -> Result<()> {
        match text {
            "client" => {
                let client = value(meta, "self.locks")?;
                self.client = quote!(#client);
            }
            "name" => {
                let name = name(value(meta, "\"order:{id}\"")?)?;
                self.target = quote!(.lock(#name));
            }
            "names" => {
                let names = names(meta)?;
                // One list may have names of different types, `&str` and `String`.
                self.target = quote!(.lock_all([#(::std::string::String::from(#names)),*]));
            }
            "wait" | "ttl" | "min_lease" | "drift" | "max_hold" | "min_hold" | "lock_delay" => {
                let time = time(argument, value(meta, "\"5s\"")?)?;
                self.options.push(quote!(.#argument(#time)));
            }
            "renew" => {
                let renew = renew(value(meta, "\"never\"")?)?;
                self.options.push(quote!(.#argument(#renew)));
            }
            "owner" => {
                let owner = value(meta, "self.owner")?;
                self.options.push(quote!(.#argument(&#owner)));
            }
            "shared" => {
                alone(meta, "`shared` stands alone, without a value")?;
                self.options.push(quote!(.#argument()));
            }
            "skip" => alone(meta, "`skip` stands alone, without a value")?,
            "transaction" => {
                let pool = value(meta, "self.pool")?;
                self.pool = Some(quote!(&#pool));
            }
            "tx" => self.tx = Some(variable(meta, "tx")?),
            "fair" => {
                let fair = fair(argument, meta)?;
                self.options.push(quote!(.#argument(#fair)));
            }
            "permits" | "local_hand_overs" => {
                let count = value(meta, "3")?;
                self.options.push(quote!(.#argument(#count)));
            }
            "label" => {
                let label = name(value(meta, "\"nightly\"")?)?;
                self.options.push(quote!(.#argument(#label)));
            }
            _ => self.guard = Some(variable(meta, "guard")?),
        }
        Ok(())
    }
}

/// The expression after `=`.
fn value<'a>(meta: &'a Meta, example: &str) -> Result<&'a Expr> {
    match meta {
        Meta::NameValue(pair) => Ok(ungrouped(&pair.value)),
        Meta::Path(path) | Meta::List(syn::MetaList { path, .. }) => {
            let argument = path.to_token_stream();
            Err(Error::new(
                path.span(),
                format!("`{argument}` needs a value, for example `{argument} = {example}`"),
            ))
        }
    }
}

/// The list of names.
fn names(meta: &Meta) -> Result<Vec<TokenStream>> {
    let Expr::Array(array) = value(meta, "[\"from:{a}\", \"to:{b}\"]")? else {
        let message = "`names` is a list, for example `names = [\"from:{a}\", \"to:{b}\"]`";
        return Err(Error::new(meta.span(), message));
    };
    array.elems.iter().map(name).collect()
}

/// `fair`, or `fair = false`.
fn fair(argument: &Ident, meta: &Meta) -> Result<LitBool> {
    if matches!(meta, Meta::Path(_)) {
        return Ok(LitBool::new(true, argument.span()));
    }
    match value(meta, "false")? {
        Expr::Lit(ExprLit {
            lit: Lit::Bool(fair),
            ..
        }) => Ok(fair.clone()),
        other => {
            let message = "`fair` stands alone, or is `fair = false`";
            Err(Error::new(other.span(), message))
        }
    }
}

/// An argument without a value.
fn alone(meta: &Meta, message: &str) -> Result<()> {
    let path = meta.require_path_only();
    path.map_err(|err| Error::new(err.span(), message))?;
    Ok(())
}

/// The name of a variable of the body.
fn variable(meta: &Meta, argument: &str) -> Result<Ident> {
    let ident = value(meta, argument)?;
    syn::parse2(ident.to_token_stream()).map_err(|_| {
        let message = format!(
            "`{argument}` is the name of a variable, for example `{argument} = {argument}`"
        );
        Error::new(ident.span(), message)
    })
}

/// Removes the invisible groups around an expression that a `macro_rules!` passed to the attribute.
fn ungrouped(mut expr: &Expr) -> &Expr {
    while let Expr::Group(group) = expr {
        expr = &group.expr;
    }
    expr
}

/// A text: a string with captures, or any expression. `format!` reads the captures, and its errors point at the string
/// because the string keeps its span.
fn name(expr: &Expr) -> Result<TokenStream> {
    match ungrouped(expr) {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(formatted(text)),
        Expr::Lit(other) => Err(Error::new(
            other.span(),
            "a string is needed here, for example \"order:{id}\"",
        )),
        other => Ok(other.to_token_stream()),
    }
}

fn formatted(text: &LitStr) -> TokenStream {
    if text.value().contains(['{', '}']) {
        quote_spanned!(text.span()=> ::std::format!(#text))
    } else {
        text.to_token_stream()
    }
}

/// A `Duration`: a string, which the compiler reads by the same function as a program does, or any expression of this
/// type.
fn time(argument: &Ident, expr: &Expr) -> Result<TokenStream> {
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => Ok(quote_spanned!(text.span()=> {
            const DURATION: ::core::time::Duration = match ::tenure::time::parse_duration(#text) {
                ::core::result::Result::Ok(duration) => duration,
                ::core::result::Result::Err(why) => ::core::panic!("{}", why.as_str()),
            };
            DURATION
        })),
        Expr::Lit(literal) => {
            let number = match &literal.lit {
                Lit::Int(int) => int.base10_digits(),
                Lit::Float(float) => float.base10_digits(),
                _ => "5",
            };
            Err(Error::new(
                literal.span(),
                format!(
                    "a duration has a unit: write `{argument} = \"{number}s\"` (500ms, 5s, 2m, 1h)"
                ),
            ))
        }
        other => Ok(other.to_token_stream()),
    }
}

/// A `tenure::Renew`: its name, or any expression of this type.
fn renew(expr: &Expr) -> Result<TokenStream> {
    const WANTED: &str = "`renew` is \"automatic\", \"never\", or a `tenure::Renew`";
    match expr {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => match text.value().as_str() {
            "automatic" => Ok(quote!(::tenure::Renew::Automatic)),
            "never" => Ok(quote!(::tenure::Renew::Never)),
            _ => Err(Error::new(text.span(), WANTED)),
        },
        Expr::Lit(other) => Err(Error::new(other.span(), WANTED)),
        other => Ok(other.to_token_stream()),
    }
}

/// Collects all mistakes, so that the compiler shows them at once.
#[derive(Default)]
struct Errors(Option<Error>);

impl Errors {
    fn keep<T>(&mut self, result: Result<T>) {
        let Err(err) = result else { return };
        match &mut self.0 {
            None => self.0 = Some(err),
            Some(first) => first.combine(err),
        }
    }

    fn into_result(self) -> Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
