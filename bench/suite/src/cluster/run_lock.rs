//! Locks that a run takes, so that no other run interferes: the directory of its records, the cluster, and the
//! namespaces of the meshes that it installs.
//!
//! The lock on the cluster is a namespace that is created, not applied: if two runs create it at once, one of them
//! fails. An annotation on the namespace names its run, so that no run reverts the changes of another.

use std::fs::{File, TryLockError};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Namespace;
use leno_kube::api::PostParams;
use leno_kube::{Api, Client, ResourceExt as _};
use leno_operate::Error;
use serde_json::json;

use super::names::{MANAGED, RECORDS, RUN};
use super::namespace::{self, delete_exactly};

/// The annotation that names the run that created a namespace.
const OF: &str = "leno.dev/bench-run";
/// The field manager that writes this annotation. The annotation is kept when another manager applies the namespace
/// later.
const CLAIMER: &str = "leno-bench-claim";
/// A namespace that exists as long as its cluster.
const FIRST: &str = "kube-system";

/// A run that takes a lock, and the place of its records.
#[derive(Clone, Copy)]
pub(super) struct Claimant<'a> {
    pub(super) run: &'a str,
    pub(super) records: &'a str,
}

/// Locks a directory until the returned file is dropped or the process ends.
pub(super) fn directory(out: &Path) -> Result<File> {
    let file = File::open(out).with_context(|| {
        format!("cannot open directory {}: pass the --out of a run", out.display())
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::Error(source)) => Err(source).with_context(|| {
            format!("cannot lock directory {}: use a directory on a local disk", out.display())
        }),
        Err(TryLockError::WouldBlock) => Err(anyhow!(
            "a run with its records in {} is under way: let it end, or choose another --out",
            out.display()
        )),
    }
}

/// The identity of a cluster, which does not depend on the cluster's name in a kubeconfig: the UID of its oldest
/// namespace.
pub(super) async fn identity(client: &Client) -> Result<String> {
    let first = namespace::get(client, FIRST).await?;
    let uid = first.and_then(|first| first.uid());
    uid.with_context(|| format!("namespace {FIRST} has no UID"))
}

/// Creates a namespace that belongs to the run. Returns the existing one if another client has
/// created it already.
pub(super) async fn namespace(
    client: &Client,
    name: &str,
    Claimant { run, records }: Claimant<'_>,
) -> Result<Option<Namespace>, Error> {
    let all: Api<Namespace> = Api::all(client.clone());
    let mut one = json!({"metadata": {"name": name, "annotations": {OF: run, RECORDS: records}}});
    if name == RUN {
        one["metadata"]["labels"] = json!({MANAGED.0: MANAGED.1});
    }
    let one: Namespace = serde_json::from_value(one).expect("it is a namespace");
    let params = PostParams { field_manager: Some(CLAIMER.to_owned()), ..PostParams::default() };
    match all.create(&params, &one).await {
        Ok(_) => Ok(None),
        Err(leno_kube::Error::Api(status)) if status.is_already_exists() => {
            Ok(Some(namespace::get(client, name).await?.unwrap_or(one)))
        }
        Err(error) => Err(Error::api(format!("create Namespace {name}"))(error)),
    }
}

/// Whether a namespace was created by this run; `None` if it does not exist.
pub(super) async fn is_of(client: &Client, name: &str, run: &str) -> Result<Option<bool>, Error> {
    Ok(namespace::get(client, name).await?.map(|there| is_by(&there, run)))
}

fn is_by(there: &Namespace, run: &str) -> bool {
    there.annotations().get(OF).is_some_and(|of| of == run)
}

/// Releases the cluster. Does nothing if the lock belongs to another run, or another run takes it at the same time.
pub(super) async fn release(client: &Client, run: &str) -> Result<()> {
    match namespace::get(client, RUN).await? {
        Some(there) if is_by(&there, run) => delete_exactly(client, &there).await,
        _ => Ok(()),
    }
}

/// The error for a namespace that already exists; it names the run to which the namespace belongs.
pub(super) fn refused(there: &Namespace) -> Result<()> {
    let of = there.annotations().get(RECORDS);
    let of = of.map_or("a directory that it does not name", String::as_str);
    bail!(
        "namespace {} belongs to a run with its records in {of}: let it end; if it was killed, run \
         leno bench clean with that directory",
        there.name_any()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_by_one_run() {
        let out = tempfile::tempdir().unwrap();
        let held = directory(out.path()).unwrap();
        let refused = directory(out.path()).unwrap_err().to_string();
        assert!(refused.contains("is under way") && refused.contains("--out"), "{refused}");
        drop(held);
        drop(directory(out.path()).unwrap());
        let missing = directory(&out.path().join("x")).unwrap_err().to_string();
        assert!(missing.contains("pass the --out of a run"), "{missing}");
    }
}
