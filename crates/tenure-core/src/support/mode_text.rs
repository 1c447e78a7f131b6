//! A mode as Redis and tables keep it. `docs/stores/redis.md` and `docs/stores/table.md` publish this format.

use crate::options::Mode;

/// A mode as it is written, and `w` for an upgradable hold that waits to become exclusive; `None`: exclusive.
pub fn mode_text(mode: Mode, is_upgrading: bool) -> Option<String> {
    match mode {
        Mode::Shared => Some("s".into()),
        Mode::Upgradable if is_upgrading => Some("w".into()),
        Mode::Upgradable => Some("u".into()),
        Mode::Permits { limit } => Some(format!("p{limit}")),
        _ => None,
    }
}

/// The mode that [`mode_text`] wrote, and whether the hold waits to become exclusive.
pub fn parse_mode(text: &str) -> Option<(Mode, bool)> {
    match text {
        "s" => Some((Mode::Shared, false)),
        "u" => Some((Mode::Upgradable, false)),
        "w" => Some((Mode::Upgradable, true)),
        _ => {
            let limit = text.strip_prefix('p')?.parse().ok()?;
            Some((Mode::Permits { limit }, false))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn a_mode_is_read_as_it_was_written() {
        let limit = NonZeroU32::MAX;
        for written in [
            (Mode::Shared, false),
            (Mode::Upgradable, false),
            (Mode::Upgradable, true),
            (Mode::Permits { limit }, false),
        ] {
            let text = mode_text(written.0, written.1).unwrap();
            // A column of MySQL has room for it.
            assert!(text.len() <= 11);
            assert_eq!(parse_mode(&text), Some(written));
        }
        assert_eq!(mode_text(Mode::Exclusive, false), None);
        for wrong in ["", "0", "p", "p0", "px", "s1", "-1"] {
            assert_eq!(parse_mode(wrong), None, "{wrong}");
        }
    }
}
