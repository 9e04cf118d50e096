//! Measures what discovery costs a control plane in a large mesh, with real clients.
//!
//! ```text
//!  this process ── change SERVICE NUMBER ──► a control plane: its own process, no cluster
//!       │  ▲                                        │
//!       │  └──────── discovery over mTLS ───────────┘
//!       └ up to 2,000 clients of leno-discovery, each with the subscriptions of a proxy
//! ```
//!
//! By default the mesh is small, and the test only asserts counts. With `LENO_SCALE_LARGE` the mesh has the size
//! that the design names. `make scale` runs another test, with a real API server
//! (`control/app/tests/kubernetes/scale.rs`). `LENO_SCALE_SERVICES`, `LENO_SCALE_NAMESPACES`, `LENO_SCALE_WIDE`,
//! `LENO_SCALE_PROXIES`, `LENO_SCALE_CHANGES` and `LENO_SCALE_RATE` change single sizes.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod machine;
mod measure;
mod mesh;
mod plane;

use std::path::PathBuf;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use mesh::Size;

/// This variable is set for the process that serves. Its value is the file to which the authority's roots are
/// written.
const SERVER: &str = "LENO_SCALE_SERVER";
/// This variable selects the sizes that the design names, unless other variables change single sizes.
const LARGE: &str = "LENO_SCALE_LARGE";

fn main() -> ExitCode {
    let size = size();
    if let Some(roots) = std::env::var_os(SERVER) {
        plane::serve(size, &PathBuf::from(roots), asked("LENO_SCALE_THREADS").unwrap_or(2));
        return ExitCode::SUCCESS;
    }
    let trial = Trial::test("a_change_costs_the_streams_that_asked", move || {
        measure::run(size);
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn asked(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

fn size() -> Size {
    let large = std::env::var_os(LARGE).is_some();
    let of = |name, small, full| asked(name).unwrap_or(if large { full } else { small });
    let services = of("LENO_SCALE_SERVICES", 60, 5_000);
    Size {
        services,
        namespaces: of("LENO_SCALE_NAMESPACES", 6, 500),
        wide: of("LENO_SCALE_WIDE", 40, 1_000),
        gathered: services / 50,
        proxies: of("LENO_SCALE_PROXIES", 20, 2_000),
        changes: of("LENO_SCALE_CHANGES", 20, 2_000),
        changes_per_second: of("LENO_SCALE_RATE", 100, 100),
    }
}
