//! The lab in which measurements run: the namespaces of `leno up`, with or without its proxies.
//!
//! ```text
//! client ── bridge ── s0, s1, ...     each in a namespace, with an application of the suite
//! ```
//! The client does nothing by itself: the load generator runs in its place.

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
use leno_local::program::{find, missing};
use leno_local::status::{InstanceStatus, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::application::{PORT, arguments};
use crate::interrupt::Interrupt;
use crate::real::program;
use crate::revision::{self, CHURNING};
use crate::scenario::{Disturbance, Scenario};

/// The namespace of all workloads.
const NAMESPACE: &str = "bench";
/// The workload that the load generator runs as.
pub(crate) const CLIENT: &str = "client";
/// The workload that floods a service other than the measured ones.
pub(crate) const NEIGHBOUR: &str = "neighbour";
/// How long the lab may take to become ready, on a slow machine.
const READY: Duration = Duration::from_secs(60);
/// How long the lab may take to end.
const END: Duration = Duration::from_secs(30);
/// How often the state of the lab is polled.
const LOOK: Duration = Duration::from_millis(20);
/// How many of the last lines of `leno up` an error shows.
const LINES: usize = 20;

/// The running namespaces; dropping this removes them.
#[derive(Debug)]
pub(crate) struct Lab {
    name: String,
    layout: Layout,
    application: Option<PathBuf>,
    up: Child,
    log: File,
    ended: bool,
    directory: tempfile::TempDir,
}

impl Lab {
    /// Starts the client and the services of a scenario; with Leno's proxies if `capture` names how
    /// they capture traffic.
    pub(crate) fn start(
        name: &str,
        (scenario, application): (&Scenario, Option<&Path>),
        capture: Option<Choice>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let leno = leno()?;
        let application = application.map(Path::to_owned);
        let directory = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
        open_to_all(directory.path())?;
        let file = directory.path().join("mesh.yaml");
        let own = own_program()?;
        let programs = Programs { own: &own, application: application.as_deref() };
        fs::write(&file, documents(programs, scenario, capture.is_some(), 0)?)?;
        let log = tempfile::tempfile()?;
        let up = Command::new(&leno)
            .args(["up", "--with-parent", "--name", name, "--mtls", "strict", "--capture"])
            .arg(capture.unwrap_or_default().to_string())
            .arg(&file)
            // Ctrl-C must only reach the bench, which ends the lab in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .spawn()
            .context("cannot start leno up")?;
        let layout = Layout::new(name)?;
        let name = name.to_owned();
        let mut lab = Lab { name, layout, application, up, log, ended: false, directory };
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

    /// The instances that run.
    pub(crate) fn status(&self) -> Result<Status> {
        Ok(Status::read(&self.layout)?)
    }

    /// Whether the services are the real application's.
    pub(crate) fn is_real(&self) -> bool {
        self.application.is_some()
    }

    /// A directory that all users may enter and that exists as long as the lab.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process of `leno up` itself, which captures traffic and supervises.
    pub(crate) fn agent(&self) -> u32 {
        self.up.id()
    }

    /// Gives Leno's own proxies another revision of the configuration as users do: by editing the
    /// file.
    pub(crate) fn edit(&self, scenario: &Scenario, revision: u64) -> Result<()> {
        let own = own_program()?;
        let programs = Programs { own: &own, application: self.application.as_deref() };
        let text = documents(programs, scenario, true, revision)?;
        replace(&self.directory.path().join("mesh.yaml"), &text)
    }

    /// A command that runs as the client.
    pub(crate) fn as_client(&self, program: &Path) -> Result<Command> {
        self.as_workload(CLIENT, program)
    }

    /// A command that runs as a workload.
    pub(crate) fn as_workload(&self, workload: &str, program: &Path) -> Result<Command> {
        let mut command = Command::new(leno()?);
        command.args(["exec", "--name", &self.name, "-n", NAMESPACE, workload, "--"]).arg(program);
        // Ctrl-C must only reach the bench.
        command.process_group(0);
        Ok(command)
    }

    /// The addresses that the client dials, one per service in order. They are all IPv4, so that
    /// every mesh and every generator carries the same traffic.
    pub(crate) fn addresses(&self, scenario: &Scenario) -> Result<Vec<SocketAddrV4>> {
        (0..scenario.services).map(|nth| self.address(&scenario.service(nth))).collect()
    }

    /// The address of the service whose endpoints come and go, which only Leno's own mesh has.
    pub(crate) fn churning(&self) -> Result<SocketAddrV4> {
        self.address(CHURNING)
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

    /// Asks `leno up` to end, and waits until it has removed everything.
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

    /// How many revisions of a pushed configuration the applications have reported.
    pub(crate) fn arrived(&self) -> u64 {
        revision::arrived(&self.printed())
    }

    /// The output of `leno up`; empty if it cannot be read.
    fn printed(&self) -> String {
        use std::os::unix::fs::FileExt;
        // Reads at an explicit offset: `leno up` writes at the file's own position.
        let end = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; end as usize];
        let read = self.log.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// The last lines that `leno up` printed.
    pub(crate) fn log(&self) -> String {
        let text = self.printed();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.ended {
            // The lab is dropped because of another error, which is the one to report.
            let _gone = self.up.kill();
            let _gone = self.up.wait();
            let _left = leno_local::cleanup::cleanup(Some(&self.name));
        }
    }
}

/// Whether an instance is the client.
pub(crate) fn is_client(instance: &InstanceStatus) -> bool {
    instance.workload == CLIENT
}

/// Whether this instance generates load, so that no application listens in it.
pub(crate) fn makes_load(instance: &InstanceStatus) -> bool {
    is_client(instance) || instance.workload == NEIGHBOUR
}

/// Replaces a file atomically, so that no reader sees half of it.
pub(crate) fn replace(path: &Path, text: &str) -> Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    Ok(fs::rename(&draft, path)?)
}

/// The cgroup of an instance's proxy; `leno up` creates it even without a proxy.
pub(crate) fn proxy_cgroup(instance: &InstanceStatus) -> Result<PathBuf> {
    let group = instance.surroundings.cgroup.parent().context("a control group has a parent")?;
    Ok(group.join("proxy"))
}

/// `leno`, which creates the lab's namespaces and runs programs in them.
fn leno() -> Result<PathBuf> {
    Ok(find("leno").ok_or_else(|| missing("leno"))?)
}

/// This program, which also serves and generates load inside workloads.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot tell where this program is")
}

/// Makes a directory accessible to the users that proxies run as.
pub(crate) fn open_to_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?)
}

