//! Which store.

use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::process::Signal;
use tenure::{Client, Error};

use crate::args::Common;
use crate::console::Console;
use crate::exit::Exit;
use crate::results::report_error;
use crate::signals::Signals;

/// How long the clean-up of a wait that was given up, and of the link itself, may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// The store that was asked for; without a word, the directory of this user.
pub(crate) fn url(common: &Common) -> &str {
    common
        .url
        .as_deref()
        .filter(|url| !url.is_empty())
        .unwrap_or("file:")
}

/// Runs `action` to its end, on this thread.
pub(crate) fn block_on(console: &Console, action: impl Future<Output = Exit>) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            console.error(format!("cannot start the runtime: {error}"));
            return Exit::Failed;
        }
    };
    let exit = runtime.block_on(action);
    // What is left in the background is not worth waiting for: leases run out.
    runtime.shutdown_background();
    exit
}

/// Opens it.
///
/// # Errors
/// Those of [`tenure::connect`].
async fn connect(common: &Common) -> Result<Client, Error> {
    tenure::connect(url(common)).await
}

/// Opens it, does `work` with it and closes it, whatever came of the work: a session that is not closed lives on in the
/// store after this process has ended.
///
/// # Errors
/// Those of [`tenure::connect`] and of `work`.
pub(crate) async fn with_client<T>(
    common: &Common,
    work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let client = connect(common).await?;
    let outcome = work(&client).await;
    close(&client).await;
    outcome
}

/// Why there is no client to work with.
pub(crate) enum NotConnected {
    /// A signal came first.
    Interrupted(Signal),
    /// The operating system does not let us listen for signals.
    NoSignals(io::Error),
    /// One of the errors of [`tenure::connect`].
    Store(Error),
}

impl NotConnected {
    /// Prints the error, if there is one, and says how `tenure` is to end; `busy` is the exit code for a lock that
    /// somebody else holds.
    pub(crate) fn report(self, console: &Console, busy: u8) -> Exit {
        match self {
            Self::Interrupted(signal) => Exit::Signal(signal),
            Self::NoSignals(error) => {
                console.error(format!("cannot listen for signals: {error}"));
                Exit::Failed
            }
            Self::Store(error) => report_error(console, &error, busy),
        }
    }
}

/// Takes over the signals, connects, does `work` and closes the client, whatever came of the work.
///
/// # Errors
/// When a signal came before the connection, or one of the two cannot be had.
pub(crate) async fn with_client_and_signals(
    common: &Common,
    work: impl AsyncFnOnce(&Client, &mut Signals) -> Exit,
) -> Result<Exit, NotConnected> {
    let mut signals = Signals::listen().map_err(NotConnected::NoSignals)?;
    let client = connect_unless_ended(common, &mut signals).await?;
    let exit = work(&client, &mut signals).await;
    close(&client).await;
    Ok(exit)
}

/// Connects, unless a signal comes first. What has been opened by then is closed, unless another signal comes.
async fn connect_unless_ended(
    common: &Common,
    signals: &mut Signals,
) -> Result<Client, NotConnected> {
    let mut connecting = pin!(connect(common));
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        client = &mut connecting => return client.map_err(NotConnected::Store),
    };
    let finish = async {
        // The server may have opened a session that we do not know of yet.
        if let Ok(Ok(client)) = tokio::time::timeout(CLOSE_LIMIT, connecting).await {
            close(&client).await;
        }
    };
    tokio::select! {
        biased;
        _ = signals.next() => {}
        () = finish => {}
    }
    Err(NotConnected::Interrupted(signal))
}

/// Ends the link, so that nothing of this process stays behind in the store.
async fn close(client: &Client) {
    // When the store does not answer, leases do the rest.
    let _ = tokio::time::timeout(CLOSE_LIMIT, client.close()).await;
}
