//! Starts a real mesh with the real `leno up`, and offers operations on it to tests.
//!
//! ```text
//!   Lab::start ── writes mesh.yaml ── leno up --name t123-0 ... ── until all instances are ready
//!   Lab::exec  ── leno exec          Lab::edit ── writes mesh.yaml again
//!   Lab::kill  ── a signal           drop ── SIGINT, leno cleanup
//! ```

mod status;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use leno_launch::LaunchedMesh;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub use status::{Instance, Status};

use crate::command::{self, Running};
use crate::peer::{Step, Transcript};
use crate::usage::{self, Usage};
use crate::{binaries, load, netns, wait};

/// How long a mesh may take to be ready. On a busy machine, databases take long to initialise.
const READY_LIMIT: Duration = Duration::from_secs(180);
/// How long a mesh may take to end.
const END_LIMIT: Duration = Duration::from_secs(90);
/// How long one command in a workload may take.
const EXEC_LIMIT: Duration = Duration::from_secs(120);

/// The backend that steers traffic into the proxies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Capture {
    /// Kernel programs.
    Ebpf,
    /// nftables rules.
    Nftables,
    /// iptables rules.
    Iptables,
}

impl Capture {
    /// All backends.
    pub const ALL: [Capture; 3] = [Capture::Ebpf, Capture::Nftables, Capture::Iptables];

    /// The value of `leno up --capture` for this backend.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Capture::Ebpf => "ebpf",
            Capture::Nftables => "nftables",
            Capture::Iptables => "iptables",
        }
    }
}

/// The options with which a mesh is started.
#[derive(Clone, Debug)]
pub struct LabOptions {
    /// The directory with Leno's programs; `None` for those of this build.
    pub programs: Option<PathBuf>,
    /// How traffic is captured.
    pub capture: Capture,
    /// `strict`, `permissive` or `disabled`; `None` for the default of `leno up`.
    pub mtls: Option<&'static str>,
    /// How long certificates are valid; `None` for the default of `leno up`.
    pub cert_lifetime: Option<Duration>,
    /// The value of `leno up --share` in node mode; `None` for sidecars. [`LabOptions::new`] takes it from
    /// [`share`].
    pub share: Option<String>,
    /// In node mode, after how long and above which percentage of a CPU a busy instance gets its own process;
    /// `None` for the defaults of `leno up`.
    pub promote: Option<(&'static str, &'static str)>,
    /// In node mode, most new connections per second of an instance; `None` for the default of `leno up`.
    pub connection_rate: Option<&'static str>,
    /// In node mode, whether instances in one process send to each other in memory. [`LabOptions::new`] takes it
    /// from [`one_pass`].
    pub one_pass: bool,
    /// A panic that proxies cause on purpose; they must be debug builds. See `LENO_TEST_PANIC` in
    /// `leno_transport::test_panic`.
    pub panic: Option<&'static str>,
    /// The network namespace in which the mesh is started; `None` for that of the test.
    pub machine: Option<String>,
    /// Whether the mesh has an uplink, through which workloads reach destinations outside the machine.
    pub uplink: bool,
    /// The resolver for names outside the mesh; `None` for the host's resolvers.
    pub resolver: Option<SocketAddr>,
    /// The value of `leno up --traces`: which traces proxies export.
    pub traces: Option<&'static str>,
    /// The value of `leno up --access-log`: what proxies log about requests.
    pub access_log: Option<&'static str>,
    /// The SPIFFE Workload API that issues certificates, `leno up --spiffe-endpoint-socket`.
    pub spiffe_endpoint_socket: Option<String>,
    /// Another trust domain and its bundle, `leno up --federate`.
    pub federate: Option<String>,
    /// How long streams may continue once another proxy serves their instance; `None` for the default of `leno up`.
    pub handover_timeout: Option<&'static str>,
    /// Which addresses of the network may get metrics, `leno up --scrape-from`.
    pub scrape_from: Option<&'static str>,
}

