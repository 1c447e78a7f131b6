//! Functions for fuzzing: each one interprets arbitrary bytes, and panics when a promise is broken.
//!
//! Not part of the API. The fuzzers in `fuzz/` call these functions, and so does `tests/corpus.rs` with a stored corpus.

#![allow(clippy::panic, reason = "a panic is the report")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::logic::lease::{Lease, State, Terms, Tick};
use tenure_core::logic::queue::{self, Contender, Turn};
use tenure_core::logic::table::{Ask, Table, Verdict, View};
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::{Mode, Renew};
use tenure_core::time::{Time, parse_duration};
use tenure_core::url::Url;

use crate::database;
use crate::etcd;
use crate::file;
use crate::redis;
use crate::tables;
use crate::zookeeper;

/// A URL is parsed or refused in one line, and no password is shown.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = parse_duration(text);
    let text_shown = match Url::parse(text, 1) {
        Ok(url) => {
            if let Some(password) = &url.password {
                // A short password may also be a part of another word.
                let password = password.reveal();
                let elsewhere = text.matches(password).count() != 1;
                assert!(
                    password.len() < 8 || elsewhere || !format!("{url:?}").contains(password),
                    "a password is shown"
                );
            }
            url.hosts.iter().map(ToString::to_string).collect()
        }
        Err(err) => err.to_string(),
    };
    assert!(
        !text_shown.contains(char::is_control),
        "a line break: {text_shown:?}"
    );
    if let Err(err) = database::Server::parse(text) {
        let text_shown = err.to_string();
        assert!(
            !text_shown.contains(char::is_control),
            "a line break: {text_shown:?}"
        );
    }
}

/// Every store writes a name and reads the same name again, and reads no name from a key that it did not write.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for fuzz in [
        etcd::fuzz_names,
        file::fuzz_names,
        redis::fuzz_names,
        tables::fuzz_names,
        zookeeper::fuzz_names,
    ] {
        fuzz(text);
    }
}

/// A lock file that was torn, cut or written by another program leads to no token that was granted before.
pub fn record(data: &[u8]) {
    file::fuzz_record(data);
}

/// The bytes one after the other, then zeros.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    fn millis(&mut self) -> Duration {
        Duration::from_millis(u64::from(self.next()) * 4)
    }

    fn mode(&mut self) -> Mode {
        match self.next() % 6 {
            0 => Mode::Shared,
            limit @ 1..=2 => Mode::Permits {
                limit: NonZeroU32::new(limit.into()).unwrap_or(NonZeroU32::MIN),
            },
            _ => Mode::Exclusive,
        }
    }
}

/// The decisions of `logic`, in any order at any time.
pub fn logic(data: &[u8]) {
    let Some((which, rest)) = data.split_first() else {
        return;
    };
    let bytes = Bytes(rest.iter());
    match which % 3 {
        0 => with_a_table(bytes),
        1 => with_a_lease(bytes),
        _ => with_a_queue(bytes),
    }
}

fn with_a_table(mut bytes: Bytes<'_>) {
    let mut case = TableCase::new();
    while !bytes.is_empty() {
        let granted = case.operate(&mut bytes);
        case.check(granted);
    }
}

/// A lock table with two names, and what it has granted.
struct TableCase {
    names: [LockName; 2],
    table: Table,
    now: Time,
    /// The token of each hold, by the index of its name and its owner.
    tokens: BTreeMap<(usize, OwnerId), u64>,
    /// The greatest token of each name.
    last: [u64; 2],
}

/// The answer to an acquisition: index of the name, owner and token.
type Granted = (usize, OwnerId, u64);

impl TableCase {
    fn new() -> Self {
        Self {
            names: ["a", "b"].map(|name| LockName::new(name).expect("it is a name")),
            table: Table::new(),
            now: Time::ZERO,
            tokens: BTreeMap::new(),
            last: [0; 2],
        }
    }

    /// One operation. The first byte selects the operation, and its upper bits select options.
    fn operate(&mut self, bytes: &mut Bytes<'_>) -> Option<Granted> {
        let op = bytes.next();
        let at = usize::from(op >> 7);
        let (name, now) = (&self.names[at], self.now);
        let owner = OwnerId::from_bytes([bytes.next() % 8; 16]);
        match op % 8 {
            0..=2 => {
                let ask = Ask {
                    name: name.clone(),
                    owner,
                    mode: bytes.mode(),
                    ttl: (op & 8 == 0).then(|| bytes.millis()),
                    wait: op & 16 == 0,
                    barge: op & 32 != 0,
                    min_hold: Duration::ZERO,
                    lock_delay: match op & 64 {
                        0 => Duration::ZERO,
                        _ => bytes.millis(),
                    },
                    waiter_ttl: (op & 96 == 96).then(|| bytes.millis()),
                    propose: None,
                };
                if let Verdict::Granted { token } = self.table.acquire(&ask, now) {
                    return Some((at, owner, token));
                }
            }
            3 => {
                self.table.release(name, owner, op & 8 != 0, now);
                self.tokens.remove(&(at, owner));
            }
            4 => {
                let ttl = bytes.millis();
                self.table.renew(name, owner, Some(ttl), now);
            }
            5 => {
                self.table.break_hold(name, self.last[at], now);
            }
            6 => drop(self.table.touch(name, owner, now)),
            _ => {
                self.now = now.after(bytes.millis());
                self.table.tick(self.now);
            }
        }
        None
    }

