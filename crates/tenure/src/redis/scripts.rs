//! The scripts that run in the server, and their arguments. A script is one request, applied as a whole or not at all.

use std::sync::LazyLock;

use redis::{Cmd, RedisWrite, ToRedisArgs};

use super::settings::Format;

/// A script: its text, and the digest by which a server knows the text.
pub(super) struct Script {
    text: String,
    sha: String,
}

/// How a script publishes messages: to all nodes of a cluster, or to the nodes of the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publish {
    Everywhere,
    Shard,
}

/// The scripts of one format.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
    pub(super) renew: Script,
    pub(super) raise: Script,
    pub(super) write: Script,
    pub(super) inspect: Script,
    pub(super) break_hold: Script,
    /// For many locks at once. `None`: the format has no such scripts.
    pub(super) batch: Option<BatchScripts>,
    /// For holds that are not exclusive. `None`: the format has none.
    pub(super) modes: Option<ModeScripts>,
}

/// For holds beside others. `renew` and `write` are also for holds that may have become exclusive.
pub(super) struct ModeScripts {
    pub(super) acquire: Script,
    pub(super) upgrade: Script,
    pub(super) downgrade: Script,
    pub(super) renew: Script,
    pub(super) write: Script,
}

/// `acquire` and `release` for many locks, in the common case that no lock has a queue; see `batch.rs`.
pub(super) struct BatchScripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
}

/// The scripts of one format. The scripts of all formats take the same arguments and give the same replies.
macro_rules! scripts {
    ($format:literal, $publish:literal) => {
        scripts!(
            $format, $publish, acquire "acquire" "acquire", release "release" "release", renew "renew" "renew",
            raise "raise" "raise", write "write" "write", inspect "look" "inspect", break_hold "break" "break"
        )
    };
    ($format:literal, $publish:literal, $($field:ident $name:literal $file:literal),*) => {{
        // It replaces the line `@common` of a script.
        let common = concat!(
            "local PUBLISH = '",
            $publish,
            "'\n",
            include_str!(concat!("lua/", $format, "/common.lua"))
        );
        let script = |name, body: &str| Script::new(name, &body.replacen("-- @common\n", common, 1));
        Scripts {
            $($field: script($name, include_str!(concat!("lua/", $format, "/", $file, ".lua"))),)*
            batch: None,
            modes: None,
        }
    }};
}

/// The scripts for holds that are not exclusive, which only our own format has.
macro_rules! mode_scripts {
    ($publish:literal) => {{
        let common = concat!(
            "local PUBLISH = '",
            $publish,
            "'\n",
            include_str!("lua/token/common.lua")
        );
        let script =
            |name, body: &str| Script::new(name, &body.replacen("-- @common\n", common, 1));
        Some(ModeScripts {
            acquire: script("acquire_mode", include_str!("lua/token/acquire_mode.lua")),
            upgrade: script("upgrade", include_str!("lua/token/upgrade.lua")),
            downgrade: script("downgrade", include_str!("lua/token/downgrade.lua")),
            renew: script("renew_mode", include_str!("lua/token/renew_mode.lua")),
            write: script("write_mode", include_str!("lua/token/write_mode.lua")),
        })
    }};
}

impl BatchScripts {
    fn token() -> Option<Self> {
        let acquire = include_str!("lua/token/acquire_batch.lua");
        let release = include_str!("lua/token/release_batch.lua");
        Some(Self {
            acquire: Script::new("acquire_many", acquire),
            release: Script::new("release_many", release),
        })
    }
}

impl Scripts {
    pub(super) fn get(format: Format, publish: Publish) -> &'static Self {
        type Set = LazyLock<Scripts>;
        static TOKEN: Set = Set::new(|| Scripts {
            batch: BatchScripts::token(),
            modes: mode_scripts!("PUBLISH"),
            ..scripts!("token", "PUBLISH")
        });
        static TOKEN_SHARD: Set = Set::new(|| Scripts {
            modes: mode_scripts!("SPUBLISH"),
            ..scripts!("token", "SPUBLISH")
        });
        static REDISSON: Set = Set::new(|| scripts!("redisson", "PUBLISH"));
        static REDISSON_SHARD: Set = Set::new(|| scripts!("redisson", "SPUBLISH"));
        match (format, publish) {
            (Format::Token, Publish::Everywhere) => &TOKEN,
            (Format::Token, Publish::Shard) => &TOKEN_SHARD,
            (Format::Redisson, Publish::Everywhere) => &REDISSON,
            (Format::Redisson, Publish::Shard) => &REDISSON_SHARD,
        }
    }
}

impl Script {
    /// The first line of a script names it, for people who watch the server (`MONITOR`).
    pub(super) fn new(name: &str, body: &str) -> Self {
        let text = format!("-- tenure:{name}\n{body}");
        let sha = redis::Script::new(&text).get_hash().to_owned();
        Self { text, sha }
    }

    /// The call by digest; the keys and arguments are still to be added.
    pub(super) fn by_digest(&self, keys: usize) -> Cmd {
        call("EVALSHA", &self.sha, keys)
    }

    /// The call by text, after which the server knows the digest.
    pub(super) fn by_text(&self, keys: usize) -> Cmd {
        call("EVAL", &self.text, keys)
    }
}

fn call(command: &str, script: &str, keys: usize) -> Cmd {
    // Large enough for nearly all calls, so that the buffer need not grow.
    let mut cmd = Cmd::with_capacity(16, script.len() + 800);
    cmd.arg(command).arg(script).arg(keys);
    cmd
}

/// An owner as an argument.
pub(super) enum OwnerText {
    Hex([u8; 32]),
    Long(String),
}

impl ToRedisArgs for OwnerText {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(match self {
            Self::Hex(digits) => digits,
            Self::Long(text) => text.as_bytes(),
        });
    }
}

/// An argument that is formatted into the command, without a string of its own.
pub(super) struct Text<'a>(pub(super) std::fmt::Arguments<'a>);

impl ToRedisArgs for Text<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        use std::io::Write as _;
        // Writing to memory cannot fail.
        let _ = out.writer_for_next_arg().write_fmt(self.0);
    }
}
