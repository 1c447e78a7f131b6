//! The requests that a lock on etcd needs at least, through the client library that the backend uses.

use std::time::Duration;

use prost::Message;
use tenure::Error;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use super::server_address::{plain_place, with_port};
use crate::bench::common::WORKERS;
use crate::bench::common::system;

/// How long the server may be silent before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// About as much as the backend says of a holder.
const VALUE: usize = 200;

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

/// An answer of which nothing is needed.
#[derive(Clone, PartialEq, Message)]
struct Done {}

/// One connection, and keys of its own.
#[derive(Clone)]
pub(crate) struct RawEtcd {
    channel: Channel,
    /// One for each of those who work side by side.
    keys: Vec<Vec<u8>>,
}

impl RawEtcd {
    /// Connects to the first member. `None`: the URL has a password or TLS.
    pub(crate) async fn new(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((host, _, _)) = plain_place(url, "etcd") else {
            return Ok(None);
        };
        let endpoint = format!("http://{}", with_port(host, 2379));
        let endpoint = Endpoint::from_shared(endpoint).map_err(system)?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(PATIENCE);
        let channel = endpoint.timeout(PATIENCE).connect().await;
        let key = |number| format!("{name}-raw-{number}").into_bytes();
        Ok(Some(Self {
            channel: channel.map_err(system)?,
            keys: (0..WORKERS).map(key).collect(),
        }))
    }

    /// Makes and deletes the key with that number.
    pub(crate) async fn pair(&self, number: usize) -> Result<(), Error> {
        let key = self.keys[number].clone();
        let value = vec![b' '; VALUE];
        let path = Uri::from_static("/etcdserverpb.KV/Put");
        self.ask(path, Put { key, value }).await?;
        self.delete(number).await
    }

    async fn delete(&self, number: usize) -> Result<(), Error> {
        let key = self.keys[number].clone();
        let path = Uri::from_static("/etcdserverpb.KV/DeleteRange");
        self.ask(path, Delete { key }).await
    }

    async fn ask<Q>(&self, path: Uri, request: Q) -> Result<(), Error>
    where
        Q: Message + Send + Sync + 'static,
    {
        let path = path.path_and_query().cloned();
        let path = path.expect("a path is a path");
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(system)?;
        let request = tonic::Request::new(request);
        let codec = ProstCodec::<Q, Done>::default();
        let answer = grpc.unary(request, path, codec).await;
        answer.map(drop).map_err(system)
    }

    /// Removes the keys, should one be left.
    pub(crate) async fn end(self) {
        for number in 0..self.keys.len() {
            // Somebody else's trouble by now: their names are this measurement's alone.
            let _ = self.delete(number).await;
        }
    }
}
