//! Starts and connects the agent's parts.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, bail};
use leno_capture::ProbeReport;
use leno_flows::LedgerSettings;
use leno_kube::connect;
use leno_program::SocketPair;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::admin::Admin;
use crate::brokers::{self, Brokers};
use crate::config::{Flags, NodeFlags};
use crate::flows::{self, Flows};
use crate::follow::{PodChange, PodSource, Pods};
use crate::host::Host;
use crate::install::{self, Installation};
use crate::keeper::Keeper;
use crate::metrics::{Metrics, lock};
use crate::peers;
use crate::pod::Pod;
use crate::record::CaptureRecords;
use crate::reports::ServedReports;
use crate::retry::RetryQueue;
use crate::{server, sizes};

/// How often all pods of the node are checked, in addition to pods that change. The check releases pods whose end
/// was not reported, and retries failed captures.
const ROUND: Duration = Duration::from_secs(5);
/// Most changes that wait to be handled. The watch is delayed when the channel is full.
const MAX_CHANGES: usize = 64;

/// Runs until SIGTERM or SIGINT. Captured pods stay captured.
pub(crate) async fn run(flags: Flags) -> anyhow::Result<()> {
    if flags.name.is_empty() {
        bail!(
            "the name of the node is missing: set LENO_NODE to the pod's spec.nodeName, or pass \
             --node"
        );
    }
    let settings = flags.flows.settings().map_err(|error| anyhow::anyhow!("{error}"))?;
    let metrics = Arc::new(Metrics::default());
    let (brokers, ended) = start_brokers(&flags)?;
    let keeper = keeper(&flags.node, Arc::clone(&metrics))?.with_brokers(Arc::clone(&brokers));
    let keeper = Arc::new(keeper.with_reports(flags.report_served));
    let client = connect(flags.kubeconfig.as_deref(), None).await?;
    let cluster = PodSource {
        client,
        node: flags.name.clone(),
        pods: Arc::new(Pods::default()),
        metrics: Arc::clone(&metrics),
    };
    let socket = flags.node.state.join("agent.sock");
    let listener = server::listen(&socket)
        .with_context(|| format!("listening on {} for the CNI plugin", socket.display()))?;
    let admin_listener = leno_program::listen(flags.admin)
        .await
        .with_context(|| format!("listening on {} for /metrics and /ready", flags.admin))?;
    tracing::info!(address = %admin_listener.local_addr()?, "serving /metrics, /ready and /live");
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    // Earlier captures are taken over before any pod is captured.
    let earlier = Arc::clone(&keeper);
    tokio::task::spawn_blocking(move || earlier.take_over()).await?;
    let (name, cgroup2) = (flags.name.clone(), keeper.cgroup2());
    let at_start = sizes::at_start(&cluster.client, &flags.name, settings).await;
    let start = move || Flows::start(&name, cgroup2.as_deref(), at_start);
    let flows = Arc::new(tokio::task::spawn_blocking(start).await?);
    let installation = installation(&flags.node);
    let retry = Arc::new(Mutex::new(RetryQueue::default()));
    let admin = Arc::new(Admin {
        node: flags.name.clone(),
        keeper: Arc::clone(&keeper),
        flows: Arc::clone(&flows),
        pods: Arc::clone(&cluster.pods),
        retry: Arc::clone(&retry),
        installs: installation.is_some(),
        turn: tokio::sync::Mutex::default(),
    });
    let answer =
        move |request, ends: SocketPair| Arc::clone(&admin).answer(request, ends.client.ip());
    tokio::spawn(leno_program::serve(admin_listener, answer));
    metrics.awaits_reports.store(flags.report_served, Ordering::Relaxed);
    let reports = flags.report_served.then(|| start_reports(&cluster, &keeper, brokers));
    let services = (Arc::clone(&keeper), Arc::clone(&flows), reports);
    tokio::spawn(server::serve(listener, cluster.clone(), services));
    if let Some(installation) = installation {
        let beside =
            || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("leno-cni"));
        let binary = flags.cni_binary.clone().map_or_else(beside, Ok)?;
        let entry = install::entry(&socket, &flags.kubelet, &flags.exempt);
        tokio::spawn(installation.keep(binary, entry, metrics));
    }
    let note = flags.node.state.join(leno_cni::plugin::NODE_MODE);
    let changed = follow(&cluster, &flows, (note, settings));
    tokio::spawn(reconcile((changed, ended), cluster, (keeper, flows), retry));
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("ending; captured pods stay captured");
    Ok(())
}

