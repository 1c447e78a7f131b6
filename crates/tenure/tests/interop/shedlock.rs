//! `dialect=shedlock` and Java's ShedLock over JDBC, by the time of the database: they exclude us, and we them.

use std::time::Duration;

use tenure::{Client, Renew};

use crate::support::{
    Driver, LONG, PATIENCE, Scratch, Server, add_one, hex, soon, take, try_fails, waiting,
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
                    if let Some((server, they)) = super::Database::$database().await {
                        super::$test(server, they).await;
                    }
                }
            )*
        }
    };
}

on_both! { each_excludes_the_other a_program_that_died_is_followed ours_runs_out_for_them both_count_to_the_same_number }

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

    /// With ShedLock's table, as we make it.
    async fn with_driver(self, kind: &str) -> Option<(Self, Driver)> {
        self.client().await.init().await.unwrap();
        let (user, password, database) = (mariadb::USER, mariadb::PASSWORD, mariadb::DATABASE);
        let options = [kind, user, password, database];
        let they = Driver::start_with("shedlock", &self, &options).await?;
        Some((self, they))
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

async fn each_excludes_the_other(database: Database, mut they: Driver) {
    let client = database.client().await;
    // Who comes first makes the row; afterwards it is there.
    for name in ["job", "orders/42", "Größe 🔒 a b"] {
        for round in 0..3 {
            let guard = take(&client, name).await;
            assert!(they.try_fails(name).await, "{name}, round {round}");
            guard.release().await.unwrap();
            let by = they.take(name, LONG).await;
            assert!(try_fails(&client, name).await, "{name}, round {round}");
            let status = client.inspect(name).await.unwrap();
            assert_eq!(hex(status.holds[0].holder.host.as_bytes()), by);
            let next = waiting(&client, name);
            they.unlock(name).await;
            let next = soon("our turn", next).await.unwrap();
            assert!(next.token() > token_of(&status));
            next.release().await.unwrap();
        }
    }
}

fn token_of(status: &tenure::Status) -> tenure::FencingToken {
    status.holds[0].token.unwrap()
}

/// `lockAtMostFor` ends by the database's clock, for us as for them.
async fn a_program_that_died_is_followed(database: Database, mut they: Driver) {
    let client = database.client().await;
    they.take("job", Duration::from_secs(3)).await;
    they.kill();
    assert!(try_fails(&client, "job").await);
    let lock = client.lock("job").ttl(LONG).wait(PATIENCE);
    let next = lock.acquire().await.unwrap();
    next.release().await.unwrap();
}

async fn ours_runs_out_for_them(database: Database, mut they: Driver) {
    let client = database.client().await;
    let lock = client.lock("job").ttl(Duration::from_secs(2));
    let guard = lock.renew(Renew::Never).acquire().await.unwrap();
    they.tell(&["lock", "job", "60000", "30000"]);
    they.held().await;
    assert!(!guard.is_held(), "two believe");
    assert!(guard.release().await.is_err());
    assert!(try_fails(&client, "job").await, "theirs was freed");
    they.unlock("job").await;
}

async fn both_count_to_the_same_number(database: Database, mut they: Driver) {
    const TASKS: u64 = 3;
    const EACH: u64 = 20;
    let scratch = Scratch::new();
    let file = scratch.path().join("number");
    std::fs::write(&file, format!("{:020} nobody\n", 0)).unwrap();
    let (tasks, each) = (TASKS.to_string(), EACH.to_string());
    they.tell(&["count", "a", &tasks, &each, file.to_str().unwrap(), "30000"]);
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
    assert_eq!(they.answer().await, "counted");
    let text = std::fs::read_to_string(&file).unwrap();
    let value: u64 = text.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(value, 2 * TASKS * EACH);
}
