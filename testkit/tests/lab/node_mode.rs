//! The cases that do not run in node mode (`LENO_LAB_SHARE`), with the reasons. All other cases run, and their
//! meshes have sidecars only if their documents request one.

use anyhow::{Result, ensure};
use leno_testkit::lab;

/// What a case needs that may be missing in node mode.
#[derive(Clone, Copy)]
enum Needs {
    /// A proxy that serves only this instance, and that the case finds by that.
    Sidecar,
    /// A separate process for each instance, as with the share `workload`.
    OwnProcess,
    /// Requests that cross the bridge. Within one process they may stay in memory instead.
    Network,
}

/// The cases as `GROUP::CASE`, or as the beginning of several such names, each with what it needs and why.
const NEEDS: [(&str, Needs, &str); 4] = [
    (
        "identity::clocks_that_are_wrong_by_four_minutes_are_survived",
        Needs::OwnProcess,
        "one process has one clock",
    ),
    ("identity::a_clock_beyond_the_bound_is_named", Needs::OwnProcess, "one process has one clock"),
    (
        "identity::certificates_of_a_workload_api_count_and_its_roots_are_replaced_under_load",
        Needs::Sidecar,
        "a SPIFFE Workload API identifies processes, so that leno up refuses one for node proxies",
    ),
    (
        "encryption::the_bridge_sees_tls_only",
        Needs::Network,
        "what instances of one process send each other in memory is not on the bridge: LENO_LAB_ONE_PASS=false",
    ),
];

/// Why the case `GROUP::CASE` does not run with the settings in the environment; `None` if it runs.
pub(crate) fn excepted(case: &str) -> Option<&'static str> {
    let share = lab::share()?;
    let is_shared = share != "workload";
    let (_, _, why) = NEEDS.iter().find(|(cases, needs, _)| {
        let is_missing = match needs {
            Needs::Sidecar => true,
            Needs::OwnProcess => is_shared,
            Needs::Network => is_shared && lab::one_pass(),
        };
        is_missing && case.starts_with(cases)
    })?;
    Some(why)
}

/// Checks that every name in the list matches a case.
pub(crate) fn check(cases: &[String]) -> Result<()> {
    for (name, _, _) in NEEDS {
        let is_known = cases.iter().any(|case| case.starts_with(name));
        ensure!(is_known, "node_mode.rs: there is no case {name}");
    }
    Ok(())
}
