//! The waiter's side: a statement that ends when it is our turn, on a session that does nothing else meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::backend::{Answer, Grant, Request};
use tenure_core::error::Error;
use tenure_core::logic::pace;
use tenure_core::rt::lock;
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

use super::dialect::Ask;
use super::hold::{Attempt, Store, Wanted};
use super::job::{self, Failure};
use super::link::{Link, Waited};
use super::outcome;

/// How often it is seen to that a waiting session is there: nobody says so when it is not.
const TRUST: Duration = Duration::from_secs(10);

type Waiting = Pin<Box<dyn Future<Output = Waited> + Send>>;

impl Store {
    /// Waits for the turn, in the server's queue. [`Attempt::Busy`]: try again.
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wanted: &Wanted,
        tries: u32,
        patience: &mut Time,
    ) -> Result<Attempt, Error> {
        let found = self.unless_over(request, self.for_waiting(request, wanted));
        let Some(found) = found.await else {
            return Ok(Attempt::Answer(Answer::Busy));
        };
        let Some(link) = found? else {
            // There are as many sessions as there may be; so we look again and again.
            self.pause(request, tries).await;
            return Ok(Attempt::Busy);
        };
        match self.trusted_from(request, &link) {
            Ok(None) => {}
            not_yet => {
                self.leave(request, &link);
                return not_yet.map(|from| from.map_or(Attempt::Busy, Attempt::NotYet));
            }
        }
        self.board.settled(&self.clock, &link, &wanted.key).await;
        let who = described(request);
        let (key, is_shared) = (wanted.key.clone(), wanted.is_shared);
        let mut waiting: Waiting = Box::pin(link.clone().wait(request.owner, key, is_shared, who));
        let waited = loop {
            tokio::select! {
                biased;
                waited = &mut waiting => break waited,
                () = request.stop.raised() => return self.call_off(request, wanted, &link, waiting).await,
                () = self.closing.raised() => return self.call_off(request, wanted, &link, waiting).await,
                is_there = self.is_there_later(&link) => match is_there {
                    Ok(true) => *patience = self.clock.now().after(request.ttl),
                    Ok(false) => link.end(),
                    Err(err) if self.clock.now() < *patience => {
                        tracing::debug!(name = %request.name, %err, "while waiting");
                    }
                    Err(err) => {
                        link.end();
                        return Err(outcome::silence(err));
                    }
                },
            }
        };
        match waited {
            Waited::Granted(token) => self.confirm(request, &link, token).await,
            Waited::CalledOff => {
                // By an administrator, or by a limit of the server: our place is lost, not our wish.
                self.leave_clean(request, wanted, &link).await;
                tracing::debug!(name = %request.name, backend = self.guarantees.backend, "the wait was called off by the server; queueing again at the end");
                self.pause(request, tries).await;
                Ok(Attempt::Busy)
            }
            Waited::Refused(trouble) => {
                self.leave(request, &link);
                Err(outcome::explain(trouble, &self.settings.server))
            }
            Waited::Gone(trouble) => {
                self.after_the_end(request, &link, Failure::Gone(trouble))
                    .await
            }
        }
    }

    /// It is our turn. The answer may have lain here for long, if we were stopped or cut off, and the session be over
    /// by now: so the server is asked once more.
    async fn confirm(
        self: &Arc<Self>,
        request: &Arc<Request>,
        link: &Arc<Link>,
        token: u64,
    ) -> Result<Attempt, Error> {
        match link.ask(Ask::Ping, None).await {
            Ok(job::Answer {
                sent, round_trip, ..
            }) => {
                link.is_waiting.store(false, Ordering::SeqCst);
                link.granted(request.owner, token, sent.after(link.ttl));
                let grant = Grant::new(token, sent, round_trip, Some(link.ttl));
                Ok(Attempt::Answer(self.granted(request, link, grant)))
            }
            Err(Failure::Late | Failure::Refused(_) | Failure::RefusedToo) => {
                link.end();
                self.after_the_end(request, link, Failure::Late).await
            }
            Err(failure) => self.after_the_end(request, link, failure).await,
        }
    }

    /// Whether the server has that session, after a while.
    async fn is_there_later(self: &Arc<Self>, link: &Link) -> Result<bool, Error> {
        let trust = TRUST.min(link.ttl / 3).max(Duration::from_millis(100));
        let random: u32 = rand::random();
        let pause = trust * 3 / 4 + pace::fraction(trust / 4, random);
        let at = self.clock.now().after(pause);
        self.clock.sleep_until(at).await;
        let found = self.look(self.dialect.find(link.facts.session)).await?;
        Ok(!found.is_empty())
    }

    /// The wait is over without a grant, and its session free for others.
    fn leave(&self, request: &Request, link: &Link) {
        self.forget(request.owner);
        link.is_waiting.store(false, Ordering::SeqCst);
    }

    /// The same after a statement that was called off: it may have been granted a moment before, which nobody is told,
    /// and the session would keep it.
    async fn leave_clean(self: &Arc<Self>, request: &Request, wanted: &Wanted, link: &Arc<Link>) {
        let give = Ask::Give {
            key: wanted.key.clone(),
            is_shared: wanted.is_shared,
        };
        match link.ask(give, Some(request.owner)).await {
            // Whoever closes the client waits for the end of every session that waits.
            Ok(_) if !self.closing.is_raised() => self.leave(request, link),
            _ => {
                self.forget(request.owner);
                self.drop_link(link).await;
            }
        }
    }

    /// Nobody wants it any more: the server is told from another session, and what it says of the wait decides.
    async fn call_off(
        self: &Arc<Self>,
        request: &Arc<Request>,
        wanted: &Wanted,
        link: &Arc<Link>,
        mut waiting: Waiting,
    ) -> Result<Attempt, Error> {
        let busy = Ok(Attempt::Answer(Answer::Busy));
        let limit = self.clock.now().after(self.settings.server.timeout);
        let mut orders = 0_u32;
        let waited = loop {
            orders += 1;
            // A word that overtakes the statement is lost.
            let order = async {
                let cancel = self.dialect.cancel(link.facts.session);
                let told = self.order(link.facts.session, cancel).await;
                let pause = pace::next(orders + 3, rand::random(), None, None);
                let now = self.clock.now();
                self.clock
                    .sleep_until(now.after(pause.unwrap_or(pace::CAP)))
                    .await;
                told
            };
            tokio::select! {
                biased;
                waited = &mut waiting => break Some(waited),
                () = self.clock.sleep_until(limit) => break None,
                told = order => {
                    if let Err(err) = told {
                        tracing::debug!(name = %request.name, %err, "the wait cannot be called off");
                    }
                }
            }
        };
        match waited {
            // By our one word. A second may be on its way, and would hit whatever is asked next.
            Some(Waited::CalledOff) if orders == 1 && !self.closing.is_raised() => {
                self.leave_clean(request, wanted, link).await;
                busy
            }
            // Both at once: it is given back, and the session with it.
            Some(Waited::Granted(_) | Waited::CalledOff | Waited::Refused(_)) => {
                self.forget(request.owner);
                self.drop_link(link).await;
                busy
            }
            Some(Waited::Gone(_)) => self.ended(request, link, busy).await,
            None => {
                link.end();
                self.spawner.spawn(async move {
                    waiting.await;
                });
                self.ended(request, link, busy).await
            }
        }
    }

    async fn ended(
        &self,
        request: &Request,
        link: &Arc<Link>,
        then: Result<Attempt, Error>,
    ) -> Result<Attempt, Error> {
        if !self.is_buried(link).await {
            return Err(outcome::doubt(&self.settings.server));
        }
        self.forget(request.owner);
        then
    }

    /// Ends a session that holds nothing anybody wants, and waits until that is so.
    async fn drop_link(self: &Arc<Self>, link: &Arc<Link>) {
        link.end();
        self.is_buried(link).await;
    }
}

/// The holder, for those who read what a session is doing: letters that stand in a comment and end none.
fn described(request: &Request) -> String {
    let written = HolderRecord::from(&*request.holder).to_json();
    let mut text = String::with_capacity(written.len());
    for byte in written.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' | b':' | b',' | b' ' => {
                text.push(byte.into());
            }
            byte => text += &format!("%{byte:02x}"),
        }
    }
    text
}

/// What [`described`] has said, from the text of a statement.
pub(super) fn description(statement: &str) -> Option<HolderRecord> {
    let (_, rest) = statement.split_once("/* tenure:wait ")?;
    let (text, _) = rest.split_once(" */")?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            let digits = std::str::from_utf8(&digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    serde_json::from_slice(&bytes).ok()
}

/// Every session that waits, for the end of the client.
pub(super) fn waiting(store: &Store) -> Vec<Arc<Link>> {
    let links = lock(&store.links);
    let waits = |link: &&Arc<Link>| link.is_waiting.load(Ordering::SeqCst);
    links.iter().filter(waits).cloned().collect()
}
