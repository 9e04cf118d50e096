//! Measures how long a proxy of a cluster takes from the start of its program to the first request
//! that is served through it.
//!
//! ```text
//! client:   ok ok ok ✗ ✗ ✗ ✗ ✗ ✗ ✗ ✗ ok        both lines by CLOCK_MONOTONIC of their node
//! watcher:          kill ....... exec
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use leno_measure::load::Plan;

use super::environment::ClusterEnvironment;
use super::wait::pass;
use crate::interrupt::Interrupt;
use crate::load_server::Probe;
use crate::measurement::usage::Component;
use crate::node_watcher::container_start::Start;
use crate::scenario::CLIENT;

/// How long the client may take to notice a success, after all services have answered. Each of its
/// requests takes at most a quarter of that.
const NOTICE: Duration = Duration::from_secs(1);

/// Kills the client's proxy, which the kubelet starts again, and measures the time until it serves,
/// in milliseconds. `None` if the client has no proxy, or the interruption was too short or too
/// long to be seen. Afterwards the pods are ready again, and containers have other IDs.
///
/// # Errors
/// If the proxy cannot be killed or does not run again in time, or after an interrupt.
pub(super) async fn start_up(
    environment: &ClusterEnvironment<'_>,
    (watched, plan): (&[Component], &Plan),
    interrupt: &Interrupt,
) -> Result<Option<f64>> {
    let Some(proxy) = &environment.mesh.facts().proxy else { return Ok(None) };
    let end = format!("/{CLIENT}/{proxy}");
    let proxy = watched.iter().find(|one| one.name.ends_with(&end));
    let proxy = proxy.context("the client's proxy does not run")?;
    environment.probe(plan, |probe| *probe != Probe::Asking, interrupt).await?;
    let path = environment.watchers.restart(proxy, interrupt).await?;
    let start = environment.watchers.started((&proxy.node, &path), interrupt).await?;
    environment.is_again(proxy, interrupt).await?;
    pass(NOTICE, interrupt).await?;
    let probe = environment.end_probe(interrupt).await?;
    Ok(match (start, probe) {
        (Start::Seen(began), Probe::AnsweredAgain(served)) if served > began => {
            Some(Duration::from_nanos(served - began).as_secs_f64() * 1000.0)
        }
        _ => None,
    })
}
