//! A ZooKeeper server for each test, which the test inspects directly, and the drivers of foreign clients.

use std::time::Duration;

use tenure::Client;

use crate::support::{Driver, Server, WAIT_TIMEOUT, soon, until_async};
use tenure_testkit::zookeeper;

/// A server of its own for each test.
pub(crate) struct Zookeeper {
    server: zookeeper::Zookeeper,
    /// A session of the plain client library, without locks.
    session: zookeeper_client::Client,
}

impl Zookeeper {
    /// `None` where ZooKeeper is not installed.
    pub(crate) async fn start() -> Option<Self> {
        if zookeeper::skip_unless_installed() {
            return None;
        }
        let server = zookeeper::Zookeeper::start(&[]);
        let address = format!("127.0.0.1:{}", server.port());
        let connector = zookeeper_client::Client::connector().with_session_timeout(WAIT_TIMEOUT);
        let session = soon("a session", connector.connect(&address)).await;
        Some(Self {
            server,
            session: session.unwrap(),
        })
    }

    pub(crate) fn url(&self, options: &str) -> String {
        format!("zookeeper://127.0.0.1:{}/{options}", self.port())
    }

    pub(crate) async fn client(&self, options: &str) -> Client {
        tenure::connect(&self.url(options)).await.unwrap()
    }

    /// The names of the contenders' nodes, in the order of their numbers.
    pub(crate) async fn nodes(&self, name: &str) -> Vec<String> {
        let mut nodes = match self.session.list_children(&format!("/{name}")).await {
            Ok(nodes) => nodes,
            Err(zookeeper_client::Error::NoNode) => Vec::new(),
            Err(error) => panic!("{name}: {error}"),
        };
        nodes.sort_by(|one, other| number(one).cmp(number(other)));
        nodes
    }

    /// Waits until `count` clients hold the lock or wait for it.
    pub(crate) async fn until_queued(&self, name: &str, count: usize) {
        let what = format!("{count} in the queue for {name}");
        until_async(&what, async || self.nodes(name).await.len() == count).await;
    }

    /// Waits until a client watches a node of that name.
    pub(crate) async fn until_watched(&self, name: &str) {
        let is_watched = async || self.server.word("wchp").contains(&format!("/{name}/"));
        until_async(&format!("a watch for {name}"), is_watched).await;
    }

    /// The value of a node.
    pub(crate) async fn data(&self, path: &str) -> String {
        let (data, _) = self.session.get_data(path).await.unwrap();
        String::from_utf8(data).unwrap()
    }

    /// Creates a node without a number. The numbers of a directory count such nodes too.
    pub(crate) async fn put_plain_node(&self, path: &str) {
        let mode = zookeeper_client::CreateMode::Persistent;
        let options = mode.with_acls(zookeeper_client::Acls::anyone_all());
        self.session.create(path, b"", &options).await.unwrap();
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

/// A session timeout that does not end on a busy machine.
pub(crate) const SESSION: Duration = Duration::from_secs(10);
/// A session timeout that a test can wait for.
pub(crate) const SHORT_SESSION: Duration = Duration::from_secs(2);

/// Starts the driver of that language with one of its clients, whose session has that timeout.
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
