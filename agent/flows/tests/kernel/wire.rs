//! Tests requests that are read from frames against the counts of real servers and clients.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use leno_flows::{FlowLevel, FlowMetricsSource, FlowSizes};

use crate::lab::{Lab, PrometheusRows, SERVER, has_root, until};

const REQUESTS: &str = "leno_flow_requests_total";
const OPENED: &str = "leno_flow_connections_opened_total";
const TIMED: &str = "leno_flow_request_duration_seconds_count";

/// A server in the server's network namespace. Dropping this ends it.
struct Server(Child);

impl Server {
    /// Starts a program, and waits until it listens.
    fn start(lab: &Lab, mut command: Command, port: u16) -> Self {
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self(lab.within("server", || command.spawn().unwrap()));
        let at = SocketAddr::new(IpAddr::from([127, 0, 0, 1]), port);
        until("the server to listen", || lab.within("server", || TcpStream::connect(at).is_ok()));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have already ended.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Whether this process is root, and these programs are installed. If not, prints that the test is skipped, or
/// fails if `LENO_REQUIRE` contains `servers`.
fn can_run(programs: &[&str]) -> bool {
    let is_there = |program: &&&str| {
        let run = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        run.is_ok_and(|status| status.success())
    };
    let missing = programs.iter().find(|program| !is_there(program));
    if let Some(program) = missing {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("servers"));
        assert!(!required, "needs {program}");
        eprintln!("skipped: needs {program}");
    }
    has_root() && missing.is_none()
}

/// Runs a program in the client's network namespace. Returns its output.
fn call(lab: &Lab, program: &str, arguments: &[&str]) -> String {
    let output = lab.within("client", || Command::new(program).args(arguments).output().unwrap());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn count(rows: &PrometheusRows, protocol: &str, kind: &str, result: &str) -> u64 {
    let labels =
        [("workload", "client"), ("protocol", protocol), ("kind", kind), ("result", result)];
    rows.of_side("client", REQUESTS, &labels)
}

/// Waits until `all` requests of a protocol are counted. Asserts that no sample was lost.
fn counted(lab: &mut Lab, protocol: &str, all: u64) -> PrometheusRows {
    let of = [("protocol", protocol)];
    let rows = lab.metrics_when(|rows| rows.of_side("client", REQUESTS, &of) >= all);
    assert_eq!(rows.of_side("client", REQUESTS, &of), all, "{rows:#?}");
    assert_eq!(rows.sum("leno_flow_samples_lost_total", &[]), 0);
    rows
}

#[test]
fn requests_of_http_are_those_of_the_client_by_method_and_class() {
    if !can_run(&["curl", "python3"]) {
        return;
    }
    let mut lab = Lab::of_requests(FlowSizes::default());
    let mut python = Command::new("python3");
    python.args(["-m", "http.server", "8080", "--bind", "::"]).current_dir("/usr/share");
    let _server = Server::start(&lab, python, 8080);
    for address in [SERVER[0].to_owned(), format!("[{}]", SERVER[1])] {
        // First over one connection, then over one connection for each request.
        let url = |path: &str| format!("http://{address}:8080/{path}");
        call(&lab, "curl", &["-sS", "-o", "/dev/null", &url("?[1-100]")]);
        call(&lab, "curl", &["-sSI", "-o", "/dev/null", &url("?[1-30]")]);
        call(&lab, "curl", &["-sS", "-o", "/dev/null", &url("none-[1-20]")]);
        call(&lab, "curl", &["-sS", "-o", "/dev/null", "-d", "a=b", &url("?[1-10]")]);
    }
    let rows = counted(&mut lab, "http1", 320);
    for (kind, result, expected) in
        [("GET", "2xx", 200), ("HEAD", "2xx", 60), ("GET", "4xx", 40), ("POST", "5xx", 20)]
    {
        assert_eq!(count(&rows, "http1", kind, result), expected, "{kind} {result}: {rows:#?}");
    }
    assert_eq!(rows.of_side("client", TIMED, &[("protocol", "http1")]), 320);
    let listed = lab.view().wire_requests().unwrap();
    assert_eq!(listed.iter().map(|row| row.requests).sum::<u64>(), 320, "{listed:?}");
    assert!(listed.iter().all(|row| row.protocol == "http1" && row.mean_ms > 0.0), "{listed:?}");
}

#[test]
fn commands_of_redis_are_those_that_its_server_counts() {
    if !can_run(&["redis-server", "redis-cli", "python3"]) {
        return;
    }
    let mut lab = Lab::of_requests(FlowSizes::default());
    let mut redis = Command::new("redis-server");
    redis.args(["--port", "6379", "--save", "", "--protected-mode", "no"]).current_dir("/tmp");
    let _server = Server::start(&lab, redis, 6379);
    let cli =
        |lab: &Lab, more: &[&str]| call(lab, "redis-cli", &[&["-h", SERVER[0]], more].concat());
    cli(&lab, &["-r", "200", "SET", "k", "a value"]);
    cli(&lab, &["-r", "100", "GET", "k"]);
    // Errors of the server, one at a time, and then pipelined commands.
    cli(&lab, &["-r", "20", "INCR", "k"]);
    let large = "x".repeat(100_000);
    cli(&lab, &["SET", "large", &large]);
    assert_eq!(cli(&lab, &["GET", "large"]).trim().len(), large.len());
    let pipeline = "import socket, sys\n\
        s = socket.create_connection((sys.argv[1], 6379))\n\
        left = 0\n\
        for _ in range(50):\n\
        \x20   s.sendall(b'*2\\r\\n$4\\r\\nLLEN\\r\\n$4\\r\\nnone\\r\\n' * 10)\n\
        \x20   left = 40\n\
        \x20   while left: left -= len(s.recv(left))\n";
    call(&lab, "python3", &["-c", pipeline, SERVER[0]]);
    let stats = lab.within("server", || {
        Command::new("redis-cli").args(["INFO", "commandstats"]).output().unwrap()
    });
    let stats = String::from_utf8(stats.stdout).unwrap();
    let by_server = |command: &str| -> u64 {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        let calls = line.and_then(|line| line.split(',').next()?.strip_prefix("calls="));
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    assert_eq!([by_server("set"), by_server("get"), by_server("llen")], [201, 101, 500]);
    // `redis-cli` only asks the server for its list of commands if it is interactive.
    let rows = lab.metrics_when(|rows| count(rows, "redis", "LLEN", "ok") >= 500);
    for (kind, result, expected) in [
        ("SET", "ok", by_server("set")),
        ("GET", "ok", by_server("get")),
        ("INCR", "error", by_server("incr")),
        ("LLEN", "ok", by_server("llen")),
    ] {
        assert_eq!(count(&rows, "redis", kind, result), expected, "{kind}: {rows:#?}");
    }
    assert_eq!(rows.sum("leno_flow_samples_lost_total", &[]), 0);
}

#[test]
fn counts_go_on_through_a_restart_and_end_with_the_setting() {
    if !can_run(&["curl", "python3"]) {
        return;
    }
    let mut lab = Lab::of_requests(FlowSizes::default());
    let mut python = Command::new("python3");
    python.args(["-m", "http.server", "8080"]).current_dir("/usr/share");
    let _server = Server::start(&lab, python, 8080);
    let url = format!("http://{}:8080/?[1-10]", SERVER[0]);
    let get = |lab: &Lab| call(lab, "curl", &["-sS", "-o", "/dev/null", &url]);
    get(&lab);
    counted(&mut lab, "http1", 10);
    lab.restart(FlowSizes::default());
    get(&lab);
    counted(&mut lab, "http1", 20);
    lab.view().upgrade(|| Ok(())).unwrap();
    get(&lab);
    let before = counted(&mut lab, "http1", 30);
    // Frames are still counted, but payload is not sampled, either because of the level or because of the setting.
    let labels = [("socket", "wire"), ("protocol", "tcp")];
    let opened = |rows: &PrometheusRows| rows.of_side("client", OPENED, &labels);
    let samples = |rows: &PrometheusRows| rows.sum("leno_flow_samples_total", &[]);
    for step in 1..=2 {
        match step {
            1 => lab.accounts().set_level(FlowLevel::Packets).unwrap(),
            _ => {
                lab.accounts().set_source("client-0", FlowMetricsSource::Packets, None).unwrap();
                lab.accounts().set_level(FlowLevel::Full).unwrap();
            }
        }
        get(&lab);
        let after = lab.metrics_when(|rows| opened(rows) >= opened(&before) + step);
        assert_eq!(samples(&after), samples(&before));
    }
    counted(&mut lab, "http1", 30);
}
