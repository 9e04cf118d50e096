//! Connects to a cluster's API server.

use std::future::{Ready, ready};
use std::path::{Path, PathBuf};
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;
use http::header::{AUTHORIZATION, USER_AGENT};
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower_layer::Layer as _;
use tower_service::Service;

/// The longest wait for a connection to the API server. It is in the same cluster, so connecting takes only a
/// moment.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the API server may be silent while a response is outstanding. This exceeds the 290 s after which it
/// ends a watch without events.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// Why a cluster cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is neither a service account's files nor a usable kubeconfig.
    #[error("no cluster is selected: run in a pod, or set --kubeconfig or KUBECONFIG")]
    Infer(#[from] kube::config::InferConfigError),
    /// The given kubeconfig cannot be used.
    #[error("cannot use {}", .0.display())]
    File(PathBuf, #[source] KubeconfigError),
    /// The given context cannot be used.
    #[error("cannot use context {0:?}")]
    Context(String, #[source] KubeconfigError),
    /// The kubeconfig has no such context.
    #[error("the kubeconfig has no context {wanted:?}: use one of {}", .known.join(", "))]
    NoContext {
        /// The given context.
        wanted: String,
        /// The contexts in the kubeconfig.
        known: Vec<String>,
    },
    /// No token can be obtained.
    #[error("the kubeconfig provides no token: {0}")]
    Token(String),
    /// The configured address or credentials cannot be used.
    #[error("cannot use the cluster's address or credentials")]
    Client(#[from] kube::Error),
}

/// Creates a client for a cluster, without sending a request. Uses `kubeconfig` if it is given; else the file that
/// `KUBECONFIG` names, or `~/.kube/config`; else, if no `context` is given, the service account of the pod in
/// which this process runs. `context` selects another context of the kubeconfig than the current one.
///
/// # Errors
/// No cluster is configured, or its configuration cannot be used.
pub async fn connect(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Client, ConnectError> {
    client(configured(kubeconfig, context).await?)
}

/// The token with which a client of [`connect`] authenticates to the API server; `None` if it uses a certificate,
/// or does not authenticate. Runs the plugin that the kubeconfig names, if any.
///
/// # Errors
/// The errors of [`connect`], and if the plugin fails.
pub async fn bearer(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Option<String>, ConnectError> {
    let config = configured(kubeconfig, context).await?;
    let Some(layer) = config.auth_layer()? else { return Ok(None) };
    let sent = send(layer.layer(Headers)).await;
    let headers = sent.map_err(|error| ConnectError::Token(error.to_string()))?;
    let value = headers.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    Ok(value.and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned))
}

async fn configured(
    kubeconfig: Option<&Path>,
    context: Option<&str>,
) -> Result<Config, ConnectError> {
    let options =
        KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let failed = |error| match (kubeconfig, context) {
        (Some(path), _) => ConnectError::File(path.to_owned(), error),
        (None, context) => ConnectError::Context(context.unwrap_or_default().to_owned(), error),
    };
    Ok(match (kubeconfig, context) {
        (None, None) => Config::infer().await?,
        (path, context) => {
            let read = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from);
            let file = read.map_err(failed)?;
            has_context(&file, context)?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(failed)?
        }
    })
}

/// The error of the layer that adds tokens to requests.
type LayerError = Box<dyn std::error::Error + Send + Sync>;

/// Sends an empty request through a service.
async fn send<S>(mut service: S) -> Result<http::Response<()>, LayerError>
where
    S: Service<http::Request<Body>, Response = http::Response<()>>,
    S::Error: Into<LayerError>,
{
    std::future::poll_fn(|context| service.poll_ready(context)).await.map_err(Into::into)?;
    service.call(http::Request::new(Body::empty())).await.map_err(Into::into)
}

/// A service that answers a request with the request's own headers.
#[derive(Clone)]
struct Headers;

impl<B> Service<http::Request<B>> for Headers {
    type Response = http::Response<()>;
    type Error = LayerError;
    type Future = Ready<Result<http::Response<()>, LayerError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LayerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let mut response = http::Response::new(());
        *response.headers_mut() = request.into_parts().0.headers;
        ready(Ok(response))
    }
}

/// Creates a client for a server at this address, without TLS and credentials, for tests.
///
/// # Errors
/// The address cannot be used.
pub fn connect_to(address: http::Uri) -> Result<Client, ConnectError> {
    client(Config::new(address))
}

/// The name of the current context in this kubeconfig, or in the file that `KUBECONFIG` names or `~/.kube/config`.
/// `None` if there is none, or it cannot be read.
#[must_use]
pub fn current_context(kubeconfig: Option<&Path>) -> Option<String> {
    kubeconfig.map_or_else(Kubeconfig::read, Kubeconfig::read_from).ok()?.current_context
}

fn client(mut config: Config) -> Result<Client, ConnectError> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    // The time of silence begins again with each request, so that a connection without outstanding requests does
    // not count as silent.
    config.reset_reader_on_write = true;
    // Callers retry at intervals of their own.
    config.default_retry = false;
    config.headers.extend(user_agent().map(|agent| (USER_AGENT, agent)));
    Ok(Client::try_from(config)?)
}

/// The name and version of this program, such as `leno-agent/0.1.0`, for the logs of the API server.
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
    async fn the_token_of_a_kubeconfig_is_the_one_that_is_sent() {
        let token = async |user: &str| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let config = format!(
                r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
                    "clusters":[{{"name":"c","cluster":{{"server":"http://127.0.0.1:1"}}}}],
                    "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],
                    "users":[{{"name":"u","user":{user}}}]}}"#
            );
            std::fs::write(file.path(), config).unwrap();
            bearer(Some(file.path()), None).await.unwrap()
        };
        assert_eq!(token(r#"{"token":"one"}"#).await.as_deref(), Some("one"));
        let plugin = r#"{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"echo",
            "interactiveMode":"Never","args":["{\"apiVersion\":\"client.authentication.k8s.io/v1\",
            \"kind\":\"ExecCredential\",\"status\":{\"token\":\"two\"}}"]}}"#;
        assert_eq!(token(plugin).await.as_deref(), Some("two"));
        assert_eq!(token(r#"{"username":"a","password":"b"}"#).await, None);
        assert_eq!(token("{}").await, None);
    }

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
