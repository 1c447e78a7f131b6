//! Random steps of several clients, compared with the reference table.

use tenure_testkit::needs;

use crate::common::walk::{Walk, WalkOptions};
use crate::support::{SHARED, client_of, nodes, states, unique, until};

/// Whether a node says that its holder upgrades and waits behind other holders, or no node says that its holder upgrades.
fn shows_upgrade(name: &str, expected: bool) -> bool {
    let states = states(&SHARED, name);
    let says = |text: &str| states.iter().any(|state| state.contains(text));
    if expected {
        says("\"last\":")
    } else {
        !says("upgrading")
    }
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_does_what_the_table_says() {
    needs!(zookeeper);
    let client = async || client_of(&SHARED).await;
    let options = WalkOptions {
        shows_upgrade: &shows_upgrade,
        ..WalkOptions::default()
    };
    for seed in 0..20 {
        let name = unique("walk");
        let mut walk = Walk::new(&name, client, seed, options).await;
        walk.goes_as_the_table_says(60).await;
        walk.close().await;
        until("nothing is left", || nodes(&SHARED, &name).is_empty()).await;
    }
}
