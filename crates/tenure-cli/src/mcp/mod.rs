//! `tenure mcp`: a server of the Model Context Protocol on standard input and output, for one client.
//!
//! 1. `server.rs` receives the calls, and `tools.rs` describes the tools to the client.
//! 2. `take.rs`, `wait.rs` and `give_back.rs` are the tools, with `waiting.rs` for those that wait.
//! 3. `session.rs` is what all calls of the client share, with its holds in `holds.rs`. `input.rs` notices its end.
//! 4. `arguments.rs` reads what a call says, `answer.rs` writes what it gets back.
//!
//! Standard output has messages of the protocol only. What is for people goes to standard error, and has no receipt.

mod answer;
mod arguments;
mod give_back;
mod holds;
mod input;
mod list;
mod server;
mod session;
mod take;
mod tools;
mod wait;
mod waiting;

use std::io::{self, IsTerminal as _};
use std::pin::pin;
use std::sync::Arc;

use rmcp::service::ServerInitializeError;
use rmcp::transport::stdio;
use tenure::Client;
use tokio::sync::mpsc;

use self::input::Input;
use self::server::Server;
use self::session::{Line, Session};
use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::results::report_error;
use crate::signals::Signals;
use crate::store;

pub(crate) async fn mcp(common: &Common, args: &args::Mcp, console: &Console) -> Exit {
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return store::NotConnected::NoSignals(error).report(console, Exit::BUSY),
    };
    // The first request connects. So the client learns of a store that does not answer from a call, with a text, and not from a
    // server that cannot be started.
    let client = match store::connect_lazy(store::url(common)) {
        Ok(client) => client,
        Err(error) => return report_error(console, &error, Exit::BUSY),
    };
    let url = tenure::redacted_url(store::url(common));
    console.detail(format!("store {url}"));
    if io::stdin().is_terminal() {
        console.notice("this server is for programs, which send messages of the Model Context Protocol to its standard input; Ctrl-D ends it");
    }
    let (lines, mut printed) = mpsc::unbounded_channel();
    let session = Arc::new(Session::new(client.clone(), args.ttl, lines));
    let losses = report_losses(&client, &session);
    let work = async {
        let exit = serve(&session, &mut signals).await;
        session.release_all().await;
        store::close(&client).await;
        exit
    };
    let ended = tokio::select! {
        biased;
        ended = work => ended,
        never = print(console, &mut printed) => never,
    };
    drop(losses);
    while let Ok(line) = printed.try_recv() {
        line.print(console);
    }
    ended.unwrap_or_else(|error| {
        console.error(error);
        Exit::Failed
    })
}

/// A hold that is lost is reported at once to people. The client learns of it from `renew` and `release`.
fn report_losses(client: &Client, session: &Session) -> tenure::CallbackHandle {
    let lines = session.lines().clone();
    client.on_lost(move |loss| {
        // A reader that is gone needs no line.
        let _ = lines.send(Line::notice(loss.to_string()));
    })
}

/// Prints what the calls report. Never resolves.
async fn print<T>(console: &Console, lines: &mut mpsc::UnboundedReceiver<Line>) -> T {
    while let Some(line) = lines.recv().await {
        line.print(console);
    }
    std::future::pending().await
}

/// Answers the client until standard input ends or a signal comes.
///
/// # Errors
/// What came on standard input is not the protocol.
async fn serve(session: &Arc<Session>, signals: &mut Signals) -> Result<Exit, String> {
    let (stdin, stdout) = stdio();
    let transport = (Input::new(stdin, session.ending().clone()), stdout);
    let server = Server::new(session.clone());
    let started = tokio::select! {
        biased;
        _ = signals.next() => return Ok(Exit::Done),
        started = rmcp::serve_server(server, transport) => started,
    };
    let running = match started {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(Exit::Done),
        // The error has the message that came, which may have a secret.
        Err(ServerInitializeError::ExpectedInitializeRequest(_)) => {
            return Err("the first message on standard input is no `initialize`; start this server from a client of the Model Context Protocol".into());
        }
        Err(_) => return Err("the client and this server could not begin a session of the Model Context Protocol; is the client's version of the protocol too new or too old?".into()),
    };
    let stop = running.cancellation_token();
    let mut end = pin!(running.waiting());
    tokio::select! {
        biased;
        _ = signals.next() => {
            session.end();
            stop.cancel();
            let _ = end.await;
        }
        _ = &mut end => session.end(),
    }
    Ok(Exit::Done)
}
