//! Futures run until nothing moves any more. Nothing here waits for the clock, so an input that would
//! make a peer wait ends there.

use tokio::runtime::Runtime;
use tokio::task::{LocalSet, yield_now};

/// What a pipe takes before its writer must wait: more than the longest input.
pub(crate) const PIPE: usize = 256 * 1024;

/// Turns of the event loop that count as quiet. Each side of a connection moves in every one.
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

/// Lets everything else run until nothing moves.
pub(crate) async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}
