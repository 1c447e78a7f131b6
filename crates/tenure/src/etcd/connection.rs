//! The connections to the members of a cluster, one at a time: requests with a time limit, streams, and the login.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use rand::seq::SliceRandom as _;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Uri};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::{Flag, lock};
use tenure_core::support::{RetryBudget, SingleFlight};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::callers_channel::CallersChannel;
use super::context::Context;
use super::endpoint::Endpoint;
use super::errors::{self, Recovery, RequestError};
use super::wire::{self, path};

/// The path of a request, in the type of the client library.
macro_rules! path_of {
    ($path:expr) => {
        Uri::from_static($path)
            .path_and_query()
            .cloned()
            .expect("BUG: a path is a path")
    };
}

/// The longest response: a directory with tens of thousands of waiters.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// With this header a member without a leader refuses at once, and does not wait for a leader.
const REQUIRE_LEADER: &str = "hasleader";

/// A login token, as it is sent.
type Token = MetadataValue<Ascii>;

/// Uses one member at a time, and the next member when a request to this one fails.
pub(super) struct Connections {
    context: Arc<Context>,
    members: Vec<(Host, Endpoint)>,
    login: Option<wire::Authenticate>,
    current: Mutex<Current>,
    connecting: SingleFlight<RequestError>,
    logging_in: SingleFlight<RequestError>,
    token: Mutex<Option<Token>>,
}

struct Current {
    /// The index of the member to use, or to begin with when there is no connection.
    member: usize,
    connection: Option<Connection>,
}

/// A connection to one member.
#[derive(Clone)]
pub(super) struct Connection {
    channel: Channel,
    pub(super) host: Host,
    /// Raised when this client leaves the connection: its streams should be opened again on the next one.
    pub(super) left: Arc<Flag>,
}

/// A response.
#[derive(Debug)]
pub(super) struct Reply<A> {
    pub(super) value: A,
    /// Read before the request was sent.
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
    /// The request was sent before, without a reply: that one may have been applied, or may be applied later.
    pub(super) is_repeated: bool,
}

/// The attempts to send one request.
struct Attempts {
    limit: Time,
    /// How many members are left to be tried.
    others: usize,
    /// A channel of the caller may not know yet that its connection broke; our own is opened again for the next request.
    may_be_stale: bool,
    retries: RetryBudget,
    has_logged_in: bool,
    /// The error of an attempt that may have been applied. It counts more than later errors.
    ambiguous: Option<RequestError>,
}

impl Attempts {
    fn failed(self, err: RequestError) -> RequestError {
        self.ambiguous.unwrap_or(err)
    }
}

