//! The primary that sentinels name, followed over failovers.
//!
//! There is a connection to every sentinel. What they announce makes us leave a primary at once; whom
//! to turn to instead is what all of them are asked for. The one that knows of the latest failover is right
//! (that is how sentinels settle it among themselves), and among those that know the same the majority.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Notify;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::Escaped;
use tenure_core::rt::{Clock, Spawner, Task, lock};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::super::inbox::Inbox;
use super::super::link::{Link, Session};
use super::super::outcome;
use super::super::settings::Settings;
use super::{Call, Reply};

/// What sentinels announce: the replica that was chosen has obeyed, and later that all is done.
const ANNOUNCED: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// How often all of them are asked although nothing was announced: a connection may be dead
/// without our knowing, and a sentinel cut off from the others.
const REVIEW: Duration = Duration::from_secs(5);

/// At least this long between two reviews, however much is announced.
const BREATH: Duration = Duration::from_millis(50);

/// How much longer the others may take when most sentinels have answered.
const GRACE: Duration = Duration::from_millis(100);

/// The sentinels of one store, and the primary that they name.
pub(super) struct Sentinels {
    inner: Arc<Inner>,
    watcher: Task,
}

struct Inner {
    service: String,
    sentinels: Vec<Sentinel>,
    settings: Settings,
    inbox: Arc<Inbox>,
    clock: Clock,
    spawner: Spawner,
    primary: Mutex<Option<Arc<Link>>>,
    /// Held by the one who looks for the primary; has the last failure, for those who waited for that.
    looking: tokio::sync::Mutex<Option<(Time, ErrorKind, String)>>,
    /// A sentinel announced something or hung up.
    news: Notify,
}

struct Sentinel {
    host: Host,
    client: Client,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

/// What one sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct View {
    primary: Host,
    /// Grows with each failover.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(
        hosts: &[Host],
        service: &str,
        settings: &Settings,
        inbox: &Arc<Inbox>,
        clock: &Clock,
        spawner: &Spawner,
    ) -> Result<Self, Error> {
        let sentinel = |host: &Host| {
            Ok(Sentinel {
                host: host.clone(),
                client: settings.sentinel_client(host)?,
                connection: tokio::sync::Mutex::default(),
            })
        };
        let inner = Arc::new(Inner {
            service: service.to_owned(),
            sentinels: hosts.iter().map(sentinel).collect::<Result<_, Error>>()?,
            settings: settings.clone(),
            inbox: inbox.clone(),
            clock: clock.clone(),
            spawner: spawner.clone(),
            primary: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            news: Notify::new(),
        });
        let watcher = spawner.spawn(inner.clone().watch());
        Ok(Self { inner, watcher })
    }

    /// The connection to the primary.
    pub(super) async fn session(&self) -> Result<Arc<Session>, Error> {
        match self.inner.live() {
            Some(session) => Ok(session),
            // In a box, as in `Link::session`.
            None => Box::pin(self.inner.follow()).await,
        }
    }

    pub(super) async fn call<T: FromRedisValue>(&self, call: &Call<'_>) -> Result<Reply<T>, Error> {
        let Inner {
            clock, settings, ..
        } = &*self.inner;
        let limit = clock.now().after(settings.timeout);
        for attempt in 0.. {
            let session = self.session().await?;
            match call.send(session, false).await {
                // Nothing was applied, so it can be asked of another server.
                Err(err) if outcome::is_readonly(&err) && clock.now() < limit => {}
                // What the old primary did after the failover is lost; whether this was after it, who knows?
                Ok(Reply { session, .. }) if session.is_retired() => {
                    return Err(Error::new(
                        ErrorKind::Indeterminate,
                        format!(
                            "{} was replaced while it answered; whether the new primary knows cannot be told",
                            session.host
                        ),
                    ));
                }
                answer => return answer.map_err(outcome::asking),
            }
            self.inner.pause(attempt).await?;
        }
        unreachable!("the loop ends with a return")
    }

    pub(super) fn close(&self) {
        self.watcher.abort();
        if let Some(link) = &*lock(&self.inner.primary) {
            link.disconnect();
        }
        for sentinel in &self.inner.sentinels {
            // Somebody is just asking it: then the connection ends with that.
            if let Ok(mut connection) = sentinel.connection.try_lock() {
                connection.take();
            }
        }
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.watcher.abort();
    }
}

impl Inner {
    fn live(&self) -> Option<Arc<Session>> {
        lock(&self.primary).as_ref().and_then(|link| link.live())
    }

    async fn pause(&self, attempt: u32) -> Result<(), Error> {
        super::pause(&self.clock, &self.spawner, attempt).await
    }

