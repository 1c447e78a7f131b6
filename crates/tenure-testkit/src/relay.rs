//! Passes bytes between clients and a server, and cuts or holds them on command: for what a proxy cannot look
//! into, and where nothing has to be aimed at.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::proxy::RUNTIME;

/// Dropped, it cuts everybody.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    /// Grows with each call of `cut`.
    cuts: watch::Sender<u64>,
    held: watch::Sender<bool>,
}

impl Relay {
    /// In front of that port of this machine.
    pub fn start(target: u16) -> Self {
        let shared = Arc::new(Shared {
            target: Mutex::new(local(target)),
            cuts: watch::Sender::new(0),
            held: watch::Sender::new(false),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let theirs = shared.clone();
        let accepting = RUNTIME.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(theirs.clone(), client));
            }
        });
        Self {
            port,
            shared,
            accepting,
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// New connections go to that port of this machine; those that are there stay where they are.
    pub fn lead_to(&self, target: u16) {
        *self.shared.target.lock().unwrap() = local(target);
    }

    /// Cuts all connections. New ones are welcome.
    pub fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Nothing passes in either direction, or everything again.
    pub fn hold(&self, held: bool) {
        self.shared.held.send_replace(held);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    let target = *shared.target.lock().unwrap();
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let nodelay = client.set_nodelay(true).and(server.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = carry(&shared, from_client, to_server) => {}
        () = carry(&shared, from_server, to_client) => {}
        _ = cuts.changed() => {}
    }
}

async fn carry(shared: &Shared, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut held = shared.held.subscribe();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else {
            return;
        };
        let _ = held.wait_for(|held| !held).await;
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
