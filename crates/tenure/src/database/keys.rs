//! Names as keys of PostgreSQL's advisory locks.

use sha2::{Digest as _, Sha256};

/// The first eight bytes of the SHA-256 of the name, big-endian, as the server's `bigint`. Locks of sessions and locks of
/// transactions have the same key, so that they exclude each other.
pub(crate) fn bigint(name: &str) -> i64 {
    bigint_of(name.as_bytes())
}

/// The same of any bytes.
pub(crate) fn bigint_of(bytes: &[u8]) -> i64 {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    let [a, b, c, d, e, f, g, h, ..] = digest;
    i64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `('x' || left(encode(sha256(convert_to(name, 'UTF8')), 'hex'), 16))::bit(64)::bigint` says.
    #[test]
    fn golden_keys() {
        for (name, key) in [
            ("a", -3_848_465_438_864_589_366),
            ("orders/42", -4_261_225_075_031_449_721),
            ("job1", -3_720_329_102_846_031_715),
            ("Grüße 🦀", 6_056_778_142_096_622_253),
            ("a\0b", 6_463_353_407_833_682_387),
        ] {
            assert_eq!(bigint(name), key, "{name}");
        }
    }
}
