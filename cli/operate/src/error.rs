//! Errors of operations in a cluster.

/// Why an operation in a cluster failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no kubeconfig, and this process does not run in a pod.
    #[error(
        "no cluster is selected, because there is no ~/.kube/config: pass --kubeconfig FILE, or \
         set KUBECONFIG"
    )]
    NoCluster,
    /// Connecting to the cluster failed.
    #[error(transparent)]
    Connect(#[from] leno_kube::ConnectError),
    /// The API server rejects the user's credentials.
    #[error(
        "{0}: the API server rejects the credentials of the kubeconfig: renew them, or pass \
         another --kubeconfig or --context"
    )]
    Unknown(String),
    /// The user lacks a right, which the API server names.
    #[error("{what}: {said}: docs/guide/kubernetes.md lists the rights that each command needs")]
    Forbidden {
        /// The operation.
        what: String,
        /// The API server's message: verb, resource and namespace.
        said: String,
    },
    /// The API server does not answer.
    #[error("{0}: the API server does not answer: {1}")]
    Silent(String, String),
    /// The API server rejects the request.
    #[error("{0}: the API server rejects the request")]
    Api(String, #[source] leno_kube::Error),
    /// A pod, or its node, was reached, but the pod does not answer.
    #[error("{0}: {1}")]
    Pod(String, String),
    /// A file cannot be written.
    #[error("{} cannot be written", .0.display())]
    File(std::path::PathBuf, #[source] std::io::Error),
    /// The pod does not exist.
    #[error("there is no pod {0}{1}")]
    NoPod(String, String),
    /// The pod is not in the mesh.
    #[error(
        "pod {0} has no proxy: label its namespace leno.dev/inject=enabled and restart the pod, or \
         use `leno inject`"
    )]
    NoProxy(String),
    /// The pod uses its node's network.
    #[error("pod {0} uses its node's network (hostNetwork), which is never captured")]
    HostNetwork(String),
    /// The pod is on no node.
    #[error("pod {0} is not scheduled to a node yet: `kubectl describe pod` shows why")]
    Nowhere(String),
    /// The node has no agent.
    #[error(
        "no node agent runs on node {node}, so pods with a proxy do not start there: kubectl -n \
         {system} describe daemonset leno-agent; `kubectl get nodes` lists the nodes"
    )]
    NoAgent {
        /// The node.
        node: String,
        /// The namespace of the agents.
        system: String,
    },
    /// The agent's version is too old to report what it captures.
    #[error(
        "the agent of node {0} is of an earlier version, which does not report what it captures: \
         leno upgrade | kubectl apply --server-side -f -"
    )]
    OldAgent(String),
    /// There is no observer, which keeps the history of the mesh.
    #[error(
        "there is no observer in namespace {0}, which keeps the history of the mesh: install it \
         with leno upgrade --set observer.enabled=true | kubectl apply --server-side -f -; if Leno \
         is in another namespace, pass --system-namespace"
    )]
    NoObserver(String),
    /// The observer refused the request; the text is the observer's.
    #[error("the observer of the mesh: {0}")]
    Observer(String),
    /// There are more proxies than one command can query.
    #[error(
        "there are {0} proxies, and one command queries at most {1}: choose a namespace with -n"
    )]
    TooMany(usize, usize),
    /// There is no installation to remove.
    #[error("Leno is not installed in namespace {0}: pass its namespace with --namespace")]
    Nothing(String),
    /// Several rights are missing; nothing has been changed.
    #[error(
        "you are not permitted to {}; nothing was changed: docs/guide/install.md lists all rights \
         that this needs",
        .0.join(", ")
    )]
    Lacking(Vec<String>),
    /// The mesh was installed during its removal; the text names the evidence.
    #[error(
        "the mesh was installed again while it was being removed ({0}), so the removal stops here: \
         to remove it, stop what installs it (kubectl, Helm, a GitOps controller) and run leno \
         uninstall again; to keep it, leno upgrade | kubectl apply --server-side -f -"
    )]
    Installed(String),
    /// Another removal runs at the same time; the text says what the other removal does.
    #[error(
        "another leno uninstall {0}, so this one stops: if the other one has failed, run leno \
         uninstall again"
    )]
    Another(&'static str),
    /// The namespace does not exist.
    #[error("there is no namespace {0:?}{1}")]
    NoNamespace(String, String),
    /// The node is not ready.
    #[error("it is not ready")]
    NotReady,
    /// An operation takes too long.
    #[error("{0}: waited for {1} s")]
    Late(String, u64),
    /// The chart does not suit the cluster.
    #[error(transparent)]
    Chart(#[from] leno_charts::Error),
    /// A document of the chart is invalid.
    #[error("the chart has an invalid document: {0}")]
    Document(String),
}

impl Error {
    /// Turns an error of the Kubernetes client, during the operation `what`, into an [`Error`].
    pub fn api(what: impl Into<String>) -> impl FnOnce(leno_kube::Error) -> Self {
        let what = what.into();
        move |error| match error {
            leno_kube::Error::Api(status) if status.code == 403 => {
                Self::Forbidden { what, said: status.message }
            }
            leno_kube::Error::Api(status) if status.code == 401 => Self::Unknown(what),
            leno_kube::Error::HyperError(_) | leno_kube::Error::Service(_) => {
                Self::Silent(what, innermost(&error))
            }
            error => Self::Api(what, error),
        }
    }

    /// The error with its causes, on one line.
    #[must_use]
    pub fn said(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text += &format!(": {error}");
            cause = error.source();
        }
        text
    }

    /// Whether a right is missing.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }
}

/// The innermost cause of an error: the outer ones only state that a request failed.
fn innermost(error: &leno_kube::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
