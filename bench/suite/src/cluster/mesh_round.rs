//! A mesh in a round: the mesh is installed, measured in every scenario, and removed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use leno_program::note;

use super::bench_cluster::{BenchCluster, ClusterRun, at, whose};
use super::install::{self, Installation};
use super::inventory::Inventory;
use super::ledger::{Installed, Ledger};
use super::measure::{self, ClusterCase, ObjectsLeft};
use super::mesh::Mesh;
use super::restart::kills;
use super::restore::take_back;
use super::revisions;
use super::run_lock::{self, Claimant};
use crate::interrupt::Interrupted;
use crate::measurement::records::{Progress, blank, in_turn, is_measured, or_left_out};
use crate::record::Record;
use crate::scenario::{Disturbance, Scenario};

/// A mesh in a round, with all measurements that are made while it is installed.
pub(super) struct MeshRound<'a> {
    pub(super) mesh: Mesh,
    round: u32,
    pub(super) cases: Vec<(&'a Scenario, Option<f64>)>,
}

/// The meshes of all rounds. The baseline is first in each round, and the order of the other meshes changes from round
/// to round. Measurements that have a record are left out.
pub(super) fn mesh_rounds<'a>(
    run: &'a ClusterRun,
    able: &BTreeMap<&'static str, Option<PathBuf>>,
    old: &[Record],
) -> Vec<MeshRound<'a>> {
    let others: Vec<Mesh> =
        run.meshes.iter().copied().filter(|mesh| able.contains_key(mesh.name())).collect();
    let mut rounds = Vec::new();
    for round in 0..run.options.rounds {
        for mesh in in_turn(Mesh::None, &others, round) {
            let all = run.options.scenarios.iter();
            let all = all.flat_map(|one| one.steps().into_iter().map(move |step| (one, step)));
            let cases: Vec<_> = all
                .filter(|(scenario, step)| {
                    let mut record = blank(&run.options, scenario, mesh.name(), round);
                    record.step = *step;
                    !is_measured(old, &record)
                })
                .collect();
            if !cases.is_empty() {
                rounds.push(MeshRound { mesh, round, cases });
            }
        }
    }
    rounds
}

pub(super) struct MeshRoundContext<'a> {
    pub(super) run: &'a ClusterRun,
    pub(super) ground: &'a BenchCluster,
    pub(super) round: &'a MeshRound<'a>,
    pub(super) tool: Option<&'a Path>,
    /// Meshes that were already installed before the run.
    pub(super) beside: &'a [String],
}