/// The programs that run in a lab.
#[derive(Clone, Copy)]
struct Programs<'a> {
    /// This program.
    own: &'a Path,
    /// The folder of the real application, if it replaces the suite's own services.
    application: Option<&'a Path>,
}

/// The documents of a lab in a revision; the first revision is 0.
fn documents(
    programs: Programs<'_>,
    scenario: &Scenario,
    meshed: bool,
    revision: u64,
) -> Result<String> {
    let mut text = String::new();
    if !meshed {
        text += &format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, annotations: \
             {{leno.dev/inject: disabled}}}}\n---\n"
        );
    }
    text += &workload(CLIENT, "[sleep, infinity]", ("", false));
    if scenario.neighbour.is_some() {
        text += &format!("---\n{}", workload(NEIGHBOUR, "[sleep, infinity]", ("", false)));
    }
    let disturbance = scenario.disturbance.filter(|_| meshed);
    let there = match disturbance {
        Some(disturbance) => disturbance.endpoints(scenario.services, revision),
        None => Vec::new(),
    };
    for nth in 0..scenario.services {
        let is_opaque = programs.application.is_some() && scenario.opaque.contains(&nth);
        let protocol = if is_opaque { "tcp" } else { scenario.app_protocol(nth) };
        let ports = format!("  ports: [{{name: x, port: {PORT}, appProtocol: {protocol}}}]\n");
        let is_there = scenario.churns() && there.contains(&nth);
        let command = match programs.application {
            Some(folder) => program(folder, scenario, nth)?,
            None => application(programs.own, scenario, nth),
        };
        text += &format!("---\n{}", workload(&scenario.service(nth), &command, (&ports, is_there)));
    }
    match disturbance {
        Some(Disturbance::Push { .. }) => {
            let route = revision::route(NAMESPACE, scenario, revision);
            // JSON is valid YAML.
            text += &format!("---\n{route:#}\n");
        }
        Some(Disturbance::Churn { .. }) => text += &churning(scenario),
        _ => {}
    }
    Ok(text)
}

/// The command of a service's application.
fn application(own: &Path, scenario: &Scenario, nth: u32) -> String {
    let address = |service: u32| format!("{}:{PORT}", scenario.service(service));
    let words = [own.display().to_string()];
    let words = words.into_iter().chain(arguments(scenario, nth, address));
    // JSON is valid YAML.
    serde_json::to_string(&words.collect::<Vec<_>>()).expect("it is text")
}

/// A service that selects workloads by a label that comes and goes.
fn churning(scenario: &Scenario) -> String {
    let protocol = scenario.app_protocol(0);
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {CHURNING}, namespace: {NAMESPACE}}}\n\
         spec:\n  selector: {{there: \"yes\"}}\n  \
         ports: [{{name: x, port: {PORT}, appProtocol: {protocol}}}]\n"
    )
}

fn workload(name: &str, command: &str, (ports, is_there): (&str, bool)) -> String {
    let there = if is_there { ", there: \"yes\"" } else { "" };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: {NAMESPACE}, labels: {{app: {name}{there}}}}}\n\
         spec:\n  serviceAccount: {name}\n  command: {command}\n{ports}"
    )
}

/// Runs a command with `input` on its standard input, until it ends or the run is interrupted.
pub(crate) fn run(command: &mut Command, input: &str, interrupt: &Interrupt) -> Result<Vec<u8>> {
    Running::start(command, input)?.end(interrupt)
}

