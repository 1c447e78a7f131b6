//! The attribute macro of the `tenure` crate; use it through `tenure::locked`.
