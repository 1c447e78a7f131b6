//! Rule 17: any text is a name, and no two names are the same lock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{Client, ErrorKind, Guard, LockName};

use super::case::Case;
use super::failure::{Failure, Verdict, check};
use super::hostile;

/// Rule 17: a hold of one name does not affect another name.
pub(super) async fn names_do_not_interact(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let held = case.take(&first, &a).await?;
    let other = case.take(&second, &b).await?;
    check!(
        second.lock(&a).try_acquire().await?.is_none(),
        "two hold {a}"
    );
    other.release().await?;
    check!(held.is_held(), "the release of another name ended the hold");
    let status = second.inspect(&a).await?;
    check!(status.name.as_str() == a && status.is_held(), "{status:?}");
    check!(
        !second.inspect(&b).await?.is_held(),
        "{b} is free and shown as held"
    );
    Ok(held.release().await?)
}

/// Rule 17: names are compared byte for byte.
pub(super) async fn names_differ_by_case(case: Arc<Case>) -> Verdict {
    let id = case.id().to_owned();
    distinct(
        &case,
        vec![
            format!("order-{id}"),
            format!("Order-{id}"),
            format!("ORDER-{id}"),
            format!("ordeR-{id}"),
            format!("straße-{id}"),
            format!("strasse-{id}"),
            format!("STRASSE-{id}"),
            format!("İi-{id}"),
            format!("ıI-{id}"),
        ],
    )
    .await
}

/// Rule 17: paths, controls, wildcards, escapes, look-alikes and the names of other people's side keys:
/// all of them are names, each a lock of its own.
pub(super) async fn hostile_names_are_all_distinct(case: Arc<Case>) -> Verdict {
    distinct(&case, hostile::names()).await
}

/// Rule 17: a name has up to 1,000 bytes, and each byte distinguishes it from other names.
pub(super) async fn long_names_are_told_apart_by_every_byte(case: Arc<Case>) -> Verdict {
    let id = case.id();
    let filled = |length: usize, with: &str| {
        let mut name = id.to_owned();
        while name.len() + with.len() <= length {
            name.push_str(with);
        }
        name
    };
    let mut names = Vec::new();
    for length in [
        60, 61, 63, 64, 65, 128, 180, 181, 200, 255, 256, 511, 512, 767, 768, 999, 1_000,
    ] {
        names.push(filled(length, "x"));
        names.push(filled(length, "/"));
    }
    for length in [64, 256, 1_000] {
        names.push(filled(length - 1, "x") + "y");
        names.push(filled(length / 2, "x") + "y" + &filled(length / 2 - 1, "x"));
        names.push(filled(length - 1, "x").to_uppercase() + "x");
    }
    for with in ["\0", "%", " ", "\u{e9}", "\u{1f980}", "\u{10ffff}"] {
        names.push(filled(LockName::MAX_LEN, with));
    }
    distinct(&case, names).await
}

/// How many names are asked for at the same time: enough to hide the round trip to the store, and so few that no request
/// is late.
const TOGETHER: usize = 4;

/// Does the same with every one of these, some of them at a time.
pub(super) async fn each<T, F>(
    items: Vec<T>,
    act: impl Fn(T) -> F,
) -> Result<Vec<F::Output>, Failure>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let mut results = Vec::new();
    let mut items = items.into_iter();
    loop {
        let some: Vec<_> = items.by_ref().take(TOGETHER).collect();
        if some.is_empty() {
            return Ok(results);
        }
        let tasks: Vec<_> = some.into_iter().map(|it| tokio::spawn(act(it))).collect();
        for task in tasks {
            results.push(task.await?);
        }
    }
}

/// All of these names can be held at the same time, each of them once.
async fn distinct(case: &Case, names: Vec<String>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let unique: BTreeSet<_> = names.iter().collect();
    check!(
        unique.len() == names.len(),
        "a name is tried twice: {names:?}"
    );
    for name in &names {
        case.note(name);
    }
    let long = case.long();
    let take = |client: &Client, name: &String| client.lock(name).ttl(long);
    let locks: Vec<_> = names.iter().map(|name| take(&first, name)).collect();
    let held = each(locks, |lock| async move { lock.try_acquire().await }).await?;
    let mut guards = Vec::new();
    for (name, held) in names.iter().zip(held) {
        let Some(guard) = held? else {
            return Err(Failure::new(format_args!(
                "{name:?} is taken by a name that it should have nothing to do with"
            )));
        };
        guards.push(guard);
    }
    let locks: Vec<_> = names.iter().map(|name| take(&second, name)).collect();
    let tried = each(locks, |lock| async move { lock.try_acquire().await }).await?;
    for (name, tried) in names.iter().zip(tried) {
        check!(tried?.is_none(), "two hold {name:?}");
    }
    shown_as_held(case, &second, &names, &guards).await?;
    for guard in &guards {
        check!(guard.is_held(), "{} was lost", guard.name());
    }
    for released in each(guards, |guard| async move { guard.release().await }).await? {
        released?;
    }
    let left = second.list("").await?;
    for status in left.iter().filter(|status| status.is_held()) {
        let is_ours = names.iter().any(|name| name == status.name.as_str());
        check!(!is_ours, "{} was released and is held", status.name);
    }
    // Another client can acquire a name that was released.
    for name in names.iter().step_by(16) {
        let Some(guard) = take(&second, name).try_acquire().await? else {
            return Err(Failure::new(format_args!(
                "{name:?} was released and is taken"
            )));
        };
        guard.release().await?;
    }
    Ok(())
}

