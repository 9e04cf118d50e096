//! Runs libFuzzer on the target that `LENO_FUZZ_TARGET` names; `scripts/fuzz.sh` starts it.
#![no_main]

use std::sync::LazyLock;

use leno_fuzz::Target;

static TARGET: LazyLock<&'static Target> = LazyLock::new(|| {
    let name = std::env::var("LENO_FUZZ_TARGET").expect("LENO_FUZZ_TARGET names a target");
    ignore_broken_pipes();
    leno_fuzz::target(&name).expect("there is such a target")
});

/// Makes a write to a closed connection fail with an error instead of ending the process. Rust's runtime does this
/// before `main`, but libFuzzer has its own `main`.
#[expect(unsafe_code, reason = "setting the disposition of a signal")]
fn ignore_broken_pipes() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    // SAFETY: the signal is ignored, so no handler runs.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }.expect("SIGPIPE can be ignored");
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
