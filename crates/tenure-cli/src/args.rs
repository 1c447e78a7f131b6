//! The definition of all flags, with their help.

mod acquire;
#[cfg(feature = "mcp")]
mod mcp;
mod receipt;

use std::ffi::OsString;
#[cfg(feature = "bench")]
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{
    ArgAction, ArgMatches, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
};
use clap_complete::Shell;
use tenure_torture::mode::HoldMode;
use tenure_torture::plan::FaultKind;

use crate::duration;
use crate::exit::Exit;
use crate::watch_frame::Order;

pub(crate) use self::acquire::{Acquire, Choice, Renewal, WaitFlags};
#[cfg(feature = "mcp")]
pub(crate) use self::mcp::Mcp;
pub(crate) use self::receipt::{Release, Renew, Take};

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
  0        success; `run`: the exit code of COMMAND, whatever it is
  1        `break`: there is no such hold; `leader`, `ask`: nobody leads, or holds the lock alone;
           `check`: a required guarantee is missing; `torture`: a guarantee was broken
  2        wrong usage; nothing was changed
  69       the store cannot be reached
  70       the store gave an unexpected answer, or the operating system refused something;
           `torture`: too little happened for a verdict
  75       busy: another client holds the lock (-E N: exit with N instead)
  76       the lock was lost, or the time of --max-hold or of --renew never was over;
           COMMAND was not started, or was ended if it still ran;
           `renew`, `release`: the hold of the receipt was over before
  77       the store denied access
  126 127  COMMAND cannot be run; COMMAND was not found
  128+N    signal N ended COMMAND, or ended the wait for the lock";

const RUN_EXAMPLES: &str = "\
Examples:
  Several machines have this line in their crontab, and one of them does the job.
  The others skip it, also when their clocks differ by less than a minute:
    0 3 * * *  tenure run -n -E 0 --min-hold 1m -u redis://db.example nightly -- ./report.sh

  Do not wait: exit with 75 if another client holds the lock:
    tenure run -n nightly -- ./report.sh

  Wait for at most five minutes:
    tenure run -w 5m deploy -- ./deploy.sh

  Readers use --shared and run together; a writer, without it, has the lock alone:
    tenure run --shared catalog -- ./export.sh

  Run at most three at the same time:
    tenure run --permits 3 encode -- ./encode.sh film.mkv

  Hold two locks, both or none:
    tenure run account/1 account/2 -- ./transfer.sh 1 2

  Use any two of four graphics cards; $TENURE_NAME has two lines, the names that are held:
    tenure run --k-of 2 gpu/0 gpu/1 gpu/2 gpu/3 -- ./train.sh

  Run at most once per hour, and do nothing if it has run already:
    tenure run -n -E 0 --every 1h cleanup -- ./cleanup.sh

  One leader: several machines run this line, and COMMAND runs on one of them at a time.
  When that machine fails, the next one starts COMMAND; `tenure leader scheduler` says who leads:
    tenure run --standby --value http://10.0.0.7:8080 scheduler -- ./scheduler

  The same, with a file for the readiness probe, and COMMAND is started again when it ends:
    tenure run --standby --restart --ready-file /run/scheduler.ready scheduler -- ./scheduler

  Run two commands under one hold, and other commands between them:
    tenure take staging --receipt staging.receipt
    tenure run --receipt staging.receipt -- ./deploy.sh
    tenure run --receipt staging.receipt -- ./test.sh
    tenure release staging.receipt

  Use Redis, with the URL in the environment, so that other users do not see its password:
    export TENURE_URL=redis://:password@db.example/0
    tenure run nightly -- ./report.sh";

const RUN_SIGNALS: &str = "\
Signals:
  While it waits, INT, TERM, HUP and QUIT end `tenure`, which leaves the queue.
  While COMMAND runs, INT, TERM, HUP, QUIT, USR1 and USR2 go on to COMMAND and its children.
  COMMAND decides what they mean: `tenure` holds the lock until COMMAND has ended, and no
  KILL follows.
  Ctrl-Z (TSTP) stops COMMAND and `tenure`, and the lock is not renewed meanwhile. After a stop
  that is longer than --ttl the lock is lost, and COMMAND is ended; the code is 76.
  KILL of `tenure` ends COMMAND, too.

Standing by (--standby):
  COMMAND is ended, first with TERM and after --grace with KILL, when the lock is lost, when
  `tenure ask NAME` asks for the lock, and after --max-hold. Then `tenure` stands by again; if
  COMMAND has run for less than a minute, after a pause that grows from 100ms to 30s.
  When COMMAND ends by itself, `tenure` ends with its code; with --restart it gives the lock up
  and stands by again. After INT, TERM or QUIT it ends with COMMAND in both cases.
  While COMMAND does not run, USR1 and USR2 are ignored.
  A store that cannot be reached at the start is an error; later, `tenure` tries again.
  Without --standby, COMMAND goes on when it is asked; -v and --json say that it was.

