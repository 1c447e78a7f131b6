//! The messages of etcd's API v3 that this client uses, with the fields that it uses. They are written by hand, so that
//! the build needs no `protoc`; the numbers are those of `etcdserverpb/rpc.proto` and `mvccpb/kv.proto`.

use prost::Message;

/// The path of each request.
pub(super) mod path {
    pub(in super::super) const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
    pub(in super::super) const RANGE: &str = "/etcdserverpb.KV/Range";
    pub(in super::super) const TXN: &str = "/etcdserverpb.KV/Txn";
    pub(in super::super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
    pub(in super::super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
    pub(in super::super) const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
    pub(in super::super) const LEASE_TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";
    pub(in super::super) const WATCH: &str = "/etcdserverpb.Watch/Watch";
    pub(in super::super) const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";
    pub(in super::super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";
    pub(in super::super) const ALARM: &str = "/etcdserverpb.Maintenance/Alarm";
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum SortTarget {
    Key = 0,
    Version = 1,
    Create = 2,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) limit: i64,
    #[prost(int64, tag = "4")]
    pub(super) revision: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    pub(super) sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    pub(super) sort_target: i32,
    #[prost(bool, tag = "7")]
    pub(super) serializable: bool,
    #[prost(bool, tag = "8")]
    pub(super) keys_only: bool,
    #[prost(int64, tag = "13")]
    pub(super) max_create_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RangeResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeleteResponse {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

/// A condition on the create or mod revision, on the value or on the lease of a key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    /// 0: equal. 2: less.
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    /// 1: the create revision. 2: the mod revision. 3: the value. 4: the lease.
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(oneof = "TargetUnion", tags = "5, 6, 7, 8")]
    pub(super) with: Option<TargetUnion>,
    #[prost(bytes = "vec", tag = "64")]
    pub(super) range_end: Vec<u8>,
}

/// A oneof, because protobuf does not send a plain field that is zero, and this zero must be sent.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum TargetUnion {
    #[prost(int64, tag = "5")]
    Create(i64),
    #[prost(int64, tag = "6")]
    Mod(i64),
    #[prost(bytes = "vec", tag = "7")]
    Value(Vec<u8>),
    #[prost(int64, tag = "8")]
    Lease(i64),
}

impl Compare {
    /// The key was created at this revision; with 0: the key does not exist.
    pub(super) fn created(key: &[u8], revision: i64) -> Self {
        Self {
            result: 0,
            target: 1,
            key: key.to_vec(),
            with: Some(TargetUnion::Create(revision)),
            range_end: Vec::new(),
        }
    }

    /// The key was put at this revision, for the last time.
    pub(super) fn modified(key: &[u8], revision: i64) -> Self {
        Self {
            target: 2,
            with: Some(TargetUnion::Mod(revision)),
            ..Self::created(key, 0)
        }
    }

    /// The key exists, under this lease.
    pub(super) fn has_lease(key: &[u8], lease: i64) -> Self {
        Self {
            target: 4,
            with: Some(TargetUnion::Lease(lease)),
            ..Self::created(key, 0)
        }
    }

    /// All keys from `key` up to `range_end` were created before this revision.
    pub(super) fn all_created_before(key: &[u8], range_end: &[u8], revision: i64) -> Self {
        Self {
            result: 2,
            range_end: range_end.to_vec(),
            ..Self::created(key, revision)
        }
    }

    /// The key exists and has this value.
    pub(super) fn has_value(key: &[u8], value: &[u8]) -> Self {
        Self {
            target: 3,
            with: Some(TargetUnion::Value(value.to_vec())),
            ..Self::created(key, 0)
        }
    }

    /// No key exists from `key` up to `range_end`, which does not belong to the range.
    pub(super) fn is_empty(key: &[u8], range_end: &[u8]) -> Self {
        Self {
            range_end: range_end.to_vec(),
            ..Self::created(key, 0)
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(oneof = "Request", tags = "1, 2, 3")]
    pub(super) what: Option<Request>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Request {
    #[prost(message, tag = "1")]
    Range(Range),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
}

impl From<Range> for RequestOp {
    fn from(range: Range) -> Self {
        Self {
            what: Some(Request::Range(range)),
        }
    }
}

impl From<Put> for RequestOp {
    fn from(put: Put) -> Self {
        Self {
            what: Some(Request::Put(put)),
        }
    }
}

impl From<Delete> for RequestOp {
    fn from(delete: Delete) -> Self {
        Self {
            what: Some(Request::Delete(delete)),
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub(super) failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub(super) responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseOp {
    #[prost(message, optional, tag = "1")]
    pub(super) range: Option<RangeResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) delete: Option<DeleteResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// The request to keep a lease alive, to revoke it, or to read its remaining time.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseResponse {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// How long a lease lasts; without a ttl: there is no such lease.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseTimesResponse {
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(super) granted: i64,
}

/// A request without arguments, or a response of which no field is needed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Watch {
    #[prost(message, optional, tag = "1")]
    pub(super) create: Option<WatchCreate>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    /// 0: puts are not reported.
    #[prost(int32, repeated, tag = "5")]
    pub(super) filters: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(bool, tag = "3")]
    pub(super) created: bool,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(int64, tag = "5")]
    pub(super) compact_revision: i64,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {
    /// 1: deleted.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) kv: Option<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Authenticate {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberListResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) members: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// A learner does not vote.
    #[prost(bool, tag = "5")]
    pub(super) is_learner: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(string, tag = "2")]
    pub(super) version: String,
    #[prost(int64, tag = "3")]
    pub(super) db_size: i64,
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    #[prost(string, repeated, tag = "8")]
    pub(super) errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub(super) is_learner: bool,
}

/// Zero for all fields asks which alarms are on.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmRequest {
    #[prost(int32, tag = "1")]
    pub(super) action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AlarmResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) alarms: Vec<MemberAlarm>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MemberAlarm {
    #[prost(uint64, tag = "1")]
    pub(super) member: u64,
    /// 1: no space; 2: corrupt.
    #[prost(int32, tag = "2")]
    pub(super) alarm: i32,
}
