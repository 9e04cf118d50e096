//! Gathers a bug report: one archive, without secrets.

mod archive;
mod gather;
mod object;
mod observed;
mod scrub;
mod tail;

use std::collections::BTreeSet;
use std::path::PathBuf;

use leno_kube::Client;
use serde::Serialize;

use crate::{ClusterHistory, Error, after, installed, namespaces};
pub use archive::Archive;
use gather::{ReportContent, ReportCoverage};

/// What goes into a report.
#[derive(Clone, Debug)]
pub struct ReportScope {
    /// The namespaces whose workloads are included; if empty, all namespaces that have proxies.
    pub namespaces: Vec<String>,
    /// The namespace of the control plane.
    pub system: String,
    /// Most proxies whose state and log are included. Those that are not ready are included first.
    pub proxies: usize,
    /// The file to write; it must not exist.
    pub file: PathBuf,
}

/// The summary of a report.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    leno: &'a str,
    kubernetes: Option<String>,
    installed: Option<String>,
    /// The values of the installation, as JSON.
    values: Option<String>,
    namespaces: &'a BTreeSet<String>,
    meshed_pods: usize,
    proxies: usize,
    /// What could not be included, and the reason.
    missing: &'a [String],
}

/// Writes a report; returns what could not be gathered. `history` is queried with the user's own rights.
///
/// # Errors
/// The file cannot be written, a namespace does not exist, or pods cannot be listed. If anything else cannot be
/// read, the report is written without it and says so.
pub async fn report(
    client: &Client,
    history: &ClusterHistory,
    wanted: &ReportScope,
) -> Result<Vec<String>, Error> {
    let failed = |error| Error::File(wanted.file.clone(), error);
    let place = ReportCoverage::find(client, wanted).await?;
    let archive = Archive::create(&wanted.file).map_err(failed)?;
    let mut gathered = ReportContent::new(archive);
    gathered.objects(client, &place).await.map_err(failed)?;
    gathered.events(client, &place).await.map_err(failed)?;
    gathered.logs(client, &place).await.map_err(failed)?;
    gathered.states(client, &place).await.map_err(failed)?;
    gathered.observed(history, wanted).await.map_err(failed)?;
    let version = client.apiserver_version().await;
    let kubernetes = gathered.or_missing(version.map_err(Error::api("get /version")));
    gathered.or_missing(namespaces::check(client, &wanted.system).await);
    let there = gathered.or_missing(installed(client, &wanted.system).await).flatten();
    let checks = gathered.or_missing(after(client, &wanted.system).await);
    gathered.archive.found("check.json", &checks).map_err(failed)?;
    let missing = gathered.missing.clone();
    let summary = Summary {
        leno: env!("CARGO_PKG_VERSION"),
        kubernetes: kubernetes.map(|version| version.git_version),
        installed: there.as_ref().map(|there| there.version.clone()),
        values: there.map(|there| there.values),
        namespaces: &place.namespaces,
        meshed_pods: place.meshed,
        proxies: place.proxies.len(),
        missing: &missing,
    };
    gathered.archive.found("report.json", &summary).map_err(failed)?;
    gathered.archive.finish().map_err(failed)?;
    Ok(missing)
}
