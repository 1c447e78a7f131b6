//! `dialect=shedlock` and Java's ShedLock over JDBC, by the time of the database: each excludes the other.

use std::time::Duration;

use tenure::{Client, Renew};

use crate::support::{
    Driver, LONG, Scratch, Server, WAIT_TIMEOUT, add_one, hex, soon, take, try_fails, waiting,
};
use tenure_testkit::{mariadb, postgres};

macro_rules! on_both {
    ($($test:ident)*) => {
        on_both! { @ in_mysql $($test)* }
        on_both! { @ in_postgres $($test)* }
    };
    (@ $database:ident $($test:ident)*) => {
        mod $database {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    if let Some((server, foreign)) = super::Database::$database().await {
                        super::$test(server, foreign).await;
                    }
                }
            )*
        }
    };
}

on_both! { each_excludes_the_other a_lock_of_a_dead_program_is_acquired our_lease_ends_for_shedlock no_increment_is_lost }

enum Database {
    MySql(mariadb::MariaDb),
    Postgres(postgres::Postgres),
}

impl Server for Database {
    fn port(&self) -> u16 {
        match self {
            Self::MySql(server) => server.port(),
            Self::Postgres(server) => server.port(),
        }
    }
}

impl Database {
    async fn in_mysql() -> Option<(Self, Driver)> {
        let server = (!mariadb::skip_unless_installed()).then(|| mariadb::MariaDb::start(&[]))?;
        Self::MySql(server).with_driver("mysql").await
    }

    async fn in_postgres() -> Option<(Self, Driver)> {
        let server =
            (!postgres::skip_unless_installed()).then(|| postgres::Postgres::start(&[]))?;
        Self::Postgres(server).with_driver("postgres").await
    }

    /// The database with ShedLock's table, created by our statements.
    async fn with_driver(self, kind: &str) -> Option<(Self, Driver)> {
        self.client().await.init().await.unwrap();
        let (user, password, database) = (mariadb::USER, mariadb::PASSWORD, mariadb::DATABASE);
        let options = [kind, user, password, database];
        let foreign = Driver::start_with("shedlock", &self, &options).await?;
        Some((self, foreign))
    }

    async fn client(&self) -> Client {
        let url = match self {
            Self::MySql(server) => server.url(),
            Self::Postgres(server) => server.url(),
        };
        let url = format!("{url}?mode=table&dialect=shedlock&tls=off");
        tenure::connect(&url).await.unwrap()
    }
}

async fn each_excludes_the_other(database: Database, mut foreign: Driver) {
    let client = database.client().await;
    // The first holder creates the row, and later holders find the row.
    for name in ["job", "orders/42", "Größe 🔒 a b"] {
        for round in 0..3 {
            let guard = take(&client, name).await;
            assert!(foreign.try_fails(name).await, "{name}, round {round}");
            guard.release().await.unwrap();
            let by = foreign.take(name, LONG).await;
            assert!(try_fails(&client, name).await, "{name}, round {round}");
            let status = client.inspect(name).await.unwrap();
            assert_eq!(hex(status.holds[0].holder.host.as_bytes()), by);
            let next = waiting(&client, name);
            foreign.unlock(name).await;
            let next = soon("our turn", next).await.unwrap();
            assert!(next.token() > token_of(&status));
            next.release().await.unwrap();
        }
    }
}

fn token_of(status: &tenure::LockStatus) -> tenure::FencingToken {
    status.holds[0].token.unwrap()
}

/// `lockAtMostFor` ends by the database's clock for our client too.
async fn a_lock_of_a_dead_program_is_acquired(database: Database, mut foreign: Driver) {
    let client = database.client().await;
    foreign.take("job", Duration::from_secs(3)).await;
    foreign.kill();
    assert!(try_fails(&client, "job").await);
    let lock = client.lock("job").ttl(LONG).wait(WAIT_TIMEOUT);
    let next = lock.acquire().await.unwrap();
    next.release().await.unwrap();
}

async fn our_lease_ends_for_shedlock(database: Database, mut foreign: Driver) {
    let client = database.client().await;
    let lock = client.lock("job").ttl(Duration::from_secs(2));
    let guard = lock.renew(Renew::Never).acquire().await.unwrap();
    foreign.tell(&["lock", "job", "60000", "30000"]);
    foreign.held().await;
    assert!(!guard.is_held(), "two believe");
    assert!(guard.release().await.is_err());
    assert!(try_fails(&client, "job").await, "theirs was freed");
    foreign.unlock("job").await;
}

async fn no_increment_is_lost(database: Database, mut foreign: Driver) {
    const TASKS: u64 = 3;
    const EACH: u64 = 20;
    let scratch = Scratch::new();
    let file = scratch.path().join("number");
    std::fs::write(&file, format!("{:020} nobody\n", 0)).unwrap();
    let (tasks, each) = (TASKS.to_string(), EACH.to_string());
    foreign.tell(&["count", "a", &tasks, &each, file.to_str().unwrap(), "30000"]);
    let client = database.client().await;
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (client, file) = (client.clone(), file.clone());
        ours.spawn(async move {
            for _ in 0..EACH {
                let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
                add_one(&file).await;
                guard.release().await.unwrap();
            }
        });
    }
    soon("our tasks", ours.join_all()).await;
    assert_eq!(foreign.answer().await, "counted");
    let text = std::fs::read_to_string(&file).unwrap();
    let value: u64 = text.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(value, 2 * TASKS * EACH);
}
