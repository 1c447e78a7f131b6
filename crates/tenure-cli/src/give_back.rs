//! `tenure renew` and `tenure release`: what is done with a hold that has a receipt.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::guarantees::Capability;
use tenure::{Client, Error, ErrorKind, Guard, Receipt};

use crate::args::{self, Common};
use crate::console::Console;
use crate::duration::{MIN_HOLD, rounded};
use crate::exit::Exit;
use crate::json;
use crate::receipt;
use crate::results::print_results;
use crate::store;
use crate::text;

/// For how long a hold is renewed before its release, which confirms that it is still there. If the release then fails, the
/// hold lasts no longer than that, or than it would have lasted.
const RELEASE_TTL: Duration = Duration::from_secs(30);

/// How long the look at what is left of a hold may take.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);

pub(crate) async fn renew(common: &Common, args: &args::Renew, console: &Console) -> Exit {
    print_results(console, async {
        let receipt = receipt::read(&args.receipt)?;
        let lasts = args.lasts.unwrap_or(receipt.ttl().max(MIN_HOLD));
        let receipt = receipt.with_ttl(lasts);
        let renew = async |client: &Client| {
            client.require(Capability::Detach)?;
            renew_hold(client, &receipt).await?;
            Ok(time_left(client, &receipt).await)
        };
        let left = store::with_client(common, renew).await?;
        let line = match console.json {
            true => hold_json(&receipt, left).to_string(),
            false => format!("renewed {}", hold_text(&receipt, left)),
        };
        Ok((vec![line], Exit::Done))
    })
    .await
}

pub(crate) async fn release(common: &Common, args: &args::Release, console: &Console) -> Exit {
    print_results(console, async {
        let receipt = receipt::read(&args.receipt)?;
        let release = async |client: &Client| {
            client.require(Capability::Detach)?;
            release_hold(client, &receipt).await
        };
        store::with_client(common, release).await?;
        let line = match console.json {
            true => {
                let mut value = names_json(&receipt);
                value["released"] = true.into();
                value.to_string()
            }
            false => format!("released {}", names(&receipt)),
        };
        Ok((vec![line], Exit::Done))
    })
    .await
}

/// Attaches the client to the hold of the receipt, for the ttl of the receipt.
///
/// # Errors
/// The errors of [`Client::attach`]. The one about another store says what to do on the command line.
pub(crate) async fn attach(client: &Client, receipt: &Receipt) -> Result<Guard, Error> {
    client.attach(receipt).await.map_err(|error| {
        if error.kind() != ErrorKind::Invalid || client.address() == receipt.store() {
            return error;
        }
        let message =
            format!("{error:#}; give the URL of the store of the receipt (`-u` or TENURE_URL)");
        Error::new(ErrorKind::Invalid, message)
    })
}

/// Keeps the hold of the receipt for its ttl from now on, without this process.
///
/// # Errors
/// The errors of [`attach`] and of [`Guard::detach`]; `Lost`: the hold is over, or one of its names is.
pub(crate) async fn renew_hold(client: &Client, receipt: &Receipt) -> Result<(), Error> {
    attach(client, receipt).await?.detach().await.map(drop)
}

/// Gives back every name of the receipt, also when another one is over or an error comes in between.
///
/// # Errors
/// The errors of [`attach`] and of [`Guard::release`]. An error after which the hold may still be there counts more than `Lost`.
pub(crate) async fn release_hold(client: &Client, receipt: &Receipt) -> Result<(), Error> {
    let mut outcome = Ok(());
    for one in receipt.split() {
        let ttl = one.ttl().clamp(MIN_HOLD, RELEASE_TTL);
        let released = match attach(client, &one.with_ttl(ttl)).await {
            Ok(guard) => guard.release().await,
            Err(error) => Err(error),
        };
        if let Err(error) = released
            && outcome.as_ref().map_or_else(Error::is_lost, |()| true)
        {
            outcome = Err(error);
        }
    }
    outcome
}

/// How long the hold of the receipt lasts from now on: what the store says, of several names the shortest time. Where the store
/// does not say it, the ttl of the receipt, for which the hold was renewed a moment ago.
pub(crate) async fn time_left(client: &Client, receipt: &Receipt) -> Duration {
    let inspect = async {
        let mut least = Duration::MAX;
        for (name, token) in receipt.tokens() {
            let status = client.inspect(name).await.ok()?;
            let mut holds = status.holds.into_iter();
            let hold = holds.find(|hold| hold.token == Some(token))?;
            least = least.min(hold.ttl_left?);
        }
        Some(least)
    };
    let inspected = tokio::time::timeout(INSPECT_TIMEOUT, inspect).await;
    inspected.ok().flatten().unwrap_or(receipt.ttl())
}

/// The names of the receipt, in quotes.
pub(crate) fn names(receipt: &Receipt) -> String {
    text::quoted(receipt.tokens().map(|(name, _)| name))
}

/// A hold on one line: `"x", token 7, ends in 30m 0s (2026-01-31T09:00:00Z)`.
pub(crate) fn hold_text(receipt: &Receipt, left: Duration) -> String {
    let end = humantime::format_rfc3339_seconds(SystemTime::now() + left);
    let left = rounded(left);
    format!("{}, ends in {left} ({end})", hold_name(receipt))
}

/// The names and tokens of a receipt: `"x", token 7`.
pub(crate) fn hold_name(receipt: &Receipt) -> String {
    let tokens: Vec<_> = receipt
        .tokens()
        .map(|(_, token)| token.to_string())
        .collect();
    format!("{}, token {}", names(receipt), tokens.join(", "))
}

/// The same for programs.
pub(crate) fn hold_json(receipt: &Receipt, left: Duration) -> Value {
    let mut value = names_json(receipt);
    value["ends"] = json::timestamp(SystemTime::now() + left).into();
    value["ttl_left_ms"] = json::millis(left).into();
    value
}

pub(crate) fn names_json(receipt: &Receipt) -> Value {
    let (names, tokens): (Vec<_>, Vec<_>) = receipt
        .tokens()
        .map(|(name, token)| (name.as_str(), token.get()))
        .unzip();
    json!({ "names": names, "tokens": tokens })
}
