//! Runs `leno bench prometheus` with a real Prometheus, which scrapes a small page of metrics.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::Command;
use std::time::{Duration, Instant};

use leno_suite::prometheus::{Question, ask};
use leno_testkit::command::Listening;
use leno_testkit::tools;

/// Serves metrics that increase with each scrape: requests without a mesh take up to 10 ms, with a mesh up to 20 ms; a
/// sidecar uses 0.5 s of CPU per scrape.
fn metrics() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        for (n, mut stream) in (1..).zip(listener.incoming().flatten()) {
            let bucket =
                |name: &str, bound: &str| format!("{name}_bucket{{le=\"{bound}\"}} {}\n", 100 * n);
            let buckets = |name: &str, bound: &str| {
                format!("# TYPE {name} histogram\n{}", bucket(name, bound) + &bucket(name, "+Inf"))
            };
            let body = buckets("bare", "0.01")
                + &buckets("meshed", "0.02")
                + &format!("# TYPE cpu_seconds counter\ncpu_seconds {}\n", f64::from(n) * 0.5)
                + "# TYPE memory gauge\nmemory 12000000\n";
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\
                 Content-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // Both calls fail if the scraper has closed the connection.
            let _ = stream.read(&mut [0; 8192]);
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
    // Another process could use the port before Prometheus does; Prometheus would then end.
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()))
        .arg(format!("--web.listen-address={listen}"));
    let _running = Listening::start(&mut command, listen).unwrap();
    let url = format!("http://{listen}");
    let question = Question {
        window: "5s".into(),
        baseline: "bare_bucket".into(),
        mesh: "meshed_bucket".into(),
        memory: "memory".into(),
        cpu: "cpu_seconds".into(),
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    // A rate is only known after two scrapes.
    let answer = loop {
        match ask(&url, &question).await {
            Ok(answer) => break answer,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
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
