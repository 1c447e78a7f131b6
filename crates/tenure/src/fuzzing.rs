//! Fuzz targets: each function decodes arbitrary bytes, and panics when a promise is broken.
//!
//! Not part of the API. `fuzz/` calls these without a time limit, `tests/corpus.rs` some thousand times.

#![allow(clippy::panic, reason = "a panic is the report")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use tenure_core::Receipt;
use tenure_core::fence::OwnerId;
use tenure_core::logic::lease::{HoldState, Lease, Terms, Tick};
use tenure_core::logic::queue::{self, Contender, Turn};
use tenure_core::logic::table::{LockRequest, Table, Verdict, View};
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

/// A URL is parsed, or refused in one line, and no text contains its password.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _ = parse_duration(text);
    let said = match Url::parse(text, 1) {
        Ok(url) => {
            if let Some(password) = &url.password {
                // A short password may be a part of another word.
                let password = password.reveal();
                let elsewhere = text.matches(password).count() != 1;
                assert!(
                    password.len() < 8 || elsewhere || !format!("{url:?}").contains(password),
                    "a password is shown"
                );
            }
            url.hosts.iter().map(ToString::to_string).collect()
        }
        Err(err) => format!("{err:#}"),
    };
    assert!(
        !said.contains(char::is_control),
        "it breaks a line: {said:?}"
    );
    if let Err(err) = database::Server::parse(text) {
        let said = format!("{err:#}");
        assert!(
            !said.contains(char::is_control),
            "it breaks a line: {said:?}"
        );
    }
}

/// In every store, a name that was encoded is decoded to the same name, and no other text is taken for a name.
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

/// A receipt that is read is written as it was, shows its owner to no log, and has no login; each other text is refused in one
/// line without a word of it.
pub fn receipt(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let receipt: Receipt = match text.parse() {
        Ok(receipt) => receipt,
        Err(err) => {
            let said = format!("{err:#}");
            assert!(
                !said.contains(char::is_control) && said.len() < 200,
                "it repeats what it was given: {said:?}"
            );
            return;
        }
    };
    let written = receipt.to_string();
    assert_eq!(written, text.trim(), "it is written in another way");
    assert_eq!(written.parse::<Receipt>().ok(), Some(receipt.clone()));
    let shorter = receipt.clone().with_ttl(Duration::from_secs(1));
    assert_eq!(shorter.to_string().parse::<Receipt>().ok(), Some(shorter));
    let hosts = receipt.store().split_once("://").map(|(_, hosts)| hosts);
    let has_login = hosts.is_some_and(|hosts| !hosts.starts_with('/') && hosts.contains('@'));
    assert!(!has_login, "it has a login: {:?}", receipt.store());
    let shown = format!("{receipt:?}");
    for owner in written.split("&owner=").skip(1) {
        let owner = owner.get(..32).expect("an owner has 32 digits");
        // A name may have the same digits.
        let elsewhere = text.matches(owner).count() != 1;
        assert!(elsewhere || !shown.contains(owner), "an owner is shown");
    }
}

/// A file that was torn, cut or made by another program leads to no token that was granted before.
pub fn record(data: &[u8]) {
    file::fuzz_record(data);
}

/// Bytes, one after the other, and zeros when there are none left.
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

    fn lock_request(&mut self, op: u8, name: &LockName, owner: OwnerId) -> LockRequest {
        LockRequest {
            name: name.clone(),
            owner,
            mode: self.mode(),
            ttl: (op & 8 == 0).then(|| self.millis()),
            wait: op & 16 == 0,
            barge: op & 32 != 0,
            min_hold: Duration::ZERO,
            lock_delay: match op & 64 {
                0 => Duration::ZERO,
                _ => self.millis(),
            },
            waiter_ttl: (op & 96 == 96).then(|| self.millis()),
            propose: None,
        }
    }
}

