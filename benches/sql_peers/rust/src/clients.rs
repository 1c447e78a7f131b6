//! The clients, each with the same two functions.

use std::str::FromStr as _;
use std::sync::{Arc, Mutex};

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{Connection as _, Executor as _};

use crate::scenarios::{Failure, Locks, TTL};

/// The server's own functions, each hold on a connection that is kept open: no token, no lease, no loss.
#[derive(Clone)]
pub(crate) struct Raw {
    url: Arc<str>,
    idle: Arc<Mutex<Vec<Link>>>,
}

pub(crate) enum Link {
    MySql(MySqlConnection),
    Postgres(PgConnection),
}

impl Raw {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let raw = Self { url: url.into(), idle: Arc::default() };
        let first = raw.link().await?;
        raw.put_back(first);
        Ok(raw)
    }

    async fn link(&self) -> Result<Link, Failure> {
        let idle = self.idle.lock().map_err(|_| "poisoned")?.pop();
        if let Some(link) = idle {
            return Ok(link);
        }
        Ok(if self.url.starts_with("mysql:") {
            let options = MySqlConnectOptions::from_str(&self.url)?;
            Link::MySql(MySqlConnection::connect_with(&options).await?)
        } else {
            let options = PgConnectOptions::from_str(&self.url)?;
            Link::Postgres(PgConnection::connect_with(&options).await?)
        })
    }

    fn put_back(&self, link: Link) {
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(link);
        }
    }
}

impl Locks for Raw {
    type Hold = (Link, String);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let mut link = self.link().await?;
        match &mut link {
            Link::MySql(link) => {
                let sql = sqlx::query("SELECT GET_LOCK(?, 3600)").bind(name);
                link.fetch_one(sql).await?;
            }
            Link::Postgres(link) => {
                let sql = sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))").bind(name);
                link.fetch_one(sql).await?;
            }
        }
        Ok((link, name.into()))
    }

    async fn unlock(&self, (mut link, name): Self::Hold) -> Result<(), Failure> {
        match &mut link {
            Link::MySql(link) => {
                let sql = sqlx::query("SELECT RELEASE_LOCK(?)").bind(name);
                link.fetch_one(sql).await?;
            }
            Link::Postgres(link) => {
                let sql = sqlx::query("SELECT pg_advisory_unlock(hashtextextended($1, 0))").bind(name);
                link.fetch_one(sql).await?;
            }
        }
        self.put_back(link);
        Ok(())
    }
}

#[derive(Clone)]
pub(crate) struct Tenure(tenure::Client);

impl Tenure {
    pub(crate) async fn connect(url: &str) -> Result<Self, Failure> {
        let client = tenure::connect(url).await?;
        client.init().await?;
        // A server that was started a moment ago grants nothing until its restart guard has passed.
        client.lock("warm-up").acquire().await?.release().await?;
        Ok(Self(client))
    }
}

impl Locks for Tenure {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<tenure::Guard, Failure> {
        Ok(self.0.lock(name).ttl(TTL).acquire().await?)
    }

    async fn unlock(&self, hold: tenure::Guard) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}
