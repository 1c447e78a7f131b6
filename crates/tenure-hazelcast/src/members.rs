//! Which member the client talks to. One connection to any member is enough: members pass requests on to the leader.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::{Clock, Flag, Spawner, lock};
use tenure_core::support::{SingleFlight, closed};
use tenure_core::url::{Host, Secret};

use crate::connection::Connection;
use crate::errors;
use crate::messages::Login;
use crate::settings::Settings;

/// The least time for one member in a round of attempts to connect: far above a round trip and a login.
const LEAST_ATTEMPT: Duration = Duration::from_millis(200);

/// The connection in use, and how another one is opened.
pub(crate) struct Members {
    pub(crate) settings: Settings,
    pub(crate) clock: Clock,
    spawner: Spawner,
    /// The name of this client, which operators see.
    client: String,
    uuid: u128,
    current: Mutex<Option<Arc<Connection>>>,
    /// The host that is tried first.
    first: AtomicUsize,
    opening: SingleFlight<Error>,
    closing: Flag,
}

impl Members {
    pub(crate) fn new(
        settings: Settings,
        clock: &Clock,
        spawner: &Spawner,
        client: String,
    ) -> Self {
        Self {
            settings,
            clock: clock.clone(),
            spawner: spawner.clone(),
            client,
            uuid: rand::random(),
            current: Mutex::default(),
            first: AtomicUsize::new(0),
            opening: SingleFlight::default(),
            closing: Flag::new(),
        }
    }

    /// The connection in use, or another one. Takes at most the time limit of a request. Cancel safe.
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>, Error> {
        let find = || lock(&self.current).clone().filter(|it| !it.is_over());
        self.opening.run(&self.clock, find, self.open()).await
    }

    async fn open(&self) -> Result<Arc<Connection>, Error> {
        let (first, count) = (self.first.load(Ordering::SeqCst), self.settings.hosts.len());
        let mut last = None;
        for at in 0..count {
            if self.closing.is_raised() {
                return Err(closed());
            }
            let at = (first + at) % count;
            match self.open_in_time(&self.settings.hosts[at]).await {
                Ok(connection) => {
                    self.first.store(at, Ordering::SeqCst);
                    *lock(&self.current) = Some(connection.clone());
                    if self.closing.is_raised() {
                        connection.close();
                        return Err(closed());
                    }
                    return Ok(connection);
                }
                Err(err) => {
                    tracing::debug!(
                        store = "hazelcast",
                        err = format_args!("{err:#}"),
                        "no connection"
                    );
                    // A refusal says more than that another member is away.
                    let is_refusal = |err: &Error| err.kind() != ErrorKind::Unreachable;
                    if !last.as_ref().is_some_and(is_refusal) {
                        last = Some(err);
                    }
                }
            }
        }
        Err(last.unwrap_or_else(closed))
    }

    async fn open_in_time(&self, host: &Host) -> Result<Arc<Connection>, Error> {
        let settings = &self.settings;
        let count = u32::try_from(settings.hosts.len()).unwrap_or(u32::MAX);
        let share = (settings.timeout / count).max(LEAST_ATTEMPT.min(settings.timeout));
        let login = settings.login.as_ref();
        let login = Login {
            cluster: &settings.cluster,
            user: login.map(|(user, _)| user.as_str()),
            password: login.map(|(_, password)| Secret::reveal(password)),
            client: &self.client,
            uuid: self.uuid,
        };
        let limit = self.clock.now().after(share);
        let runtime = (&self.clock, &self.spawner);
        tokio::select! {
            biased;
            opened = Connection::open(host, (&login, &settings.group), runtime, settings.timeout) => opened,
            () = self.clock.sleep_until(limit) => Err(errors::silent(host)),
        }
    }

    /// The connection has failed: the next request goes to the next member, and so do those that wait for a reply.
    pub(crate) fn leave(&self, connection: &Arc<Connection>) {
        let mut current = lock(&self.current);
        if current
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, connection))
        {
            *current = None;
            let next = self.first.load(Ordering::SeqCst) + 1;
            self.first
                .store(next % self.settings.hosts.len(), Ordering::SeqCst);
        }
        drop(current);
        connection.close();
    }

    /// Ends the connection, and opens no other one.
    pub(crate) fn close(&self) {
        self.closing.raise();
        if let Some(connection) = lock(&self.current).take() {
            connection.close();
        }
    }
}

/// A caller may drop the store while it connects; the task of the connection would go on.
impl Drop for Members {
    fn drop(&mut self) {
        self.close();
    }
}
