//! A proxy that delays all messages to and from the server.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::scenarios::Failure;

/// Prints its port, then forwards all bytes `milliseconds` later, until the process is killed.
pub(crate) async fn serve(to: u16, milliseconds: u64) -> Result<String, Failure> {
    let delay = Duration::from_millis(milliseconds);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?.port());
    loop {
        let (client, _) = listener.accept().await?;
        let server = TcpStream::connect(("127.0.0.1", to)).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (client_read, client_write) = client.into_split();
        let (server_read, server_write) = server.into_split();
        tokio::spawn(pass(client_read, server_write, delay));
        tokio::spawn(pass(server_read, client_write, delay));
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut buffer = vec![0; 65536];
        while let Ok(length) = from.read(&mut buffer).await {
            let due = Instant::now() + delay;
            if length == 0 || sender.send((due, buffer[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    while let Some((due, bytes)) = receiver.recv().await {
        tokio::time::sleep_until(due).await;
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
