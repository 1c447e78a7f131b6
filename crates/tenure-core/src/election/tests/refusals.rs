//! What is refused before any request.

use crate::holder::PublishedValue;

use super::wrapped::Wrapped;
use super::*;

#[tokio::test]
async fn a_store_without_elections_refuses_before_any_request_and_names_those_that_have() {
    let case = Case::new();
    let client = Wrapped::client(&case, None);
    let election = client.election("e");
    let run = election.run(async |_| Ok::<_, Infallible>(()));
    let mut observer = election.observe();
    let errors = [
        election.campaign().await.unwrap_err(),
        run.await.unwrap_err(),
        election.leader().await.unwrap_err(),
        election.ask_to_resign().await.unwrap_err(),
        observer.next().await.unwrap().unwrap_err(),
    ];
    for err in errors {
        assert_eq!(err.kind(), ErrorKind::Unsupported);
        let text = err.to_string();
        assert!(text.contains("locks-only has no elections"), "{text}");
        assert!(text.contains("`memory:`"), "{text}");
    }
    assert!(observer.next().await.is_none());
    assert_eq!(case.0.requests(), 0);
    // Its locks are as they were.
    let guard = client.lock("e").acquire().await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_wrong_name_or_value_is_refused_before_any_request() {
    let case = Case::new();
    let client = case.client();
    for election in [client.election(""), client.election("x".repeat(1_001))] {
        let mut observer = election.observe();
        for err in [
            election.campaign().await.unwrap_err(),
            election.leader().await.unwrap_err(),
            election.ask_to_resign().await.unwrap_err(),
            observer.next().await.unwrap().unwrap_err(),
        ] {
            assert_eq!(err.kind(), ErrorKind::Invalid);
        }
        assert!(observer.next().await.is_none());
    }
    let longest = "v".repeat(PublishedValue::MAX_LEN);
    let too_long = format!("{longest}v");
    let err = case.candidate(&too_long).campaign().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert_eq!(case.0.requests(), 0);
    let term = case.candidate(&longest).campaign().await.unwrap();
    let requests = case.0.requests();
    let err = term.proclaim(too_long).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Invalid);
    assert_eq!(case.0.requests(), requests);
    assert_eq!(case.leader().await, Some(longest));
}

/// The defaults of a client are for its locks; a leader is alone, and `campaign` waits until it is elected.
#[tokio::test]
async fn an_election_is_exclusive_and_waits_whatever_the_client_has_as_defaults() {
    let case = Case::new();
    let mut options = Options::new().wait(Duration::from_secs(1));
    options.mode = crate::Mode::Shared;
    let client = case.client().with_defaults(options).with_prefix("team/");
    let term = client.election("e").campaign().await.unwrap();
    assert_eq!(term.guard().mode(), crate::Mode::Exclusive);
    assert_eq!(term.guard().name().as_str(), "team/e");
    let second = client.election("e");
    let second = tokio::spawn(async move { second.campaign().await.unwrap() });
    case.0.run_for(HOUR).await;
    assert!(!second.is_finished());
    term.resign().await.unwrap();
    drop(second.await.unwrap());
}
