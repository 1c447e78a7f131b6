//! A stream of the leaders of an election.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, Stream, StreamExt as _};

use crate::driver::Observation;
use crate::error::Error;
use crate::leader::Leader;

/// The leaders of an election, one after the other: made by [`Election::observe`](crate::Election::observe).
///
/// The first item says who leads now: `Some(leader)`, or `None` for "nobody leads". After that there is an item for each
/// change of the leader or of its value. Each leader comes once and in the order of the terms: after a leader, or the end
/// of its term, no older one ever comes. A term that begins and ends between two looks at the store may be left out; how late
/// a change is seen at most is a part of the [guarantees](crate::guarantees::Guarantees::observers) of the store.
///
/// An `Err` says that the store does not answer, once for each outage, and from then on it is not known who leads. The stream
/// goes on, and its next item says who leads then, which may be the leader of before. The stream ends when the client is
/// closed, and after an error that retrying does not end (`Denied`, `Unsupported`, a store that has lost its tokens).
///
/// An observer is no candidate. It works only while it is polled, and keeps the client alive. To be the leader is a matter of
/// [`Term`](crate::Term) alone: what an observer says is over by the time it is read.
#[must_use = "an observer does nothing until it is polled"]
pub struct Observer(Pin<Box<dyn Stream<Item = Result<Option<Leader>, Error>> + Send>>);

impl Observer {
    pub(crate) fn new(observation: Result<Observation, Error>) -> Self {
        Self(match observation {
            Err(err) => Box::pin(stream::iter([Err(err)]).fuse()),
            Ok(observation) => {
                let items = stream::unfold(observation, |mut observation| async {
                    let next = observation.next().await?;
                    Some((next, observation))
                });
                // A loop around `select!` polls the stream after its end, too.
                Box::pin(items.fuse())
            }
        })
    }

    /// The next item; `None` when the stream has ended, and from then on.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is left out.
    ///
    /// # Errors
    /// See [`Observer`].
    pub async fn next(&mut self) -> Option<Result<Option<Leader>, Error>> {
        self.0.next().await
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}
