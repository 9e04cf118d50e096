//! Serves the requests of one HTTP/2 client, each independently.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use leno_h2::{ConnError, Request};
use leno_transport::{IDLE_GRACE, Io};
use tokio::time::sleep;

use crate::answer::Answer;
use crate::call::Call;

/// Serves a client's connection until it ends. `begin` gets each request, and should serve it in a separate task.
/// `received` are bytes that were already read from the connection. When `drain` is ready, a GOAWAY frame asks the
/// client to open no more streams, and the connection ends after the streams that are open.
///
/// If the client has sent no request by then, the GOAWAY follows its first request, or is sent after [`IDLE_GRACE`]. If
/// a new connection ended unused, clients would conclude that the server does not work, and report an error instead of
/// connecting again.
///
/// # Errors
/// The connection failed on either side, or the client violated the protocol or a limit.
pub async fn serve_streams<S: Io>(
    client: S,
    received: &[u8],
    limits: &Rc<leno_h2::Limits>,
    mut begin: impl FnMut(Request),
    drain: impl Future<Output = ()>,
) -> Result<(), ConnError> {
    let (mut accept, mut driver) = leno_h2::server(client, received, limits);
    let mut drain = pin!(drain);
    let (mut draining, mut told, mut begun, mut accepting) = (false, false, false, true);
    // This is boxed, because most connections do not need it.
    let mut grace = None;
    poll_fn(|cx| {
        draining = draining || drain.as_mut().poll(cx).is_ready();
        if let Poll::Ready(ended) = Pin::new(&mut driver).poll(cx) {
            return Poll::Ready(ended);
        }
        // Requests arrive only through the driver, which this task polls. So requests need not wake this task.
        let quiet = &mut Context::from_waker(Waker::noop());
        while accepting {
            match accept.poll_accept(quiet) {
                Poll::Ready(Some(request)) => {
                    begun = true;
                    begin(request);
                }
                Poll::Ready(None) => {
                    accepting = false;
                    // The driver may only have waited until the last request was accepted.
                    cx.waker().wake_by_ref();
                }
                Poll::Pending => break,
            }
        }
        if draining && !told {
            let mut waited = || {
                let grace = grace.get_or_insert_with(|| Box::pin(sleep(IDLE_GRACE)));
                grace.as_mut().poll(cx).is_ready()
            };
            if begun || waited() {
                told = true;
                // This wakes the driver, which this task polls.
                accept.drain();
            }
        }
        Poll::Pending
    })
    .await
}

impl Call {
    /// Answers with an error in place of a server. `cause` is the value of the `leno-error` header.
    pub fn fail(self, status: u16, cause: &str) {
        self.respond(&Answer::error(status, cause));
    }
}