impl MeshRoundContext<'_> {
    /// Installs the mesh, measures, and removes it.
    pub(super) async fn carry_out(
        &self,
        ledger: &mut Ledger,
        progress: &mut Progress,
    ) -> Result<()> {
        let refused = self.refused().await?;
        let nothing = refused.iter().all(Option::is_some);
        let installed = match self.round.mesh == Mesh::None || !self.run.install || nothing {
            true => Ok(Ok(())),
            false => self.install(ledger).await,
        };
        let done = match installed {
            Ok(installed) => self.cases((installed, &refused), progress).await,
            Err(error) => Err(error),
        };
        let out = &self.run.options.out;
        let back = take_back(&self.ground.client, (ledger, out)).await;
        match (done, back) {
            (Err(error), Err(left)) => Err(left.context(format!("{error:#}"))),
            (done, back) => done.and(back),
        }
    }

    /// Installs the mesh. The inner result is that of the installation, which goes into the records of the mesh.
    ///
    /// # Errors
    /// If another user has installed the mesh since the run began, or the ledger cannot be written.
    async fn install(&self, ledger: &mut Ledger) -> Result<Result<()>> {
        let MeshRound { mesh, round, .. } = *self.round;
        let (client, out, name) = (&self.ground.client, &self.run.options.out, mesh.name());
        let refused = |what: &str| {
            anyhow!(
                "another user has installed {name}, or a part of it ({what}), since the run began: the bench does not \
                 change it. Remove it and continue with --resume, or measure it with --no-install"
            )
        };
        let there = Inventory::take(client).await?;
        if let Some(first) = there.of(mesh).first() {
            return Err(refused(first));
        }
        ledger.mesh = Some(Installed { mesh, before: there.names(), agents: false, fresh: true });
        ledger.write(out)?;
        if let Some(namespace) = &mesh.facts().namespace {
            let records = whose(out)?;
            let claimant = Claimant { run: &ledger.namespace, records: &records };
            if run_lock::namespace(client, namespace, claimant).await?.is_some() {
                ledger.mesh = None;
                ledger.write(out)?;
                return Err(refused(&format!("Namespace {namespace}")));
            }
        }
        note!("{name}: being installed for round {}", round + 1);
        let mut agents = || {
            ledger.mesh.iter_mut().for_each(|installed| installed.agents = true);
            ledger.write(out)
        };
        let done = self.installation().install(&self.run.values, &mut agents).await;
        if done.is_ok() {
            ledger.mesh.iter_mut().for_each(|installed| installed.fresh = false);
        }
        Ok(done)
    }

    /// For each case, why it cannot be measured here; `None` if it can. This is determined before any object is
    /// created.
    async fn refused(&self) -> Result<Vec<Option<String>>> {
        let mesh = self.round.mesh;
        let pushes = |scenario: &Scenario| {
            mesh != Mesh::None && matches!(scenario.disturbance, Some(Disturbance::Push { .. }))
        };
        let client = &self.ground.client;
        // Linkerd's installation includes the definitions of routes if the cluster has none.
        let brings =
            mesh == Mesh::Linkerd && self.run.install && !revisions::defines_routes(client).await?;
        let lacks = match self.round.cases.iter().any(|(scenario, _)| pushes(scenario)) {
            true if !brings => revisions::lacks_routes(client).await?,
            _ => None,
        };
        let others = "it kills every proxy and the control plane, which may be of use to others: leave --no-install \
                      out, and the mesh is installed for it alone";
        let refused = |(scenario, _): &(&Scenario, Option<f64>)| {
            let unable = mesh.unable(scenario).map(str::to_owned);
            let found = !self.run.install && kills(mesh, scenario);
            let unable = unable.or_else(|| found.then(|| others.to_owned()));
            unable.or_else(|| lacks.clone().filter(|_| pushes(scenario)))
        };
        Ok(self.round.cases.iter().map(refused).collect())
    }

    async fn cases(
        &self,
        (installed, refused): (Result<()>, &[Option<String>]),
        progress: &mut Progress,
    ) -> Result<()> {
        let name = self.round.mesh.name();
        let mut lacks = match installed {
            Err(error) if error.is::<Interrupted>() => return Err(error),
            installed => installed.err().map(|why| format!("{name} cannot be installed: {why:#}")),
        };
        for ((scenario, step), refused) in self.round.cases.iter().zip(refused) {
            let left_out = refused.clone().or_else(|| lacks.clone());
            let is_killed = left_out.is_none() && kills(self.round.mesh, scenario);
            let mut record = self.one(left_out, (scenario, *step)).await?;
            progress.keep(&self.run.options.out, &mut record)?;
            if is_killed {
                lacks = self.is_back(scenario).await?;
            }
        }
        Ok(())
    }

    /// Waits until a mesh is ready again after all its containers were killed. Returns the reason if it is not.
    async fn is_back(&self, scenario: &Scenario) -> Result<Option<String>> {
        let nodes = self.ground.nodes.usable.iter().map(|one| one.node.name.as_str());
        let nodes: Vec<&str> = nodes.collect();
        match self.installation().ready_on(&nodes).await {
            Err(error) if error.is::<Interrupted>() => Err(error),
            ready => Ok(ready.err().map(|why| {
                let (mesh, scenario) = (self.round.mesh.name(), &scenario.name);
                format!("{mesh} is not there again since {scenario} has killed it: {why:#}")
            })),
        }
    }

    async fn one(
        &self,
        left_out: Option<String>,
        (scenario, step): (&Scenario, Option<f64>),
    ) -> Result<Record> {
        let MeshRound { mesh, round, .. } = *self.round;
        let mut record = at(self.run, self.ground, (scenario, mesh, round, step), self.beside);
        if left_out.is_some() {
            record.left_out = left_out;
            return Ok(record);
        }
        let measured = async {
            let case = ClusterCase { scenario, mesh, version: self.version().await?, step };
            let all = (&case, record.clone());
            measure::measure(self.run, self.ground, all).await
        };
        match measured.await {
            Err(error) if error.is::<ObjectsLeft>() => Err(error),
            measured => or_left_out(measured, record, &self.run.options.interrupt),
        }
    }

    fn installation(&self) -> Installation<'_> {
        let BenchCluster { client, target, .. } = self.ground;
        let (mesh, tool, interrupt) = (self.round.mesh, self.tool, &self.run.options.interrupt);
        Installation { client, target, mesh, tool, interrupt }
    }

    /// The version of the installed mesh, which is recorded in addition to the image of its proxies. Empty if it is not
    /// known.
    async fn version(&self) -> Result<String> {
        if !self.round.mesh.is_leno() {
            return Ok(String::new());
        }
        let system = install::system(&self.ground.client, self.round.mesh).await?;
        let system = system.unwrap_or_else(|| leno_charts::NAMESPACE.to_owned());
        let installed = leno_operate::installed(&self.ground.client, &system).await?;
        Ok(installed.map(|one| format!("leno {}", one.version)).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use leno_charts::Values;

    use super::*;
    use crate::measurement::options::Options;
    use crate::measurement::records::tests::options;

    fn a_run(meshes: &[Mesh], scenarios: &[&str]) -> ClusterRun {
        let scenarios = scenarios.iter().map(|name| crate::scenario::find(name).unwrap());
        ClusterRun {
            options: Options { scenarios: scenarios.collect(), ..options(Path::new("")) },
            meshes: meshes.to_vec(),
            image: "leno:1".into(),
            real: None,
            values: Values::defaults(),
            told: Vec::new(),
            install: true,
        }
    }

    #[test]
    fn a_mesh_is_installed_once_a_round_and_the_baseline_is_first_in_each() {
        let run = a_run(&[Mesh::Leno, Mesh::Linkerd], &["http-1k", "faces"]);
        let able = [Mesh::None, Mesh::Leno, Mesh::Linkerd].map(|mesh| (mesh.name(), None));
        let rounds = mesh_rounds(&run, &able.into(), &[]);
        let order: Vec<_> =
            rounds.iter().map(|one| (one.round, one.mesh.name(), one.cases.len())).collect();
        assert_eq!(
            order,
            [
                (0, "none", 6),
                (0, "leno", 6),
                (0, "linkerd", 6),
                (1, "none", 6),
                (1, "linkerd", 6),
                (1, "leno", 6)
            ]
        );
    }

    #[test]
    fn a_mesh_whose_measurements_have_records_is_not_installed_again() {
        let run = a_run(&[Mesh::Leno], &["http-1k"]);
        let able = [Mesh::None, Mesh::Leno].map(|mesh| (mesh.name(), None));
        let old =
            ["none", "leno"].map(|mesh| blank(&run.options, &run.options.scenarios[0], mesh, 0));
        let rounds = mesh_rounds(&run, &able.into(), &old);
        let left: Vec<_> = rounds.iter().map(|one| (one.round, one.mesh.name())).collect();
        assert_eq!(left, [(1, "none"), (1, "leno")]);
    }
}
