//! One call of the plugin. It reads the environment and standard input, and its result is written to standard
//! output.
//!
//! The plugin determines by itself whether a pod has a proxy: the kubelet mounts a pod's volumes before the
//! runtime creates the pod's network, so the directory of the volume [`VOLUME`], which contains the proxy's token,
//! already exists.
//!
//! | the pod | the agent answers | the agent does not answer |
//! |---|---|---|
//! | has the volume | its answer decides | fails after [`PATIENCE`] and the wait for the last answer; the kubelet retries |
//! | has no such volume | its answer decides (the proxy may have been written by hand) | passes at once |
//! | has no such volume, and its namespace is in [`NODE_MODE`] | its answer decides | fails as in the first row |
//! | has no readable directory | its answer decides | fails, except in the `exempt` namespaces |

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::protocol::{CniCommand, PluginAnswer, PluginRequest, SOCKET, ask};

/// The name of a volume that every injected proxy has.
pub const VOLUME: &str = "leno-token";

/// The file beside the agent's socket that lists namespaces, one per line. Their pods are in node mode by default, or those that
/// are must be captured as the namespace asks (`leno.dev/udp`, `leno.dev/capture`). It stays when the agent ends.
pub const NODE_MODE: &str = "node-mode";

/// The supported versions of the CNI specification, which are those with chained plugins. The result of earlier
/// plugins is passed on unchanged, so the versions do not differ for this plugin.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// How long the plugin repeats its request for a pod that must not start without the agent. An agent that is being
/// replaced is available again within seconds. After this time the call fails, and the kubelet tries the pod
/// again.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two requests.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an answer. The agent may wait 3 s for the API server. Then a capture takes about 50 ms, or up
/// to 10 s (the limit of a system command) while another program holds the rules. Together with [`PATIENCE`], this
/// is well below the two minutes that a kubelet gives a runtime.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Longest wait for an answer about a pod without the volume, which may start without an answer. It exceeds the
/// time for which the agent waits for the API server (3 s). The agent asks the API server because the pod may have
/// a proxy that was written by hand.
const SHORT_LIMIT: Duration = Duration::from_secs(5);

