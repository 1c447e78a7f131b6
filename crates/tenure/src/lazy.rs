//! A store that connects at its first request, for `connect_lazy`.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::guarantees::{Capability, DetachedHolds, Guarantees, Order};
use tenure_core::holder::{Holder, LockStatus};
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::{Mode, Options};
use tenure_core::rt::{Clock, Flag, Spawner, lock};
use tenure_core::store::{
    AcquireAll, Answer, BoxFuture, ChangeMode, DEFAULT_POLL_INTERVAL, Detach, Elections, Finding,
    GuardedWrite, Hold, Listed, LossNotifier, Operate, RaiseToken, Release, Renewal, Request,
    ReserveTokens, Sightings, one_sighting,
};
use tenure_core::support::{self, SingleFlight, closed};

/// Makes the store; called again after an attempt that failed.
type Connect =
    Box<dyn Fn() -> BoxFuture<Result<Arc<dyn tenure_core::store::Store>, Error>> + Send + Sync>;

/// A store that has no connection until its first request, and tries again with each request until one succeeds. From
/// then on the store itself connects again when it has to.
#[derive(Clone)]
pub(crate) struct Store(Arc<Shared>);

struct Shared {
    connect: Connect,
    store: OnceLock<Arc<dyn tenure_core::store::Store>>,
    attempts: SingleFlight<Error>,
    /// The runtime of the client: connections must not belong to the runtime of a caller.
    spawner: Spawner,
    notifier: Mutex<Option<LossNotifier>>,
    closing: Flag,
    /// What is known before the store was asked: it may be able to do everything.
    unknown: Guarantees,
}

impl Store {
    /// # Errors
    /// `Closed` outside a runtime.
    pub(crate) fn new(name: &'static str, connect: Connect) -> Result<Self, Error> {
        let mut unknown = Guarantees::new(name, Order::Fair, Vec::new());
        unknown.setting = "not connected yet".into();
        unknown.shared = true;
        unknown.upgradable = true;
        unknown.permits = true;
        unknown.min_hold = true;
        unknown.lock_delay = true;
        unknown.detached = DetachedHolds::EachMode;
        unknown.observers = "not connected yet";
        Ok(Self(Arc::new(Shared {
            connect,
            store: OnceLock::new(),
            attempts: SingleFlight::default(),
            spawner: support::spawner()?,
            notifier: Mutex::default(),
            closing: Flag::new(),
            unknown,
        })))
    }

    fn connected(&self) -> Option<Arc<dyn tenure_core::store::Store>> {
        self.0.store.get().cloned()
    }

    /// Sends a request to the store, after a connection is there.
    fn send<T: Send + 'static>(
        &self,
        request: impl FnOnce(Arc<dyn tenure_core::store::Store>) -> BoxFuture<Result<T, Error>>
        + Send
        + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        if let Some(store) = self.connected() {
            return request(store);
        }
        let shared = self.0.clone();
        Box::pin(async move {
            shared.connect().await?;
            match shared.store.get() {
                Some(store) => request(store.clone()).await,
                None => Err(closed()),
            }
        })
    }
}

impl Store {
    /// Sends a request of an election to the store, after a connection is there.
    fn elections<T: Send + 'static>(
        &self,
        request: impl FnOnce(Arc<dyn Elections>) -> BoxFuture<Result<T, Error>> + Send + 'static,
    ) -> BoxFuture<Result<T, Error>> {
        self.send(|store| match store.clone().as_elections() {
            Some(elections) => request(elections),
            None => refused(refusal(&*store, Capability::Elections, "")),
        })
    }
}

impl Shared {
    /// Makes the store unless it is there. Cancel safe: the next request makes an attempt of its own.
    async fn connect(&self) -> Result<(), Error> {
        let find = || self.store.get().map(drop);
        let attempt = async {
            let connecting = self.spawner.within((self.connect)());
            let store = tokio::select! {
                biased;
                () = self.closing.raised() => return Err(closed()),
                store = connecting => store?,
            };
            if let Some(notifier) = lock(&self.notifier).take() {
                store.attach(notifier);
            }
            // The attempts exclude each other, so nothing is there yet.
            let _ = self.store.set(store.clone());
            // Read after the store can be found: either `close` and `abandon` find the store, or this finds their flag.
            if self.closing.is_raised() {
                store.abandon();
                return Err(closed());
            }
            Ok(())
        };
        let connected = self.attempts.run(&Clock::system(), find, attempt).await;
        connected.map_err(|err| err.with_step(Step::Connect))
    }
}

