//! The place of every measurement: the namespaces of `leno up`, with or without its proxies.
//!
//! ```text
//! client ── bridge ── s0, s1, ...     each a namespace with an application of the suite
//! ```
//! The client does nothing by itself: the load generator is run as it.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_capture::Choice;
use leno_local::layout::Layout;
use leno_local::status::{InstanceStatus, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::interrupt::Interrupt;
use crate::scenario::Scenario;

/// The namespace of all workloads.
const NAMESPACE: &str = "bench";
/// The workload that the load generator is run as.
pub(crate) const CLIENT: &str = "client";
/// Where every application listens.
pub(crate) const PORT: u16 = 8080;
/// How long all of it may take to be ready, on a slow machine.
const READY: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END: Duration = Duration::from_secs(30);
/// How often either is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// Lines of what it printed that are shown when it fails.
const LINES: usize = 20;

/// The running namespaces; dropping them removes everything.
#[derive(Debug)]
pub(crate) struct Lab {
    name: String,
    layout: Layout,
    up: Child,
    log: File,
    ended: bool,
    directory: tempfile::TempDir,
}

impl Lab {
    /// Brings up the client and the services of a scenario, behind Leno's proxies when `capture`
    /// says by what they are captured.
    pub(crate) fn start(
        name: &str,
        scenario: &Scenario,
        capture: Option<Choice>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let leno = leno()?;
        let directory = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
        open_to_all(directory.path())?;
        let file = directory.path().join("mesh.yaml");
        fs::write(&file, documents(&leno, scenario, capture.is_some()))?;
        let log = tempfile::tempfile()?;
        let up = Command::new(&leno)
            .args(["up", "--with-parent", "--name", name, "--mtls", "strict", "--capture"])
            .arg(capture.unwrap_or_default().to_string())
            .arg(&file)
            // Ctrl-C is for the bench, which ends the lab in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()
            .context("cannot start leno up")?;
        let layout = Layout::new(name)?;
        let mut lab = Lab { name: name.to_owned(), layout, up, log, ended: false, directory };
        lab.wait_ready(interrupt)?;
        Ok(lab)
    }

    fn wait_ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        let deadline = Instant::now() + READY;
        loop {
            let status = Status::read(&self.layout);
            if status.is_ok_and(|s| !s.instances.is_empty() && s.instances.iter().all(|i| i.ready))
            {
                return Ok(());
            }
            if let Some(status) = self.up.try_wait()? {
                self.ended = true;
                bail!("leno up ended with {status}:\n{}", self.log());
            }
            if Instant::now() > deadline {
                bail!("the lab was not ready within {READY:?}:\n{}", self.log());
            }
            interrupt.check()?;
            std::thread::sleep(LOOK);
        }
    }

    /// What runs.
    pub(crate) fn status(&self) -> Result<Status> {
        Ok(Status::read(&self.layout)?)
    }

    /// A directory that every user may enter and that lives as long as the lab.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process of `leno up` itself: what captures and supervises.
    pub(crate) fn agent(&self) -> u32 {
        self.up.id()
    }

    /// A command that is run as the client.
    pub(crate) fn as_client(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(leno()?);
        command.args(["exec", "--name", &self.name, "-n", NAMESPACE, CLIENT, "--"]).arg(program);
        // Ctrl-C is for the bench.
        command.process_group(0);
        Ok(command)
    }

    /// What the client connects to for each service, in order: over IPv4 alone, so that every mesh
    /// and every generator takes the same way.
    pub(crate) fn addresses(&self, services: u32) -> Result<Vec<SocketAddrV4>> {
        (0..services).map(|nth| self.address(&service(nth))).collect()
    }

    fn address(&self, service: &str) -> Result<SocketAddrV4> {
        let output = self.as_client(Path::new("getent"))?.args(["ahostsv4", service]).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let first = text.split_whitespace().next().and_then(|ip| ip.parse::<Ipv4Addr>().ok());
        let address = first.with_context(|| {
            format!("{service} has no address: {}", String::from_utf8_lossy(&output.stderr))
        })?;
        Ok(SocketAddrV4::new(address, PORT))
    }

    /// Asks it to end, and waits until nothing of it is left.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(i32::try_from(self.up.id())?), Signal::SIGINT)?;
        let deadline = Instant::now() + END;
        while self.up.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("leno up did not end within {END:?}:\n{}", self.log());
            }
            std::thread::sleep(LOOK);
        }
        self.ended = true;
        Ok(())
    }

    /// The last lines that `leno up` printed.
    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        // Where it cannot be read there is an error already, which this is to explain.
        if let Ok(mut log) = self.log.try_clone() {
            let _ = log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_string(&mut text));
        }
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.ended {
            // On the way out after an error, which is the one to report.
            let _gone = self.up.kill();
            let _gone = self.up.wait();
            let _left = leno_local::cleanup::cleanup(Some(&self.name));
        }
    }
}

