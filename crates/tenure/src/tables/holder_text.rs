//! The description of a holder as it stands in a row: JSON, of which the statements look at the end and at one field.

/// The end of the description of a holder that is asked to let go. No other description ends like that: a quote inside of a
/// text has a backslash before it.
pub(super) const ASKED_END: &str = r#","asked":true}"#;

/// The start of the description of a holder for whom tokens are reserved from `first` on. No other description starts like
/// that.
pub(super) fn turn_start(first: u64) -> String {
    format!(r#"{{"turn":{first},"#)
}

/// The first of the tokens that are reserved for the holder. `None`: it has no more than one.
pub(super) fn first_of_turn(holder: &str) -> Option<u64> {
    let (first, _) = holder.strip_prefix(r#"{"turn":"#)?.split_once(',')?;
    first.parse().ok()
}

/// Whether the holder is asked to let go.
pub(super) fn is_asked(holder: &str) -> bool {
    holder.ends_with(ASKED_END)
}

/// The description of the same holder, which is asked to let go. The rest stays as it is, also what this version does not know.
/// `None`: the text is no description of a holder.
pub(super) fn with_request(holder: &str) -> Option<String> {
    let fields = holder.strip_suffix('}')?;
    let has_fields = fields.starts_with("{\"");
    has_fields.then(|| format!("{fields}{ASKED_END}"))
}

#[cfg(test)]
mod tests {
    use tenure_core::holder::{Holder, PublishedValue};
    use tenure_core::support::HolderRecord;

    use super::*;

    fn text(holder: &Holder) -> String {
        HolderRecord::from(holder).to_json()
    }

    #[test]
    fn a_request_leaves_the_rest_as_it_is() {
        let mut holder = Holder::new("h", 7);
        let asked = r#"{"host":"h","pid":7,"client":"","asked":true}"#;
        assert_eq!(with_request(&text(&holder)).as_deref(), Some(asked));
        assert!(is_asked(asked) && !is_asked(&text(&holder)));
        assert_eq!(HolderRecord::read(asked), holder);
        holder.value = Some(PublishedValue::new("v", 3));
        let asked = r#"{"host":"h","pid":7,"client":"","value":"v","number":3,"asked":true}"#;
        assert_eq!(with_request(&text(&holder)).as_deref(), Some(asked));
        assert_eq!(HolderRecord::read(asked), holder);
        let later = r#"{"host":"h","later":[1]}"#;
        let asked = r#"{"host":"h","later":[1],"asked":true}"#;
        assert_eq!(with_request(later).as_deref(), Some(asked));
        for text in ["", "{}", "[]", "nonsense", "{"] {
            assert_eq!(with_request(text), None, "{text}");
        }
    }

    #[test]
    fn reserved_tokens_leave_the_rest_as_it_is() {
        let mut holder = Holder::new("h", 7);
        holder.client = r#"","turn":5,"#.into();
        let plain = text(&holder);
        assert_eq!(first_of_turn(&plain), None);
        let turn = turn_start(42) + &plain[1..];
        assert_eq!(first_of_turn(&turn), Some(42));
        assert_eq!(HolderRecord::read(&turn), holder);
        let asked = with_request(&turn).expect("a description");
        assert!(is_asked(&asked));
        assert_eq!(first_of_turn(&asked), Some(42));
        assert_eq!(first_of_turn(r#"{"turn":x,"#), None);
    }

    #[test]
    fn the_text_of_a_user_looks_like_no_field() {
        let mut holder = Holder::new(r#"","number":5,"x":""#, 7);
        holder.client = r#"","asked":true}"#.into();
        assert!(!is_asked(&text(&holder)));
        holder.value = Some(PublishedValue::new(ASKED_END, 0));
        assert!(!is_asked(&text(&holder)));
    }
}
