//! Tests the program as `leno up` runs it: exit codes, reloads, the admin server, and how it ends.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod federation;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leno_supervise::DescriptorLimit;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const GOOD: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                    spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n";

/// The period over which CPU time is limited, in microseconds.
const PERIOD: usize = 100_000;
/// The bound of every wait. It is generous, because no test measures a duration.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running controller. It is killed if a test fails.
struct Controller {
    child: Child,
    log: BufReader<ChildStderr>,
    admin: String,
}

impl Controller {
    fn start(directory: &Path) -> Self {
        Self::of(command(directory))
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let mut controller = Self { child, log, admin: String::new() };
        let line = controller.line("serving /metrics");
        let address = line.split("address=").nth(1).unwrap();
        controller.admin = address.split_whitespace().next().unwrap().to_owned();
        controller
    }

    /// The next line of the log that contains `text`.
    fn line(&mut self, text: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.log.read_line(&mut line).unwrap(), 0, "the log ended before {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The status and body of a page of the admin server.
    fn get(&self, path: &str) -> String {
        page(&self.admin, path)
    }
}

/// The status and body of a page.
fn page(admin: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

impl Drop for Controller {
    fn drop(&mut self) {
        // The process has already ended if the test succeeded.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leno-controller"));
    command
        .args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--cert-lifetime", "60s"])
        .args(["--log", "info"])
        .env("NO_COLOR", "1")
        .arg("--state")
        .arg(directory.join("state"))
        .arg("--data")
        .arg(directory.join("control"));
    command
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("state")).unwrap();
    directory
}

/// Writes the state as `leno up` does: atomically, by renaming a file.
fn write_state(directory: &Path, text: &str) {
    let staged = directory.join("state.new");
    fs::write(&staged, text).unwrap();
    fs::rename(staged, directory.join("state/state.yaml")).unwrap();
}

/// A control group that limits CPU time. Dropping this removes it.
#[derive(Debug)]
struct CpuLimit(PathBuf);

impl CpuLimit {
    /// Creates a group for this number of CPUs. `None` if there is no writable CPU controller; then a line reports that
    /// the test is skipped.
    fn of(cpus: usize) -> Option<Self> {
        let name = format!("leno-test-{}-{cpus}", std::process::id());
        let quota = (cpus * PERIOD).to_string();
        let made = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            let directory = Path::new("/sys/fs/cgroup").join(name);
            Self::with(directory, &[("cpu.max", &format!("{quota} {PERIOD}"))])
        } else {
            let directory = Path::new("/sys/fs/cgroup/cpu").join(name);
            let period = PERIOD.to_string();
            Self::with(directory, &[("cpu.cfs_period_us", &period), ("cpu.cfs_quota_us", &quota)])
        };
        let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|one| one == "root");
        assert!(made.is_ok() || !required, "LENO_REQUIRE has root: {made:?}");
        made.inspect_err(|error| println!("skipped: needs root and a CPU controller: {error}")).ok()
    }

    fn with(directory: PathBuf, files: &[(&str, &str)]) -> io::Result<Self> {
        fs::create_dir(&directory)?;
        let made = Self(directory);
        for (file, text) in files {
            fs::write(made.0.join(file), text)?;
        }
        Ok(made)
    }

    /// The same command, run within the limit.
    fn run(&self, command: &Command) -> Command {
        let mut limited = Command::new("sh");
        limited.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(self.0.join("cgroup.procs"));
        limited.arg(command.get_program()).args(command.get_args());
        limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        limited
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        // The processes in it have ended and were reaped.
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

/// How many threads of its runtime a process has: workers, and threads for blocking calls.
fn workers(pid: u32) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("tokio")).count()
}

