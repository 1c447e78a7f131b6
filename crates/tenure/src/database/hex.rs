//! Bytes as hexadecimal digits: statements carry names and JSON as digits, so no character in them can end a literal.

/// Two lower-case digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut digits, byte| {
        // A string takes all that is written.
        let _ = write!(digits, "{byte:02x}");
        digits
    })
}

/// The reverse of [`hex`]. Upper-case digits are read too, because MySQL writes upper-case digits.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text
        .chars()
        .map(|digit| u8::try_from(digit.to_digit(16)?).ok())
        .collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|two| two[0] << 4 | two[1]).collect())
}

#[cfg(all(test, any(feature = "mysql", feature = "postgres")))]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        assert_eq!(hex(&[0, 0x1f, 0xff]), "001fff");
        assert_eq!(unhex("001fFF"), Some(vec![0, 0x1f, 0xff]));
        assert_eq!(unhex(""), Some(Vec::new()));
        assert_eq!(unhex("0"), None);
        assert_eq!(unhex("0g"), None);
    }
}
