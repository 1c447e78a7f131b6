//! The requests that a lock on etcd needs at least, through the client library that the store uses.

use prost::Message;
use tenure::Error;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

use super::server_address::{plain_server, with_port};
use crate::bench::common::{RESPONSE_TIMEOUT, TASKS, measurement_error};

/// About as long as the record of a holder.
const VALUE_LENGTH: usize = 200;

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

/// A response whose fields are not read.
#[derive(Clone, PartialEq, Message)]
struct Response {}

/// One connection, and the keys of this measurement.
#[derive(Clone)]
pub(crate) struct RawEtcd {
    channel: Channel,
    /// One key for each task.
    keys: Vec<Vec<u8>>,
}

impl RawEtcd {
    /// Connects to the first member. Returns `None` for a URL with a password or TLS.
    pub(crate) async fn connect(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((host, _)) = plain_server(url, "etcd") else {
            return Ok(None);
        };
        let endpoint = format!("http://{}", with_port(host, 2379));
        let endpoint = Endpoint::from_shared(endpoint).map_err(measurement_error)?;
        let endpoint = endpoint.tcp_nodelay(true).connect_timeout(RESPONSE_TIMEOUT);
        let channel = endpoint.timeout(RESPONSE_TIMEOUT).connect().await;
        let key = |task| format!("{name}-raw-{task}").into_bytes();
        Ok(Some(Self {
            channel: channel.map_err(measurement_error)?,
            keys: (0..TASKS).map(key).collect(),
        }))
    }

    /// Creates and deletes the key of this task.
    pub(crate) async fn run_round(&self, task: usize) -> Result<(), Error> {
        let key = self.keys[task].clone();
        let value = vec![b' '; VALUE_LENGTH];
        let path = Uri::from_static("/etcdserverpb.KV/Put");
        self.request(path, Put { key, value }).await?;
        self.delete(task).await
    }

    async fn delete(&self, task: usize) -> Result<(), Error> {
        let key = self.keys[task].clone();
        let path = Uri::from_static("/etcdserverpb.KV/DeleteRange");
        self.request(path, Delete { key }).await
    }

    async fn request<Q>(&self, path: Uri, request: Q) -> Result<(), Error>
    where
        Q: Message + Send + Sync + 'static,
    {
        let path = path.path_and_query().cloned();
        let path = path.expect("the URI is a path");
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(measurement_error)?;
        let request = tonic::Request::new(request);
        let codec = ProstCodec::<Q, Response>::default();
        let response = grpc.unary(request, path, codec).await;
        response.map(drop).map_err(measurement_error)
    }

    /// Deletes keys that are left after an error.
    pub(crate) async fn clean_up(self) {
        for task in 0..self.keys.len() {
            // A key that stays disturbs no other program, because its name has a random part.
            let _ = self.delete(task).await;
        }
    }
}
