//! What a client is notified of in PostgreSQL: its observers, that a leader or its value has changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use sqlx::postgres::PgConnectOptions;

use tenure_core::error::Error;
use tenure_core::name::LockName;
use tenure_core::store::Sightings;

use crate::database::{self, Kind, Observers, ReadLeader, Row, Subscribers};

use super::context::Context;
use super::control::ControlConnection;

/// Receives notifications and passes them on to observers.
pub(super) type Listener = database::Listener<SessionSubscribers>;

/// The observers of one client.
pub(super) struct SessionSubscribers {
    control: Arc<ControlConnection>,
    pub(super) observers: Arc<Observers>,
}

impl Listener {
    /// How a connection that listens is opened. `None`: the server is not PostgreSQL, or the connections are those of a pool of
    /// the program.
    pub(super) fn options(context: &Context) -> Result<Option<PgConnectOptions>, Error> {
        let server = &context.settings.server;
        let listens = context.settings.pool.is_none() && server.kind == Kind::Postgres;
        listens.then(|| server.postgres_options()).transpose()
    }

    pub(super) fn of(
        options: PgConnectOptions,
        context: &Context,
        control: &Arc<ControlConnection>,
    ) -> Arc<Self> {
        let (clock, spawner) = (context.clock.clone(), context.spawner.clone());
        let subscribers = SessionSubscribers {
            control: control.clone(),
            observers: Arc::new(Observers::new(spawner.clone())),
        };
        let timeout = context.settings.server.timeout;
        let listener = Self::new(subscribers, options, timeout, clock, spawner);
        Arc::new(listener)
    }

    /// Who leads, now and after each notification on `channel`.
    pub(super) fn observe(
        self: &Arc<Self>,
        name: LockName,
        channel: String,
        read_leader: ReadLeader,
    ) -> Option<Sightings> {
        self.subscribe_with(|it| it.observers.observe(name, channel, read_leader))
    }
}

impl Subscribers for SessionSubscribers {
    fn channels(&self) -> BTreeSet<String> {
        self.observers.channels()
    }

    fn hello_channel(&self) -> Option<&'static str> {
        None
    }

    fn listens_to(&self, channels: &BTreeSet<String>) {
        self.observers.listens_to(channels);
    }

    fn received(&self, channel: &str, _: &str) {
        self.observers.read_channels(|it| it == channel);
    }

    fn has_no_session(&self) {
        self.observers.end();
    }

    async fn ask(&self, sql: String) -> Result<Vec<Row>, Error> {
        self.control.query(sql).await
    }
}
