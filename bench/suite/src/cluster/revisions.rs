//! Changes a mesh's configuration during the load: a route, or the endpoints of a service, applied as users do.
//!
//! ```text
//! load:       ==========================
//! revision:      1   2   3      4   5         one per period; a late write delays the next
//! ```
//! Endpoints are written as a slice of the suite, for a service without selector. So no controller delays them before
//! they reach the proxies of the nodes and of the meshes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use leno_kube::api::{ListParams, LogParams};
use leno_kube::{Api, Client, ResourceExt as _};
use leno_operate::Error;
use serde_json::{Value, json};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::mesh::Mesh;
use super::names::{CONTAINER, MANAGED, MANAGER, PORT_NAME};
use crate::application::PORT;
use crate::record::{Mark, MarkKind};
use crate::revision::{self, CHURNING};
use crate::scenario::Scenario;

/// The time limit of a write. If the API server is slower than this, the write does not disturb the mesh as planned.
const WRITTEN: Duration = Duration::from_secs(10);
/// The time limit for reading the log of an application.
const READ: Duration = Duration::from_secs(30);
/// The largest log that is read, in bytes. It has room for more lines than there are revisions in an hour.
const LOG: i64 = 16 * 1024 * 1024;
/// The label that names the manager of a slice. No controller of the cluster touches slices of
/// another manager.
const SLICE_OF: (&str, &str) = ("endpointslice.kubernetes.io/managed-by", MANAGER);
const ROUTES: &str = "httproutes.gateway.networking.k8s.io";
/// The command that installs the Gateway API.
const BRING_ROUTES: &str = "kubectl apply --server-side -f \
    https://github.com/kubernetes-sigs/gateway-api/releases/latest/download/standard-install.yaml";

/// The configuration that changes during the load, one revision after the other.
#[derive(Debug)]
pub(super) struct Revisions<'a> {
    namespace: &'a str,
    scenario: &'a Scenario,
    period: Duration,
    /// The endpoints of the services, in the order of the services; empty unless the scenario changes endpoints.
    endpoints: Vec<Value>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RevisionResults {
    pub(super) revisions: u64,
    /// The number of failed writes, and the error of the last one.
    failed: Option<(u64, String)>,
    /// The number of routes that the application has reported, or why this number is unknown.
    arrived: Option<Result<u64, String>>,
}

impl<'a> Revisions<'a> {
    /// The revisions of a scenario under a mesh; `None` if no configuration changes. Without a mesh no program reads
    /// routes, but nodes still read endpoints.
    pub(super) fn of(mesh: Mesh, scenario: &'a Scenario, namespace: &'a str) -> Option<Self> {
        let period = scenario.disturbance?.period()?;
        let taken = mesh != Mesh::None || scenario.churns();
        taken.then_some(Self { namespace, scenario, period, endpoints: Vec::new() })
    }

    pub(super) fn serve(&mut self, pods: &[Pod]) -> Result<()> {
        let endpoint = |nth: u32| {
            let name = self.scenario.service(nth);
            let pod = pods.iter().find(|pod| pod.name_any() == name);
            pod.and_then(endpoint).with_context(|| format!("pod {name} has no address over IPv4"))
        };
        self.endpoints = (0..self.scenario.services).map(endpoint).collect::<Result<_>>()?;
        Ok(())
    }

    /// The object of a revision. The first revision is number 0.
    pub(super) fn object(&self, revision: u64) -> Value {
        match self.scenario.churns() {
            true => self.slice(revision),
            false => revision::route(self.namespace, self.scenario, revision),
        }
    }