/// The name of a service, which is that of its workload.
pub(crate) fn service(nth: u32) -> String {
    format!("s{nth}")
}

/// Whether an instance is the client.
pub(crate) fn is_client(instance: &InstanceStatus) -> bool {
    instance.workload == CLIENT
}

/// The cgroup of an instance's proxy; `leno up` makes it whether or not there is one.
pub(crate) fn proxy_cgroup(instance: &InstanceStatus) -> Result<PathBuf> {
    let group = instance.surroundings.cgroup.parent().context("a control group has a parent")?;
    Ok(group.join("proxy"))
}

/// This program, of which everything else of a lab is made.
pub(crate) fn leno() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell where this program is")
}

/// Opens a directory to the users that proxies run as.
pub(crate) fn open_to_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?)
}

fn documents(leno: &Path, scenario: &Scenario, meshed: bool) -> String {
    let mut text = String::new();
    if !meshed {
        text += &format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, annotations: \
             {{leno.dev/inject: disabled}}}}\n---\n"
        );
    }
    text += &workload(CLIENT, "[sleep, infinity]", "");
    let mut command =
        format!("[\"{}\", bench, serve, --listen, \"0.0.0.0:{PORT}\"", leno.display());
    if !scenario.is_http() {
        command += ", --tcp";
    }
    command += &format!(
        ", --work-ms, \"{}\", --response-bytes, \"{}\"",
        scenario.work_ms, scenario.response_bytes
    );
    for nth in 0..scenario.services {
        let mut command = command.clone();
        for call in scenario.calls.iter().filter(|_| nth == 0) {
            let how = if call.grpc { "--call-grpc" } else { "--call-http" };
            command += &format!(", {how}, \"{}:{PORT}\"", service(call.service));
        }
        let protocol = scenario.app_protocol(nth);
        let ports = format!("  ports: [{{name: x, port: {PORT}, appProtocol: {protocol}}}]\n");
        text += "---\n";
        text += &workload(&service(nth), &(command + "]"), &ports);
    }
    text
}

fn workload(name: &str, command: &str, ports: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {name}}}}}\n\
         spec:\n  serviceAccount: {name}\n  command: {command}\n{ports}"
    )
}

/// Runs a command with something on its standard input, until it ends or the run is interrupted.
pub(crate) fn run(command: &mut Command, input: &str, interrupt: &Interrupt) -> Result<Vec<u8>> {
    let name = format!("{command:?}");
    let (out, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(out.try_clone()?)
        .stderr(errors.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read ends early, and says why itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if let Err(error) = interrupt.check() {
            let _gone = child.kill();
            let _gone = child.wait();
            return Err(error.into());
        }
        std::thread::sleep(LOOK);
    };
    let read = |mut file: File| -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let said = read(out)?;
    if !status.success() {
        let errors = read(errors)?;
        bail!("{name} ended with {status}: {}", String::from_utf8_lossy(&errors).trim());
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_a_workload_and_the_bare_lab_no_proxies() {
        let scenario = crate::scenario::find("http-1k").unwrap();
        let meshed = documents(Path::new("/x/leno"), &scenario, true);
        assert_eq!(meshed.matches("kind: Workload").count(), 11);
        assert!(!meshed.contains("inject: disabled"));
        assert!(documents(Path::new("/x/leno"), &scenario, false).contains("inject: disabled"));
        let tcp = crate::scenario::find("tcp-64k").unwrap();
        assert!(documents(Path::new("/x/leno"), &tcp, true).contains("--tcp"));
        let faces = documents(Path::new("/x/leno"), &crate::scenario::find("faces").unwrap(), true);
        assert_eq!(faces.matches("--call-grpc, \"s2:8080\"").count(), 1);
        assert_eq!(faces.matches("appProtocol: grpc").count(), 1);
    }
}
