//! `leno-cni`: the node's container runtime starts it for each call, as the CNI specification requires.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use leno_cni::plugin::{self, CniEnvironment, CniError};

/// Longest configuration that is read, in bytes. The largest part, prevResult, contains only a few addresses and
/// routes.
const MAX_INPUT: u64 = 1 << 20;

fn main() -> ExitCode {
    let environment = CniEnvironment::of_this_process();
    let mut input = String::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_string(&mut input);
    let done = read
        .map_err(|error| CniError::unreadable(&error.to_string()))
        .and_then(|_| plugin::run(&environment, &input));
    let (text, is_done) = match done {
        Ok(output) => (output, true),
        Err(failure) => (failure.to_json(), false),
    };
    // If the runtime cannot read the result, the call has failed.
    let is_told = std::io::stdout().write_all(text.as_bytes()).is_ok();
    if is_done && is_told { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