/// A running command whose standard input is open; dropping it kills the command.
pub(crate) struct Running {
    name: String,
    child: Child,
    out: File,
    errors: File,
}

impl Running {
    /// Starts a command and writes `input` to its standard input.
    pub(crate) fn start(command: &mut Command, input: &str) -> Result<Self> {
        let name = format!("{command:?}");
        let (out, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn()
            .with_context(|| format!("cannot run {name}"))?;
        if let Some(stdin) = &mut child.stdin {
            // A command that does not read has ended early; its own output says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        Ok(Self { name, child, out, errors })
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Closes the command's standard input, waits until it ends or the run is interrupted, and
    /// returns its output.
    pub(crate) fn end(mut self, interrupt: &Interrupt) -> Result<Vec<u8>> {
        drop(self.child.stdin.take());
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            interrupt.check()?;
            std::thread::sleep(LOOK);
        };
        if !status.success() {
            let (name, errors) = (&self.name, read(&mut self.errors)?);
            bail!("{name} ended with {status}: {}", String::from_utf8_lossy(&errors).trim());
        }
        read(&mut self.out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

/// The whole contents of a file.
fn read(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_runs_until_its_input_ends_runs_until_then_and_is_heard() {
        let mut command = Command::new("sh");
        command.args(["-c", "read line; echo $line; cat; echo ended"]);
        let mut running = Running::start(&mut command, "begun\n").unwrap();
        assert!(running.is_running().unwrap(), "its input is open");
        let said = running.end(&Interrupt::default()).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), "begun\nended\n");
        let interrupted = Interrupt::default();
        interrupted.raise();
        let for_ever = Running::start(Command::new("sleep").arg("3600"), "").unwrap();
        for_ever.end(&interrupted).unwrap_err();
    }

    fn of(name: &str, meshed: bool, revision: u64) -> String {
        let programs = Programs { own: Path::new("/x/leno-bench"), application: None };
        documents(programs, &crate::scenario::find(name).unwrap(), meshed, revision).unwrap()
    }

    #[test]
    fn the_real_application_runs_in_place_of_ours_when_all_of_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let shop = crate::scenario::find("teastore").unwrap();
        let own = Path::new("/x/leno-bench");
        let programs = Programs { own, application: Some(folder.path()) };
        let make = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        };
        for name in ["webui.jar", "auth", "persistence.jar", "image.jar", "recommender.jar"] {
            make(name);
        }
        let missing = documents(programs, &shop, true, 0).unwrap_err().to_string();
        assert!(missing.contains("registry.jar"), "{missing}");
        for name in ["registry.jar", "db"] {
            make(name);
        }
        let text = documents(programs, &shop, true, 0).unwrap();
        assert_eq!(
            (text.matches("[\"java\",\"-jar\"").count(), text.matches("\"serve\"").count()),
            (5, 0)
        );
        let db = text.split("---\n").find(|one| one.contains("{name: db,")).unwrap();
        assert!(db.contains("appProtocol: tcp"), "it speaks first: {db}");
        assert_eq!(text.matches("appProtocol: http").count(), 6);
        assert!(!of("teastore", true, 0).contains("appProtocol: tcp"), "ours speaks HTTP");
        assert!(text.contains("REGISTRY_HOST: registry, REGISTRY_PORT: \"8080\""), "{text}");
        for document in text.split("---\n") {
            serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
        }
    }

    #[test]
    fn every_service_has_a_workload_and_the_bare_lab_no_proxies() {
        assert_eq!(of("http-1k", true, 0).matches("kind: Workload").count(), 11);
        assert!(!of("http-1k", true, 0).contains("inject: disabled"));
        assert!(of("http-1k", false, 0).contains("inject: disabled"));
        assert!(of("tcp-64k", true, 0).contains("--tcp"));
        let faces = of("faces", true, 0);
        assert_eq!(faces.matches("\"--call-grpc\",\"color:8080\"").count(), 1);
        assert_eq!(faces.matches("appProtocol: grpc").count(), 1);
        assert_eq!(of("neighbour", true, 0).matches("kind: Workload").count(), 4);
        let shop = of("teastore", true, 0);
        assert!(
            shop.contains("\"--call-http\",\"recommender:8080=/product,/cartAction\""),
            "{shop}"
        );
        assert_eq!(shop.matches("--call-http").count(), 6);
    }

    #[test]
    fn every_revision_is_a_set_of_documents_of_its_own() {
        let (one, two) = (of("push", true, 1), of("push", true, 2));
        assert_ne!(one, two);
        assert!(one.contains("\"value\": \"1\"") && one.contains("\"HTTPRoute\""), "{one}");
        for document in one.split("---\n") {
            serde_saphyr::from_str::<serde_json::Value>(document).expect(document);
        }
        assert!(!of("push", false, 1).contains("HTTPRoute"), "there is nobody to take it");
        assert_eq!(of("churn", true, 0).matches(", there: ").count(), 10);
        assert_eq!(of("churn", true, 2).matches(", there: ").count(), 2);
        assert_eq!(of("churn", false, 2).matches("there: ").count(), 0);
    }
}