    /// Finds the primary and connects. Everybody who asks meanwhile shares the attempt.
    async fn follow(self: &Arc<Self>) -> Result<Arc<Session>, Error> {
        let asked = self.clock.now();
        let mut failure = self.looking.lock().await;
        if let Some(session) = self.live() {
            return Ok(session);
        }
        if let Some((at, kind, message)) = &*failure
            && *at >= asked
        {
            return Err(Error::new(*kind, message.clone()));
        }
        let found = self.search(asked.after(self.settings.timeout)).await;
        if let Err(err) = &found {
            *failure = Some((self.clock.now(), err.kind(), err.to_string()));
        }
        found
    }

    async fn search(self: &Arc<Self>, limit: Time) -> Result<Arc<Session>, Error> {
        for attempt in 0.. {
            let host = self.find(Some(GRACE)).await?;
            let link = self.turn_to(host)?;
            match link.session().await {
                // Dead, or a replica again: the sentinels will notice.
                Err(err) if err.kind() == ErrorKind::Unreachable && self.clock.now() < limit => {}
                answer => return answer,
            }
            self.pause(attempt).await?;
        }
        unreachable!("the loop ends with a return")
    }

    /// The link to that server, which is the primary from now on.
    fn turn_to(&self, host: Host) -> Result<Arc<Link>, Error> {
        let mut primary = lock(&self.primary);
        if let Some(link) = primary.as_ref().filter(|link| link.host == host) {
            return Ok(link.clone());
        }
        let link = Link::new(host, &self.settings, self.inbox.clone(), self.clock.clone())?;
        let link = Arc::new(link);
        if let Some(old) = primary.replace(link.clone()) {
            old.retire();
        }
        Ok(link)
    }

    /// Leaves the primary if it is another one.
    fn leave_unless(&self, host: &Host) {
        let mut primary = lock(&self.primary);
        if let Some(link) = primary.take_if(|link| link.host != *host) {
            tracing::info!(service = self.service, old = %link.host, new = %host, "failover");
            link.retire();
        }
    }

    /// Asks the sentinels for the primary. `grace`: how much longer the others may take when most
    /// have answered; `None`: as long as they want.
    async fn find(self: &Arc<Self>, grace: Option<Duration>) -> Result<Host, Error> {
        let count = self.sentinels.len();
        let asked = self.sentinels.iter().map(|sentinel| self.ask(sentinel));
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut views, mut unknown, mut failures) = (Vec::new(), 0, Vec::new());
        let mut limit = None;
        loop {
            let late = async {
                match limit {
                    Some(limit) => self.clock.sleep_until(limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    None => break,
                    Some(Ok(Some(view))) => views.push(view),
                    Some(Ok(None)) => unknown += 1,
                    Some(Err(err)) => failures.push(err),
                },
                () = late => break,
            }
            if limit.is_none() && (views.len() + unknown) * 2 > count {
                limit = grace.map(|grace| self.clock.now().after(grace));
            }
        }
        match elect(&views) {
            Some(host) => Ok(host.clone()),
            None if unknown * 2 > count => Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the sentinels know no service \"{}\"; it is what stands after the hosts in the URL",
                    Escaped(&self.service)
                ),
            )),
            None => Err(no_answer(count, failures)),
        }
    }

    /// Asks one sentinel; `None`: it does not know the service.
    async fn ask(self: &Arc<Self>, sentinel: &Sentinel) -> Result<Option<View>, Error> {
        let mut kept = sentinel.connection.lock().await;
        if let Some(connection) = kept.take()
            && let Ok(view) = self.view(&connection).await
        {
            *kept = Some(connection);
            return Ok(view);
        }
        // None, or it broke.
        let failed = |err| outcome::connecting(err, &sentinel.host, self.settings.is_tls());
        let connection = self.connect(sentinel).await.map_err(failed)?;
        let view = self.view(&connection).await.map_err(failed)?;
        *kept = Some(connection);
        Ok(view)
    }

    async fn connect(
        self: &Arc<Self>,
        sentinel: &Sentinel,
    ) -> Result<MultiplexedConnection, RedisError> {
        let weak = Arc::downgrade(self);
        let timeout = Some(self.settings.timeout);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(timeout)
            .set_response_timeout(timeout)
            .set_push_sender(move |info: PushInfo| {
                if let Some(inner) = Weak::upgrade(&weak) {
                    inner.hear(&info);
                }
                Ok::<(), ()>(())
            });
        let client = &sentinel.client;
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        // Before it is asked, so that it can say nothing unheard afterwards.
        connection.subscribe(&ANNOUNCED[..]).await?;
        Ok(connection)
    }

    async fn view(&self, connection: &MultiplexedConnection) -> Result<Option<View>, RedisError> {
        let sentinel = |what| {
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg(what).arg(&self.service);
            cmd
        };
        let address = sentinel("GET-MASTER-ADDR-BY-NAME");
        let state = sentinel("MASTER");
        let (mut first, mut second) = (connection.clone(), connection.clone());
        let (address, state): (_, Result<HashMap<String, Value>, _>) = tokio::join!(
            address.query_async::<Option<(String, u16)>>(&mut first),
            // It may not know the service, and its users may not be allowed to ask that.
            state.query_async(&mut second),
        );
        let Some((name, port)) = address? else {
            return Ok(None);
        };
        let epoch = state
            .ok()
            .and_then(|mut state| state.remove("config-epoch"));
        let epoch = epoch.and_then(|epoch| redis::from_redis_value(epoch).ok());
        Ok(Some(View {
            primary: Host { name, port },
            epoch: epoch.unwrap_or(0),
        }))
    }

    /// A sentinel announced something, or hung up.
    fn hear(&self, info: &PushInfo) {
        match info.kind {
            PushKind::Message => {
                if let Some(host) = switched(info, &self.service) {
                    self.leave_unless(&host);
                }
            }
            PushKind::Disconnection => {}
            _ => return,
        }
        self.news.notify_one();
    }

    /// Leaves the primary when the sentinels say so.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::select! {
                () = self.news.notified() => {}
                () = self.clock.sleep_until(self.clock.now().after(REVIEW)) => {}
            }
            // Without an answer it stays as it is: a primary does not need its sentinels.
            if let Ok(host) = self.find(None).await {
                self.leave_unless(&host);
            }
            self.clock.sleep_until(self.clock.now().after(BREATH)).await;
        }
    }
}

