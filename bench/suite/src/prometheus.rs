//! Queries a Prometheus for what a mesh costs.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use http::uri::Scheme;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use leno_observe::prometheus::samples;
use serde::Serialize;

/// The default histogram without a mesh.
const BASELINE: &str = "request_duration_seconds_bucket{mesh=\"none\"}";
/// The default histogram with a mesh.
const MESH: &str = "leno_request_duration_seconds_bucket{direction=\"outbound\"}";
/// The default gauge of the sidecars' memory, in bytes.
const MEMORY: &str = "process_resident_memory_bytes{job=\"leno-proxy\"}";
/// The default counter of the sidecars' CPU time, in seconds.
const CPU: &str = "process_cpu_seconds_total{job=\"leno-proxy\"}";

/// How often a query is tried. With the pauses below, all attempts take about 6 s.
const ATTEMPTS: u32 = 5;
/// The first pause. Each further pause is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(400);
/// How long one attempt may take.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest answer that is read. This is more than enough, because a query asks for one number.
const MAX_ANSWER: usize = 1 << 20;

/// The queries to make.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Question {
    /// Time range of the figures, in PromQL's notation
    #[arg(long, default_value = "5m")]
    pub window: String,

    /// Histogram of latencies without a mesh, with its labels
    #[arg(long, default_value = BASELINE)]
    pub baseline: String,

    /// Histogram of latencies with the mesh, with its labels
    #[arg(long, default_value = MESH)]
    pub mesh: String,

    /// Gauge of the memory of the sidecars, in bytes
    #[arg(long, default_value = MEMORY)]
    pub memory: String,

    /// Counter of the CPU time of the sidecars, in seconds
    #[arg(long, default_value = CPU)]
    pub cpu: String,
}

/// The results of the queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Answer {
    /// The 99th percentile without a mesh, in seconds.
    pub baseline_p99_s: f64,
    /// The 99th percentile with the mesh, in seconds.
    pub mesh_p99_s: f64,
    /// The difference, in seconds.
    pub added_p99_s: f64,
    /// Mean memory of a sidecar, in bytes.
    pub sidecar_memory_bytes: f64,
    /// Mean CPU of a sidecar, in processors.
    pub sidecar_cpus: f64,
}

impl Answer {
    /// Every figure, with its name.
    pub fn figures(&self) -> [(&'static str, f64); 5] {
        [
            ("baseline_p99_s", self.baseline_p99_s),
            ("mesh_p99_s", self.mesh_p99_s),
            ("added_p99_s", self.added_p99_s),
            ("sidecar_memory_bytes", self.sidecar_memory_bytes),
            ("sidecar_cpus", self.sidecar_cpus),
        ]
    }

    /// The names of the figures and the figures, as two lines of CSV.
    pub fn csv(&self) -> String {
        let (names, values): (Vec<&str>, Vec<String>) =
            self.figures().into_iter().map(|(name, value)| (name, value.to_string())).unzip();
        format!("{}\n{}\n", names.join(","), values.join(","))
    }
}

/// Queries the Prometheus at `url`.
///
/// # Errors
/// If Prometheus does not answer after all attempts, rejects a query, or lacks a metric; the error names
/// the metric.
pub async fn ask(url: &str, question: &Question) -> Result<Answer> {
    let window = &question.window;
    let p99 = |buckets: &str| {
        format!("histogram_quantile(0.99, sum by (le) (rate({buckets}[{window}])))")
    };
    let baseline_p99_s = value(url, &p99(&question.baseline), &question.baseline).await?;
    let mesh_p99_s = value(url, &p99(&question.mesh), &question.mesh).await?;
    let memory = format!("avg(avg_over_time({}[{window}]))", question.memory);
    let cpu = format!("avg(rate({}[{window}]))", question.cpu);
    Ok(Answer {
        baseline_p99_s,
        mesh_p99_s,
        added_p99_s: mesh_p99_s - baseline_p99_s,
        sidecar_memory_bytes: value(url, &memory, &question.memory).await?,
        sidecar_cpus: value(url, &cpu, &question.cpu).await?,
    })
}

/// The single number that a query returns. If it returns none, the error names `metric`.
async fn value(url: &str, query: &str, metric: &str) -> Result<f64> {
    let encoded =
        form_urlencoded::Serializer::new(String::new()).append_pair("query", query).finish();
    let address = format!("{}/api/v1/query?{encoded}", url.trim_end_matches('/'));
    let address = address.parse().ok().filter(|uri: &Uri| uri.scheme() == Some(&Scheme::HTTP));
    let address = address.with_context(|| {
        format!("{url:?} is not the address of a Prometheus: use http://HOST:PORT")
    })?;
    let (mut pause, mut attempt) = (PAUSE, 1);
    let body = loop {
        let late = || anyhow!("it does not answer within {LIMIT:?}");
        let got = tokio::time::timeout(LIMIT, get(&address)).await.unwrap_or_else(|_| Err(late()));
        match got {
            Ok(body) => break body,
            Err(why) => ensure!(attempt < ATTEMPTS, "{url}: {why:#}, {ATTEMPTS} times over"),
        }
        tokio::time::sleep(pause).await;
        (attempt, pause) = (attempt + 1, pause * 2);
    };
    let samples = samples(metric, &body);
    let samples = samples.map_err(|why| anyhow!("{url} refuses {query}: {why}"))?;
    samples.first().map(|sample| sample.value).with_context(|| {
        format!(
            "Prometheus has no samples of {metric} in that time: check the name, its labels and \
             --window, or pass another metric"
        )
    })
}

/// Sends a query. If the query itself is wrong, this is not an error here, and the answer says so; errors are failures
/// that may be temporary.
async fn get(address: &Uri) -> Result<String> {
    let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let response = client.get(address.clone()).await.context("no answer")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|error| anyhow!("broken answer: {error}"))?.to_bytes();
    let is_busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    ensure!(!is_busy, "refused for now: {status}");
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    /// A server that sends the given answers one after the other, and then stops.
    fn server(answers: Vec<&'static str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 4096];
                let _read = stream.read(&mut head).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        url
    }

    const BUSY: &str = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    const EMPTY: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\
        {\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[]}}";
    const ONE: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n\
        {\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[{\"metric\":{},\"value\":[1,\"0.25\"]}]}}";
    const BAD: &str = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n\
        {\"status\":\"error\",\"errorType\":\"bad_data\",\"error\":\"parse error at char 3\"}";

    #[tokio::test]
    async fn a_query_that_fails_temporarily_is_repeated() {
        let url = server(vec![BUSY, BUSY, ONE]);
        assert_eq!(value(&url, "up", "up").await.unwrap(), 0.25);
    }

    #[tokio::test]
    async fn a_missing_metric_is_named_and_a_bad_query_is_not_repeated() {
        let error = value(&server(vec![EMPTY]), "sum(up)", "up").await.unwrap_err().to_string();
        assert!(error.contains("no samples of up"), "{error}");
        let error = value(&server(vec![BAD]), "su(", "up").await.unwrap_err().to_string();
        assert!(error.contains("parse error at char 3"), "{error}");
        assert!(value("ftp://x", "up", "up").await.unwrap_err().to_string().contains("http://"));
    }

    #[test]
    fn answers_become_csv() {
        let answer = Answer { mesh_p99_s: 0.5, ..Answer::default() };
        assert_eq!(answer.csv().lines().nth(1), Some("0,0.5,0,0,0"));
    }
}
