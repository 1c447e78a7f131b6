//! The page: all that was found is on it, and nothing that was put into a name or a URL can act there.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use tenure_torture::checker::{Findings, Overlap, Slip};
use tenure_torture::history::{Claim, History, Trouble, Wait};
use tenure_torture::page::{escaped, page};
use tenure_torture::plan::Kind;
use tenure_torture::report::Report;

const EVIL: &str = "<script>alert('x')</script>&\"\u{1b}";

/// A run with all that can be on a page, and hostile words wherever words can be.
fn report() -> Report {
    let claim = |worker, start, end| Claim {
        acquisition: worker as u64,
        worker,
        name: EVIL.into(),
        token: 7,
        asked: start,
        start,
        end,
    };
    let second = 1_000_000_000;
    Report {
        seed: 42,
        store: EVIL.into(),
        history: History {
            began: 0,
            over: 10 * second,
            claims: vec![
                claim(0, second, 3 * second),
                claim(2, 2 * second, 4 * second),
            ],
            waits: vec![Wait {
                worker: 2,
                name: EVIL.into(),
                from: second,
                to: 2 * second,
            }],
            troubles: Kind::ALL
                .map(|kind| Trouble {
                    kind,
                    worker: (!kind.is_around()).then_some(0),
                    from: second,
                    to: 2 * second,
                })
                .to_vec(),
            ..History::default()
        },
        findings: Findings {
            overlaps: vec![Overlap {
                first: (0, 0),
                second: (2, 2),
                from: 2 * second,
                to: 3 * second,
                documented: None,
            }],
            tokens: vec![Slip {
                acquisition: 2,
                at: 2 * second,
                documented: Some(Kind::ServerKill),
            }],
            not_enough: Some(EVIL.into()),
            ..Findings::default()
        },
        left_over: vec![EVIL.into()],
        left_out: Some("a < b".into()),
        events: "events".into(),
        page: "page".into(),
    }
}

#[test]
fn what_is_hostile_is_text() {
    let page = page(&report());
    assert!(!page.contains("<script"), "{page}");
    assert!(!page.contains('\u{1b}'));
    assert!(page.contains(&escaped(EVIL)));
    assert!(page.contains("a &lt; b"));
}

#[test]
fn all_that_was_found_is_there() {
    let page = page(&report());
    for word in [
        "seed 42",
        "VIOLATION",
        "workers 0 and 2 both hold",
        "class=\"overlap\"",
        "NOT documented",
        "as documented for server-kill",
        "left over",
        "prefers-color-scheme",
    ] {
        assert!(page.contains(word), "{word}");
    }
    for kind in Kind::ALL {
        assert!(page.contains(&format!("class=\"fault {kind}\"")), "{kind}");
    }
}

#[test]
fn a_run_in_which_nothing_happened_can_be_drawn() {
    let mut report = report();
    report.history = History::default();
    report.findings = Findings::default();
    let page = page(&report);
    assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"));
}
