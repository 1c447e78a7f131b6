//! What all calls of the client share.

use std::time::Duration;

use rmcp::model::RequestId;
use serde_json::json;
use tenure::{Client, Guard};
use tokio::sync::{Mutex, MutexGuard, mpsc, watch};
use tokio::task::JoinSet;

use super::holds::{Granted, Holds};
use crate::console::Console;
use crate::give_back;
use crate::text;

/// How long the releases at the end of the session may take together. What is left then is free when its lease ends.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct Session {
    pub(super) client: Client,
    /// How long a hold may last after the client is gone.
    pub(super) ttl: Duration,
    pub(super) holds: Holds,
    ending: watch::Sender<bool>,
    lines: mpsc::UnboundedSender<Line>,
    receipts: Mutex<()>,
}

impl Session {
    pub(super) fn new(client: Client, ttl: Duration, lines: mpsc::UnboundedSender<Line>) -> Self {
        Self {
            client,
            ttl,
            holds: Holds::default(),
            ending: watch::Sender::new(false),
            lines,
            receipts: Mutex::new(()),
        }
    }

    /// True when the client is gone, or the server has to end.
    pub(super) fn ending(&self) -> &watch::Sender<bool> {
        &self.ending
    }

    /// Ends all waits.
    pub(super) fn end(&self) {
        self.ending.send_replace(true);
    }

    /// Resolves at the end. Cancel safe.
    pub(super) async fn ended(&self) {
        let _ = self.ending.subscribe().wait_for(|is_over| *is_over).await;
    }

    pub(super) fn has_ended(&self) -> bool {
        *self.ending.borrow()
    }

    pub(super) fn lines(&self) -> &mpsc::UnboundedSender<Line> {
        &self.lines
    }

    /// Reports something that went as it should.
    pub(super) fn detail(&self, text: String) {
        let is_notice = false;
        let _ = self.lines.send(Line { text, is_notice });
    }

    /// The turn of one call to use a receipt: a client attaches itself to one hold once at a time.
    pub(super) async fn turn_with_receipts(&self) -> MutexGuard<'_, ()> {
        self.receipts.lock().await
    }

    /// Gives back what the call with this id has taken: the client has cancelled the call, and so does not know of the hold.
    pub(super) async fn give_back(&self, request: &RequestId) {
        let released = match self.holds.take_of_request(request) {
            None => return,
            Some(Granted::Connected(guard)) => guard.release().await,
            Some(Granted::Detached(receipt)) => {
                let _turn = self.turn_with_receipts().await;
                give_back::release_hold(&self.client, &receipt).await
            }
        };
        match released {
            Ok(()) => self.detail("released what a cancelled call had taken".into()),
            Err(error) => {
                let text = format!("what a cancelled call had taken was not released: {error:#}");
                let _ = self.lines.send(Line::notice(text));
            }
        }
    }

    /// Releases all holds that end with the client. None comes after them.
    pub(super) async fn release_all(&self) {
        self.end();
        let mut releases = JoinSet::new();
        for guard in self.holds.close() {
            releases.spawn(release(guard, self.lines.clone()));
        }
        // What is still being released when the time is over is dropped with the set, and goes on while the client is closed.
        let all = async { while releases.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(RELEASE_TIMEOUT, all).await;
    }
}

async fn release(guard: Guard, lines: mpsc::UnboundedSender<Line>) {
    let names = text::quoted(guard.names());
    let line = match guard.release().await {
        Ok(()) => Line {
            text: format!("released {names}: the client is gone"),
            is_notice: false,
        },
        // A loss was reported when it was noticed.
        Err(error) if error.is_lost() => return,
        Err(error) => Line::notice(format!(
            "{names} may be held until its lease ends: {error:#}"
        )),
    };
    let _ = lines.send(line);
}

/// One line for people, on standard error.
pub(super) struct Line {
    text: String,
    /// Whether it is printed without `--verbose`.
    is_notice: bool,
}

impl Line {
    pub(super) fn notice(text: String) -> Self {
        let is_notice = true;
        Self { text, is_notice }
    }

    pub(super) fn print(self, console: &Console) {
        let event = match self.is_notice {
            true => "notice",
            false => "detail",
        };
        console.event(event, json!({ "message": self.text }));
        match self.is_notice {
            true => console.notice(self.text),
            false => console.detail(self.text),
        }
    }
}
