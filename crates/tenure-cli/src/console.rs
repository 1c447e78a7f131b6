//! What `tenure` prints: results on standard output, and messages on standard error, each for people or as JSON lines.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};

use serde_json::{Value, json};

use crate::args::Common;
use crate::json::event_line;

/// The voice of one run of `tenure`.
pub(crate) struct Console {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// Standard error is a terminal where a line may be drawn anew.
    is_terminal: bool,
    /// A line that will be drawn anew is on the terminal now.
    progress_is_shown: Cell<bool>,
}

impl Console {
    pub(crate) fn new(common: &Common) -> Self {
        if common.verbose > 1 {
            let log = tracing_subscriber::fmt()
                .with_writer(io::stderr)
                .with_ansi(false);
            log.with_max_level(tracing::Level::DEBUG).init();
        }
        Self {
            json: common.json,
            quiet: common.quiet,
            verbose: common.verbose > 0,
            is_terminal: io::stderr().is_terminal(),
            progress_is_shown: Cell::new(false),
        }
    }

    /// An error, whatever was asked for.
    pub(crate) fn error(&self, message: impl Display) {
        if self.json {
            self.event("error", json!({ "message": message.to_string() }));
        } else {
            self.print_message(message);
        }
    }

    /// Something that people should know, unless they asked for quiet.
    pub(crate) fn notice(&self, message: impl Display) {
        if !self.json && !self.quiet {
            self.print_message(message);
        }
    }

    /// Something for those who asked for more.
    pub(crate) fn detail(&self, message: impl Display) {
        if !self.json && self.verbose {
            self.print_message(message);
        }
    }

    /// An event with its fields, for programs.
    pub(crate) fn event(&self, event: &str, fields: Value) {
        if self.json {
            let _ = writeln!(io::stderr(), "{}", event_line(event, fields));
        }
    }

    /// Whether somebody wants to hear who holds what is waited for.
    pub(crate) fn reports_waiting(&self) -> bool {
        self.json || self.verbose || self.has_progress_line()
    }

    /// Whether a line may be drawn on the terminal and drawn anew.
    pub(crate) fn has_progress_line(&self) -> bool {
        self.is_terminal && !self.quiet && !self.json
    }

    /// Draws the one line that is drawn anew, cut to the width of the terminal.
    pub(crate) fn draw_progress(&self, line: &str) {
        let width = rustix::termios::tcgetwinsize(io::stderr())
            .map_or(80, |size| usize::from(size.ws_col))
            .max(20);
        let cut: String = line.chars().take(width - 1).collect();
        // The line is erased to its end after it was written: less flicker than the other way round.
        let _ = write!(io::stderr(), "\r{cut}\x1b[K");
        self.progress_is_shown.set(true);
    }

    /// Takes the drawn line away.
    pub(crate) fn erase_progress(&self) {
        if self.progress_is_shown.replace(false) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn print_message(&self, message: impl Display) {
        self.erase_progress();
        // Whoever closed standard error does not want to hear that it is closed.
        let _ = writeln!(io::stderr(), "tenure: {message}");
    }
}

/// One line of result on standard output.
///
/// # Errors
/// Those of writing. A reader that went away is one; then there is no use in going on.
pub(crate) fn print_result(line: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
