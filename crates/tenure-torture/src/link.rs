//! What stands between one worker and its store: passes everything on, until it makes trouble.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::random::Random;
use crate::register::lock;

/// How long a byte takes that comes alone.
const BYTE: Duration = Duration::from_secs(1);

/// What is done to the messages of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Each is late by this much, in both directions.
    Delay(Duration),
    /// They wait until the trouble is over.
    Stall,
    /// Connections break, new ones as well.
    Cut,
    /// Requests pass, replies do not; whoever missed one is cut off afterwards.
    LostReply,
    /// Requests pass, replies are noise of the same length; whoever got some is cut off afterwards.
    Garbage,
    /// Replies come byte by byte, one a second.
    Trickle,
}

/// One connection through us.
struct Pair {
    id: u64,
    client: TcpStream,
    server: TcpStream,
    /// A reply was kept back or spoilt: what comes later must not be taken for it.
    dirty: Arc<AtomicBool>,
}

impl Pair {
    fn cut(&self) {
        // It may be closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

struct State {
    trouble: Trouble,
    pairs: Vec<Pair>,
    next: u64,
    closed: bool,
}

/// All connections of one worker.
pub struct Link {
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Link {
    /// A port for each of `servers` (`host:port`), in their order.
    ///
    /// # Errors
    /// Those of the sockets.
    pub fn open(servers: &[String]) -> io::Result<Self> {
        let state = State {
            trouble: Trouble::None,
            pairs: Vec::new(),
            next: 0,
            closed: false,
        };
        let mut link = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
            addresses: Vec::new(),
        };
        for server in servers {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            link.addresses.push(listener.local_addr()?);
            let (server, shared) = (server.clone(), link.shared.clone());
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    if lock(&shared.state).closed {
                        return;
                    }
                    // Where the server refuses, the client finds its connection closed.
                    let _ = open(&shared, client, &server);
                }
            });
        }
        Ok(link)
    }

    /// Where to connect instead, in the order of the servers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Begins or ends a trouble.
    pub fn set(&self, trouble: Trouble) {
        let mut state = lock(&self.shared.state);
        state.trouble = trouble;
        for pair in &state.pairs {
            if trouble == Trouble::Cut || pair.dirty.load(Ordering::SeqCst) {
                pair.cut();
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.set(Trouble::Cut);
        lock(&self.shared.state).closed = true;
        for address in &self.addresses {
            // Wakes the thread that waits for connections, which then sees that it is over.
            let _ = TcpStream::connect(address);
        }
    }
}

fn open(shared: &Arc<Shared>, client: TcpStream, server: &str) -> io::Result<()> {
    if lock(&shared.state).trouble == Trouble::Cut {
        return Ok(());
    }
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let dirty = Arc::new(AtomicBool::new(false));
    let id = {
        let mut state = lock(&shared.state);
        state.next += 1;
        let id = state.next;
        state.pairs.push(Pair {
            id,
            client: client.try_clone()?,
            server: server.try_clone()?,
            dirty: dirty.clone(),
        });
        id
    };
    let ways = [
        (client.try_clone()?, server.try_clone()?, false),
        (server, client, true),
    ];
    for (from, to, is_reply) in ways {
        let (shared, dirty) = (shared.clone(), dirty.clone());
        std::thread::spawn(move || {
            pass(&shared, from, to, is_reply, &dirty, id);
            let mut state = lock(&shared.state);
            // One way closed is both closed: none of the protocols uses half a connection.
            if let Some(at) = state.pairs.iter().position(|pair| pair.id == id) {
                state.pairs.swap_remove(at).cut();
            }
        });
    }
    Ok(())
}

/// Passes bytes on in one direction until either end is closed.
fn pass(
    shared: &Shared,
    mut from: TcpStream,
    mut to: TcpStream,
    is_reply: bool,
    dirty: &AtomicBool,
    id: u64,
) {
    let mut bytes = [0; 16 * 1024];
    let mut noise = Random::new(id);
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        let trouble = {
            let mut state = lock(&shared.state);
            while state.trouble == Trouble::Stall {
                state = shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            let spoils = matches!(state.trouble, Trouble::LostReply | Trouble::Garbage);
            if spoils && is_reply {
                // Under the lock: who ends the trouble sees the mark, or we see the end.
                dirty.store(true, Ordering::SeqCst);
            }
            state.trouble
        };
        if dirty.load(Ordering::SeqCst) && is_reply && trouble != Trouble::Garbage {
            continue;
        }
        let got = &mut bytes[..count];
        match trouble {
            Trouble::Delay(late) => std::thread::sleep(late),
            Trouble::Garbage if is_reply => got.fill_with(|| noise.number() as u8),
            _ => {}
        }
        let done = match trouble {
            Trouble::Cut => return,
            Trouble::Trickle if is_reply => trickle(shared, got, &mut to),
            _ => to.write_all(got),
        };
        if done.is_err() {
            return;
        }
    }
}

/// Passes one byte a second, and what is left when the trouble is over.
fn trickle(shared: &Shared, bytes: &[u8], to: &mut TcpStream) -> io::Result<()> {
    let mut state = lock(&shared.state);
    for (at, byte) in bytes.iter().enumerate() {
        if state.trouble != Trouble::Trickle {
            drop(state);
            return to.write_all(&bytes[at..]);
        }
        to.write_all(&[*byte])?;
        (state, _) = shared
            .changed
            .wait_timeout_while(state, BYTE, |state| state.trouble == Trouble::Trickle)
            .unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    Ok(())
}
