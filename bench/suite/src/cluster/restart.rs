//! Kills all containers of a mesh in the middle of the load: its proxies, whether they run beside workloads or on
//! nodes, and its control plane. The kubelets start them again. Requests that fail meanwhile are in the client's
//! report.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::environment::ClusterEnvironment;
use super::mesh::Mesh;
use crate::measurement::usage::{Component, Role};
use crate::record::{Mark, MarkKind};
use crate::scenario::{Disturbance, Scenario};

/// By how much a kill may be late, compared with the planned moment of the load.
const LATE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct KillResult {
    /// The killed containers, as `namespace/pod/container`.
    names: Vec<String>,
    /// A mark, if some of the containers may still run.
    pub(super) mark: Option<Mark>,
}

pub(super) fn kills(mesh: Mesh, scenario: &Scenario) -> bool {
    mesh != Mesh::None && scenario.disturbance == Some(Disturbance::Restart)
}

/// Kills every proxy and the control plane at the given time, if the scenario does so. The
/// containers are listed before that time. A failure only leads to a mark, because the load runs
/// on.
pub(super) async fn restart(environment: &ClusterEnvironment<'_>, due: Instant) -> KillResult {
    if !kills(environment.mesh, environment.scenario) {
        return KillResult::default();
    }
    let doomed = match chosen(environment).await {
        Err(error) => return KillResult::of(&[], Err(error), Duration::ZERO),
        Ok(doomed) => doomed,
    };
    tokio::time::sleep(due.saturating_duration_since(Instant::now())).await;
    let again = async || chosen(environment).await;
    let done = environment.watchers.kill(&doomed, again).await;
    KillResult::of(&doomed, done, due.elapsed())
}

/// The running containers that must be killed: those parts of the mesh that the scenario restarts, in namespaces that
/// the run has created.
async fn chosen(environment: &ClusterEnvironment<'_>) -> Result<Vec<Component>> {
    let mesh = environment.mesh;
    if let Some(other) = environment.foreign_namespace().await? {
        let mesh = mesh.name();
        bail!("{mesh} is in namespace {other}, which this run has not created: remove it there");
    }
    let own = [Some(&*environment.roles.namespace), mesh.facts().namespace.as_deref()];
    Ok(doomed(environment.watched().await?, &own))
}

/// The containers to kill, which are in these namespaces; never those of the workloads themselves.
fn doomed(mut watched: Vec<Component>, own: &[Option<&str>]) -> Vec<Component> {
    watched.retain(|one| {
        let namespace = one.name.split('/').next();
        matches!(one.role, Role::Proxy | Role::Control) && own.contains(&namespace)
    });
    watched
}

impl KillResult {
    /// The result for these containers: whether killing them succeeded, and by how much it was late at most.
    fn of(doomed: &[Component], done: Result<()>, late: Duration) -> Self {
        let failed = match done {
            Err(error) => Some(format!("not all was killed: {error:#}")),
            Ok(()) if doomed.is_empty() => Some("nothing of the mesh was there to kill".to_owned()),
            Ok(()) if late > LATE => {
                let late = late.as_secs_f64();
                Some(format!("it was killed up to {late:.1} s late, or after the load"))
            }
            Ok(()) => None,
        };
        Self {
            names: doomed.iter().map(|one| one.name.clone()).collect(),
            mark: failed.map(|why| Mark::new(MarkKind::DisturbedLess, why)),
        }
    }

    /// Whether the kill is the reason for a change. The text describes the change, and starts with the container's
    /// name.
    pub(super) fn explains(&self, broken: &str) -> bool {
        self.names.iter().any(|name| broken.split(' ').next() == Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(role: Role, name: &str) -> Component {
        Component { role, name: name.to_owned(), node: "n1".to_owned(), id: "0".repeat(64) }
    }

    #[test]
    fn only_proxies_and_the_control_plane_are_killed() {
        let all = [
            watched(Role::Proxy, "leno-bench-1/s0/leno-proxy"),
            watched(Role::Application, "leno-bench-1/s0/bench"),
            watched(Role::Generator, "leno-bench-1/client/bench"),
            watched(Role::Agent, "leno-system/leno-agent-a/agent"),
            watched(Role::Control, "leno-system/leno-controller-a/controller"),
            watched(Role::Control, "elsewhere/leno-controller-a/controller"),
            watched(Role::Proxy, "leno-system-2/ztunnel-a/istio-proxy"),
        ];
        let own = [Some("leno-bench-1"), Some("leno-system")];
        let doomed = doomed(all.into(), &own);
        assert_eq!(
            doomed.iter().map(|one| one.role).collect::<Vec<_>>(),
            [Role::Proxy, Role::Control]
        );
        let killed = KillResult::of(&doomed, Ok(()), LATE);
        assert_eq!(killed.mark, None);
        assert!(killed.explains("leno-bench-1/s0/leno-proxy was restarted meanwhile"));
        for other in [
            "leno-bench-1/s0/bench was restarted meanwhile",
            "leno-bench-1/s0/leno-proxy2 has begun",
        ] {
            assert!(!killed.explains(other), "{other}");
        }
    }

    #[test]
    fn an_incomplete_kill_is_a_mark() {
        let all = [watched(Role::Proxy, "leno-bench-1/s0/leno-proxy")];
        let silent = Err(anyhow::anyhow!("n1 is silent"));
        for (doomed, done, late, why) in [
            (&all[..], silent, LATE * 2, "not all was killed: n1 is silent"),
            (&[], Ok(()), LATE, "nothing of the mesh was there to kill"),
            (&all, Ok(()), LATE * 7 / 2, "it was killed up to 3.5 s late, or after the load"),
        ] {
            let mark = KillResult::of(doomed, done, late).mark;
            assert_eq!(mark, Some(Mark::new(MarkKind::DisturbedLess, why)));
        }
        assert!(MarkKind::DisturbedLess.invalidates());
    }
}
