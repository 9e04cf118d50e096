//! The lab in which measurements run: the namespaces of `leno up`, with or without its proxies.
//!
//! ```text
//! client ── bridge ── s0, s1, ...     each in a namespace, with an application of the suite
//! ```
//! The application of the client is idle: the load generator runs in the client's namespace and control group.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_launch::LaunchedMesh;
use leno_local::admin::Admin;
use leno_local::layout::Layout;
use leno_local::netns::Netns;
use leno_local::program::{find, missing};
use leno_local::status::{InstanceStatus, MeshStatus};

use super::documents::{NAMESPACE, Programs, documents};
use super::mesh::{LenoProxies, Observed};
use crate::application::PORT;
use crate::files;
use crate::interrupt::Interrupt;
use crate::process::own_program;
use crate::revision::{self, CHURNING};
use crate::scenario::{CLIENT, NEIGHBOUR, Scenario};

/// How long the lab may take to become ready on a slow machine.
const READY: Duration = Duration::from_secs(60);
/// The additional time for each service until the lab is ready.
const READY_EACH: Duration = Duration::from_secs(2);
/// How long the lab may take to end.
const END: Duration = Duration::from_secs(30);
/// The metric of the memory of buffers and connections: its name, and the blank before its value.
const CHARGED: &str = "leno_memory_charged_bytes ";
/// How often the state of the lab is polled.
const LOOK: Duration = Duration::from_millis(20);

/// The running network namespaces of a lab. They are removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Lab {
    name: String,
    layout: Layout,
    application: Option<PathBuf>,
    own: Option<LenoProxies>,
    up: LaunchedMesh,
    /// `leno tap`, if its cost should be measured.
    tap: Option<Child>,
    ended: bool,
    directory: tempfile::TempDir,
}

impl Lab {
    /// Starts the client and the services of a scenario. If `own` is given, they have proxies of Leno.
    pub(crate) fn start(
        name: &str,
        (scenario, application): (&Scenario, Option<&Path>),
        own: Option<LenoProxies>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let leno = leno()?;
        let application = application.map(Path::to_owned);
        let directory = tempfile::Builder::new().prefix("leno-bench-").tempdir()?;
        open_to_all(directory.path())?;
        let file = directory.path().join("mesh.yaml");
        let program = own_program()?;
        let programs = Programs { own: &program, application: application.as_deref() };
        fs::write(&file, documents(programs, scenario, own, 0)?)?;
        let LenoProxies { capture, observed, .. } = own.unwrap_or_default();
        let mut up = Command::new(&leno);
        up.args(["up", "--with-parent", "--name", name, "--mtls", "strict", "--capture"])
            .arg(capture.to_string())
            .args(settings(observed, scenario))
            // No process may start during a measurement, because it would not be measured.
            .args(["--promote-after", "never"])
            .arg(&file)
            // Ctrl-C must end only the bench, which then ends the lab in an orderly way.
            .process_group(0);
        let up = LaunchedMesh::start(&mut up, "").context("cannot start leno up")?;
        let (layout, name) = (Layout::new(name)?, name.to_owned());
        let tap = None;
        let mut lab = Lab { name, layout, application, own, up, tap, ended: false, directory };
        let ready = READY + READY_EACH * scenario.services;
        while !lab.up.poll_ready(ready, lab.status().is_ok_and(|status| status.is_ready()))? {
            interrupt.sleep(LOOK)?;
        }
        if observed == Observed::Tap {
            lab.tap = Some(lab.start_tap(&leno)?);
        }
        Ok(lab)
    }

    /// Starts a tap that shows as many requests of the client as possible. Its output is discarded.
    fn start_tap(&self, leno: &Path) -> Result<Child> {
        let mut tap = Command::new(leno);
        tap.args(["tap", "--name", &self.name, "-n", NAMESPACE, CLIENT]);
        tap.args(["--max-rps", "500", "-o", "json"]);
        tap.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        tap.spawn().context("cannot start leno tap")
    }

    pub(crate) fn status(&self) -> Result<MeshStatus> {
        Ok(MeshStatus::read(&self.layout)?)
    }

    pub(crate) fn is_real(&self) -> bool {
        self.application.is_some()
    }

