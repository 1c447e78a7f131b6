//! What a lock consists of: one name, or several.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind};
use crate::name::LockName;

/// The names of a lock.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    One(LockName),
    /// Any `wanted` of these names, at least one; the names are sorted, and no name is there twice.
    Several {
        names: Vec<LockName>,
        wanted: usize,
    },
}

/// What is wrong with the names. The builder remembers it until a method can return the error.
#[derive(Clone, Debug)]
pub(crate) struct InvalidTarget(pub(crate) String);

impl InvalidTarget {
    pub(crate) fn error(&self) -> Error {
        Error::new(ErrorKind::Invalid, self.0.clone())
    }
}

impl Target {
    pub(crate) fn one(name: &str) -> Result<Self, InvalidTarget> {
        LockName::new(name)
            .map(Self::One)
            .map_err(|err| InvalidTarget(format!("{err:#}")))
    }

    /// All of these names; a name that is given twice counts once.
    pub(crate) fn all<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidTarget> {
        let names = sorted(several(names)?);
        let wanted = names.len();
        Ok(Self::Several { names, wanted })
    }

    /// Any one of these names; a name that is given twice counts once.
    pub(crate) fn any<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
    ) -> Result<Self, InvalidTarget> {
        let names = sorted(several(names)?);
        Ok(Self::Several { names, wanted: 1 })
    }

    /// Any `wanted` of these names.
    pub(crate) fn k_of<N: AsRef<str>>(
        names: impl IntoIterator<Item = N>,
        wanted: usize,
    ) -> Result<Self, InvalidTarget> {
        let given = several(names)?;
        let names = sorted(given.clone());
        if wanted == 0 {
            let message = "`k_of` with k = 0 takes no lock; k is at least 1";
            return Err(InvalidTarget(message.into()));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = given.iter().find(|name| !seen.insert(*name)) {
            return Err(InvalidTarget(format!(
                "`k_of` has the name {twice} twice, and a name can be taken once; give each name once"
            )));
        }
        if wanted > names.len() {
            return Err(InvalidTarget(format!(
                "`k_of` wants {wanted} of {} names; k is at most the number of names",
                names.len()
            )));
        }
        Ok(Self::Several { names, wanted })
    }

    pub(crate) fn names(&self) -> &[LockName] {
        match self {
            Self::One(name) => std::slice::from_ref(name),
            Self::Several { names, .. } => names,
        }
    }
}

fn several<N: AsRef<str>>(
    names: impl IntoIterator<Item = N>,
) -> Result<Vec<LockName>, InvalidTarget> {
    let names: Vec<_> = names
        .into_iter()
        .map(|name| LockName::new(name).map_err(|err| InvalidTarget(format!("{err:#}"))))
        .collect::<Result<_, _>>()?;
    if names.is_empty() {
        return Err(InvalidTarget(
            "the list of lock names is empty; name at least one".into(),
        ));
    }
    Ok(names)
}

fn sorted(mut names: Vec<LockName>) -> Vec<LockName> {
    names.sort();
    names.dedup();
    names
}
