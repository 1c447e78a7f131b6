//! Every flag once, with its help. No behaviour.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;
use tenure_torture::plan::Kind;

use crate::duration;
use crate::exit::Exit;

/// Hold a distributed lock while a command runs.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    disable_help_subcommand = true,
    subcommand_required = true
)]
#[command(max_term_width = 100, after_long_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) action: Action,
}

const EXIT_CODES: &str = "\
Exit codes:
  0        done; `run`: the command's own code, whatever it is
  1        `break`: no such hold; `check`: a required promise is not kept; `torture`: a
           promise was broken
  2        wrong usage, nothing was touched
  69       the store is unreachable
  70       the store said something unexpected, or the system refused something;
           `torture`: too little happened to say anything
  75       busy, somebody else holds the lock (another number with -E)
  76       the lock was lost while the command ran; the command was ended
  77       the store denied access
  126 127  the command cannot be run, was not found
  128+N    signal N ended the command, or the wait for the lock";

/// What every action understands.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Store that keeps the locks, such as redis://host, etcd://a,b,c or file:/dir
    ///
    /// Without it: a directory of the user, which makes locks for this host
    /// ($XDG_STATE_HOME/tenure/locks, else ~/.local/state/tenure/locks).
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Options of every action",
        env = "TENURE_URL",
        hide_env_values = true
    )]
    pub(crate) url: Option<String>,
    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Options of every action")]
    pub(crate) json: bool,
    /// Print errors only
    #[arg(short, long, global = true, help_heading = "Options of every action")]
    pub(crate) quiet: bool,
    /// Say more; twice: also what the library does
    #[arg(short, long, global = true, help_heading = "Options of every action", action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding every NAME
    Run(Run),
    /// Hold in the foreground until end of input or a signal; print a line per change
    Hold(Hold),
    /// Who holds what
    List(List),
    /// Who holds a name and who waits for it
    Status(Status),
    /// End one hold, and no other
    Break(Break),
    /// What this store, with these settings, promises and what not
    Check(Check),
    /// Live view of holders and queues
    Watch(Watch),
    #[cfg(feature = "bench")]
    /// Measure the store against the rawest way to do the same
    Bench(Bench),
    /// Try to break the lock on this store, and draw what happened
    Torture(Torture),
    /// Print a completion script
    Completions(Completions),
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
#[command(override_usage = "tenure run [OPTIONS] NAME... -- COMMAND [ARG]...")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) acquire: Acquire,
    /// Time between TERM and KILL when the command has to be ended
    ///
    /// TERM goes out early enough that KILL lands before the lease ends; so of a short lease,
    /// the last third is used at most. Where the machine is so slow that TERM itself was late, KILL goes
    /// out earlier, by half of what is left at most.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// Names to hold, all of them or none
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    /// Command to run and its arguments
    ///
    /// It finds the names, their fencing tokens and the owner id in TENURE_NAME, TENURE_TOKEN
    /// and TENURE_OWNER; of several names, one line each.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) acquire: Acquire,
    /// Names to hold, all of them or none
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<OsString>,
}

/// How to acquire.
#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// Give up after this long [default: wait for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,
    /// One try, same as --wait 0
    #[arg(short = 'n', long = "try", conflicts_with = "wait")]
    pub(crate) try_once: bool,
    /// Lease: how long the store keeps the lock for a holder that it does not hear of
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// Stop renewing, and end the command, after this long
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold together with other shared holders
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Be one of at most N holders
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<NonZeroU32>,
    /// First come, first served, or refuse where the store cannot do that
    #[arg(long)]
    pub(crate) fair: bool,
    /// At most one run per interval: the name stays taken until this long after the grant
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) every: Option<Duration>,
    /// The name stays taken for at least this long, even when the command is faster
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,
    /// Exit code for busy
    #[arg(short = 'E', long, value_name = "N", default_value_t = Exit::BUSY)]
    pub(crate) busy_exit_code: u8,
    /// Why, for those who look at the lock
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) label: String,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// The name
    pub(crate) name: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// The name
    pub(crate) name: OsString,
    /// Token of the hold to end, as `tenure status` shows it
    #[arg(long, value_name = "N")]
    pub(crate) token: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Fail unless exclusion survives these faults, such as pause,restart
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub(crate) require: Vec<String>,
    /// First make what the store needs and does not have yet, such as tables
    #[arg(long)]
    pub(crate) init: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) interval: Duration,
}

#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Rounds per measurement; as many as fit into about a second when left out
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<NonZeroU32>,
}

#[derive(Debug, Args)]
pub(crate) struct Torture {
    /// For how long
    #[arg(long = "for", value_name = "DURATION", default_value = "20s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) lasts: Duration,
    /// Processes that want the lock
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) workers: u8,
    /// Names that they share
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) names: u8,
    /// Repeat the faults of another run [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Lease of each lock; faults last a little longer
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// Only these: pause, kill, delay, stall, cut, lost-reply, garbage, trickle, vanish [default: all that are possible]
    ///
    /// pause and kill hit the process that holds; the others its connection, where the URL names plain TCP servers.
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub(crate) faults: Vec<Kind>,
    /// Directory for events and page [default: a new one among the temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell to write for
    pub(crate) shell: Shell,
}

/// Reads the command line. When there is nothing to be done any more (help, version, a mistake),
/// it has been said and the exit comes back.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, Exit> {
    Cli::try_parse_from(arguments).map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        ) {
            // Whoever does not read the help to its end had enough of it.
            let _ = error.print();
            return Exit::Done;
        }
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = error.print();
        } else {
            eprintln!("tenure: {}", one_line(&error.to_string()));
        }
        Exit::Usage
    })
}

/// What clap says in a page, on one line: the mistake, its tip, and where to read more.
fn one_line(page: &str) -> String {
    let mut paragraphs = page.split("\n\n");
    let mistake = paragraphs.next().unwrap_or_default();
    // A URL in the wrong place is repeated by nobody: it may have a password in it.
    let is_secret = |word: &str| word.contains("://") && word.contains('@');
    let words: Vec<_> = mistake
        .split_whitespace()
        .map(|word| if is_secret(word) { "'***'" } else { word })
        .collect();
    let mut line = words.join(" ");
    if let Some(rest) = line.strip_prefix("error: ") {
        line = rest.to_string();
    }
    // What clap says of `--` misleads where `--` stands in front of a command.
    let tips = page
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "));
    for tip in tips.filter(|tip| !tip.contains("as a value") && !is_secret(tip)) {
        line += &format!("; {tip}");
    }
    line + "; see `tenure --help`"
}
