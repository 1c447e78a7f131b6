//! One connection to a member. Requests go out in the order in which they are made, and replies come in any order.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, oneshot};

use tenure_core::error::Error;
use tenure_core::rt::{Clock, Flag, Spawner, lock};
use tenure_core::url::Host;

use crate::errors::{self, RequestError};
use crate::frame::{Decoder, Message, PROTOCOL};
use crate::messages::{self, Call, Group, Login, NoReply, Welcome};
use crate::settings::DEFAULT_GROUP;

/// How often a connection on which requests wait is checked: a member that vanished closes no connection. As often as the
/// Java client does it.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// The object whose group is asked for. No such object is made.
const PROBE: &str = "tenure";

/// How many bytes are read at a time.
const CHUNK: usize = 16 << 10;

/// A connection that can be used.
pub(crate) struct Connection {
    host: Host,
    /// The CP group as the members had it when the connection was opened. A cluster that was started again has another one.
    pub(crate) group: Arc<Group>,
    channel: Arc<Channel>,
}

/// A connection before and after its login.
struct Channel {
    host: Host,
    clock: Clock,
    timeout: Duration,
    number: AtomicI64,
    /// The requests without a reply; `None`: the connection is over.
    waiting: Mutex<Option<HashMap<i64, oneshot::Sender<Message>>>>,
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    /// Raised to end the connection.
    ended: Flag,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.host).finish()
    }
}

impl Connection {
    /// Connects, logs in, and asks for the CP group of that name, which is made if it does not exist. The caller limits the
    /// time. A caller that is dropped leaves no connection behind.
    pub(crate) async fn open(
        host: &Host,
        (login, group): (&Login<'_>, &str),
        (clock, spawner): (&Clock, &Spawner),
        timeout: Duration,
    ) -> Result<Arc<Self>, Error> {
        let opened = open_stream(host).await;
        let stream = opened.map_err(|err| errors::no_connection(host, err))?;
        let (outgoing, requests) = mpsc::unbounded_channel();
        let channel = Arc::new(Channel {
            host: host.clone(),
            clock: clock.clone(),
            timeout,
            number: AtomicI64::new(0),
            waiting: Mutex::new(Some(HashMap::new())),
            outgoing,
            ended: Flag::new(),
        });
        let (serving, closing) = (channel.clone(), CloseOnDrop(Some(channel)));
        spawner.spawn(async move { serving.serve(stream, requests).await });
        let channel = closing.channel();
        channel.log_in(login).await?;
        let group = channel.find_group(group).await?;
        Ok(Arc::new(Self {
            host: host.clone(),
            group: Arc::new(group),
            channel: closing.keep(),
        }))
    }

    /// Sends a request and waits for its reply, without a limit. Cancel safe: the reply to a request that is dropped is
    /// ignored.
    ///
    /// The request may have been sent, unless the error is `NotSent`.
    pub(crate) async fn call<T>(&self, call: &Call<T>) -> Result<T, RequestError> {
        self.channel.call(call).await
    }

    /// As [`call`](Self::call), for at most the time limit of a request. Cancel safe.
    pub(crate) async fn call_in_time<T>(&self, call: &Call<T>) -> Result<T, RequestError> {
        self.channel.call_in_time(call).await
    }

    /// Ends the connection. Requests that wait for their replies fail.
    pub(crate) fn close(&self) {
        self.channel.close();
    }

    /// Whether the connection is over.
    pub(crate) fn is_over(&self) -> bool {
        self.channel.ended.is_raised()
    }
}

impl Channel {
    async fn log_in(&self, login: &Login<'_>) -> Result<(), Error> {
        let Welcome { status, version } = match self.call(&messages::authenticate(login)).await {
            Ok(welcome) => welcome,
            Err(RequestError::Refused(refusal)) => return Err(refusal.into()),
            Err(_) => return Err(errors::no_member(&self.host)),
        };
        if status != 0 {
            return Err(errors::refused_login(&self.host, login.cluster, status));
        }
        tracing::debug!(store = "hazelcast", host = %self.host, version, "connected");
        Ok(())
    }

    async fn find_group(&self, group: &str) -> Result<Group, Error> {
        let find = async |object: &str| {
            let found = self.call(&messages::create_group(object)).await;
            found.map_err(RequestError::without_effect)
        };
        // An object without a group lies in the default one. A cluster without the CP subsystem names the group after the
        // object.
        let default = find(PROBE).await?;
        if default.name != DEFAULT_GROUP {
            return Err(errors::unsafe_mode());
        }
        match group {
            DEFAULT_GROUP => Ok(default),
            group => find(&format!("{PROBE}@{group}")).await,
        }
    }

