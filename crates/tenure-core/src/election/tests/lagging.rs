//! A store whose answers lag behind at times.

use std::collections::VecDeque;

use crate::guarantees::Guarantees;
use crate::holder::{HoldInfo, Holder, LockStatus, PublishedValue};
use crate::leader::Sighting;
use crate::name::LockName;
use crate::options::Mode;
use crate::rt::Clock;
use crate::store::{
    self, Answer, BoxFuture, DEFAULT_POLL_INTERVAL, Elections, Hold, Listed, Release, Renewal,
    Request,
};

use super::*;

/// A store that does not push, and answers who leads from a list, with the last answer again and again.
struct Scripted {
    store: Arc<Store>,
    answers: Mutex<VecDeque<u64>>,
}

impl store::Store for Scripted {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        self.store.clone().acquire(request)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.store.clone().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.store.clone().release(hold)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.store.clone().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.store.clone().list(prefix)
    }

    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        Some(self)
    }
}

impl Elections for Scripted {
    fn publish(self: Arc<Self>, _: Hold, _: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(true)))
    }

    fn leader(self: Arc<Self>, _: LockName) -> BoxFuture<Result<Sighting, Error>> {
        let mut answers = lock(&self.answers);
        let token = match answers.len() {
            1 => answers.front().copied(),
            _ => answers.pop_front(),
        };
        Box::pin(std::future::ready(Ok(leader(token.unwrap()))))
    }

    fn ask_to_release(self: Arc<Self>, _: LockName, _: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(std::future::ready(Ok(true)))
    }
}

fn leader(token: u64) -> Sighting {
    let holder = Holder {
        value: Some(PublishedValue::new("v", 0)),
        ..Holder::new("h", 1)
    };
    Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, Some(token), None))
}

/// What an observer sees of a store that answers with leaders of these tokens, one for each read.
async fn seen(answers: &[u64]) -> Vec<String> {
    let case = Case::new();
    let client = Client::from_store(Scripted {
        store: Arc::new(case.0.clone()),
        answers: Mutex::new(answers.iter().copied().collect()),
    });
    let mut observer = client.unwrap().election("e").observe();
    let seen = Arc::<Mutex<Vec<String>>>::default();
    let list = seen.clone();
    let observing = tokio::spawn(async move {
        while let Some(item) = observer.next().await {
            lock(&list).push(text_of(item));
        }
        lock(&list).push("end".into());
    });
    let reads = u32::try_from(answers.len()).unwrap();
    case.0.run_for(DEFAULT_POLL_INTERVAL * reads).await;
    observing.abort();
    std::mem::take(&mut *lock(&seen))
}

#[tokio::test]
async fn three_older_reads_in_a_row_mean_that_the_store_has_lost_its_tokens() {
    let seen = seen(&[9, 3, 3, 3]).await;
    assert_eq!(seen, ["9 v", "Store", "end"]);
}

#[tokio::test]
async fn older_reads_with_newer_ones_between_them_are_a_server_that_lags_behind() {
    let seen = seen(&[5, 4, 6, 5, 7, 6, 7, 6, 8]).await;
    assert_eq!(seen, ["5 v", "6 v", "7 v", "8 v"]);
}
