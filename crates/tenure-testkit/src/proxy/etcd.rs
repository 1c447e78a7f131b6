//! etcd. The proxy speaks HTTP/2 to both sides, and each client's connection has one of its own to the server.
//!
//! A fault happens to one stream, except for cuts.

use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::control::{Control, Direction, Fault, Plan, Proxy};

impl Proxy {
    /// In front of an etcd member; clients must not use TLS.
    pub fn etcd(target: u16) -> Self {
        Self::start(target, serve)
    }
}

/// What a request does: `acquire`, `release`, `renew` (the look at keys), `change` (a new value of a key), `write`, `rest`, `sweep`, `grant`, `revoke`,
/// `keep-alive`, `left`, `watch`, `look`, or the name of its method. (The messages of a stream after its first answer
/// are no requests; they are blocked as `events`.)
fn kind(path: &str, body: &[u8]) -> String {
    let method = path.rsplit('/').next().unwrap_or_default();
    let kind = match method {
        "Txn" => txn_kind(body.get(5..).unwrap_or_default()),
        "Range" => "look",
        "LeaseGrant" => "grant",
        "LeaseRevoke" => "revoke",
        "LeaseKeepAlive" => "keep-alive",
        "LeaseTimeToLive" => "left",
        "Watch" => "watch",
        other => other,
    };
    kind.to_owned()
}

/// The kind of a transaction, by the fields of its `TxnRequest`: 1 conditions, 2 and 3 operations, in which 1 is a
/// range, 2 a put, 3 a delete.
fn txn_kind(mut message: &[u8]) -> &'static str {
    let (mut conditions, mut operations, mut has_failure, mut creates) =
        (0, Vec::new(), false, false);
    while let Some((field, content)) = next_field(&mut message) {
        match field {
            1 => {
                conditions += 1;
                // Its field 5, the create revision: it is 0 when a lock is acquired.
                let mut content = content;
                while let Some((field, value)) = next_field(&mut content) {
                    creates |= field == 5 && value == [0];
                }
            }
            2 => operations.push(content.first().map_or(0, |tag| tag >> 3)),
            _ => has_failure = true,
        }
    }
    match operations[..] {
        [2, ..] if creates => "acquire",
        [2] if conditions > 0 && !has_failure => "write",
        // Of a candidate: its key and its record.
        [2] | [2, 2] | [2, 3] if conditions > 0 => "change",
        // Of a candidate: its key, its record, and a request to let go.
        [3] | [3, 3, 3] => "release",
        [3, ..] => "sweep",
        [1, ..] if conditions == 0 => "look",
        _ => "renew",
    }
}

/// The next field of a message: its number and its bytes (a number as it is encoded).
fn next_field<'a>(message: &mut &'a [u8]) -> Option<(u64, &'a [u8])> {
    let tag = varint(message)?;
    let before = *message;
    let number = varint(message)?;
    match tag & 7 {
        2 => {
            let content = message.get(..usize::try_from(number).ok()?)?;
            *message = &message[content.len()..];
            Some((tag >> 3, content))
        }
        _ => Some((tag >> 3, &before[..before.len() - message.len()])),
    }
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let length = 1 + message.iter().position(|byte| byte & 0x80 == 0)?;
    let (bytes, rest) = message.split_at(length);
    *message = rest;
    let bits = bytes.iter().rev();
    Some(bits.fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)))
}

async fn serve(control: Arc<Control>, client: TcpStream, server: TcpStream) {
    // Notified by a request whose fault is a cut.
    let cut = Arc::new(Notify::new());
    let mut requests = JoinSet::new();
    let work = async {
        let Ok((upstream, carry)) = h2::client::handshake(server).await else {
            return;
        };
        let Ok(mut client) = h2::server::handshake(client).await else {
            return;
        };
        let accept = async {
            while let Some(Ok((request, respond))) = client.accept().await {
                let (control, upstream, cut) = (control.clone(), upstream.clone(), cut.clone());
                requests.spawn(async move {
                    if forward(&control, request, respond, upstream).await == Outcome::Cut {
                        cut.notify_one();
                    }
                });
            }
            // What a client sent before it closed the connection still arrives.
            while requests.join_next().await.is_some() {}
        };
        tokio::select! {
            () = accept => {}
            _ = carry => {}
        }
    };
    tokio::select! {
        () = work => {}
        () = cut.notified() => {}
    }
}

#[derive(PartialEq)]
enum Outcome {
    Done,
    /// The whole connection is to be cut.
    Cut,
}

/// A request with the beginning of its body.
struct Received {
    head: Parts,
    /// The whole body, or the first message of one that stays open.
    first: Vec<u8>,
    rest: RecvStream,
    is_open: bool,
}

async fn receive(request: Request<RecvStream>) -> Received {
    let (head, mut rest) = request.into_parts();
    // Only the stream of watches stays open.
    let is_open = head.uri.path().ends_with("/Watch");
    let mut first = Vec::new();
    while let Some(Ok(data)) = rest.data().await {
        let _ = rest.flow_control().release_capacity(data.len());
        first.extend(data);
        if is_open {
            break;
        }
    }
    Received {
        head,
        first,
        rest,
        is_open,
    }
}