    async fn call<T>(&self, call: &Call<T>) -> Result<T, RequestError> {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let is_open = match lock(&self.waiting).as_mut() {
            Some(waiting) => {
                waiting.insert(number, sender);
                self.outgoing.send(call.request.finish(number)).is_ok()
            }
            None => false,
        };
        let _forget = Forget(self, number);
        if !is_open {
            let gone = io::Error::from(io::ErrorKind::NotConnected);
            return Err(RequestError::NotSent(errors::no_connection(
                &self.host, gone,
            )));
        }
        let Ok(reply) = receiver.await else {
            return Err(RequestError::Unknown(errors::no_reply(&self.host, false)));
        };
        call.read(&reply).map_err(|err| match err {
            NoReply::Refused(err) => errors::explain(&err),
            NoReply::Malformed => RequestError::Unknown(errors::malformed(&self.host)),
        })
    }

    async fn call_in_time<T>(&self, call: &Call<T>) -> Result<T, RequestError> {
        let limit = self.clock.now().after(self.timeout);
        tokio::select! {
            biased;
            reply = self.call(call) => reply,
            () = self.clock.sleep_until(limit) => {
                Err(RequestError::Unknown(errors::no_reply(&self.host, true)))
            }
        }
    }

    fn close(&self) {
        self.ended.raise();
        // The task that serves the connection may never run again, when the runtime has shut down.
        drop(lock(&self.waiting).take());
    }

    async fn serve(&self, stream: TcpStream, requests: mpsc::UnboundedReceiver<Vec<u8>>) {
        let (reader, writer) = stream.into_split();
        let end = tokio::select! {
            biased;
            () = self.ended.raised() => Ok(()),
            end = self.read(reader) => end,
            end = write(writer, requests) => end,
            end = self.check() => end,
        };
        if let Err(err) = end {
            tracing::debug!(store = "hazelcast", host = %self.host, %err, "the connection ended");
        }
        self.close();
    }

    async fn read(&self, mut reader: OwnedReadHalf) -> io::Result<()> {
        let (mut decoder, mut chunk) = (Decoder::default(), vec![0; CHUNK]);
        loop {
            let count = reader.read(&mut chunk).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            decoder.add(chunk.get(..count).unwrap_or_default());
            loop {
                match decoder.next() {
                    Ok(Some(message)) => self.pass_on(message),
                    Ok(None) => break,
                    Err(malformed) => return Err(io::Error::other(malformed.0)),
                }
            }
        }
    }

    fn pass_on(&self, message: Message) {
        let number = message.number();
        let mut waiting = lock(&self.waiting);
        let sender = number.and_then(|number| waiting.as_mut()?.remove(&number));
        drop(waiting);
        if let Some(sender) = sender {
            // The caller may have been dropped.
            let _ = sender.send(message);
        }
    }

    /// Resolves when the member does not answer while requests wait.
    async fn check(&self) -> io::Result<()> {
        loop {
            let next = self.clock.now().after(PING_INTERVAL);
            self.clock.wait_until(next).await;
            let is_idle = lock(&self.waiting).as_ref().is_none_or(HashMap::is_empty);
            if !is_idle && self.call_in_time(&messages::ping()).await.is_err() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Forgets a request whose caller is gone.
struct Forget<'a>(&'a Channel, i64);

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = lock(&self.0.waiting).as_mut() {
            waiting.remove(&self.1);
        }
    }
}

/// Closes a connection unless it is kept.
struct CloseOnDrop(Option<Arc<Channel>>);

impl CloseOnDrop {
    fn channel(&self) -> &Channel {
        self.0
            .as_ref()
            .expect("BUG: the connection is taken by `keep` only")
    }

    fn keep(mut self) -> Arc<Channel> {
        self.0.take().expect("BUG: `keep` is called once")
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(channel) = &self.0 {
            channel.close();
        }
    }
}

/// The first address that accepts a connection.
async fn open_stream(host: &Host) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn write(
    mut writer: OwnedWriteHalf,
    mut requests: mpsc::UnboundedReceiver<Vec<u8>>,
) -> io::Result<()> {
    writer.write_all(PROTOCOL).await?;
    while let Some(mut bytes) = requests.recv().await {
        // Requests that were made at the same time go out together.
        while let Ok(more) = requests.try_recv() {
            bytes.extend(more);
        }
        writer.write_all(&bytes).await?;
    }
    Ok(())
}
