//! The primary that sentinels name, followed over failovers.
//!
//! There is a connection to every sentinel. An announcement of a sentinel ends the connection to the old primary at
//! once; all sentinels are asked for the new one. The sentinel that knows of the latest failover is right (sentinels decide
//! so among themselves), and among several that know of the same failover the majority is right.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::{FromRedisValue, PushInfo, PushKind, RedisError, Value};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;
use tenure_core::rt::lock;
use tenure_core::support::{Maintenance, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::endpoint::{Endpoint, Multiplexed};
use super::environment::Environment;
use super::errors;
use super::script::{Call, ScriptReply};
use super::server::{Connection, Server};

/// What sentinels announce: that the chosen replica has become a primary, and later that the failover has ended.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// How often all sentinels are asked although none announced anything: a connection may have broken unnoticed, and a
/// sentinel may be cut off from the others.
const RESYNC_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest time between two rounds of questions, however much is announced.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// How much longer the other sentinels may take when most have answered.
const GRACE_PERIOD: Duration = Duration::from_millis(100);

/// The sentinels of one store, and the primary that they name.
pub(super) struct Sentinels {
    service: String,
    sentinels: Vec<Sentinel>,
    env: Arc<Environment>,
    primary: Mutex<Option<Arc<Server>>>,
    searching: SingleFlight<Error>,
    /// When all sentinels are asked again: now if one has announced something, or its connection broke.
    resync_at: Mutex<Time>,
    maintenance: Arc<Maintenance>,
}

struct Sentinel {
    host: Host,
    endpoint: Endpoint,
    /// Locked by the task that asks this sentinel.
    connection: tokio::sync::Mutex<Option<Multiplexed>>,
}

/// What one sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentinelView {
    primary: Host,
    /// Grows with each failover.
    epoch: u64,
}

impl Sentinels {
    pub(super) fn new(
        hosts: &[Host],
        service: &str,
        env: &Arc<Environment>,
    ) -> Result<Arc<Self>, Error> {
        let sentinel = |host: &Host| {
            Ok(Sentinel {
                host: host.clone(),
                endpoint: Endpoint::new(host, &env.settings, &env.settings.sentinel_login)?,
                connection: tokio::sync::Mutex::default(),
            })
        };
        let sentinels = Arc::new(Self {
            service: service.to_owned(),
            sentinels: hosts.iter().map(sentinel).collect::<Result<_, Error>>()?,
            env: env.clone(),
            primary: Mutex::default(),
            searching: SingleFlight::default(),
            resync_at: Mutex::new(env.now().after(RESYNC_INTERVAL)),
            maintenance: Arc::default(),
        });
        let (spawner, clock) = (&env.spawner, &env.clock);
        let maintenance = &sentinels.maintenance;
        maintenance.start(spawner, clock, &sentinels, Self::resync_if_due);
        Ok(sentinels)
    }

