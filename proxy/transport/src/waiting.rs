//! Work for a client, which ends when the client leaves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

/// Waits for `work`, or until `gone` is ready because the client has left. `work` is polled first, so that a client
/// that leaves at the last moment still gets a finished result. `work` is dropped if the client leaves.
///
/// # Errors
/// The value of `gone`.
pub async fn unless_gone<T, G>(
    work: impl Future<Output = T>,
    mut gone: impl FnMut(&mut Context<'_>) -> Poll<G>,
) -> Result<T, G> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => gone(cx).map(Err),
    })
    .await
}
