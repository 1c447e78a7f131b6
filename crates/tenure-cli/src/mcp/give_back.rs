//! The tools `renew` and `release`: what is done with a hold.

use serde_json::{Value, json};
use tenure::guarantees::Capability;
use tenure::{Client, Error, ErrorKind, Guard, HoldState, Receipt};

use super::answer::{Answer, Failure, invalid};
use super::arguments::Arguments;
use super::session::Session;
use crate::duration::{self, MIN_HOLD, rounded};
use crate::give_back::{self, hold_json, hold_text};
use crate::json;
use crate::text;

/// Which hold a call is about.
enum Which {
    Receipt(Receipt),
    /// The id of a hold of this client.
    Hold(String),
}

fn which(arguments: &mut Arguments) -> Result<Which, Error> {
    match (arguments.receipt("receipt")?, arguments.text("hold")?) {
        (Some(receipt), None) => Ok(Which::Receipt(receipt)),
        (None, Some(hold)) => Ok(Which::Hold(hold)),
        (Some(_), Some(_)) => Err(invalid("`receipt` and `hold` are both given; give one")),
        (None, None) => Err(invalid(
            "neither `receipt` nor `hold` is given; give the one that `take` answered",
        )),
    }
}

pub(super) async fn renew(session: &Session, mut arguments: Arguments) -> Result<Answer, Failure> {
    let which = which(&mut arguments)?;
    let keep_for = arguments.duration("keep_for", duration::parse_hold)?;
    arguments.finish(&["receipt", "keep_for", "hold"])?;
    let receipt = match which {
        Which::Receipt(receipt) => receipt,
        Which::Hold(_) if keep_for.is_some() => {
            return Err(invalid(
                "a hold of this session ends with it, and `keep_for` is for a hold with a receipt; `take` with `keep_for` makes one",
            )
            .into());
        }
        Which::Hold(id) => return look(session, &id),
    };
    let lasts = keep_for.unwrap_or(receipt.ttl().max(MIN_HOLD));
    let receipt = receipt.with_ttl(lasts);
    check_store(&session.client).await?;
    let _turn = session.turn_with_receipts().await;
    give_back::renew_hold(&session.client, &receipt).await?;
    let left = give_back::time_left(&session.client, &receipt).await;
    let text = format!("renewed {}", hold_text(&receipt, left));
    session.detail(text.clone());
    let fields = hold_json(&receipt, left);
    Ok(Answer { text, fields })
}

/// Says what is known of a hold of this client, which is renewed in the background.
fn look(session: &Session, id: &str) -> Result<Answer, Failure> {
    let look = |guard: &Guard| {
        let (state, left) = (guard.state(), guard.remaining());
        let (names, mut fields) = (text::quoted(guard.names()), guard_json(guard));
        fields["hold"] = id.into();
        let text = match state {
            HoldState::Lost(reason) => {
                let message = format!("the hold of {names} was lost: {reason}");
                return Err(Error::new(ErrorKind::Lost, message));
            }
            HoldState::AtRisk => {
                fields["at_risk"] = true.into();
                fields["ttl_left_ms"] = json::millis(left).into();
                format!(
                    "{names} is held, but a renewal is overdue: the hold is lost in {} unless the store answers; begin nothing new under it",
                    rounded(left)
                )
            }
            HoldState::Held => format!("{names} is held, and is renewed while this session lives"),
        };
        Ok(Answer { text, fields })
    };
    match session.holds.look(id, look) {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(lost)) => {
            // A hold that is lost sends no request when it is dropped.
            drop(session.holds.take(id));
            Err(lost.into())
        }
        None => Err(no_such_hold().into()),
    }
}

pub(super) async fn release(
    session: &Session,
    mut arguments: Arguments,
) -> Result<Answer, Failure> {
    let which = which(&mut arguments)?;
    arguments.finish(&["receipt", "hold"])?;
    let (names, mut fields) = match which {
        Which::Hold(id) => {
            let guard = session.holds.take(&id).ok_or_else(no_such_hold)?;
            let said = (text::quoted(guard.names()), guard_json(&guard));
            guard.release().await?;
            said
        }
        Which::Receipt(receipt) => {
            check_store(&session.client).await?;
            let _turn = session.turn_with_receipts().await;
            give_back::release_hold(&session.client, &receipt).await?;
            (give_back::names(&receipt), give_back::names_json(&receipt))
        }
    };
    fields["released"] = true.into();
    let text = format!("released {names}");
    session.detail(text.clone());
    Ok(Answer { text, fields })
}

/// Refuses a store without detached holds. It is known once the client is connected.
async fn check_store(client: &Client) -> Result<(), Error> {
    client.ping().await?;
    client.require(Capability::Detach)
}

/// The names and tokens of a hold of this client.
pub(super) fn guard_json(guard: &Guard) -> Value {
    let (names, tokens): (Vec<_>, Vec<_>) = guard
        .tokens()
        .map(|(name, token)| (name.as_str(), token.get()))
        .unzip();
    json!({ "names": names, "tokens": tokens })
}

fn no_such_hold() -> Error {
    invalid(
        "this session has no such hold: it was released, or was never there; `list` shows the holds of this session with their ids",
    )
}
