//! Decides whether a panic ends only the task of one connection or request, or the whole process.

use std::panic::{PanicHookInfo, set_hook};
use std::process::abort;

use leno_transport::{PanicVerdict, judge_panic};

/// Installs a hook that logs panics (not each one, if there are many) and that aborts the process unless the panic was
/// in a contained task (see [`leno_transport::spawn_contained`]).
pub(crate) fn install() {
    set_hook(Box::new(|panic| match judge_panic() {
        PanicVerdict::EndTask { log: true } => log(panic, "a task panicked; its connection ends"),
        PanicVerdict::EndTask { log: false } => {}
        PanicVerdict::EndProcess => {
            log(panic, "the proxy panicked and ends");
            abort();
        }
    }));
}

fn log(panic: &PanicHookInfo<'_>, what: &'static str) {
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let text = panic.payload_as_str().unwrap_or("without a text");
    let location = panic.location().map(ToString::to_string).unwrap_or_default();
    tracing::error!(thread, location, panic = text, "{what}");
}
