//! libFuzzer over the target that `LENO_FUZZ_TARGET` names; `scripts/fuzz.sh` runs it.
#![no_main]

use std::sync::LazyLock;

use leno_fuzz::Target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("LENO_FUZZ_TARGET").expect("LENO_FUZZ_TARGET names a target");
    ignore_broken_pipes();
    leno_fuzz::target(&name).expect("there is such a target")
});

/// What the start of every Rust program does, and libFuzzer's does not: a write to a closed connection is an
/// error, and not the end of the process.
#[expect(unsafe_code, reason = "setting the disposition of a signal")]
fn ignore_broken_pipes() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: no handler runs where the signal is ignored.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.expect("SIGPIPE can be ignored");
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
