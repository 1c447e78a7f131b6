//! Standard input, whose end is the end of the client.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::watch;

/// A reader that tells when it has come to its end. The SDK waits for calls that are under way, and a call that waits for a lock
/// has to end with its client.
pub(super) struct Input<R> {
    from: R,
    ending: watch::Sender<bool>,
}

impl<R> Input<R> {
    pub(super) fn new(from: R, ending: watch::Sender<bool>) -> Self {
        Self { from, ending }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Input<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.from).poll_read(cx, buffer));
        let has_ended = buffer.filled().len() == before && buffer.remaining() > 0;
        if has_ended || read.is_err() {
            self.ending.send_replace(true);
        }
        Poll::Ready(read)
    }
}
