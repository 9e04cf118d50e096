//! Runs one replica of the real controller.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leno_testkit_api::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::machine;

/// A controller. It is killed if a test fails before the controller has ended.
pub(crate) struct Replica {
    child: Child,
    /// Lines of its log so far.
    log: Arc<Mutex<Vec<String>>>,
    /// The file to which the log is written, too, for reading it after a failure.
    kept: PathBuf,
}

/// How to start a replica.
pub(crate) struct Start<'a> {
    pub(crate) name: &'a str,
    /// The kubeconfig with its credentials.
    pub(crate) kubeconfig: &'a Path,
    /// The address on which it serves discovery.
    pub(crate) listen: &'a str,
    /// Its program; `None` for the one that was built with this test.
    pub(crate) program: Option<String>,
    /// The CPUs that it may use, in the syntax of `taskset`.
    pub(crate) cpus: Option<String>,
    /// Further flags.
    pub(crate) flags: &'a [&'a str],
}

impl Replica {
    /// Starts a replica with this name and the credentials of a kubeconfig.
    pub(crate) fn start(name: &str, kubeconfig: &Path) -> Self {
        Self::start_with(name, kubeconfig, &[])
    }

    /// As [`start`](Self::start), with further flags.
    pub(crate) fn start_with(name: &str, kubeconfig: &Path, flags: &[&str]) -> Self {
        let (listen, program, cpus) = ("127.0.0.1:0", None, None);
        Self::start_as(&Start { name, kubeconfig, listen, program, cpus, flags })
    }

    pub(crate) fn start_as(start: &Start<'_>) -> Self {
        let &Start { name, kubeconfig, listen, .. } = start;
        let program = start.program.as_deref().unwrap_or(env!("CARGO_BIN_EXE_leno-controller"));
        let mut command = match &start.cpus {
            None => Command::new(program),
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["--cpu-list", cpus, program]);
                command
            }
        };
        let mut child = command
            .args(["--kubernetes", "--name", name, "--log", "info,leno_cluster=debug"])
            .args(["--listen", listen, "--admin", "127.0.0.1:0", "--cert-lifetime", "1h"])
            .args(["--webhook", "127.0.0.1:0", "--proxy-image", "registry.test/proxy:1"])
            .args(["--proxy-pull-secrets", r#"[{"name":"regcred"}]"#])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(start.flags)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let taken = Arc::clone(&log);
        let kept = kubeconfig.with_file_name(format!("{name}.log"));
        let mut file = File::create(&kept).unwrap();
        // The thread ends with the controller.
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = writeln!(file, "{line}");
                taken.lock().unwrap().push(line);
            }
        });
        Self { child, log, kept }
    }

    /// Waits for the first line of the log that contains `text`, and returns it.
    pub(crate) async fn line(&self, text: &str) -> String {
        let log = Arc::clone(&self.log);
        until(&format!("{text:?} in {}", self.kept.display()), async || {
            log.lock().unwrap().iter().find(|line| line.contains(text)).cloned()
        })
        .await
    }

    /// How many lines contain `text`.
    pub(crate) fn count(&self, text: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    /// The address on which discovery is served.
    pub(crate) async fn address(&self) -> String {
        address(&self.line("serving discovery and identity").await)
    }

    /// The port of the webhooks.
    pub(crate) async fn webhook(&self) -> u16 {
        let address = address(&self.line("serving /inject and /validate").await);
        address.rsplit_once(':').unwrap().1.parse().unwrap()
    }

    /// An admin page with its status.
    pub(crate) async fn page(&self, path: &str) -> String {
        let admin = address(&self.line("serving /metrics").await);
        let mut stream = TcpStream::connect(admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let page = self.page("/metrics").await;
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
        line.unwrap_or_else(|| panic!("no {series} in {page}")).parse().unwrap()
    }

    /// A value in `/proc/PID/status`, in KiB.
    pub(crate) fn status_kib(&self, name: &str) -> u64 {
        machine::status_kib(self.child.id(), name)
    }

    /// The CPU time that the replica has used.
    pub(crate) fn cpu(&self) -> Duration {
        machine::cpu(self.child.id())
    }

    /// Stops it, and waits until it has ended.
    pub(crate) fn end(mut self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        // The process has already ended if the test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(&self.kept).unwrap_or_default();
            eprintln!("--- {}\n{log}", self.kept.display());
        }
    }
}

fn address(line: &str) -> String {
    let address = line.split("address=").nth(1).unwrap();
    address.split_whitespace().next().unwrap().to_owned()
}
