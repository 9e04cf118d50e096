//! What everything of a measurement uses, as the kubelets count it.
//!
//! ```text
//! kubelet:   look ........ look ........ look ........ look       every 10 to 20 s, at each container
//! load:               [  A  ==== load ====  B  ]
//! ```
//! A kubelet looks at a container now and then, and gives its last look to whoever asks. So a measurement lies
//! between two looks at every container: one from after all was quiet (A) and one from after the load (B). What
//! an idle proxy uses in between is part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use leno_operate::Error;
use serde::Deserialize;

use super::manifests::CONTAINER;
use super::mesh::Mesh;
use crate::lab::{CLIENT, NEIGHBOUR};
use crate::meter::Used;
use crate::record::{CpuMs, RssKib};
use crate::statistics::median;

/// How long a kubelet may take for its figures.
const ANSWER: Duration = Duration::from_secs(20);

/// Who uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    /// Proxies, beside workloads or of nodes.
    Proxy,
    Application,
    Generator,
    /// Who floods another service, that service, and the proxies of both.
    Neighbour,
    /// What captures traffic on each node.
    Agent,
    Control,
}

impl Role {
    /// Whether it carries none of the load.
    fn is_beside(self) -> bool {
        matches!(self, Self::Agent | Self::Control)
    }
}

/// Who is who in a measurement.
#[derive(Clone, Debug)]
pub(super) struct Roles {
    pub(super) namespace: String,
    pub(super) mesh: Mesh,
    /// The namespace of the mesh itself.
    pub(super) system: Option<String>,
    /// The service that is flooded.
    pub(super) flooded: Option<String>,
    /// The nodes that are asked.
    pub(super) nodes: BTreeSet<String>,
}

/// A container, or a node as a whole, at the kubelet's last look.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Look {
    /// When, by the node's clock, in seconds.
    at: i64,
    /// CPU time since its start.
    cpu_ms: f64,
    memory_kib: u64,
}

