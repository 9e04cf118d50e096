//! Why something could not be done in a cluster.

/// Why something could not be done in a cluster.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] leno_sources::ConnectError),
    /// Its API server does not know who asks.
    #[error("{0}: the API server does not accept the credentials of the kubeconfig")]
    Unknown(String),
    /// Whoever asks lacks a right; the API server says which.
    #[error("{what}: {said}; docs/guide/kubernetes.md has the rights that each command needs")]
    Forbidden {
        /// What was asked for.
        what: String,
        /// What the API server says of it: verb, resource and namespace.
        said: String,
    },
    /// There is no answer.
    #[error("{0}: the API server does not answer: {1}")]
    Silent(String, String),
    /// It says no.
    #[error("{0}: the API server does not do it")]
    Api(String, #[source] kube::Error),
    /// A pod is reached, or its node is, and there is no answer.
    #[error("{0}: {1}")]
    Pod(String, String),
    /// A file cannot be written.
    #[error("{} cannot be written", .0.display())]
    File(std::path::PathBuf, #[source] std::io::Error),
    /// There is no such pod.
    #[error("there is no pod {0}{1}")]
    NoPod(String, String),
    /// A pod that is not in the mesh.
    #[error(
        "pod {0} has no proxy: label its namespace leno.dev/inject=enabled and restart it, or use leno inject"
    )]
    NoProxy(String),
    /// A pod of its node's network.
    #[error("pod {0} has its node's network, which is never captured")]
    HostNetwork(String),
    /// A pod that is on no node.
    #[error("pod {0} is on no node yet: kubectl describe pod says why")]
    Nowhere(String),
    /// A node without an agent.
    #[error(
        "no node agent runs on {node}, so that no pod with a proxy starts there: kubectl -n {system} describe \
         daemonset leno-agent; kubectl get nodes has the nodes that there are"
    )]
    NoAgent {
        /// The node.
        node: String,
        /// The namespace of the agents.
        system: String,
    },
    /// An agent of a version that does not say what it captures.
    #[error(
        "the agent of node {0} is of an earlier version and does not say what it captures: leno upgrade | kubectl \
         apply --server-side -f -"
    )]
    OldAgent(String),
    /// More proxies than can be asked at a time.
    #[error("there are {0} proxies, and {1} can be asked at a time: say which namespace with -n")]
    TooMany(usize, usize),
    /// There is nothing to remove.
    #[error("nothing is installed in {0}: say --namespace with the one that it is in")]
    Nothing(String),
    /// Rights that are missing, of several that are needed; nothing was done yet.
    #[error(
        "not allowed to {}: nothing was changed; docs/guide/install.md has all rights that this needs",
        .0.join(", ")
    )]
    Lacking(Vec<String>),
    /// The mesh was installed while it was being removed: what shows it.
    #[error(
        "the mesh was installed again while it was being removed ({0}): nothing more is removed. To remove it, end \
         what installs it (kubectl, Helm, a GitOps controller) and repeat leno uninstall; to keep it, leno upgrade \
         | kubectl apply --server-side -f -"
    )]
    Installed(String),
    /// Another removal at the same time: what it does.
    #[error(
        "another leno uninstall {0}, and this one ends: the one that began last goes on. If that one has failed, \
         repeat leno uninstall"
    )]
    Another(&'static str),
    /// A namespace that is not there.
    #[error("there is no namespace {0:?}{1}")]
    NoNamespace(String, String),
    /// A node cannot be reached.
    #[error("it is not ready")]
    NotReady,
    /// Something takes longer than it should.
    #[error("{0}: waited for {1} s")]
    Late(String, u64),
    /// The chart and the cluster do not go together.
    #[error(transparent)]
    Chart(#[from] leno_charts::Error),
    /// What the chart says is no document.
    #[error("the chart has a document that cannot be read: {0}")]
    Document(String),
}

impl Error {
    /// What an error of the client means to whoever asked for `what`.
    pub fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |error| match error {
            kube::Error::Api(status) if status.code == 403 => {
                Self::Forbidden { what, said: status.message }
            }
            kube::Error::Api(status) if status.code == 401 => Self::Unknown(what),
            kube::Error::HyperError(_) | kube::Error::Service(_) => {
                Self::Silent(what, innermost(&error))
            }
            error => Self::Api(what, error),
        }
    }

    /// The error with its causes, in one line.
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

/// The last of an error's causes: those before it say that a request has failed.
fn innermost(error: &kube::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
