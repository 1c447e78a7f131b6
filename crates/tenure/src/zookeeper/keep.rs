//! What is held: kept alive in few requests, and ended when nobody keeps it alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use zookeeper_client::{Error as Said, MultiWriteError, SessionState};

use tenure_core::backend::{Hold, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::lost::LostReason;
use tenure_core::rt::{NextWakeup, lock};
use tenure_core::time::Time;

use super::contact::Lease;
use super::hold::{Kept, Store};
use super::outcome::Failed;
use super::session::Session;

/// Bytes of paths in one request; a server takes 1 MiB (`jute.maxbuffer`).
const BATCH: usize = 256 * 1024;

/// A hold's place in a list, and the path of its node.
type Numbered = (usize, Arc<str>);

impl Store {
    /// From now on the node is renewed, and watched over. The lease that is granted.
    pub(super) fn keep(self: &Arc<Self>, request: &Request, lease: Lease) -> Duration {
        let ttl = lease.length().min(request.ttl);
        let until = lease.sent.after(ttl);
        if let Some(kept) = lock(&self.holds).get_mut(&request.owner) {
            kept.until = Some(until);
        }
        if self.expiry.claim_start() {
            let (store, wakeup) = (Arc::downgrade(self), self.expiry.clone());
            self.spawner.spawn(expire(store, wakeup));
        }
        self.expiry.due_at(until);
        ttl
    }

    fn prolong(&self, hold: &Hold, lease: Lease) -> Renewal {
        let (sent, ttl) = (lease.sent, lease.length().min(hold.ttl));
        if let Some(kept) = lock(&self.holds).get_mut(&hold.owner) {
            kept.until = kept.until.max(Some(sent.after(ttl)));
        }
        let ttl = Some(ttl);
        Renewal::Renewed { sent, ttl }
    }

    /// Holds whose lease is over, and when the next one is.
    fn expired(&self, now: Time) -> (Vec<(OwnerId, Kept)>, Time) {
        let (mut gone, mut next) = (Vec::new(), Time::MAX);
        for (owner, kept) in lock(&self.holds).iter_mut() {
            match kept.until {
                Some(until) if until <= now => {
                    kept.until = None;
                    gone.push((*owner, kept.clone()));
                }
                Some(until) => next = next.min(until),
                None => {}
            }
        }
        (gone, next)
    }

    /// Deletes it until it is gone, or its session is.
    async fn delete_expired(self: Arc<Self>, owner: OwnerId, kept: Kept) {
        for attempt in 0_u32.. {
            let is_over = kept.session.ended.is_raised() || self.closing.is_raised();
            if is_over || self.delete(&kept.session, &kept).await.is_ok() {
                break;
            }
            // Released by its owner meanwhile.
            if self.kept(owner).is_none() {
                return;
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(self.clock.now().after(pause)).await;
        }
        if let Some(kept) = lock(&self.holds).get_mut(&owner) {
            kept.is_unclear = false;
        }
    }

    /// Asks the servers, and a majority of them, whether these are there; in one request for many.
    pub(super) async fn renew(&self, holds: &[Hold]) -> Vec<Renewal> {
        let mut answers: Vec<_> = (0..holds.len()).map(|_| None).collect();
        let mut groups: Vec<(Arc<Session>, Vec<Numbered>)> = Vec::new();
        for (at, hold) in holds.iter().enumerate() {
            let kept = self.kept(hold.owner);
            let path = kept.as_ref().and_then(|kept| kept.path.clone());
            let Some((kept, path)) = kept.zip(path) else {
                answers[at] = Some(Renewal::Lost(LostReason::StoreSaysNo));
                continue;
            };
            if kept.session.ended.is_raised() {
                answers[at] = Some(Renewal::Lost(LostReason::SessionGone));
                continue;
            }
            let known = groups
                .iter_mut()
                .find(|(session, _)| Arc::ptr_eq(session, &kept.session));
            match known {
                Some((_, paths)) => paths.push((at, path)),
                None => groups.push((kept.session, vec![(at, path)])),
            }
        }
        for (session, paths) in groups {
            let mut rest = &paths[..];
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = rest.iter().take_while(|(_, path)| {
                    bytes += path.len() + 32;
                    bytes <= BATCH
                });
                let (batch, later) = rest.split_at(fits.count().max(1));
                rest = later;
                for (at, answer) in self.renew_batch(&session, batch).await {
                    answers[at] = Some(match answer {
                        Ok(lease) => self.prolong(&holds[at], lease),
                        Err(no) => no,
                    });
                }
            }
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.expect("each hold is in a batch or has its answer"))
            .collect()
    }

    async fn renew_batch(
        &self,
        session: &Arc<Session>,
        batch: &[Numbered],
    ) -> Vec<(usize, Result<Lease, Renewal>)> {
        let mut there: Vec<_> = batch.iter().collect();
        let mut answers = Vec::with_capacity(batch.len());
        // Some may go away between two questions; then the driver asks again.
        for _ in 0..3 {
            let paths: Vec<_> = there.iter().map(|(_, path)| &**path).collect();
            let failed = match self.confirm(session, &paths).await {
                Ok(lease) => {
                    answers.extend(there.iter().map(|(at, _)| (*at, Ok(lease))));
                    return answers;
                }
                Err(failed) => failed,
            };
            if failed.is_session_over() {
                let gone = |at| (at, Err(Renewal::Lost(LostReason::SessionGone)));
                answers.extend(there.iter().map(|(at, _)| gone(*at)));
                return answers;
            }
            if !failed.is(&Said::NoNode) {
                let unknown = |at| (at, Err(Renewal::Unknown(self.explain(failed.clone()))));
                answers.extend(there.iter().map(|(at, _)| unknown(*at)));
                return answers;
            }
            // One of them is gone, and the answer names only that one. All are asked for at once.
            let asked: Vec<_> = there
                .iter()
                .map(|(_, path)| session.client.check_stat(path))
                .collect();
            let mut left = Vec::with_capacity(there.len());
            for (one, stat) in there.into_iter().zip(asked) {
                match self.ask(stat).await {
                    Ok(None) => answers.push((one.0, Err(Renewal::Lost(LostReason::StoreSaysNo)))),
                    _ => left.push(one),
                }
            }
            there = left;
            if there.is_empty() {
                return answers;
            }
        }
        let err = || {
            let what = "holds went away while they were renewed";
            Error::new(ErrorKind::Indeterminate, what)
        };
        let unknown = |at| (at, Err(Renewal::Unknown(err())));
        answers.extend(there.iter().map(|(at, _)| unknown(*at)));
        answers
    }

    /// Asks whether all of these are there. A write that changes nothing, so that a majority has to agree.
    pub(super) async fn confirm(&self, session: &Session, paths: &[&str]) -> Result<Lease, Failed> {
        let lease = self.begin_lease(session);
        let mut writer = session.client.new_multi_writer();
        for path in paths {
            writer.add_check_version(path, -1).map_err(Failed::Said)?;
        }
        let asked = async {
            let answer = writer.commit().await;
            answer.map(drop).map_err(|err| match err {
                MultiWriteError::RequestFailed { source }
                | MultiWriteError::OperationFailed { source, .. } => source,
            })
        };
        self.ask(asked).await?;
        session.confirm(lease);
        Ok(lease)
    }

    /// Asks whether all holds of a session are there, when its connection was broken.
    pub(super) async fn verify(&self, session: &Arc<Session>) {
        let all: Vec<_> = {
            let holds = lock(&self.holds);
            let ours = holds
                .iter()
                .filter(|(_, kept)| kept.until.is_some() && Arc::ptr_eq(&kept.session, session));
            let path = |kept: &Kept| kept.path.clone();
            ours.filter_map(|(owner, kept)| Some((*owner, path(kept)?)))
                .collect()
        };
        let alarm = lock(&self.alarm).clone();
        for (owner, path) in all {
            if let Ok(None) = self.ask(session.client.check_stat(&path)).await
                && let Some(alarm) = &alarm
            {
                alarm.lost(owner, LostReason::StoreSaysNo);
            }
        }
    }

    /// The library says that a session is over.
    pub(super) fn session_ended(&self, session: &Arc<Session>, state: SessionState) {
        let gone: Vec<_> = {
            let holds = lock(&self.holds);
            holds
                .iter()
                .filter(|(_, kept)| kept.until.is_some() && Arc::ptr_eq(&kept.session, session))
                .map(|(owner, _)| *owner)
                .collect()
        };
        if state != SessionState::Closed || !gone.is_empty() {
            tracing::warn!(%state, holds = gone.len(), "a session with the servers ended");
        }
        let alarm = lock(&self.alarm).clone();
        for owner in gone {
            if let Some(alarm) = &alarm {
                alarm.lost(owner, LostReason::SessionGone);
            }
        }
    }
}

/// Deletes the nodes of leases that ran out, because nobody renews them any more: their session goes on.
async fn expire(store: Weak<Store>, wakeup: Arc<NextWakeup>) {
    loop {
        let (clock, next) = {
            let Some(store) = store.upgrade() else {
                return;
            };
            if store.closing.is_raised() {
                return;
            }
            let (planned, now) = (wakeup.begin(), store.clock.now());
            let (gone, next) = store.expired(now);
            for (owner, kept) in gone {
                let deleter = store.clone();
                store
                    .spawner
                    .spawn(async move { deleter.delete_expired(owner, kept).await });
            }
            (
                store.clock.clone(),
                wakeup.plan(pace::look(planned, next, now)),
            )
        };
        wakeup.sleep(&clock, next).await;
    }
}
