//! Runs futures until nothing moves any more. Nothing here waits for the clock, so a run ends as soon as a peer
//! would have to wait.

use tokio::runtime::Runtime;
use tokio::task::{LocalSet, yield_now};

/// The capacity of a pipe, in bytes; larger than the longest input.
pub(crate) const PIPE: usize = 256 * 1024;

/// The number of turns of the event loop after which the run counts as quiet. Each side of a connection makes
/// progress in every turn.
const TURNS: usize = 100;

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime without a driver for sockets needs nothing of the system");
}

/// Runs `test` with tasks that stay on this thread and end with it.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    RUNTIME.with(|runtime| LocalSet::new().block_on(runtime, test))
}

/// Runs all other tasks until nothing moves any more.
pub(crate) async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}
