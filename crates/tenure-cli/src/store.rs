//! The store of `--url`: it is opened and closed here, for all actions.

use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tenure::{Client, Error, ErrorKind};
use tenure_core::rt::Clock;
use tenure_core::support::RetryBudget;

use crate::args::Common;
use crate::console::Console;
use crate::duration::rounded;
use crate::exit::Exit;
use crate::results::report_error;
use crate::signals::Signals;

/// How long closing may take, including the clean-up of a wait that was given up.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer than `--wait` an attempt to connect may last: enough for a login to a database. So a store is not
/// reported as silent because the wait is short, or because this process was stopped for a moment. The library adds at
/// most as much.
const LOGIN_TIMEOUT: Duration = Duration::from_millis(300);

/// The first pause between two attempts to connect is as long as the pause after this many failures: about 50 ms.
const INITIAL_FAILURES: u32 = 6;

/// The URL of the store. Without `--url` it is the lock directory of this user.
pub(crate) fn url(common: &Common) -> &str {
    common.url.as_deref().unwrap_or("file:")
}

/// Runs `action` on this thread, with a runtime.
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
    // Background tasks that are left are not waited for: the leases of their locks expire.
    runtime.shutdown_background();
    exit
}

async fn connect(common: &Common) -> Result<Client, Error> {
    connect_to(url(common)).await
}

/// A client of the store that `url` names: one of the library, or that of a crate of its own.
///
/// # Errors
/// The errors of [`tenure::connect`].
pub(crate) async fn connect_to(url: &str) -> Result<Client, Error> {
    if !is_hazelcast(url) {
        return tenure::connect(url).await;
    }
    #[cfg(feature = "hazelcast")]
    return tenure_hazelcast::connect(url).await;
    #[cfg(not(feature = "hazelcast"))]
    Err(Error::new(
        ErrorKind::Unsupported,
        "this build of the command line has no store for Hazelcast; build it with --features hazelcast",
    ))
}

/// A client that connects with its first request.
///
/// # Errors
/// The errors of [`tenure::connect_lazy`]. `Unsupported`: the store of a crate of its own cannot do that.
#[cfg(feature = "mcp")]
pub(crate) fn connect_lazy(url: &str) -> Result<Client, Error> {
    if is_hazelcast(url) {
        let message = "`tenure mcp` connects with its first request, which Hazelcast's client cannot; use another store";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    tenure::connect_lazy(url)
}

fn is_hazelcast(url: &str) -> bool {
    let (scheme, _) = url.split_once(':').unwrap_or_default();
    matches!(scheme, "hazelcast" | "hazelcasts")
}

/// Connects, does `work` with the client, and closes the client, also after an error: a session that is not closed stays
/// in the store after this process has ended.
///
/// # Errors
/// The errors of [`tenure::connect`] and of `work`.
pub(crate) async fn with_client<T>(
    common: &Common,
    work: impl AsyncFnOnce(&Client) -> Result<T, Error>,
) -> Result<T, Error> {
    let client = connect(common).await?;
    let outcome = work(&client).await;
    close(&client).await;
    outcome
}

/// Why there is no client.
pub(crate) enum NotConnected {
    /// A signal came before the connection was open.
    Interrupted(Signal),
    /// The operating system refused a signal handler.
    NoSignals(io::Error),
    /// One of the errors of [`tenure::connect`].
    Store(Error),
}

impl NotConnected {
    /// Prints the error, if there is one, and returns how `tenure` ends; `busy` is the exit code for a lock that another
    /// client holds.
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

/// Starts to receive signals, connects, does `work`, and closes the client. `run`, `hold` and `watch` begin with this.
///
/// A store that cannot be reached is tried again for as long as `wait` says. `work` gets how long that took.
///
/// # Errors
/// A signal came before the connection was open, or signals or connection failed.
pub(crate) async fn with_client_and_signals(
    common: &Common,
    console: &Console,
    wait: Duration,
    work: impl AsyncFnOnce(&Client, &mut Signals, Duration) -> Exit,
) -> Result<Exit, NotConnected> {
    let mut signals = Signals::listen().map_err(NotConnected::NoSignals)?;
    let (began, clock) = (Instant::now(), Clock::system());
    let mut retries = RetryBudget::without_limit().after_failures(INITIAL_FAILURES);
    let mut last = None;
    let client = loop {
        let limit = (!wait.is_zero()).then(|| wait.saturating_sub(began.elapsed()));
        let error = match connect_unless_ended(common, limit, &mut signals).await {
            Ok(Some(client)) => break client,
            // The error of an earlier attempt says more than that there was no answer.
            Ok(None) => {
                return Err(NotConnected::Store(
                    last.unwrap_or_else(|| no_answer(common, wait)),
                ));
            }
            Err(NotConnected::Store(error)) => error,
            Err(other) => return Err(other),
        };
        if error.kind() != ErrorKind::Unreachable || began.elapsed() >= wait {
            return Err(NotConnected::Store(error));
        }
        if retries.failures() == INITIAL_FAILURES {
            console.notice(format!(
                "{error:#}; trying again for up to {}",
                rounded(wait)
            ));
        }
        tokio::select! {
            biased;
            signal = signals.next() => return Err(NotConnected::Interrupted(signal)),
            () = retries.pause(&clock) => {}
        }
        last = Some(error);
    };
    console.detail(format!("store {}", tenure::redacted_url(url(common))));
    let exit = work(&client, &mut signals, began.elapsed()).await;
    close(&client).await;
    Ok(exit)
}

/// The error for a store that did not answer within `--wait`.
fn no_answer(common: &Common, wait: Duration) -> Error {
    let (url, wait) = (tenure::redacted_url(url(common)), rounded(wait));
    let message = format!(
        "{url} did not answer within {wait}; is it overloaded or stopped, and is the URL right?"
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// Connects, unless a signal comes first. After a signal, a connection that was opened is closed, unless another signal
/// comes. `None`: there was no answer within `limit` and [`LOGIN_TIMEOUT`].
async fn connect_unless_ended(
    common: &Common,
    limit: Option<Duration>,
    signals: &mut Signals,
) -> Result<Option<Client>, NotConnected> {
    let mut connecting = pin!(connect(common));
    let over = async {
        match limit {
            Some(limit) => {
                tokio::time::sleep(limit).await;
                tokio::time::sleep(LOGIN_TIMEOUT).await;
            }
            None => std::future::pending().await,
        }
    };
    let signal = tokio::select! {
        biased;
        signal = signals.next() => signal,
        client = &mut connecting => return client.map(Some).map_err(NotConnected::Store),
        () = over => return Ok(None),
    };
    let finish = async {
        // The server may have opened a session whose answer has not arrived yet.
        if let Ok(Ok(client)) = tokio::time::timeout(CLOSE_TIMEOUT, connecting).await {
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

/// Closes the client, so that nothing of this process stays in the store.
pub(crate) async fn close(client: &Client) {
    // If the store does not answer, the leases expire.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, client.close()).await;
}
