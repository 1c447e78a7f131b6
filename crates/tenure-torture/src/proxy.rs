//! A proxy between one worker and its store. It forwards everything until a fault begins.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tenure_core::rt::lock;

use crate::random::Random;

/// The time between two bytes of a trickle.
const TRICKLE_INTERVAL: Duration = Duration::from_secs(1);

/// A fault of the connections of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFault {
    /// No fault.
    None,
    /// Messages are late by this much, in both directions.
    Delay(Duration),
    /// Messages wait until the fault is over.
    Stall,
    /// Connections break, new ones as well.
    Cut,
    /// Requests pass, replies do not. A connection that missed one is cut afterwards.
    LostReply,
    /// Requests pass, replies are random bytes of the same length. A connection that got such a reply is cut later.
    Garbage,
    /// Replies come byte by byte, one a second.
    Trickle,
    /// The host of the worker is gone: it sends nothing and acknowledges nothing, not even what the system would send
    /// by itself. Connections of that time never come back.
    Vanish,
}

/// The lasting effect of a fault on a connection.
#[derive(Default)]
struct Marks {
    /// A reply was lost or spoiled: the client must not take a later reply for it.
    is_spoiled: AtomicBool,
    /// The host of the connection vanished.
    has_vanished: AtomicBool,
}

/// One connection through the proxy.
struct ProxiedConnection {
    id: u64,
    client: TcpStream,
    server: TcpStream,
    marks: Arc<Marks>,
}

impl ProxiedConnection {
    /// Neither end sends anything any more. The sockets must stay open: the server would notice a closed socket.
    fn vanish(self) -> [TcpStream; 2] {
        self.marks.has_vanished.store(true, Ordering::SeqCst);
        // An error means that the socket is closed already.
        let _ = drop_incoming_packets(&self.server);
        for end in [&self.server, &self.client] {
            // This ends the threads that read, and sends nothing.
            let _ = end.shutdown(Shutdown::Read);
        }
        [self.server, self.client]
    }

