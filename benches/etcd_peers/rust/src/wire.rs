//! The few requests of etcd that the bare clients send.

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::scenarios::Failure;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Deleted {
    #[prost(int64, tag = "2")]
    pub(crate) count: i64,
}

/// Compares the revision in which a key was created, which is zero for a key that is not there.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    /// 1: the revision of the creation.
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) key: Vec<u8>,
    #[prost(int64, tag = "5")]
    pub(crate) create_revision: i64,
    #[prost(bytes = "vec", tag = "64")]
    pub(crate) range_end: Vec<u8>,
}

/// One of the two.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Operation {
    #[prost(message, tag = "2")]
    pub(crate) put: Option<Put>,
    #[prost(message, tag = "3")]
    pub(crate) delete: Option<Delete>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Transaction {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<Operation>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Header {
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Committed {
    #[prost(message, tag = "1")]
    pub(crate) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Grant {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Granted {
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Revoke {
    #[prost(int64, tag = "1")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Lock {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) name: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(crate) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Unlock {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) key: Vec<u8>,
}

/// An answer whose fields are not needed.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Done {}

/// One connection, shared by all workers.
#[derive(Clone)]
pub(crate) struct Etcd(Channel);

impl Etcd {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
        Ok(Self(endpoint.tcp_nodelay(true).connect().await?))
    }

    pub(crate) async fn ask<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = grpc
            .unary(tonic::Request::new(request), path, codec)
            .await?;
        Ok(answer.into_inner())
    }
}
