//! What the server says about an election, as `lua/sighting.lua` writes it.

use std::time::Duration;

use tenure_core::holder::{HoldInfo, Holder};
use tenure_core::leader::Sighting;
use tenure_core::options::Mode;
use tenure_core::support::{HolderRecord, wall_time};

/// Reads `leader TOKEN SINCE LEFT HOLDER`, `foreign LEFT` or `nobody TOKEN`. `None`: the text is none of these.
pub(super) fn parse(text: &str) -> Option<Sighting> {
    let (word, rest) = text.split_once(' ')?;
    let exclusive = |holder, token, ttl_left| {
        let hold = HoldInfo::new(holder, Mode::Exclusive, token, ttl_left);
        Sighting::of_hold(hold)
    };
    match word {
        "leader" => {
            let mut words = rest.splitn(4, ' ');
            let token = words.next()?.parse().ok()?;
            let since = words.next()?.parse().ok()?;
            let left = words.next()?.parse().ok()?;
            let mut holder = HolderRecord::read(words.next()?);
            holder.since = wall_time(since);
            let left = Some(Duration::from_millis(left));
            Some(exclusive(holder, Some(token), left))
        }
        "foreign" => {
            let left: i64 = rest.parse().ok()?;
            let left = u64::try_from(left).ok().map(Duration::from_millis);
            Some(exclusive(another_program(), None, left))
        }
        "nobody" => Some(Sighting::of_nobody(rest.parse().ok()?)),
        _ => None,
    }
}

/// A holder that is a program of another library. Its value is a secret, and not shown.
pub(super) fn another_program() -> Holder {
    let mut holder = Holder::default();
    holder.label = "another program".into();
    holder
}

#[cfg(test)]
mod tests {
    use tenure_core::fence::FencingToken;

    use super::*;

    #[test]
    fn a_sighting_is_read_whatever_is_in_it() {
        let text = r#"leader 17 1000000 2500 {"host":"a b","pid":4,"client":"c","value":"x y\n","number":3}"#;
        let sighting = parse(text).unwrap();
        assert_eq!(sighting.last_token, 17);
        assert_eq!(sighting.ttl_left, Some(Duration::from_millis(2500)));
        let leader = sighting.leader.unwrap();
        assert_eq!(leader.token.map(FencingToken::get), Some(17));
        assert_eq!(leader.value(), Some("x y\n"));
        assert_eq!(leader.holder.value.unwrap().number, 3);
        assert_eq!(leader.holder.host, "a b");
        // A lock has no value.
        let lock = r#"leader 18 1000000 0 {"host":"h","pid":4,"client":"c"}"#;
        assert_eq!(parse(lock).unwrap().leader.unwrap().holder.value, None);
        assert_eq!(parse("nobody 17"), Some(Sighting::of_nobody(17)));
        for (text, left) in [("foreign -1", None), ("foreign 7", Some(7))] {
            let sighting = parse(text).unwrap();
            assert_eq!(sighting.ttl_left, left.map(Duration::from_millis));
            assert_eq!(sighting.leader.unwrap().token, None);
        }
        for broken in [
            "",
            "leader",
            "leader 1",
            "leader 1 2 x {}",
            "nobody ",
            "nobody x",
            "granted 1",
        ] {
            assert_eq!(parse(broken), None, "{broken}");
        }
    }
}
