//! Accepts connections, and goes on after failures, for example while the process has no free descriptor.

use std::io;
use std::time::Duration;

/// Pause after a failed accept, so that a full descriptor table does not cause a busy loop.
const PAUSE: Duration = Duration::from_millis(100);

/// Calls `accept` until it returns a connection. Each failure is logged, with `what` as the subject, and followed by a
/// pause. Never returns once the listener was shut down.
pub async fn accept<T, F>(what: &str, mut accept: impl FnMut() -> F) -> T
where
    F: Future<Output = io::Result<T>>,
{
    loop {
        match accept().await {
            Ok(accepted) => return accepted,
            // EINVAL: some process that shares the socket has shut it down (shutdown(2)). No connection will come any
            // more.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                return std::future::pending().await;
            }
            Err(error) => {
                tracing::warn!(%error, "{what} not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_listener_that_was_shut_down_brings_nothing_and_logs_nothing() {
        let next = || ready(Err::<(), _>(io::Error::from_raw_os_error(libc::EINVAL)));
        let accepted = accept("connection", next);
        assert!(tokio::time::timeout(10 * PAUSE, accepted).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_pauses_after_each_failure() {
        let mut left = vec![Ok(7), Err(libc::EMFILE), Err(libc::ECONNABORTED)];
        let began = Instant::now();
        let next = || ready(left.pop().unwrap().map_err(io::Error::from_raw_os_error));
        assert_eq!(accept("connection", next).await, 7);
        assert_eq!(began.elapsed(), 2 * PAUSE);
    }
}
