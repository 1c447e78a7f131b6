//! Between a client and its database: a proxy that can aim at a request, as far as that is sent by the simple
//! protocol and says in its first words what it is for: `/*tenure:acquire*/ ..`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::proxy::{Direction, Fault, Parcel, Plan, Proxy, Shared, deliver, lock};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    MySql,
    Postgres,
}

/// In front of a MySQL or MariaDB; clients must not use TLS.
pub fn mysql(port: u16) -> Proxy {
    Proxy::start_with(port, |shared, client| {
        serve(shared, client, Protocol::MySql)
    })
}

/// In front of a PostgreSQL; clients must not use TLS.
pub fn postgres(port: u16) -> Proxy {
    Proxy::start_with(port, |shared, client| {
        serve(shared, client, Protocol::Postgres)
    })
}

/// When a reply is complete is not looked into: nothing more comes for this long.
const QUIET: Duration = Duration::from_millis(50);

/// What is asked when a connection is set up, or about messages.
const IS_SET_UP: [&str; 3] = ["facts", "hello", "init"];

/// The first whole message of a client, and whether the server has been greeted before.
fn message(protocol: Protocol, buffer: &[u8], is_first: bool) -> Option<usize> {
    let length = match protocol {
        // Three bytes of length, and a number.
        Protocol::MySql => {
            let bytes = buffer.get(..4)?;
            4 + usize::from(bytes[0]) + (usize::from(bytes[1]) << 8) + (usize::from(bytes[2]) << 16)
        }
        // A letter, but for the first one, and four bytes of length, which count themselves.
        Protocol::Postgres => {
            let start = usize::from(!is_first);
            let bytes = buffer.get(start..start + 4)?;
            start + u32::from_be_bytes(bytes.try_into().ok()?) as usize
        }
    };
    (buffer.len() >= length).then_some(length)
}

/// What a message is for; empty: nobody's aim.
fn step(protocol: Protocol, message: &[u8]) -> String {
    let text = match protocol {
        Protocol::MySql if message.get(3..5) == Some(&[0, 3]) => &message[5..],
        Protocol::Postgres if message.first() == Some(&b'Q') => &message[5..],
        _ => return String::new(),
    };
    let text = String::from_utf8_lossy(text);
    let rest = text.strip_prefix("/*tenure:").unwrap_or_default();
    rest.split("*/").next().unwrap_or_default().to_owned()
}

/// An error that says that there is no connection left; the server would not have done anything.
fn refusal(protocol: Protocol) -> Vec<u8> {
    match protocol {
        Protocol::MySql => {
            let text = b"#08004Too many connections";
            let mut packet = vec![u8::try_from(3 + text.len()).unwrap(), 0, 0, 1, 0xff];
            packet.extend(1040_u16.to_le_bytes());
            packet.extend(text);
            packet
        }
        Protocol::Postgres => {
            let fields = b"SERROR\0VERROR\0C53300\0Mno connection is left\0\0";
            let mut message = vec![b'E'];
            message.extend(u32::try_from(4 + fields.len()).unwrap().to_be_bytes());
            message.extend(fields);
            message.extend(b"Z\0\0\0\x05I");
            message
        }
    }
}

async fn serve(shared: Arc<Shared>, client: TcpStream, protocol: Protocol) {
    let mut cuts = shared.cuts.subscribe();
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(shared.target).await else {
        return;
    };
    let nodelay = client.set_nodelay(true).and(server.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (up, up_queue) = mpsc::unbounded_channel();
    let (down, down_queue) = mpsc::unbounded_channel();
    let (plans, planned) = mpsc::unbounded_channel();
    let own = down.clone();
    let carry_up = async {
        // What a client sent before it hung up still arrives.
        let (read, ()) = tokio::join!(
            read_up(&shared, protocol, from_client, up, own, plans),
            deliver(&shared, Direction::Up, up_queue, to_server)
        );
        if read.is_some() {
            // The server may have something to say yet.
            std::future::pending().await
        }
    };
    let carry_down = async {
        tokio::select! {
            biased;
            () = deliver(&shared, Direction::Down, down_queue, to_client) => {}
            () = async { read_down(&shared, from_server, down, planned).await; std::future::pending().await } => {}
        }
    };
    tokio::select! {
        () = carry_up => {}
        () = carry_down => {}
        _ = cuts.changed() => {}
    }
}

/// `None`: the link is to be cut.
async fn read_up(
    shared: &Shared,
    protocol: Protocol,
    mut from: OwnedReadHalf,
    up: mpsc::UnboundedSender<Parcel>,
    down: mpsc::UnboundedSender<Parcel>,
    plans: mpsc::UnboundedSender<Plan>,
) -> Option<()> {
    let mut buffer = Vec::new();
    let mut is_first = true;
    loop {
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return Some(()),
            Ok(_) => {}
        }
        while let Some(length) = message(protocol, &buffer, is_first) {
            is_first = false;
            let bytes: Vec<_> = buffer.drain(..length).collect();
            let step = step(protocol, &bytes);
            if !step.is_empty() && !IS_SET_UP.contains(&step.as_str()) {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                lock(&shared.seen).push(step.clone());
            }
            let plan = {
                let mut all = lock(&shared.plans);
                let at = all.iter().position(|plan| plan.step == step);
                at.filter(|_| !step.is_empty())
                    .and_then(|at| all.remove(at))
            };
            let mut due = Instant::now() + shared.weather[Direction::Up as usize].borrow().delay;
            match plan.as_ref().map(|plan| &plan.fault) {
                Some(Fault::CutBefore) => return None,
                Some(Fault::Answer(_)) => {
                    let parcel = Parcel::Bytes {
                        due,
                        bytes: refusal(protocol),
                        pause: Duration::ZERO,
                    };
                    // Nobody takes it when the client has gone; then the link ends.
                    let _ = down.send(parcel);
                    continue;
                }
                Some(Fault::Late(by)) => due += *by,
                _ => {
                    if let Some(plan) = plan {
                        let _ = plans.send(plan);
                    }
                }
            }
            let pause = Duration::ZERO;
            let _ = up.send(Parcel::Bytes { due, bytes, pause });
        }
    }
}

async fn read_down(
    shared: &Shared,
    mut from: OwnedReadHalf,
    down: mpsc::UnboundedSender<Parcel>,
    mut plans: mpsc::UnboundedReceiver<Plan>,
) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        match plans.try_recv().map(|plan| plan.fault.clone()) {
            Ok(Fault::CutAfter) => {
                // The reply comes in pieces; the last one says that it is done.
                while let Ok(Ok(1..)) = tokio::time::timeout(QUIET, from.read(&mut buffer)).await {}
                let _ = down.send(Parcel::Cut);
                return;
            }
            Ok(Fault::NoReply) => {
                let now = *shared.resumed.borrow();
                let _ = down.send(Parcel::Wall(now));
            }
            _ => {}
        }
        let due = Instant::now() + shared.weather[Direction::Down as usize].borrow().delay;
        let (bytes, pause) = (buffer[..count].to_vec(), Duration::ZERO);
        let _ = down.send(Parcel::Bytes { due, bytes, pause });
    }
}
