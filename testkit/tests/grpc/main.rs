//! Tests gRPC with three implementations. Each must give the same results directly, through one proxy and through
//! a mesh: the interoperability tests of grpc-go (`go`), and cases written here for Python's grpcio (`python`) and
//! for tonic (`rust`).
//!
//! `scripts/tools.sh` installs the first two. If it cannot, the tests are skipped, which fails
//! under `LENO_REQUIRE=tools`. The mesh needs root.

mod go;
mod python;
mod rust;

use std::time::Duration;

use anyhow::{Result, ensure};
use leno_testkit::tools;

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Whether this process may start a mesh, which only root may. If not, prints that the test is skipped.
fn may_make_a_mesh() -> Result<bool> {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        ensure!(!tools::required("root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
    }
    Ok(root)
}