/// Refuses what the store cannot do. The driver does that with what it knew before the store was connected.
fn check(store: &Arc<dyn tenure_core::store::Store>, request: &Request) -> Result<(), Error> {
    let mut options = Options::default();
    options.mode = request.mode;
    options.fair = request.fair;
    options.min_hold = request.min_hold;
    options.lock_delay = request.lock_delay;
    // Only a candidate of an election has a value.
    let is_candidate = request.holder.value.is_some();
    let lacks_elections = is_candidate && store.clone().as_elections().is_none();
    let missing = Capability::missing(&options, store.guarantees());
    match missing.or(lacks_elections.then_some(Capability::Elections)) {
        Some(missing) => Err(refusal(&**store, missing, "")),
        None => Ok(()),
    }
}

/// The part of the store that detaches holds of this mode. Refuses as the driver does once the store is connected.
fn detaches(
    store: &Arc<dyn tenure_core::store::Store>,
    mode: Mode,
) -> Result<Arc<dyn Detach>, Error> {
    let can = store.guarantees();
    match store.clone().as_detach() {
        Some(detaches) if can.detaches(mode) => Ok(detaches),
        Some(_) if can.detached == DetachedHolds::Exclusive => {
            let why = format!(" other than exclusive ones, and this is {mode}");
            Err(refusal(&**store, Capability::Detach, &why))
        }
        _ => Err(refusal(&**store, Capability::Detach, "")),
    }
}

fn refusal(store: &dyn tenure_core::store::Store, missing: Capability, why: &str) -> Error {
    let (scheme, what) = (store.guarantees().scheme, missing.as_str());
    let others = store.stores_with(missing);
    let message = format!("{scheme} has no {what}{why}; stores that have it: {others}");
    Error::new(ErrorKind::Unsupported, message)
}

fn unknown(err: Error) -> BoxFuture<Renewal> {
    Box::pin(std::future::ready(Renewal::Unknown(err)))
}

fn refused<T: Send + 'static>(err: Error) -> BoxFuture<Result<T, Error>> {
    Box::pin(std::future::ready(Err(err)))
}

impl tenure_core::store::Store for Store {
    fn guarantees(&self) -> &Guarantees {
        match self.0.store.get() {
            Some(store) => store.guarantees(),
            None => &self.0.unknown,
        }
    }

    fn stores_with(&self, capability: Capability) -> String {
        // Before the store is there, nothing is refused.
        self.connected()
            .map_or_else(String::new, |store| store.stores_with(capability))
    }

