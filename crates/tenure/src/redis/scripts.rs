//! The scripts that decide about locks in the server, and their arguments.

use std::sync::LazyLock;

use redis::{RedisWrite, ToRedisArgs};

use super::connection::Script;
use super::settings::{Format, RedissonLock};

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
    /// `None`: the format is for a single store only, never for one of several that form a majority.
    pub(super) raise: Option<Script>,
    pub(super) write: Script,
    pub(super) inspect: Script,
    pub(super) break_hold: Script,
    /// For many locks at once. `None`: the format has no such scripts.
    pub(super) batch: Option<BatchScripts>,
    /// For several locks, all or none. `None`: the format has no such script.
    pub(super) acquire_all: Option<Script>,
    pub(super) modes: Modes,
}

/// How a format treats holds that are not exclusive.
pub(super) enum Modes {
    /// The format has no such holds.
    Exclusive,
    /// The scripts for exclusive holds are for all holds; `renew` and `write` take the keys of the holders too.
    Alike {
        /// `None`: no hold changes its mode.
        downgrade: Option<Script>,
    },
    /// The format has scripts for such holds.
    Separate(ModeScripts),
}

/// For shared holds. `renew` and `write` are also for holds that may have become exclusive.
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

/// A script of a format, with what all scripts of the format share in place of the line `@common`.
macro_rules! script {
    ($format:literal, $publish:literal, $name:literal, $file:literal) => {{
        let common = concat!(
            "local PUBLISH = '",
            $publish,
            "'\n",
            include_str!(concat!("lua/", $format, "/common.lua"))
        );
        let body = include_str!(concat!("lua/", $format, "/", $file, ".lua"));
        Script::new($name, &body.replacen("-- @common\n", common, 1))
    }};
}

/// The scripts of one format. The scripts of all formats take the same arguments and give the same replies. The scripts
/// for one lock may be those of another format with the same layout.
macro_rules! scripts {
    ($format:literal, $publish:literal) => {
        scripts!($format, $publish, $format)
    };
    ($format:literal, $publish:literal, $layout:literal) => {
        Scripts {
            acquire: script!($format, $publish, "acquire", "acquire"),
            release: script!($format, $publish, "release", "release"),
            renew: script!($layout, $publish, "renew", "renew"),
            raise: None,
            write: script!($layout, $publish, "write", "write"),
            inspect: script!($format, $publish, "look", "inspect"),
            break_hold: script!($format, $publish, "break", "break"),
            batch: None,
            acquire_all: None,
            modes: Modes::Exclusive,
        }
    };
}

/// The scripts of our own format for holds that are not exclusive.
macro_rules! mode_scripts {
    ($publish:literal) => {
        Modes::Separate(ModeScripts {
            acquire: script!("token", $publish, "acquire_mode", "acquire_mode"),
            upgrade: script!("token", $publish, "upgrade", "upgrade"),
            downgrade: script!("token", $publish, "downgrade", "downgrade"),
            renew: script!("token", $publish, "renew_mode", "renew_mode"),
            write: script!("token", $publish, "write_mode", "write_mode"),
        })
    };
}

/// The scripts of all formats, with one way to publish.
macro_rules! formats {
    ($publish:literal, $batch:expr, $format:expr) => {
        match $format {
            Format::Token => Scripts {
                raise: Some(script!("token", $publish, "raise", "raise")),
                batch: $batch,
                acquire_all: acquire_all(),
                modes: mode_scripts!($publish),
                ..scripts!("token", $publish)
            },
            Format::Redisson(RedissonLock::Plain) => Scripts {
                raise: Some(script!("redisson", $publish, "raise", "raise")),
                ..scripts!("redisson", $publish)
            },
            Format::Redisson(RedissonLock::Fair) => {
                scripts!("redisson_fair", $publish, "redisson")
            }
            Format::Redisson(RedissonLock::ReadWrite) => Scripts {
                modes: Modes::Alike {
                    downgrade: Some(script!("redisson_rw", $publish, "downgrade", "downgrade")),
                },
                ..scripts!("redisson_rw", $publish)
            },
            Format::Redisson(RedissonLock::Semaphore) => Scripts {
                modes: Modes::Alike { downgrade: None },
                ..scripts!("redisson_semaphore", $publish)
            },
        }
    };
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

fn acquire_all() -> Option<Script> {
    let body = include_str!("lua/token/acquire_all.lua");
    Some(Script::new("acquire_all", body))
}

impl Scripts {
    pub(super) fn get(format: Format, has_shard_channels: bool) -> &'static Self {
        let publish = match has_shard_channels {
            true => Publish::Shard,
            false => Publish::Everywhere,
        };
        type Set = LazyLock<Scripts>;
        macro_rules! set {
            ($format:expr) => {
                match publish {
                    Publish::Everywhere => {
                        static SET: Set = Set::new(|| everywhere($format));
                        &SET
                    }
                    Publish::Shard => {
                        static SET: Set = Set::new(|| in_shard($format));
                        &SET
                    }
                }
            };
        }
        match format {
            Format::Token => set!(Format::Token),
            Format::Redisson(lock) => match lock {
                RedissonLock::Plain => set!(Format::Redisson(RedissonLock::Plain)),
                RedissonLock::ReadWrite => set!(Format::Redisson(RedissonLock::ReadWrite)),
                RedissonLock::Fair => set!(Format::Redisson(RedissonLock::Fair)),
                RedissonLock::Semaphore => set!(Format::Redisson(RedissonLock::Semaphore)),
            },
        }
    }
}

impl Scripts {
    /// The script for holds of these modes: `alike`, or what `separate` chooses of the scripts for holds that are not
    /// exclusive; and whether the script takes the keys of the holders too.
    pub(super) fn for_holds<'a>(
        &'a self,
        is_shared_hold: bool,
        alike: &'a Script,
        separate: impl Fn(&'a ModeScripts) -> &'a Script,
    ) -> (&'a Script, bool) {
        match &self.modes {
            Modes::Separate(scripts) if is_shared_hold => (separate(scripts), true),
            Modes::Separate(_) | Modes::Exclusive => (alike, false),
            Modes::Alike { .. } => (alike, true),
        }
    }
}

fn everywhere(format: Format) -> Scripts {
    formats!("PUBLISH", BatchScripts::token(), format)
}

/// In a cluster each lock is a request of its own.
fn in_shard(format: Format) -> Scripts {
    formats!("SPUBLISH", None, format)
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
