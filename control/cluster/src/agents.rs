//! Waits until the agents of all nodes report which pods node proxies serve.
//!
//! Agents of an earlier release do not report. During an upgrade, pods that they serve would count as not served, and other
//! proxies would send them plaintext.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use leno_kube::{Api, Client};
use tokio::time::{Instant, sleep};

/// The DaemonSet of agents.
const AGENT: &str = "leno-agent";
/// The variable in its template by which agents report.
const REPORTS: &str = "LENO_REPORT_SERVED";
/// How often the DaemonSet is read, until the agents report.
const LOOK: Duration = Duration::from_secs(2);
/// Longest wait for agents of the present template that are not ready, as on a node that is down.
const PATIENCE: Duration = Duration::from_secs(120);

/// How far the agents are updated to ones that report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentRollout {
    /// Some are of an earlier release, or none reports.
    Earlier,
    /// All report once they are ready.
    Updated,
    /// All are ready.
    Ready,
}

/// Returns once the agents of all nodes report, which an agent has done for its pods when it is ready.
pub async fn until_agents_report(client: Client, namespace: &str) {
    let agents: Api<DaemonSet> = Api::namespaced(client, namespace);
    let mut updated = None;
    loop {
        match agents.get_opt(AGENT).await.map(|found| found.as_ref().map(rollout)) {
            Ok(Some(AgentRollout::Ready)) => return,
            Ok(Some(AgentRollout::Updated)) => {
                if updated.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return;
                }
            }
            Ok(Some(AgentRollout::Earlier) | None) => updated = None,
            Err(error) => {
                tracing::debug!(%error, "whether agents report is not known; trying again");
            }
        }
        sleep(LOOK).await;
    }
}

fn rollout(agents: &DaemonSet) -> AgentRollout {
    let pod = agents.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut variables = pod
        .into_iter()
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| container.env.iter().flatten());
    let reports = variables.any(|one| one.name == REPORTS && one.value.as_deref() == Some("true"));
    let Some(status) = agents.status.as_ref().filter(|_| reports) else {
        return AgentRollout::Earlier;
    };
    let wanted = status.desired_number_scheduled;
    let is_current = status.observed_generation == agents.metadata.generation
        && status.updated_number_scheduled.unwrap_or_default() >= wanted;
    match status.number_ready >= wanted {
        _ if !is_current => AgentRollout::Earlier,
        true => AgentRollout::Ready,
        false => AgentRollout::Updated,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of(value: &str, observed: i64, (updated, ready): (Value, i32)) -> AgentRollout {
        let container = json!({"name": "agent", "env": [{"name": REPORTS, "value": value}]});
        let agents = json!({
            "metadata": {"name": AGENT, "generation": 2},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
            "status": {"observedGeneration": observed, "desiredNumberScheduled": 3, "currentNumberScheduled": 3,
                "numberMisscheduled": 0, "updatedNumberScheduled": updated, "numberReady": ready},
        });
        rollout(&serde_json::from_value(agents).unwrap())
    }

    #[test]
    fn agents_report_once_all_are_of_a_template_that_says_so_and_ready() {
        assert_eq!(of("true", 2, (json!(3), 3)), AgentRollout::Ready);
        assert_eq!(of("true", 2, (json!(3), 2)), AgentRollout::Updated);
        assert_eq!(of("true", 2, (json!(2), 3)), AgentRollout::Earlier, "a node has one of before");
        assert_eq!(of("true", 1, (json!(3), 3)), AgentRollout::Earlier, "the counts are of before");
        assert_eq!(of("true", 2, (Value::Null, 3)), AgentRollout::Earlier);
        assert_eq!(of("false", 2, (json!(3), 3)), AgentRollout::Earlier);
        assert_eq!(rollout(&DaemonSet::default()), AgentRollout::Earlier);
    }
}
