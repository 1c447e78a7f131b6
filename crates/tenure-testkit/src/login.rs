//! The login of every server that has one.

/// The user of the URLs under test. On SQL servers it owns the database of the locks and nothing else.
pub const USER: &str = "tenure";

/// The password of this user. No error and no log of the library may contain it.
pub const PASSWORD: &str = "not-for-your-eyes";
