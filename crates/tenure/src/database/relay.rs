//! A way for the bytes of a connection through this process, so that the end of the connection is noticed at once.
//!
//! The client library opens its socket itself, keeps the socket to itself, and reads it only while a request is under way.
//! So a session that the server ended would look alive until the next request, and its locks would have two holders
//! meanwhile. Here the client library connects to a socket of this process instead, and the socket to the server is ours:
//! the task that runs a request moves the bytes between the two, and a task that waits for the end looks at the socket to
//! the server while there is no request. TLS is not concerned: the client library encrypts before the bytes come here.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as unix;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use tenure_core::rt::lock;

use super::server::{Kind, Server};

/// How many bytes are moved at once: more than the reply to any request about locks.
const BUFFER_SIZE: usize = 8 * 1_024;

/// The socket to the server, and the one to the client library.
pub(super) struct Relay {
    /// The name of the socket that the client library connects to.
    name: String,
    ends: Arc<Mutex<Ends>>,
}

/// Resolves when a connection has ended.
pub(crate) struct EndWatch(Weak<Mutex<Ends>>);

struct Ends {
    client: ClientEnd,
    server: Box<dyn Stream>,
    to_server: Buffer,
    to_client: Buffer,
    /// Of the task that waits for the end.
    watcher: Option<Waker>,
    /// The connection to the server is over. The error is for the request that is under way.
    end: Option<Option<io::Error>>,
}