    fn attach(&self, notifier: LossNotifier) {
        *lock(&self.0.notifier) = Some(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        if let Some(store) = self.connected() {
            return store.acquire(request);
        }
        let (shared, stopped) = (self.0.clone(), request.clone());
        let acquiring = self.send(move |store| match check(&store, &request) {
            Ok(()) => store.acquire(request),
            Err(err) => refused(err),
        });
        Box::pin(async move {
            let mut acquiring = acquiring;
            tokio::select! {
                biased;
                answer = &mut acquiring => return answer,
                () = stopped.stop.raised() => {}
            }
            match shared.store.get() {
                // The store has the request, and knows that it was stopped.
                Some(_) => acquiring.await,
                None => Ok(Answer::Busy),
            }
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        match self.connected() {
            Some(store) => store.renew(holds),
            // Without a store there is no hold.
            None => {
                let unknown = holds.iter().map(|_| Renewal::Unknown(closed())).collect();
                Box::pin(std::future::ready(unknown))
            }
        }
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        match self.connected() {
            Some(store) => store.release(hold),
            // Nothing was ever sent.
            None => Box::pin(std::future::ready(Ok(Release::NotHeld))),
        }
    }

    fn answers_shared_together(&self) -> bool {
        self.connected()
            .is_some_and(|store| store.answers_shared_together())
    }

    fn ends_by_itself(&self, hold: &Hold) -> bool {
        self.connected()
            .is_none_or(|store| store.ends_by_itself(hold))
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.send(move |store| store.inspect(name))
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.send(move |store| store.list(prefix))
    }

    fn close(self: Arc<Self>) -> BoxFuture<()> {
        self.0.closing.raise();
        match self.connected() {
            Some(store) => store.close(),
            None => Box::pin(std::future::ready(())),
        }
    }

    fn abandon(&self) {
        self.0.closing.raise();
        if let Some(store) = self.0.store.get() {
            store.abandon();
        }
    }

    fn as_acquire_all(self: Arc<Self>) -> Option<Arc<dyn AcquireAll>> {
        self.connected()?.as_acquire_all()
    }

    fn as_change_mode(self: Arc<Self>) -> Option<Arc<dyn ChangeMode>> {
        self.connected()?.as_change_mode()
    }

    fn as_raise_token(self: Arc<Self>) -> Option<Arc<dyn RaiseToken>> {
        self.connected()?.as_raise_token()
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        self.connected()?.as_reserve_tokens()
    }

    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        self.connected()?.as_guarded_write()
    }

    /// Before the store is there, it may have elections.
    fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
        match self.connected() {
            Some(store) => store.as_elections(),
            None => Some(self),
        }
    }

    /// Before the store is there, it may have detached holds.
    fn as_detach(self: Arc<Self>) -> Option<Arc<dyn Detach>> {
        match self.connected() {
            Some(store) => store.as_detach(),
            None => Some(self),
        }
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        Some(self)
    }
}

/// For an observer, or a candidate, that comes before the first connection.
impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        self.elections(|store| store.publish(hold, holder))
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        self.elections(|store| store.leader(name))
    }

    /// Connects, and says who leads. Then the stream ends, and the observer asks again: by then it is known whether the store
    /// pushes changes.
    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        if let Some(store) = self.connected() {
            return store.as_elections()?.watch(name);
        }
        Some(one_sighting(self.leader(name)))
    }

    fn poll_interval(&self) -> Duration {
        let elections = self.connected().and_then(|store| store.as_elections());
        elections.map_or(DEFAULT_POLL_INTERVAL, |store| store.poll_interval())
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        self.elections(move |store| store.ask_to_release(name, token))
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        // Without a store there is no hold.
        if let Some(elections) = self.connected().and_then(|store| store.as_elections()) {
            elections.listen_for_requests(hold);
        }
    }
}

/// A client may attach itself to a hold before its first connection. It detaches no hold before that, because it has none.
impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        match self.connected().map(|store| detaches(&store, hold.mode)) {
            Some(Ok(store)) => store.detach(hold),
            Some(Err(err)) => unknown(err),
            None => unknown(closed()),
        }
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        let attaching = self.send(move |store| match detaches(&store, hold.mode) {
            Ok(store) => Box::pin(async move { Ok(store.attach(hold).await) }),
            Err(err) => refused(err),
        });
        Box::pin(async move { attaching.await.unwrap_or_else(Renewal::Unknown) })
    }

    fn forget(&self, hold: &Hold) {
        if let Some(store) = self.connected().and_then(|store| store.as_detach()) {
            store.forget(hold);
        }
    }
}

