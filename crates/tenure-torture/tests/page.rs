//! The page and the picture: they show all findings, and text in a name or a URL is never markup on them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use tenure_torture::checker::{Anomaly, Findings, Overlap};
use tenure_torture::elections::{ElectionHistory, Item, ObserverHistory, Publication};
use tenure_torture::event::Sight;
use tenure_torture::history::{Claim, History, InjectedFault, Wait};
use tenure_torture::mode::HoldMode;
use tenure_torture::observer_checker::{Misobservation, ObserverFinding};
use tenure_torture::plan::FaultKind;
use tenure_torture::report::Report;
use tenure_torture::report_page::report_page;
use tenure_torture::text::escaped;
use tenure_torture::timeline::picture;

const EVIL: &str = "<script>alert('x')</script>&\"\u{1b}";

/// A run with everything that a page can show, and hostile text wherever there is text.
fn report() -> Report {
    let claim = |worker, start, end| Claim {
        acquisition: worker as u64,
        worker,
        name: EVIL.into(),
        mode: HoldMode::Exclusive,
        changes: None,
        turn: None,
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
                task: 0,
                name: EVIL.into(),
                mode: HoldMode::Exclusive,
                from: second,
                to: 2 * second,
            }],
            faults: FaultKind::ALL
                .map(|kind| InjectedFault {
                    kind,
                    worker: (!kind.hits_all_workers()).then_some(0),
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
            tokens: vec![Anomaly {
                acquisition: 2,
                at: 2 * second,
                documented: Some(FaultKind::ServerKill),
            }],
            not_enough: Some(EVIL.into()),
            ..Findings::default()
        },
        left_over: vec![EVIL.into()],
        left_out: Some("a < b".into()),
        has_elections: Some(true),
        events: "events".into(),
        page: "page".into(),
        picture: "picture".into(),
    }
}

#[test]
fn hostile_text_stays_text() {
    let page = report_page(&report());
    assert!(!page.contains("<script"), "{page}");
    assert!(!page.contains('\u{1b}'));
    assert!(page.contains(&escaped(EVIL)));
    assert!(page.contains("a &lt; b"));
}

#[test]
fn all_findings_are_shown() {
    let page = report_page(&report());
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
    for kind in FaultKind::ALL {
        assert!(page.contains(&format!("class=\"fault {kind}\"")), "{kind}");
    }
}

#[test]
fn a_run_in_which_nothing_happened_can_be_drawn() {
    let mut report = report();
    report.history = History::default();
    report.findings = Findings::default();
    let page = report_page(&report);
    assert!(page.contains("<svg") && !page.contains("NaN") && !page.contains("inf"));
    let picture = picture(&report);
    assert!(!picture.contains("NaN") && !picture.contains("inf"));
}

#[test]
fn every_bar_says_who_and_when() {
    let mut report = report();
    for claim in &mut report.history.claims {
        claim.name = "orders/🦀".into();
    }
    let (page, picture) = (report_page(&report), picture(&report));
    for text in [
        "worker 0 holds orders/🦀, exclusive, with token 7: 2.000 s, from 1.000 s to 3.000 s",
        &format!(
            "worker 2 waits for {}: 1.000 s, from 1.000 s to 2.000 s",
            escaped(EVIL)
        ),
        "fault vanish of worker 0: 1.000 s, from 1.000 s to 2.000 s",
        "fault server-kill: 1.000 s, from 1.000 s to 2.000 s",
        "workers 0 and 2 both hold, NOT documented: 1.000 s, from 2.000 s to 3.000 s",
    ] {
        assert!(page.contains(&format!("aria-label=\"{text}\"")), "{text}");
        assert!(
            picture.contains(&format!("<title>{text}</title>")),
            "{text}"
        );
    }
}

