//! Everything of a mesh is killed in the middle of the load: its proxies, beside workloads or of nodes, and its control
//! plane. Their kubelets start them again; what is lost meanwhile is for the client's report.

use std::time::Duration;

use anyhow::Result;

use super::mesh::Mesh;
use super::meter::{Role, Watched};
use super::stage::Stage;
use super::wait::pass;
use crate::interrupt::{Interrupt, Interrupted};
use crate::record::{Mark, MarkKind};
use crate::scenario::{Disturbance, Scenario};

/// What was killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Killed {
    /// The containers, as `namespace/pod/container`.
    names: Vec<String>,
    /// Why some of them may live on.
    failed: Option<String>,
}

/// Whether a scenario has everything of a mesh killed.
pub(super) fn kills(mesh: Mesh, scenario: &Scenario) -> bool {
    mesh != Mesh::None && scenario.disturbance == Some(Disturbance::Restart)
}

/// Kills every proxy and the control plane after so long, where that is what the scenario does. Whether it could is for a
/// mark: the client makes load all the same.
///
/// # Errors
/// When somebody interrupts.
pub(super) async fn restart(
    stage: &Stage<'_>,
    after: Duration,
    interrupt: &Interrupt,
) -> Result<Killed> {
    if !kills(stage.mesh, stage.scenario) {
        return Ok(Killed::default());
    }
    pass(after, interrupt).await?;
    let watched = match stage.watched().await {
        Ok(watched) => watched,
        Err(error) => return Ok(Killed::none(&error)),
    };
    let doomed = doomed(&watched);
    match stage.watchers.kill(&doomed, interrupt).await {
        Err(error) if error.is::<Interrupted>() => Err(error),
        done => Ok(Killed::of(&doomed, done)),
    }
}

/// Which containers are killed: what a restart of the mesh ends, and nothing of the workloads' own.
fn doomed(watched: &[Watched]) -> Vec<&Watched> {
    let ends = |one: &&Watched| matches!(one.role, Role::Proxy | Role::Control);
    watched.iter().filter(ends).collect()
}

impl Killed {
    /// Of those that were to be killed, and whether that could be done.
    fn of(doomed: &[&Watched], done: Result<()>) -> Self {
        let failed = match done {
            Ok(()) if doomed.is_empty() => Some("nothing of the mesh was there to kill".to_owned()),
            done => done.err().map(|error| format!("not all was killed: {error:#}")),
        };
        Self { names: doomed.iter().map(|one| one.name.clone()).collect(), failed }
    }

    /// Where it could not be told who was there.
    fn none(error: &anyhow::Error) -> Self {
        Self { names: Vec::new(), failed: Some(format!("nothing was killed: {error:#}")) }
    }

    /// Whether this is why something is no longer as it was, which a text says that begins with its name.
    pub(super) fn explains(&self, broken: &str) -> bool {
        let is_of = |name: &String| {
            broken.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(' '))
        };
        self.names.iter().any(is_of)
    }

    /// What is to be known of a measurement in which not all was killed.
    pub(super) fn mark(&self) -> Option<Mark> {
        let kind = MarkKind::DisturbedLess;
        self.failed.clone().map(|why| Mark { kind, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(role: Role, name: &str) -> Watched {
        Watched { role, name: name.to_owned(), node: "n1".to_owned(), id: "0".repeat(64) }
    }

    #[test]
    fn proxies_and_the_control_plane_are_killed_and_nobody_else() {
        let all = [
            watched(Role::Proxy, "leno-bench-1/s0/leno-proxy"),
            watched(Role::Application, "leno-bench-1/s0/bench"),
            watched(Role::Generator, "leno-bench-1/client/bench"),
            watched(Role::Agent, "leno-system/leno-agent-a/agent"),
            watched(Role::Control, "leno-system/leno-controller-a/controller"),
        ];
        let doomed = doomed(&all);
        assert_eq!(
            doomed.iter().map(|one| one.role).collect::<Vec<_>>(),
            [Role::Proxy, Role::Control]
        );
        let killed = Killed::of(&doomed, Ok(()));
        assert_eq!(killed.mark(), None);
        assert!(killed.explains("leno-bench-1/s0/leno-proxy was restarted meanwhile"));
        for other in [
            "leno-bench-1/s0/bench was restarted meanwhile",
            "leno-bench-1/s0/leno-proxy2 has begun",
        ] {
            assert!(!killed.explains(other), "{other}");
        }
    }

    #[test]
    fn what_lives_on_is_a_mark() {
        let all = [watched(Role::Proxy, "leno-bench-1/s0/leno-proxy")];
        let failed = Killed::of(&doomed(&all), Err(anyhow::anyhow!("n1 is silent")));
        let mark = failed.mark().unwrap();
        assert_eq!(
            (mark.kind, &*mark.why),
            (MarkKind::DisturbedLess, "not all was killed: n1 is silent")
        );
        assert!(Killed::of(&[], Ok(())).mark().unwrap().why.contains("nothing of the mesh"));
        assert_eq!(Killed::default().mark(), None, "without a mesh there is nothing to kill");
    }
}
