//! Scenarios in text files: each line is an input and, after `->`, the decision that must follow.
//! `#` starts a comment. The files show what the logic decides in which case.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Duration;

use super::{name, owner};
use crate::logic::lease::{self, HoldState, Lease, Terms, Tick};
use crate::logic::pace;
use crate::logic::queue::{Contender, Turn, decide};
use crate::logic::quorum::{Tally, Verdict, token, validity};
use crate::logic::table::{self, LockRequest, Table};
use crate::lost::LostReason;
use crate::options::{Mode, Renew};
use crate::time::Time;

#[test]
fn lease() {
    check(
        include_str!("scenarios/lease.txt"),
        LeaseScenario::default(),
    );
}

#[test]
fn lease_without_ttl() {
    check(
        include_str!("scenarios/lease_without_ttl.txt"),
        LeaseScenario::default(),
    );
}

#[test]
fn table_exclusive() {
    check(
        include_str!("scenarios/table_exclusive.txt"),
        TableScenario::default(),
    );
}

#[test]
fn table_modes() {
    check(
        include_str!("scenarios/table_modes.txt"),
        TableScenario::default(),
    );
}

#[test]
fn table_reservations() {
    check(
        include_str!("scenarios/table_reservations.txt"),
        TableScenario::default(),
    );
}

#[test]
fn queue() {
    check(include_str!("scenarios/queue.txt"), QueueScenario);
}

#[test]
fn quorum() {
    check(
        include_str!("scenarios/quorum.txt"),
        QuorumScenario::default(),
    );
}

#[test]
fn pace() {
    check(include_str!("scenarios/pace.txt"), PaceScenario);
}

/// A machine of the logic that understands the lines of its files.
trait Scenario {
    fn line(&mut self, input: &str) -> String;
}

/// Plays the whole text; shows every line whose decision differs.
fn check(text: &str, mut scenario: impl Scenario) {
    let mut failures = String::new();
    let mut lines = 0;
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        if line.is_empty() {
            continue;
        }
        let (input, expected) = line.split_once("->").unwrap_or((line, ""));
        let decision = scenario.line(input.trim());
        lines += 1;
        if decision != expected.trim() {
            writeln!(
                failures,
                "line {}: {}\n  expected {}\n  decided  {decision}",
                number + 1,
                input.trim(),
                expected.trim()
            )
            .unwrap();
        }
    }
    assert!(lines > 0, "the file has no line");
    assert!(failures.is_empty(), "{failures}");
}

#[derive(Default)]
struct LeaseScenario {
    lease: Option<Lease>,
    now: Time,
}

impl Scenario for LeaseScenario {
    fn line(&mut self, input: &str) -> String {
        let words = Words::of(input);
        if let Some(at) = words.after("at") {
            let now = time(at);
            assert!(
                now >= self.now || words.has("granted"),
                "time runs backward: {input}"
            );
            self.now = now;
        }
        let now = self.now;
        let jitter = words.after("jitter").map_or(u32::MAX, random);
        let mut said = String::new();
        if words.has("granted") {
            let terms = Terms {
                ttl: duration(words.after("ttl").unwrap()),
                drift: words.after("drift").map_or(Duration::ZERO, duration),
                renew: if words.has("fixed") {
                    Renew::Never
                } else {
                    Renew::Automatic
                },
                max_hold: words.after("max_hold").map(duration),
            };
            let ttl = match words.after("store") {
                Some("none") => None,
                Some(other) => Some(duration(other)),
                None => Some(terms.ttl),
            };
            self.lease = Some(Lease::granted(
                terms,
                time(words.after("sent").unwrap()),
                ttl,
            ));
        }
        let lease = self.lease.as_mut().expect("a scenario starts with a grant");
        if words.has("tick") {
            match lease.tick(now) {
                Tick::Wait => said.push_str("wait; "),
                Tick::Renew => said.push_str("renew; "),
                Tick::Lost(_) => {}
            }
        } else if words.has("yes") {
            let ttl = words.after("for").map(duration);
            lease.renewed(time(words.after("of").unwrap()), ttl, now);
        } else if words.has("unanswered") {
            lease.unanswered(now, jitter);
        } else if let Some(reason) = words.after("no:") {
            lease.refused(match reason {
                "session" => LostReason::SessionGone,
                "taken" => LostReason::TakenOver,
                "store" => LostReason::StoreSaysNo,
                other => panic!("what is {other}?"),
            });
        }
        let next = format!("next {}", clock(lease.next()));
        let deadline = clock(lease.deadline());
        match lease.state(now) {
            HoldState::Held => said + &format!("held until {deadline}, {next}"),
            HoldState::AtRisk => said + &format!("at risk until {deadline}, {next}"),
            HoldState::Lost(reason) => {
                assert!(lease.next() == Time::MAX || lease.next() <= now);
                said + &format!("lost: {reason}")
            }
        }
    }
}

