//! Reads the counters of a cluster's proxies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use leno_kube::Client;
use leno_observe::stat::{ProxyCounters, ProxyProcess, Scrape, ScrapeResult, StatInstance};

use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{self, RunningPod};
use crate::{Error, namespaces, processes};

/// Most proxies that are queried for one report. With sixteen at a time, that many take about a minute. For each, some
/// kilobytes are kept, depending on how many pairs of client and server it reports.
const MAX_PROXIES: usize = 5_000;

/// Queries every proxy of a cluster, or those of one namespace. The report names the mesh `mesh`; `system` is the
/// namespace of the control plane.
///
/// # Errors
/// The namespace does not exist, the pods cannot be listed, there are too many proxies, or the user may not query
/// proxies. A proxy that does not answer is noted.
pub async fn scrape(
    client: &Client,
    namespace: Option<&str>,
    (mesh, system): (&str, &str),
) -> Result<Scrape, Error> {
    let mut running = match (pods::running(client, None).await, namespace) {
        // The pods of other namespaces are needed only for the names of the workloads of servers there.
        (Err(error), Some(namespace)) if error.is_forbidden() => {
            pods::running(client, Some(namespace)).await?
        }
        (running, _) => running?,
    };
    let of = |one: &&RunningPod| namespace.is_none_or(|name| one.name.namespace == name);
    let asked: Vec<&PodName> =
        running.iter().filter(of).filter(|one| one.meshed).map(|one| &one.name).collect();
    if let Some(namespace) = namespace.filter(|_| !running.iter().any(|one| of(&one))) {
        namespaces::check(client, namespace).await?;
    }
    if asked.len() > MAX_PROXIES {
        return Err(Error::TooMany(asked.len(), MAX_PROXIES));
    }
    let at = Instant::now();
    let answers =
        PodAdminClient::new(client.clone()).each(asked, "/metrics", ProxyCounters::of).await;
    let mut by_pod: HashMap<&PodName, ScrapeResult> = HashMap::new();
    let (mut refused, mut count) = (None, 0);
    for (pod, answer) in answers {
        count += usize::from(answer.is_ok());
        let answer = answer.map_err(|error| {
            let text = error.said();
            if error.is_forbidden() {
                refused = Some(error);
            }
            text
        });
        by_pod.insert(pod, Some(answer.flatten()));
    }
    if let Some(refused) = refused.filter(|_| count == 0) {
        return Err(refused);
    }
    let answers: Vec<ScrapeResult> =
        running.iter().map(|one| by_pod.remove(&one.name).flatten()).collect();
    let shown: Vec<&RunningPod> = running.iter().filter(of).collect();
    let processes = processes::of(client, system, &shown).await;
    place(&mut running, processes);
    Ok(Scrape::new(mesh, at, named(&running).into_iter().zip(answers).collect()))
}

/// The pods of a cluster, or of one namespace, as the instances of workloads.
///
/// # Errors
/// The pods cannot be listed, or the namespace does not exist.
pub async fn instances(
    client: &Client,
    namespace: Option<&str>,
    system: &str,
) -> Result<Vec<StatInstance>, Error> {
    let mut running = pods::running(client, namespace).await?;
    if let Some(namespace) = namespace.filter(|_| running.is_empty()) {
        namespaces::check(client, namespace).await?;
    }
    let processes = processes::of(client, system, &running.iter().collect::<Vec<_>>()).await;
    place(&mut running, processes);
    Ok(named(&running))
}

/// Replaces where pods' proxies run by what the supervisors of the nodes report, which may differ from the pods'
/// present settings.
fn place(running: &mut [RunningPod], mut processes: BTreeMap<PodName, ProxyProcess>) {
    let is_of_node =
        |one: &&mut RunningPod| one.proxy.as_ref().is_some_and(ProxyProcess::is_of_node);
    for one in running.iter_mut().filter(is_of_node) {
        one.proxy = processes.remove(&one.name).or(one.proxy.take());
    }
}

fn named(running: &[RunningPod]) -> Vec<StatInstance> {
    let alike = alike(running);
    let instance = |one: &RunningPod| StatInstance {
        namespace: one.name.namespace.clone(),
        workload: match alike.contains(&(&*one.name.namespace, &*one.owner.name)) {
            true => one.owner.to_string(),
            false => one.owner.name.clone(),
        },
        name: one.name.name.clone(),
        meshed: one.meshed,
        ready: one.ready,
        proxy: one.proxy.clone(),
    };
    running.iter().map(instance).collect()
}

/// The names, with their namespaces, that workloads of different kinds share: `deploy/web` and `sts/web` are two
/// workloads.
fn alike(running: &[RunningPod]) -> BTreeSet<(&str, &str)> {
    let (mut kinds, mut alike) = (BTreeMap::new(), BTreeSet::new());
    for one in running {
        let name = (&*one.name.namespace, &*one.owner.name);
        if *kinds.entry(name).or_insert(&one.owner.kind) != &one.owner.kind {
            alike.insert(name);
        }
    }
    alike
}

#[cfg(test)]
mod tests {
    use leno_types::Owner;

    use super::*;

    #[test]
    fn workloads_of_one_name_and_several_kinds_are_told_apart() {
        let running = |namespace: &str, kind: &str, name: &str| RunningPod {
            name: PodName { namespace: namespace.to_owned(), name: format!("{name}-0") },
            owner: Owner { kind: kind.to_owned(), name: name.to_owned() },
            meshed: true,
            ready: true,
            node: None,
            proxy: None,
        };
        let all = [
            running("shop", "Deployment", "web"),
            running("shop", "Deployment", "web"),
            running("shop", "Deployment", "cart"),
            running("shop", "StatefulSet", "web"),
            running("office", "StatefulSet", "web"),
        ];
        assert_eq!(alike(&all), BTreeSet::from([("shop", "web")]));
    }
}