    /// A directory that all users may enter. It exists as long as the lab.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns, for each workload with a proxy of Leno, the bytes of buffers and connections that the proxy itself
    /// reports. A proxy that does not answer is left out.
    pub(crate) fn charged(&self) -> Result<BTreeMap<String, u64>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut charged = BTreeMap::new();
        for instance in self.status()?.instances.iter().filter(|one| one.proxy.is_some()) {
            let Ok(netns) = Netns::open(&instance.surroundings.netns) else { continue };
            let page = runtime.block_on(Admin::within(&netns).get("/metrics"));
            let bytes = page.ok().and_then(|page| {
                let line = page.body.lines().find_map(|line| line.strip_prefix(CHARGED))?;
                line.trim().parse::<f64>().ok()
            });
            charged.extend(bytes.map(|bytes| (instance.workload.clone(), bytes as u64)));
        }
        Ok(charged)
    }

    /// The process of `leno up` itself, which captures traffic and supervises the proxies.
    pub(crate) fn agent(&self) -> u32 {
        self.up.pid()
    }

    /// Changes the configuration of Leno's proxies to another revision as users do: writes the file that `leno up`
    /// watches.
    pub(crate) fn edit(&self, scenario: &Scenario, revision: u64) -> Result<()> {
        let program = own_program()?;
        let programs = Programs { own: &program, application: self.application.as_deref() };
        let text = documents(programs, scenario, self.own, revision)?;
        files::replace(&self.directory.path().join("mesh.yaml"), &text)
    }

    /// Lets a new process take over from each proxy, and waits until the new processes serve.
    pub(crate) fn upgrade_proxies(&self) -> Result<()> {
        let mut command = Command::new(leno()?);
        command.args(["upgrade", "--proxies", "--name", &self.name]).process_group(0);
        let output = command.output().context("cannot run leno upgrade")?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "leno upgrade --proxies: {text}");
        Ok(())
    }

    pub(crate) fn as_client(&self, program: &Path) -> Result<Command> {
        self.as_workload(CLIENT, program)
    }

    /// A command that runs a generator in place of the client. Leno's own generator has a higher priority than other
    /// processes, so that the figures show the mesh and not how long the generator waited for a CPU.
    pub(crate) fn as_generator(&self, program: &Path) -> Result<Command> {
        if program != own_program()? {
            return self.as_client(program);
        }
        let mut command = self.as_client(Path::new("nice"))?;
        command.args(["-n", "-10"]).arg(program);
        Ok(command)
    }

    pub(crate) fn as_workload(&self, workload: &str, program: &Path) -> Result<Command> {
        let mut command = Command::new(leno()?);
        command.args(["exec", "--name", &self.name, "-n", NAMESPACE, workload, "--"]).arg(program);
        // Ctrl-C must end only the bench.
        command.process_group(0);
        Ok(command)
    }

    /// The addresses to which the client connects, one per service in order. All are IPv4, so that every mesh and every
    /// generator carries the same traffic.
    pub(crate) fn addresses(&self, scenario: &Scenario) -> Result<Vec<SocketAddrV4>> {
        (0..scenario.services).map(|nth| self.address(&scenario.service(nth))).collect()
    }

    /// The address of the service whose endpoints come and go. Only a lab with proxies of Leno has this service.
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

    /// Asks `leno up` to end, and waits until it has removed the lab.
    pub(crate) fn stop(mut self) -> Result<()> {
        while !self.up.poll_end(END)? {
            std::thread::sleep(LOOK);
        }
        self.ended = true;
        Ok(())
    }

    /// How many revisions of a pushed configuration the applications have reported so far.
    pub(crate) fn arrived(&self) -> u64 {
        revision::arrived(&self.up.printed())
    }

    /// The last lines that `leno up` printed.
    pub(crate) fn log(&self) -> String {
        self.up.last_lines()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(tap) = &mut self.tap {
            // The output of `leno tap` is no longer read, so it does not matter how the program ends.
            let _gone = tap.kill();
            let _gone = tap.wait();
        }
        if !self.ended {
            // The lab is dropped because of another error, and that error is reported.
            self.up.kill();
            let _left = leno_local::cleanup::cleanup(Some(&self.name));
        }
    }
}

/// Returns the arguments of `leno up` that make proxies observe requests in this way. Spans are sent to the first
/// service, which answers every kind of request.
fn settings(observed: Observed, scenario: &Scenario) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    match observed {
        Observed::Counts | Observed::Tap => Vec::new(),
        Observed::AccessLog => words(&["--access-log", "json", "--access-log-file", "/dev/null"]),
        Observed::Traces(percent) => {
            let service = scenario.service(0);
            let to = format!("{NAMESPACE}/{service}:{PORT},protocol=http,sampling={percent}%");
            words(&["--traces", &to])
        }
    }
}

pub(crate) fn is_client(instance: &InstanceStatus) -> bool {
    instance.workload == CLIENT
}

/// Whether this instance generates load, so that no application listens there.
pub(crate) fn makes_load(instance: &InstanceStatus) -> bool {
    is_client(instance) || instance.workload.starts_with(NEIGHBOUR)
}

/// The cgroup of an instance's proxy. `leno up` creates it even if there is no proxy.
pub(crate) fn proxy_cgroup(instance: &InstanceStatus) -> Result<PathBuf> {
    let group = instance.surroundings.cgroup.parent().context("a control group has a parent")?;
    Ok(group.join("proxy"))
}

/// The program `leno`, which creates the lab's namespaces and runs programs in them.
fn leno() -> Result<PathBuf> {
    Ok(find("leno").ok_or_else(|| missing("leno"))?)
}

/// Makes a directory accessible to the users of the proxies.
pub(crate) fn open_to_all(directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?)
}
