//! Receipts of several names.

use super::*;

/// A guard of "a", "b" and "c".
async fn all(case: &Case) -> Guard {
    let lock = case.first.lock_all(["c", "a", "b"]).ttl(LONG);
    lock.acquire().await.unwrap()
}

fn holders(case: &Case) -> Vec<&'static str> {
    let is_held = |name: &&str| {
        let status = case.store.status(&LockName::new(*name).unwrap());
        status.is_held()
    };
    ["a", "b", "c"].into_iter().filter(is_held).collect()
}

#[tokio::test]
async fn one_receipt_has_all_names() {
    let case = Case::new();
    let guard = all(&case).await;
    let tokens: Vec<_> = guard
        .tokens()
        .map(|(name, token)| (name.clone(), token))
        .collect();
    let receipt = guard.detach().await.unwrap();
    let written: Vec<_> = receipt
        .tokens()
        .map(|(name, token)| (name.clone(), token))
        .collect();
    assert_eq!(written, tokens);
    let guard = case.client().attach(receipt.with_ttl(TTL)).await.unwrap();
    let attached: Vec<_> = guard
        .tokens()
        .map(|(name, token)| (name.clone(), token))
        .collect();
    assert_eq!(attached, tokens);
    case.store.run_for(LONG + LONG).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn if_one_name_is_over_the_client_is_attached_to_none_and_the_others_stay() {
    let case = Case::new();
    let receipt = all(&case).await.detach().await.unwrap();
    case.store.expire("b").unwrap();
    let client = case.client();
    let mut lost = Losses::of(&client);
    let err = client.attach(&receipt).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
    assert_eq!(err.name().map(LockName::as_str), Some("b"));
    settle().await;
    assert!(!client.is_held_here("a"));
    let requests = case.store.requests();
    case.store.run_for(LONG / 2).await;
    assert_eq!(case.store.requests(), requests, "renewed for no guard");
    assert_eq!(holders(&case), ["a", "c"]);
    case.store.run_for(LONG / 2).await;
    assert!(case.store.is_idle());
    assert!(lost.are_none(&case, &client).await);
}

#[tokio::test]
async fn an_attach_that_is_dropped_at_the_second_name_leaves_all() {
    let case = Case::new();
    let receipt = all(&case).await.detach().await.unwrap();
    let client = case.client();
    case.store
        .disturb(Step::Attach, Disturbance::Late(Duration::ZERO));
    case.store.disturb(Step::Attach, Disturbance::Late(SECOND));
    let attaching = tokio::spawn({
        let (client, receipt) = (client.clone(), receipt.clone());
        async move { client.attach(receipt).await }
    });
    settle().await;
    assert!(client.is_held_here("a") && !attaching.is_finished());
    attaching.abort();
    settle().await;
    assert!(!client.is_held_here("a"));
    case.store.run_for(SECOND).await;
    assert_eq!(holders(&case), ["a", "b", "c"]);
    let guard = client.attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    assert!(case.store.is_idle());
}

#[tokio::test]
async fn a_detach_that_fails_or_is_dropped_at_the_second_name_releases_all() {
    for (disturbance, is_dropped) in [
        (Disturbance::RequestLost, false),
        (Disturbance::ReplyLost, false),
        (Disturbance::Late(SECOND), true),
    ] {
        let case = Case::new();
        let guard = all(&case).await;
        case.store
            .disturb(Step::Detach, Disturbance::Late(Duration::ZERO));
        case.store.disturb(Step::Detach, disturbance);
        let detaching = tokio::spawn(guard.detach());
        settle().await;
        match is_dropped {
            true => detaching.abort(),
            false => assert!(detaching.await.unwrap().is_err()),
        }
        case.store.run_for(SECOND).await;
        assert_eq!(holders(&case), [""; 0], "{disturbance:?}");
    }
}

#[tokio::test]
async fn attached_names_that_are_not_detached_again_stay() {
    let case = Case::new();
    let receipt = all(&case).await.detach().await.unwrap();
    let guard = case.client().attach(&receipt).await.unwrap();
    case.store
        .disturb(Step::Detach, Disturbance::Late(Duration::ZERO));
    case.store.disturb(Step::Detach, Disturbance::ReplyLost);
    let detaching = tokio::spawn(guard.detach());
    settle().await;
    assert_eq!(
        kind(detaching.await.unwrap()),
        Some(ErrorKind::Indeterminate)
    );
    settle().await;
    case.store.run_for(TTL).await;
    assert_eq!(holders(&case), ["a", "b", "c"]);
    // The first name may have been detached, so it has its own lease.
    let guard = case.client().attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    assert!(case.store.is_idle());
}
