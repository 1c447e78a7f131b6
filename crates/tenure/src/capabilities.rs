//! What this build has: the schemes of its stores, and which store has which capability.
//!
//! A store needs this table for the text of a refusal. The table repeats what all stores declare, so that no store has to
//! know another one; a test in `connect.rs`, which knows all stores, compares the table with the declarations.

use tenure_core::guarantees::Capability;

/// The URL schemes of this build, for messages.
pub const SCHEMES: &[&str] = &[
    "memory:",
    #[cfg(all(feature = "file", unix))]
    "file:",
    #[cfg(feature = "redis")]
    "redis:",
    #[cfg(feature = "redis")]
    "rediss:",
    #[cfg(all(feature = "redis", unix))]
    "redis+unix:",
    #[cfg(feature = "redis")]
    "redis+sentinel:",
    #[cfg(feature = "redis")]
    "redis+cluster:",
    #[cfg(feature = "redlock")]
    "redlock:",
    #[cfg(feature = "etcd")]
    "etcd:",
    #[cfg(feature = "etcd")]
    "etcds:",
    #[cfg(feature = "zookeeper")]
    "zookeeper:",
    #[cfg(feature = "mysql")]
    "mysql:",
    #[cfg(feature = "postgres")]
    "postgres:",
    #[cfg(feature = "sqlite")]
    "sqlite:",
];

/// Schemes of stores that are not in this build, with what to do about it.
pub(crate) const NOT_HERE: &[(&str, &str)] = &[
    #[cfg(not(unix))]
    (
        "file",
        "it works on Linux and macOS only; on one host use `sqlite:`, else a server",
    ),
    #[cfg(all(unix, not(feature = "file")))]
    ("file", "build with the feature `file`"),
    #[cfg(not(feature = "redis"))]
    ("redis", REDIS),
    #[cfg(not(feature = "redis"))]
    ("rediss", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redis+unix", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redis+sentinel", REDIS),
    #[cfg(not(feature = "redis"))]
    ("redis+cluster", REDIS),
    #[cfg(not(feature = "redlock"))]
    ("redlock", "build with the feature `redlock`"),
    #[cfg(not(feature = "etcd"))]
    ("etcd", ETCD),
    #[cfg(not(feature = "etcd"))]
    ("etcds", ETCD),
    #[cfg(not(feature = "zookeeper"))]
    ("zookeeper", "build with the feature `zookeeper`"),
    #[cfg(not(feature = "mysql"))]
    ("mysql", "build with the feature `mysql`"),
    #[cfg(not(feature = "postgres"))]
    ("postgres", "build with the feature `postgres`"),
    #[cfg(not(feature = "sqlite"))]
    ("sqlite", "build with the feature `sqlite`"),
];
#[cfg(not(feature = "etcd"))]
const ETCD: &str = "build with the feature `etcd`";
#[cfg(not(feature = "redis"))]
const REDIS: &str = "build with the feature `redis`";

/// The capabilities of each store in its usual configuration, with the beginning of its URL.
#[allow(
    dead_code,
    reason = "a build with `memory:` alone has no store that refuses"
)]
pub(crate) const CAPABILITIES: &[(&str, &[Capability])] = &[
    ("memory:", &Capability::ALL),
    #[cfg(all(feature = "file", unix))]
    (
        "file:",
        &[
            Capability::Shared,
            Capability::Upgradable,
            Capability::Permits,
            Capability::MinHold,
            Capability::LockDelay,
            Capability::Elections,
            Capability::Detach,
        ],
    ),
    #[cfg(feature = "redis")]
    ("redis:", &Capability::ALL),
    #[cfg(feature = "redlock")]
    (
        "redlock:",
        &[
            Capability::Shared,
            Capability::Upgradable,
            Capability::MinHold,
            Capability::LockDelay,
            Capability::Elections,
            Capability::Detach,
        ],
    ),
    #[cfg(feature = "etcd")]
    ("etcd:", &Capability::ALL),
    #[cfg(feature = "zookeeper")]
    (
        "zookeeper:",
        &[
            Capability::Shared,
            Capability::Upgradable,
            Capability::Permits,
            Capability::Fair,
            Capability::Elections,
        ],
    ),
    #[cfg(feature = "mysql")]
    (
        "mysql:",
        &[Capability::Fair, Capability::MinHold, Capability::Elections],
    ),
    #[cfg(feature = "mysql")]
    ("mysql: with mode=table", &Capability::ALL),
    #[cfg(feature = "postgres")]
    (
        "postgres:",
        &[
            Capability::Shared,
            Capability::Upgradable,
            Capability::Fair,
            Capability::MinHold,
            Capability::Elections,
        ],
    ),
    #[cfg(feature = "postgres")]
    ("postgres: with mode=table", &Capability::ALL),
    #[cfg(feature = "sqlite")]
    ("sqlite:", &Capability::ALL),
];

/// The stores of this build that have `capability`, for a message; the message says that a build can have more stores.
#[allow(
    dead_code,
    reason = "a build with `memory:` alone has no store that refuses"
)]
pub(crate) fn stores_with(capability: Capability) -> String {
    let all = CAPABILITIES.iter();
    let have = all.filter(|(_, have)| have.contains(&capability));
    let have: Vec<_> = have.map(|(url, _)| format!("`{url}`")).collect();
    let not_here = match NOT_HERE {
        [] => "",
        _ => " (of the stores in this build; others need a cargo feature)",
    };
    format!("{}{not_here}", have.join(", "))
}
