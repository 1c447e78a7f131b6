//! The scripts that run in the server: each is one request, applied as a whole or not at all.

use std::sync::LazyLock;

use redis::Cmd;

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
    pub(super) look: Script,
    pub(super) break_hold: Script,
}

impl Scripts {
    pub(super) fn get(publish: Publish) -> &'static Self {
        static EVERYWHERE: LazyLock<Scripts> = LazyLock::new(|| Scripts::new("PUBLISH"));
        static SHARD: LazyLock<Scripts> = LazyLock::new(|| Scripts::new("SPUBLISH"));
        match publish {
            Publish::Everywhere => &EVERYWHERE,
            Publish::Shard => &SHARD,
        }
    }

    fn new(publish: &str) -> Self {
        let common = include_str!("lua/common.lua");
        let about_one = |name: &str, body: &str| {
            Script::new(
                name,
                &format!("local PUBLISH = '{publish}'\n{common}{body}"),
            )
        };
        Self {
            acquire: about_one("acquire", include_str!("lua/acquire.lua")),
            release: about_one("release", include_str!("lua/release.lua")),
            renew: Script::new("renew", include_str!("lua/renew.lua")),
            raise: about_one("raise", include_str!("lua/raise.lua")),
            look: about_one("look", include_str!("lua/look.lua")),
            break_hold: about_one("break", include_str!("lua/break.lua")),
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
    let mut cmd = redis::cmd(command);
    cmd.arg(script).arg(keys);
    cmd
}