/// The last looks at everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// By role, and `namespace/pod/container`.
    containers: BTreeMap<(Role, String), Look>,
    nodes: BTreeMap<String, Look>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    node: NodeStats,
    #[serde(default)]
    pods: Vec<PodStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStats {
    node_name: String,
    cpu: Option<CpuStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStats {
    pod_ref: PodRef,
    #[serde(default)]
    containers: Vec<ContainerStats>,
}

#[derive(Deserialize)]
struct PodRef {
    name: String,
    namespace: String,
}

#[derive(Deserialize)]
struct ContainerStats {
    name: String,
    cpu: Option<CpuStats>,
    memory: Option<MemoryStats>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CpuStats {
    time: Time,
    usage_core_nano_seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MemoryStats {
    working_set_bytes: Option<u64>,
}

impl CpuStats {
    fn look(&self, memory: Option<&MemoryStats>) -> Option<Look> {
        let memory = memory.and_then(|memory| memory.working_set_bytes).unwrap_or_default();
        Some(Look {
            at: self.time.0.as_second(),
            cpu_ms: self.usage_core_nano_seconds? as f64 / 1e6,
            memory_kib: memory / 1024,
        })
    }
}

impl Roles {
    /// Who a container of a pod is; none where it has nothing to do with the measurement.
    fn of(&self, namespace: &str, pod: &str, container: &str) -> Option<Role> {
        if namespace != self.namespace {
            let ours = self.system.as_deref() == Some(namespace);
            return ours.then(|| self.mesh.role_of(pod));
        }
        let ours = container == CONTAINER;
        Some(match pod {
            NEIGHBOUR => Role::Neighbour,
            _ if Some(pod) == self.flooded.as_deref() => Role::Neighbour,
            _ if !ours => Role::Proxy,
            CLIENT => Role::Generator,
            _ => Role::Application,
        })
    }

    /// Asks the kubelets of all nodes.
    ///
    /// # Errors
    /// When one does not answer, or may not be asked, which names the right that is missing.
    pub(super) async fn read(&self, client: &Client) -> Result<Reading> {
        let mut reading = Reading::default();
        for node in &self.nodes {
            let text = summary(client, node).await?;
            let what = || format!("the kubelet of node {node} says nothing that is understood");
            self.add(&serde_json::from_str(&text).with_context(what)?, &mut reading);
        }
        Ok(reading)
    }

    fn add(&self, summary: &Summary, reading: &mut Reading) {
        let node = summary.node.cpu.as_ref().and_then(|cpu| cpu.look(None));
        reading.nodes.extend(node.map(|look| (summary.node.node_name.clone(), look)));
        for PodStats { pod_ref, containers } in &summary.pods {
            for one in containers {
                let role = self.of(&pod_ref.namespace, &pod_ref.name, &one.name);
                let look = one.cpu.as_ref().and_then(|cpu| cpu.look(one.memory.as_ref()));
                let name = format!("{}/{}/{}", pod_ref.namespace, pod_ref.name, one.name);
                reading.containers.extend(role.zip(look).map(|(role, look)| ((role, name), look)));
            }
        }
    }
}

async fn summary(client: &Client, node: &str) -> Result<String> {
    let request = http::Request::get(format!("/api/v1/nodes/{node}/proxy/stats/summary"));
    let request = request.body(Vec::new()).context("a node's name is part of a path")?;
    let what = format!("ask the kubelet of node {node} for its figures");
    match tokio::time::timeout(ANSWER, client.request_text(request)).await {
        Ok(answer) => Ok(answer.map_err(Error::api(what))?),
        Err(_) => Err(Error::Late(what, ANSWER.as_secs()).into()),
    }
}

impl Reading {
    /// What of `wanted`, workloads with their containers as `workload/container`, the kubelets have not seen yet.
    pub(super) fn lacks<'a>(&self, wanted: &'a [String]) -> Vec<&'a str> {
        let seen = |one: &str| {
            let end = format!("/{one}");
            self.containers.keys().any(|(_, name)| name.ends_with(&end))
        };
        wanted.iter().map(String::as_str).filter(|one| !seen(one)).collect()
    }

    /// What has not been looked at again since an earlier reading.
    pub(super) fn stale(&self, earlier: &Self) -> Vec<&str> {
        let same =
            |look: &Look, earlier: Option<&Look>| earlier.is_some_and(|one| one.at == look.at);
        let containers =
            self.containers.iter().filter(|(key, look)| same(look, earlier.containers.get(*key)));
        let nodes = self.nodes.iter().filter(|(key, look)| same(look, earlier.nodes.get(*key)));
        let containers = containers.map(|((_, name), _)| name.as_str());
        containers.chain(nodes.map(|(name, _)| name.as_str())).collect()
    }

    /// How many proxies there are.
    pub(super) fn proxies(&self) -> u32 {
        u32::try_from(self.of(Role::Proxy).count()).unwrap_or(u32::MAX)
    }

    /// Memory of all proxies, and of the control plane.
    pub(super) fn memory_kib(&self) -> (u64, u64) {
        let sum = |role| self.of(role).map(|look| look.memory_kib).sum();
        (sum(Role::Proxy), sum(Role::Control))
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Look> {
        self.containers.iter().filter(move |((of, _), _)| *of == role).map(|(_, look)| look)
    }

    /// What was used between an earlier reading and this one.
    ///
    /// # Errors
    /// When a container has ended or begun in between: its counters are not one sequence.
    pub(super) fn since(&self, earlier: &Self) -> Result<Used> {
        let mut cpu = CpuMs::default();
        for (key, look) in &self.containers {
            let Some(before) = earlier.containers.get(key) else {
                // Control planes have tasks that come and go.
                if key.0.is_beside() {
                    continue;
                }
                bail!("{} has begun meanwhile", key.1);
            };
            if look.cpu_ms < before.cpu_ms {
                bail!("{} was restarted meanwhile", key.1);
            }
            let of = match key.0 {
                Role::Proxy => &mut cpu.proxies,
                Role::Application => &mut cpu.application,
                Role::Generator => &mut cpu.generator,
                Role::Neighbour => &mut cpu.neighbour,
                Role::Agent => &mut cpu.agent,
                Role::Control => &mut cpu.control,
            };
            *of += look.cpu_ms - before.cpu_ms;
        }
        let has_ended =
            |key: &&(Role, String)| !key.0.is_beside() && !self.containers.contains_key(*key);
        if let Some((_, name)) = earlier.containers.keys().find(has_ended) {
            bail!("{name} has ended meanwhile");
        }
        let mut wall = 0;
        for (name, look) in &self.nodes {
            let Some(before) = earlier.nodes.get(name) else { continue };
            cpu.machine += (look.cpu_ms - before.cpu_ms).max(0.0);
            wall = (look.at - before.at).max(wall);
        }
        let wall = Duration::from_secs(wall.unsigned_abs());
        Ok(Used { cpu, wall, ..Used::default() })
    }

    /// A line of the file of samples.
    pub(super) fn line(&self, elapsed: Duration) -> String {
        let (proxies, control) = self.memory_kib();
        let cpu = |role| self.of(role).map(|look| look.cpu_ms).sum::<f64>();
        let (of_proxies, of_applications) = (cpu(Role::Proxy), cpu(Role::Application));
        let elapsed = elapsed.as_millis();
        format!("{elapsed},{proxies},{control},{of_proxies:.1},{of_applications:.1}\n")
    }
}

/// Memory of the proxies and of the control plane over the readings under load.
pub(super) fn memory(idle: (u64, u64), readings: &[Reading]) -> (RssKib, RssKib) {
    let of = |idle: u64, kib: Vec<f64>| {
        let peak = kib.iter().fold(0.0, |most, one| f64::max(most, *one));
        RssKib { idle, load: median(&kib) as u64, peak: peak as u64 }
    };
    let pairs = readings.iter().map(Reading::memory_kib);
    let (proxies, control) = pairs.map(|(one, two)| (one as f64, two as f64)).unzip();
    (of(idle.0, proxies), of(idle.1, control))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(mesh: Mesh) -> Roles {
        Roles {
            namespace: "leno-bench-1".into(),
            mesh,
            system: mesh.namespace().map(str::to_owned),
            flooded: Some("s1".into()),
            nodes: BTreeSet::new(),
        }
    }

    /// A kubelet's answer: pods as `namespace/pod/container`, each with CPU in ms and memory in KiB.
    fn reading(roles: &Roles, second: u32, pods: &[(&str, u64, u64)]) -> Reading {
        let cpu = |ms: u64| {
            format!(
                r#"{{"time": "2026-01-01T00:00:{second:02}Z", "usageCoreNanoSeconds": {}}}"#,
                ms * 1_000_000
            )
        };
        let pods: Vec<String> = pods
            .iter()
            .map(|(name, ms, kib)| {
                let [namespace, pod, container] = name.split('/').collect::<Vec<_>>()[..] else {
                    panic!("{name}")
                };
                format!(
                    r#"{{"podRef": {{"name": "{pod}", "namespace": "{namespace}", "uid": "u"}}, "containers": [
                    {{"name": "{container}", "startTime": null, "cpu": {}, "memory": {{"workingSetBytes": {}}}}}]}}"#,
                    cpu(*ms),
                    kib * 1024
                )
            })
            .collect();
        let machine = cpu(u64::from(second) * 1500);
        let text = format!(
            r#"{{"node": {{"nodeName": "n1", "cpu": {machine}, "memory": {{}}}}, "pods": [{}]}}"#,
            pods.join(",")
        );
        let mut reading = Reading::default();
        roles.add(&serde_json::from_str(&text).unwrap(), &mut reading);
        reading
    }

    #[test]
    fn what_is_used_between_two_looks_is_kept_apart_by_who_used_it() {
        let roles = roles(Mesh::Leno);
        let at = |second, factor: u64| {
            reading(
                &roles,
                second,
                &[
                    ("leno-bench-1/client/bench", 10 * factor, 1),
                    ("leno-bench-1/client/leno-proxy", 20 * factor, 100 * factor),
                    ("leno-bench-1/s0/bench", 30 * factor, 1),
                    ("leno-bench-1/s0/leno-proxy", 40 * factor, 100),
                    ("leno-bench-1/s1/leno-proxy", 50 * factor, 1000),
                    ("leno-bench-1/neighbour/bench", 60 * factor, 1000),
                    ("leno-system/leno-agent-abcde/agent", 70 * factor, 1000),
                    ("leno-system/leno-controller-1-a/controller", 80 * factor, 50),
                    ("shop/web/leno-proxy", 90 * factor, 1000),
                ],
            )
        };
        let (before, after) = (at(10, 1), at(20, 3));
        let used = after.since(&before).unwrap();
        let cpu = used.cpu;
        assert_eq!((cpu.generator, cpu.proxies, cpu.application), (20.0, 120.0, 60.0));
        assert_eq!((cpu.neighbour, cpu.agent, cpu.control), (220.0, 140.0, 160.0));
        assert_eq!((cpu.machine, used.wall), (15_000.0, Duration::from_secs(10)));
        assert_eq!((after.proxies(), after.memory_kib()), (2, (400, 50)));
        let (proxies, control) = memory(before.memory_kib(), &[before.clone(), after.clone()]);
        assert_eq!((proxies.idle, proxies.load, proxies.peak), (200, 300, 400));
        assert_eq!((control.idle, control.peak), (50, 50));
        assert_eq!(after.line(Duration::from_secs(2)), "2000,400,50,180.0,90.0\n");
        assert_eq!(before.stale(&before).len(), 9, "eight containers and the node");
        assert_eq!(after.stale(&before), [""; 0]);
        let wanted = ["client/leno-proxy".to_owned(), "s2/bench".to_owned()];
        assert_eq!(after.lacks(&wanted), ["s2/bench"]);
    }

    #[test]
    fn a_container_that_ends_or_begins_meanwhile_has_no_figures() {
        let roles = roles(Mesh::Leno);
        let one = ("leno-bench-1/client/leno-proxy", 20, 1);
        let before = reading(&roles, 10, &[one]);
        let since = |pods: &[(&str, u64, u64)]| {
            reading(&roles, 20, pods).since(&before).unwrap_err().to_string()
        };
        assert_eq!(since(&[]), "leno-bench-1/client/leno-proxy has ended meanwhile");
        assert!(
            since(&[("leno-bench-1/client/leno-proxy", 2, 1)]).ends_with("was restarted meanwhile")
        );
        assert!(
            since(&[one, ("leno-bench-1/s0/leno-proxy", 1, 1)]).ends_with("has begun meanwhile")
        );
    }

    #[test]
    fn proxies_of_nodes_are_proxies() {
        let roles = roles(Mesh::IstioAmbient);
        assert_eq!(roles.of("istio-system", "ztunnel-x2x", "istio-proxy"), Some(Role::Proxy));
        assert_eq!(roles.of("istio-system", "istio-cni-node-x", "install-cni"), Some(Role::Agent));
        assert_eq!(roles.of("istio-system", "istiod-1", "discovery"), Some(Role::Control));
        assert_eq!(roles.of("kube-system", "kube-proxy", "kube-proxy"), None);
    }
}