    fn slice(&self, revision: u64) -> Value {
        let there =
            self.scenario.disturbance.map(|one| one.endpoints(self.scenario.services, revision));
        let there = there.into_iter().flatten();
        let endpoints: Vec<&Value> =
            there.filter_map(|nth| self.endpoints.get(nth as usize)).collect();
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": CHURNING, "namespace": self.namespace, "labels": {
            MANAGED.0: MANAGED.1,
            SLICE_OF.0: SLICE_OF.1,
            "kubernetes.io/service-name": CHURNING,
        }},
        "addressType": "IPv4",
        "ports": [{"name": PORT_NAME, "port": PORT, "protocol": "TCP",
            "appProtocol": self.scenario.app_protocol(0)}],
        "endpoints": endpoints})
    }

    /// Writes one revision after the other for the given time.
    pub(super) async fn give(&self, client: &Client, time: Duration) -> RevisionResults {
        let write = async |revision| {
            let object = self.object(revision);
            let written = leno_operate::apply(client, &object, MANAGER);
            match timeout(WRITTEN, written).await {
                Ok(written) => written.map(drop).map_err(|error| error.said()),
                Err(_) => Err(format!("not written within {} s", WRITTEN.as_secs())),
            }
        };
        give(self.period, time, write).await
    }

    /// Reads from the log which routes the application has reported, if routes change.
    pub(super) async fn look(&self, client: &Client, given: &mut RevisionResults) {
        if self.scenario.churns() {
            return;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), self.namespace);
        let name = self.scenario.service(0);
        let container = Some(CONTAINER.to_owned());
        let params = LogParams { container, limit_bytes: Some(LOG), ..LogParams::default() };
        let what = format!("read the log of pod {name}");
        given.arrived = Some(match timeout(READ, pods.logs(&name, &params)).await {
            Ok(Ok(text)) => Ok(revision::arrived(&text)),
            Ok(Err(error)) => Err(Error::api(what)(error).said()),
            Err(_) => Err(Error::Late(what, READ.as_secs()).said()),
        });
    }
}

impl RevisionResults {
    /// How many routes took effect, if this is known.
    pub(super) fn arrived(&self) -> Option<u64> {
        self.arrived.as_ref().and_then(|arrived| arrived.as_ref().ok().copied())
    }

    /// The mark of a measurement in which the disturbance was incomplete or had no effect.
    pub(super) fn mark(&self) -> Option<Mark> {
        let mut why = Vec::new();
        if let Some((count, last)) = &self.failed {
            let of = count + self.revisions;
            why.push(format!("{count} of {of} revisions could not be written, the last: {last}"));
        }
        match &self.arrived {
            Some(Ok(0)) if self.revisions > 0 => {
                why.push(format!("none of {} revisions took effect", self.revisions));
            }
            Some(Err(error)) => why.push(format!("unknown which revisions took effect: {error}")),
            _ => {}
        }
        Mark::of_all(MarkKind::DisturbedLess, &why)
    }
}

/// Writes one revision in each period, for the given time. Writes do not overlap: a late write delays the next one, and
/// revisions that were missed are not written later.
async fn give(
    period: Duration,
    time: Duration,
    mut write: impl AsyncFnMut(u64) -> Result<(), String>,
) -> RevisionResults {
    let begun = Instant::now();
    let mut due = interval_at(begun + period, period);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut given = RevisionResults::default();
    for revision in 1.. {
        due.tick().await;
        if begun.elapsed() >= time {
            break;
        }
        match write(revision).await {
            Ok(()) => given.revisions += 1,
            Err(why) => given.failed = Some((given.failed.map_or(1, |(count, _)| count + 1), why)),
        }
    }
    given
}

fn endpoint(pod: &Pod) -> Option<Value> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let addresses = status.pod_ips.iter().flatten().map(|one| &one.ip).chain(&status.pod_ip);
    let address = addresses.into_iter().find(|ip| ip.parse::<std::net::Ipv4Addr>().is_ok())?;
    let mut endpoint = json!({
        "addresses": [address],
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "Pod", "namespace": pod.namespace()?, "name": pod.name_any(), "uid": pod.uid()?},
    });
    if let Some(node) = &spec.node_name {
        endpoint["nodeName"] = json!(node);
    }
    Some(endpoint)
}

/// The definition of the resource for routes; `None` if the cluster has none.
async fn definition(client: &Client) -> Result<Option<CustomResourceDefinition>, Error> {
    let all: Api<CustomResourceDefinition> = Api::all(client.clone());
    let asked = ListParams::default().fields(&format!("metadata.name={ROUTES}"));
    let found = all.list(&asked).await.map_err(Error::api(format!("list {ROUTES}")))?;
    Ok(found.items.into_iter().next())
}

/// Whether any version of the Gateway API is installed.
pub(super) async fn defines_routes(client: &Client) -> Result<bool, Error> {
    Ok(definition(client).await?.is_some())
}

