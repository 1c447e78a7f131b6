//! PgBouncer in front of a PostgreSQL server.

use std::process::Command;

use super::postgres::{self, PASSWORD, Postgres, USER};
use super::process::{Directory, Port, Process, is_root};
use super::skip;
use super::wait::until;

/// Returns `true`, which ends the test, where PgBouncer or PostgreSQL is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    postgres::skip_unless_installed() || skip::skip_unless_installed(&["pgbouncer"])
}

/// A running PgBouncer. Dropping it ends the process.
pub struct Pooler {
    port: Port,
    _process: Process,
    _directory: Directory,
}

impl Pooler {
    /// `mode`: its `pool_mode`. `sessions`: its `default_pool_size`.
    pub fn start(server: &Postgres, mode: &str, sessions: u32) -> Self {
        let (directory, port) = (Directory::new("pgbouncer"), Port::reserve());
        let users = directory.path().join("users");
        std::fs::write(&users, format!("\"{USER}\" \"{PASSWORD}\"\n")).unwrap();
        let settings = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = plain\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = {sessions}\n",
            server.port(),
            port.number(),
            users.display()
        );
        std::fs::write(&settings, text).unwrap();
        let mut command = Vec::new();
        if is_root() {
            let given = Command::new("chown")
                .args(["-R", "postgres"])
                .arg(directory.path())
                .status();
            assert!(given.unwrap().success());
            command.extend(
                [
                    "setpriv",
                    "--reuid=postgres",
                    "--regid=postgres",
                    "--init-groups",
                ]
                .map(String::from),
            );
        }
        command.extend(["pgbouncer".to_owned(), settings.display().to_string()]);
        let process = Process::start(directory.path(), &command);
        until("PgBouncer listens", || {
            assert!(!process.has_ended(), "pgbouncer ended");
            std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        Self {
            port,
            _process: process,
            _directory: directory,
        }
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }
}
