//! In place of `relay.rs` on systems other than Linux, and for SQLite alone: the end of a connection is noticed by the next
//! request.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::server::Server;

/// On these systems there is no relay.
pub(super) enum Relay {}

/// Never resolves.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) struct EndWatch;

impl Relay {
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) async fn connect(_: &Server) -> std::io::Result<Option<Self>> {
        Ok(None)
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn path(&self) -> String {
        match *self {}
    }

    pub(super) async fn drive<T>(
        &self,
        _: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, sqlx::Error> {
        match *self {}
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) fn end_watch(&self) -> EndWatch {
        match *self {}
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl EndWatch {
    pub(crate) async fn ended(self) {
        std::future::pending().await
    }
}