    /// Every hold excludes what it has to exclude, and has a token of its own that grows.
    fn check(&mut self, granted: Option<Granted>) {
        // Later grants are found by the holds that the table shows.
        self.table.granted(&mut Vec::new());
        for (at, name) in self.names.iter().enumerate() {
            let Some(view) = self.table.view(name) else {
                self.tokens.retain(|(of, _), _| *of != at);
                continue;
            };
            assert_is_sound(&view, self.now);
            self.tokens.retain(|(of, owner), _| {
                *of != at || view.holds.iter().any(|hold| hold.owner == *owner)
            });
            for hold in &view.holds {
                let known = self.tokens.insert((at, hold.owner), hold.token);
                if known != Some(hold.token) {
                    let is_new = hold.token > self.last[at];
                    assert!(is_new, "a token was given twice: {view:?}");
                    self.last[at] = hold.token;
                }
            }
        }
        if let Some((at, owner, token)) = granted {
            let known = self.tokens.get(&(at, owner));
            let is_same = known.is_none_or(|known| *known == token);
            assert!(is_same, "the hold has another token than the answer");
        }
    }
}

/// Whether the holds of a name may exist together.
fn assert_is_sound(view: &View, now: Time) {
    let count = |wanted: fn(&Mode) -> bool| view.holds.iter().filter(|it| wanted(&it.mode)).count();
    let exclusive = count(|mode| *mode == Mode::Exclusive);
    assert!(exclusive == 0 || view.holds.len() == 1, "{view:?}");
    let permits = count(|mode| matches!(mode, Mode::Permits { .. }));
    for hold in &view.holds {
        if let Mode::Permits { limit } = hold.mode {
            // Each permit was within its own limit when it was granted.
            let most = usize::try_from(limit.get()).unwrap_or(usize::MAX).max(2);
            assert!(permits <= most, "{view:?}");
        }
        let waits = view.waiters.iter().any(|(owner, _)| *owner == hold.owner);
        assert!(!waits, "an owner holds and waits: {view:?} at {now:?}");
    }
}

fn with_a_lease(mut bytes: Bytes<'_>) {
    let ttl = bytes.millis() + Duration::from_millis(1);
    let flags = bytes.next();
    let terms = Terms {
        ttl,
        drift: Duration::from_millis((flags % 4).into()),
        renew: match flags & 4 {
            0 => Renew::Automatic,
            _ => Renew::Never,
        },
        max_hold: (flags & 8 != 0).then(|| bytes.millis()),
    };
    let mut now = Time::ZERO.after(bytes.millis());
    let mut sent = now;
    let mut lease = Lease::granted(terms, sent, Some(ttl));
    let mut is_lost = false;
    while !bytes.is_empty() {
        let deadline = lease.deadline();
        let op = bytes.next();
        let mut is_renewed = false;
        match op % 5 {
            0 | 1 => now = now.after(bytes.millis()),
            2 => {
                if lease.tick(now) == Tick::Renew {
                    sent = now;
                }
            }
            3 => {
                lease.renewed(sent, Some(ttl), now);
                is_renewed = true;
            }
            _ if op & 128 != 0 && op & 64 != 0 => lease.refused(LostReason::Expired),
            _ => lease.unanswered(now, u32::from(op) << 24),
        }
        assert!(
            is_renewed || lease.deadline() <= deadline,
            "the deadline moved without an answer"
        );
        assert!(
            lease.deadline() <= sent.after(ttl) || lease.deadline() <= deadline,
            "the deadline is later than the store's"
        );
        let lost = matches!(lease.state(now), State::Lost(_));
        assert!(lost || now < lease.deadline(), "held past the deadline");
        assert!(!is_lost || lost, "what was lost is held again");
        is_lost = lost;
    }
}

fn with_a_queue(mut bytes: Bytes<'_>) {
    let mut all = Vec::new();
    while !bytes.is_empty() && all.len() < 64 {
        all.push(Contender { mode: bytes.mode() });
    }
    let turn = |me| queue::decide(&all, me);
    for (me, contender) in all.iter().enumerate() {
        match turn(me) {
            Turn::WatchOne(other) => assert!(other < me, "a contender waits for a later one"),
            Turn::WatchAll(others) => assert!(!others.is_empty() && others.end <= me),
            Turn::Held if contender.mode == Mode::Exclusive => {
                assert_eq!(me, 0, "an exclusive holder is not alone");
            }
            Turn::Held => {
                let exclusive = |other: &Contender| other.mode == Mode::Exclusive;
                assert!(
                    !all[..me].iter().any(exclusive),
                    "an exclusive holder is not alone"
                );
            }
        }
    }
}