/// The first request of a client may be that of an operator. What needs a hold needs no connection here: without one there
/// is no hold.
impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        self.send(move |store| store.break_lock(name, token))
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        self.send(|store| store.check())
    }

    fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        self.send(|store| store.init())
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tenure_core::Client;
    use tenure_core::memory;
    use tenure_core::rt::poll_now;

    use super::*;

    /// A store that does not answer while it is closed, and counts how often it is abandoned.
    #[derive(Clone)]
    struct SilentAtClose {
        store: Arc<memory::Store>,
        abandoned: Arc<AtomicUsize>,
    }

    impl tenure_core::store::Store for SilentAtClose {
        fn guarantees(&self) -> &Guarantees {
            self.store.guarantees()
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

        fn close(self: Arc<Self>) -> BoxFuture<()> {
            Box::pin(pending())
        }

        fn abandon(&self) {
            self.abandoned.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Neither candidate nor observer has to connect first.
    #[tokio::test]
    async fn an_election_of_a_client_that_has_not_connected_is_that_of_its_store() {
        let store = memory::Store::new();
        let connect = |store: Arc<dyn tenure_core::store::Store>| {
            let connect: Connect = Box::new(move || Box::pin(ready(Ok(store.clone()))));
            Client::from_store(Store::new("memory", connect).unwrap()).unwrap()
        };
        let lazy = || connect(Arc::new(store.clone()));
        let mut observer = lazy().election("e").observe();
        assert_eq!(observer.next().await.unwrap().unwrap(), None);
        let term = lazy().election("e").value("v").campaign().await.unwrap();
        let leader = observer.next().await.unwrap().unwrap().unwrap();
        assert_eq!(leader.value(), Some("v"));
        assert!(
            lazy()
                .election("e")
                .ask_to_resign()
                .await
                .unwrap()
                .is_some()
        );
        assert!(term.asked_to_resign().await);
        term.resign().await.unwrap();
        let locks_only = || {
            connect(Arc::new(SilentAtClose {
                store: Arc::new(store.clone()),
                abandoned: Arc::default(),
            }))
        };
        let mut observer = locks_only().election("e").observe();
        for err in [
            locks_only().election("e").campaign().await.unwrap_err(),
            locks_only().election("e").leader().await.unwrap_err(),
            observer.next().await.unwrap().unwrap_err(),
        ] {
            assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
        }
    }

    /// A store with elections that are read at a pace of its own.
    struct Polled(Arc<memory::Store>);

    const PACE: Duration = Duration::from_millis(20);

    impl tenure_core::store::Store for Polled {
        fn guarantees(&self) -> &Guarantees {
            self.0.guarantees()
        }

        fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
            self.0.clone().acquire(request)
        }

        fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
            self.0.clone().renew(holds)
        }

        fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
            self.0.clone().release(hold)
        }

        fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
            self.0.clone().inspect(name)
        }

        fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
            self.0.clone().list(prefix)
        }

        fn as_elections(self: Arc<Self>) -> Option<Arc<dyn Elections>> {
            Some(self)
        }
    }

    impl Elections for Polled {
        fn publish(
            self: Arc<Self>,
            hold: Hold,
            holder: Arc<Holder>,
        ) -> BoxFuture<Result<bool, Error>> {
            self.0.clone().publish(hold, holder)
        }

        fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
            self.0.clone().leader(name)
        }

        fn poll_interval(&self) -> Duration {
            PACE
        }

        fn ask_to_release(
            self: Arc<Self>,
            name: LockName,
            token: u64,
        ) -> BoxFuture<Result<bool, Error>> {
            self.0.clone().ask_to_release(name, token)
        }
    }

    /// An observer that was made before the connection asks the lazy store for the pace.
    #[tokio::test]
    async fn the_pace_of_observers_is_that_of_the_store() {
        use tenure_core::store::Store as _;
        let polled = Arc::new(Polled(Arc::new(memory::Store::new())));
        let connect: Connect = Box::new(move || Box::pin(ready(Ok(polled.clone() as _))));
        let lazy = Arc::new(Store::new("memory", connect).unwrap());
        let elections = lazy.clone().as_elections().unwrap();
        let name = LockName::new("e").unwrap();
        let sighting = elections.clone().leader(name.clone()).await.unwrap();
        assert_eq!(sighting.leader, None);
        assert_eq!(elections.poll_interval(), PACE);
        assert!(elections.watch(name).is_none());
    }

    #[tokio::test]
    async fn the_store_behind_a_lazy_client_is_abandoned_with_it() {
        let abandoned = Arc::<AtomicUsize>::default();
        let silent = SilentAtClose {
            store: Arc::new(memory::Store::new()),
            abandoned: abandoned.clone(),
        };
        let connect: Connect = Box::new(move || Box::pin(ready(Ok(Arc::new(silent.clone()) as _))));
        let client = Client::from_store(Store::new("memory", connect).unwrap()).unwrap();
        client.ping().await.unwrap();
        let closing = poll_now(Box::pin(client.close()));
        assert_eq!(abandoned.load(Ordering::SeqCst), 0);
        drop(closing);
        assert_eq!(abandoned.load(Ordering::SeqCst), 1);
    }
}
