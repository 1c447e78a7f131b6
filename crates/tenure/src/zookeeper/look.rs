//! Who holds, who waits; for people, and for nothing that decides.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client::{Error as Said, SessionState, Stat};

use tenure_core::backend::{Finding, Severity};
use tenure_core::error::Error;
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::logic::queue::{Contender, Turn, decide};
use tenure_core::name::{Escaped, LockName};

use crate::tls;

use super::hold::{NodeRecord, Store};
use super::names::{self, Child};
use super::outcome::Failed;
use super::probe;
use super::session::Session;
use super::settings::{Access, Names};

/// Ends the walk through names that are paths.
const DEEPEST: usize = 32;

/// Without sequence numbers of their own.
type Queue = Vec<(Child, Stat, Option<NodeRecord>)>;

impl Store {
    pub(super) async fn inspect(self: &Arc<Self>, name: LockName) -> Result<Status, Error> {
        let dir = self.dir(&name)?;
        let session = self.any_session().await?;
        let status = async {
            // Else a server that lags behind says what was.
            self.ask(session.client.sync(&dir)).await?;
            self.status(&session, name, &dir).await
        };
        status.await.map_err(|failed| self.explain(failed))
    }

    async fn status(&self, session: &Session, name: LockName, dir: &str) -> Result<Status, Failed> {
        let queue = self.queue(session, dir).await?;
        let contenders: Vec<_> = queue
            .iter()
            .map(|(child, ..)| Contender { mode: child.mode })
            .collect();
        let is_holding = |me: &usize| decide(&contenders, *me) == Turn::Held;
        // Strictly first come, first served: who holds is in front of all who wait.
        let holders = (0..queue.len()).take_while(is_holding).count();
        let mut status = Status::free(name);
        let mut waiting = Vec::new();
        for (at, (child, stat, written)) in queue.into_iter().enumerate() {
            let lease = written
                .as_ref()
                .map(|written| Duration::from_millis(written.ttl));
            let mut holder = written.map_or_else(stranger, |written| written.holder.into());
            let made = Duration::from_millis(stat.ctime.unsigned_abs());
            holder.since = SystemTime::checked_add(&UNIX_EPOCH, made);
            if at < holders {
                let token = Some(stat.czxid.unsigned_abs());
                // All of it: nobody is told when the servers last heard of a session.
                let info = HoldInfo::new(holder, child.mode, token, lease);
                status.holds.push(info);
            } else {
                waiting.push(holder);
            }
        }
        status.queue = Some(waiting);
        Ok(status)
    }

    /// Everybody who holds or waits, in order, with what they wrote about themselves.
    async fn queue(&self, session: &Session, dir: &str) -> Result<Queue, Failed> {
        let client = &session.client;
        let children = match self.ask(client.list_children(dir)).await {
            Ok(children) => children,
            Err(failed) if failed.is(&Said::NoNode) => return Ok(Queue::new()),
            Err(failed) => return Err(failed),
        };
        let order = self.in_order(session, dir, &children).await?;
        let paths: Vec<_> = order
            .iter()
            .map(|it| format!("{dir}/{}", it.name))
            .collect();
        let asked: Vec<_> = paths.iter().map(|path| client.get_data(path)).collect();
        let mut queue = Queue::with_capacity(order.len());
        for ((child, asked), path) in order.into_iter().zip(asked).zip(&paths) {
            match self.ask(asked).await {
                Ok((data, stat)) => {
                    let written = serde_json::from_slice(&data).ok();
                    queue.push((child, stat, written));
                }
                Err(failed) if failed.is(&Said::NoNode) => {}
                Err(failed) if failed.is(&Said::NoAuth) => {
                    if let Some(stat) = self.ask(client.check_stat(path)).await? {
                        queue.push((child, stat, None));
                    }
                }
                Err(failed) => return Err(failed),
            }
        }
        Ok(queue)
    }