/// The primary after the latest failover that any of them knows of; the majority of those.
fn elect(views: &[View]) -> Option<&Host> {
    let epoch = views.iter().map(|view| view.epoch).max()?;
    let latest = || views.iter().filter(|view| view.epoch == epoch);
    let votes = |host: &Host| latest().filter(|view| view.primary == *host).count();
    // Of equals the first one, which was the quickest to answer.
    let best = latest().rev().max_by_key(|view| votes(&view.primary));
    best.map(|view| &view.primary)
}

/// The new primary, if this says that there is one.
fn switched(info: &PushInfo, service: &str) -> Option<Host> {
    let text = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    };
    let [channel, payload] = &info.data[..] else {
        return None;
    };
    let payload = text(payload).filter(|_| text(channel).as_deref() == Some(ANNOUNCED[1]))?;
    // SERVICE OLD-HOST OLD-PORT NEW-HOST NEW-PORT
    let mut words = payload.split(' ');
    let name = words.next()?;
    let (host, port) = (words.nth(2)?.to_owned(), words.next()?.parse().ok()?);
    (name == service).then_some(Host { name: host, port })
}

fn no_answer(count: usize, mut failures: Vec<Error>) -> Error {
    // One that would not have us tells more than one that is not there.
    failures.sort_by_key(|err| err.kind() != ErrorKind::Denied);
    let Some(first) = failures.into_iter().next() else {
        return Error::new(ErrorKind::Unreachable, "no sentinel answered in time");
    };
    let hint = match first.kind() {
        ErrorKind::Denied => "; see sentinel_user and sentinel_password",
        _ => "",
    };
    let kind = match first.kind() {
        ErrorKind::Denied => ErrorKind::Denied,
        _ => ErrorKind::Unreachable,
    };
    let what = format!("none of the {count} sentinels names the primary: {first}{hint}");
    Error::new(kind, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, epoch: u64) -> View {
        let name = name.to_owned();
        View {
            primary: Host { name, port: 1 },
            epoch,
        }
    }

    #[test]
    fn the_latest_failover_counts_and_then_the_majority() {
        let elected = |views: &[View]| elect(views).map(|host| host.name.clone());
        assert_eq!(elected(&[]), None);
        let (old, new) = (view("old", 3), view("new", 4));
        for views in [[&old, &old, &new], [&new, &old, &old], [&old, &new, &new]] {
            assert_eq!(elected(&views.map(View::clone)).as_deref(), Some("new"));
        }
        let (one, two) = (view("one", 0), view("two", 0));
        let views = [one.clone(), two.clone(), two.clone()];
        assert_eq!(elected(&views).as_deref(), Some("two"));
        assert_eq!(elected(&[one, two]).as_deref(), Some("one"));
    }

    #[test]
    fn a_switch_is_heard_if_it_is_ours() {
        let said = |channel: &str, payload: &str| {
            let info = PushInfo {
                kind: PushKind::Message,
                data: [channel, payload]
                    .map(|text| Value::BulkString(text.into()))
                    .to_vec(),
            };
            switched(&info, "svc").map(|host| host.to_string())
        };
        let payload = "svc 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(
            said("+switch-master", payload).as_deref(),
            Some("10.0.0.2:6380")
        );
        assert_eq!(
            said("+switch-master", &payload.replace("svc", "other")),
            None
        );
        assert_eq!(said("+promoted-slave", payload), None);
        assert_eq!(said("+switch-master", "svc 10.0.0.1"), None);
    }
}
