//! The parts of one client, and how a client connects.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::guarantees::Guarantees;
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;
use tenure_core::rt::{BackgroundTasks, Clock, Spawner};
use tenure_core::store::Losses;
use tenure_core::support::{self, HoldRegistry, Maintenance};
use tenure_core::time::Time;

use super::errors::ClientError;
use super::guarantees::{Configuration, guarantees};
use super::names;
use super::observers::Observers;
use super::requests::{self, Node};
use super::session::{Session, Sessions};
use super::settings::Settings;

/// Locks in ZooKeeper, and in other servers that speak its protocol.
pub struct Store {
    pub(super) settings: Arc<Settings>,
    pub(super) guarantees: Guarantees,
    pub(super) sessions: Arc<Sessions>,
    pub(super) holds: HoldRegistry<ContenderNode>,
    /// Ends leases that are not renewed.
    pub(super) maintenance: Arc<Maintenance>,
    /// Requests that no caller waits for: `close` ends them.
    pub(super) background: Arc<BackgroundTasks>,
    pub(super) losses: Losses,
    pub(super) observers: Observers,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
}

/// What is remembered of an acquisition, to renew its node and to delete it.
#[derive(Clone)]
pub(super) struct ContenderNode {
    pub(super) session: Arc<Session>,
    pub(super) dir: Arc<str>,
    /// The beginning of the node's name, which no other node has.
    pub(super) prefix: Arc<str>,
    /// `None`: the reply to the creation of the node has not come.
    pub(super) node: Option<Node>,
    pub(super) mode: Mode,
    /// When the lease ends; `None`: the node holds nothing. The session lasts longer than a lease that is not renewed.
    pub(super) until: Option<Time>,
    /// A release got no reply, so the node may be deleted already.
    pub(super) may_be_released: bool,
    /// The path of the node in the mutex of a semaphore, while that node may be there.
    pub(super) gate: Option<Arc<str>>,
}

impl ContenderNode {
    /// How many permits there are, for a node among the permits of a semaphore.
    pub(super) fn limit(&self) -> Option<NonZeroU32> {
        match (&self.gate, self.mode) {
            (Some(_), Mode::Permits { limit }) => Some(limit),
            _ => None,
        }
    }

    /// Session and path of the node, once its path is known.
    pub(super) fn node(self) -> Option<(Arc<Session>, Arc<str>)> {
        Some((self.session, self.node?.path))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Store").field(&self.settings.hosts).finish()
    }
}

impl Store {
    /// What [`connect`](Store::connect) refuses without a request.
    pub(crate) fn check_url(url: &str) -> Result<(), Error> {
        Settings::new(url).map(drop)
    }

    /// Connects to the store of a URL `zookeeper://HOST,HOST/PATH`.
    ///
    /// With `tls=on` this sets the provider of cryptography that rustls keeps for the whole process
    /// (`CryptoProvider::install_default`), unless the program has set one before: the client library takes no other.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: the servers are not there, refused the
    /// user, or cannot keep locks.
    pub async fn connect(url: &str) -> Result<Arc<Self>, Error> {
        Self::with(Settings::new(url)?).await
    }

    pub(super) async fn with(settings: Settings) -> Result<Arc<Self>, Error> {
        let settings = Arc::new(settings);
        let (spawner, clock) = (support::spawner()?, Clock::system());
        #[cfg(feature = "zookeeper-tls")]
        if settings.tls.is_some() {
            // The client library takes the provider of the process and no other (`ClientConfig::builder` in its
            // `tls/client.rs`). Without one it panics, if the program has more than one to choose from.
            crate::tls::set_process_provider_if_unset()?;
        }
        let sessions = Sessions::new(settings.clone(), clock.clone(), spawner.clone());
        let sessions = Arc::new(sessions);
        let session = sessions.any().await?;
        let voters = requests::count_voters(&session).await;
        if let Some(voters) = voters {
            sessions.set_voters(voters);
        }
        check_root(&session).await?;
        let configuration = Configuration {
            is_single: voters.is_some_and(|voters| voters < 2),
            dialect: settings.dialect,
        };
        Ok(Arc::new(Self {
            settings,
            guarantees: guarantees(configuration),
            sessions,
            holds: HoldRegistry::default(),
            maintenance: Arc::default(),
            background: Arc::default(),
            losses: Losses::default(),
            observers: Observers::default(),
            clock,
            spawner,
        }))
    }

    /// Runs `work` in the background until the client closes. Then the sessions end, and their nodes with them, and work
    /// that goes on would keep its session open.
    pub(super) fn spawn_until_closed(&self, work: impl Future<Output = ()> + Send + 'static) {
        let sessions = self.sessions.clone();
        self.background.spawn(&self.spawner, async move {
            tokio::select! {
                biased;
                () = sessions.closing.raised() => {}
                () = work => {}
            }
        });
    }

    /// The node under which the contenders for `name` are.
    pub(super) fn directory(&self, name: &LockName) -> Result<Arc<str>, Error> {
        let Settings { root, names, .. } = &*self.settings;
        names::directory(root, *names, name).map(Into::into)
    }
}

/// Makes sure that the node under which all locks lie exists and is ours to use.
async fn check_root(session: &Session) -> Result<(), Error> {
    let root = &session.settings().root;
    if root.is_empty() {
        return Ok(());
    }
    match requests::list_children(session, root).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => requests::create_directory(session, root).await,
        Err(err) if err.is(&ClientError::NoAuth) => Err(Error::new(
            ErrorKind::Denied,
            format!(
                "the node \"{}\" belongs to another user; is the user before `@` in the URL the one who made the node, and is the password right?",
                Escaped(root)
            ),
        )),
        Err(err) => Err(session.explain(err)),
    }
}