Waiting:
  On a terminal a line says who holds the lock and for how long `tenure` has waited.
  In a log, -v prints that line once.
  With --wait, a store that cannot be reached is tried again until that time is over, and then
  the code is 69. Without --wait, such a store is an error at once.";

/// The flags of every action.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// URL of the store that keeps the locks, for example redis://host, redis+unix:///path, etcd://a,b,c or file:/dir
    ///
    /// Without a URL, the locks are files of this user and work on this machine only. They are in
    /// $XDG_STATE_HOME/tenure/locks or, if that variable is not set, in ~/.local/state/tenure/locks.
    #[arg(
        short,
        long,
        global = true,
        help_heading = "Common options",
        env = "TENURE_URL",
        hide_env_values = true
    )]
    pub(crate) url: Option<String>,
    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,
    /// Print nothing but errors
    #[arg(short, long, global = true, help_heading = "Common options")]
    pub(crate) quiet: bool,
    /// Print more; -vv also prints what the library does
    #[arg(short, long, global = true, help_heading = "Common options", action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Run a command while holding one or more locks
    Run(Run),
    /// Hold locks until standard input ends or a signal arrives, and print a line for each change
    Hold(Hold),
    /// Take locks and end: the hold goes on without a process, until it is given back by its receipt
    Take(Take),
    /// Keep a hold that `take` made for longer
    Renew(Renew),
    /// Give back a hold that `take` made
    Release(Release),
    /// List the locks that are held, and who holds them
    List(List),
    /// Show who holds a lock and who waits for it
    Status(Status),
    /// Show who leads, with the text that the leader publishes
    Leader(Leader),
    /// Ask the leader, or the holder of a lock, politely to let go
    Ask(Ask),
    /// End the hold of another process, chosen by its fencing token
    Break(Break),
    /// Show what this store guarantees
    Check(Check),
    /// Show holders and waiters, and keep the view up to date
    Watch(Watch),
    /// Serve locks to a client of the Model Context Protocol, on standard input and output
    #[cfg(feature = "mcp")]
    Mcp(Mcp),
    /// Measure this store: compare locking with bare requests
    #[cfg(feature = "bench")]
    Bench(Bench),
    /// Try to break the locks of this store, and draw what happened
    Torture(Torture),
    /// Print a completion script for a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "tenure run [OPTIONS] NAME... -- COMMAND [ARG]...\n       \
                      tenure run [OPTIONS] --receipt RECEIPT -- COMMAND [ARG]..."
)]
#[command(after_long_help = format!("{RUN_SIGNALS}\n\n{RUN_EXAMPLES}"))]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) acquire: Acquire,
    /// Time between SIGTERM and SIGKILL when the command must end because the lock ends
    ///
    /// SIGKILL does not follow a signal that `tenure` passes on, see "Signals" below. When the lock ends,
    /// SIGTERM is sent so early that SIGKILL ends the command before the store can give the lock to
    /// another client. This time is at most a third of --ttl. If the machine is so slow that SIGTERM is
    /// late, SIGKILL is sent earlier: at most half of the remaining time is cut off.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) grace: Duration,
    /// Run the command under the hold of this receipt, which `tenure take` made, and keep the hold afterwards
    ///
    /// RECEIPT is a file, or the text of a receipt. The receipt has the names, so there is no NAME. While the command runs, the
    /// hold is renewed; it is also kept for the time of the receipt, from the start and from the end of the command on. When
    /// the hold is lost or given back meanwhile, the command is ended, and the code is 76.
    #[arg(long, value_name = "RECEIPT")]
    #[arg(conflicts_with_all = [
        "names", "wait", "try_once", "busy_exit_code", "renew", "any", "k_of", "shared", "permits", "fair",
        "every", "min_hold", "lock_delay", "label", "standby",
    ])]
    pub(crate) receipt: Option<OsString>,
    #[command(flatten)]
    pub(crate) standby: StandbyFlags,
    /// Names to hold, all of them or none (with --any: one of them; with --k-of N: N of them)
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<OsString>,
    /// Command to run and its arguments
    ///
    /// Its environment has the names in TENURE_NAME, their fencing tokens in TENURE_TOKEN and the owner
    /// ids in TENURE_OWNER: one line for each name. With --any and --k-of there are lines of the names that are held.
    #[arg(value_name = "COMMAND", last = true)]
    pub(crate) command: Vec<OsString>,
}

