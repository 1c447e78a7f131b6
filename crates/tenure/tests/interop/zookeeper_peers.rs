//! A ZooKeeper of its own for each test, a look at its nodes past all locks, and foreign drivers.

use std::time::Duration;

use tenure::Client;

use crate::support::{Driver, PATIENCE, Server, soon, until_told};
use tenure_testkit::zookeeper;

/// A server of its own for each test.
pub(crate) struct Zookeeper {
    server: zookeeper::Zookeeper,
    /// The plain client library, which knows nothing of locks here.
    look: zookeeper_client::Client,
}

impl Zookeeper {
    /// `None` where it is not installed.
    pub(crate) async fn start() -> Option<Self> {
        if zookeeper::skip_unless_installed() {
            return None;
        }
        let server = zookeeper::Zookeeper::start(&[]);
        let address = format!("127.0.0.1:{}", server.port());
        let connector = zookeeper_client::Client::connector().with_session_timeout(PATIENCE);
        let look = soon("a session", connector.connect(&address)).await;
        Some(Self {
            server,
            look: look.unwrap(),
        })
    }

    pub(crate) fn url(&self, options: &str) -> String {
        format!("zookeeper://127.0.0.1:{}/{options}", self.port())
    }

    pub(crate) async fn client(&self, options: &str) -> Client {
        tenure::connect(&self.url(options)).await.unwrap()
    }

    /// The names of the nodes of whoever wants the lock, in the order of their numbers.
    pub(crate) async fn nodes(&self, name: &str) -> Vec<String> {
        let mut nodes = match self.look.list_children(&format!("/{name}")).await {
            Ok(nodes) => nodes,
            Err(zookeeper_client::Error::NoNode) => Vec::new(),
            Err(error) => panic!("{name}: {error}"),
        };
        nodes.sort_by(|one, other| number(one).cmp(number(other)));
        nodes
    }

    /// Waits until so many want the lock.
    pub(crate) async fn until_queued(&self, name: &str, count: usize) {
        let what = format!("{count} in the queue for {name}");
        until_told(&what, async || self.nodes(name).await.len() == count).await;
    }

    /// Waits until somebody watches a node of that name.
    pub(crate) async fn until_watched(&self, name: &str) {
        let is_watched = async || self.server.word("wchp").contains(&format!("/{name}/"));
        until_told(&format!("a watch for {name}"), is_watched).await;
    }

    /// The value of a node.
    pub(crate) async fn data(&self, path: &str) -> String {
        let (data, _) = self.look.get_data(path).await.unwrap();
        String::from_utf8(data).unwrap()
    }

    /// What the server creates next in that directory gets this number; other nodes of it do not count.
    pub(crate) async fn put_plain_node(&self, path: &str) {
        let mode = zookeeper_client::CreateMode::Persistent;
        let options = mode.with_acls(zookeeper_client::Acls::anyone_all());
        self.look.create(path, b"", &options).await.unwrap();
    }
}

impl Server for Zookeeper {
    fn port(&self) -> u16 {
        self.server.port()
    }
}

/// The ten digits at the end.
pub(crate) fn number(node: &str) -> &str {
    node.get(node.len().saturating_sub(10)..).unwrap()
}

/// Long enough not to end because a busy machine had no time for it.
pub(crate) const SESSION: Duration = Duration::from_secs(10);
/// Short enough to be waited for.
pub(crate) const SHORT_SESSION: Duration = Duration::from_secs(2);

/// A driver of that language with one of its clients, whose session runs out after so long.
pub(crate) async fn start(
    server: &Zookeeper,
    (language, client): (&str, &str),
    session: Duration,
) -> Option<Driver> {
    let session = session.as_millis().to_string();
    let options = match client {
        "" => vec![session.as_str()],
        client => vec![client, &session],
    };
    Driver::start_with(language, server, &options).await
}