/// Listens for the supervisor of node proxies. The receiver gets the uids of pods that need a new broker.
fn start_brokers(flags: &Flags) -> anyhow::Result<(Arc<Brokers>, mpsc::Receiver<String>)> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("leno-broker"));
    let program = flags.broker_binary.clone().map_or_else(beside, Ok)?;
    let (brokers, ended) = Brokers::new(program, host(&flags.node), Handle::current());
    let path = flags.node.state.join(brokers::SOCKET);
    brokers.listen(&path).with_context(|| {
        format!("listening on {} for the supervisor of node proxies", path.display())
    })?;
    Ok((brokers, ended))
}

/// Starts to report which pods are served.
fn start_reports(
    cluster: &PodSource,
    keeper: &Arc<Keeper>,
    brokers: Arc<Brokers>,
) -> Arc<ServedReports> {
    let metrics = Arc::clone(&cluster.metrics);
    let reports = Arc::new(ServedReports::new(cluster.client.clone(), metrics));
    let of_node = (Arc::clone(keeper), brokers);
    tokio::spawn(Arc::clone(&reports).follow(Arc::clone(&cluster.pods), of_node));
    reports
}

/// Starts to follow the pods of the node, all namespaces, the pods at the other ends of flows, and the sizes of their tables. Returns
/// the changes of pods.
fn follow(
    cluster: &PodSource,
    flows: &Arc<Flows>,
    (note, settings): (PathBuf, LedgerSettings),
) -> mpsc::Receiver<PodChange> {
    let (sender, changed) = mpsc::channel(MAX_CHANGES);
    tokio::spawn(cluster.clone().follow(sender.clone()));
    tokio::spawn(cluster.clone().follow_namespaces(sender, note));
    let (client, metrics) = (cluster.client.clone(), Arc::clone(&cluster.metrics));
    tokio::spawn(peers::follow(client.clone(), Arc::clone(flows), metrics));
    tokio::spawn(sizes::follow(client, cluster.node.clone(), Arc::clone(flows), settings));
    changed
}

/// Checks pods that change, and all pods every [`ROUND`], until the sender of changes is dropped.
async fn reconcile(
    (mut changed, mut ended): (mpsc::Receiver<PodChange>, mpsc::Receiver<String>),
    cluster: PodSource,
    (keeper, flows): (Arc<Keeper>, Arc<Flows>),
    retry: Arc<Mutex<RetryQueue>>,
) {
    let mut round = tokio::time::interval(ROUND);
    round.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let mut is_round = false;
        let pods = tokio::select! {
            pod = changed.recv() => match pod {
                Some(PodChange::Pod(pod)) => vec![*pod],
                Some(PodChange::Listed) => {
                    // The channel keeps the order, so all pods of the list were handled before.
                    lock(&retry).listed();
                    Vec::new()
                }
                None => return,
            },
            Some(uid) = ended.recv() => {
                cluster.pods.all().into_iter().filter(|pod| pod.uid == uid).collect()
            }
            _ = round.tick() => {
                is_round = true;
                let of_all = Arc::clone(&keeper);
                let _ended = tokio::task::spawn_blocking(move || of_all.prune()).await;
                let pods = cluster.pods.all();
                let runs = |uid: &str| pods.iter().any(|pod| pod.uid == uid && !pod.ended);
                lock(&retry).retain(runs);
                keeper.retain_failures(runs);
                pods
            }
        };
        let (of_all, of_each) = (Arc::clone(&keeper), Arc::clone(&retry));
        let of_flows = Arc::clone(&flows);
        let work = move || {
            for pod in pods {
                reconcile_one(&of_all, &of_each, &pod);
                let (netns, cgroup) =
                    (|| of_all.namespace_of(&pod.uid), || of_all.cgroup_of(&pod.uid));
                of_flows.follow(&pod, netns, cgroup);
            }
            if is_round {
                of_flows.round();
            }
            if lock(&of_each).is_settled() {
                of_all.metrics.reconciled.store(true, Ordering::Relaxed);
                if is_round {
                    of_flows.settle();
                }
            }
        };
        let _ended = tokio::task::spawn_blocking(work).await;
    }
}

