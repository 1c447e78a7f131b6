//! Lock names on the command line.

use std::ffi::OsString;

use tenure::{Error, ErrorKind, LockName};

/// Checks a name that came from the command line.
///
/// # Errors
/// `Invalid`, with a message that says what is wrong with the name.
pub(crate) fn lock_name(name: &OsString) -> Result<LockName, Error> {
    let Some(name) = name.to_str() else {
        let message = format!(
            "the lock name {name:?} is not UTF-8; encode its bytes, in hexadecimal for example"
        );
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    LockName::new(name)
}
