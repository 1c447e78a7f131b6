//! A hold without a process: it goes on where the store has leases of its own, and is refused elsewhere.

use crate::support::scenarios::ServerStore as _;
use crate::support::text;
use crate::{AnyStore, Server, on_each};

on_each![a_hold_goes_on_without_a_process_or_is_refused];

fn a_hold_goes_on_without_a_process_or_is_refused(store: &AnyStore) {
    let file = store.path("x.receipt");
    let file = file.to_str().unwrap();
    let take = ["take", "-n", "x", "--holder", "build 77", "--receipt", file];
    let is_session = matches!(store.server, Server::Zookeeper(_)) || store.ends_with_connection();
    let features = text(&store.output(&["check", "--json"]).stdout);
    assert_eq!(features.contains("\"detach\""), !is_session, "{features}");
    if is_session {
        let refused = store.output(&take);
        let message = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        for word in [
            store.server.scheme(),
            "detached holds",
            "`redis:`",
            "`file:`",
        ] {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(!store.path("x.receipt").exists());
        assert_eq!(store.try_run("x"), 0);
        return;
    }
    assert_eq!(store.code(&take), 0);
    assert_eq!(store.try_run("x"), 75);
    assert_eq!(store.code(&take), 0, "the same job again");
    let status = text(&store.output(&["status", "x"]).stdout);
    for word in ["build 77", "ends in 29m"] {
        assert!(status.contains(word), "{word}: {status}");
    }
    assert_eq!(
        store.code(&["run", "--receipt", file, "--", "sh", "-c", "exit 3"]),
        3
    );
    assert_eq!(store.try_run("x"), 75);
    assert_eq!(store.code(&["renew", file, "--for", "2h"]), 0);
    assert_eq!(store.code(&["release", file]), 0);
    assert_eq!(store.code(&["release", file]), 76);
    assert_eq!(store.try_run("x"), 0);
}
