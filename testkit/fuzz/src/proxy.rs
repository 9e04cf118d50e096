//! The whole proxy in one process: both planes and the real HTTP engine, on scripted sockets, with a clock
//! that only the script advances.
//!
//! ```text
//! clients ──► Outbound ──► application          the planes of the product in one thread, on sockets that
//! clients ──► Inbound ──► application           the script holds the other ends of (`leno_transport::scripted`)
//! clients ──► Outbound ──► Inbound ──► application      in plaintext, or with mTLS between the planes
//! clients ──► Outbound ══► Inbound ──► application      as workloads of one process: the inbound plane is a guest: it
//!                                                       runs on the thread of the outbound plane
//! ```
//!
//! An input is a [`Case`]: a configuration, requests with their responses, and an order in which clients
//! and applications send, wait, close and stop reading. Every request consists of one repeated letter
//! (`letters`), so that a byte in the wrong message is noticed. For every input:
//!
//! - nothing panics, and the event loop comes to rest;
//! - no byte of one request or response is in another one, nor in what a tap shows of another one;
//! - applications receive HTTP that has one meaning;
//! - every request is answered, or its connection ends;
//! - a request reaches an application once, unless policy allows more;
//! - each plane connects from the network namespace of its own workload;
//! - once all clients and applications have left, no task, no memory that is charged to a budget, no slot of a
//!   connection and no request in progress is left.
//!
//! Read first: [`Case`], then `fuzz_run`.

mod application;
mod case;
mod client;
mod config;
mod end;
mod exchange;
pub(crate) mod frames;
mod framing;
mod fuzz_run;
mod identity;
mod input;
mod letters;
mod network;
mod planes;
mod streams;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use tokio::runtime::{Builder, LocalOptions};

pub use application::Received;
pub use case::{
    Answer, AnswerExtra, Case, Change, Connection, Ending, Extra, Framing, Method, Mutation,
    Request, Step,
};
pub use config::{Config, DeadEndpoint, Planes};
pub use exchange::Exchanged;

thread_local! {
    /// The first panic on this thread; the runtime catches the panic of a task.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs the target. Panics if a property does not hold.
pub(crate) fn run(bytes: &[u8]) {
    let violations = play(&Case::decode(bytes));
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Runs a case; returns the properties that did not hold.
#[must_use]
pub fn play(case: &Case) -> Vec<String> {
    let (mut violations, panicked) = in_process(async || fuzz_run::FuzzRun::new(case).run().await);
    violations.extend(panicked);
    violations
}

/// Sends bytes through the planes to an application that responds 200; returns the outcome.
#[must_use]
pub fn exchange(config: &Config, sent: &[u8]) -> Exchanged {
    let case = Case { config: config.clone(), ..Case::default() };
    let (mut got, panicked) =
        in_process(async || fuzz_run::FuzzRun::new(&case).exchange(sent).await);
    got.violations.extend(panicked);
    got
}

/// Runs in a new event loop with a paused clock; also returns the panic of a task, if there was one.
fn in_process<T>(run: impl AsyncFnOnce() -> T) -> (T, Option<String>) {
    watch_panics();
    PANICKED.take();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build_local(LocalOptions::default())
        .expect("descriptors for an event loop are free");
    let done = runtime.block_on(run());
    drop(runtime);
    (done, PANICKED.take().map(|panic| format!("panicked: {panic}")))
}

/// Records panics of tasks, and then calls the previous hook.
fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICKED.with_borrow_mut(|panicked| {
                panicked.get_or_insert_with(|| info.to_string());
            });
            before(info);
        }));
    });
}
