//! What the proxies of a cluster have counted.

use std::collections::HashMap;
use std::time::Instant;

use kube::Client;
use leno_observe::stat::{Answer, Instance, Scrape};

use crate::pods::{self, Running};
use crate::reach::{PodName, Reach};
use crate::{Error, namespaces};

/// Most proxies that are asked for one report: at sixteen at once a minute or so, and their metrics some
/// hundred MiB.
const MAX_PROXIES: usize = 5_000;

/// Asks every proxy of a cluster, or those of one namespace, and calls the mesh `mesh`.
///
/// # Errors
/// Where there is no such namespace, the pods cannot be listed, there are too many, or no proxy at all may
/// be asked. One that does not answer is noted and harms nothing.
pub async fn scrape(client: &Client, namespace: Option<&str>, mesh: &str) -> Result<Scrape, Error> {
    let running = match (pods::running(client, None).await, namespace) {
        // What else there is would only have given servers elsewhere the names of their workloads.
        (Err(error), Some(namespace)) if error.is_forbidden() => {
            pods::running(client, Some(namespace)).await?
        }
        (running, _) => running?,
    };
    let of = |one: &&Running| namespace.is_none_or(|name| one.name.namespace == name);
    let asked: Vec<&PodName> =
        running.iter().filter(of).filter(|one| one.meshed).map(|one| &one.name).collect();
    if let Some(namespace) = namespace.filter(|_| !running.iter().any(|one| of(&one))) {
        namespaces::check(client, namespace).await?;
    }
    if asked.len() > MAX_PROXIES {
        return Err(Error::TooMany(asked.len(), MAX_PROXIES));
    }
    let at = Instant::now();
    let answers = Reach::new(client.clone()).each(asked, "/metrics").await;
    let mut by_pod: HashMap<&PodName, Answer> = HashMap::new();
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
        by_pod.insert(pod, Some(answer));
    }
    if let Some(refused) = refused.filter(|_| count == 0) {
        return Err(refused);
    }
    let instance = |one: &Running| Instance {
        namespace: one.name.namespace.clone(),
        workload: one.owner.name.clone(),
        name: one.name.name.clone(),
        meshed: one.meshed,
        ready: one.ready,
    };
    let all = running.iter().map(|one| (instance(one), by_pod.remove(&one.name).flatten()));
    Ok(Scrape::new(mesh, at, all.collect()))
}
