//! The scripts that run in the server: each is one request, applied as a whole or not at all.

use std::sync::LazyLock;

use redis::Cmd;

use super::settings::Format;

/// A script, by its digest once the server knows it.
pub(super) struct Script {
    text: String,
    sha: String,
}

/// How a script tells a waiter: to every node of a cluster, or within the shard of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Publish {
    Everywhere,
    Shard,
}

/// One set of the scripts.
pub(super) struct Scripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
    pub(super) renew: Script,
    pub(super) raise: Script,
    pub(super) write: Script,
    pub(super) look: Script,
    pub(super) break_hold: Script,
    /// For many locks at once, where a dialect has that.
    pub(super) many: Option<BatchScripts>,
}

/// The same as `acquire` and `release` in the common case, in which nobody waits; see `crowd`.
pub(super) struct BatchScripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
}

/// The scripts of one dialect. Those of all dialects take the same arguments and give the same answers.
macro_rules! scripts {
    ($dialect:literal, $publish:literal) => {{
        // Where a script has the line `@common`.
        let common = concat!(
            "local PUBLISH = '",
            $publish,
            "'\n",
            include_str!(concat!("lua/", $dialect, "/common.lua"))
        );
        let script =
            |name, body: &str| Script::new(name, &body.replacen("-- @common\n", common, 1));
        Scripts {
            acquire: script(
                "acquire",
                include_str!(concat!("lua/", $dialect, "/acquire.lua")),
            ),
            release: script(
                "release",
                include_str!(concat!("lua/", $dialect, "/release.lua")),
            ),
            renew: script(
                "renew",
                include_str!(concat!("lua/", $dialect, "/renew.lua")),
            ),
            raise: script(
                "raise",
                include_str!(concat!("lua/", $dialect, "/raise.lua")),
            ),
            write: script(
                "write",
                include_str!(concat!("lua/", $dialect, "/write.lua")),
            ),
            look: script(
                "look",
                include_str!(concat!("lua/", $dialect, "/inspect.lua")),
            ),
            break_hold: script(
                "break",
                include_str!(concat!("lua/", $dialect, "/break.lua")),
            ),
            many: None,
        }
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
    pub(super) fn get(dialect: Format, publish: Publish) -> &'static Self {
        type Set = LazyLock<Scripts>;
        static TOKEN: Set = Set::new(|| Scripts {
            many: BatchScripts::token(),
            ..scripts!("token", "PUBLISH")
        });
        static TOKEN_SHARD: Set = Set::new(|| scripts!("token", "SPUBLISH"));
        static REDISSON: Set = Set::new(|| scripts!("redisson", "PUBLISH"));
        static REDISSON_SHARD: Set = Set::new(|| scripts!("redisson", "SPUBLISH"));
        match (dialect, publish) {
            (Format::Token, Publish::Everywhere) => &TOKEN,
            (Format::Token, Publish::Shard) => &TOKEN_SHARD,
            (Format::Redisson, Publish::Everywhere) => &REDISSON,
            (Format::Redisson, Publish::Shard) => &REDISSON_SHARD,
        }
    }
}

impl Script {
    /// The first line of every script says what it is, for whoever watches the server (`MONITOR`).
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
    // As large as nearly all calls get, in one go.
    let mut cmd = Cmd::with_capacity(16, script.len() + 800);
    cmd.arg(command).arg(script).arg(keys);
    cmd
}
