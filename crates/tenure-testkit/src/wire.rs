//! Stands between clients and a database and makes trouble at a word: the request that contains it, `COMMIT` for
//! example, in any protocol that sends statements as text.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::proxy::{Fault, Proxy, Shared, lock};

/// In front of that port of this machine. Plans name a word; only faults that cut, and `NoReply`, happen here.
pub fn start(target: u16) -> Proxy {
    Proxy::start_with(target, serve)
}

async fn serve(shared: Arc<Shared>, client: TcpStream) {
    let mut cuts = shared.cuts.subscribe();
    let Ok(server) = TcpStream::connect(shared.target).await else {
        return;
    };
    let nodelay = client.set_nodelay(true).and(server.set_nodelay(true));
    if nodelay.is_err() {
        return;
    }
    tokio::select! {
        () = carry(&shared, client, server) => {}
        _ = cuts.changed() => {}
    }
}

/// Ends when one side has hung up, or the link is to be cut.
async fn carry(shared: &Shared, client: TcpStream, server: TcpStream) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let (mut up, mut down) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        tokio::select! {
            count = from_client.read(&mut up) => {
                let Ok(count @ 1..) = count else { return };
                let bytes = &up[..count];
                let plan = {
                    let mut plans = lock(&shared.plans);
                    let at = plans.iter().position(|plan| {
                        bytes.windows(plan.step.len()).any(|word| word == plan.step.as_bytes())
                    });
                    at.and_then(|at| plans.remove(at))
                };
                if plan.as_ref().is_some_and(|plan| plan.fault == Fault::CutBefore) {
                    return;
                }
                let mut resumed = shared.resumed.subscribe();
                resumed.mark_unchanged();
                if to_server.write_all(bytes).await.is_err() {
                    return;
                }
                match plan.as_ref().map(|plan| &plan.fault) {
                    None => {}
                    Some(Fault::CutAfter) => {
                        let _ = from_server.read(&mut down).await;
                        return;
                    }
                    Some(Fault::NoReply) => {
                        let Ok(count @ 1..) = from_server.read(&mut down).await else { return };
                        drop(plan);
                        let _ = resumed.changed().await;
                        if to_client.write_all(&down[..count]).await.is_err() {
                            return;
                        }
                    }
                    Some(other) => panic!("{other:?} cannot happen here"),
                }
            }
            count = from_server.read(&mut down) => {
                let Ok(count @ 1..) = count else { return };
                if to_client.write_all(&down[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}
