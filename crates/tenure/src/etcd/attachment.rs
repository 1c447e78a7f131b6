//! What a client knows of the lease of a hold that it is attached to.

/// What a client that is attached to a hold knows of its key and lease.
#[derive(Clone, Copy)]
pub(super) struct Attachment {
    /// The mod revision of the key when this client wrote it last.
    pub(super) modified: i64,
    /// The ttl of its lease in seconds; 0: not known.
    pub(super) granted: i64,
}

/// A lease that belongs to one hold alone.
#[derive(Clone, Copy)]
pub(super) struct KnownLease {
    pub(super) id: i64,
    /// The ttl of the lease in seconds; 0: not known.
    pub(super) granted: i64,
}
