//! PgBouncer between us and the server.

use std::process::Command;

use tenure::ErrorKind;

use crate::servers::postgres::{self, PASSWORD, USER};
use crate::servers::process::{Directory, Port, Process, is_root};
use crate::support::{
    Database, OPTIONS, POSTGRES, assert_says, connect, name, soon, take, until, wait_as,
};

struct Pooler {
    port: Port,
    _process: Process,
    _directory: Directory,
}

impl Pooler {
    /// In front of the shared server.
    fn start(mode: &str) -> Self {
        let (directory, port) = (Directory::new("pgbouncer"), Port::reserve());
        let users = directory.path().join("users");
        std::fs::write(&users, format!("\"{USER}\" \"{PASSWORD}\"\n")).unwrap();
        let settings = directory.path().join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = plain\nauth_file = {}\npool_mode = {mode}\ndefault_pool_size = 20\n",
            POSTGRES.port(),
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
        crate::servers::until("PgBouncer listens", || {
            assert!(!process.has_ended(), "pgbouncer ended");
            std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        Self {
            port,
            _process: process,
            _directory: directory,
        }
    }

    fn url(&self) -> String {
        format!("{}?{OPTIONS}", POSTGRES.url_at(self.port.number()))
    }
}

fn is_missing() -> bool {
    postgres::is_missing() || crate::servers::is_missing(&["pgbouncer"])
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_share_sessions_are_refused() {
    if is_missing() {
        return;
    }
    for mode in ["transaction", "statement"] {
        let pooler = Pooler::start(mode);
        let outcome = soon(tenure::connect(&pooler.url())).await;
        assert_says(
            outcome,
            ErrorKind::Unsupported,
            &["shares its sessions out", "session mode", "mode=table"],
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_our_own_are_as_good_as_the_server_itself() {
    if is_missing() {
        return;
    }
    let pooler = Pooler::start("session");
    let (client, direct) = (
        connect(&pooler.url()).await,
        connect(&Database::url(&*POSTGRES)).await,
    );
    let name = name("pooled");
    let guard = take(&client, &name).await;
    let waiting = wait_as(&*POSTGRES, &direct, &name, 1).await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    let waiting = wait_as(&*POSTGRES, &client, &name, 1).await;
    soon(next.release()).await.unwrap();
    let last = soon(waiting).await.unwrap().unwrap();
    drop(last);
    until("nothing is left", || POSTGRES.holders(&name).is_empty()).await;
    client.close().await;
}
