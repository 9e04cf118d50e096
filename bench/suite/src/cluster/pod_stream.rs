//! A stream to the program in a pod, like `kubectl attach`. Requests and answers are lines.
//!
//! A request fails if its stream breaks. The next request opens another stream, to the same process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use leno_kube::api::{AttachParams, AttachedProcess};
use leno_kube::{Api, Client};
use leno_operate::Error;
use serde::de::DeserializeOwned;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, Lines,
};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use super::names::CONTAINER;
use super::wait::{late, within};
use crate::pod_program::{PodAnswer, PodRequest, PodTask};

/// How long opening a stream may take. Both the API server and the kubelet must connect for it.
const OPENED: Duration = Duration::from_secs(10);
/// The pause before a greeting is repeated to which a pod has not answered.
const GREETED: Duration = Duration::from_millis(500);
/// The largest number of bytes of answers that wait to be read.
const BUFFER: usize = 64 * 1024;

type Open = Box<dyn Fn() -> BoxFuture<'static, Result<OpenStream>> + Send + Sync>;

pub(super) struct PodStream {
    pod: String,
    open: Open,
    last: AtomicU64,
    /// `None` before the first request and after an error.
    stream: Mutex<Option<OpenStream>>,
}

pub(super) struct OpenStream {
    answers: Lines<BufReader<Box<dyn AsyncRead + Send + Unpin>>>,
    requests: Box<dyn AsyncWrite + Send + Unpin>,
    /// The connection, which ends when it is dropped.
    attached: Option<AttachedProcess>,
}

/// A request, and its answers. As long as this value exists, no other request is sent to the pod.
pub(super) struct PodCall<'a> {
    pod: &'a str,
    number: u64,
    stream: MutexGuard<'a, Option<OpenStream>>,
}

impl PodStream {
    /// The stream to a pod of the bench. Sends nothing yet.
    pub(super) fn of(client: &Client, namespace: &str, pod: &str) -> Self {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let name = pod.to_owned();
        Self::by(pod, move || {
            let (pods, name) = (pods.clone(), name.clone());
            Box::pin(async move { attach(&pods, &name).await })
        })
    }

    /// A stream that is opened with `open`.
    pub(super) fn by(
        pod: &str,
        open: impl Fn() -> BoxFuture<'static, Result<OpenStream>> + Send + Sync + 'static,
    ) -> Self {
        let (pod, last) = (pod.to_owned(), AtomicU64::default());
        Self { pod, open: Box::new(open), last, stream: Mutex::default() }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// If the pod cannot be reached; another attempt may succeed.
    pub(super) async fn call(&self, task: PodTask) -> Result<PodCall<'_>> {
        let mut stream = self.stream.lock().await;
        // A stream is used again only if its last request was written completely.
        let mut open = match stream.take() {
            Some(open) => open,
            None => within(OPENED, self.opened()).await?,
        };
        let number = self.number();
        open.send(number, task).await.with_context(|| format!("cannot query pod {}", self.pod))?;
        *stream = Some(open);
        Ok(PodCall { pod: &self.pod, number, stream })
    }

    /// Sends a request that has one answer, and returns it. A stream that does not answer in time is closed.
    ///
    /// # Errors
    /// If there is no answer within the limit, or the pod answers that it failed.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        task: PodTask,
        limit: Duration,
    ) -> Result<T> {
        let answer = async { self.call(task).await?.next().await };
        match timeout(limit, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                *self.stream.lock().await = None;
                Err(late(limit))
            }
        }
    }

    /// Opens a stream, and greets the pod until it answers. More than one greeting may be necessary, because the first
    /// answer may be lost: the container runtime drops output that the program writes before the runtime follows it.
    async fn opened(&self) -> Result<OpenStream> {
        let mut open = (self.open)().await?;
        loop {
            let number = self.number();
            open.send(number, PodTask::Greet).await?;
            if let Ok(answer) = timeout(GREETED, open.next::<()>(number)).await {
                answer.with_context(|| format!("pod {}", self.pod))?;
                return Ok(open);
            }
        }
    }

    fn number(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl PodCall<'_> {
    /// The next answer to the request.
    ///
    /// # Errors
    /// If the stream breaks, or the pod answers that it failed.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<T> {
        let open = self.stream.as_mut().context("its stream has ended")?;
        let answer = open.next(self.number).await;
        if answer.as_ref().is_err_and(anyhow::Error::is::<StreamEnded>) {
            *self.stream = None;
        }
        answer.with_context(|| format!("pod {}", self.pod))
    }

    /// Ends the load that was requested; its report follows.
    pub(super) async fn end(&mut self) -> Result<()> {
        let open = self.stream.as_mut().context("its stream has ended")?;
        // Any request ends the load. No request has the number 0, so the answer to this one is skipped.
        open.send(0, PodTask::Greet).await
    }
}

/// The stream broke.
#[derive(Debug, thiserror::Error)]
#[error(
    "the stream of `attach` ended: {0}; the API server, the kubelet or the network between may have been restarted"
)]
struct StreamEnded(String);

impl OpenStream {
    /// A stream that reads answers and writes requests.
    pub(super) fn new(
        answers: impl AsyncRead + Send + Unpin + 'static,
        requests: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let answers: Box<dyn AsyncRead + Send + Unpin> = Box::new(answers);
        let answers = BufReader::new(answers).lines();
        Self { answers, requests: Box::new(requests), attached: None }
    }

    async fn send(&mut self, number: u64, task: PodTask) -> Result<()> {
        self.requests.write_all(PodRequest::line(number, task)?.as_bytes()).await?;
        Ok(self.requests.flush().await?)
    }

    /// The next answer to this request; answers to earlier requests are skipped.
    async fn next<T: DeserializeOwned>(&mut self, number: u64) -> Result<T> {
        loop {
            let line = match self.answers.next_line().await {
                Ok(Some(line)) => line,
                ended => bail!(StreamEnded(self.end(ended.err()).await)),
            };
            let PodAnswer { number: of, answer } =
                serde_json::from_str(&line).with_context(|| format!("no answer: {line}"))?;
            // An answer with number 0 says that the pod does not understand a request.
            if of == number || (of == 0 && answer.is_err()) {
                let answer = answer.map_err(|why| match of {
                    0 => anyhow!("{why}: check that --image has the version of this program"),
                    _ => anyhow!("{why}"),
                })?;
                return Ok(serde_json::from_value(answer)?);
            }
        }
    }

    async fn end(&mut self, error: Option<std::io::Error>) -> String {
        let joined = match self.attached.take() {
            Some(attached) => timeout(GREETED, attached.join()).await.ok().and_then(Result::err),
            None => None,
        };
        let said = joined.map(|error| error.to_string()).or(error.map(|error| error.to_string()));
        said.unwrap_or_else(|| "the connection was closed".to_owned())
    }
}

async fn attach(pods: &Api<Pod>, name: &str) -> Result<OpenStream> {
    let params = AttachParams::default().container(CONTAINER).stdin(true).stderr(false);
    let params = params.max_stdin_buf_size(BUFFER).max_stdout_buf_size(BUFFER);
    let attached = pods.attach(name, &params).await;
    let mut attached = attached.map_err(Error::api(format!("attach to pod {name}")))?;
    let (answers, requests) = (attached.stdout(), attached.stdin());
    let (answers, requests) = answers.zip(requests).context("both were asked for")?;
    Ok(OpenStream { attached: Some(attached), ..OpenStream::new(answers, requests) })
}

#[cfg(test)]
pub(super) mod tests;
