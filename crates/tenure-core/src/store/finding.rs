//! What `tenure check` reports about a store.

/// Something that `tenure check` found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What was found and what to change, one line.
    pub text: String,
}

impl Finding {
    /// What is as it should be.
    pub fn good(text: impl Into<String>) -> Self {
        Self::new(Severity::Good, text)
    }

    /// What makes a promise weaker than it could be.
    pub fn warning(text: impl Into<String>) -> Self {
        Self::new(Severity::Warning, text)
    }

    /// What makes a promise void.
    pub fn bad(text: impl Into<String>) -> Self {
        Self::new(Severity::Bad, text)
    }

    /// A finding.
    pub fn new(severity: Severity, text: impl Into<String>) -> Self {
        Self {
            severity,
            text: text.into(),
        }
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// Nothing has to be changed.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is void.
    Bad,
}
