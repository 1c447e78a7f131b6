//! Stands between clients and their database, and makes trouble on command. Trouble is aimed at a statement by what
//! it says of itself: `/* tenure:acquire */`. What has no such word is nobody's aim.
//!
//! One request of a connection is under way at a time, so what comes down next is its answer.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::proxy::{Direction, Fault, Parcel, Plan, Proxy, Shared, deliver, lock};

/// Whose protocol passes by.
#[derive(Clone, Copy)]
pub enum Protocol {
    MySql,
    Postgres,
}

/// A proxy in front of that port of this machine.
pub fn start(target: u16, protocol: Protocol) -> Proxy {
    Proxy::start_with(target, move |shared, client| {
        serve(shared, client, protocol)
    })
}

struct Link {
    shared: Arc<Shared>,
    protocol: Protocol,
    /// What is to happen when the answer comes.
    planned: Mutex<Option<Plan>>,
    down: mpsc::UnboundedSender<Parcel>,
}

struct Cut;

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
    let (from_server, to_server): (_, OwnedWriteHalf) = server.into_split();
    let (up, up_queue) = mpsc::unbounded_channel();
    let (down, down_queue) = mpsc::unbounded_channel();
    let link = Link {
        shared: shared.clone(),
        protocol,
        planned: Mutex::default(),
        down,
    };
    tokio::select! {
        _ = async {
            tokio::join!(
                link.read_up(from_client, up),
                deliver(&shared, Direction::Up, up_queue, to_server)
            )
        } => {}
        () = deliver(&shared, Direction::Down, down_queue, to_client) => {}
        () = link.read_down(from_server) => {}
        _ = cuts.changed() => {}
    }
}

impl Link {
    async fn read_up(&self, mut from: OwnedReadHalf, to: mpsc::UnboundedSender<Parcel>) {
        let (mut buffer, mut is_greeted) = (Vec::new(), false);
        loop {
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            while let Some(length) = self.message(&buffer, is_greeted) {
                let bytes: Vec<u8> = buffer.drain(..length).collect();
                is_greeted = true;
                let Ok(delay) = self.forwards(&bytes) else {
                    return;
                };
                if let Some(delay) = delay {
                    let weather = self.shared.weather[Direction::Up as usize].borrow().delay;
                    let due = Instant::now() + delay + weather;
                    // Nobody takes it when the server has gone; then the link ends.
                    let _ = to.send(Parcel::Bytes {
                        due,
                        bytes,
                        pause: Duration::ZERO,
                    });
                }
            }
        }
    }

    /// How long the message is that the buffer begins with, if it is whole.
    fn message(&self, buffer: &[u8], is_greeted: bool) -> Option<usize> {
        let length = match self.protocol {
            Protocol::MySql => {
                let length = buffer.get(..3)?;
                4 + usize::from(length[0])
                    + (usize::from(length[1]) << 8)
                    + (usize::from(length[2]) << 16)
            }
            Protocol::Postgres => {
                let kind = usize::from(is_greeted);
                let length = buffer.get(kind..kind + 4)?;
                kind + u32::from_be_bytes(length.try_into().unwrap()) as usize
            }
        };
        (buffer.len() >= length).then_some(length)
    }

    /// How much later than usual this message is forwarded; `None`: not at all.
    fn forwards(&self, message: &[u8]) -> Result<Option<Duration>, Cut> {
        let text = String::from_utf8_lossy(message);
        let step = text
            .split_once("/* tenure:")
            .map(|(_, rest)| rest.split(' ').next().unwrap_or_default().to_owned());
        let Some(step) = step else {
            return Ok(Some(Duration::ZERO));
        };
        lock(&self.shared.seen).push(step.clone());
        if matches!(step.as_str(), "acquire" | "release" | "renew" | "wait") {
            self.shared.requests.fetch_add(1, Ordering::SeqCst);
        }
        let plan = {
            let mut plans = lock(&self.shared.plans);
            let at = plans.iter().position(|plan| plan.step == step);
            at.and_then(|at| plans.remove(at))
        };
        let Some(plan) = plan else {
            return Ok(Some(Duration::ZERO));
        };
        match plan.fault.clone() {
            Fault::CutBefore => Err(Cut),
            Fault::Answer(text) => {
                self.send_down(self.refusal(text));
                Ok(None)
            }
            Fault::Garbage(bytes) => {
                self.send_down(bytes.to_vec());
                Ok(None)
            }
            Fault::Late(delay) => Ok(Some(delay)),
            _ => {
                *lock(&self.planned) = Some(plan);
                Ok(Some(Duration::ZERO))
            }
        }
    }

    /// `CODE words`, as the server would say it.
    fn refusal(&self, text: &str) -> Vec<u8> {
        let (code, words) = text.split_once(' ').unwrap();
        match self.protocol {
            Protocol::MySql => {
                let code: u16 = code.parse().unwrap();
                let mut payload = vec![0xff];
                payload.extend(code.to_le_bytes());
                payload.extend(b"#08004");
                payload.extend(words.bytes());
                let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
                let mut packet = vec![length[0], length[1], length[2], 1];
                packet.extend(payload);
                packet
            }
            Protocol::Postgres => {
                let mut fields = Vec::new();
                for (kind, value) in [
                    (b'S', "ERROR"),
                    (b'V', "ERROR"),
                    (b'C', code),
                    (b'M', words),
                ] {
                    fields.push(kind);
                    fields.extend(value.bytes());
                    fields.push(0);
                }
                fields.push(0);
                let length = u32::try_from(fields.len() + 4).unwrap();
                let mut message = vec![b'E'];
                message.extend(length.to_be_bytes());
                message.extend(fields);
                // And it is ready for the next one.
                message.extend([b'Z', 0, 0, 0, 5, b'I']);
                message
            }
        }
    }

    fn send_down(&self, bytes: Vec<u8>) {
        let weather = self.shared.weather[Direction::Down as usize].borrow().delay;
        let due = Instant::now() + weather;
        // Nobody takes it when the client has gone; then the link ends.
        let _ = self.down.send(Parcel::Bytes {
            due,
            bytes,
            pause: Duration::ZERO,
        });
    }

    /// Ends when the server has hung up and all was delivered.
    async fn read_down(&self, mut from: OwnedReadHalf) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let count = match from.read(&mut buffer).await {
                Ok(0) | Err(_) => {
                    let _ = self.down.send(Parcel::Cut);
                    return std::future::pending().await;
                }
                Ok(count) => count,
            };
            let plan = lock(&self.planned).take();
            match plan.as_ref().map(|plan| &plan.fault) {
                Some(Fault::CutAfter) => {
                    let _ = self.down.send(Parcel::Cut);
                    return std::future::pending().await;
                }
                Some(Fault::NoReply) => {
                    let now = *self.shared.resumed.borrow();
                    let _ = self.down.send(Parcel::Wall(now));
                }
                _ => {}
            }
            self.send_down(buffer[..count].to_vec());
        }
    }
}
