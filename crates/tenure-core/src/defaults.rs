//! What a client gives to each of its locks: default options, and a text before each name.

use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Error;
use crate::name::LockName;
use crate::options::Options;

/// What the locks of a client begin with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) options: Options,
    pub(crate) prefix: Prefix,
}

/// The text before each name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefix(Option<Arc<str>>);

impl Prefix {
    pub(crate) fn new(text: &str) -> Self {
        Self((!text.is_empty()).then(|| text.into()))
    }

    pub(crate) fn join<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match &self.0 {
            Some(prefix) => Cow::Owned(format!("{prefix}{name}")),
            None => Cow::Borrowed(name),
        }
    }

    /// The name of that text.
    pub(crate) fn name(&self, name: impl AsRef<str>) -> Result<LockName, Error> {
        LockName::new(self.join(name.as_ref()))
    }

    /// The texts of these names.
    pub(crate) fn before<N: AsRef<str>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> impl Iterator<Item = String> {
        names
            .into_iter()
            .map(|name| self.join(name.as_ref()).into_owned())
    }
}