/// The report with an observer that sees worker 2 lead, then nobody, and then does not know who leads.
fn with_observer() -> Report {
    let mut report = report();
    let second = 1_000_000_000;
    let leader = Sight::Leader {
        token: Some(7),
        value: Some("value".into()),
    };
    let items = [
        (2, leader),
        (4, Sight::Nobody),
        (5, Sight::Unsure(EVIL.into())),
    ];
    report.history.elections = ElectionHistory {
        publications: vec![Publication {
            at: second,
            acquisition: 2 << 44,
            value: "value".into(),
            stored: Some(second),
        }],
        observers: vec![ObserverHistory {
            observer: 1,
            worker: 1,
            name: "office".into(),
            from: second,
            to: 6 * second,
            items: items
                .map(|(at, sight)| Item {
                    at: at * second,
                    sight,
                })
                .to_vec(),
        }],
    };
    report.findings.observers = vec![ObserverFinding {
        what: Misobservation::OlderTerm,
        observer: 1,
        worker: 1,
        at: 3 * second,
        documented: None,
    }];
    report
}

#[test]
fn what_observers_saw_is_shown() {
    let report = with_observer();
    let (page, picture) = (report_page(&report), picture(&report));
    let wrong = "the observer of worker 1 saw an older leader after a newer one";
    let unsure = format!(
        "worker 1 does not know who leads office ({})",
        escaped(EVIL)
    );
    for text in [
        "worker 1 sees worker 2 lead office with token 7: 2.000 s, from 2.000 s to 4.000 s",
        &format!("{unsure}: 1.000 s, from 5.000 s to 6.000 s"),
        &format!("{wrong}, NOT documented: at 3.000 s"),
    ] {
        assert!(page.contains(&format!("aria-label=\"{text}\"")), "{text}");
        assert!(
            picture.contains(&format!("<title>{text}</title>")),
            "{text}"
        );
    }
    assert!(page.contains(&format!("<td>{wrong}</td>")));
    assert!(page.contains("sees who leads, in the colour of that worker"));
    let line = &report.lines()[1];
    let text =
        "observers: 2 sights, wrong 1 NOT documented (1 saw an older leader after a newer one)";
    assert!(line.contains(text), "{line}");
    assert_eq!(report.json()["observers_wrong_not_documented"], 1);
}

#[test]
fn a_run_that_was_asked_for_elections_says_that_the_store_has_none() {
    let mut report = report();
    let text = "no elections, which this store does not have";
    for (has_elections, is_said) in [(None, false), (Some(true), false), (Some(false), true)] {
        report.has_elections = has_elections;
        assert_eq!(report.lines()[0].contains(text), is_said);
        assert_eq!(report_page(&report).contains(text), is_said);
    }
}

#[test]
fn a_long_name_is_cut_in_the_drawing() {
    let mut report = report();
    let long = "🦀".repeat(250);
    for claim in &mut report.history.claims {
        claim.name = long.clone();
    }
    for drawing in [report_page(&report), picture(&report)] {
        assert!(!drawing.contains(&long));
        assert!(drawing.contains(&format!("{}…", "🦀".repeat(60))));
    }
}

#[test]
fn the_picture_stands_alone() {
    let picture = picture(&report());
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    assert!(picture.contains("prefers-color-scheme:dark"));
    for foreign in [
        "<script",
        "href",
        "url(http",
        "@import",
        "@font-face",
        "\u{1b}",
    ] {
        assert!(!picture.contains(foreign), "{foreign}");
    }
    for kind in FaultKind::ALL {
        assert!(
            picture.contains(&format!("<pattern id=\"fault-{kind}\"")),
            "{kind}"
        );
    }
    // Every element that is opened is closed: a browser does not show an SVG file that is not XML.
    for tag in [
        "svg", "g", "text", "title", "style", "defs", "pattern", "rect",
    ] {
        let opened = picture.matches(&format!("<{tag} ")).count()
            + picture.matches(&format!("<{tag}>")).count();
        let closed = picture.matches(&format!("</{tag}>")).count();
        let alone = picture
            .split('<')
            .filter(|it| it.starts_with(&format!("{tag} ")) && it.trim_end().ends_with("/>"));
        assert_eq!(opened, closed + alone.count(), "{tag}");
    }
}
