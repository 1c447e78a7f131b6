//! The arguments of a call. No error repeats a value, which may be a receipt.

use std::num::NonZeroU32;
use std::time::Duration;

use rmcp::model::JsonObject;
use serde_json::Value;
use tenure::name::Escaped;
use tenure::{Error, LockName, Receipt};

use super::answer::invalid;

/// More names are no set of locks, but a mistake.
const MOST_NAMES: usize = 100;

/// What is left of the arguments.
pub(super) struct Arguments(JsonObject);

impl Arguments {
    /// An argument that is `null` is one that is left out: some clients send all of them.
    pub(super) fn new(values: Option<JsonObject>) -> Self {
        let mut values = values.unwrap_or_default();
        values.retain(|_, value| !value.is_null());
        Self(values)
    }

    /// Takes an argument out.
    ///
    /// # Errors
    /// `Invalid`: it is something else than `wanted`.
    fn take<T>(
        &mut self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.0.remove(key) else {
            return Ok(None);
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => {
                let found = kind_of(&value);
                Err(invalid(format!("`{key}` is {found}; give {wanted}")))
            }
        }
    }

    pub(super) fn text(&mut self, key: &str) -> Result<Option<String>, Error> {
        self.take(key, "a text", |value| value.as_str().map(ToOwned::to_owned))
    }

    pub(super) fn flag(&mut self, key: &str) -> Result<bool, Error> {
        let flag = self.take(key, "true or false", Value::as_bool)?;
        Ok(flag.unwrap_or_default())
    }

    pub(super) fn count(&mut self, key: &str) -> Result<Option<NonZeroU32>, Error> {
        let wanted = format!("a whole number from 1 to {}", u32::MAX);
        self.take(key, &wanted, |value| {
            NonZeroU32::new(u32::try_from(value.as_u64()?).ok()?)
        })
    }

    /// A duration, read by one of the functions for the command line.
    pub(super) fn duration(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<Duration, String>,
    ) -> Result<Option<Duration>, Error> {
        let wanted = "a text such as \"30s\", \"5m\" or \"1h30m\"";
        let text = self.take(key, wanted, |value| value.as_str().map(ToOwned::to_owned))?;
        text.map(|text| parse(&text).map_err(|why| invalid(format!("`{key}`: {why}"))))
            .transpose()
    }

    pub(super) fn name(&mut self, key: &str) -> Result<LockName, Error> {
        match self.text(key)? {
            Some(name) => LockName::new(name),
            None => Err(invalid(format!(
                "`{key}` is missing; give the name of a lock"
            ))),
        }
    }

    /// A list of at least one name.
    pub(super) fn names(&mut self, key: &str) -> Result<Vec<LockName>, Error> {
        let wanted = "a list of texts, the names of the locks";
        let names = self.take(key, wanted, |value| {
            let names = value.as_array()?.iter();
            names
                .map(|name| name.as_str().map(ToOwned::to_owned))
                .collect::<Option<Vec<_>>>()
        })?;
        match names {
            None => Err(invalid(format!("`{key}` is missing; give {wanted}"))),
            Some(names) if names.is_empty() => {
                Err(invalid(format!("`{key}` is empty; give at least one name")))
            }
            Some(names) if names.len() > MOST_NAMES => Err(invalid(format!(
                "`{key}` has {} names; give {MOST_NAMES} at most",
                names.len()
            ))),
            Some(names) => names.into_iter().map(LockName::new).collect(),
        }
    }

    pub(super) fn receipt(&mut self, key: &str) -> Result<Option<Receipt>, Error> {
        self.text(key)?.map(|text| text.parse()).transpose()
    }

    /// Refuses what was not taken out, which would have no effect.
    ///
    /// # Errors
    /// `Invalid`, with the arguments that the tool has.
    pub(super) fn finish(self, known: &[&str]) -> Result<(), Error> {
        let Some(key) = self.0.keys().next() else {
            return Ok(());
        };
        let key: String = key.chars().take(60).collect();
        Err(invalid(format!(
            "there is no argument \"{}\"; the arguments are `{}`",
            Escaped(&key),
            known.join("`, `")
        )))
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list, or a list of something else",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::duration;

    fn arguments(value: Value) -> Arguments {
        Arguments::new(value.as_object().cloned())
    }

    #[test]
    fn what_is_left_out_or_null_is_not_there() {
        let mut none = arguments(json!({ "text": null }));
        assert_eq!(none.text("text").unwrap(), None);
        assert!(!none.flag("flag").unwrap());
        assert_eq!(none.count("count").unwrap(), None);
        assert_eq!(none.duration("wait", duration::parse).unwrap(), None);
        assert!(none.receipt("receipt").unwrap().is_none());
        none.finish(&[]).unwrap();
    }

    #[test]
    fn wrong_values_are_refused_without_their_text() {
        let secret = "hunter2";
        for (value, words) in [
            (json!({ "names": secret }), "list of texts"),
            (json!({ "names": [secret, 1] }), "list of texts"),
            (json!({ "names": [] }), "at least one"),
            (json!({ "names": vec!["x"; 101] }), "100 at most"),
            (json!({}), "missing"),
        ] {
            let error = arguments(value).names("names").unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains(secret), "{error}");
        }
        for value in [
            json!(0),
            json!(-1),
            json!(1.5),
            json!("1"),
            json!(1_u64 << 32),
        ] {
            let error = arguments(json!({ "it": value })).count("it").unwrap_err();
            assert!(error.to_string().contains("whole number from 1"), "{error}");
        }
        let mut wait = arguments(json!({ "wait": 5 }));
        let error = wait.duration("wait", duration::parse).unwrap_err();
        assert!(error.to_string().contains("\"30s\""), "{error}");
        let mut receipt = arguments(json!({ "receipt": secret }));
        let error = receipt.receipt("receipt").unwrap_err().to_string();
        assert!(error.contains("no receipt") && !error.contains(secret));
        let error = arguments(json!({ "nmae": secret })).finish(&["name", "wait"]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("\"nmae\"") && error.contains("`name`, `wait`"));
    }
}
