//! One server of any kind: what a test can do to it, and what its operator sees of clients.

use crate::etcd::Etcd;
use crate::mariadb::MariaDb;
use crate::postgres::Postgres;
use crate::proxy::Proxy;
use crate::redis::Redis;
use crate::sql_client::SqlClient;
use crate::sqlite::DatabaseFile;
use crate::wait::until;
use crate::zookeeper::{self, Zookeeper};

/// A server under faults. Its [`proxy`](Server::proxy) stalls or cuts the connections of single clients, and loses single
/// requests.
pub trait Server: Send + Sync + 'static {
    fn port(&self) -> u16;

    /// The URL without options by way of that port, for example that of a proxy.
    fn url_at(&self, port: u16) -> String;

    /// A proxy in front that knows the requests.
    fn proxy(&self) -> Proxy;

    /// SIGSTOP.
    fn stop(&self) {}

    /// SIGCONT.
    fn resume(&self) {}

    /// SIGKILL.
    fn kill(&self) {}

    /// Starts the server after [`kill`](Server::kill); returns when it serves clients.
    fn start(&self) {}

    fn restart(&self) {
        self.kill();
        self.start();
    }

    /// The connections, sessions or leases that clients have, each by its number.
    fn clients(&self) -> Vec<String>;

    /// How many subscriptions or watches clients have.
    fn subscriptions(&self) -> usize {
        0
    }
}

/// Methods that the server has itself by that name.
macro_rules! own {
    ($($act:ident)*) => { $(
        fn $act(&self) {
            Self::$act(self);
        }
    )* };
}

/// The connections of the user of the tests, by a statement that lists those of a user.
fn of_user(admin: &SqlClient, statement: &str) -> Vec<String> {
    let rows = admin.rows(&format!("{statement}='{}'", crate::USER));
    rows.into_iter().flatten().flatten().collect()
}

/// The words of these lines that begin with `start`.
fn words(lines: &str, start: &str) -> Vec<String> {
    let words = lines.split([' ', ',', '(', ')', '\n']);
    let found = words.filter(|word| word.starts_with(start));
    found.map(ToOwned::to_owned).collect()
}

impl Server for Redis {
    fn port(&self) -> u16 {
        self.port()
    }

    fn url_at(&self, port: u16) -> String {
        self.url_by(port)
    }

    fn proxy(&self) -> Proxy {
        Proxy::redis(self.port())
    }

    own!(stop resume kill);

    fn start(&self) {
        self.launch();
        until("the server has loaded its data", || {
            self.info_is("persistence", "loading", "0")
        });
    }

    fn clients(&self) -> Vec<String> {
        let mut connection = self.connection();
        let own = connection.ask(&["CLIENT", "ID"]).unwrap().int();
        let all = connection.ask(&["CLIENT", "LIST"]).unwrap().text();
        let mut clients = words(&all, "id=");
        clients.retain(|it| *it != format!("id={own}"));
        clients
    }

    fn subscriptions(&self) -> usize {
        self.ask(&["PUBSUB", "CHANNELS", "*"]).items().len()
    }
}

/// A cluster of one member.
impl Server for Etcd {
    fn port(&self) -> u16 {
        self.members[0].port()
    }

    fn url_at(&self, port: u16) -> String {
        self.url_by(&[format!("127.0.0.1:{port}")])
    }

    fn proxy(&self) -> Proxy {
        Proxy::etcd(self.members[0].port())
    }

    fn stop(&self) {
        self.members[0].stop();
    }

    fn resume(&self) {
        self.members[0].resume();
        self.until_ready();
    }

    fn kill(&self) {
        self.members[0].kill();
    }

    fn start(&self) {
        self.members[0].start();
        self.until_ready();
    }

    fn clients(&self) -> Vec<String> {
        self.leases().iter().map(ToString::to_string).collect()
    }

    fn subscriptions(&self) -> usize {
        usize::try_from(self.watches()).unwrap()
    }
}

impl Server for Zookeeper {
    fn port(&self) -> u16 {
        self.port()
    }

    fn url_at(&self, port: u16) -> String {
        let (user, password) = (zookeeper::USER, zookeeper::PASSWORD);
        format!("zookeeper://{user}:{password}@127.0.0.1:{port}")
    }

    fn proxy(&self) -> Proxy {
        Proxy::zookeeper(self.port())
    }

    own!(stop kill);

    fn resume(&self) {
        self.resume();
        self.until_serving();
    }

    fn start(&self) {
        self.begin();
        self.until_serving();
    }

    /// The connection of the request itself has no session.
    fn clients(&self) -> Vec<String> {
        words(&self.word("cons"), "sid=")
    }

    fn subscriptions(&self) -> usize {
        let paths = self.word("wchp");
        paths.lines().filter(|line| line.starts_with('/')).count()
    }
}

impl Server for MariaDb {
    fn port(&self) -> u16 {
        self.port()
    }

    fn url_at(&self, port: u16) -> String {
        self.url_at(port)
    }

    fn proxy(&self) -> Proxy {
        Proxy::mysql(self.port())
    }

    own!(stop resume kill);

    fn start(&self) {
        self.launch();
    }

    fn clients(&self) -> Vec<String> {
        let list = "SELECT id FROM information_schema.processlist WHERE user";
        of_user(self.admin(), list)
    }
}

impl Server for Postgres {
    fn port(&self) -> u16 {
        self.port()
    }

    fn url_at(&self, port: u16) -> String {
        self.url_at(port)
    }

    fn proxy(&self) -> Proxy {
        Proxy::postgres(self.port())
    }

    own!(stop resume kill);

    fn start(&self) {
        self.launch();
    }

    fn clients(&self) -> Vec<String> {
        of_user(
            self.admin(),
            "SELECT pid FROM pg_stat_activity WHERE usename",
        )
    }
}

/// A file without a server: nothing stands in front of it, and nothing can be stopped.
impl Server for DatabaseFile {
    fn port(&self) -> u16 {
        0
    }

    fn url_at(&self, _: u16) -> String {
        self.url()
    }

    fn proxy(&self) -> Proxy {
        panic!("nothing stands in front of a file");
    }

    fn clients(&self) -> Vec<String> {
        Vec::new()
    }
}