    /// Looks at every name.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Vec<Status>, Error> {
        let session = self.any_session().await?;
        let held = async {
            let root = match self.settings.root.as_str() {
                "" => "/",
                root => root,
            };
            self.ask(session.client.sync(root)).await?;
            let mut names = match self.settings.names {
                Names::Encoded => self.names(&session, root).await?,
                Names::Raw => self.paths(&session).await?,
            };
            names.retain(|name| name.as_str().starts_with(prefix));
            names.sort();
            names.dedup();
            let mut held = Vec::new();
            for name in names {
                let Ok(dir) = self.dir(&name) else { continue };
                let status = self.status(&session, name, &dir).await?;
                held.extend(Some(status).filter(Status::is_held));
            }
            Ok(held)
        };
        held.await.map_err(|failed| self.explain(failed))
    }

    async fn children(&self, session: &Session, path: &str) -> Result<Vec<String>, Failed> {
        match self.ask(session.client.list_children(path)).await {
            // What we may not look at is none of ours.
            Err(failed) if failed.is(&Said::NoNode) || failed.is(&Said::NoAuth) => Ok(Vec::new()),
            children => children,
        }
    }

    async fn names(&self, session: &Session, root: &str) -> Result<Vec<LockName>, Failed> {
        let children = self.children(session, root).await?;
        let is_at_root = self.settings.root.is_empty();
        let name = |child: &String| names::decode(child, is_at_root);
        Ok(children.iter().filter_map(name).collect())
    }

    /// Every node with a contender under it.
    async fn paths(&self, session: &Session) -> Result<Vec<LockName>, Failed> {
        let root = &self.settings.root;
        let mut found = Vec::new();
        let mut left = vec![(String::new(), 0)];
        while let Some((path, depth)) = left.pop() {
            let whole = match root.len() + path.len() {
                0 => "/".to_owned(),
                _ => format!("{root}{path}"),
            };
            for child in self.children(session, &whole).await? {
                if Child::parse(&child).is_some() {
                    found.extend(LockName::new(path.trim_start_matches('/')).ok());
                } else if depth < DEEPEST
                    && !(root.is_empty() && depth == 0 && child == "zookeeper")
                {
                    left.push((format!("{path}/{child}"), depth + 1));
                }
            }
        }
        Ok(found)
    }

    pub(super) async fn break_lock(
        self: &Arc<Self>,
        name: LockName,
        token: u64,
    ) -> Result<bool, Error> {
        let dir = self.dir(&name)?;
        let session = self.any_session().await?;
        let broken = async {
            self.ask(session.client.sync(&dir)).await?;
            let queue = self.queue(&session, &dir).await?;
            let contenders: Vec<_> = queue
                .iter()
                .map(|(child, ..)| Contender { mode: child.mode })
                .collect();
            let found = queue
                .iter()
                .position(|(_, stat, _)| stat.czxid.unsigned_abs() == token);
            // One that waits holds nothing.
            let Some(at) = found.filter(|at| decide(&contenders, *at) == Turn::Held) else {
                return Ok(false);
            };
            let path = format!("{dir}/{}", queue[at].0.name);
            match self.ask(session.client.delete(&path, None)).await {
                Ok(()) => Ok(true),
                Err(failed) if failed.is(&Said::NoNode) => Ok(false),
                Err(failed) => Err(failed),
            }
        };
        broken.await.map_err(|failed| self.explain(failed))
    }

    pub(super) async fn check(self: &Arc<Self>) -> Result<Vec<Finding>, Error> {
        let session = self.any_session().await?;
        let is_tls = self.settings.tls.is_some();
        let plain = |host| tls::plaintext(host, is_tls, "tls=on&ca=FILE");
        let mut findings: Vec<_> = self.settings.hosts.iter().filter_map(plain).collect();
        let mut add = |severity, text: String| findings.push(Finding::new(severity, text));
        for host in &self.settings.hosts {
            // A server that wants TLS hears nothing else.
            let word = match self.settings.tls {
                None => probe::word(host, "srvr", self.settings.timeout).await,
                Some(_) => None,
            };
            match word.as_deref() {
                Some(text) if text.contains("not currently serving") => add(
                    Severity::Warning,
                    format!(
                        "{host} has no majority of its ensemble and serves nobody; start the other servers"
                    ),
                ),
                Some(text) => {
                    let field = |name: &str| {
                        let line = text.lines().find_map(|line| line.strip_prefix(name));
                        let value = line.unwrap_or(": unknown").trim_start_matches(':').trim();
                        Escaped(value.split([',', '-']).next().unwrap_or(value)).to_string()
                    };
                    let (version, mode) = (field("Zookeeper version"), field("Mode"));
                    add(
                        Severity::Good,
                        format!("{host} runs ZooKeeper {version}, {mode}"),
                    );
                }
                None if self.settings.tls.is_none() => add(
                    Severity::Warning,
                    format!(
                        "{host} does not answer `srvr`: it is away, or 4lw.commands.whitelist forbids it"
                    ),
                ),
                None => {}
            }
        }
        if session.client.state() == SessionState::ConnectedReadOnly {
            add(
                Severity::Bad,
                "the server is cut off from the others and read-only: no lock can be taken".into(),
            );
        }
        match self.members(&session).await {
            Some(0 | 1) => add(
                Severity::Warning,
                "one server and no ensemble: when it is away nobody can take a lock; three survive the loss of one".into(),
            ),
            Some(2) => add(
                Severity::Warning,
                "two voting servers: when either is away nobody can take a lock; three survive the loss of one".into(),
            ),
            Some(members) => add(
                Severity::Good,
                format!("{members} voting servers; {} may be away", (members - 1) / 2),
            ),
            None => add(
                Severity::Warning,
                "how many servers vote cannot be read (/zookeeper/config)".into(),
            ),
        }
        let (asked, timeout) = (self.settings.ttl, session.timeout);
        if timeout < asked || timeout > asked * 2 {
            add(
                Severity::Warning,
                format!(
                    "for a ttl of {asked:?} the servers keep a silent session for {timeout:?} (minSessionTimeout, maxSessionTimeout); a dead holder's locks are free after that"
                ),
            );
        }
        if self.settings.acl == Access::Open {
            add(
                Severity::Warning,
                "whoever reaches the servers can delete our locks; write zookeeper://USER:PASSWORD@HOST for nodes of our own".into(),
            );
        }
        Ok(findings)
    }

    /// How many servers vote; 0: there is no ensemble. `None`: nobody says.
    pub(super) async fn members(&self, session: &Session) -> Option<usize> {
        match self.ask(session.client.get_config()).await {
            Ok((data, _)) => {
                let text = String::from_utf8_lossy(&data).into_owned();
                let servers = text.lines().filter(|line| line.starts_with("server."));
                Some(servers.filter(|line| !line.contains(":observer")).count())
            }
            Err(failed) if failed.is(&Said::NoNode) => Some(0),
            Err(_) => None,
        }
    }
}

fn stranger() -> Holder {
    let mut holder = Holder::default();
    holder.label = "another program".into();
    holder
}