/// What a cluster needs before routes can be pushed; `None` if nothing is missing.
pub(super) async fn lacks_routes(client: &Client) -> Result<Option<String>, Error> {
    let found = definition(client).await?;
    let mut versions = found.iter().flat_map(|one| &one.spec.versions);
    let served = versions.any(|version| version.name == "v1" && version.served);
    Ok((!served).then(|| {
        format!(
            "the cluster has no HTTPRoute of version v1, which this scenario changes: \
             {BRING_ROUTES}"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);

    #[tokio::test(start_paused = true)]
    async fn a_late_write_delays_the_next_and_is_not_made_up_for() {
        let begun = Instant::now();
        let mut at = Vec::new();
        let write = async |revision: u64| {
            at.push((revision, begun.elapsed().as_millis()));
            if revision == 2 {
                tokio::time::sleep(PERIOD * 3).await;
            }
            if revision % 2 == 1 { Err(format!("{revision} is lost")) } else { Ok(()) }
        };
        let given = give(PERIOD, PERIOD * 8, write).await;
        // The second write ends at the moment at which the fifth revision would be due.
        assert_eq!(at, [(1, 100), (2, 200), (3, 500), (4, 600), (5, 700)]);
        assert_eq!(given.revisions, 2);
        let mark = given.mark().unwrap();
        assert!(mark.kind == MarkKind::DisturbedLess && mark.kind.invalidates());
        assert_eq!(mark.why, "3 of 5 revisions could not be written, the last: 5 is lost");
    }

    #[test]
    fn revisions_without_effect_are_a_mark() {
        let of = |arrived| RevisionResults { revisions: 40, arrived, ..RevisionResults::default() };
        assert_eq!((of(None).mark(), of(Some(Ok(1))).mark()), (None, None));
        assert_eq!(of(Some(Ok(38))).arrived(), Some(38));
        let none = of(Some(Ok(0))).mark().unwrap();
        assert_eq!(none.why, "none of 40 revisions took effect");
        let unknown = of(Some(Err("no log".into())));
        assert_eq!(unknown.arrived(), None);
        assert!(unknown.mark().unwrap().why.contains("took effect: no log"));
    }

    fn pod(name: &str, ips: &[&str]) -> Pod {
        let ips: Vec<Value> = ips.iter().map(|ip| json!({"ip": ip})).collect();
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "leno-bench-1", "uid": format!("uid-{name}")},
            "spec": {"nodeName": "n2", "containers": []},
            "status": {"podIPs": ips},
        }))
        .unwrap()
    }

    #[test]
    fn a_slice_has_the_pods_that_are_there() {
        let churn = crate::scenario::find("churn").unwrap();
        let mut revisions = Revisions::of(Mesh::None, &churn, "leno-bench-1").unwrap();
        let mut pods: Vec<Pod> = (0..10)
            .rev()
            .map(|nth| pod(&format!("s{nth}"), &["fd00::1", &format!("10.0.0.{nth}")]))
            .collect();
        revisions.serve(&pods).unwrap();
        let addresses = |revision: u64| {
            let slice = revisions.object(revision);
            let endpoints = slice["endpoints"].as_array().unwrap().clone();
            endpoints
                .iter()
                .map(|one| one["addresses"][0].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(addresses(0).len(), 10);
        assert_eq!(addresses(2), ["10.0.0.0", "10.0.0.1"]);
        let slice = revisions.object(0);
        assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "all");
        assert_eq!(
            slice["endpoints"][3]["targetRef"],
            json!({"kind": "Pod", "namespace": "leno-bench-1", "name": "s3", "uid": "uid-s3"})
        );
        pods.truncate(9);
        let missing = revisions.serve(&pods).unwrap_err().to_string();
        assert_eq!(missing, "pod s0 has no address over IPv4");
    }

    #[test]
    fn routes_change_under_meshes_and_endpoints_also_without_one() {
        let of = |mesh, scenario: &str| {
            let scenario = crate::scenario::find(scenario).unwrap();
            Revisions::of(mesh, &scenario, "x").map(|one| one.object(3)["kind"].clone())
        };
        assert_eq!(of(Mesh::None, "push"), None);
        assert_eq!(of(Mesh::Leno, "push"), Some(json!("HTTPRoute")));
        assert_eq!(of(Mesh::None, "churn"), Some(json!("EndpointSlice")));
        assert_eq!((of(Mesh::Leno, "http-1k"), of(Mesh::Leno, "restart")), (None, None));
    }
}
