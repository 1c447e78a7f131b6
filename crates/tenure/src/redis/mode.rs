//! A mode as the scripts write and read it. `docs/stores/redis.md` publishes this format.

use tenure_core::options::Mode;

/// A mode as it is written; `None`: exclusive.
pub(super) fn mode_text(mode: Mode) -> Option<String> {
    match mode {
        Mode::Shared => Some("s".into()),
        Mode::Upgradable => Some("u".into()),
        Mode::Permits { limit } => Some(format!("p{limit}")),
        _ => None,
    }
}

/// The mode that [`mode_text`] wrote. `w` is upgradable, and waits to become exclusive.
pub(super) fn parse_mode(text: &str) -> Option<Mode> {
    match text {
        "s" => Some(Mode::Shared),
        "u" | "w" => Some(Mode::Upgradable),
        _ => {
            let limit = text.strip_prefix('p')?.parse().ok()?;
            Some(Mode::Permits { limit })
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
        for mode in [Mode::Shared, Mode::Upgradable, Mode::Permits { limit }] {
            assert_eq!(parse_mode(&mode_text(mode).unwrap()), Some(mode));
        }
        assert_eq!(mode_text(Mode::Exclusive), None);
        assert_eq!(parse_mode("w"), Some(Mode::Upgradable));
        for wrong in ["", "0", "p", "p0", "px", "s1", "1000"] {
            assert_eq!(parse_mode(wrong), None, "{wrong}");
        }
    }
}
