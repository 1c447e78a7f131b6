//! The tool `take`.

use std::num::NonZeroU32;
use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde_json::{Value, json};
use tenure::{Client, Error, Guard, LockStatus, Mode, Options, Receipt};

use super::answer::{Answer, Failure, invalid};
use super::arguments::Arguments;
use super::give_back::guard_json;
use super::session::Session;
use super::waiting::{DEFAULT_WAIT, Waiting, obstacle};
use crate::acquire;
use crate::duration::{self, rounded};
use crate::exit::Exit;
use crate::give_back::{self, hold_json, hold_text};
use crate::json;
use crate::plan::{Plan, Role};
use crate::take::check_store;
use crate::text;

/// How much of the client's own name is in the text for others.
const MAX_CLIENT_NAME: usize = 64;

/// How long the look at the holder may take when a wait is over.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) async fn take(
    session: &Session,
    arguments: Arguments,
    call: &RequestContext<RoleServer>,
) -> Result<Answer, Failure> {
    let (plan, keep_for) = read(session, arguments, call)?;
    let waiting = Waiting::new(session, call, plan.wait.unwrap_or_default());
    let taking = Taking {
        session,
        call,
        waiting,
        plan,
    };
    match keep_for {
        None => taking.connected().await,
        Some(keep_for) => taking.kept(keep_for).await,
    }
}

/// What the call wants, checked as far as possible without the store.
fn read(
    session: &Session,
    mut arguments: Arguments,
    call: &RequestContext<RoleServer>,
) -> Result<(Plan, Option<Duration>), Error> {
    let names = arguments.names("names")?;
    let holder = arguments.text("holder")?.unwrap_or_default();
    let mode = mode(arguments.text("mode")?, arguments.count("permits")?)?;
    let count = arguments.flag("any")?.then_some(1);
    let wait = arguments.duration("wait", duration::parse)?;
    let wait = Some(wait.unwrap_or(DEFAULT_WAIT));
    let keep_for = arguments.duration("keep_for", duration::parse_hold)?;
    arguments.finish(&[
        "names", "holder", "mode", "permits", "any", "wait", "keep_for",
    ])?;
    let mut options = Options::default();
    options.mode = mode;
    options.wait = wait;
    options.label = label(call, &holder)?;
    options.ttl = match keep_for {
        None => session.ttl,
        // The hold is renewed for its whole time once it can go on without the session. A hold never ends before its first lease.
        Some(keep_for) => options.ttl.min(keep_for),
    };
    options.validate()?;
    let plan = Plan {
        names,
        count,
        options,
        role: Role::Holder,
        wait,
        busy_code: Exit::BUSY,
    };
    Ok((plan, keep_for))
}

fn mode(mode: Option<String>, permits: Option<NonZeroU32>) -> Result<Mode, Error> {
    match (mode.as_deref(), permits) {
        (None | Some("exclusive"), None) => Ok(Mode::Exclusive),
        (Some("shared"), None) => Ok(Mode::Shared),
        (None | Some("permits"), Some(limit)) => Ok(Mode::Permits { limit }),
        (Some("permits"), None) => Err(invalid(
            "`permits` is missing: with the mode \"permits\" it says how many may hold the name at the same time",
        )),
        (Some("exclusive" | "shared"), Some(_)) => Err(invalid(
            "`permits` goes with the mode \"permits\"; leave one of the two out",
        )),
        _ => Err(invalid(
            "there is no such `mode`; give \"exclusive\", \"shared\" or \"permits\"",
        )),
    }
}

/// The text that others see: the name of the client, and what the client says.
fn label(call: &RequestContext<RoleServer>, holder: &str) -> Result<String, Error> {
    let client = call.client_info().map(|client| client.name);
    let client = client.filter(|name| !name.trim().is_empty());
    let mut label = client.unwrap_or_else(|| "MCP client".into());
    label.truncate(label.floor_char_boundary(MAX_CLIENT_NAME));
    let most = Options::MAX_LABEL - label.len() - ": ".len();
    if holder.len() > most {
        return Err(invalid(format!(
            "`holder` has {} bytes; it may have {most}",
            holder.len()
        )));
    }
    if !holder.is_empty() {
        label += ": ";
        label += holder;
    }
    Ok(label)
}

struct Taking<'a> {
    session: &'a Session,
    call: &'a RequestContext<RoleServer>,
    waiting: Waiting<'a>,
    plan: Plan,
}

