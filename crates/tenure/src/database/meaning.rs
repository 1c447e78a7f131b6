//! Rows that say what error codes of a database mean.

use tenure_core::error::ErrorKind;

/// Codes with the same meaning: the kind of the error, and its text. In the text, words in braces stand for names.
pub(crate) type Meaning = (&'static [&'static str], ErrorKind, &'static str);

/// The first row that has the code.
pub(crate) fn find(rows: &[Meaning], code: &str) -> Option<(ErrorKind, &'static str)> {
    let row = rows.iter().find(|(codes, ..)| codes.contains(&code));
    row.map(|(_, kind, text)| (*kind, *text))
}

/// Puts names into the text of a row. What a name contains is not read again.
pub(crate) fn with_names(text: &str, name: impl Fn(&str) -> String) -> String {
    let mut parts = text.split(['{', '}']);
    let mut filled = parts.next().unwrap_or_default().to_owned();
    // Words stand between braces: every second part is one.
    while let (Some(word), Some(rest)) = (parts.next(), parts.next()) {
        filled += &name(word);
        filled += rest;
    }
    filled
}