/// The environment variables that the specification passes to a plugin.
#[derive(Clone, Debug, Default)]
pub struct CniEnvironment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_ARGS`, in the form `KEY=VALUE;KEY=VALUE`.
    pub arguments: String,
}

impl CniEnvironment {
    /// The environment of this process.
    #[must_use]
    pub fn of_this_process() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        Self {
            command: variable("CNI_COMMAND"),
            container: variable("CNI_CONTAINERID"),
            netns: variable("CNI_NETNS"),
            arguments: variable("CNI_ARGS"),
        }
    }
}

/// The plugin's entry in the configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(default)]
    cni_version: String,
    prev_result: Option<Value>,
    #[serde(default = "default_socket")]
    socket: PathBuf,
    /// The directory in which the kubelet keeps its pods.
    #[serde(default = "default_kubelet")]
    kubelet: PathBuf,
    /// Namespaces whose pods may start although their volumes cannot be read.
    #[serde(default)]
    exempt: Vec<String>,
    /// Replaces [`PATIENCE`], in milliseconds.
    patience_ms: Option<u64>,
}

fn default_socket() -> PathBuf {
    SOCKET.into()
}

fn default_kubelet() -> PathBuf {
    "/var/lib/kubelet".into()
}

/// The error that a plugin prints (CNI specification, "Error").
#[derive(Debug, PartialEq, Eq)]
pub struct CniError {
    version: String,
    code: u32,
    message: String,
    details: String,
}

impl CniError {
    const VERSION: u32 = 1;
    const ENVIRONMENT: u32 = 4;
    const DECODE: u32 = 6;
    const CONFIGURATION: u32 = 7;
    const TRY_AGAIN: u32 = 11;

    fn new(version: &str, code: u32, message: &str, details: impl Into<String>) -> Self {
        let version = if version.is_empty() { "1.0.0" } else { version }.to_owned();
        Self { version, code, message: message.to_owned(), details: details.into() }
    }

    /// Standard input could not be read.
    #[must_use]
    pub fn unreadable(why: &str) -> Self {
        Self::new("", Self::DECODE, "the configuration cannot be parsed", why)
    }

    /// The JSON that the specification requires.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self { version, code, message, details } = self;
        json!({"cniVersion": version, "code": code, "msg": message, "details": details}).to_string()
    }
}

/// Carries out `CNI_COMMAND`. Returns the text to print.
///
/// # Errors
/// The error to print if the call fails.
pub fn run(environment: &CniEnvironment, input: &str) -> Result<String, CniError> {
    let configuration: Configuration =
        serde_json::from_str(input).map_err(|error| CniError::unreadable(&error.to_string()))?;
    let version = &configuration.cni_version;
    if environment.command == "VERSION" {
        return Ok(json!({"cniVersion": version, "supportedVersions": VERSIONS}).to_string());
    }
    if !VERSIONS.contains(&version.as_str()) {
        let details =
            format!("the configuration has {version:?}: use one of {}", VERSIONS.join(", "));
        return Err(CniError::new("", CniError::VERSION, "cniVersion is not supported", details));
    }
    match environment.command.as_str() {
        "ADD" => add(environment, &configuration),
        "CHECK" => check(environment, &configuration),
        "DEL" => {
            delete(environment, &configuration);
            Ok(String::new())
        }
        // The node can run pods even without its agent, and the agent itself finds pods that have ended.
        "STATUS" | "GC" => Ok(String::new()),
        other => {
            let details = format!("CNI_COMMAND is {other:?}");
            Err(CniError::new(version, CniError::ENVIRONMENT, "unknown command", details))
        }
    }
}

fn add(environment: &CniEnvironment, configuration: &Configuration) -> Result<String, CniError> {
    let version = &configuration.cni_version;
    let Some(result) = &configuration.prev_result else {
        let message = "leno-cni creates no network itself";
        let details = "put it last in the list, after the plugins that create the network";
        return Err(CniError::new(version, CniError::CONFIGURATION, message, details));
    };
    let Some(request) = request(CniCommand::Add, environment, configuration) else {
        return Ok(result.to_string());
    };
    let needed = request.has_proxy != Some(false);
    match ask_patiently(configuration, &request, needed) {
        Ok(PluginAnswer { error: None, .. }) => Ok(result.to_string()),
        Ok(PluginAnswer { error: Some(why), .. }) => {
            let message = "the mesh's agent cannot capture this pod";
            Err(CniError::new(version, CniError::TRY_AGAIN, message, why))
        }
        Err(_) if !needed => Ok(result.to_string()),
        Err(error) => {
            let message = "this pod has a proxy, and the mesh's agent of this node does not answer";
            let details = format!(
                "{}: {error}: check the DaemonSet leno-agent; if the mesh was removed, run \
                 `leno-agent cleanup` on this node",
                configuration.socket.display()
            );
            Err(CniError::new(version, CniError::TRY_AGAIN, message, details))
        }
    }
}

fn check(environment: &CniEnvironment, configuration: &Configuration) -> Result<String, CniError> {
    let Some(request) = request(CniCommand::Check, environment, configuration) else {
        return Ok(String::new());
    };
    // Even if the agent does not answer, the capture is still in the kernel.
    match ask(&configuration.socket, &request, SHORT_LIMIT) {
        Ok(PluginAnswer { error: Some(why), .. }) => {
            let message = "this pod is not captured, although it should be";
            Err(CniError::new(&configuration.cni_version, CniError::TRY_AGAIN, message, why))
        }
        _ => Ok(String::new()),
    }
}

/// Reports the end of a pod. Never fails, because a pod must be able to end, and the agent itself finds ends that
/// were not reported.
fn delete(environment: &CniEnvironment, configuration: &Configuration) {
    if let Some(request) = request(CniCommand::Del, environment, configuration) {
        let _untold = ask(&configuration.socket, &request, SHORT_LIMIT);
    }
}

/// Sends the request. If the pod depends on the answer (`needed`), repeats it for [`PATIENCE`].
fn ask_patiently(
    configuration: &Configuration,
    request: &PluginRequest,
    needed: bool,
) -> io::Result<PluginAnswer> {
    if !needed {
        return ask(&configuration.socket, request, SHORT_LIMIT);
    }
    let patience = configuration.patience_ms.map_or(PATIENCE, Duration::from_millis);
    let deadline = Instant::now() + patience;
    loop {
        match ask(&configuration.socket, request, ANSWER_LIMIT) {
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            done => return done,
        }
    }
}

/// The request for the agent; `None` if the runtime's arguments do not name a Kubernetes pod.
fn request(
    command: CniCommand,
    environment: &CniEnvironment,
    configuration: &Configuration,
) -> Option<PluginRequest> {
    let arguments: HashMap<&str, &str> =
        environment.arguments.split(';').filter_map(|pair| pair.split_once('=')).collect();
    let argument =
        |name: &str| arguments.get(name).filter(|v| !v.is_empty()).map(|v| v.to_string());
    let namespace = argument("K8S_POD_NAMESPACE")?;
    let uid = argument("K8S_POD_UID");
    let seen = uid.as_deref().and_then(|uid| has_proxy(&configuration.kubelet, uid));
    // The volumes of a pod do not show whether it has a node proxy, so the agent's answer decides.
    let seen = seen.filter(|seen| *seen || !may_be_in_node_mode(&configuration.socket, &namespace));
    let exempt = configuration.exempt.contains(&namespace);
    Some(PluginRequest {
        command,
        container: environment.container.clone(),
        netns: (!environment.netns.is_empty()).then(|| resolved(Path::new(&environment.netns))),
        pod: argument("K8S_POD_NAME")?,
        has_proxy: seen.or(exempt.then_some(false)),
        namespace,
        uid,
    })
}

/// The path of a file with the symbolic links in its folder's path resolved. On the node /var/run is a link to
/// /run, but in the agent's container it is not.
fn resolved(file: &Path) -> PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, file.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => file.to_owned(),
    }
}

/// Whether pods of a namespace may be in node mode, according to the agent's file beside its socket.
fn may_be_in_node_mode(socket: &Path, namespace: &str) -> bool {
    let noted = std::fs::read_to_string(socket.with_file_name(NODE_MODE)).unwrap_or_default();
    noted.lines().any(|line| line == namespace)
}

/// Whether the pod has the proxy's volume; `None` if the kubelet's directories cannot be read.
fn has_proxy(kubelet: &Path, uid: &str) -> Option<bool> {
    // Only a valid uid may become part of a path.
    if !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return None;
    }
    let pod = kubelet.join("pods").join(uid);
    let volume = pod.join("volumes/kubernetes.io~projected").join(VOLUME);
    pod.is_dir().then(|| volume.is_dir())
}

#[cfg(test)]
mod tests;