impl Connections {
    pub(super) fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let settings = &context.settings;
        let mut members = Vec::new();
        for host in &settings.hosts {
            members.push((host.clone(), Endpoint::new(settings, host)?));
        }
        if let Some(callers) = &settings.channel {
            let endpoint = Endpoint::Channel(callers.channel.clone());
            members.push((CallersChannel::host(), endpoint));
        }
        // Otherwise all clients would use the first member.
        members.shuffle(&mut rand::rng());
        let login = settings.login.as_ref();
        Ok(Self {
            context: context.clone(),
            members,
            login: login.map(|(user, password)| wire::Authenticate {
                name: user.clone(),
                password: password.reveal().to_owned(),
            }),
            current: Mutex::new(Current {
                member: 0,
                connection: None,
            }),
            connecting: SingleFlight::default(),
            logging_in: SingleFlight::default(),
            token: Mutex::new(None),
        })
    }

    /// How many members the URL names.
    pub(super) fn member_count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn now(&self) -> Time {
        self.context.now()
    }

    /// When a request that is sent now has failed.
    pub(super) fn request_limit(&self) -> Time {
        self.context.request_limit()
    }

    /// Drops the connection; the next request makes one.
    pub(super) fn close(&self) {
        if let Some(connection) = lock(&self.current).connection.take() {
            connection.left.raise();
        }
    }

    /// Leaves a connection whose member did not answer as it should; the next connection is to the next member.
    fn leave(&self, connection: &Connection) {
        let mut current = lock(&self.current);
        let is_current = current
            .connection
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(&known.left, &connection.left));
        if is_current {
            current.connection = None;
            current.member = (current.member + 1) % self.members.len();
        }
        drop(current);
        connection.left.raise();
    }

    /// Connects to the first member that accepts the connection and the login.
    pub(super) async fn open(&self) -> Result<(), RequestError> {
        let mut last = None;
        for _ in &self.members {
            let limit = self.request_limit();
            let connection = self.connection(limit).await?;
            match self.log_in(&connection, None, limit).await {
                Ok(()) => return Ok(()),
                Err(err) if err.recovery == Recovery::AnotherMember => last = Some(err),
                Err(err) => return Err(err),
            }
        }
        Err(last.expect("BUG: a URL has a host"))
    }

    /// Sends a request, and sends it again, to other members too, while that may help and there is time: every request
    /// of this store may be repeated.
    pub(super) async fn call<Q, A>(
        &self,
        path: &'static str,
        request: Q,
    ) -> Result<Reply<A>, RequestError>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let limit = self.request_limit();
        let mut attempts = Attempts {
            limit,
            others: self.members.len() - 1,
            may_be_stale: self.context.settings.channel.is_some(),
            retries: RetryBudget::until(limit),
            has_logged_in: false,
            ambiguous: None,
        };
        loop {
            let connection = match self.logged_in(limit).await {
                Ok(connection) => connection,
                Err(err) => return Err(attempts.failed(err)),
            };
            let (sent, token) = (self.context.now(), self.token());
            let until = self.share(limit, attempts.others);
            let attempt = self.send(&connection, path, request.clone(), token.clone(), until);
            let err = match attempt.await {
                Ok(value) => {
                    return Ok(Reply {
                        value,
                        sent,
                        round_trip: self.context.now().since(sent),
                        is_repeated: attempts.ambiguous.is_some(),
                    });
                }
                Err(err) => err,
            };
            if !self.recover(&connection, &err, token, &mut attempts).await {
                return Err(attempts.failed(err));
            }
            if err.is_ambiguous() {
                attempts.ambiguous = Some(err);
            }
        }
    }

    /// Does what may let the next attempt succeed. `false`: there is no next attempt.
    async fn recover(
        &self,
        connection: &Connection,
        err: &RequestError,
        token: Option<Token>,
        attempts: &mut Attempts,
    ) -> bool {
        let clock = &self.context.clock;
        match err.recovery {
            Recovery::LogIn if self.login.is_some() && !attempts.has_logged_in => {
                attempts.has_logged_in = true;
                // The next attempt logs in again and has the error, if there is one.
                let _ = self.log_in(connection, token, attempts.limit).await;
                true
            }
            Recovery::Pause => {
                let goes_on = !attempts.retries.is_spent(clock);
                attempts.retries.pause(clock).await;
                goes_on
            }
            Recovery::AnotherMember => {
                self.leave(connection);
                if !err.error.is_timeout() && std::mem::take(&mut attempts.may_be_stale) {
                    return clock.now() < attempts.limit;
                }
                if attempts.others == 0 && self.members.len() > 1 && !err.is_ambiguous() {
                    // All members have refused: they are electing a leader, which takes a moment.
                    attempts.others = self.members.len();
                    attempts.retries.pause(clock).await;
                }
                let goes_on = attempts.others > 0 && clock.now() < attempts.limit;
                attempts.others = attempts.others.saturating_sub(1);
                goes_on
            }
            Recovery::NewLease
            | Recovery::UseLease
            | Recovery::ReadPresent
            | Recovery::None
            | Recovery::LogIn => false,
        }
    }

    /// The time limit for one member: each of several members gets a share of `limit`, so that a silent member leaves time
    /// for the others.
    pub(super) fn share(&self, limit: Time, others: usize) -> Time {
        let now = self.context.now();
        let parts = u32::try_from(others + 1).unwrap_or(u32::MAX);
        now.after(limit.since(now) / parts)
    }

    fn current(&self) -> Option<Connection> {
        lock(&self.current).connection.clone()
    }

    fn token(&self) -> Option<Token> {
        lock(&self.token).clone()
    }

    /// A connection on which requests can be sent.
    async fn logged_in(&self, limit: Time) -> Result<Connection, RequestError> {
        let connection = self.connection(limit).await?;
        match self.log_in(&connection, None, limit).await {
            Ok(()) => Ok(connection),
            Err(err) => Err(err.of_unsent_request()),
        }
    }

    /// The current connection, or a new one.
    async fn connection(&self, limit: Time) -> Result<Connection, RequestError> {
        let connect = self.connect(limit);
        let current = || self.current();
        self.connecting
            .run(&self.context.clock, current, connect)
            .await
    }

    /// Connects to the first member that accepts the connection.
    async fn connect(&self, limit: Time) -> Result<Connection, RequestError> {
        let first = lock(&self.current).member;
        let mut last = None;
        for step in 0..self.members.len() {
            let member = (first + step) % self.members.len();
            let (host, endpoint) = &self.members[member];
            let until = self.share(limit, self.members.len() - 1 - step);
            match self.connect_to(host, endpoint, until).await {
                Ok(connection) => {
                    *lock(&self.current) = Current {
                        member,
                        connection: Some(connection.clone()),
                    };
                    return Ok(connection);
                }
                Err(err) => last = Some(err),
            }
        }
        Err(last.expect("BUG: a URL has a host"))
    }

    async fn connect_to(
        &self,
        host: &Host,
        endpoint: &Endpoint,
        until: Time,
    ) -> Result<Connection, RequestError> {
        let channel = tokio::select! {
            biased;
            channel = endpoint.connect() => {
                channel.map_err(|err| errors::explain_connect(err, host))?
            }
            () = self.context.clock.sleep_until(until) => return Err(RequestError {
                error: errors::silent_host(host),
                recovery: Recovery::AnotherMember,
            }),
        };
        Ok(Connection {
            channel,
            host: host.clone(),
            left: Arc::default(),
        })
    }

    /// Gets a login token, if users log in and there is no token but `stale`.
    async fn log_in(
        &self,
        connection: &Connection,
        stale: Option<Token>,
        limit: Time,
    ) -> Result<(), RequestError> {
        let Some(login) = &self.login else {
            return Ok(());
        };
        let is_logged_in = || {
            let token = lock(&self.token);
            (token.is_some() && *token != stale).then_some(())
        };
        let authenticate = self.authenticate(connection, login, limit);
        let clock = &self.context.clock;
        self.logging_in.run(clock, is_logged_in, authenticate).await
    }

    async fn authenticate(
        &self,
        connection: &Connection,
        login: &wire::Authenticate,
        limit: Time,
    ) -> Result<(), RequestError> {
        let request = self.send(connection, path::AUTHENTICATE, login.clone(), None, limit);
        let response: wire::AuthenticateResponse = request.await.inspect_err(|err| {
            if err.recovery == Recovery::AnotherMember {
                self.leave(connection);
            }
        })?;
        let token = response.token.parse().map_err(|_| {
            let error = errors::without_effect(errors::unexpected_reply());
            let recovery = Recovery::None;
            RequestError { error, recovery }
        })?;
        *lock(&self.token) = Some(token);
        Ok(())
    }

    /// Sends a request once.
    async fn send<Q, A>(
        &self,
        connection: &Connection,
        path: &'static str,
        request: Q,
        token: Option<Token>,
        until: Time,
    ) -> Result<A, RequestError>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = grpc(&connection.channel);
        let mut request = Request::new(request);
        add_metadata(&mut request, token);
        if path == path::STATUS {
            // A member without a leader reports its status, too.
            request.metadata_mut().remove(REQUIRE_LEADER);
        }
        self.intercept(&mut request, connection)?;
        let codec = ProstCodec::<Q, A>::default();
        let response = async {
            if let Err(err) = grpc.ready().await {
                return Err(errors::explain_connect(err, &connection.host));
            }
            let response = grpc.unary(request, path_of!(path), codec).await;
            response.map_err(|status| errors::explain_status(&status, &connection.host))
        };
        tokio::select! {
            biased;
            response = response => response.map(tonic::Response::into_inner),
            () = self.context.clock.sleep_until(until) => Err(RequestError::no_reply(&connection.host)),
        }
    }

    /// Adds what the caller adds to each request over its channel.
    fn intercept<T>(
        &self,
        request: &mut Request<T>,
        connection: &Connection,
    ) -> Result<(), RequestError> {
        let Some(callers) = &self.context.settings.channel else {
            return Ok(());
        };
        callers.intercept(request).map_err(|status| {
            let error = errors::explain_status(&status, &connection.host).of_unsent_request();
            let recovery = Recovery::None;
            RequestError { recovery, ..error }
        })
    }

    /// Opens a stream of responses, which has to be open before `until`. `messages` are sent; when they end, our side of
    /// the stream ends.
    pub(super) async fn stream<S, A>(
        &self,
        path: &'static str,
        messages: S,
        until: Time,
    ) -> Result<(Connection, Streaming<A>), RequestError>
    where
        S: futures_util::Stream + Send + 'static,
        S::Item: Message + 'static,
        A: Message + Default + 'static,
    {
        let connection = self.logged_in(until).await?;
        let token = self.token();
        let mut grpc = grpc(&connection.channel);
        let mut request = Request::new(messages);
        add_metadata(&mut request, token.clone());
        self.intercept(&mut request, &connection)?;
        let codec = ProstCodec::<S::Item, A>::default();
        let responses = async {
            if let Err(err) = grpc.ready().await {
                return Err(errors::explain_connect(err, &connection.host));
            }
            let responses = grpc.streaming(request, path_of!(path), codec).await;
            responses.map_err(|status| errors::explain_status(&status, &connection.host))
        };
        let responses = tokio::select! {
            biased;
            responses = responses => responses,
            () = self.context.clock.sleep_until(until) => Err(RequestError::no_reply(&connection.host)),
        };
        match responses {
            Ok(responses) => Ok((connection, responses.into_inner())),
            Err(err) => Err(self.after_stream(&connection, err, token).await),
        }
    }

    /// The next response of a stream, which has to come before `until`.
    pub(super) async fn next<A>(
        &self,
        connection: &Connection,
        responses: &mut Streaming<A>,
        until: Time,
    ) -> Result<A, RequestError> {
        let err = tokio::select! {
            biased;
            response = responses.message() => match response {
                Ok(Some(response)) => return Ok(response),
                Ok(None) => RequestError::new(
                    ErrorKind::Indeterminate,
                    Recovery::AnotherMember,
                    format!("{} ended the stream", connection.host),
                ),
                Err(status) => errors::explain_status(&status, &connection.host),
            },
            () = self.context.clock.sleep_until(until) => RequestError::no_reply(&connection.host),
        };
        Err(self.after_stream(connection, err, self.token()).await)
    }

    /// Does what may let the next stream succeed. Returns the error of this one.
    async fn after_stream(
        &self,
        connection: &Connection,
        err: RequestError,
        token: Option<Token>,
    ) -> RequestError {
        match err.recovery {
            Recovery::AnotherMember => self.leave(connection),
            Recovery::LogIn => {
                // The next request logs in again and has the error, if there is one.
                let _ = self.log_in(connection, token, self.request_limit()).await;
            }
            _ => {}
        }
        err
    }

    /// The status of each member, by a connection of its own.
    pub(super) async fn status(&self) -> Vec<(Host, Result<wire::StatusResponse, Error>)> {
        let ask = |(host, endpoint): &(Host, Endpoint)| {
            let (host, endpoint) = (host.clone(), endpoint.clone());
            async move {
                let limit = self.request_limit();
                let status = async {
                    let connection = self.connect_to(&host, &endpoint, limit).await?;
                    let request = wire::Empty {};
                    self.send(&connection, path::STATUS, request, self.token(), limit)
                        .await
                };
                let status = status.await.map_err(Error::from);
                (host, status)
            }
        };
        futures_util::future::join_all(self.members.iter().map(ask)).await
    }
}

fn add_metadata<T>(request: &mut Request<T>, token: Option<Token>) {
    let metadata = request.metadata_mut();
    metadata.insert(REQUIRE_LEADER, MetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    Grpc::new(channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES)
}
