//! The requests of one HTTP/2 client, each served by itself.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use leno_h2::{ConnError, Request};
use leno_transport::Io;

use crate::answer::Answer;
use crate::call::Call;

/// Serves a client's connection to its end: `begin` takes each request, to be served by a task of
/// its own. Of the connection `received` was read already. When `drain` is ready the client is
/// told to open no more streams, and the connection ends after those that are there.
///
/// # Errors
/// Either side broke off, or the client broke the protocol or a bound.
pub async fn serve_streams<S: Io>(
    client: S,
    received: &[u8],
    limits: &Rc<leno_h2::Limits>,
    mut begin: impl FnMut(Request),
    drain: impl Future<Output = ()>,
) -> Result<(), ConnError> {
    let (mut accept, mut driver) = leno_h2::server(client, received, limits);
    let mut drain = pin!(drain);
    let (mut draining, mut accepting) = (false, true);
    poll_fn(|cx| {
        if !draining && drain.as_mut().poll(cx).is_ready() {
            draining = true;
            accept.drain();
        }
        if let Poll::Ready(ended) = Pin::new(&mut driver).poll(cx) {
            return Poll::Ready(ended);
        }
        // Requests come by way of the driver alone, which this task runs: none has to wake it.
        let quiet = &mut Context::from_waker(Waker::noop());
        while accepting {
            match accept.poll_accept(quiet) {
                Poll::Ready(Some(request)) => begin(request),
                Poll::Ready(None) => {
                    accepting = false;
                    // The driver may have waited for nothing else than that the last was taken.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending => break,
            }
        }
        Poll::Pending
    })
    .await
}

impl Call {
    /// Answers in place of a server, with `cause` in `leno-error`.
    pub fn fail(self, status: u16, cause: &str) {
        self.respond(&Answer::error(status, cause));
    }
}