impl LabOptions {
    /// The defaults of `leno up` with this capture.
    #[must_use]
    pub fn new(capture: Capture) -> Self {
        LabOptions {
            programs: None,
            capture,
            mtls: None,
            cert_lifetime: None,
            share: share(),
            promote: None,
            connection_rate: None,
            one_pass: one_pass(),
            panic: None,
            machine: None,
            uplink: false,
            resolver: None,
            traces: None,
            access_log: None,
            spiffe_endpoint_socket: None,
            federate: None,
            handover_timeout: None,
            scrape_from: None,
        }
    }
}

/// What the instances that share a process have in common, from the environment variable `LENO_LAB_SHARE`; `None`
/// for sidecars.
#[must_use]
pub fn share() -> Option<String> {
    std::env::var("LENO_LAB_SHARE").ok().filter(|share| !share.is_empty())
}

/// Whether instances in one process should send to each other in memory. True unless `LENO_LAB_ONE_PASS` is
/// `false`.
#[must_use]
pub fn one_pass() -> bool {
    std::env::var("LENO_LAB_ONE_PASS").map_or(true, |value| value != "false")
}

/// A process of a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeshProcess<'a> {
    /// `leno up` itself.
    Owner,
    /// The control plane.
    Controller,
    /// The proxy of an instance such as `web-0`: its sidecar, or in node mode the node proxy of its group.
    Proxy(&'a str),
    /// The broker of an instance in node mode.
    Broker(&'a str),
    /// The application of an instance.
    Application(&'a str),
    /// The node proxy of a group such as `node` or `namespace.lab`.
    Node(&'a str),
}

/// A running mesh. Dropping this ends the mesh and removes everything that it created.
#[derive(Debug)]
pub struct Lab {
    name: String,
    leno: PathBuf,
    file: PathBuf,
    directory: tempfile::TempDir,
    up: LaunchedMesh,
    ready_after: Duration,
}

impl Lab {
    /// Starts the mesh that `yaml` describes and waits until every instance is ready. In `yaml`, `@BIN@` stands
    /// for the directory of the binaries under test, and `@DIR@` for a directory that exists as long as the mesh.
    /// `prepare` fills that directory before the start.
    pub fn start(
        options: &LabOptions,
        yaml: &str,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let leno = match &options.programs {
            Some(directory) => directory.join("leno"),
            None => binaries::ours("leno")?,
        };
        for other in ["leno-controller", "leno-proxy", "leno-broker", "leno-peer", "leno-load"] {
            binaries::ours(other)?;
        }
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{}-{nth}", std::process::id());
        let directory = tempfile::tempdir()?;
        open_to_all(directory.path())?;
        prepare(directory.path())?;
        let file = directory.path().join("mesh.yaml");
        write(&file, &fill(yaml, directory.path())?)?;
        let start = Instant::now();
        let mut up = up_command(&leno, &name, options, &file);
        let mut start_up = || LaunchedMesh::start(&mut up, "").context("cannot run leno");
        let up = match &options.machine {
            Some(machine) => netns::inside(&netns::path(machine), start_up)?,
            None => start_up()?,
        };
        let ready_after = Duration::ZERO;
        let mut lab = Lab { name, leno, file, directory, up, ready_after };
        lab.explain(lab.wait_ready())?;
        lab.ready_after = start.elapsed();
        lab.is_shared_as_asked(yaml)?;
        Ok(lab)
    }

    /// If [`share`] is set, checks that no instance has a sidecar, unless a document sets the modes. A waypoint
    /// always has its own proxy.
    fn is_shared_as_asked(&self, yaml: &str) -> Result<()> {
        if share().is_none() || yaml.contains("leno.dev/mode") {
            return Ok(());
        }
        let status = self.status()?;
        let is_waypoint =
            |one: &Instance| yaml.contains(&format!("leno.dev/waypoint: {}", one.workload));
        let mut sidecars =
            status.instances.iter().filter(|one| one.meshed && one.group().is_none());
        match sidecars.find(|one| !is_waypoint(one)) {
            Some(one) => bail!("{} has a sidecar: LENO_LAB_SHARE asks for node mode", one.name),
            None => Ok(()),
        }
    }

    /// The name of the mesh.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A directory that exists as long as the mesh.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The time from the start of `leno up` until all instances were ready.
    #[must_use]
    pub fn ready_after(&self) -> Duration {
        self.ready_after
    }

    /// The status file that `leno up` keeps for its other commands.
    pub fn status(&self) -> Result<Status> {
        Status::read(&self.name)
    }

    /// Waits until every instance is ready.
    pub fn wait_ready(&self) -> Result<()> {
        self.wait_for("the mesh to be ready", Status::ready)
    }

    /// Waits until `look` returns true for the status; `what` describes the condition in the error. Fails at once
    /// if `leno up` has ended.
    pub fn wait_for(&self, what: &str, look: impl Fn(&Status) -> bool) -> Result<()> {
        wait::until(what, READY_LIMIT, || {
            if let Some(status) = self.up.ended()? {
                bail!("leno up has ended: {status}");
            }
            // The status does not exist before it is first written.
            Ok(self.status().ok().filter(&look).map(|_| ()))
        })
    }

    /// A command of `leno` about this mesh. If `verb` has several words, they are a command and its subcommands.
    #[must_use]
    pub fn leno(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.leno);
        command.args(verb.split(' ')).args(["--name", &self.name]);
        command
    }

    /// A command that runs as the workload or instance `who`. If its name begins with `leno-`, it is a binary of
    /// this build.
    pub fn as_workload(&self, who: &str, command: &[&str]) -> Result<Command> {
        let mut exec = self.leno("exec");
        exec.args([who, "--"]);
        let (program, arguments) = command.split_first().context("there is no command")?;
        let own = if program.starts_with("leno-") { Some(binaries::ours(program)?) } else { None };
        match own {
            Some(path) => exec.arg(path),
            None => exec.arg(program),
        };
        exec.args(arguments);
        Ok(exec)
    }

    /// Runs a command as `who` to its end.
    pub fn exec(&self, who: &str, command: &[&str]) -> Result<Output> {
        command::run(&mut self.as_workload(who, command)?, EXEC_LIMIT)
    }

    /// Runs a command as `who` and returns its standard output; failure is an error.
    pub fn text(&self, who: &str, command: &[&str]) -> Result<String> {
        command::success(&format!("{who}: {command:?}"), self.exec(who, command)?)
    }

    /// The metrics page of the proxy of `who`.
    pub fn metrics(&self, who: &str) -> Result<String> {
        let url = "http://127.0.0.1:15020/metrics";
        self.text(who, &["curl", "-sS", "--fail", "-m", "20", url])
    }

    /// Starts a command as `who`.
    pub fn spawn(&self, who: &str, command: &[&str]) -> Result<Running> {
        Running::start(&mut self.as_workload(who, command)?)
    }

    /// Follows `steps` on a connection of `who` to `address`.
    pub fn talk(&self, who: &str, address: &str, steps: &[Step]) -> Result<Transcript> {
        let steps = serde_json::to_string(steps)?;
        let said = self.text(who, &["leno-peer", "talk", address, &steps])?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Waits until `http://service/` answers `who` with success, because a server listens only some time after its
    /// start. Returns how long that took.
    pub fn reach(&self, who: &str, service: &str) -> Result<Duration> {
        let start = Instant::now();
        let ask = format!("GET / HTTP/1.1\r\nHost: {service}\r\n\r\n");
        let steps = [Step::Send(ask), Step::Response(false)];
        let mut last = None;
        wait::until("a first answer", READY_LIMIT, || {
            let said = self.talk(who, service, &steps);
            let served = said.as_ref().is_ok_and(|t| t.statuses() == [200]);
            last = Some(said);
            Ok(served.then_some(()))
        })
        .with_context(|| format!("{service}: {last:?}"))?;
        Ok(start.elapsed())
    }

    /// Starts load from `who`. The arguments are those of `leno-load`.
    pub fn load(&self, who: &str, arguments: &[&str]) -> Result<Load> {
        let command = [&["leno-load", "-o", "json"], arguments].concat();
        Ok(Load(self.spawn(who, &command)?))
    }

    /// The output of `leno stat -o json`.
    pub fn stat(&self) -> Result<serde_json::Value> {
        let said = command::text(self.leno("stat").args(["-o", "json"]), EXEC_LIMIT)?;
        Ok(serde_json::from_str(&said)?)
    }

    /// Replaces the mesh's documents; `leno up` notices the change itself.
    pub fn edit(&self, yaml: &str) -> Result<()> {
        write(&self.file, &fill(yaml, self.directory.path())?)
    }

    /// The process ID of a process of the mesh.
    pub fn pid_of(&self, piece: MeshProcess<'_>) -> Result<u32> {
        let status = self.status()?;
        match piece {
            MeshProcess::Owner => Ok(self.up.pid()),
            MeshProcess::Controller => status.controller.context("there is no controller"),
            MeshProcess::Proxy(name) => self.newest(status.instance(name)?.proxy_cgroup()?),
            MeshProcess::Broker(name) => self.newest(&status.instance(name)?.broker_cgroup()?),
            MeshProcess::Node(group) => self.node(group),
            MeshProcess::Application(instance) => {
                self.first(&status.instance(instance)?.surroundings.cgroup)
            }
        }
    }

    /// A process of a group's node proxy. Control groups in which no process is left are skipped.
    fn node(&self, group: &str) -> Result<u32> {
        for mesh in status::cgroups(&self.name)? {
            for entry in fs::read_dir(mesh.join("groups")).into_iter().flatten() {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if name.rsplit_once('.').is_some_and(|(name, _number)| name == group)
                    && let Ok(pid) = self.first(&entry.path())
                {
                    return Ok(pid);
                }
            }
        }
        bail!("no process of group {group}")
    }

    /// The highest process id: older processes of the group only finish their connections.
    fn newest(&self, cgroup: &Path) -> Result<u32> {
        let pids = self.started(cgroup)?;
        pids.into_iter().max().with_context(|| format!("no process in {}", cgroup.display()))
    }

    fn first(&self, cgroup: &Path) -> Result<u32> {
        let pids = self.started(cgroup)?;
        pids.first().copied().with_context(|| format!("no process in {}", cgroup.display()))
    }

    /// The processes of a cgroup that execute their own programs. `leno up` forks a process into its cgroup and waits
    /// until it executes its program: a test that stopped it before that would stop `leno up`.
    fn started(&self, cgroup: &Path) -> Result<Vec<u32>> {
        let command_line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline"));
        let owner = command_line(self.up.pid())?;
        let mut pids = usage::pids_of_cgroup(cgroup)?;
        // A process that has ended meanwhile has no such file.
        pids.retain(|&pid| command_line(pid).is_ok_and(|command| command != owner));
        Ok(pids)
    }

    /// Sends a signal to a process of the mesh.
    pub fn kill(&self, piece: MeshProcess<'_>, signal: Signal) -> Result<()> {
        self.kill_all(&[piece], signal)
    }

    /// Sends a signal to all of these processes at once. A process that occurs several times gets it once.
    pub fn kill_all(&self, pieces: &[MeshProcess<'_>], signal: Signal) -> Result<()> {
        let pids = pieces.iter().map(|piece| self.pid_of(*piece)).collect::<Result<BTreeSet<_>>>();
        for pid in pids? {
            kill(Pid::from_raw(i32::try_from(pid)?), signal)
                .with_context(|| format!("cannot send {signal} to {pid} of {pieces:?}"))?;
        }
        Ok(())
    }

    /// The resources that a process of the mesh uses.
    pub fn usage(&self, piece: MeshProcess<'_>) -> Result<Usage> {
        usage::of_process(self.pid_of(piece)?)
    }

    /// The network namespace of an instance.
    pub fn namespace(&self, instance: &str) -> Result<PathBuf> {
        Ok(netns::path(&self.status()?.instance(instance)?.surroundings.netns))
    }

    /// The network namespace of the bridge.
    pub fn switch(&self) -> Result<PathBuf> {
        Ok(netns::path(&self.status()?.switch_netns))
    }

    /// The output of `leno up` so far.
    #[must_use]
    pub fn log(&self) -> String {
        self.up.printed()
    }

    /// If `outcome` is an error, adds the last lines of the mesh's output to it.
    pub fn explain<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|error| anyhow!("{error:#}\nthe mesh said:\n{}", self.up.last_lines()))
    }

    /// Signals `leno up` to end, and waits until it has.
    pub fn end(&self) -> Result<()> {
        wait::until("leno up to end", Duration::MAX, || {
            Ok(self.up.poll_end(END_LIMIT)?.then_some(()))
        })
    }

    /// The names of everything of the mesh that still exists on this machine: namespaces, control groups and
    /// files.
    pub fn remains(&self) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/run/netns").into_iter().flatten() {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let switch = format!("leno-{}", self.name);
            if name == switch || name.starts_with(&format!("{switch}.")) {
                found.push(format!("network namespace {name}"));
            }
        }
        let own = Path::new("/run/leno").join(&self.name);
        if own.exists() {
            found.push(own.display().to_string());
        }
        for group in status::cgroups(&self.name)? {
            found.push(group.display().to_string());
        }
        Ok(found)
    }

    /// Removes the remains of a killed mesh once its owner has ended. That may take a moment, because the signal
    /// has an effect only when the owner runs.
    pub fn clean_up(&self) -> Result<()> {
        wait::until("the killed owner to end", END_LIMIT, || Ok(self.up.ended()?.map(drop)))?;
        command::text(&mut self.leno("cleanup"), END_LIMIT).map(drop)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let ended = self.end();
        if ended.is_err() {
            // The process is killed so that it ends whatever it is blocked in. The cleanup removes the rest.
            self.up.kill();
        }
        if Path::new("/run/leno").join(&self.name).exists()
            && let Err(error) = self.clean_up()
        {
            eprintln!("cannot clean up mesh {}: {error:#}", self.name);
        }
    }
}

