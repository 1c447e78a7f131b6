//! The connection: which member we talk to, who we are, one request at a time.

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
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::time::Time;
use tenure_core::url::Host;

use super::endpoint::Endpoint;
use super::outcome::{self, Cure, Trouble};
use super::settings::Settings;
use super::wire::{self, path};

/// The path of a request, in the type that the client library wants.
macro_rules! path_of {
    ($to:expr) => {
        Uri::from_static($to)
            .path_and_query()
            .cloned()
            .expect("BUG: a path is a path")
    };
}

/// Longest answer: a directory with tens of thousands of waiters.
const MAX_ANSWER: usize = 64 << 20;

/// Talks to one member at a time, and to the next one when that does not do what it should.
pub(super) struct Link {
    members: Vec<(Host, Endpoint)>,
    login: Option<wire::Authenticate>,
    timeout: Duration,
    clock: Clock,
    pinned: Mutex<Pinned>,
    /// Held by whoever makes a connection or logs in.
    making: tokio::sync::Mutex<()>,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

struct Pinned {
    at: usize,
    line: Option<Line>,
}

/// A connection to one member.
#[derive(Clone)]
pub(super) struct Line {
    channel: Channel,
    pub(super) host: Host,
    /// We have left it: whatever is open on it should be opened elsewhere.
    pub(super) ended: Arc<Flag>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply<A> {
    pub(super) value: A,
    /// Read before the request was sent.
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
    /// It was sent before, and nobody knows whether that one was applied, or will be.
    pub(super) is_repeated: bool,
}

impl Link {
    pub(super) fn new(settings: &Settings, clock: Clock) -> Result<Self, Error> {
        let mut members = Vec::new();
        for host in &settings.hosts {
            members.push((host.clone(), Endpoint::new(settings, host)?));
        }
        // Else all clients would sit on the first one.
        members.shuffle(&mut rand::rng());
        let login = settings.login.as_ref();
        Ok(Self {
            members,
            login: login.map(|(user, password)| wire::Authenticate {
                name: user.clone(),
                password: password.reveal().to_owned(),
            }),
            timeout: settings.timeout,
            clock,
            pinned: Mutex::new(Pinned { at: 0, line: None }),
            making: tokio::sync::Mutex::new(()),
            token: Mutex::new(None),
        })
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.members.iter().map(|(host, _)| host)
    }

    /// Drops the connection; the next request makes one.
    pub(super) fn close(&self) {
        if let Some(line) = lock(&self.pinned).line.take() {
            line.ended.raise();
        }
    }

    fn limit(&self) -> Time {
        self.clock.now().after(self.timeout)
    }

    /// Of several members each gets its part of the time, so that a silent one leaves some for the others.
    fn share(&self, limit: Time, others: usize) -> Time {
        let now = self.clock.now();
        let parts = u32::try_from(others + 1).unwrap_or(u32::MAX);
        now.after(limit.since(now) / parts)
    }

    fn pinned(&self) -> Option<Line> {
        lock(&self.pinned).line.clone()
    }

    /// The connection in use, or a new one to the first member that accepts it.
    async fn line(&self, limit: Time) -> Result<Line, Trouble> {
        if let Some(line) = self.pinned() {
            return Ok(line);
        }
        let _making = self.making.lock().await;
        if let Some(line) = self.pinned() {
            return Ok(line);
        }
        let first = lock(&self.pinned).at;
        let mut last = None;
        for step in 0..self.members.len() {
            let at = (first + step) % self.members.len();
            let (host, endpoint) = &self.members[at];
            let until = self.share(limit, self.members.len() - 1 - step);
            let connected = tokio::select! {
                biased;
                connected = endpoint.connect() => {
                    connected.map_err(|err| outcome::connecting(err, host))
                }
                () = self.clock.sleep_until(until) => Err(Trouble {
                    error: outcome::silent(host),
                    cure: Cure::Elsewhere,
                }),
            };
            match connected {
                Ok(channel) => {
                    let line = Line {
                        channel,
                        host: host.clone(),
                        ended: Arc::new(Flag::new()),
                    };
                    let mut pinned = lock(&self.pinned);
                    pinned.at = at;
                    pinned.line = Some(line.clone());
                    return Ok(line);
                }
                Err(trouble) => last = Some(trouble),
            }
        }
        Err(last.expect("BUG: a URL has a host"))
    }

    /// Leaves a connection that does not do what it should; the next one goes to the next member.
    pub(super) fn leave(&self, line: &Line) {
        let mut pinned = lock(&self.pinned);
        let is_same = pinned
            .line
            .as_ref()
            .is_some_and(|now| Arc::ptr_eq(&now.ended, &line.ended));
        if is_same {
            pinned.line = None;
            pinned.at = (pinned.at + 1) % self.members.len();
        }
        drop(pinned);
        line.ended.raise();
    }

