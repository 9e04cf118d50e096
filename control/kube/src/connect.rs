//! Connects to a cluster's API server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

/// The longest wait for a connection to the API server, which is in the same cluster.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the API server may be silent while a response is outstanding: more than the 290 s after
/// which it ends a watch without events.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Why a cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a service account's files nor a usable kubeconfig.
    #[error("no cluster is named: run inside one, or give --kubeconfig or KUBECONFIG")]
    Infer(#[from] kube::config::InferConfigError),
    /// The given kubeconfig cannot be used.
    #[error("{} cannot be used", .0.display())]
    File(PathBuf, #[source] KubeconfigError),
    /// The given context cannot be used.
    #[error("context {0:?} cannot be used")]
    Context(String, #[source] KubeconfigError),
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context {wanted:?}; it has {}", .known.join(", "))]
    NoContext {
        /// The given context.
        wanted: String,
        /// The contexts in the kubeconfig.
        known: Vec<String>,
    },
    /// The configured address or credentials cannot be used.
    #[error("the cluster's address or credentials cannot be used")]
    Client(#[from] kube::Error),
}

/// A client for a cluster. The configuration is that of `kubeconfig`, else the one that
/// `KUBECONFIG` or `~/.kube/config` names, else, if no `context` is given, the service account of
/// the pod that this process runs in. `context` selects a context of a kubeconfig other than its
/// current one. Sends no request yet.
///
/// # Errors
/// No cluster is configured, or its configuration cannot be used.
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let failed = |error| match (kubeconfig, context) {
        (Some(path), _) => ConnectError::File(path.to_owned(), error),
        (None, context) => ConnectError::Context(context.unwrap_or_default().to_owned(), error),
    };
    let config = match (kubeconfig, context) {
        (None, None) => Config::infer().await?,
        (path, context) => {
            let read = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
            let file = read.map_err(failed)?;
            has_context(&file, context)?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
        }
    };
    client(config)
}

/// A client for the server at this address, without TLS and credentials, such as the one of a test.
///
/// # Errors
/// The address cannot be used.
pub fn connect_to(address: http::Uri) -> Result<Client, ConnectError> {
    client(Config::new(address))
}

/// The current context of this kubeconfig, or of the one that `KUBECONFIG` or `~/.kube/config` names. `None` if there
/// is none, or it cannot be read.
#[must_use]
pub fn current_context(kubeconfig: Option<&Path>) -> Option<String> {
    kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from).ok()?.current_context
}

fn client(mut config: Config) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // Silence on a connection without an outstanding request does not count.
    config.reset_reader_on_write = true;
    // Callers have their own intervals for retries.
    config.default_retry = false;
    config.headers.extend(user_agent().map(|agent| (USER_AGENT, agent)));
    Ok(Client::try_from(config)?)
}

/// By what the logs of the API server name this program, as in `leno-agent/0.1.0`.
fn user_agent() -> Option<HeaderValue> {
    let program = std::env::current_exe().ok()?;
    let name = program.file_name()?.to_str()?;
    HeaderValue::from_str(&format!("{name}/{}", env!("CARGO_PKG_VERSION"))).ok()
}

fn has_context(file: &Kubeconfig, wanted: Option<&str>) -> Result<(), ConnectError> {
    let known: Vec<String> = file.contexts.iter().map(|one| one.name.clone()).collect();
    match wanted.filter(|wanted| !known.iter().any(|one| one == wanted)) {
        Some(wanted) => Err(ConnectError::NoContext { wanted: wanted.to_owned(), known }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Namespace;
    use kube::Api;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_server_that_takes_a_request_and_falls_silent_is_not_waited_for_for_ever() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let config = format!(
            r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
                "clusters":[{{"name":"c","cluster":{{"server":"http://{address}"}}}}],
                "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
                "users":[{{"name":"u","user":{{"token":"t"}}}}]}}"#
        );
        std::fs::write(file.path(), config).unwrap();
        let client = connect(Some(file.path()), None).await.unwrap();
        let list = tokio::spawn(async move {
            Api::<Namespace>::all(client).list(&kube::api::ListParams::default()).await.map(drop)
        });
        let (mut connection, _) = server.accept().await.unwrap();
        assert!(connection.read(&mut [0; 64]).await.unwrap() > 0);
        tokio::time::pause();
        let done = tokio::time::timeout(READ_TIMEOUT * 2, list).await;
        assert!(done.expect("the list ends").unwrap().is_err());
    }
}
