//! A channel of the program that uses this library, with what it adds to each request.

use std::fmt;
use std::sync::Arc;

use tonic::transport::Channel;
use tonic::{Request, Status};

use tenure_core::url::Host;

/// What a program adds to each request, a token of its own for example: an interceptor of the client library.
type Intercept = Arc<dyn Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync>;

/// A channel, and its interceptor.
#[derive(Clone)]
pub(super) struct CallersChannel {
    pub(super) channel: Channel,
    intercept: Option<Intercept>,
}

/// An interceptor may know secrets.
impl fmt::Debug for CallersChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallersChannel").finish_non_exhaustive()
    }
}

impl CallersChannel {
    pub(super) fn new(channel: Channel) -> Self {
        let intercept = None;
        Self { channel, intercept }
    }

    pub(super) fn with_interceptor<F>(channel: Channel, intercept: F) -> Self
    where
        F: Fn(Request<()>) -> Result<Request<()>, Status> + Send + Sync + 'static,
    {
        let intercept = Some(Arc::new(intercept) as Intercept);
        Self { channel, intercept }
    }

    /// What errors call the members: a channel does not say where it leads.
    pub(super) fn host() -> Host {
        Host {
            name: "the channel of this program".to_owned(),
            port: 0,
        }
    }

    /// Adds to a request what the program adds to each.
    pub(super) fn intercept<T>(&self, request: &mut Request<T>) -> Result<(), Status> {
        let Some(intercept) = &self.intercept else {
            return Ok(());
        };
        let mut empty = Request::new(());
        std::mem::swap(empty.metadata_mut(), request.metadata_mut());
        std::mem::swap(empty.extensions_mut(), request.extensions_mut());
        let mut changed = intercept(empty)?;
        std::mem::swap(changed.metadata_mut(), request.metadata_mut());
        std::mem::swap(changed.extensions_mut(), request.extensions_mut());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_interceptor_sees_and_changes_what_is_sent_beside_a_request() {
        let channel = tonic::transport::Endpoint::from_static("http://localhost:1").connect_lazy();
        let callers =
            CallersChannel::with_interceptor(channel.clone(), |mut request| {
                match request.metadata().contains_key("token") {
                    true => Err(Status::unauthenticated("a token is there")),
                    false => {
                        let token = tonic::metadata::MetadataValue::from_static("t");
                        request.metadata_mut().insert("token", token);
                        Ok(request)
                    }
                }
            });
        let mut request = Request::new(7);
        assert!(callers.intercept(&mut request).is_ok());
        assert!(request.metadata().contains_key("token"));
        assert!(callers.intercept(&mut request).is_err());
        assert!(CallersChannel::new(channel).intercept(&mut request).is_ok());
        assert_eq!(request.into_inner(), 7);
    }
}
