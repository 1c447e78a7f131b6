//! The scripts of Redisson's locks.

use super::super::scripts::{ByMode, ScriptSet, Scripts, TokenScripts, with_common};
use super::lock::RedissonLock;

/// A file of a lock, or what several locks share.
macro_rules! lua {
    ($file:literal) => {
        include_str!(concat!("lua/", $file, ".lua"))
    };
    ($lock:literal, $file:literal) => {
        include_str!(concat!("lua/", $lock, "/", $file, ".lua"))
    };
}

/// The scripts of one lock. Some of them may be those of another lock, or shared by several.
macro_rules! scripts {
    ($script:expr, $lock:literal, $layout:literal, $break:expr) => {
        Scripts {
            acquire: ByMode::alike($script("acquire", lua!($lock, "acquire"))),
            release: $script("release", lua!($lock, "release")),
            renew: ByMode::alike($script("renew", lua!($layout, "renew"))),
            write: ByMode::alike($script("write", lua!($layout, "write"))),
            inspect: $script("look", lua!($lock, "inspect")),
            break_hold: $script("break", $break),
            tokens: None,
            upgrade: None,
            downgrade: None,
            many: None,
        }
    };
}

fn plain(publish: &str) -> Scripts {
    let common = [lua!("common"), lua!("plain", "common"), lua!("hash")];
    let script = with_common(publish, &common);
    Scripts {
        tokens: Some(TokenScripts {
            raise: script("raise", lua!("plain", "raise")),
            reserve: None,
        }),
        ..scripts!(script, "plain", "plain", lua!("plain", "break"))
    }
}

fn fair(publish: &str) -> Scripts {
    let common = [lua!("common"), lua!("fair", "common"), lua!("hash")];
    let script = with_common(publish, &common);
    scripts!(script, "fair", "plain", lua!("fair", "break"))
}

fn read_write(publish: &str) -> Scripts {
    let script = with_common(publish, &[lua!("common"), lua!("rw", "common")]);
    Scripts {
        downgrade: Some(script("downgrade", lua!("rw", "downgrade"))),
        ..scripts!(script, "rw", "rw", lua!("break"))
    }
}

fn semaphore(publish: &str) -> Scripts {
    let common = [lua!("common"), lua!("semaphore", "common")];
    let script = with_common(publish, &common);
    scripts!(script, "semaphore", "semaphore", lua!("break"))
}

/// The scripts of this lock. `is_in_slots`: in a cluster where messages can stay within the nodes of a slot.
pub(crate) fn scripts(lock: RedissonLock, is_in_slots: bool) -> &'static Scripts {
    static PLAIN: ScriptSet = ScriptSet::new(plain);
    static FAIR: ScriptSet = ScriptSet::new(fair);
    static READ_WRITE: ScriptSet = ScriptSet::new(read_write);
    static SEMAPHORE: ScriptSet = ScriptSet::new(semaphore);
    let set = match lock {
        RedissonLock::Plain => &PLAIN,
        RedissonLock::Fair => &FAIR,
        RedissonLock::ReadWrite => &READ_WRITE,
        RedissonLock::Semaphore => &SEMAPHORE,
    };
    set.get(is_in_slots)
}
