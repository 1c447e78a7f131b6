//! The flags that say what is acquired, and how.

use std::num::NonZeroU32;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::duration;
use crate::exit::Exit;

/// How the locks are acquired.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    #[command(flatten)]
    pub(crate) waiting: WaitFlags,
    #[command(flatten)]
    pub(crate) lease: LeaseFlags,
    #[command(flatten)]
    pub(crate) choice: Choice,
    #[command(flatten)]
    pub(crate) reservation: Reservation,
    /// Text that is shown to others who look at the lock, for example why it is held
    ///
    /// Locks of a database session show it after `tenure check --init` has made their table.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) label: String,
}

/// How long to wait, and what to say when that was not long enough.
#[derive(Debug, Args)]
pub(crate) struct WaitFlags {
    /// Stop waiting after this time, also for a store that cannot be reached [default: wait forever for the lock]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// Try once and do not wait; the same as --wait 0
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,
    /// Exit code when another client holds the lock
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::BUSY)]
    pub(crate) busy_exit_code: u8,
}

/// Which of the names are held, and in which mode.
#[derive(Debug, Args)]
pub(crate) struct Choice {
    /// Hold one of the names, the first one that is free, instead of all
    #[arg(long, conflicts_with = "k_of")]
    pub(crate) any: bool,
    /// Hold N of the names, those that are free first, instead of all
    #[arg(long, value_name = "N")]
    pub(crate) k_of: Option<usize>,
    /// Hold the lock together with others that use --shared
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Take one of N permits, so that at most N hold at the same time
    #[arg(long, value_name = "N", value_parser = parse_permits)]
    pub(crate) permits: Option<NonZeroU32>,
    /// Serve waiters in the order in which they came; an error if the store cannot do that
    #[arg(long)]
    pub(crate) fair: bool,
}

fn parse_permits(text: &str) -> Result<NonZeroU32, String> {
    let number = text.parse::<u32>().ok().and_then(NonZeroU32::new);
    number.ok_or_else(|| format!("N is a number from 1 to {}", u32::MAX))
}

/// How long a hold lasts.
#[derive(Debug, Args)]
pub(crate) struct LeaseFlags {
    /// Time to live: how long the store keeps the lock after the holder's last renewal
    ///
    /// The lock is renewed for as long as it is held, so a command may take longer than this.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = duration::parse_ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// When to renew the lock; with `never` the hold ends when --ttl is over
    #[arg(long, value_name = "WHEN", default_value = "automatic")]
    pub(crate) renew: Renewal,
    /// Stop this much earlier, for a store whose clock may run faster than the clock of this machine
    ///
    /// This time is added to a margin of 1 % of --ttl. It is at most half of --ttl.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) drift: Option<Duration>,
    /// Hold for at most this time, then end the command and release
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,
}

/// Until when the lock stays taken, also when its hold has ended.
#[derive(Debug, Args)]
pub(crate) struct Reservation {
    /// Run at most once per interval: the lock stays taken until this time after it was acquired
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) every: Option<Duration>,
    /// Keep the lock taken for at least this time, also when the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,
    /// After a loss, keep the lock reserved for this time, in which late requests of the old holder can end
    ///
    /// A release reserves nothing, nor does the end of --max-hold.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) lock_delay: Option<Duration>,
}

/// Whether the lease is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Renewal {
    /// Three times in each --ttl, for as long as the lock is held
    Automatic,
    /// Not at all: the hold ends when --ttl is over
    Never,
}
