//! The flags of `take`, `renew` and `release`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::acquire::{Choice, WaitFlags};
use crate::duration;

const TAKE_HELP: &str = "\
The hold is in the store and needs no process. It ends when `tenure release` gives it back, when
`tenure break` ends it, and when the time of --for is over; `tenure renew` begins that time again.
`tenure list` and `tenure status` show it, with the text of --holder.

The receipt is a secret of the holder: with it, and with access to the store, a program can give
the hold back. It has no user and no password of the store.

With --receipt FILE the command may be repeated: if FILE has the receipt of a hold of the same
names that goes on, that hold is renewed, and nothing waits. If that hold is over, the locks are
taken again, and FILE is replaced. FILE with the receipt of another hold that goes on is an error,
and so is a FILE that is no receipt; neither is changed.

Not every store has this: `tenure check` says `detach` where it is there.";

pub(super) const TAKE_EXAMPLES: &str = "\
Examples:
  Take an environment in one job, and give it back in a later one:
    tenure take staging --for 2h --holder build-77 --receipt staging.receipt
    tenure release staging.receipt

  The same in a shell:
    receipt=$(tenure take staging) || exit
    ./deploy.sh
    echo \"$receipt\" | tenure release -

  Take one of four graphics cards, and do not wait:
    tenure take -n --any gpu/0 gpu/1 gpu/2 gpu/3 --for 8h --receipt gpu.receipt

  Run a command that ends when the hold is lost:
    tenure run --receipt staging.receipt -- ./deploy.sh";

const RECEIPT_HELP: &str = "\
RECEIPT is a file, `-` for standard input, or the text of a receipt. Every user of this machine can see
the arguments of a process, so a file or standard input is better than the text.
The store is that of -u or TENURE_URL, as for the other actions: the receipt has no password.";

#[derive(Debug, Args)]
#[command(after_long_help = format!("{TAKE_HELP}\n\n{TAKE_EXAMPLES}"))]
pub(crate) struct Take {
    #[command(flatten)]
    pub(crate) waiting: WaitFlags,
    /// How long the hold lasts if it is not renewed, from 1s to 30d
    #[arg(long = "for", value_name = "DURATION", default_value = "30m")]
    #[arg(value_parser = duration::parse_hold, allow_hyphen_values = true)]
    pub(crate) lasts: Duration,
    #[command(flatten)]
    pub(crate) choice: Choice,
    /// Text that is shown to others who look at the lock, for example who holds it and why
    #[arg(long, visible_alias = "label", value_name = "TEXT", default_value = "")]
    #[arg(hide_default_value = true)]
    pub(crate) holder: String,
    /// File for the receipt, which only this user can read [default: print the receipt]
    #[arg(long, value_name = "FILE")]
    pub(crate) receipt: Option<PathBuf>,
    /// Names to take, all of them or none (with --any: one of them; with --k-of N: N of them)
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_long_help = RECEIPT_HELP)]
pub(crate) struct Renew {
    /// How long the hold lasts from now on, from 1s to 30d [default: as `take --for` said]
    ///
    /// A hold never ends earlier by this: a shorter time than what is left of the hold changes nothing.
    #[arg(long = "for", value_name = "DURATION")]
    #[arg(value_parser = duration::parse_hold, allow_hyphen_values = true)]
    pub(crate) lasts: Option<Duration>,
    /// The receipt: a file, `-` for standard input, or the text itself
    pub(crate) receipt: OsString,
}

#[derive(Debug, Args)]
#[command(after_long_help = RECEIPT_HELP)]
pub(crate) struct Release {
    /// The receipt: a file, `-` for standard input, or the text itself
    ///
    /// A file stays where it is. To release again is an error with the code 76: the hold is over.
    pub(crate) receipt: OsString,
}
