//! One call of the plugin: the environment and standard input in, standard output out.
//!
//! Whether a pod has a proxy, the plugin sees without asking anybody: the kubelet mounts a pod's
//! volumes before it has the runtime make the pod's network, so the directory of the volume
//! [`VOLUME`], in which the proxy gets its token, is there.
//!
//! | the pod | the agent answers | it does not |
//! |---|---|---|
//! | has the volume | as it says | fails after [`PATIENCE`], and a last wait for an answer; the kubelet tries again |
//! | has none | as it says (a proxy that was written by hand) | passes at once |
//! | cannot be seen | as it says | fails, but for the namespaces that are `exempt` |

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use crate::protocol::{Answer, Command, Request, SOCKET, ask};

/// The volume of a pod that has a proxy.
pub const VOLUME: &str = "leno-token";

/// Versions of the CNI specification that are spoken: those with chained plugins. What was made is
/// passed on as it came, so that they do not differ here.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// How long an agent that does not answer is asked again for a pod that must not start without it: an
/// agent that is replaced is back within seconds. After it the kubelet has the pod tried again.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How often.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an answer. Capturing takes some 50 ms, or as long as a command of the system may
/// (10 s) where another program holds the rules, after 3 s for the API server. With [`PATIENCE`] it is
/// well below the two minutes that a kubelet gives a runtime.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// The same where nothing depends on it: longer than the agent waits for the API server (3 s), which is
/// asked about a pod without the volume, for it may have a proxy that was written by hand.
const SHORT_LIMIT: Duration = Duration::from_secs(5);

/// What the specification gives a plugin besides standard input.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `CNI_COMMAND`.
    pub command: String,
    /// `CNI_CONTAINERID`.
    pub container: String,
    /// `CNI_NETNS`.
    pub netns: String,
    /// `CNI_ARGS`: `KEY=VALUE;KEY=VALUE`.
    pub arguments: String,
}

impl Environment {
    /// This process's own.
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

/// The plugin's part of the configuration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Configuration {
    #[serde(default)]
    cni_version: String,
    prev_result: Option<Value>,
    #[serde(default = "default_socket")]
    socket: PathBuf,
    /// Where the kubelet keeps its pods.
    #[serde(default = "default_kubelet")]
    kubelet: PathBuf,
    /// Namespaces whose pods pass where their volumes cannot be seen.
    #[serde(default)]
    exempt: Vec<String>,
    /// In milliseconds, [`PATIENCE`] by default.
    patience_ms: Option<u64>,
}

fn default_socket() -> PathBuf {
    SOCKET.into()
}

fn default_kubelet() -> PathBuf {
    "/var/lib/kubelet".into()
}

/// What a plugin prints when it fails (CNI specification, "Error").
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    version: String,
    code: u32,
    message: String,
    details: String,
}

impl Failure {
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
        Self::new("", Self::DECODE, "the configuration cannot be read", why)
    }

    /// As the specification wants it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let Self { version, code, message, details } = self;
        json!({"cniVersion": version, "code": code, "msg": message, "details": details}).to_string()
    }
}

/// Does what `CNI_COMMAND` says; what is to be printed.
///
/// # Errors
/// What is to be printed when the call fails.
pub fn run(environment: &Environment, input: &str) -> Result<String, Failure> {
    let configuration: Configuration =
        serde_json::from_str(input).map_err(|error| Failure::unreadable(&error.to_string()))?;
    let version = &configuration.cni_version;
    if environment.command == "VERSION" {
        return Ok(json!({"cniVersion": version, "supportedVersions": VERSIONS}).to_string());
    }
    if !VERSIONS.contains(&version.as_str()) {
        let details = format!("it is {version:?}; {} are spoken", VERSIONS.join(", "));
        return Err(Failure::new("", Failure::VERSION, "cniVersion is not supported", details));
    }
    match environment.command.as_str() {
        "ADD" => add(environment, &configuration),
        "CHECK" => check(environment, &configuration),
        "DEL" => {
            delete(environment, &configuration);
            Ok(String::new())
        }
        // A node without its agent still runs pods; the agent looks after what has ended by itself.
        "STATUS" | "GC" => Ok(String::new()),
        other => {
            let details = format!("CNI_COMMAND is {other:?}");
            Err(Failure::new(version, Failure::ENVIRONMENT, "unknown command", details))
        }
    }
}

