//! PostgreSQL.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::process::{Directory, Port, Process, is_root, new_directory};
use super::redis::Certificates;
use super::skip;
use super::sql_client::SqlClient;
use super::wait::until;

pub use super::login::{PASSWORD, USER};

pub const DATABASE: &str = "locks";

/// Returns `true`, which ends the test, where the server is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    skip::skip_unless(programs().is_some(), "postgres")
}

/// The folder of the newest version, as Debian installs it; the programs are not on the path.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut versions: Vec<_> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    versions.retain(|bin| bin.join("initdb").is_file());
    versions.sort();
    versions.pop()
}

/// The words before a command that run it as a user: the server refuses to run as root.
fn as_server_user() -> Vec<String> {
    if !is_root() {
        return Vec::new();
    }
    [
        "setpriv",
        "--reuid=postgres",
        "--regid=postgres",
        "--init-groups",
    ]
    .map(Into::into)
    .to_vec()
}

fn run(command: &[String]) {
    let status = Command::new(&command[0])
        .args(&command[1..])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(status.unwrap().success(), "{command:?}");
}

fn give_to_server_user(path: &Path) {
    if is_root() {
        run(&[
            "chown".into(),
            "-R".into(),
            "postgres:postgres".into(),
            path.display().to_string(),
        ]);
    }
}

/// A data directory as `initdb` makes it, which takes longer than starting a server.
fn template() -> &'static Directory {
    static TEMPLATE: OnceLock<Directory> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let directory = Directory::new("postgres-template");
        // The password is in a file: the new user may not open the standard input of root.
        let password = directory.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        give_to_server_user(directory.path());
        let mut command = as_server_user();
        command.push(programs().unwrap().join("initdb").display().to_string());
        command.extend(
            [
                "-U",
                "postgres",
                // Thousands of logins with SCRAM would cost most of the time of the tests. Servers with TLS use SCRAM.
                "-A",
                "md5",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
            ]
            .map(Into::into),
        );
        let password = directory.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        give_to_server_user(&password);
        command.extend([
            format!("--pwfile={}", password.display()),
            "-D".into(),
            directory.path().join("data").display().to_string(),
        ]);
        run(&command);
        directory
    })
}

/// One server, which can be killed and started again on its port and directory.
pub struct Postgres {
    port: Port,
    dir: PathBuf,
    command: Vec<String>,
    process: Mutex<Option<Process>>,
    admin: SqlClient,
}

impl Postgres {
    /// A server with [`USER`] and [`DATABASE`], and these settings (`name=value`) added.
    pub fn start(settings: &[&str]) -> Self {
        Self::start_with(&[], settings)
    }

    /// A server that offers TLS with that certificate, on its one port.
    pub fn start_tls(certificates: &Certificates, name: &str) -> Self {
        // The server must own the key, and reads it when it starts.
        let own = Directory::new("postgres-certificate");
        let mut settings = vec![
            "ssl=on".to_owned(),
            "password_encryption=scram-sha-256".to_owned(),
        ];
        for (setting, end) in [("ssl_cert_file", "crt"), ("ssl_key_file", "key")] {
            let file = own.path().join(end);
            std::fs::copy(certificates.file(&format!("{name}.{end}")), &file).unwrap();
            settings.push(format!("{setting}={}", file.display()));
        }
        give_to_server_user(own.path());
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        Self::start(&settings)
    }

    /// `before`: words before the program, which set its environment.
    pub fn start_with(before: &[String], settings: &[&str]) -> Self {
        let (dir, port) = (new_directory("postgres"), Port::reserve());
        super::process::copy(&template().path().join("data"), &dir);
        give_to_server_user(&dir);
        let mut command = before.to_vec();
        command.extend(as_server_user());
        command.push(programs().unwrap().join("postgres").display().to_string());
        command.extend(["-D".into(), dir.join("data").display().to_string()]);
        let own = [
            format!("port={}", port.number()),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", dir.display()),
            "max_connections=200".into(),
            // With the default a killed server leaves its memory in /dev/shm for ever.
            "dynamic_shared_memory_type=mmap".into(),
        ];
        let settings = own
            .into_iter()
            .chain(settings.iter().map(|it| (*it).to_owned()));
        for setting in settings {
            command.extend(["-c".into(), setting]);
        }
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(port.number())
            .username("postgres")
            .password(PASSWORD)
            .database("postgres")
            .ssl_mode(PgSslMode::Disable);
        let server = Self {
            port,
            dir,
            command,
            process: Mutex::new(None),
            admin: SqlClient::postgres(options),
        };
        server.launch();
        server
            .admin
            .rows(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
        server
            .admin
            .rows(&format!("CREATE DATABASE {DATABASE} OWNER {USER}"));
        server
    }

    /// Starts the server (again) and waits until it answers.
    pub fn launch(&self) {
        let mut place = self.process.lock().unwrap();
        until("PostgreSQL answers", || {
            // While children of a killed server still run, a new server ends at once.
            if place.as_ref().is_none_or(Process::has_ended) {
                if let Some(ended) = place.take() {
                    ended.kill();
                }
                *place = Some(Process::start(&self.dir, &self.command));
            }
            self.admin.try_rows("SELECT 1").is_ok()
        });
    }

    /// SIGKILL of all processes at one instant, as when the machine, the container or the kernel ends. If only the
    /// first process were killed, the others would notice that one by one, and a late process could still grant a lock
    /// that another process has just freed.
    pub fn kill(&self) {
        self.stop();
        self.signal(Signal::KILL);
        self.process.lock().unwrap().take().unwrap().kill();
        self.admin.disconnect();
    }

    /// SIGSTOP of all processes.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stands_still =
            |pid| super::process::state(pid).is_none_or(|state| matches!(state, 'T' | 'Z'));
        until("the server stands still", || {
            // Processes that were just being started are stopped, too.
            self.signal(Signal::STOP);
            self.processes().into_iter().all(stands_still)
        });
    }

    /// The directory with its data.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        for pid in self.processes() {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            // The process may have ended meanwhile.
            let _ = kill_process(pid.unwrap(), signal);
        }
    }

    /// The pids of the first process and of its children, which are all others.
    fn processes(&self) -> Vec<u32> {
        let first = self.process();
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let children = children.unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        std::iter::once(first).chain(children).collect()
    }

    /// The pid of the first process.
    pub fn process(&self) -> u32 {
        self.process.lock().unwrap().as_ref().unwrap().pid()
    }

    /// A client of the superuser, in the database `postgres`.
    pub fn admin(&self) -> &SqlClient {
        &self.admin
    }

    /// A client of the superuser, in [`DATABASE`].
    pub fn database_admin(&self) -> SqlClient {
        self.database_client_as("postgres")
    }

    /// A client of that role in [`DATABASE`], which logs in with [`PASSWORD`].
    pub fn database_client_as(&self, role: &str) -> SqlClient {
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port.number())
            .username(role)
            .password(PASSWORD)
            .database(DATABASE)
            .ssl_mode(PgSslMode::Disable);
        SqlClient::postgres(options)
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// `postgres://..`, without options.
    pub fn url(&self) -> String {
        self.url_at(self.port.number())
    }

    /// The URL with another port, for example of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{DATABASE}")
    }

    /// Restarts the server as a standby without a primary: it answers, and refuses writes.
    pub fn become_standby(&self) {
        // A standby with an incomplete log waits for the rest of it.
        self.admin.rows("CHECKPOINT");
        self.kill();
        let signal = self.dir.join("data/standby.signal");
        std::fs::write(&signal, "").unwrap();
        give_to_server_user(&signal);
        self.launch();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}