    /// The first word: finds a member that lets us in.
    pub(super) async fn open(&self) -> Result<(), Trouble> {
        let mut last = None;
        for _ in &self.members {
            let limit = self.limit();
            let line = self.line(limit).await?;
            match self.log_in(&line, None, limit).await {
                Ok(()) => return Ok(()),
                Err(trouble) if trouble.cure == Cure::Elsewhere => last = Some(trouble),
                Err(trouble) => return Err(trouble),
            }
        }
        Err(last.expect("BUG: a URL has a host"))
    }

    /// Asks, and asks other members while there is time and sense in it: every request of ours may be repeated.
    pub(super) async fn call<Q, A>(&self, to: &'static str, request: Q) -> Result<Reply<A>, Trouble>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let limit = self.limit();
        let mut others = self.members.len() - 1;
        let mut unsure = None;
        let (mut has_logged_in, mut pauses) = (false, 0);
        loop {
            let line = match self.line(limit).await {
                Ok(line) => line,
                Err(trouble) => return Err(unsure.unwrap_or(trouble)),
            };
            if let Err(trouble) = self.log_in(&line, None, limit).await {
                return Err(unsure.unwrap_or(not_sent(trouble)));
            }
            let sent = self.clock.now();
            let token = lock(&self.token).clone();
            let until = self.share(limit, others);
            let asked = self.once(&line, to, request.clone(), token.clone(), until);
            let trouble = match asked.await {
                Ok(value) => {
                    return Ok(Reply {
                        value,
                        sent,
                        round_trip: self.clock.now().since(sent),
                        is_repeated: unsure.is_some(),
                    });
                }
                Err(trouble) => trouble,
            };
            let goes_on = match trouble.cure {
                Cure::LogIn if self.login.is_some() && !has_logged_in => {
                    has_logged_in = true;
                    // An error is told when it logs in once more.
                    let _ = self.log_in(&line, token, limit).await;
                    true
                }
                Cure::Later => self.pause(&mut pauses, limit).await,
                Cure::Elsewhere => {
                    self.leave(&line);
                    if others == 0 && self.members.len() > 1 && !trouble.is_indeterminate() {
                        // All of them have refused: they are electing a leader, which takes a moment.
                        others = self.members.len();
                        self.pause(&mut pauses, limit).await;
                    }
                    let goes_on = others > 0 && self.clock.now() < limit;
                    others = others.saturating_sub(1);
                    goes_on
                }
                Cure::NewLease | Cure::OldLease | Cure::None | Cure::LogIn => false,
            };
            if !goes_on {
                return Err(unsure.unwrap_or(trouble));
            }
            if trouble.is_indeterminate() {
                unsure = Some(trouble);
            }
        }
    }

    /// Waits for a moment, longer each time. `false`: the time is over.
    async fn pause(&self, pauses: &mut u32, limit: Time) -> bool {
        let left = limit.since(self.clock.now());
        let pause = pace::next(*pauses, rand::random(), None, Some(left));
        *pauses += 1;
        if let Some(pause) = pause {
            self.clock.sleep_until(self.clock.now().after(pause)).await;
        }
        pause.is_some()
    }

    /// Gets a token, if users log in and we have none but `stale`.
    async fn log_in(
        &self,
        line: &Line,
        stale: Option<MetadataValue<Ascii>>,
        limit: Time,
    ) -> Result<(), Trouble> {
        let Some(login) = &self.login else {
            return Ok(());
        };
        let is_fresh = || {
            let token = lock(&self.token);
            token.is_some() && *token != stale
        };
        if is_fresh() {
            return Ok(());
        }
        let _making = self.making.lock().await;
        if is_fresh() {
            return Ok(());
        }
        let asked = self.once(line, path::AUTHENTICATE, login.clone(), None, limit);
        let answer: wire::AuthenticateAnswer = asked.await.inspect_err(|trouble| {
            if trouble.cure == Cure::Elsewhere {
                self.leave(line);
            }
        })?;
        let token = answer.token.parse().map_err(|_| Trouble {
            error: outcome::harmless(outcome::nonsense()),
            cure: Cure::None,
        })?;
        *lock(&self.token) = Some(token);
        Ok(())
    }

    async fn once<Q, A>(
        &self,
        line: &Line,
        to: &'static str,
        request: Q,
        token: Option<MetadataValue<Ascii>>,
        until: Time,
    ) -> Result<A, Trouble>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = grpc(&line.channel);
        let mut request = Request::new(request);
        sign(&mut request, token);
        if to == path::STATUS {
            // Also a member without a leader says how it is.
            request.metadata_mut().remove(HAS_LEADER);
        }
        let codec = ProstCodec::<Q, A>::default();
        let asked = async {
            if let Err(err) = grpc.ready().await {
                return Err(outcome::connecting(err, &line.host));
            }
            let answer = grpc.unary(request, path_of!(to), codec).await;
            answer.map_err(|status| outcome::asking(&status, &line.host))
        };
        tokio::select! {
            biased;
            answer = asked => answer.map(tonic::Response::into_inner),
            () = self.clock.sleep_until(until) => Err(Trouble::silence(&line.host)),
        }
    }

