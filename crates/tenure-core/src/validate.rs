//! The one place where names and options are validated.
//!
//! An error names the lock and its holder, so `error.rs` imports the types of both. The checks, which return errors,
//! therefore stand apart from the types.

use crate::error::{Error, ErrorKind};
use crate::holder::PublishedValue;
use crate::name::{Escaped, LockName};
use crate::options::Options;

impl LockName {
    /// Checks `name` and takes it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it is empty or longer than [`LockName::MAX_LEN`].
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "the lock name is empty; a name has 1 to 1,000 bytes",
            ));
        }
        if name.len() > Self::MAX_LEN {
            let start: String = name.chars().take(24).collect();
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the lock name \"{}…\" has {} bytes; a name has at most {}: hash the long part",
                    Escaped(&start),
                    name.len(),
                    Self::MAX_LEN
                ),
            ));
        }
        Ok(Self::checked(name))
    }
}

impl Options {
    /// Checks what can be checked without knowing the store.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], naming the option and its bounds.
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
        if self.ttl < Self::MIN_TTL || self.ttl > Self::MAX_TTL {
            return invalid(format!(
                "`ttl` is {:?}; it must lie between 20ms and 30 days",
                self.ttl
            ));
        }
        if self.drift > self.ttl / 2 {
            return invalid(format!(
                "`drift` is {:?}; it may be half the ttl, {:?}, at most",
                self.drift,
                self.ttl / 2
            ));
        }
        if self.min_lease > self.ttl {
            return invalid(format!(
                "`min_lease` is {:?}; it may be the ttl, {:?}, at most",
                self.min_lease, self.ttl
            ));
        }
        if self.local_hand_overs > Self::MAX_LOCAL_HAND_OVERS {
            return invalid(format!(
                "`local_hand_overs` is {}; it may be {} at most",
                self.local_hand_overs,
                Self::MAX_LOCAL_HAND_OVERS
            ));
        }
        for (option, value) in [("min_hold", self.min_hold), ("lock_delay", self.lock_delay)] {
            if value > Self::MAX_RESERVATION {
                return invalid(format!(
                    "`{option}` is {value:?}; it may be 10 years at most"
                ));
            }
        }
        if self.max_hold.is_some_and(|max_hold| max_hold.is_zero()) {
            return invalid("`max_hold` is zero; leave it out to hold without a limit".into());
        }
        for (option, text) in [
            ("label", &*self.label),
            ("metrics_name", &*self.metrics_name),
        ] {
            if text.len() > Self::MAX_LABEL {
                return invalid(format!(
                    "`{option}` has {} bytes; it may have {}",
                    text.len(),
                    Self::MAX_LABEL
                ));
            }
        }
        match &self.value {
            Some(value) => PublishedValue::check(value),
            None => Ok(()),
        }
    }
}

impl PublishedValue {
    /// Checks the length of a value.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when it has more than [`PublishedValue::MAX_LEN`] bytes.
    pub(crate) fn check(text: &str) -> Result<(), Error> {
        if text.len() <= Self::MAX_LEN {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the value of the election has {} bytes; it may have {}: publish an address, and keep the rest behind it",
                text.len(),
                Self::MAX_LEN
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_1_to_1000_bytes() {
        assert_eq!(LockName::new("").unwrap_err().kind(), ErrorKind::Invalid);
        assert!(LockName::new("a".repeat(1_000)).is_ok());
        let err = LockName::new("é".repeat(501)).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
        assert!(err.to_string().contains("1002 bytes"), "{err}");
    }
}
