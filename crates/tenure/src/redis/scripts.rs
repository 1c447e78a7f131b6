//! The scripts that decide about locks in the server, and their arguments.

use std::sync::OnceLock;

use redis::{RedisWrite, ToRedisArgs};

use tenure_core::fence::OwnerId;

use super::connection::Script;

/// The scripts of one format. The scripts of all formats take the same arguments and give the same replies.
pub(super) struct Scripts {
    pub(super) acquire: ByMode,
    pub(super) release: Script,
    pub(super) renew: ByMode,
    pub(super) write: ByMode,
    pub(super) inspect: Script,
    pub(super) break_hold: Script,
    /// `None`: the format is for a single store only, never for one of several that form a majority.
    pub(super) tokens: Option<TokenScripts>,
    /// `None`: no hold of the format becomes exclusive.
    pub(super) upgrade: Option<Script>,
    /// `None`: no hold of the format becomes shared.
    pub(super) downgrade: Option<Script>,
    /// `None`: the format has no scripts about many locks.
    pub(super) many: Option<ManyScripts>,
}

/// The scripts of candidates and observers. `acquire`, `release` and `raise` do what those of locks do, and tell observers.
pub(super) struct ElectionScripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
    pub(super) raise: Script,
    /// Also of a lock whose guard waits to be asked to let go.
    pub(super) renew: Script,
    pub(super) publish: Script,
    pub(super) tell: Script,
    pub(super) leader: Script,
    pub(super) ask: Script,
    pub(super) unask: Script,
}

/// The scripts that detach holds from a client and attach them to one. They publish nothing.
pub(super) struct DetachScripts {
    pub(super) detach: Script,
    pub(super) attach: Script,
}

/// Scripts that give a hold other tokens than that of its grant.
pub(super) struct TokenScripts {
    pub(super) raise: Script,
    /// `None`: the format has one token for each hold.
    pub(super) reserve: Option<Script>,
}

/// For holds that are exclusive, and for others.
pub(super) struct ByMode {
    exclusive: Script,
    /// Also for holds that may have become exclusive. `None`: the one script is for all modes.
    shared: Option<Script>,
}

/// Scripts about many locks at once. `acquire` and `release` are for the common case that no lock has a queue; see
/// `batch.rs`. `acquire_all` takes all of the locks or none.
pub(super) struct ManyScripts {
    pub(super) acquire: Script,
    pub(super) release: Script,
    /// Of many readers of one lock.
    pub(super) acquire_shared: Script,
    pub(super) release_shared: Script,
    pub(super) acquire_all: Script,
}

impl ByMode {
    pub(super) fn alike(script: Script) -> Self {
        Self {
            exclusive: script,
            shared: None,
        }
    }

    pub(super) fn get(&self, is_shared: bool) -> &Script {
        let shared = self.shared.as_ref().filter(|_| is_shared);
        shared.unwrap_or(&self.exclusive)
    }
}

/// Makes the scripts of one format: `common` is what they share, in place of the line `@common`; `@write_value` is what the
/// scripts share that write under holds, `@extend` those that extend leases, and `@sighting` those that tell observers of an
/// election. They publish with the command `publish`.
pub(super) fn with_common(publish: &str, common: &[&str]) -> impl Fn(&str, &str) -> Script {
    let publish = format!("local PUBLISH = '{publish}'\n");
    let common = format!("{publish}{}", common.concat());
    let sighting = format!("{publish}{}", include_str!("lua/sighting.lua"));
    move |name, body| {
        let body = body.replacen("-- @common\n", &common, 1);
        let body = body.replacen("-- @sighting\n", &sighting, 1);
        let body = body.replacen("-- @extend\n", EXTEND, 1);
        let write = include_str!("lua/write_value.lua");
        Script::new(name, &body.replacen("-- @write_value\n", write, 1))
    }
}

/// The scripts of one format for all clients: they are made once for each way to publish.
pub(super) struct ScriptSet<T = Scripts> {
    make: fn(&str) -> T,
    made: [OnceLock<T>; 2],
}

impl<T> ScriptSet<T> {
    pub(super) const fn new(make: fn(&str) -> T) -> Self {
        Self {
            make,
            made: [OnceLock::new(), OnceLock::new()],
        }
    }

    /// `is_in_slots`: messages can stay within the nodes of a slot; otherwise all nodes of a cluster get them.
    pub(super) fn get(&self, is_in_slots: bool) -> &T {
        let way = usize::from(is_in_slots);
        self.made[way].get_or_init(|| (self.make)(["PUBLISH", "SPUBLISH"][way]))
    }
}

