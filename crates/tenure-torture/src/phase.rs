//! What a worker does now. The runner says it on the standard input of the worker.

use std::io::{self, Read as _};

use tokio::sync::watch;

/// A part of the life of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Acquires, holds and releases.
    Work,
    /// Acquires nothing more. Observers go on, so that they can see the last state of the elections.
    Settle,
    /// Ends.
    End,
}

/// The phase of this process: a byte on standard input begins [`Phase::Settle`], and the end of the input is the end.
pub(crate) fn from_standard_input() -> watch::Receiver<Phase> {
    let (sender, receiver) = watch::channel(Phase::Work);
    std::thread::spawn(move || {
        let mut byte = [0];
        loop {
            match io::stdin().read(&mut byte) {
                Ok(1) => drop(sender.send_replace(Phase::Settle)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An error is an end of the input, too.
                Ok(_) | Err(_) => break,
            }
        }
        sender.send_replace(Phase::End);
    });
    receiver
}
