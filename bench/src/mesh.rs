//! Two hops with mTLS: a client and its servers, meshed by `leno up`, compared with pairs of other
//! proxies in the same positions.
//!
//! ```text
//!            workload                     bridge                  workload
//!   client ──► proxy ════════════ mTLS, TLS 1.3, HTTP/2 ════════════► proxy ──► server
//! ```
//! The workloads of every contender are instances of one mesh, on the same bridge, each in a
//! namespace of its own. Leno's workloads have the proxies that `leno up` starts and are captured
//! by it. The other workloads have none: Envoy or HAProxy runs beside the client and beside the
//! server, and the client calls its own proxy on loopback, which saves the cost of capture.

mod pair;
mod workloads;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result, bail};
use leno_testkit::lab::{Capture, Lab, Options as LabOptions};
use leno_testkit::usage;

use crate::backend::write_nginx;
use crate::measure::{self, Options};
use crate::process::Pinning;
use crate::proxy::Contender;
use crate::scenario::Work;

use workloads::{APPLICATION_PORT, documents, name, plain};

/// Starts a mesh, measures each of `proxies` in it, and stops it.
pub(crate) fn run(
    proxies: &[Contender],
    capture: Capture,
    pin: bool,
    options: &Options,
) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("leno up makes network namespaces, which takes root: run this as root");
    }
    let (place, rest) =
        if pin { (Pinning::Proxy, Pinning::Rest) } else { (Pinning::Anywhere, Pinning::Anywhere) };
    // This thread starts the mesh and the generators, which inherit its CPU affinity.
    rest.apply(0)?;
    let works = options.works();
    let lab_options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&lab_options, &documents(&works), |directory| prepare(directory, &works))?;
    let mut records = Vec::new();
    let mut pairs = Vec::new();
    for work in works {
        for contender in proxies {
            match pair::start(&lab, *contender, work) {
                Ok(pair) => pairs.push(pair),
                Err(why) => {
                    let missing = (*contender, work);
                    records.extend(measure::left_out("mesh", missing, options, &why));
                }
            }
        }
    }
    let (running, subjects): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    for pid in subjects.iter().flat_map(|subject| &subject.pids) {
        place.apply_to_threads(*pid)?;
    }
    let measured = lab.explain(measure::rounds(&subjects, options, records));
    drop(running);
    measured
}

/// Writes what the servers need into the directory of the mesh.
fn prepare(directory: &Path, works: &[Work]) -> Result<()> {
    if !works.contains(&Work::Http1) {
        return Ok(());
    }
    for name in [name(Work::Http1).into(), plain(Work::Http1)] {
        let root = directory.join(&name);
        std::fs::create_dir(&root)?;
        let listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, APPLICATION_PORT));
        write_nginx(&root, listen).with_context(|| format!("cannot set up {name}"))?;
    }
    Ok(())
}

impl Pinning {
    /// Moves every thread of a process to this place.
    fn apply_to_threads(self, pid: u32) -> Result<()> {
        for thread in usage::threads_of_process(pid)? {
            self.apply(i32::try_from(thread)?)?;
        }
        Ok(())
    }
}