    /// The connection to the primary.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        // In a box, as in `Server::connection`.
        let search = async { Box::pin(self.search()).await };
        let searching = &self.searching;
        searching
            .run(&self.env.clock, || self.current(), search)
            .await
    }

    pub(super) async fn call<T: FromRedisValue>(
        self: &Arc<Self>,
        call: &Call<'_>,
    ) -> Result<ScriptReply<T>, Error> {
        let limit = self.env.request_limit();
        for attempt in 0.. {
            let connection = self.connection().await?;
            match call.send(connection, false).await {
                // Nothing was applied, so the request can be sent to another server.
                Err(err) if errors::is_readonly(&err) && self.env.now() < limit => {}
                // What the old primary did after the failover is lost. Whether it did this before cannot be told.
                Ok(ScriptReply { connection, .. }) if connection.is_retired() => {
                    return Err(Error::new(
                        ErrorKind::Indeterminate,
                        format!(
                            "{} was replaced while it answered; whether the new primary knows cannot be told",
                            connection.host
                        ),
                    ));
                }
                outcome => return outcome.map_err(errors::request),
            }
            self.env.pause(attempt).await?;
        }
        unreachable!("the loop ends with a return")
    }

    pub(super) fn close(&self) {
        self.maintenance.stop();
        if let Some(server) = &*lock(&self.primary) {
            server.disconnect();
        }
        for sentinel in &self.sentinels {
            // A task that asks this sentinel just now drops the connection when it is done.
            if let Ok(mut connection) = sentinel.connection.try_lock() {
                connection.take();
            }
        }
    }

    fn current(&self) -> Option<Arc<Connection>> {
        lock(&self.primary)
            .as_ref()
            .and_then(|server| server.current())
    }

    /// Finds the primary and connects.
    async fn search(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        let limit = self.env.request_limit();
        for attempt in 0.. {
            let host = self.find(Some(GRACE_PERIOD)).await?;
            let server = self.set_primary(host)?;
            match server.connection().await {
                // It has died, or is a replica now: the sentinels will notice that.
                Err(err) if err.kind() == ErrorKind::Unreachable && self.env.now() < limit => {}
                outcome => return outcome,
            }
            self.env.pause(attempt).await?;
        }
        unreachable!("the loop ends with a return")
    }

    /// That server is the primary from now on.
    fn set_primary(&self, host: Host) -> Result<Arc<Server>, Error> {
        let mut primary = lock(&self.primary);
        if let Some(server) = primary.as_ref().filter(|server| server.host == host) {
            return Ok(server.clone());
        }
        let server = Arc::new(Server::new(host, &self.env)?);
        if let Some(old) = primary.replace(server.clone()) {
            old.retire();
        }
        Ok(server)
    }

    /// Retires the primary if it is not `host`.
    fn retire_unless(&self, host: &Host) {
        let mut primary = lock(&self.primary);
        if let Some(old) = primary.take_if(|server| server.host != *host) {
            tracing::info!(service = self.service, old = %old.host, new = %host, "failover");
            old.retire();
        }
    }

    /// Asks the sentinels for the primary. `grace`: how much longer the others may take when most have answered;
    /// `None`: until each has answered or failed.
    async fn find(self: &Arc<Self>, grace: Option<Duration>) -> Result<Host, Error> {
        let count = self.sentinels.len();
        let replies = self.sentinels.iter().map(|sentinel| self.ask(sentinel));
        let mut replies: FuturesUnordered<_> = replies.collect();
        let (mut views, mut unknown, mut failures) = (Vec::new(), 0, Vec::new());
        let mut limit = None;
        loop {
            let late = async {
                match limit {
                    Some(limit) => self.env.clock.sleep_until(limit).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                reply = replies.next() => match reply {
                    None => break,
                    Some(Ok(Some(view))) => views.push(view),
                    Some(Ok(None)) => unknown += 1,
                    Some(Err(err)) => failures.push(err),
                },
                () = late => break,
            }
            if limit.is_none() && (views.len() + unknown) * 2 > count {
                limit = grace.map(|grace| self.env.now().after(grace));
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

    /// Asks one sentinel. `None`: the sentinel does not know the service.
    async fn ask(self: &Arc<Self>, sentinel: &Sentinel) -> Result<Option<SentinelView>, Error> {
        let mut open = sentinel.connection.lock().await;
        if let Some(connection) = open.take()
            && let Ok(view) = self.view(&connection).await
        {
            *open = Some(connection);
            return Ok(view);
        }
        // There was no connection, or it has broken.
        let failed = |err| errors::connecting(err, &sentinel.host, self.env.settings.is_tls());
        let connection = self.connect(sentinel).await.map_err(failed)?;
        let view = self.view(&connection).await.map_err(failed)?;
        *open = Some(connection);
        Ok(view)
    }

    async fn connect(self: &Arc<Self>, sentinel: &Sentinel) -> Result<Multiplexed, RedisError> {
        let weak = Arc::downgrade(self);
        let config = self.env.settings.connection_config();
        let config = config.set_push_sender(move |info: PushInfo| {
            if let Some(sentinels) = Weak::upgrade(&weak) {
                sentinels.receive(&info);
            }
            Ok::<(), ()>(())
        });
        let connecting = sentinel.endpoint.connect(&self.env, config);
        let mut connection = connecting.await?;
        // Before the sentinel is asked, so that a later announcement is not missed.
        connection.subscribe(&ANNOUNCEMENTS[..]).await?;
        Ok(connection)
    }

    async fn view(&self, connection: &Multiplexed) -> Result<Option<SentinelView>, RedisError> {
        let sentinel = |what| {
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg(what).arg(&self.service);
            cmd
        };
        let address = sentinel("GET-MASTER-ADDR-BY-NAME");
        let state = sentinel("MASTER");
        let (mut first, mut second) = (connection.clone(), connection.clone());
        let (address, state): (_, Result<HashMap<String, Value>, _>) = tokio::join!(
            address.query_async::<Option<(String, u16)>>(&mut *first),
            // An error has no consequence: the sentinel may not know the service, or may refuse this user.
            state.query_async(&mut *second),
        );
        let Some((name, port)) = address? else {
            return Ok(None);
        };
        let epoch = state
            .ok()
            .and_then(|mut state| state.remove("config-epoch"));
        let epoch = epoch.and_then(|epoch| redis::from_redis_value(epoch).ok());
        Ok(Some(SentinelView {
            primary: Host { name, port },
            epoch: epoch.unwrap_or(0),
        }))
    }

    /// A sentinel announced something, or its connection broke.
    fn receive(&self, info: &PushInfo) {
        match info.kind {
            PushKind::Message => {
                if let Some(host) = switched(info, &self.service) {
                    self.retire_unless(&host);
                }
            }
            PushKind::Disconnection => {}
            _ => return,
        }
        *lock(&self.resync_at) = self.env.now();
        self.maintenance.wake();
    }

    /// Retires the primary when the sentinels name another one.
    async fn resync_if_due(self: Arc<Self>) -> Time {
        let planned = *lock(&self.resync_at);
        if planned > self.env.now() {
            return planned;
        }
        *lock(&self.resync_at) = Time::MAX;
        // Without an answer nothing changes: a primary does not need its sentinels.
        if let Ok(host) = self.find(None).await {
            self.retire_unless(&host);
        }
        let now = self.env.now();
        let clock = &self.env.clock;
        clock.sleep_until(now.after(MIN_REFRESH_INTERVAL)).await;
        let mut resync_at = lock(&self.resync_at);
        // An announcement that came meanwhile has set an earlier time.
        *resync_at = resync_at.min(now.after(RESYNC_INTERVAL));
        *resync_at
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        self.maintenance.stop();
    }
}

/// The primary after the latest failover that a view knows of; if views differ about that, the majority.
fn elect(views: &[SentinelView]) -> Option<&Host> {
    let epoch = views.iter().map(|view| view.epoch).max()?;
    let latest = || views.iter().filter(|view| view.epoch == epoch);
    let votes = |host: &Host| latest().filter(|view| view.primary == *host).count();
    // Of equals the first one, whose sentinel answered first.
    let best = latest().rev().max_by_key(|view| votes(&view.primary));
    best.map(|view| &view.primary)
}

/// The new primary, if this is the announcement of one.
fn switched(info: &PushInfo, service: &str) -> Option<Host> {
    let text = |value: &Value| match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    };
    let [channel, payload] = &info.data[..] else {
        return None;
    };
    let payload = text(payload).filter(|_| text(channel).as_deref() == Some(ANNOUNCEMENTS[1]))?;
    // SERVICE OLD-HOST OLD-PORT NEW-HOST NEW-PORT
    let mut words = payload.split(' ');
    let name = words.next()?;
    let (host, port) = (words.nth(2)?.to_owned(), words.next()?.parse().ok()?);
    (name == service).then_some(Host { name: host, port })
}

fn no_answer(count: usize, mut failures: Vec<Error>) -> Error {
    // The error of a sentinel that refused us says more than that of one that cannot be reached.
    failures.sort_by_key(|err| err.kind() != ErrorKind::Denied);
    let Some(first) = failures.into_iter().next() else {
        return Error::new(ErrorKind::Unreachable, "no sentinel answered in time").with_timeout();
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

    fn view(name: &str, epoch: u64) -> SentinelView {
        let name = name.to_owned();
        SentinelView {
            primary: Host { name, port: 1 },
            epoch,
        }
    }

    #[test]
    fn the_latest_failover_counts_and_then_the_majority() {
        let elected = |views: &[SentinelView]| elect(views).map(|host| host.name.clone());
        assert_eq!(elected(&[]), None);
        let (old, new) = (view("old", 3), view("new", 4));
        for views in [[&old, &old, &new], [&new, &old, &old], [&old, &new, &new]] {
            assert_eq!(
                elected(&views.map(SentinelView::clone)).as_deref(),
                Some("new")
            );
        }
        let (one, two) = (view("one", 0), view("two", 0));
        let views = [one.clone(), two.clone(), two.clone()];
        assert_eq!(elected(&views).as_deref(), Some("two"));
        assert_eq!(elected(&[one, two]).as_deref(), Some("one"));
    }

    #[test]
    fn a_switch_counts_if_it_is_of_our_service() {
        let announced = |channel: &str, payload: &str| {
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
            announced("+switch-master", payload).as_deref(),
            Some("10.0.0.2:6380")
        );
        assert_eq!(
            announced("+switch-master", &payload.replace("svc", "other")),
            None
        );
        assert_eq!(announced("+promoted-slave", payload), None);
        assert_eq!(announced("+switch-master", "svc 10.0.0.1"), None);
    }
}