/// The decisions, in any order at any time.
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
    let names = ["a", "b"].map(|name| LockName::new(name).expect("it is a name"));
    let (mut table, mut now) = (Table::new(), Time::ZERO);
    let mut tokens = Tokens::default();
    while !bytes.is_empty() {
        let op = bytes.next();
        let at = usize::from(op >> 7);
        let name = &names[at];
        let owner = OwnerId::from_bytes([bytes.next() % 8; 16]);
        let mut granted = None;
        match op % 8 {
            0..=2 => {
                let request = bytes.lock_request(op, name, owner);
                if let Verdict::Granted { token } = table.acquire(&request, now) {
                    granted = Some(token);
                }
            }
            3 => {
                table.release(name, owner, op & 8 != 0, now);
                tokens.known.remove(&(at, owner));
            }
            4 => {
                let ttl = bytes.millis();
                table.renew(name, owner, Some(ttl), now);
            }
            5 => {
                table.break_hold(name, tokens.last[at], now);
            }
            6 => drop(table.touch(name, owner, now)),
            _ => {
                now = now.after(bytes.millis());
                table.tick(now);
            }
        }
        table.granted(&mut Vec::new());
        for (at, name) in names.iter().enumerate() {
            tokens.check(at, table.view(name).as_ref(), now);
        }
        if let Some(token) = granted {
            let known = tokens.known.get(&(at, owner));
            let is_known = known.is_none_or(|known| *known == token);
            assert!(is_known, "the token that was told is another one");
        }
    }
}

/// The tokens of two names: that of each hold, and the last one of each name.
#[derive(Default)]
struct Tokens {
    known: BTreeMap<(usize, OwnerId), u64>,
    last: [u64; 2],
}

impl Tokens {
    /// Compares the holds of a name with what is known: each new hold must have a greater token than all before.
    fn check(&mut self, at: usize, view: Option<&View>, now: Time) {
        let Some(view) = view else {
            self.known.retain(|(of, _), _| *of != at);
            return;
        };
        assert_is_sound(view, now);
        self.known.retain(|(of, owner), _| {
            *of != at || view.holds.iter().any(|hold| hold.owner == *owner)
        });
        for hold in &view.holds {
            let known = self.known.insert((at, hold.owner), hold.token);
            if known != Some(hold.token) {
                let last = &mut self.last[at];
                assert!(hold.token > *last, "a token was given twice: {view:?}");
                *last = hold.token;
            }
        }
    }
}

/// Which modes may be held at the same time.
fn assert_is_sound(view: &View, now: Time) {
    let count = |wanted: fn(&Mode) -> bool| view.holds.iter().filter(|it| wanted(&it.mode)).count();
    let exclusive = count(|mode| *mode == Mode::Exclusive);
    assert!(exclusive == 0 || view.holds.len() == 1, "{view:?}");
    let permits = count(|mode| matches!(mode, Mode::Permits { .. }));
    for hold in &view.holds {
        if let Mode::Permits { limit } = hold.mode {
            // Each of them was within its own limit when it came.
            let most = usize::try_from(limit.get()).unwrap_or(usize::MAX).max(2);
            assert!(permits <= most, "{view:?}");
        }
        let waits = view.waiters.iter().any(|(owner, _)| *owner == hold.owner);
        assert!(!waits, "it holds and waits: {view:?} at {now:?}");
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
        let lost = matches!(lease.state(now), HoldState::Lost(_));
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
            Turn::WatchOne(other) => assert!(other < me, "it waits for one behind it"),
            Turn::WatchAll(others) => assert!(!others.is_empty() && others.end <= me),
            Turn::Held if contender.mode == Mode::Exclusive => {
                assert_eq!(me, 0, "it holds beside others");
            }
            Turn::Held => {
                let exclusive = |other: &Contender| other.mode == Mode::Exclusive;
                assert!(!all[..me].iter().any(exclusive), "it holds beside others");
            }
        }
    }
}