#[derive(Default)]
struct TableScenario {
    table: Table,
    now: Time,
}

impl Scenario for TableScenario {
    fn line(&mut self, input: &str) -> String {
        let words = Words::of(input);
        if input.starts_with("scenario") {
            *self = Self::default();
            return String::new();
        }
        if let Some(at) = words.after("at") {
            let now = time(at);
            assert!(now >= self.now, "time runs backward: {input}");
            self.now = now;
        }
        let now = self.now;
        let name = name("door");
        let who = words.0.iter().find_map(|word| match word.as_bytes() {
            [letter @ b'a'..=b'z'] => Some(owner(*letter)),
            _ => None,
        });
        let yes_no = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let mut said = if words.has("asks") {
            let ask = LockRequest {
                name,
                owner: who.unwrap(),
                mode: match words.after("permit") {
                    Some(limit) => permit(limit),
                    None if words.has("shared") => Mode::Shared,
                    None => Mode::Exclusive,
                },
                ttl: words.after("ttl").map(duration),
                wait: !words.has("once"),
                barge: words.has("barging"),
                min_hold: words.after("min_hold").map_or(Duration::ZERO, duration),
                lock_delay: words.after("lock_delay").map_or(Duration::ZERO, duration),
                waiter_ttl: words.after("waiter_ttl").map(duration),
                propose: words.after("proposing").map(|token| token.parse().unwrap()),
            };
            match self.table.acquire(&ask, now) {
                table::Verdict::Granted { token } => format!("granted {token}"),
                table::Verdict::Queued => "queued".to_owned(),
                table::Verdict::Busy => "busy".to_owned(),
            }
        } else if words.has("renews") {
            let ttl = words.after("for").map(duration);
            yes_no(self.table.renew(&name, who.unwrap(), ttl, now))
        } else if let Some(token) = words.after("raises") {
            let token = token.parse().unwrap();
            yes_no(self.table.raise(&name, who.unwrap(), token, now).is_some())
        } else if words.has("waves") {
            yes_no(self.table.touch(&name, who.unwrap(), now))
        } else if words.has("releases") {
            yes_no(
                self.table
                    .release(&name, who.unwrap(), words.has("late"), now),
            )
        } else if let Some(token) = words.after("break") {
            yes_no(self.table.break_hold(&name, token.parse().unwrap(), now))
        } else if words.has("expire") {
            format!("{} ended", self.table.expire(&name, now))
        } else if words.has("tick") {
            self.table.tick(now);
            "done".to_owned()
        } else if words.has("look") {
            self.look()
        } else {
            panic!("what is {input}?")
        };
        let (mut granted, mut forgotten) = (Vec::new(), Vec::new());
        self.table.forgotten(&mut forgotten);
        self.table.granted(&mut granted);
        for who in forgotten {
            write!(said, "; forgets {}", letter(who)).unwrap();
        }
        for (who, token) in granted {
            write!(said, "; grants {} {token}", letter(who)).unwrap();
        }
        said
    }
}

impl TableScenario {
    fn look(&self) -> String {
        let mut said = String::new();
        if let Some(view) = self.table.view(&name("door")) {
            for hold in view.holds {
                write!(
                    said,
                    "{} holds ({}) as {}",
                    letter(hold.owner),
                    hold.mode,
                    hold.token
                )
                .unwrap();
                if let Some(expires) = hold.expires {
                    write!(said, " until {}", clock(expires)).unwrap();
                }
                said.push_str(", ");
            }
            for (who, _) in view.waiters {
                write!(said, "{} waits, ", letter(who)).unwrap();
            }
            if let Some(until) = view.reserved_until {
                write!(said, "reserved until {}, ", clock(until)).unwrap();
            }
        } else {
            said.push_str("free, ");
        }
        said + &format!("next {}", clock(self.table.next()))
    }
}