async fn forward(
    control: &Control,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    upstream: SendRequest<Bytes>,
) -> Outcome {
    let request = receive(request).await;
    let path = request.head.uri.path();
    let kind = kind(path, &request.first);
    if !path.contains("Auth") && !path.contains("Cluster") {
        control.count_request();
    }
    control.record(kind.clone());
    let plan = control.take_plan(|planned| planned == kind);
    match plan.as_ref().map(|plan| &plan.fault) {
        Some(Fault::Answer(text)) => {
            answer(&mut respond, text);
            return Outcome::Done;
        }
        Some(Fault::CutBefore) => return Outcome::Cut,
        Some(Fault::Late(later)) => tokio::time::sleep(*later).await,
        Some(fault @ (Fault::Garbage(_) | Fault::Trickle(_))) => {
            panic!("{fault:?} cannot be injected into HTTP/2")
        }
        Some(Fault::CutAfter | Fault::NoReply) | None => {}
    }
    control.wait_while_blocked(&kind).await;
    pass(control, Direction::Up).await;
    exchange(control, request, plan, respond, upstream).await
}

/// Sends the request to the server and its answer to the client.
async fn exchange(
    control: &Control,
    request: Received,
    plan: Option<Plan>,
    respond: SendResponse<Bytes>,
    upstream: SendRequest<Bytes>,
) -> Outcome {
    let Ok(mut upstream) = upstream.ready().await else {
        return Outcome::Cut;
    };
    let Received {
        head,
        first,
        mut rest,
        is_open,
    } = request;
    let Ok((response, mut up)) = upstream.send_request(Request::from_parts(head, ()), false) else {
        return Outcome::Cut;
    };
    let _ = up.send_data(first.into(), !is_open);
    let send = async {
        if is_open {
            forward_messages(control, Direction::Up, &mut rest, &mut up).await;
        }
        std::future::pending::<()>().await
    };
    let receive = async {
        match response.await {
            Ok(response) => reply(control, response, plan, respond).await,
            // The client gave up this one request, for example a watch that was just opened.
            Err(err) if err.is_reset() => Outcome::Done,
            Err(_) => Outcome::Cut,
        }
    };
    tokio::select! {
        outcome = receive => outcome,
        () = send => Outcome::Done,
    }
}

async fn reply(
    control: &Control,
    response: Response<RecvStream>,
    plan: Option<Plan>,
    mut respond: SendResponse<Bytes>,
) -> Outcome {
    let fault = plan.as_ref().map(|plan| plan.fault.clone());
    let count = control.resumes();
    // The fault counts as happened from now on: a test that waits for this calls `resume` next.
    drop(plan);
    match fault {
        Some(Fault::CutAfter) => return Outcome::Cut,
        Some(Fault::NoReply) => control.wait_for_resume_after(count).await,
        _ => {}
    }
    pass(control, Direction::Down).await;
    let (head, mut body) = response.into_parts();
    let is_whole = body.is_end_stream();
    let Ok(mut down) = respond.send_response(Response::from_parts(head, ()), is_whole) else {
        return Outcome::Done;
    };
    if !is_whole {
        // Returns early when the client cancels the request, which cancels it on the server too.
        forward_messages(control, Direction::Down, &mut body, &mut down).await;
    }
    Outcome::Done
}

/// Waits as long as the conditions of that direction say.
async fn pass(control: &Control, direction: Direction) {
    tokio::time::sleep(control.delay(direction)).await;
    control.wait_while_held(direction).await;
}

/// Forwards the messages of a stream until it ends or is cancelled.
async fn forward_messages(
    control: &Control,
    direction: Direction,
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
) {
    for count in 0.. {
        let next = tokio::select! {
            next = from.data() => next,
            _ = std::future::poll_fn(|cx| to.poll_reset(cx)) => return,
        };
        let Some(next) = next else { break };
        let Ok(data) = next else {
            to.send_reset(h2::Reason::INTERNAL_ERROR);
            return;
        };
        let _ = from.flow_control().release_capacity(data.len());
        pass(control, direction).await;
        if direction == Direction::Down && count > 0 {
            control.wait_while_blocked("events").await;
        }
        if to.send_data(data, false).is_err() {
            return;
        }
    }
    let trailers = from.trailers().await;
    pass(control, direction).await;
    let _ = match trailers {
        Ok(Some(trailers)) => to.send_trailers(trailers),
        _ => to.send_data(Bytes::new(), true),
    };
}

/// Answers instead of the server with `CODE text`.
fn answer(respond: &mut SendResponse<Bytes>, text: &str) {
    let (code, text) = text.split_once(' ').unwrap();
    let mut response = Response::new(());
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert("content-type", "application/grpc".parse().unwrap());
    headers.insert("grpc-status", code.parse().unwrap());
    headers.insert("grpc-message", text.parse().unwrap());
    let _ = respond.send_response(response, true);
}