/// The scripts of our own format.
pub(super) fn scripts(is_in_slots: bool) -> &'static Scripts {
    static TOKEN: ScriptSet = ScriptSet::new(token);
    TOKEN.get(is_in_slots)
}

/// The scripts of elections in our own format.
pub(super) fn election_scripts(is_in_slots: bool) -> &'static ElectionScripts {
    static ELECTIONS: ScriptSet<ElectionScripts> = ScriptSet::new(elections);
    ELECTIONS.get(is_in_slots)
}

/// The scripts of detached holds in our own format. Both do the same.
pub(super) fn detach_scripts() -> &'static DetachScripts {
    static DETACH: OnceLock<DetachScripts> = OnceLock::new();
    DETACH.get_or_init(|| {
        let body = include_str!("lua/attach.lua").replacen("-- @extend\n", EXTEND, 1);
        DetachScripts {
            detach: Script::new("detach", &body),
            attach: Script::new("attach", &body),
        }
    })
}

/// What the scripts share that extend the lease of a hold.
const EXTEND: &str = include_str!("lua/extend.lua");

/// What the scripts of our own format share.
const COMMON: [&str; 2] = [
    include_str!("lua/common.lua"),
    include_str!("lua/queue.lua"),
];

fn token(publish: &str) -> Scripts {
    let script = with_common(publish, &COMMON);
    let by_mode = |name: [&str; 2], body: [&str; 2]| ByMode {
        exclusive: script(name[0], body[0]),
        shared: Some(script(name[1], body[1])),
    };
    Scripts {
        acquire: by_mode(
            ["acquire", "acquire_mode"],
            [
                include_str!("lua/acquire.lua"),
                include_str!("lua/acquire_mode.lua"),
            ],
        ),
        release: script("release", include_str!("lua/release.lua")),
        renew: by_mode(
            ["renew", "renew_mode"],
            [
                include_str!("lua/renew.lua"),
                include_str!("lua/renew_mode.lua"),
            ],
        ),
        write: by_mode(
            ["write", "write_mode"],
            [
                include_str!("lua/write.lua"),
                include_str!("lua/write_mode.lua"),
            ],
        ),
        inspect: script("look", include_str!("lua/inspect.lua")),
        break_hold: script("break", include_str!("lua/break.lua")),
        tokens: Some(TokenScripts {
            raise: script("raise", include_str!("lua/raise.lua")),
            reserve: Some(Script::new("reserve", include_str!("lua/reserve.lua"))),
        }),
        upgrade: Some(script("upgrade", include_str!("lua/upgrade.lua"))),
        downgrade: Some(script("downgrade", include_str!("lua/downgrade.lua"))),
        many: Some(ManyScripts {
            acquire: script("acquire_many", include_str!("lua/acquire_batch.lua")),
            release: script("release_many", include_str!("lua/release_batch.lua")),
            acquire_shared: script(
                "acquire_shared_many",
                include_str!("lua/acquire_shared_batch.lua"),
            ),
            release_shared: script(
                "release_shared_many",
                include_str!("lua/release_shared_batch.lua"),
            ),
            acquire_all: script("acquire_all", include_str!("lua/acquire_all.lua")),
        }),
    }
}

fn elections(publish: &str) -> ElectionScripts {
    let script = with_common(publish, &COMMON);
    let as_lock = |name, body| {
        let candidate = include_str!("lua/candidate.lua");
        script(name, &candidate.replacen("-- @lock\n", body, 1))
    };
    // What a script does has one name, for candidates too.
    ElectionScripts {
        acquire: as_lock("acquire", include_str!("lua/acquire.lua")),
        release: as_lock("release", include_str!("lua/release.lua")),
        raise: as_lock("raise", include_str!("lua/raise.lua")),
        renew: script("renew", include_str!("lua/renew_asked.lua")),
        publish: script("publish", include_str!("lua/publish.lua")),
        tell: script("tell", include_str!("lua/tell.lua")),
        leader: script("leader", include_str!("lua/leader.lua")),
        ask: script("ask", include_str!("lua/ask.lua")),
        unask: script("unask", include_str!("lua/unask.lua")),
    }
}

/// An owner as an argument.
pub(super) struct OwnerText<'a> {
    /// The id of the client, if the format has it before the owner.
    pub(super) client: Option<&'a str>,
    pub(super) owner: OwnerId,
}

impl ToRedisArgs for OwnerText<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        let owner = self.owner.to_digits();
        match self.client {
            None => out.write_arg(&owner),
            Some(client) => out.write_arg(&[client.as_bytes(), b":", &owner].concat()),
        }
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
