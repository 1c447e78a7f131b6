//! The behaviours that all stores share, on three members and their CP subsystem, each client by a proxy that loses requests.

use std::future::ready;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tenure_core::conformance::{
    ContenderCounts, Failure, Harness, RequestFault, Setup, Verdict, run_only,
};
use tenure_core::error::Step;
use tenure_core::guarantees::Guarantees;
use tenure_core::store::BoxFuture;
use tenure_core::{Client, Error};
use tenure_testkit::hazelcast::{Hazelcast, SESSION_TTL, url_of};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Planner, Proxy};

/// One cluster for all behaviours, each of which takes names of its own.
static MEMBERS: LazyLock<Hazelcast> = LazyLock::new(Hazelcast::start);

/// One member by a proxy of its own.
struct Members {
    proxy: Proxy,
}

impl Members {
    fn url_text(&self) -> String {
        url_of(&[self.proxy.port()]) + "?timeout=3s"
    }
}

/// A capability that waits for no other task.
fn at_once(action: impl FnOnce() + Send + 'static) -> Option<BoxFuture<Verdict>> {
    Some(Box::pin(async move {
        action();
        Ok(())
    }))
}

/// A member on a busy machine may not answer within the limit of one attempt.
async fn connect(url: String) -> Result<Client, Error> {
    for _ in 0..10 {
        match tenure_hazelcast::connect(&url).await {
            Err(err) if err.is_retryable() => {}
            connected => return connected,
        }
    }
    tenure_hazelcast::connect(&url).await
}

/// The published encoding, and not the code of the library.
fn encoded(name: &str) -> String {
    let mut text = name.replace('%', "%25").replace('@', "%40");
    for is_last in [false, true] {
        let at = if is_last { text.len() - 1 } else { 0 };
        if text.as_bytes()[at] <= b' ' {
            let byte = format!("%{:02X}", text.as_bytes()[at]);
            text.replace_range(at..=at, &byte);
        }
    }
    text
}

impl Harness for Members {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        Box::pin(connect(self.url_text()))
    }

    fn guarantees(&self) -> Guarantees {
        tenure_hazelcast::guarantees(Duration::from_secs(SESSION_TTL))
    }

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let name = encoded(name);
        Box::pin(async move {
            let look = MEMBERS.look(&name);
            Ok(ContenderCounts {
                holders: look.holders,
                waiters: Some(look.waiters),
            })
        })
    }

    fn leases(&self) -> bool {
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(SESSION_TTL)
    }

    fn url(&self) -> Option<String> {
        Some(self.url_text())
    }

    fn connect(&self, url: String) -> Option<BoxFuture<Result<Client, Error>>> {
        Some(Box::pin(
            async move { tenure_hazelcast::connect(&url).await },
        ))
    }

    fn lock_holder(&self) -> Option<PathBuf> {
        Some(env!("CARGO_BIN_EXE_hazelcast-lock-holder").into())
    }

    fn cannot_show(&self, behaviour: &str) -> Option<&'static str> {
        let of = |all: &[&str]| all.contains(&behaviour);
        if of(ONE_SESSION_EACH) {
            Some("each hold has a session of its own, and the protocol has no request for several")
        } else if of(NOTHING_OF_HOLDERS) {
            Some("the members keep nothing of a holder but numbers, and tell no names")
        } else if of(TOKENS_BEGIN_AGAIN) {
            Some("tokens begin again after a reset of the CP subsystem")
        } else {
            None
        }
    }

    fn recovers(&self) -> bool {
        true
    }

    fn requests(&self) -> Option<u64> {
        Some(self.proxy.requests())
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Verdict>> {
        let name = encoded(name);
        at_once(move || {
            MEMBERS.unlock(&name);
        })
    }

    fn disturb(&self, step: Step, request_fault: RequestFault) -> Option<BoxFuture<Verdict>> {
        let requests = match step {
            Step::Acquire => "acquire",
            Step::Renew => "renew",
            Step::Release => "release",
            _ => "look",
        };
        let fault = match request_fault {
            RequestFault::RequestLost => Fault::Answer("the request got lost"),
            RequestFault::ReplyLost => Fault::CutAfter,
            RequestFault::ReplyNever => Fault::NoReply,
            RequestFault::Late(by) => Fault::Late(by),
            _ => return None,
        };
        let planner: Planner = self.proxy.planner();
        at_once(move || planner.plan(requests, fault))
    }

    fn break_connection(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.proxy.planner();
        at_once(move || planner.cut())
    }

    fn pause_store(&self) -> Option<BoxFuture<Verdict>> {
        at_once(|| MEMBERS.stop())
    }

    fn resume_store(&self) -> Option<BoxFuture<Verdict>> {
        let planner = self.proxy.planner();
        at_once(move || {
            planner.resume();
            MEMBERS.resume();
        })
    }

    fn wipe_store(&self) -> Option<BoxFuture<Verdict>> {
        at_once(|| MEMBERS.reset())
    }

    fn restart_store(&self) -> Option<BoxFuture<Verdict>> {
        at_once(|| {
            MEMBERS.kill();
            MEMBERS.launch();
        })
    }
}

const ONE_SESSION_EACH: &[&str] = &["holding::many_holds_are_renewed_by_few_requests"];

const NOTHING_OF_HOLDERS: &[&str] = &[
    "waiting::a_wait_is_kept_and_names_the_holder",
    "names::control_characters_are_escaped",
    "identity::the_holder_is_visible",
    "mode_matrix::each_holder_is_shown_with_its_mode",
    "faults::a_holder_in_another_process_is_visible",
    "identity::list_shows_what_is_held",
    "names::names_differ_by_case",
    "names::hostile_names_are_all_distinct",
    "names::long_names_are_told_apart_by_every_byte",
    "names::a_prefix_is_taken_literally",
];

/// `members.rs` has a test of the rest of it.
const TOKENS_BEGIN_AGAIN: &[&str] = &["faults::a_wiped_store_is_noticed_and_tokens_grow"];

#[test]
fn the_store_shows_every_behaviour_that_it_claims() {
    needs!(hazelcast);
    let wanted = std::env::var("TENURE_BEHAVIOUR").unwrap_or_default();
    let setup = Setup {
        name: "hazelcast",
        open: || {
            let proxy = Proxy::hazelcast(MEMBERS.port(0));
            Box::pin(ready(Ok(Arc::new(Members { proxy }) as _)))
        },
        single_thread: false,
        together: 4,
        skips: &[
            ("no shared holds", &[]),
            ("no upgradable holds", &[]),
            ("no permits", &[]),
            ("no `min_hold`", &[]),
            ("no `lock_delay`", &[]),
            ("no elections", &[]),
            ("no detached holds", &[]),
            ("there is no password for this store", &[]),
            (
                "each hold has a session of its own, and the protocol has no request for several",
                ONE_SESSION_EACH,
            ),
            (
                "the members keep nothing of a holder but numbers, and tell no names",
                NOTHING_OF_HOLDERS,
            ),
            (
                "tokens begin again after a reset of the CP subsystem",
                TOKENS_BEGIN_AGAIN,
            ),
        ],
    };
    run_only(&setup, |name| name.contains(&wanted)).assert();
}
