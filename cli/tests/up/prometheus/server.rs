//! A Prometheus server that runs in the network namespace of a mesh's bridge.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use leno_testkit::command::Running;
use serde_json::Value;

use crate::mesh::{Mesh, said};

/// How long any query may take until it has an answer: a rate needs two scrapes, and recording rules need another
/// round.
const PATIENCE: Duration = Duration::from_secs(120);
/// Where Prometheus listens, in that network namespace.
const LISTEN: &str = "127.0.0.1:9090";

/// A running Prometheus server. Dropping the value ends the server.
pub(super) struct Prometheus {
    netns: String,
    promtool: PathBuf,
    _running: Running,
}

impl Prometheus {
    /// Starts the server with this configuration and further arguments.
    pub(super) fn start(
        (prometheus, promtool): (&Path, PathBuf),
        mesh: &Mesh,
        configuration: &str,
        more: &[&str],
    ) -> Self {
        let file = mesh.directory().join("prometheus.yml");
        std::fs::write(&file, configuration).unwrap();
        let netns = mesh.layout().switch_netns().as_str().to_owned();
        let mut server = within(&netns, prometheus);
        server.arg(format!("--config.file={}", file.display()));
        server.arg(format!("--storage.tsdb.path={}", mesh.directory().join("data").display()));
        server.arg(format!("--web.listen-address={LISTEN}")).args(more);
        let running = Running::start(&mut server).unwrap();
        Self { netns, promtool, _running: running }
    }

    /// The answer to a query about the present.
    pub(super) fn answer(&self, query: &str) -> Output {
        let mut command = within(&self.netns, &self.promtool);
        command.args(["query", "instant", "-o", "json"]).arg(format!("http://{LISTEN}"));
        command.arg(query).output().unwrap()
    }

    /// Runs `leno` in the same network namespace, with figures from this server.
    pub(super) fn leno(&self, mesh: &Mesh, arguments: &[&str]) -> Output {
        Self::leno_at(&format!("http://{LISTEN}"), mesh, self, arguments)
    }

    pub(super) fn leno_at(url: &str, mesh: &Mesh, beside: &Self, arguments: &[&str]) -> Output {
        beside.command(url, mesh, arguments).output().unwrap()
    }

    /// Checks that `leno edges --watch`, run there, prints figures at least twice.
    pub(super) fn is_asked_again(&self, mesh: &Mesh) {
        let mut command = self.command(&format!("http://{LISTEN}"), mesh, &["edges", "--watch"]);
        let mut watching = Watching(command.stdout(Stdio::piped()).spawn().unwrap());
        let lines = BufReader::new(watching.0.stdout.take().unwrap()).lines();
        let (says, said) = mpsc::channel();
        // The thread ends with the program, which ends with this test.
        std::thread::spawn(move || {
            let heads = lines.map_while(Result::ok).filter(|line| line.starts_with("CLIENT"));
            heads.take(2).try_for_each(|head| says.send(head))
        });
        for time in ["once", "again"] {
            let head = said.recv_timeout(PATIENCE);
            assert!(head.is_ok(), "figures are not shown {time}: {head:?}");
        }
    }

    fn command(&self, url: &str, mesh: &Mesh, arguments: &[&str]) -> Command {
        let mut command = within(&self.netns, Path::new(env!("CARGO_BIN_EXE_leno")));
        command.args(arguments).args(["--prometheus", url, "--name", mesh.layout().mesh()]);
        command
    }

    fn has_series(&self, query: &str) -> bool {
        let series: Value = serde_json::from_slice(&self.answer(query).stdout).unwrap_or_default();
        series.as_array().is_some_and(|series| !series.is_empty())
    }

    /// Waits until every query has returned a series. Each query comes with a description.
    pub(super) fn until_all_have_series(&self, mut queries: Vec<(String, String)>) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            queries.retain(|(_, query)| !self.has_series(query));
            if queries.is_empty() {
                return;
            }
            let missing: Vec<String> = queries
                .iter()
                .map(|(what, query)| format!("{what}\n  {query}\n  {}", said(&self.answer(query))))
                .collect();
            assert!(Instant::now() < deadline, "no series:\n{}", missing.join("\n"));
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// The traces of the exemplars that a query returns, over all time.
    pub(super) fn exemplars(&self, query: &str) -> Vec<String> {
        let mut command = within(&self.netns, Path::new("curl"));
        command.args(["-sS", "-m", "10", "-G", "--data-urlencode"]).arg(format!("query={query}"));
        command.args(["--data-urlencode", "start=0", "--data-urlencode", "end=9999999999"]);
        let output = command.arg(format!("http://{LISTEN}/api/v1/query_exemplars")).output();
        let answer: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap_or_default();
        let lists = |of: &Value, name: &str| of[name].as_array().cloned().unwrap_or_default();
        let exemplars =
            lists(&answer, "data").into_iter().flat_map(|series| lists(&series, "exemplars"));
        let trace = |exemplar: Value| exemplar["labels"]["trace_id"].as_str().map(str::to_owned);
        exemplars.filter_map(trace).collect()
    }
}

/// A program that runs until it is killed.
struct Watching(Child);

impl Drop for Watching {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended and was reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn within(netns: &str, program: &Path) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", netns]).arg(program).stdin(Stdio::null());
    command
}