/// A load generator that runs in a workload.
#[derive(Debug)]
pub struct Load(Running);

impl Load {
    /// Waits for the load generator to end and returns its report.
    pub fn finish(self) -> Result<load::Report> {
        /// How long the longest load of any test may take, with some reserve.
        const LIMIT: Duration = Duration::from_secs(300);
        let output = self.0.finish(LIMIT)?;
        // Exit status 1 means that requests failed. The report contains the details.
        serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn up_command(leno: &Path, name: &str, options: &LabOptions, file: &Path) -> Command {
    let mut command = Command::new(leno);
    command.args(["up", "--name", name, "--capture", options.capture.name()]);
    if let Some(address) = &options.spiffe_endpoint_socket {
        command.args(["--spiffe-endpoint-socket", address]);
    }
    if let Some(federation) = &options.federate {
        command.args(["--federate", federation]);
    }
    if let Some(timeout) = options.handover_timeout {
        command.args(["--handover-timeout", timeout]);
    }
    if let Some(scrapers) = options.scrape_from {
        command.args(["--scrape-from", scrapers]);
    }
    if let Some(traces) = options.traces {
        command.args(["--traces", traces]);
    }
    if let Some(log) = options.access_log {
        command.args(["--access-log", log]);
    }
    if let Some(mode) = options.mtls {
        command.args(["--mtls", mode]);
    }
    if let Some(lifetime) = options.cert_lifetime {
        command.args(["--cert-lifetime", &format!("{}s", lifetime.as_secs())]);
    }
    if let Some(share) = &options.share {
        command.args(["--mode", "node", "--share", share]);
    }
    if let Some(rate) = options.connection_rate {
        command.args(["--connection-rate", rate]);
    }
    if let Some(panic) = options.panic {
        command.env("LENO_TEST_PANIC", panic);
    }
    if !options.one_pass {
        command.args(["--one-pass", "false"]);
    }
    if let Some((after, above)) = options.promote {
        command.args(["--promote-after", after, "--promote-above", above]);
    }
    if options.uplink {
        command.arg("--uplink");
    }
    if let Some(resolver) = options.resolver {
        command.args(["--resolver", &resolver.to_string()]);
    }
    command.arg(file);
    command
}

fn fill(yaml: &str, directory: &Path) -> Result<String> {
    let binaries = binaries::directory()?;
    Ok(yaml
        .replace("@BIN@", &binaries.display().to_string())
        .replace("@DIR@", &directory.display().to_string()))
}

/// Replaces a file atomically, so that readers see either the old or the new content as a whole.
fn write(file: &Path, text: &str) -> Result<()> {
    let draft = file.with_extension("draft");
    fs::write(&draft, text)?;
    fs::rename(&draft, file).with_context(|| format!("cannot write {}", file.display()))
}

fn open_to_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?)
}