impl Taking<'_> {
    fn client(&self) -> &Client {
        &self.session.client
    }

    /// Takes a hold that is renewed while the client is there.
    async fn connected(&self) -> Result<Answer, Failure> {
        let guard = self.acquire().await?;
        let mut fields = self.fields(guard_json(&guard));
        let (names, tokens) = (text::quoted(guard.names()), tokens(&guard));
        // Some stores have no leases: a hold ends with its process or connection.
        let after = match guard.remaining() {
            Duration::MAX => Duration::ZERO,
            _ => self.session.ttl,
        };
        let is_over = || self.waiting.is_cancelled();
        let added = self.session.holds.add(&self.call.id, guard, is_over);
        let id = match added {
            Ok(id) => id,
            Err(guard) => {
                guard.release().await?;
                return Err(self.undone());
            }
        };
        let end = match after {
            Duration::ZERO => "when it is gone".into(),
            after => format!("at most {} after it is gone", rounded(after)),
        };
        let mode = self.plan.options.mode;
        let text = format!(
            "took {names}, hold {id}, token {tokens}, {mode}; the hold is renewed while this client is connected, and ends {end}; give it back with `release` and \"hold\": \"{id}\""
        );
        self.session
            .detail(format!("took {names}, token {tokens}, hold {id}"));
        fields["hold"] = id.into();
        fields["kept"] = false.into();
        fields["ends_after_client_ms"] = json::millis(after).into();
        Ok(Answer { text, fields })
    }

    /// Takes a hold that goes on without the client.
    async fn kept(&self, keep_for: Duration) -> Result<Answer, Failure> {
        let (client, mode) = (self.client(), self.plan.options.mode);
        // What the store can do is known once the client is connected.
        client.ping().await?;
        check_store(client, mode)?;
        let guard = self.acquire().await?;
        // Until the turn comes, the guard is renewed.
        let _turn = self.session.turn_with_receipts().await;
        let receipt = guard.detach().await?.with_ttl(keep_for);
        if let Err(error) = give_back::renew_hold(client, &receipt).await {
            // There is no answer with a receipt, so the hold would be left over until its first lease ends.
            let _ = give_back::release_hold(client, &receipt).await;
            return Err(error.into());
        }
        let left = give_back::time_left(client, &receipt).await;
        let is_over = || self.waiting.is_cancelled() || self.session.has_ended();
        if !self
            .session
            .holds
            .add_kept(&self.call.id, &receipt, is_over)
        {
            give_back::release_hold(client, &receipt).await?;
            return Err(self.undone());
        }
        Ok(self.kept_answer(&receipt, left))
    }

    fn kept_answer(&self, receipt: &Receipt, left: Duration) -> Answer {
        let (hold, mode) = (hold_text(receipt, left), self.plan.options.mode);
        self.session.detail(format!("took {hold}, with a receipt"));
        let text = format!(
            "took {hold}, {mode}; the hold goes on without this client, until it is released by its receipt or its time is over. The receipt is a secret, keep it for `renew` and `release`: {receipt}"
        );
        let mut fields = self.fields(hold_json(receipt, left));
        fields["kept"] = true.into();
        fields["receipt"] = receipt.to_string().into();
        Answer { text, fields }
    }

    async fn acquire(&self) -> Result<Guard, Failure> {
        let look = move || async move {
            let status = acquire::obstacle(self.client(), &self.plan).await?;
            let (ttl, label) = (self.plan.options.ttl, &self.plan.options.label);
            let own = self.own_hold(&status);
            Some(obstacle(&status, ttl, Some(label)) + &own)
        };
        let acquired = self.plan.acquire(self.client());
        match self.waiting.during(acquired, look).await? {
            Ok(guard) => Ok(guard),
            Err(error) if error.is_busy() => Err(self.busy(&error).await),
            Err(error) => Err(error.into()),
        }
    }

    /// Who holds the lock when the wait is over.
    async fn busy(&self, error: &Error) -> Failure {
        let look = acquire::obstacle(self.client(), &self.plan);
        let status = tokio::time::timeout(INSPECT_TIMEOUT, look).await;
        let status = status.ok().flatten();
        let ttl = self.plan.options.ttl;
        let reason = match &status {
            Some(status) => obstacle(status, ttl, None) + &self.own_hold(status),
            None => format!("{error:#}"),
        };
        let any = match self.plan.count {
            Some(_) => format!("none of {} is free: ", text::quoted(&self.plan.names)),
            None => String::new(),
        };
        let after = match self.plan.wait {
            Some(wait) if !wait.is_zero() => format!("gave up after {}: ", rounded(wait)),
            _ => String::new(),
        };
        let message = format!("{after}{any}{reason}; take it later, or with a longer `wait`");
        let names: Vec<_> = self.plan.names.iter().map(|it| it.as_str()).collect();
        let status = status.as_ref().map(json::status_json);
        Failure::busy(message, json!({ "names": names, "status": status }))
    }

    /// A client that waits for itself has to know.
    fn own_hold(&self, status: &LockStatus) -> String {
        match self.session.holds.id_with_name(&status.name) {
            Some(id) => format!(" (this session holds it itself, as {id})"),
            None => String::new(),
        }
    }

    fn undone(&self) -> Failure {
        match self.waiting.is_cancelled() {
            true => Failure::cancelled(),
            false => Failure::ended(),
        }
    }

    /// What is said of both kinds of holds.
    fn fields(&self, mut fields: Value) -> Value {
        fields["mode"] = self.plan.options.mode.to_string().into();
        fields["waited_ms"] = json::millis(self.waiting.waited()).into();
        fields
    }
}

fn tokens(guard: &Guard) -> String {
    let tokens: Vec<_> = guard.tokens().map(|(_, token)| token.to_string()).collect();
    tokens.join(", ")
}
