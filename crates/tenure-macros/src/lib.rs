//! The attribute macro of the `tenure` crate; use it through `tenure::locked` (feature `macros`).
//!
//! The macro rewrites a function into a call of `Lock::run` and decides nothing about locks: that is the task of the
//! `tenure` crate.

mod args;
mod expand;

use proc_macro::TokenStream;
use quote::quote;

/// Runs a function under a lock. `tenure::locked`, which users import, has the documentation.
#[proc_macro_attribute]
pub fn locked(args: TokenStream, function: TokenStream) -> TokenStream {
    match expand::locked(args.into(), function.clone().into()) {
        Ok(expanded) => expanded.into(),
        Err(err) => {
            // The function is kept, so that its callers cause no further errors.
            let mistakes = err.into_compile_error();
            let function = proc_macro2::TokenStream::from(function);
            quote!(#mistakes #[allow(unused)] #function).into()
        }
    }
}