/// How `run` stays to take over.
#[derive(Debug, Args)]
pub(crate) struct StandbyFlags {
    /// Stay: run the command on one machine at a time, and stand by again when the lock is lost
    ///
    /// See "Standing by" below. It is about one NAME, which is held alone, and waits for as long as it takes.
    #[arg(
        long,
        conflicts_with_all = ["try_once", "wait", "busy_exit_code", "any", "k_of", "shared", "permits", "every"]
    )]
    pub(crate) standby: bool,
    /// When the command ends by itself, give the lock up and stand by again
    #[arg(long, requires = "standby")]
    pub(crate) restart: bool,
    /// File that exists only while this process leads and the command may run, for health checks
    ///
    /// Each process needs a path of its own. A file of this path that `tenure` did not make is an error, and is left alone.
    /// A file that was left by a `tenure` that was killed is removed at the start.
    #[arg(long, value_name = "PATH", requires = "standby")]
    pub(crate) ready_file: Option<PathBuf>,
    /// Text that `tenure leader` shows while this process leads, for example its address
    #[arg(long, value_name = "TEXT", requires = "standby")]
    pub(crate) value: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Hold {
    #[command(flatten)]
    pub(crate) acquire: Acquire,
    /// Names to hold, all of them or none (with --any: one of them; with --k-of N: N of them)
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Show only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Name of the lock
    pub(crate) name: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct Leader {
    /// Name of the election, which is the name of its lock
    pub(crate) name: OsString,
    /// Go on, and print one line for each change of the leader or of its text
    #[arg(long)]
    pub(crate) follow: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Ask {
    /// Name of the lock
    pub(crate) name: OsString,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// Name of the lock
    pub(crate) name: OsString,
    /// Fencing token of the hold to end; `tenure status NAME` shows it
    ///
    /// For a hold of a database session that shows no token: the number of its connection, which `tenure status` shows too.
    #[arg(long, value_name = "N")]
    pub(crate) token: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Exit with 1 unless one holder at a time is guaranteed under these faults, for example pause,restart
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub(crate) require: Vec<String>,
    /// First create what the store needs and does not have yet, for example tables
    #[arg(long)]
    pub(crate) init: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Show only names that start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) interval: Duration,
    /// Which names come first on a terminal; the key `q` ends the view
    #[arg(long, value_name = "ORDER", default_value = "waiting")]
    pub(crate) sort: Order,
}

#[cfg(feature = "bench")]
#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Rounds per measurement [default: as many as fit into about one second]
    #[arg(long, value_name = "N")]
    pub(crate) rounds: Option<NonZeroU32>,
}

#[derive(Debug, Args)]
pub(crate) struct Torture {
    /// How long the run takes
    #[arg(
        long = "for",
        alias = "duration",
        value_name = "DURATION",
        default_value = "20s"
    )]
    #[arg(value_parser = duration::parse, allow_hyphen_values = true)]
    pub(crate) lasts: Duration,
    /// Number of processes that compete for the locks
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(value_parser = clap::value_parser!(u8).range(2..=64))]
    pub(crate) workers: u8,
    /// Number of tasks in each process, which share a client and pass the lock on among themselves
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=tenure_torture::settings::MAX_TASKS as i64))]
    pub(crate) tasks: u8,
    /// Number of locks that they compete for, beside elections
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) names: u8,
    /// Repeat the faults of the run that had this seed [default: random]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Time to live of each lock; faults last a little longer
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    #[arg(value_parser = duration::parse_ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// Faults to make: pause, kill, delay, stall, cut, lost-reply, garbage, trickle, vanish [default: all that are possible]
    ///
    /// pause and kill hit the process that holds the lock. The others hit its connection; they need a URL with
    /// TCP servers and without TLS.
    #[arg(long, value_name = "FAULT", value_delimiter = ',')]
    pub(crate) faults: Vec<FaultKind>,
    /// How names are held: exclusive, shared, upgradable, permits, elections [default: all that the store has]
    ///
    /// With elections, half of the processes are also candidates for one more name (two with --names of more
    /// than one), and the other half observe who leads. After the last fault the run goes on for up to 6 s
    /// and 4 times --ttl: by then each observer must know who leads.
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    pub(crate) modes: Vec<HoldMode>,
    /// Directory for the events, the page and the picture [default: a new directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell that will read the script
    pub(crate) shell: Shell,
}