    fn cut(&self) {
        // An error means that the socket is closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

struct ProxyState {
    fault: ConnectionFault,
    connections: Vec<ProxiedConnection>,
    /// The sockets of hosts that vanished, kept open until the end of the run.
    vanished: Vec<TcpStream>,
    next: u64,
    is_closed: bool,
}

/// Connections whose host vanished. Dropping this closes them, which the servers notice.
#[must_use]
#[derive(Debug, Default)]
pub struct VanishedConnections(Vec<TcpStream>);

impl FromIterator<Self> for VanishedConnections {
    fn from_iter<T: IntoIterator<Item = Self>>(all: T) -> Self {
        Self(all.into_iter().flat_map(|it| it.0).collect())
    }
}

/// All connections of one worker.
pub struct Proxy {
    shared: Arc<SharedProxyState>,
    addresses: Vec<SocketAddr>,
}

struct SharedProxyState {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

impl Proxy {
    /// A port for each of `servers` (`host:port`), in their order.
    ///
    /// # Errors
    /// The errors of the sockets.
    pub fn open(servers: &[String]) -> io::Result<Self> {
        let state = ProxyState {
            fault: ConnectionFault::None,
            connections: Vec::new(),
            vanished: Vec::new(),
            next: 0,
            is_closed: false,
        };
        let mut proxy = Self {
            shared: Arc::new(SharedProxyState {
                state: Mutex::new(state),
                changed: Condvar::new(),
            }),
            addresses: Vec::new(),
        };
        for server in servers {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            proxy.addresses.push(listener.local_addr()?);
            let (server, shared) = (server.clone(), proxy.shared.clone());
            std::thread::spawn(move || {
                for client in listener.incoming().flatten() {
                    if lock(&shared.state).is_closed {
                        return;
                    }
                    // If the server refuses, the client finds its connection closed.
                    let _ = open(&shared, client, &server);
                }
            });
        }
        Ok(proxy)
    }

    /// The addresses to connect to instead of the servers, in the order of the servers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The connections of [`ConnectionFault::Vanish`], which dropping the proxy would close.
    pub fn take_vanished(&self) -> VanishedConnections {
        VanishedConnections(std::mem::take(&mut lock(&self.shared.state).vanished))
    }

    /// Begins a fault, or ends it with [`ConnectionFault::None`].
    pub fn set(&self, fault: ConnectionFault) {
        let mut state = lock(&self.shared.state);
        state.fault = fault;
        if fault == ConnectionFault::Vanish {
            let vanished = std::mem::take(&mut state.connections);
            let vanished = vanished.into_iter().flat_map(ProxiedConnection::vanish);
            state.vanished.extend(vanished);
        }
        for connection in &state.connections {
            if fault == ConnectionFault::Cut || connection.marks.is_spoiled.load(Ordering::SeqCst) {
                connection.cut();
            }
        }
        self.shared.changed.notify_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.set(ConnectionFault::Cut);
        lock(&self.shared.state).is_closed = true;
        for address in &self.addresses {
            // Wakes the thread that accepts connections, so that it ends.
            let _ = TcpStream::connect(address);
        }
    }
}

/// Everything that arrives on this connection is dropped before the system handles it: the system acknowledges nothing
/// and resets nothing, like a host that is switched off.
///
/// # Errors
/// The errors of the socket; [`io::ErrorKind::Unsupported`] on systems without socket filters.
#[cfg(target_os = "linux")]
fn drop_incoming_packets<'a>(socket: impl Into<socket2::SockRef<'a>>) -> io::Result<()> {
    // BPF_RET | BPF_K of <linux/bpf_common.h>, and how many bytes of each packet to keep.
    let nothing = [socket2::SockFilter::new(0x06, 0, 0, 0)];
    socket.into().attach_filter(&nothing)
}

#[cfg(not(target_os = "linux"))]
fn drop_incoming_packets<T>(_: T) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether this system can cause [`ConnectionFault::Vanish`].
pub(crate) fn can_drop_incoming_packets() -> io::Result<()> {
    TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| drop_incoming_packets(&socket))
}

fn open(shared: &Arc<SharedProxyState>, client: TcpStream, server: &str) -> io::Result<()> {
    {
        let mut state = lock(&shared.state);
        match state.fault {
            ConnectionFault::Cut => return Ok(()),
            // A host that is gone does not refuse a connection.
            ConnectionFault::Vanish => {
                state.vanished.push(client);
                return Ok(());
            }
            _ => {}
        }
    }
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let marks = Arc::new(Marks::default());
    let id = {
        let mut state = lock(&shared.state);
        state.next += 1;
        let id = state.next;
        let connection = ProxiedConnection {
            id,
            client: client.try_clone()?,
            server: server.try_clone()?,
            marks: marks.clone(),
        };
        match state.fault {
            ConnectionFault::Vanish => state.vanished.extend(connection.vanish()),
            _ => state.connections.push(connection),
        }
        id
    };
    let ways = [
        (client.try_clone()?, server.try_clone()?, false),
        (server, client, true),
    ];
    for (from, to, is_reply) in ways {
        let (shared, marks) = (shared.clone(), marks.clone());
        std::thread::spawn(move || {
            pass(&shared, from, to, is_reply, &marks, id);
            let mut state = lock(&shared.state);
            // When one direction is closed, both are closed: none of the protocols uses half a connection.
            if let Some(at) = state
                .connections
                .iter()
                .position(|connection| connection.id == id)
            {
                state.connections.swap_remove(at).cut();
            }
        });
    }
    Ok(())
}

/// Passes bytes on in one direction until either end is closed.
fn pass(
    shared: &SharedProxyState,
    mut from: TcpStream,
    mut to: TcpStream,
    is_reply: bool,
    marks: &Marks,
    id: u64,
) {
    let mut bytes = [0; 16 * 1024];
    let mut noise = Random::new(id);
    loop {
        let count = match from.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        let fault = {
            let mut state = lock(&shared.state);
            while state.fault == ConnectionFault::Stall {
                state = shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
            }
            if marks.has_vanished.load(Ordering::SeqCst) {
                return;
            }
            let spoils = matches!(
                state.fault,
                ConnectionFault::LostReply | ConnectionFault::Garbage
            );
            if spoils && is_reply {
                // Under the lock: either the end of the fault finds the mark, or this thread sees that it has ended.
                marks.is_spoiled.store(true, Ordering::SeqCst);
            }
            state.fault
        };
        if marks.is_spoiled.load(Ordering::SeqCst) && is_reply && fault != ConnectionFault::Garbage
        {
            continue;
        }
        let got = &mut bytes[..count];
        match fault {
            ConnectionFault::Delay(late) => std::thread::sleep(late),
            ConnectionFault::Garbage if is_reply => got.fill_with(|| noise.number() as u8),
            _ => {}
        }
        let done = match fault {
            ConnectionFault::Cut => return,
            ConnectionFault::Trickle if is_reply => trickle(shared, got, &mut to),
            _ => to.write_all(got),
        };
        if done.is_err() {
            return;
        }
    }
}

/// Passes one byte a second, and what is left when the fault is over.
fn trickle(shared: &SharedProxyState, bytes: &[u8], to: &mut TcpStream) -> io::Result<()> {
    let mut state = lock(&shared.state);
    for (at, byte) in bytes.iter().enumerate() {
        if state.fault != ConnectionFault::Trickle {
            drop(state);
            return to.write_all(&bytes[at..]);
        }
        to.write_all(&[*byte])?;
        (state, _) = shared
            .changed
            .wait_timeout_while(state, TRICKLE_INTERVAL, |state| {
                state.fault == ConnectionFault::Trickle
            })
            .unwrap_or_else(std::sync::PoisonError::into_inner);
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_vanished_acknowledges_nothing_and_sends_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::open(&[listener.local_addr().unwrap().to_string()]).unwrap();
        let mut client = TcpStream::connect(proxy.addresses()[0]).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut byte = [0];
        client.write_all(b"1").unwrap();
        server.read_exact(&mut byte).unwrap();

        proxy.set(ConnectionFault::Vanish);
        client.write_all(b"2").unwrap();
        drop(client);
        proxy.set(ConnectionFault::None);
        // The system of a host that runs would answer although the process has ended.
        let timeout = Some(Duration::from_millis(100));
        socket2::SockRef::from(&server)
            .set_tcp_user_timeout(timeout)
            .unwrap();
        server.write_all(b"3").unwrap();
        let error = server.read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");

        // A new connection through the same proxy is another host, and its messages arrive.
        let mut client = TcpStream::connect(proxy.addresses()[0]).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"4").unwrap();
        server.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"4");
    }

    #[test]
    fn a_host_that_vanished_cannot_connect() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy::open(&[listener.local_addr().unwrap().to_string()]).unwrap();
        proxy.set(ConnectionFault::Vanish);
        let early = TcpStream::connect(proxy.addresses()[0]).unwrap();
        while lock(&proxy.shared.state).vanished.is_empty() {
            std::thread::yield_now();
        }
        proxy.set(ConnectionFault::None);
        let late = TcpStream::connect(proxy.addresses()[0]).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        { &early }.write_all(b"e").unwrap();
        { &late }.write_all(b"l").unwrap();
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"l");
    }
}
