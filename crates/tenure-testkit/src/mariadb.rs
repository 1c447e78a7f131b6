//! MariaDB.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use super::process::{Directory, Port, Process, new_directory, new_directory_on_disk};
use super::redis::Certificates;
use super::skip;
use super::sql_client::SqlClient;
use super::wait::until;

pub use super::login::{PASSWORD, USER};

pub const DATABASE: &str = "locks";

/// Returns `true`, which ends the test, where the server is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    skip::skip_unless(Path::new(PROGRAM).is_file(), "mariadbd")
}

const PROGRAM: &str = "/usr/sbin/mariadbd";

/// One server process, which can be killed and started again on its port and directory.
pub struct MariaDb {
    port: Port,
    dir: PathBuf,
    command: Vec<String>,
    process: Mutex<Option<Process>>,
    admin: SqlClient,
}

/// A data directory as the installation makes it, which takes longer than starting a server.
fn template() -> &'static Directory {
    static TEMPLATE: OnceLock<Directory> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let directory = Directory::new("mariadb-template");
        let mut install = Command::new("mariadb-install-db");
        install.arg("--no-defaults");
        if super::process::is_root() {
            install.arg("--user=root");
        }
        install
            .arg(format!(
                "--datadir={}",
                directory.path().join("data").display()
            ))
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            // A server that starts deletes the temporary tables of other servers in /tmp.
            .arg(format!("--tmpdir={}", directory.path().display()))
            // The log is copied for every server; its default size is 96 MB.
            .arg("--innodb-log-file-size=4M")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        assert!(install.status().unwrap().success(), "mariadb-install-db");
        directory
    })
}

impl MariaDb {
    /// A server with [`USER`] and [`DATABASE`], and these options added.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with(&[], options)
    }

    /// A server that offers TLS with that certificate, on its one port.
    pub fn start_tls(certificates: &Certificates, name: &str) -> Self {
        let file = |name: &str| certificates.file(name).display().to_string();
        Self::start(&[
            &format!("--ssl-cert={}", file(&format!("{name}.crt"))),
            &format!("--ssl-key={}", file(&format!("{name}.key"))),
            &format!("--ssl-ca={}", file("ca.crt")),
        ])
    }

    /// `before`: words before the program, which set its environment.
    pub fn start_with(before: &[String], options: &[&str]) -> Self {
        Self::start_in(new_directory("mariadb"), before, options)
    }

    /// A server with its files on a disk. In shared memory the server maps its log, of which a kill loses nothing.
    pub fn start_on_disk(before: &[String], options: &[&str]) -> Self {
        Self::start_in(new_directory_on_disk("mariadb"), before, options)
    }

    fn start_in(dir: PathBuf, before: &[String], options: &[&str]) -> Self {
        let port = Port::reserve();
        super::process::copy(&template().path().join("data"), &dir);
        let mut command = before.to_vec();
        command.extend([PROGRAM.into(), "--no-defaults".into()]);
        if super::process::is_root() {
            command.push("--user=root".into());
        }
        for (option, value) in [
            ("datadir", dir.join("data").display().to_string()),
            ("socket", dir.join("socket").display().to_string()),
            ("pid-file", dir.join("pid").display().to_string()),
            ("port", port.number().to_string()),
            ("bind-address", "127.0.0.1".into()),
            ("skip-name-resolve", "ON".into()),
            ("innodb-flush-log-at-trx-commit", "1".into()),
            ("innodb-buffer-pool-size", "32M".into()),
            ("innodb-log-file-size", "4M".into()),
            ("performance-schema", "OFF".into()),
            ("max-connections", "1000".into()),
            // A server that starts deletes the temporary tables of other servers in /tmp.
            ("tmpdir", dir.display().to_string()),
        ] {
            command.push(format!("--{option}={value}"));
        }
        command.extend(options.iter().map(|option| (*option).to_owned()));
        let options = MySqlConnectOptions::new()
            .host("127.0.0.1")
            .port(port.number())
            .username("root")
            .ssl_mode(MySqlSslMode::Disabled);
        let server = Self {
            port,
            dir,
            command,
            process: Mutex::new(None),
            admin: SqlClient::mysql(options),
        };
        server.launch();
        server.admin.rows(&format!(
            "CREATE DATABASE {DATABASE};
             CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
             GRANT ALL ON {DATABASE}.* TO '{USER}'@'%'"
        ));
        server
    }

    /// Starts the server (again) and waits until it answers.
    pub fn launch(&self) {
        let process = Process::start(&self.dir, &self.command);
        let mut place = self.process.lock().unwrap();
        *place = Some(process);
        until("mariadbd answers", || {
            let ended = place.as_ref().is_none_or(Process::has_ended);
            assert!(!ended, "mariadbd ended; see {}/log", self.dir.display());
            self.admin.try_rows("SELECT 1").is_ok() && self.greets()
        });
    }

    /// Whether the server greets clients that connect over the network.
    fn greets(&self) -> bool {
        use std::io::Read as _;
        let stream = std::net::TcpStream::connect(("127.0.0.1", self.port.number()));
        stream.is_ok_and(|mut stream| stream.read(&mut [0]).is_ok_and(|count| count == 1))
    }

    /// SIGKILL. Returns in the next second: the library tells runs of a server apart by the second of their start, and
    /// each run counts its connections from the beginning.
    pub fn kill(&self) {
        self.process.lock().unwrap().take().unwrap().kill();
        let second = || {
            let now = std::time::SystemTime::now();
            now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
        };
        let killed = second();
        until("the next second", || second() > killed);
    }

    /// The directory with its data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// SIGSTOP.
    pub fn stop(&self) {
        self.process.lock().unwrap().as_ref().unwrap().stop();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.process.lock().unwrap().as_ref().unwrap().resume();
    }

    /// A client of that user, who logs in with [`PASSWORD`].
    pub fn client_as(&self, user: &str) -> SqlClient {
        let options = MySqlConnectOptions::new()
            .host("127.0.0.1")
            .port(self.port.number())
            .username(user)
            .password(PASSWORD)
            .ssl_mode(MySqlSslMode::Disabled);
        SqlClient::mysql(options)
    }

    /// A client of the superuser.
    pub fn admin(&self) -> &SqlClient {
        &self.admin
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `mysql://..`, without options.
    pub fn url(&self) -> String {
        self.url_at(self.port.number())
    }

    /// The URL with another port, for example of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("mysql://{USER}:{PASSWORD}@127.0.0.1:{port}/{DATABASE}")
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}
