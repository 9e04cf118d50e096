//! `leno bench prometheus` against a real Prometheus, which scrapes a small page of metrics.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leno_suite::prometheus::{Question, ask};
use leno_testkit::{tools, wait};

/// Kills the process when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// Serves metrics that grow with each scrape: requests without a mesh take up to 10 ms, with a mesh
/// up to 20 ms; a sidecar uses 0.5 s of CPU per scrape.
fn metrics() -> SocketAddr {
    static SCRAPES: AtomicU64 = AtomicU64::new(0);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut head = [0; 8192];
            // If the scraper has gone away, the write fails.
            let _ = stream.read(&mut head);
            let n = SCRAPES.fetch_add(1, Ordering::Relaxed) + 1;
            let buckets = |name: &str, bound: &str, below: u64| {
                format!(
                    "{name}_bucket{{le=\"{bound}\"}} {}\n{name}_bucket{{le=\"+Inf\"}} {}\n",
                    below * n,
                    100 * n
                )
            };
            let body = [
                "# TYPE bare histogram\n".to_owned(),
                buckets("bare", "0.01", 100),
                "# TYPE meshed histogram\n".to_owned(),
                buckets("meshed", "0.02", 100),
                format!("# TYPE cpu_seconds counter\ncpu_seconds {}\n", n as f64 * 0.5),
                "# TYPE memory gauge\nmemory 12000000\n".to_owned(),
            ]
            .concat();
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                 Content-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            // A scraper that has closed its connection does not matter to this test.
            let _ = stream.write_all((head + &body).as_bytes());
        }
    });
    address
}

#[tokio::test]
async fn a_real_prometheus_gives_all_figures_and_names_what_it_lacks() {
    let Some(program) = tools::find_or_skip("prometheus", "prometheus").unwrap() else { return };
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}\nscrape_configs:\n\
         - {{job_name: x, static_configs: [{{targets: [\"{}\"]}}]}}\n",
        metrics()
    );
    fs::write(&config, text).unwrap();
    // Another process could bind the port before Prometheus does; then Prometheus reports the error
    // and the wait fails.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let process = Command::new(program)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
        .arg(format!("--web.listen-address={listen}"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let _ended = Ended(process.unwrap());
    let limit = Duration::from_secs(60);
    wait::until("Prometheus to listen", limit, || Ok(TcpStream::connect(listen).ok())).unwrap();
    let url = format!("http://{listen}");
    let question = Question {
        window: "5s".into(),
        baseline: "bare_bucket".into(),
        mesh: "meshed_bucket".into(),
        memory: "memory".into(),
        cpu: "cpu_seconds".into(),
    };
    let deadline = std::time::Instant::now() + limit;
    // A rate needs two scrapes.
    let answer = loop {
        match ask(&url, &question).await {
            Ok(answer) => break answer,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert!((answer.baseline_p99_s - 0.0099).abs() < 1e-6, "{answer:?}");
    assert!((answer.mesh_p99_s - 0.0198).abs() < 1e-6, "{answer:?}");
    assert!((answer.added_p99_s - 0.0099).abs() < 1e-6, "{answer:?}");
    assert!((answer.sidecar_memory_bytes - 12e6).abs() < 1.0 && answer.sidecar_cpus > 0.0);
    let absent = Question { memory: "nothing_of_the_kind".into(), ..question };
    let error = ask(&url, &absent).await.unwrap_err().to_string();
    assert!(error.contains("nothing_of_the_kind"), "{error}");
}
