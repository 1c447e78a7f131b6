//! `min_hold` of a holder that died: the name stays taken, though nothing released it.

use std::time::Duration;

use tenure::Renew;

use crate::support::{Db, connect, name, shared, soon};

const TTL: Duration = Duration::from_secs(600);
const MIN_HOLD: Duration = Duration::from_secs(7_200);

/// Sets the times of a row back: as if that time had passed.
fn pass(db: &Db, name: &str, time: Duration) {
    let micros = time.as_micros();
    db.rows(&format!(
        "UPDATE tenure_locks SET until=until-{micros},since=since-{micros} WHERE name='{name}'"
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_stays_taken_for_min_hold_after_its_holder_died() {
    for db in shared().await {
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        for is_upgraded in [false, true] {
            let name = name("min-hold-dead");
            let lock = client.lock(&name).ttl(TTL).min_hold(MIN_HOLD);
            let lock = lock.renew(Renew::Never);
            let guard = match is_upgraded {
                false => soon(lock.acquire()).await.unwrap(),
                true => soon(lock.upgradable().acquire()).await.unwrap(),
            };
            if is_upgraded {
                soon(guard.upgrade()).await.unwrap();
            }
            std::mem::forget(guard);
            let exclusive = other.lock(&name).ttl(TTL);
            let shared = exclusive.clone().shared();
            pass(db, &name, MIN_HOLD / 2);
            assert!(soon(exclusive.try_acquire()).await.unwrap().is_none());
            assert!(soon(shared.try_acquire()).await.unwrap().is_none());
            pass(db, &name, MIN_HOLD / 2);
            let next = soon(exclusive.try_acquire()).await.unwrap();
            soon(next.unwrap().release()).await.unwrap();
        }
    }
}
