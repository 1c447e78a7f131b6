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
    /// As it should be; for the record.
    Good,
    /// A promise is weaker than it could be.
    Warning,
    /// A promise is void.
    Bad,
}
