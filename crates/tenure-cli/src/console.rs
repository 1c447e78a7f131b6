//! What `tenure` prints: results on standard output, and messages on standard error, each for people or as JSON lines.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use serde_json::{Value, json};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::Common;
use crate::json::event_line;

/// Prints messages as the flags of this run want them.
pub(crate) struct Console {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// Standard error is a terminal, where a progress line can be redrawn.
    is_terminal: bool,
    /// The progress line is on the terminal now.
    progress_is_shown: Cell<bool>,
}

impl Console {
    pub(crate) fn new(common: &Common) -> Self {
        if common.verbose > 1 {
            let log = tracing_subscriber::fmt()
                .with_writer(io::stderr)
                .with_ansi(false);
            let log = log.with_max_level(tracing::Level::DEBUG).finish();
            // The SDK of `tenure mcp` prints whole messages, and receipts with them.
            let what = Targets::new().with_default(LevelFilter::DEBUG);
            log.with(what.with_target("rmcp", LevelFilter::OFF)).init();
        }
        Self {
            json: common.json,
            quiet: common.quiet,
            verbose: common.verbose > 0,
            is_terminal: io::stderr().is_terminal(),
            progress_is_shown: Cell::new(false),
        }
    }

    /// Prints an error, also with `--quiet`.
    pub(crate) fn error(&self, message: impl Display) {
        if self.json {
            self.event("error", json!({ "message": format!("{message:#}") }));
        } else {
            self.print_message(message);
        }
    }

    /// Prints a message for people, except with `--quiet`.
    pub(crate) fn notice(&self, message: impl Display) {
        if !self.json && !self.quiet {
            self.print_message(message);
        }
    }

    /// Prints a message for people with `--verbose`.
    pub(crate) fn detail(&self, message: impl Display) {
        if !self.json && self.verbose {
            self.print_message(message);
        }
    }

    /// Prints an event with its fields, for programs.
    pub(crate) fn event(&self, event: &str, fields: Value) {
        if self.json {
            let _ = writeln!(io::stderr(), "{}", event_line(event, fields));
        }
    }

    /// Whether the holder of a lock that is waited for is printed.
    pub(crate) fn reports_waiting(&self) -> bool {
        self.json || self.verbose || self.has_progress_line()
    }

    /// Whether a progress line may be drawn on the terminal.
    pub(crate) fn has_progress_line(&self) -> bool {
        self.is_terminal && !self.quiet && !self.json
    }

    /// Draws the progress line over the last one, cut to the width of the terminal.
    pub(crate) fn draw_progress(&self, line: &str) {
        let width = rustix::termios::tcgetwinsize(io::stderr())
            .map_or(80, |size| usize::from(size.ws_col))
            .max(20);
        let cut: String = line.chars().take(width - 1).collect();
        // The rest of the line is erased after the text was written, which flickers less than to erase it before.
        let _ = write!(io::stderr(), "\r{cut}\x1b[K");
        self.progress_is_shown.set(true);
    }

    /// Removes the progress line.
    pub(crate) fn erase_progress(&self) {
        if self.progress_is_shown.replace(false) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn print_message(&self, message: impl Display) {
        self.erase_progress();
        // An error is ignored: there is no other place to report that standard error is closed.
        let _ = writeln!(io::stderr(), "tenure: {message:#}");
    }
}

/// Prints one line of results on standard output.
///
/// # Errors
/// The errors of writing, for example when the reader is gone. Then the caller stops.
pub(crate) fn print_result(line: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
