//! Serves the CNI plugin on a socket that only root may open.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leno_cni::protocol::{CniCommand, MAX_LINE, PluginAnswer, PluginRequest};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::flows::Flows;
use crate::follow::PodSource;
use crate::host::NetnsId;
use crate::keeper::Keeper;
use crate::pod::Pod;
use crate::reports::ServedReports;

/// Most calls at the same time. A runtime starts a few pods at a time, but all pods of a node after a reboot.
const MAX_CALLS: usize = 64;
/// Longest wait for the plugin's request, which is one line that it sends at once.
const LINE_LIMIT: Duration = Duration::from_secs(5);

/// Creates the socket, and replaces that of an earlier agent.
pub(crate) fn listen(socket: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    fs::set_permissions(socket, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves until the runtime ends.
pub(crate) async fn serve(listener: UnixListener, cluster: PodSource, node: NodeServices) {
    let places = Arc::new(Semaphore::new(MAX_CALLS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let next = leno_program::accept("a call of the CNI plugin", || listener.accept());
        let (stream, _) = next.await;
        let cluster = cluster.clone();
        let node = node.clone();
        tokio::spawn(async move {
            if let Err(error) = call(stream, &cluster, node).await {
                tracing::warn!(%error, "a call of the CNI plugin was not answered");
            }
            drop(place);
        });
    }
}

/// The parts of the agent that handle a call: the keeper captures pods, the second accounts for flows, and the last reports
/// which pods are served, if this agent does.
type NodeServices = (Arc<Keeper>, Arc<Flows>, Option<Arc<ServedReports>>);

async fn call(stream: UnixStream, cluster: &PodSource, node: NodeServices) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut limited = BufReader::new(reader.take(MAX_LINE));
    tokio::time::timeout(LINE_LIMIT, limited.read_line(&mut line)).await??;
    let request: PluginRequest = serde_json::from_str(&line)?;
    let answer = answer(request, cluster, node).await;
    let mut line = serde_json::to_string(&answer)?;
    line.push('\n');
    writer.write_all(line.as_bytes()).await
}

async fn answer(request: PluginRequest, cluster: &PodSource, node: NodeServices) -> PluginAnswer {
    let command = match request.command {
        CniCommand::Add => "add",
        CniCommand::Del => "del",
        CniCommand::Check => "check",
    };
    let metrics = Arc::clone(&node.0.metrics);
    let answer = match decide(request, cluster, node).await {
        Ok(backend) => PluginAnswer { backend, error: None },
        Err(why) => PluginAnswer { backend: None, error: Some(why) },
    };
    let result = match (&answer.error, &answer.backend) {
        (Some(_), _) => "failed",
        (None, Some(_)) => "captured",
        (None, None) => "passed",
    };
    metrics.asked(command, result);
    answer
}

/// Carries out a request. Returns the name of the backend that captures the pod, if it is captured.
async fn decide(
    request: PluginRequest,
    cluster: &PodSource,
    (keeper, flows, reports): NodeServices,
) -> Result<Option<String>, String> {
    if request.command == CniCommand::Del {
        let Some(uid) = request.uid else { return Ok(None) };
        blocking(move || keeper.delete(&uid, &request.container)).await;
        return Ok(None);
    }
    if request.command == CniCommand::Check
        && let Some(uid) = &request.uid
        && is_captured(&keeper, uid.clone()).await
    {
        return Ok(None);
    }
    let found = find_pod(&request, cluster).await?;
    let Some(mut pod) = found.filter(|pod| pod.meshed) else { return Ok(None) };
    // The uid that the runtime passes is the kubelet's, after which the node's directories are named.
    if let Some(uid) = request.uid {
        pod.uid = uid;
    }
    if request.command == CniCommand::Check {
        let captured = is_captured(&keeper, pod.uid).await;
        return captured.then_some(None).ok_or_else(|| "it is not captured".to_owned());
    }
    let netns = request.netns.ok_or("the runtime names no network namespace")?;
    let (of_pod, added_to) = (pod.clone(), Arc::clone(&keeper));
    let add = move || {
        let added = keeper.add(&pod, &netns, &request.container);
        // Enrolled before its containers start, so that their first connections are counted.
        let place = || NetnsId::of(&netns).map(|id| (netns.clone(), id));
        flows.follow(&pod, place, || keeper.cgroup_of(&pod.uid));
        added
    };
    let backend = blocking(add).await.map_err(|failed| failed.to_string())?;
    added_to.until_served(&of_pod).await.map_err(|failed| failed.to_string())?;
    if let Some(reports) = reports {
        reports.before_start(&of_pod).await;
    }
    Ok(Some(backend.to_string()))
}

/// Whether a pod is captured.
async fn is_captured(keeper: &Arc<Keeper>, uid: String) -> bool {
    let keeper = Arc::clone(keeper);
    blocking(move || keeper.is_captured(&uid)).await
}

/// The pod of a request, with the settings by which it is captured. `None` if there is no such pod, or if it may start
/// although nothing is known of it.
///
/// # Errors
/// Why it is not known how to capture a pod that has a proxy. It must not start then: captured in another way than its
/// settings say, it would keep that, and datagrams that they want encrypted would leave in plaintext. The kubelet tries the pod
/// again.
async fn find_pod(request: &PluginRequest, cluster: &PodSource) -> Result<Option<Pod>, String> {
    let (namespace, name) = (&request.namespace, &request.pod);
    let found = cluster.pod(namespace, name, request.uid.as_deref()).await;
    let refused = match (found, request.has_proxy) {
        // The plugin has seen from the pod's volumes that it has a proxy.
        (Ok(None), Some(true)) => "the API server has no such pod".to_owned(),
        (Ok(found), _) => return Ok(found),
        (Err(why), Some(false)) => {
            // It may be in node mode by its own label, which its volumes do not show. Then it is captured once it is known.
            let pod = format!("{namespace}/{name}");
            tracing::warn!(pod, why, "starts although it is not known whether it is in the mesh");
            return Ok(None);
        }
        (Err(why), Some(true) | None) => why,
    };
    // While the API server is gone, the pod's events do not show this.
    tracing::warn!(pod = format!("{namespace}/{name}"), why = refused, "must not start yet");
    Err(format!("it is not known how to capture it: {refused}"))
}

/// Runs blocking work, such as loading kernel programs or running commands, on another thread.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.expect("captures do not panic")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{cluster, keeper_of_one};

    /// Regression: the capture of such a pod was assumed to be the default, without datagrams, and was not corrected later.
    #[tokio::test]
    async fn a_pod_with_a_proxy_does_not_start_while_the_api_server_does_not_answer() {
        let folder = tempfile::tempdir().unwrap();
        let keeper = Arc::new(keeper_of_one(folder.path()));
        let ask = async |command, has_proxy| {
            let request = PluginRequest {
                command,
                container: "sandbox".into(),
                netns: Some("/nonexistent".into()),
                namespace: "shop".into(),
                pod: "web-0".into(),
                uid: Some("u".into()),
                has_proxy,
            };
            decide(request, &cluster(), (Arc::clone(&keeper), Arc::default(), None)).await
        };
        for (has_proxy, starts) in [(Some(true), false), (None, false), (Some(false), true)] {
            let answer = ask(CniCommand::Add, has_proxy).await;
            assert_eq!(answer.is_ok(), starts, "{has_proxy:?}: {answer:?}");
            if let Err(why) = answer {
                assert!(why.contains("it is not known how to capture it"), "{why}");
            }
        }
        assert!(keeper.failures().is_empty(), "no capture was tried");
        assert_eq!(ask(CniCommand::Del, Some(true)).await, Ok(None), "a pod can always end");
    }
}