/// Reads the command line. For help, the version, and wrong usage, the text is printed and the exit code returned.
pub(crate) fn parse(arguments: Vec<OsString>) -> Result<Cli, Exit> {
    let action = action_of(&arguments);
    let parsed = Cli::command().try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = parsed.map_err(|error| {
        if matches!(
            error.kind(),
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
        ) {
            // A reader may close the pipe before the end of the help.
            let _ = error.print();
            return Exit::Done;
        }
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            let _ = error.print();
        } else {
            eprintln!(
                "tenure: {}",
                one_line(&error.to_string(), action.as_deref())
            );
        }
        Exit::Usage
    })?;
    refuse_empty_url(&cli.common, &matches)?;
    Ok(cli)
}

/// The action among the arguments, for a pointer to its help.
fn action_of(arguments: &[OsString]) -> Option<String> {
    let words = arguments.iter().skip(1).filter_map(|word| word.to_str());
    let command = Cli::command();
    let mut actions = words.filter(|word| command.find_subcommand(word).is_some());
    actions.next().map(ToOwned::to_owned)
}

/// An empty URL is a variable without a value in a script, a unit file or a manifest. Locks of this machine in place of
/// those of the store would exclude no other machine.
fn refuse_empty_url(common: &Common, matches: &ArgMatches) -> Result<(), Exit> {
    if common.url.as_deref() != Some("") {
        return Ok(());
    }
    let action = matches.subcommand().map(|(_, matches)| matches);
    let sources = [Some(matches), action].into_iter().flatten();
    let is_variable = sources
        .filter_map(|matches| matches.value_source("url"))
        .all(|source| source == ValueSource::EnvVariable);
    match is_variable {
        true => eprintln!(
            "tenure: the URL is empty: TENURE_URL is set to nothing; unset TENURE_URL for locks of this machine"
        ),
        false => eprintln!("tenure: the URL is empty; leave `-u` out for locks of this machine"),
    }
    Err(Exit::Usage)
}

/// What else to know about an argument that is missing or wrong.
const HINTS: &[(&str, &str)] = &[
    ("--token <N>", "`tenure status NAME` shows the token"),
    (
        "not provided: --standby",
        "`--restart`, `--ready-file` and `--value` go with `--standby`",
    ),
    ("argument '***'", "a URL goes after `-u`"),
    (
        "'[NAME]...'",
        "the receipt has the names; write `--` in front of COMMAND",
    ),
];

/// Puts the page that clap prints for wrong usage on one line: the mistake, its tip, and where to read more.
/// `action`: the one whose help has more.
fn one_line(page: &str, action: Option<&str>) -> String {
    let mut paragraphs = page.split("\n\n");
    let mistake = paragraphs.next().unwrap_or_default();
    // A URL in the wrong place is not printed: it may have a password in it.
    let is_secret = |word: &str| word.contains("://");
    let words: Vec<_> = mistake
        .split_whitespace()
        .map(|word| if is_secret(word) { "'***'" } else { word })
        .collect();
    let mut line = words.join(" ");
    if let Some(rest) = line.strip_prefix("error: ") {
        line = rest.to_string();
    }
    // The tip of clap about `--` is misleading, because `--` stands in front of a command.
    let tips = page
        .lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "));
    for tip in tips.filter(|tip| !tip.contains("as a value") && !is_secret(tip)) {
        line += &format!("; {tip}");
    }
    let hints = HINTS.iter().filter(|(part, _)| line.contains(part));
    let hints: String = hints.map(|(_, hint)| format!("; {hint}")).collect();
    let action = action.map_or(String::new(), |action| format!(" {action}"));
    format!("{line}{hints}; see `tenure{action} --help`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_can_be_typed() {
        let lines = RUN_EXAMPLES.lines().chain(receipt::TAKE_EXAMPLES.lines());
        let commands = lines.filter_map(|line| {
            let begins = line.trim_start();
            let begin = begins.starts_with("tenure ").then_some(0);
            Some(&begins[begin.or_else(|| begins.find("tenure run "))?..])
        });
        let mut count = 0;
        for command in commands {
            let parsed = Cli::try_parse_from(command.split_whitespace());
            assert!(parsed.is_ok(), "{command}: {parsed:?}");
            count += 1;
        }
        assert!(count > 12, "{count}");
    }

    #[test]
    fn a_url_in_the_wrong_place_is_not_printed() {
        for url in [
            "redis://:hunter2@db/0",
            "redis+sentinel://a,b/s?sentinel_password=hunter2",
        ] {
            let error = Cli::try_parse_from(["tenure", "check", url]).unwrap_err();
            let line = one_line(&error.to_string(), Some("check"));
            assert!(!line.contains("hunter2"), "{line}");
            assert!(line.contains("a URL goes after `-u`"), "{line}");
        }
    }
}