/// The store shows each of these names with the token of its guard.
async fn shown_as_held(
    case: &Case,
    client: &Client,
    names: &[String],
    guards: &[Guard],
) -> Verdict {
    // Only some of the names are inspected: the list below shows all.
    for (name, guard) in names.iter().zip(guards).step_by(16) {
        let status = client.inspect(name).await?;
        let token = status.holds.first().and_then(|hold| hold.token);
        check!(
            token == Some(guard.token()) && status.name.as_str() == name,
            "{name:?} is shown as {} with {token:?}",
            status.name
        );
    }
    let all: Vec<_> = names.iter().map(String::as_str).collect();
    let listed: BTreeMap<_, _> = case
        .list_with(client, "", &all)
        .await?
        .into_iter()
        .map(|status| {
            let token = status.holds.first().and_then(|hold| hold.token);
            (status.name.as_str().to_owned(), token)
        })
        .collect();
    for (name, guard) in names.iter().zip(guards) {
        check!(
            listed.get(name) == Some(&Some(guard.token())),
            "{name:?} is held and listed as {:?}",
            listed.get(name)
        );
    }
    Ok(())
}

/// Rule 17: a prefix is text, not a pattern.
pub(super) async fn a_prefix_is_taken_literally(case: Arc<Case>) -> Verdict {
    let client = case.client().await?;
    let id = case.id();
    let mut guards = Vec::new();
    for tail in [
        "a", "a%b", "a_b", "a*b", "a?b", "axb", "A%b", "a\\b", "a[x]b", "a/b", "a/b/c",
    ] {
        let name = format!("{id}/{tail}");
        case.note(&name);
        guards.push(case.take(&client, &name).await?);
    }
    for (prefix, expected) in [
        ("a%", &["a%b"][..]),
        ("a_", &["a_b"]),
        ("a*", &["a*b"]),
        ("a?", &["a?b"]),
        ("a[", &["a[x]b"]),
        ("a\\", &["a\\b"]),
        ("a/", &["a/b", "a/b/c"]),
        ("A", &["A%b"]),
        ("b", &[]),
    ] {
        let expected: Vec<_> = expected.iter().map(|tail| format!("{id}/{tail}")).collect();
        let names: Vec<_> = expected.iter().map(String::as_str).collect();
        let start = format!("{id}/{prefix}");
        let listed = case.list_with(&client, &start, &names).await?;
        let listed: Vec<_> = listed.iter().map(|status| status.name.as_str()).collect();
        check!(
            listed == expected,
            "\"{prefix}\" lists {listed:?}, not {expected:?}"
        );
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// Rule 17: control characters in a name, label or host are escaped, so they cannot act on a terminal or a log.
pub(super) async fn control_characters_are_escaped(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let name = format!("{}\u{1b}[2J\r\n\u{0}\u{7}\u{202e}\u{2028}\"x", case.id());
    case.note(&name);
    let label = "why\u{1b}]0;title\u{7}\r\n\u{202e}not";
    let guard = first
        .lock(&name)
        .ttl(case.long())
        .label(label)
        .acquire()
        .await?;
    let busy = second
        .lock(&name)
        .wait(std::time::Duration::ZERO)
        .acquire()
        .await;
    let Err(busy) = busy else {
        return Err(Failure::new("two hold it"));
    };
    check!(busy.kind() == ErrorKind::WaitElapsed, "{busy:?}");
    let status = second.inspect(&name).await?;
    let Some(hold) = status.holds.first() else {
        return Err(Failure::new("the holder is not shown"));
    };
    check!(
        hold.holder.label == label,
        "the label came back as {:?}",
        hold.holder.label
    );
    let wrong = second
        .lock(format!("{name}{}", "x".repeat(1_000)))
        .acquire()
        .await;
    let Err(wrong) = wrong else {
        return Err(Failure::new("a name with more than 1,000 bytes was locked"));
    };
    for text in [
        busy.to_string(),
        format!("{busy:?}"),
        wrong.to_string(),
        format!("{wrong:?}"),
        guard.name().to_string(),
        format!("{guard:?}"),
        hold.holder.to_string(),
    ] {
        let bad = |c: char| c.is_control() || matches!(c, '\u{202e}' | '\u{2028}');
        check!(!text.contains(bad), "not escaped: {text:?}");
    }
    Ok(guard.release().await?)
}
