//! Work for a client that ends when the client leaves.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll};

/// Waits for `work`, or until `gone` is ready because its client has left. `work` is polled first, so
/// that a client that leaves at the last moment still gets a result that is there; it is dropped if the
/// client leaves.
///
/// # Errors
/// What `gone` reports.
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