/// The socket to the client library. This socket never blocks, and is read whenever the library may have written.
enum ClientEnd {
    Listening(unix::UnixListener),
    Connected(unix::UnixStream),
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Relay {
    /// Connects to the server. `None`: this process may not have the socket for the client library.
    pub(super) async fn connect(server: &Server) -> io::Result<Option<Self>> {
        let name = format!("tenure-{:032x}", rand::random::<u128>());
        // An abstract name: there is no file.
        let Ok(address) = unix::SocketAddr::from_abstract_name(listener_name(server, &name)) else {
            return Ok(None);
        };
        let Ok(listener) = unix::UnixListener::bind_addr(&address) else {
            return Ok(None);
        };
        listener.set_nonblocking(true)?;
        let ends = Ends {
            client: ClientEnd::Listening(listener),
            server: connect(server).await?,
            to_server: Buffer::default(),
            to_client: Buffer::default(),
            watcher: None,
            end: None,
        };
        let ends = Arc::new(Mutex::new(ends));
        Ok(Some(Self { name, ends }))
    }

    /// The path of the socket that the client library connects to, as the library takes such a path.
    pub(super) fn path(&self) -> String {
        format!("\0{}", self.name)
    }

    /// Moves bytes for as long as `work` takes, which uses the client library.
    pub(super) async fn drive<T>(
        &self,
        work: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        let mut work = pin!(work);
        let outcome = std::future::poll_fn(|context| {
            let outcome = work.as_mut().poll(context);
            let mut ends = lock(&self.ends);
            match outcome.is_ready() {
                // The last bytes of the request.
                true => ends.forward_and_watch(),
                false => ends.forward(context),
            }
            outcome
        });
        outcome.await.map_err(|err| match lock(&self.ends).error() {
            // The client library only knows that the connection is over.
            Some(cause) if matches!(err, sqlx::Error::Io(_)) => sqlx::Error::Io(cause),
            _ => err,
        })
    }

    pub(super) fn end_watch(&self) -> EndWatch {
        EndWatch(Arc::downgrade(&self.ends))
    }
}

impl EndWatch {
    /// Resolves when the server, the network or this process has ended the connection.
    pub(crate) async fn ended(self) {
        std::future::poll_fn(|context| {
            let Some(ends) = self.0.upgrade() else {
                return Poll::Ready(());
            };
            let mut ends = lock(&ends);
            ends.watcher = Some(context.waker().clone());
            ends.forward(context);
            match ends.end {
                Some(_) => Poll::Ready(()),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

impl Ends {
    /// Moves the bytes that are there, and wakes the watcher for more of them: no request is under way now.
    fn forward_and_watch(&mut self) {
        let waker = self.watcher.clone();
        let waker = waker.as_ref().unwrap_or(Waker::noop());
        self.forward(&mut Context::from_waker(waker));
        if self.end.is_some() {
            waker.wake_by_ref();
        }
    }

    /// Moves the bytes that are there in both directions. `context` is woken when the server has sent more.
    fn forward(&mut self, context: &mut Context<'_>) {
        if self.end.is_some() {
            return;
        }
        let to_server = self.forward_to_server(context);
        let outcome = to_server.and_then(|()| self.forward_to_client(context));
        let end = match outcome {
            Ok(Poll::Pending) => return,
            Ok(Poll::Ready(())) => None,
            Err(err) => Some(err),
        };
        self.end = Some(end);
        if let ClientEnd::Connected(client) = &self.client {
            // The client library still receives what the server sent before the end.
            let _ = client.shutdown(Shutdown::Write);
        }
        if let Some(watcher) = &self.watcher {
            watcher.wake_by_ref();
        }
    }

    fn forward_to_server(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(mut client) = self.client.connected()? else {
            return Ok(());
        };
        loop {
            while let Some(bytes) = self.to_server.filled() {
                let Poll::Ready(written) = Pin::new(&mut self.server).poll_write(context, bytes)
                else {
                    return Ok(());
                };
                self.to_server.consume(written?);
            }
            match client.read(self.to_server.free()) {
                // The client library has closed its socket.
                Ok(0) => return Ok(()),
                Ok(count) => self.to_server.fill(count),
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(err) => return Err(err),
            }
        }
    }

    /// `Ready`: the server has closed the connection.
    fn forward_to_client(&mut self, context: &mut Context<'_>) -> io::Result<Poll<()>> {
        let Some(mut client) = self.client.connected()? else {
            return Ok(Poll::Pending);
        };
        loop {
            while let Some(bytes) = self.to_client.filled() {
                match client.write(bytes) {
                    Ok(count) => self.to_client.consume(count),
                    // The client library reads when it is polled next, and after that the rest is moved.
                    Err(err) if err.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Poll::Pending);
                    }
                    Err(err) => return Err(err),
                }
            }
            let mut bytes = ReadBuf::new(self.to_client.free());
            match Pin::new(&mut self.server).poll_read(context, &mut bytes) {
                Poll::Pending => return Ok(Poll::Pending),
                Poll::Ready(read) => read?,
            }
            match bytes.filled().len() {
                0 => return Ok(Poll::Ready(())),
                count => self.to_client.fill(count),
            }
        }
    }

    /// The error that ended the connection. The first caller gets it.
    fn error(&mut self) -> Option<io::Error> {
        self.end.as_mut()?.take()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.wake();
        }
    }
}

impl ClientEnd {
    /// The socket to the client library, as soon as the library has connected.
    fn connected(&mut self) -> io::Result<Option<&unix::UnixStream>> {
        while let Self::Listening(listener) = self {
            match listener.accept() {
                // Any process of this machine could find the name.
                Ok((stream, _)) => {
                    if let Some(stream) = of_this_process(stream)? {
                        *self = Self::Connected(stream);
                    }
                }
                Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(err) => return Err(err),
            }
        }
        match self {
            Self::Connected(stream) => Ok(Some(stream)),
            Self::Listening(_) => Ok(None),
        }
    }
}

/// The stream, if its other end belongs to this process.
fn of_this_process(stream: unix::UnixStream) -> io::Result<Option<unix::UnixStream>> {
    stream.set_nonblocking(true)?;
    let stream = UnixStream::from_std(stream)?;
    let pid = stream.peer_cred()?.pid();
    let is_ours = pid.and_then(|pid| u32::try_from(pid).ok()) == Some(std::process::id());
    is_ours.then(|| stream.into_std()).transpose()
}

/// Bytes on their way.
struct Buffer {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Self {
            bytes: vec![0; BUFFER_SIZE].into(),
            start: 0,
            end: 0,
        }
    }
}

impl Buffer {
    /// The bytes that are yet to be written; `None`: there are none.
    fn filled(&self) -> Option<&[u8]> {
        let bytes = self.bytes.get(self.start..self.end)?;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Room for further bytes, when all were written.
    fn free(&mut self) -> &mut [u8] {
        (self.start, self.end) = (0, 0);
        &mut self.bytes
    }

    fn fill(&mut self, count: usize) {
        self.end = count;
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }
}

/// The name that the client library of that server makes of the path.
fn listener_name(server: &Server, name: &str) -> String {
    match server.kind {
        Kind::MySql => name.to_owned(),
        Kind::Postgres => postgres_socket(name, server),
    }
}

/// In a directory of sockets, the one of that server.
fn postgres_socket(directory: &str, server: &Server) -> String {
    format!("{directory}/.s.PGSQL.{}", server.host.port)
}

async fn connect(server: &Server) -> io::Result<Box<dyn Stream>> {
    Ok(match (&server.socket, server.kind) {
        (Some(path), Kind::MySql) => Box::new(UnixStream::connect(path).await?),
        (Some(path), Kind::Postgres) => {
            Box::new(UnixStream::connect(postgres_socket(path, server)).await?)
        }
        (None, _) => {
            let stream = TcpStream::connect((&*server.host.name, server.host.port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}
