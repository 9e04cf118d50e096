//! Measures how long a proxy of a cluster takes from the start of its program until a request is served through it.
//!
//! ```text
//! client:   ok ok ok ✗ ✗ ✗ ✗ ✗ ✗ ✗ ✗ ok        both use CLOCK_MONOTONIC of their node
//! watcher:          kill ....... exec
//! ```

use std::time::Duration;

use anyhow::{Context as _, Result};
use leno_measure::load::Plan;

use super::environment::ClusterEnvironment;
use super::wait::within;
use crate::measurement::usage::Component;
use crate::scenario::CLIENT;

/// How long the client may take to notice a success after its proxy is ready again.
const NOTICE: Duration = Duration::from_secs(10);

/// Kills the client's proxy, which the kubelet starts again, and measures the time until it serves,
/// in milliseconds. `None` if the client has no proxy, or the interruption was too short or too
/// long to be seen. Afterwards the pods are ready again, and containers have other IDs.
///
/// # Errors
/// If the proxy cannot be killed or does not run again in time.
pub(super) async fn start_up(
    environment: &ClusterEnvironment<'_>,
    (watched, plan): (&[Component], &Plan),
) -> Result<Option<f64>> {
    let Some(proxy) = &environment.mesh.facts().proxy else { return Ok(None) };
    let end = format!("/{CLIENT}/{proxy}");
    let proxy = watched.iter().find(|one| one.name.ends_with(&end));
    let proxy = proxy.context("the client's proxy does not run")?;
    let mut probe = environment.probe(plan).await?;
    let began = environment.watchers.restart(proxy).await?;
    environment.runs_again(proxy).await?;
    let served = within(NOTICE, probe.next::<u64>()).await.ok();
    // The generator in the client's pod continues to probe until it gets its next task.
    drop(probe);
    environment.answers().await?;
    Ok(began
        .zip(served)
        .filter(|(began, served)| served > began)
        .map(|(began, served)| Duration::from_nanos(served - began).as_secs_f64() * 1000.0))
}
