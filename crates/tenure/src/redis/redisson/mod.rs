//! The formats of Redisson's locks (`dialect=redisson`), so that programs in Java and this library exclude each other.
//!
//! Each lock of Redisson has its own layout of keys, and a folder of scripts in `lua/`. The requests are those of our own
//! format, and the scripts give the same replies. `docs/design/redis.md` says what a holder of ours looks like to Java.
//!
//! # Reading order
//! `lock` (which lock a name is, and what follows) · `names` (the keys) · `scripts` and `lua/` · `errors` ·
//! `guarantees`

mod errors;
mod guarantees;
mod lock;
mod names;
mod scripts;

pub(super) use self::errors::{
    lease_too_long, no_detached_holds, no_elections, no_mode_change, no_node, refused,
};
pub(super) use self::guarantees::describe;
pub use self::lock::RedissonLock;
pub(super) use self::names::RedissonKeys;
pub(super) use self::scripts::scripts;