    /// Opens a stream of answers. `messages` is what is sent; the server hears no more when it ends.
    pub(super) async fn stream<S, A>(
        &self,
        to: &'static str,
        messages: S,
    ) -> Result<(Line, Streaming<A>), Trouble>
    where
        S: futures_util::Stream + Send + 'static,
        S::Item: Message + 'static,
        A: Message + Default + 'static,
    {
        let limit = self.limit();
        let line = self.line(limit).await?;
        self.log_in(&line, None, limit).await.map_err(not_sent)?;
        let token = lock(&self.token).clone();
        let mut grpc = grpc(&line.channel);
        let mut request = Request::new(messages);
        sign(&mut request, token.clone());
        let codec = ProstCodec::<S::Item, A>::default();
        let opened = async {
            if let Err(err) = grpc.ready().await {
                return Err(outcome::connecting(err, &line.host));
            }
            let opened = grpc.streaming(request, path_of!(to), codec).await;
            opened.map_err(|status| outcome::asking(&status, &line.host))
        };
        let opened = tokio::select! {
            biased;
            opened = opened => opened,
            () = self.clock.sleep_until(limit) => Err(Trouble::silence(&line.host)),
        };
        match opened {
            Ok(answers) => Ok((line, answers.into_inner())),
            Err(trouble) => Err(self.after(&line, trouble, token).await),
        }
    }

    /// The next answer of a stream, for which it may take until then.
    pub(super) async fn next<A>(
        &self,
        line: &Line,
        answers: &mut Streaming<A>,
        until: Time,
    ) -> Result<A, Trouble> {
        let answer = tokio::select! {
            biased;
            answer = answers.message() => match answer {
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => Trouble::new(
                    ErrorKind::Indeterminate,
                    Cure::Elsewhere,
                    format!("{} ended the stream", line.host),
                ),
                Err(status) => outcome::asking(&status, &line.host),
            },
            () = self.clock.sleep_until(until) => Trouble::silence(&line.host),
        };
        let token = lock(&self.token).clone();
        Err(self.after(line, answer, token).await)
    }

    /// Does what helps the next stream.
    async fn after(
        &self,
        line: &Line,
        trouble: Trouble,
        token: Option<MetadataValue<Ascii>>,
    ) -> Trouble {
        match trouble.cure {
            Cure::Elsewhere => self.leave(line),
            Cure::LogIn => {
                // An error is told when it logs in once more.
                let _ = self.log_in(line, token, self.limit()).await;
            }
            _ => {}
        }
        trouble
    }

    /// How each member is, by a connection of its own.
    pub(super) async fn status(&self) -> Vec<(Host, Result<wire::StatusAnswer, Error>)> {
        let ask = |(host, endpoint): &(Host, Endpoint)| {
            let (host, endpoint) = (host.clone(), endpoint.clone());
            async move {
                let limit = self.limit();
                let asked = async {
                    let channel = endpoint.connect().await;
                    let channel = channel.map_err(|err| outcome::connecting(err, &host).error)?;
                    let line = Line {
                        channel,
                        host: host.clone(),
                        ended: Arc::default(),
                    };
                    let token = lock(&self.token).clone();
                    let asked = self.once(&line, path::STATUS, wire::Nothing {}, token, limit);
                    asked.await.map_err(|trouble| trouble.error)
                };
                let answer = tokio::select! {
                    biased;
                    answer = asked => answer,
                    () = self.clock.sleep_until(limit) => Err(outcome::silent(&host)),
                };
                (host, answer)
            }
        };
        futures_util::future::join_all(self.members.iter().map(ask)).await
    }
}

/// Who could not log in has sent nothing of what was to be asked.
fn not_sent(trouble: Trouble) -> Trouble {
    Trouble {
        error: outcome::harmless(trouble.error),
        ..trouble
    }
}

/// With this a member without a leader refuses at once, instead of waiting for one.
const HAS_LEADER: &str = "hasleader";

fn sign<T>(request: &mut Request<T>, token: Option<MetadataValue<Ascii>>) {
    let metadata = request.metadata_mut();
    metadata.insert(HAS_LEADER, MetadataValue::from_static("true"));
    if let Some(token) = token {
        metadata.insert("token", token);
    }
}

fn grpc(channel: &Channel) -> Grpc<Channel> {
    Grpc::new(channel.clone()).max_decoding_message_size(MAX_ANSWER)
}
