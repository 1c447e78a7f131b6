//! What the server tells this client, and whom it is for.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use redis::{PushInfo, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use tenure_core::backend::Alarm;
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::lost::LostReason;
use tenure_core::rt::lock;
use tenure_core::time::Time;

/// What a waiter is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The lock was handed over, under this token.
    Granted(u64),
    /// Something changed: ask again.
    Look,
    /// A release of ours, sent at that time or later, has taken the place away, or the lock that came of it.
    Left(Time),
}

/// Who of this client waits for news.
#[derive(Debug)]
pub(super) struct Inbox {
    /// The client's id.
    pub(super) client: String,
    /// The client's own; in a cluster there are others beside it.
    pub(super) channel: String,
    /// Other channels that are listened to, for whom.
    others: Mutex<HashMap<String, OwnerId>>,
    waiting: Mutex<Waiting>,
    /// Acquisitions that are under way.
    busy: AtomicUsize,
    alarm: OnceLock<Alarm>,
    /// A connection broke: holds are to be checked.
    pub(super) broken: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    by_owner: HashMap<OwnerId, UnboundedSender<News>, RandomAlready>,
    /// Grants to owners that have not said yet that they wait: the message may be here before the owner
    /// has seen the answer that put it into the queue. The latest only; who misses one asks again.
    early: VecDeque<(OwnerId, News)>,
}

/// As many as may be on their way to the queue at a time.
const EARLY: usize = 256;

impl Inbox {
    pub(super) fn new() -> Self {
        let client = OwnerId::random().to_hex();
        Self {
            channel: format!("tenure:push:{client}"),
            client,
            others: Mutex::default(),
            waiting: Mutex::default(),
            busy: AtomicUsize::new(0),
            alarm: OnceLock::new(),
            broken: Notify::new(),
        }
    }

    pub(super) fn attach(&self, alarm: Alarm) {
        // Once per backend, as the door says.
        let _ = self.alarm.set(alarm);
    }

    /// News for `owner` from now on, until the receiver is dropped and [`Inbox::forget`] is called.
    pub(super) fn expect(&self, owner: OwnerId) -> UnboundedReceiver<News> {
        let (sender, receiver) = unbounded_channel();
        let mut waiting = lock(&self.waiting);
        if let Some(at) = waiting.early.iter().position(|(early, _)| *early == owner)
            && let Some((_, news)) = waiting.early.remove(at)
        {
            // The receiver is right here.
            let _ = sender.send(news);
        }
        waiting.by_owner.insert(owner, sender);
        receiver
    }

    pub(super) fn forget(&self, owner: OwnerId) {
        lock(&self.waiting).by_owner.remove(&owner);
    }

    /// What `owner` waited for was given back by the same client, with a request of `sent` or later.
    pub(super) fn left(&self, owner: OwnerId, sent: Time) {
        if let Some(waiter) = lock(&self.waiting).by_owner.get(&owner) {
            // One that is gone does not want to know.
            let _ = waiter.send(News::Left(sent));
        }
    }

    /// Whatever is said on `channel` means that `owner` is to ask again.
    pub(super) fn listen(&self, channel: &str, owner: OwnerId) {
        lock(&self.others).insert(channel.to_owned(), owner);
    }

    pub(super) fn stop_listening(&self, channel: &str) {
        lock(&self.others).remove(channel);
    }

    /// Counts an acquisition for as long as the answer lives.
    pub(super) fn enter(&self) -> impl Drop {
        struct Inside<'a>(&'a AtomicUsize);
        impl Drop for Inside<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.busy.fetch_add(1, Ordering::SeqCst);
        Inside(&self.busy)
    }

    /// Whether no acquisition is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::SeqCst) == 0
    }

    /// A hold ended that nobody of this client released.
    pub(super) fn lost(&self, owner: OwnerId, reason: LostReason) {
        if let Some(alarm) = self.alarm.get() {
            alarm.lost(owner, reason);
        }
    }

    /// A message came in. What is not understood is ignored: every request is repeated in time anyway.
    pub(super) fn deliver(&self, push: &PushInfo) {
        let [Value::BulkString(channel), Value::BulkString(payload)] = &push.data[..] else {
            return;
        };
        let (Ok(channel), Ok(payload)) =
            (std::str::from_utf8(channel), std::str::from_utf8(payload))
        else {
            return;
        };
        let listener = lock(&self.others).get(channel).copied();
        if let Some(owner) = listener {
            return self.tell(owner, News::Look);
        }
        let mut words = payload.split(' ');
        let (word, owner) = (words.next(), words.next().and_then(owner));
        let (Some(word), Some(owner)) = (word, owner) else {
            return;
        };
        let news = match (word, words.next().map(str::parse)) {
            ("granted", Some(Ok(token))) => News::Granted(token),
            ("look", None) => News::Look,
            ("lost", None) => return self.lost(owner, LostReason::TakenOver),
            _ => return,
        };
        self.tell(owner, news);
    }

    pub(super) fn tell(&self, owner: OwnerId, news: News) {
        let mut waiting = lock(&self.waiting);
        match waiting.by_owner.get(&owner) {
            // A waiter that has just left sees to its own clean-up.
            Some(waiting) => drop(waiting.send(news)),
            None => {
                if waiting.early.len() == EARLY {
                    waiting.early.pop_front();
                }
                waiting.early.push_back((owner, news));
            }
        }
    }
}

/// The owner that [`OwnerId::to_hex`] wrote.
pub(super) fn owner(hex: &str) -> Option<OwnerId> {
    let number = u128::from_str_radix(hex, 16).ok()?;
    (hex.len() == 32).then(|| OwnerId::from_bytes(number.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(payload: &str) -> PushInfo {
        PushInfo {
            kind: redis::PushKind::Message,
            data: vec![
                Value::BulkString(b"channel".to_vec()),
                Value::BulkString(payload.into()),
            ],
        }
    }

    #[test]
    fn news_reach_the_waiter_they_are_for_and_no_other() {
        let (inbox, one, two) = (Inbox::new(), OwnerId::random(), OwnerId::random());
        let (mut first, mut second) = (inbox.expect(one), inbox.expect(two));
        inbox.deliver(&push(&format!("granted {} 17", one.to_hex())));
        inbox.deliver(&push(&format!("look {}", two.to_hex())));
        for nonsense in ["", "granted", "granted 12 3", "look x", "granted - 1"] {
            inbox.deliver(&push(nonsense));
        }
        inbox.deliver(&push(&format!("granted {} x", one.to_hex())));
        assert_eq!(first.try_recv(), Ok(News::Granted(17)));
        assert!(first.try_recv().is_err());
        assert_eq!(second.try_recv(), Ok(News::Look));
        inbox.forget(one);
        inbox.forget(two);
        assert!(inbox.is_idle());
        inbox.deliver(&push(&format!("granted {} 18", one.to_hex())));
    }

    #[test]
    fn owners_are_read_as_they_are_written() {
        let id = OwnerId::from_bytes([0x0a; 16]);
        assert_eq!(owner(&id.to_hex()), Some(id));
        assert_eq!(owner("0a"), None);
        assert_eq!(owner(""), None);
    }
}
