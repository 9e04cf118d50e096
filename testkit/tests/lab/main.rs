//! The network lab runs the same list of cases with every capture backend. Cases that do not depend on how
//! connections are captured (policies, routes, identities, reports) run only once.
//!
//! For each backend, most cases share one mesh, which the first of them starts. Cases that break something start
//! their own meshes. Names are `BACKEND::GROUP::CASE` and `once::GROUP::CASE`: `cargo test -p leno-testkit --test
//! lab -- ebpf::http`.
//!
//! Needs root. Without root all cases are ignored, or fail if `LENO_REQUIRE` has `root`.
//! `LENO_LAB_SHARE=node`, or another value of `leno.dev/share`, runs all meshes in node mode; cases that cannot run
//! there are ignored, and `node_mode` has the reasons. `LENO_LAB_ONE_PASS=false` makes instances of one process use the
//! network. `LENO_ROTATION_RATE` sets how many requests per second each of four clients sends while a root is replaced
//! (100). `LENO_NODE_CONNECTIONS`, `LENO_NODE_SWITCHES` and `LENO_NODE_UPLOAD` set how much the cases of `handover` do,
//! `LENO_SOAK_SECONDS` how long the soak lasts, and `LENO_PARITY_REQUESTS` how many requests are compared with the flow
//! accounts.

mod cases;
mod fixture;
mod node_mode;
mod outside;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use leno_testkit::lab::Capture;
use libtest_mimic::{Arguments, Failed, Trial};

use crate::cases::{Case, ONCE, Run};
use crate::fixture::SharedMesh;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cases share two CPUs and one mesh. If they ran in parallel, they would disturb each other's measurements.
    arguments.test_threads = Some(1);
    let root = nix::unistd::geteuid().is_root();
    let required = std::env::var("LENO_REQUIRE").unwrap_or_default().contains("root");
    let (mut names, mut excepted) = (Vec::new(), BTreeMap::new());
    let mut trials = Vec::new();
    let mut meshes = Vec::new();
    for capture in Capture::ALL {
        let shared = Arc::new(SharedMesh::new(capture));
        meshes.push(Arc::clone(&shared));
        for (group, cases) in cases::all() {
            for case in cases {
                let under = match case.run {
                    Run::Once(_) if capture == ONCE => "once",
                    Run::Once(_) => continue,
                    Run::SharedMesh(_) | Run::Alone(_) => capture.name(),
                };
                let case_name = format!("{group}::{}", case.name);
                let why = node_mode::excepted(&case_name);
                let name = format!("{under}::{case_name}");
                excepted.extend(why.map(|why| (name.clone(), why)));
                names.push(case_name);
                let shared = Arc::clone(&shared);
                let run = move || run(&case, &shared, root);
                let ignored = why.is_some() || (!root && !required);
                trials.push(Trial::test(name, run).with_ignored_flag(ignored));
            }
        }
        // Ends the mesh before the mesh of the next backend starts.
        let shared = Arc::clone(&shared);
        let end = move || shared.end().map_err(|error| failed(&error));
        let name = format!("{}::the_mesh_ends_and_leaves_nothing", capture.name());
        trials.push(Trial::test(name, end).with_ignored_flag(!root && !required));
    }
    if let Err(error) = node_mode::check(&names) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    if !arguments.list {
        for (name, why) in &excepted {
            println!("not in node mode: {name}: {why}");
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    // A filter may have excluded the trials that end the meshes, so they are ended here as well.
    for mesh in meshes {
        if let Err(error) = mesh.end() {
            eprintln!("{error:#}");
        }
    }
    conclusion.exit_code()
}

fn run(case: &Case, shared: &SharedMesh, root: bool) -> Result<(), Failed> {
    let outcome = || -> Result<()> {
        if !root {
            bail!("this case needs root");
        }
        match case.run {
            Run::SharedMesh(run) => shared.with(run),
            Run::Alone(run) | Run::Once(run) => run(shared.capture()),
        }
    };
    outcome().map_err(|error| failed(&error))
}

fn failed(error: &anyhow::Error) -> Failed {
    Failed::from(format!("{error:#}"))
}
