//! Names and keys, as published and as the servers themselves show them.

use tenure::ErrorKind;

use crate::support::{MARIADB, OPTIONS, POSTGRES, assert_says, connect, name, soon, take};
use tenure_testkit::needs;
use tenure_testkit::postgres;

/// What `IS_USED_LOCK` finds.
#[tokio::test(flavor = "multi_thread")]
async fn names_in_mysql_are_as_published() {
    needs!(mariadb);
    let used = |key: &str| {
        let rows = MARIADB
            .admin()
            .rows(&format!("SELECT IS_USED_LOCK('{key}')"));
        rows[0][0].is_some()
    };
    let long = "x".repeat(64);
    for (prefix, lock, key) in [
        ("", "orders/42", "orders/42"),
        ("app/", "orders/42", "app/orders/42"),
        ("", "12345", "12345"),
        ("", &long[..63], &long[..63]),
        (
            "",
            &long,
            "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c",
        ),
        (
            "",
            "Orders/42",
            "290affee6f174f12d324ec515106d1a811ef355715d4c8b3815888c37146869a",
        ),
        (
            "",
            "Größe 🔒",
            "0c0a7961c7c57da6f21e01c27da82c61734e0c655c5af7f88738aabafcbe3164",
        ),
    ] {
        let url = format!("{}?{OPTIONS}&prefix={prefix}", MARIADB.url());
        let client = connect(&url).await;
        assert!(!used(key), "{key} is in use");
        let guard = take(&client, lock).await;
        assert!(used(key), "{lock} is not {key}");
        soon(guard.release()).await.unwrap();
        assert!(!used(key), "{key} is still in use");
    }
}

/// Locks of our database, as `pg_locks` shows them: class, object, and whether they are one number or two.
fn shown() -> Vec<(i64, i64, i64)> {
    let rows = POSTGRES.admin().rows(
        "SELECT classid, objid, objsubid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND query LIKE '%tenure:%' AND application_name LIKE 'tenure pid %' AND usename = 'names'",
    );
    let number = |cell: &Option<String>| cell.as_ref().unwrap().parse().unwrap();
    let triple = |row: Vec<Option<String>>| (number(&row[0]), number(&row[1]), number(&row[2]));
    rows.into_iter().map(triple).collect()
}

/// Every mapping, against what the server shows.
#[tokio::test(flavor = "multi_thread")]
async fn keys_in_postgres_are_as_published() {
    needs!(postgres);
    // A user of its own, so that the query finds no locks of other tests.
    POSTGRES.admin().rows(&format!(
        "CREATE ROLE names LOGIN PASSWORD '{}'",
        postgres::PASSWORD
    ));
    let base = POSTGRES.url().replacen("tenure:", "names:", 1);
    let one = |key: i64| {
        let bits = key.cast_unsigned();
        (
            i64::try_from(bits >> 32).unwrap(),
            i64::from(bits as u32),
            1,
        )
    };
    let two = |class: i32, object: i32| {
        (
            i64::from(class.cast_unsigned()),
            i64::from(object.cast_unsigned()),
            2,
        )
    };
    // hashtext is a function of the server, and returns a signed number.
    let hashed = POSTGRES.admin().value("SELECT hashtext('it''s')");
    let hashed: i64 = hashed.parse().unwrap();
    for (keys, lock, key) in [
        ("bigint", "job1", one(-3_720_329_102_846_031_715)),
        ("bigint", "orders/42", one(-4_261_225_075_031_449_721)),
        ("bigint", "Größe 🔒", one(867_639_339_092_639_142)),
        ("pair", "job1", two(-866_206_620, 1_632_667_805)),
        ("raw", "72707369", one(72_707_369)),
        ("raw", "77433833903597", one(77_433_833_903_597)),
        ("raw", "-5", one(-5)),
        ("raw", "7,9", two(7, 9)),
        ("raw", "-7,9", two(-7, 9)),
        ("hashtext", "it's", one(hashed)),
        ("csharp", "job1", two(-708_898_025, -1)),
        (
            "csharp",
            "my-long-lock-name",
            one(-6_292_990_556_957_758_089),
        ),
        ("csharp", "00000000000000ff", one(255)),
        ("csharp", "00000007,00000009", two(7, 9)),
        ("ruby", "job1", two(809_586_041, 0)),
        ("sqlx", "job1", one(8_446_400_879_160_614_314)),
    ] {
        let client = connect(&format!("{base}?{OPTIONS}&keys={keys}")).await;
        let guard = take(&client, lock).await;
        assert_eq!(shown(), [key], "{keys}: {lock}");
        soon(guard.release()).await.unwrap();
        assert_eq!(shown(), [], "{keys}: {lock}");
        client.close().await;
    }
}

/// sqlx's own lock of that name.
#[tokio::test(flavor = "multi_thread")]
async fn the_mapping_of_sqlx_is_that_of_sqlx() {
    use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockKey};
    for name in ["job2", "", "Größe 🔒", &"x".repeat(200)] {
        let PgAdvisoryLockKey::BigInt(theirs) = *PgAdvisoryLock::new(name).key() else {
            panic!("not one number");
        };
        if name.is_empty() || postgres::skip_unless_installed() {
            continue;
        }
        let client = connect(&format!("{}?{OPTIONS}&keys=sqlx", POSTGRES.url())).await;
        let guard = take(&client, name).await;
        let try_lock = format!("SELECT pg_try_advisory_lock({theirs})");
        assert_eq!(POSTGRES.database_admin().value(&try_lock), "f", "{name}");
        soon(guard.release()).await.unwrap();
        assert_eq!(POSTGRES.database_admin().value(&try_lock), "t", "{name}");
    }
}

/// A key of another database is another lock.
#[tokio::test(flavor = "multi_thread")]
async fn keys_belong_to_a_database() {
    needs!(postgres);
    let name = name("database");
    let here = connect(&format!("{}?{OPTIONS}", POSTGRES.url())).await;
    let there = POSTGRES.url().replace("/locks", "/postgres");
    let there = connect(&format!("{there}?{OPTIONS}")).await;
    let one = take(&here, &name).await;
    let two = take(&there, &name).await;
    soon(one.release()).await.unwrap();
    soon(two.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_no_key_is_refused() {
    needs!(postgres);
    let client = connect(&format!("{}?{OPTIONS}&keys=raw", POSTGRES.url())).await;
    let outcome = soon(client.lock("orders/42").try_acquire()).await;
    assert_says(outcome, ErrorKind::Invalid, &["keys=raw", "7,9"]);
    let client = connect(&format!("{}?{OPTIONS}&keys=hashtext", POSTGRES.url())).await;
    let outcome = soon(client.lock("a\0b").try_acquire()).await;
    assert_says(outcome, ErrorKind::Invalid, &["zero byte"]);
}