/// Checks a pod, unless its last attempt has failed and the next one is not due yet.
fn reconcile_one(keeper: &Keeper, retry: &Mutex<RetryQueue>, pod: &Pod) {
    if !lock(retry).is_due(&pod.uid, Instant::now()) {
        return;
    }
    match keeper.reconcile(pod) {
        Ok(()) => lock(retry).done(&pod.uid),
        Err(failed) => {
            let is_new = lock(retry).failed(&pod.uid, failed.to_string(), Instant::now());
            if is_new {
                let pod = format!("{}/{}", pod.namespace, pod.name);
                tracing::error!(pod, "cannot be captured, retrying: {failed}");
            }
        }
    }
}

/// Removes everything of the mesh from this node.
pub(crate) fn cleanup(node: &NodeFlags) -> anyhow::Result<()> {
    // The plugin is removed first, so that pods that start in the meantime are not captured.
    if let Some(installation) = installation(node) {
        installation.remove()?;
    }
    let keeper = keeper(node, Arc::default())?;
    let (released, mut left) = keeper.release_all();
    tracing::info!(released, "pods");
    if let Err(error) = flows::remove() {
        left.push(format!("flow programs: {}", leno_program::chain(&error)));
    }
    remove(&node.state.join("agent.sock"))?;
    remove(&node.state.join("node"))?;
    remove(&node.state.join(leno_cni::plugin::NODE_MODE))?;
    left.extend(unfinished(&node.state.join("pods"))?);
    match leno_capture::unmount_unused() {
        Ok(true) => {}
        Ok(false) => tracing::info!(
            "programs of another installation are pinned below \
             /run/leno/bpf and stay"
        ),
        Err(error) => left.push(leno_program::chain(&error)),
    }
    if !left.is_empty() {
        bail!(
            "not everything could be removed from the node: {}: run leno-agent cleanup again",
            left.join("; ")
        );
    }
    // The folder may contain files of another program, such as a mesh of `leno up`. Then it is not removed.
    let _others = std::fs::remove_dir(&node.state);
    tracing::info!("nothing of the mesh is left on this node");
    Ok(())
}

/// Removes the folder of records if it is empty. Returns the records that are left in it.
fn unfinished(records: &Path) -> anyhow::Result<Vec<String>> {
    let mut left = Vec::new();
    let entries =
        std::fs::read_dir(records).with_context(|| format!("reading {}", records.display()))?;
    for entry in entries {
        let path = entry?.path();
        // A file that is not complete belongs to a pod that was not captured yet.
        if path.extension().is_some_and(|extension| extension == "new") {
            remove(&path)?;
        } else {
            left.push(format!("the record {}", path.display()));
        }
    }
    if left.is_empty() {
        remove(records)?;
    }
    Ok(left)
}

fn remove(path: &Path) -> anyhow::Result<()> {
    let removed =
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn keeper(node: &NodeFlags, metrics: Arc<Metrics>) -> anyhow::Result<Keeper> {
    let report = ProbeReport::probe();
    for backend in &report.backends {
        let (name, usable, reason) = (backend.backend.name(), backend.usable, &backend.reason);
        tracing::info!(backend = name, usable, reason, "tried");
    }
    if report.chosen.is_none() {
        tracing::error!("no pod can be captured on this node: {}", report.why);
    }
    let directory = node.state.join("pods");
    let records = CaptureRecords::open(&directory)
        .with_context(|| format!("keeping records in {}", directory.display()))?;
    Ok(Keeper::new(host(node), report, records, metrics))
}

fn host(node: &NodeFlags) -> Host {
    Host { cgroups: node.cgroups.clone(), proc: "/proc".into(), netns: "/run/netns".into() }
}

fn installation(node: &NodeFlags) -> Option<Installation> {
    let configuration = node.cni_configuration.clone()?;
    Some(Installation { configuration, plugins: node.cni_plugins.clone() })
}

#[cfg(test)]
pub(crate) mod tests;
