//! The lock table of a store in memory.

use crate::logic::table::Table;

/// With a hash that is quicker than that of `std`: each acquire and each release looks a name up.
pub(super) type NameTable = Table<foldhash::quality::RandomState>;