fn add(environment: &Environment, configuration: &Configuration) -> Result<String, Failure> {
    let version = &configuration.cni_version;
    let Some(result) = &configuration.prev_result else {
        let message = "leno-cni makes no network of its own";
        let details = "put it after the plugins that do, as the last of a list";
        return Err(Failure::new(version, Failure::CONFIGURATION, message, details));
    };
    let Some(request) = request(Command::Add, environment, configuration) else {
        return Ok(result.to_string());
    };
    let needed = request.has_proxy != Some(false);
    match ask_patiently(configuration, &request, needed) {
        Ok(Answer { error: None, .. }) => Ok(result.to_string()),
        Ok(Answer { error: Some(why), .. }) => {
            let message = "the mesh's agent cannot capture this pod";
            Err(Failure::new(version, Failure::TRY_AGAIN, message, why))
        }
        Err(_) if !needed => Ok(result.to_string()),
        Err(error) => {
            let message = "this pod has a proxy, and the mesh's agent of this node does not answer";
            let details = format!(
                "{}: {error}; look at the DaemonSet leno-agent, or at `leno-agent cleanup` where the \
                 mesh is gone",
                configuration.socket.display()
            );
            Err(Failure::new(version, Failure::TRY_AGAIN, message, details))
        }
    }
}

fn check(environment: &Environment, configuration: &Configuration) -> Result<String, Failure> {
    let Some(request) = request(Command::Check, environment, configuration) else {
        return Ok(String::new());
    };
    // Without the agent the kernel holds what was captured.
    match ask(&configuration.socket, &request, SHORT_LIMIT) {
        Ok(Answer { error: Some(why), .. }) => {
            let message = "this pod should be captured and is not";
            Err(Failure::new(&configuration.cni_version, Failure::TRY_AGAIN, message, why))
        }
        _ => Ok(String::new()),
    }
}

/// Never fails: the agent finds by itself what was not told, and a pod must be able to end.
fn delete(environment: &Environment, configuration: &Configuration) {
    if let Some(request) = request(Command::Del, environment, configuration) {
        let _untold = ask(&configuration.socket, &request, SHORT_LIMIT);
    }
}

/// Asks; again for as long as is allowed where the pod depends on it.
fn ask_patiently(
    configuration: &Configuration,
    request: &Request,
    needed: bool,
) -> io::Result<Answer> {
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

/// What is asked; none where it is no pod of Kubernetes.
fn request(
    command: Command,
    environment: &Environment,
    configuration: &Configuration,
) -> Option<Request> {
    let arguments: HashMap<&str, &str> =
        environment.arguments.split(';').filter_map(|pair| pair.split_once('=')).collect();
    let argument =
        |name: &str| arguments.get(name).filter(|v| !v.is_empty()).map(|v| v.to_string());
    let namespace = argument("K8S_POD_NAMESPACE")?;
    let uid = argument("K8S_POD_UID");
    let seen = uid.as_deref().and_then(|uid| has_proxy(&configuration.kubelet, uid));
    let exempt = configuration.exempt.contains(&namespace);
    Some(Request {
        command,
        container: environment.container.clone(),
        netns: (!environment.netns.is_empty()).then(|| resolved(Path::new(&environment.netns))),
        pod: argument("K8S_POD_NAME")?,
        has_proxy: seen.or(exempt.then_some(false)),
        namespace,
        uid,
    })
}

/// A file without links in its folder's path: /var/run is one to /run, but not where the agent is.
fn resolved(file: &Path) -> PathBuf {
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    match (folder, file.file_name()) {
        (Some(folder), Some(name)) => folder.join(name),
        _ => file.to_owned(),
    }
}

/// Whether the pod has the proxy's volume; none where the kubelet's directories cannot be seen.
fn has_proxy(kubelet: &Path, uid: &str) -> Option<bool> {
    // A uid of the API server; of anything else no path is made.
    if !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return None;
    }
    let pod = kubelet.join("pods").join(uid);
    let volume = pod.join("volumes/kubernetes.io~projected").join(VOLUME);
    pod.is_dir().then(|| volume.is_dir())
}

#[cfg(test)]
mod tests;
