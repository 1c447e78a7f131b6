//! A PostgreSQL server.

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

/// Whether there is no server here; then it has said so.
pub fn skip_unless_installed() -> bool {
    if programs().is_some() {
        return false;
    }
    skip::print_missing("postgres");
    true
}

/// Where Debian has them, the newest first; they are not on the path.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut versions: Vec<_> = versions
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    versions.retain(|bin| bin.join("initdb").is_file());
    versions.sort();
    versions.pop()
}

/// The server refuses to run as root.
fn as_somebody() -> Vec<String> {
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

fn give_away(path: &Path) {
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
        // A file: what root has as its standard input may not be opened by the one it becomes.
        let password = directory.path().join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        give_away(directory.path());
        let mut command = as_somebody();
        command.push(programs().unwrap().join("initdb").display().to_string());
        command.extend(
            [
                "-U",
                "postgres",
                // Thousands of logins with SCRAM would be most of what the tests compute; servers with TLS ask for it.
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
        give_away(&password);
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

    /// It offers TLS under that certificate, on its one port.
    pub fn start_tls(certificates: &Certificates, name: &str) -> Self {
        // The server wants the key to be its own, and reads it while it starts.
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
        give_away(own.path());
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        Self::start(&settings)
    }

    /// `before`: what stands before the program, to set its environment.
    pub fn start_with(before: &[String], settings: &[&str]) -> Self {
        let (dir, port) = (new_directory("postgres"), Port::reserve());
        super::process::copy(&template().path().join("data"), &dir);
        give_away(&dir);
        let mut command = before.to_vec();
        command.extend(as_somebody());
        command.push(programs().unwrap().join("postgres").display().to_string());
        command.extend(["-D".into(), dir.join("data").display().to_string()]);
        let own = [
            format!("port={}", port.number()),
            "listen_addresses=127.0.0.1".into(),
            format!("unix_socket_directories={}", dir.display()),
            "max_connections=200".into(),
            // Else a server that is killed leaves it in /dev/shm for ever.
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

    /// Starts it (again) and waits until it answers.
    pub fn launch(&self) {
        let mut place = self.process.lock().unwrap();
        until("PostgreSQL answers", || {
            // The children of one that was killed may still be on their way out; then the new one ends at once.
            if place.as_ref().is_none_or(Process::has_ended) {
                if let Some(ended) = place.take() {
                    ended.kill();
                }
                *place = Some(Process::start(&self.dir, &self.command));
            }
            self.admin.try_rows("SELECT 1").is_ok()
        });
    }

    /// SIGKILL of all its processes at one instant, as when its machine, its container or its kernel ends. Of the
    /// first one alone the others would notice one by one, and one that is late could pass on what another had held.
    pub fn kill(&self) {
        self.stop();
        self.signal(Signal::KILL);
        self.process.lock().unwrap().take().unwrap().kill();
        self.admin.disconnect();
    }

    /// SIGSTOP of all its processes.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        let stands_still =
            |pid| super::process::state(pid).is_none_or(|state| matches!(state, 'T' | 'Z'));
        until("the server stands still", || {
            // Those that were just being started as well.
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
            // It may have ended meanwhile.
            let _ = kill_process(pid.unwrap(), signal);
        }
    }

    /// The first one, which starts all others, and these.
    fn processes(&self) -> Vec<u32> {
        let first = self.process();
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children"));
        let children = children.unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        std::iter::once(first).chain(children).collect()
    }

    /// The number of that process.
    pub fn process(&self) -> u32 {
        self.process.lock().unwrap().as_ref().unwrap().pid()
    }

    /// A superuser, in the database `postgres`.
    pub fn admin(&self) -> &SqlClient {
        &self.admin
    }

    /// A superuser in [`DATABASE`].
    pub fn database_admin(&self) -> SqlClient {
        self.database_client_as("postgres")
    }

    /// Whoever logs in with [`PASSWORD`].
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

    /// The same by way of another port.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/{DATABASE}")
    }

    /// Starts it again as a standby of a primary that is not there: it answers, and writes nothing.
    pub fn become_standby(&self) {
        // What is in the log has to be whole, or it waits for the rest of it.
        self.admin.rows("CHECKPOINT");
        self.kill();
        let signal = self.dir.join("data/standby.signal");
        std::fs::write(&signal, "").unwrap();
        give_away(&signal);
        self.launch();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}
