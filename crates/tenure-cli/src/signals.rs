//! Signals to `tenure` itself.
//!
//! A signal that the caller chose to ignore (`nohup`, a job in the background of a script) stays ignored, and the command
//! inherits the choice.

use std::future::{poll_fn, ready};
use std::io::{self, IsTerminal as _};
use std::os::unix::net::UnixStream;
use std::task::Poll;

use rustix::process::{Signal, getpgrp};
use rustix::termios::tcgetpgrp;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::Exit;

/// The signals that end a wait and that are forwarded to a running command.
pub(crate) const FORWARDED: [Signal; 6] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
];

/// The signals of [`FORWARDED`] as they come in.
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    /// Says who sent INT and QUIT, which a key can send, too.
    origins: SignalsInfo<WithOrigin>,
    /// Origins of signals that were not read yet.
    unread: Vec<Origin>,
}

impl Signals {
    /// Starts to receive the signals that are not ignored. Needs a runtime.
    pub(crate) fn listen() -> io::Result<Self> {
        // First, so that the origin of a signal is there when the signal is read.
        let keys = not_ignored().filter(|it| is_of_key(*it));
        let origins = SignalsInfo::new(keys.map(Signal::as_raw))?;
        let streams = not_ignored()
            .map(|it| Ok((it, signal(SignalKind::from_raw(it.as_raw()))?)))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            streams,
            origins,
            unread: Vec::new(),
        })
    }

    /// Whether a key made the terminal send this signal, which has just come, to all processes in its foreground. Where the
    /// system does not say who sent a signal, one that a key can send counts as sent by a key.
    pub(crate) fn is_from_terminal(&mut self, signal: Signal) -> bool {
        self.unread.extend(self.origins.pending());
        let is_its = |origin: &mut Origin| origin.signal == signal.as_raw();
        let mut origins = self.unread.extract_if(.., is_its);
        let is_from_process = origins.any(|origin| matches!(origin.cause, Cause::Sent(_)));
        // All of them are of signals that came as one.
        origins.for_each(drop);
        is_of_key(signal) && !is_from_process
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            let came = self.streams.iter_mut().find_map(|(signal, stream)| {
                matches!(stream.poll_recv(cx), Poll::Ready(Some(()))).then_some(*signal)
            });
            came.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// The same, while a process stands by: USR1 and USR2 are for its command, which does not run. Cancel safe.
    pub(crate) async fn next_without_command(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if !matches!(signal, Signal::USR1 | Signal::USR2) {
                return signal;
            }
        }
    }

    /// The signal that ends a process that stands by, if one came before this call. A USR1 or USR2 that came before is
    /// ignored. For the time after a grant, which can be read before a signal that was sent earlier. Cancel safe.
    pub(crate) async fn came_without_command(&mut self) -> Option<Signal> {
        // The runtime reads the signals that are there before it continues this task.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            signal = self.next_without_command() => Some(signal),
            () = ready(()) => None,
        }
    }

    /// Awaits the work, unless a signal comes first; then the work is dropped.
    ///
    /// # Errors
    /// The signal, as the end of `tenure`.
    pub(crate) async fn unless_signalled<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<T, Exit> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Exit::Signal(signal)),
            outcome = work => Ok(outcome),
        }
    }
}

/// A pipe that becomes readable when a child ends or a signal of [`FORWARDED`] comes. The signal has no other effect. For
/// the guardian, which has no runtime.
pub(crate) fn self_pipe() -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    reader.set_nonblocking(true)?;
    for signal in not_ignored().chain([Signal::CHILD]) {
        signal_hook::low_level::pipe::register(signal.as_raw(), writer.try_clone()?)?;
    }
    Ok(reader)
}

/// Whether the command must be in the process group of `tenure`, so that the terminal sends the signals of keys such as
/// Ctrl-C to both. The command must be there if it may read from the terminal, or if `tenure` is in the terminal's
/// foreground: the terminal stops a process of another group as soon as it reads.
pub(crate) fn shares_terminal() -> bool {
    if io::stdin().is_terminal() {
        return true;
    }
    std::fs::File::open("/dev/tty")
        .ok()
        .and_then(|terminal| tcgetpgrp(terminal).ok())
        .is_some_and(|foreground| foreground == getpgrp())
}

/// Whether standard input is a terminal that another job has. A read of it would stop this process.
pub(crate) fn is_in_background() -> bool {
    let stdin = io::stdin();
    stdin.is_terminal() && !tcgetpgrp(stdin).is_ok_and(|group| group == getpgrp())
}

/// Whether a signal asks a process to end. The others also mean something else to a service, as HUP does.
pub(crate) fn asks_to_end(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::TERM | Signal::QUIT)
}

/// Whether a key can make the terminal send this signal to all processes in its foreground.
fn is_of_key(signal: Signal) -> bool {
    matches!(signal, Signal::INT | Signal::QUIT)
}

/// The signals among [`FORWARDED`] that were not ignored when this process started.
fn not_ignored() -> impl Iterator<Item = Signal> {
    let ignored = crate::platform::ignored_signals(&FORWARDED);
    FORWARDED
        .into_iter()
        .filter(move |signal| !ignored.contains(signal))
}
