//! `leno-cni`: started by a node's container runtime for each call, as the CNI specification
//! requires.

use std::io::Read;
use std::process::ExitCode;

use leno_cni::plugin::{self, CniEnvironment, CniError};

/// Longest configuration that is read, in bytes; prevResult names only a handful of addresses and
/// routes.
const MAX_INPUT: u64 = 1 << 20;

fn main() -> ExitCode {
    let environment = CniEnvironment::of_this_process();
    let mut input = String::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_string(&mut input);
    let done = read
        .map_err(|error| CniError::unreadable(&error.to_string()))
        .and_then(|_| plugin::run(&environment, &input));
    match done {
        Ok(output) => {
            print!("{output}");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            print!("{}", failure.to_json());
            ExitCode::FAILURE
        }
    }
}