/// `X S P2`: the list; the decision of each, in order.
struct QueueScenario;

impl Scenario for QueueScenario {
    fn line(&mut self, input: &str) -> String {
        let contenders: Vec<_> = input
            .split_whitespace()
            .map(|word| Contender {
                mode: match word.split_at(1) {
                    ("X", "") => Mode::Exclusive,
                    ("S", "") => Mode::Shared,
                    ("P", limit) => permit(limit),
                    _ => panic!("what is {word}?"),
                },
            })
            .collect();
        let turns = (0..contenders.len()).map(|me| match decide(&contenders, me) {
            Turn::Held => "held".to_owned(),
            Turn::WatchOne(index) => format!("watch {index}"),
            Turn::WatchAll(range) => format!("watch {}-{}", range.start, range.end - 1),
        });
        turns.collect::<Vec<_>>().join(", ")
    }
}

struct QuorumScenario {
    tally: Tally,
}

impl Default for QuorumScenario {
    fn default() -> Self {
        Self {
            tally: Tally::new(0),
        }
    }
}

impl Scenario for QuorumScenario {
    fn line(&mut self, input: &str) -> String {
        let words = Words::of(input);
        if let Some(nodes) = words.after("nodes:") {
            self.tally = Tally::new(nodes.parse().unwrap());
        } else if words.has("release") {
            return format!("{:?}", self.tally.to_release());
        } else if let Some(ttl) = words.after("ttl") {
            let ttl = duration(ttl);
            let left = validity(
                ttl,
                duration(words.after("elapsed").unwrap()),
                lease::margin(ttl, Duration::ZERO),
            );
            return left.map_or("nothing left".to_owned(), |left| format!("{left:?}"));
        } else if words.has("proposals") {
            let proposals = words.0.iter().filter_map(|word| word.parse().ok());
            return token(proposals).map_or("none".to_owned(), |token| token.to_string());
        }
        for (word, vote) in [
            ("yes", Tally::yes as fn(&mut Tally, usize) -> Verdict),
            ("no", Tally::no),
            ("unknown", Tally::unknown),
        ] {
            if let Some(node) = words.after(word) {
                let said = vote(&mut self.tally, node.parse().unwrap());
                assert_eq!(said, self.tally.verdict());
            }
        }
        match self.tally.verdict() {
            Verdict::Pending => "pending",
            Verdict::Won => "won",
            Verdict::Lost => "lost",
        }
        .to_owned()
    }
}

struct PaceScenario;

impl Scenario for PaceScenario {
    fn line(&mut self, input: &str) -> String {
        let words = Words::of(input);
        let pause = pace::next(
            words.after("try").unwrap().parse().unwrap(),
            random(words.after("random").unwrap()),
            words.after("hint").map(duration),
            words.after("left").map(duration),
        );
        pause.map_or("give up".to_owned(), |pause| format!("{pause:?}"))
    }
}

struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        Self(
            line.split([' ', ','])
                .filter(|word| !word.is_empty())
                .collect(),
        )
    }

    fn has(&self, word: &str) -> bool {
        self.0.contains(&word)
    }

    /// The word that follows `word`.
    fn after(&self, word: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|candidate| *candidate == word)?;
        self.0.get(at + 1).copied()
    }
}

fn permit(limit: &str) -> Mode {
    Mode::Permits {
        limit: NonZeroU32::new(limit.parse().unwrap()).unwrap(),
    }
}

fn letter(who: crate::fence::OwnerId) -> char {
    char::from(who.as_bytes()[0])
}

/// `0%` is the smallest random number, `100%` the greatest.
fn random(share: &str) -> u32 {
    let share: u64 = share.strip_suffix('%').unwrap().parse().unwrap();
    u32::try_from(u64::from(u32::MAX) * share / 100).unwrap()
}

fn duration(text: &str) -> Duration {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap();
    let (number, unit) = text.split_at(unit);
    let nanos = match unit {
        "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        other => panic!("what is {other}?"),
    };
    let number: f64 = number.parse().unwrap();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    Duration::from_nanos((number * nanos).round() as u64)
}

fn time(text: &str) -> Time {
    Time::ZERO.after(duration(text))
}

fn clock(time: Time) -> String {
    if time == Time::MAX {
        "never".to_owned()
    } else {
        format!("{:?}", time.since(Time::ZERO))
    }
}