/// The limit of a pod's CPU time does not change the number of CPUs that programs see, so the controller must read the
/// limit itself.
#[test]
fn it_has_as_many_threads_as_its_cpu_limit_permits() {
    let machine = std::thread::available_parallelism().unwrap().get();
    for cpus in [1, 2] {
        let Some(limit) = CpuLimit::of(cpus) else { return };
        let directory = directory();
        write_state(directory.path(), GOOD);
        let mut controller = Controller::of(limit.run(&command(directory.path())));
        controller.line("serving discovery and identity");
        // Threads for blocking calls have the same name, and end after 10 s, so this waits.
        let (begin, wanted) = (Instant::now(), cpus.min(machine));
        while workers(controller.child.id()) != wanted {
            assert!(begin.elapsed() < PATIENCE, "{} threads", workers(controller.child.id()));
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(controller);
        drop(limit);
    }
}

/// Each connection needs a descriptor, and container runtimes start programs with a low soft limit.
#[test]
fn it_opens_as_many_files_as_it_is_permitted_whatever_it_begins_with() {
    let directory = directory();
    write_state(directory.path(), GOOD);
    let controller = command(directory.path());
    let mut limited = Command::new("sh");
    limited.args(["-c", r#"ulimit -Sn 100; exec "$0" "$@""#]);
    limited.arg(controller.get_program()).args(controller.get_args()).env("NO_COLOR", "1");
    let mut controller = Controller::of(limited);
    controller.line("serving discovery and identity");
    let id = controller.child.id().try_into().unwrap();
    let limit = DescriptorLimit::of_process(id).unwrap();
    assert_eq!(limit.soft(), limit.hard());
    assert_ne!(limit.soft(), 100);
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_leno-controller")).args(arguments).output().unwrap()
}

#[test]
fn it_takes_edits_refuses_bad_ones_and_ends_when_told() {
    let directory = directory();
    write_state(directory.path(), "kind: Nonsense\n");
    let mut controller = Controller::start(directory.path());
    controller.line("documents rejected");
    assert!(controller.get("/ready").starts_with("HTTP/1.1 503"));
    assert!(controller.get("/live").starts_with("HTTP/1.1 200"));

    write_state(directory.path(), GOOD);
    controller.line("serving discovery and identity");
    assert!(controller.get("/ready").starts_with("HTTP/1.1 200"));

    write_state(directory.path(), &GOOD.replace("port: 80", "port: none"));
    let problem = controller.line("state.yaml:4:");
    assert!(problem.contains("spec.ports[0].port"), "{problem}");
    controller.line("documents rejected");
    assert!(controller.get("/ready").starts_with("HTTP/1.1 200"));
    let metrics = controller.get("/metrics");
    assert!(metrics.contains("leno_control_reloads_total{result=\"refused\"} 2\n"), "{metrics}");
    assert!(metrics.contains("leno_control_last_reload_good 0\n"), "{metrics}");
    assert!(metrics.contains("leno_control_index_version 1\n"), "{metrics}");
    assert!(controller.get("/nonsense").starts_with("HTTP/1.1 404"));

    kill(Pid::from_raw(controller.child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(controller.child.wait().unwrap().code(), Some(0));
    for made in ["control/ca.pem", "control/ca-key.pem", "tokens"] {
        assert!(directory.path().join(made).exists(), "{made}");
    }
}

#[test]
fn it_serves_while_its_log_has_no_reader() {
    let directory = directory();
    write_state(directory.path(), GOOD);
    let (reader, writer) = io::pipe().unwrap();
    let mut log = BufReader::new(reader).lines();
    let mut child = command(directory.path()).stderr(writer).spawn().unwrap();
    let mut line = |text: &str| log.by_ref().map(Result::unwrap).find(|line| line.contains(text));
    let address = line("serving /metrics").unwrap();
    let admin = address.split("address=").nth(1).unwrap().split_whitespace().next().unwrap();
    line("serving discovery and identity").unwrap();
    drop(log);
    // Every reload is logged.
    let began = Instant::now();
    write_state(directory.path(), "kind: Nonsense\n");
    while !page(admin, "/metrics").contains("leno_control_last_reload_good 0\n") {
        assert!(began.elapsed() < PATIENCE, "{}", page(admin, "/metrics"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(page(admin, "/ready").starts_with("HTTP/1.1 200"));
    kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn usage_and_errors_have_their_exit_codes() {
    let help = run(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    let text = String::from_utf8(help.stdout).unwrap();
    for flag in [
        "--files",
        "--listen",
        "--ca-dir",
        "--tokens",
        "--default-mtls",
        "--default-egress",
        "--admin",
    ] {
        assert!(text.contains(flag), "{flag}: {text}");
    }
    assert_eq!(run(&["--nonsense"]).status.code(), Some(64));
    let paths = ["--files", "/nonexistent/state", "--ca-dir", "/proc/nonexistent/ca"];
    assert_eq!(run(&[&paths[..], &["--cert-lifetime", "1s"]].concat()).status.code(), Some(64));
    assert_eq!(run(&[&paths[..], &["--trust-domain", "A B"]].concat()).status.code(), Some(64));
    let failed = run(&paths);
    assert_eq!(failed.status.code(), Some(2));
    let text = String::from_utf8(failed.stderr).unwrap();
    assert!(text.contains("/proc/nonexistent/ca"), "{text}");
}
