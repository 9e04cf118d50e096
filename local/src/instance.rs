//! The life of one instance: its namespace, links, control groups, capture, proxy and application are set up, run,
//! and removed.
//!
//! ```text
//! set up ─► proxy ─► proxy ready ─► application ─► (stop) application ends ─► proxy drains ─► removed
//!              ▲ └─ ended: restarted at once, │ ▲ └─ ended: restarted
//!              │    later with a back-off     │ │    with a back-off
//!              └──────────────────────────────┘ └── each is restarted without the other
//! ```

mod application;
mod failures;
mod health;
mod leftovers;
mod node;
mod proxies;
mod schedule;
mod sidecar;
mod waits;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_capture::{Backend, CaptureChoice, Captured};
use leno_resources::DependencyCondition;
use leno_supervise::{
    Backoff, Cgroup, DescriptorLimit, Finishing, ProcessCredentials, PromotionRules, StopStage,
    SuccessionTurns, after,
};
use leno_types::InstanceName;
use leno_types::ports::PROXY_UID;
use tokio::sync::{mpsc, watch};

use self::failures::RepeatedFailures;
use self::leftovers::ProxyProcesses;
use self::waits::Waits;
use crate::admin::Admin;
use crate::credentials;
use crate::environment::Environment;
use crate::error::{Attempt, Error, Result};
use crate::finished::FinishingProxies;
use crate::flows::Accounting;
use crate::guard::MeshGuard;
use crate::hung::HungProxies;
use crate::isolation::{ResolverNames, write_files};
use crate::layout::Layout;
use crate::limits::{self, ProcessLimits};
use crate::listening::OneFamily;
use crate::netns::Netns;
use crate::network::Switch;
use crate::node::{NodeProxyGroup, NodeProxyGroups};
use crate::output::LineOutput;
use crate::plan::PlannedInstance;
use crate::proxy;
use crate::record::{MeshRecord, MeshResource};
use crate::root;
use crate::status::{ProcessSurroundings, ProxyProcess, Schedule};

/// How often a proxy that is not ready is polled. A proxy is ready within milliseconds after it gets its
/// certificate.
const READY_POLL: Duration = Duration::from_millis(10);
/// How long a proxy may take to become ready before a line about it is printed, and the interval of further lines.
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for a proxy to finish its open requests after its application has ended. Requests to the
/// application cannot be answered any more.
const DRAIN_BOUND: Duration = Duration::from_secs(5);
/// A proxy has a bound of its own for finishing open streams while another one serves the instance
/// (`--handover-timeout-s`). If it exceeds that by this much, its streams are cut.
const HANDOVER_SLACK: Duration = Duration::from_secs(60);
/// How long a process may take to close its listeners once another one serves. Then it is killed, because the kernel
/// would continue to give it connections.
const CLOSE_BOUND: Duration = Duration::from_secs(10);

/// What all instances of a mesh share.
#[derive(Debug)]
pub struct MeshContext {
    /// The paths of the mesh.
    pub layout: Layout,
    /// Everything that was created for the mesh.
    pub record: RefCell<MeshRecord>,
    /// The bridge.
    pub switch: Switch,
    /// Where cgroup2 is mounted.
    pub hierarchy: PathBuf,
    /// The output for lines of the mesh and its processes.
    pub output: LineOutput,
    /// The output for the proxies' access log, if it differs from `output`.
    pub access_log: Option<LineOutput>,
    /// Counts the connections of instances.
    pub flows: Accounting,
    /// The settings of proxies.
    pub proxy: proxy::MeshProxySettings,
    /// The node proxies.
    pub groups: NodeProxyGroups,
    /// Counts the proxies that were replaced because they hung.
    pub hung: Arc<HungProxies>,
    /// Counts the proxies that finish open streams.
    pub finishing: Arc<FinishingProxies>,
    /// Which instances go to another process now.
    pub successions: SuccessionTurns,
    /// When a busy instance gets its own node proxy process.
    pub promotion: PromotionRules,
    /// How long an application may take to end.
    pub grace: Duration,
    /// The source of the environment variables of applications.
    pub environment: Environment,
    /// The limit of open descriptors for applications: the limit with which `leno` was started.
    pub descriptors: DescriptorLimit,
    /// Kills all processes of the mesh if this process is killed.
    pub guard: MeshGuard,
    /// How far each workload has come, for workloads that depend on others.
    pub stages: watch::Sender<WorkloadStages>,
    /// Carries the reports of instances.
    pub changes: mpsc::Sender<(InstanceName, InstanceChange)>,
}

impl MeshContext {
    /// How long a proxy may finish its open streams while another one serves the instance.
    fn handover_bound(&self) -> Duration {
        self.proxy.handover_timeout.saturating_add(HANDOVER_SLACK)
    }
}

/// How far workloads have come, by namespace and name.
pub type WorkloadStages = BTreeMap<(String, String), WorkloadStage>;

/// How far all instances of a workload have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkloadStage {
    /// The processes of all instances have been started.
    pub started: bool,
    /// All instances take traffic.
    pub ready: bool,
    /// The processes of all instances have exited with 0.
    pub completed: bool,
}

impl WorkloadStage {
    /// Whether the workload satisfies the condition. A completed workload counts as ready, because it was ready
    /// before it completed.
    #[must_use]
    pub fn has_reached(self, condition: DependencyCondition) -> bool {
        match condition {
            DependencyCondition::Started => self.started,
            DependencyCondition::Ready => self.ready || self.completed,
            DependencyCondition::Completed => self.completed,
        }
    }
}

/// What an instance reports about itself.
#[derive(Clone, Debug)]
pub enum InstanceChange {
    /// The instance is set up, and its application may start.
    Placed(Box<ProcessSurroundings>, Option<Backend>),
    /// The application has not been started yet, because something must end first; the text says what.
    Starting(String),
    /// The application of the instance was started, as this process.
    Started(i32),
    /// The application takes traffic: its readiness probe succeeds. Without a probe, it listens on all of its
    /// ports or has had enough time to do so.
    Running,
    /// Whether ports of the application are open in only one address family. Only reported for an instance without
    /// a proxy; a proxy is reachable in both families.
    Families(OneFamily),
    /// The declared ports on which no process listens.
    Closed(Vec<u16>),
    /// The application runs but takes no traffic, for this reason.
    NotReady(String),
    /// The application ended and is restarted after a wait.
    Ended {
        /// How it ended, such as `exited with 3`.
        how: String,
        /// The last line that it printed.
        last_line: String,
        /// How long until the restart.
        wait: Duration,
    },
    /// The application or an init command ended and is not restarted.
    Over {
        /// How it ended, such as `exited with 3`.
        how: String,
        /// The last line that it printed.
        last_line: String,
        /// Whether it has completed its task successfully.
        completed: bool,
    },
    /// The last and next runs of its schedule.
    Scheduled(Box<Schedule>),
    /// The application was asked to end.
    Stopping,
    /// The proxy began or ceased to serve.
    Proxy {
        /// Whether the proxy serves.
        ready: bool,
        /// How many times the proxy was restarted.
        restarts: u32,
        /// How the last process of the proxy ended.
        ended: Option<String>,
    },
    /// The process that now serves as its proxy.
    ProxyRuns(ProxyProcess),
    /// Why the next proxy process does not serve the instance yet; `None` once it does, or if there is no next
    /// process.
    ProxyWaits(Option<String>),
    /// The instance could not be set up, for this reason. The reason was printed, and the set-up will be repeated.
    Failed(String),
    /// The application of the instance has ended for good; its proxy still finishes open requests.
    ApplicationEnded,
    /// The instance has been removed.
    Gone,
}

/// Runs one instance.
struct InstanceTask {
    mesh: Rc<MeshContext>,
    instance: PlannedInstance,
    stop: watch::Receiver<StopStage>,
    /// Which process should serve as its proxy. This may change while the instance runs.
    proxy: watch::Receiver<ProxySettings>,
    waits: Waits,
}

/// Which process should serve as the proxy of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// The group whose node proxy should serve the instance; `None` if the instance has a sidecar or no proxy.
    pub group: Option<String>,
    /// When the instance gets its own node proxy process although its documents make it share one.
    pub promotion: PromotionRules,
    /// The wanted revision of proxy processes. A process of an earlier revision is to be replaced.
    pub revision: u64,
}

impl ProxySettings {
    /// The settings from the documents of the instance. The mesh's settings apply where the documents set none.
    #[must_use]
    pub fn of(mesh: &MeshContext, instance: &PlannedInstance) -> Self {
        let promotion = mesh.promotion.with_after(instance.promote_after);
        let group = instance.launch.group.clone();
        Self { group, promotion, revision: mesh.groups.revision() }
    }
}

/// The resources that were created for an instance.
struct InstanceResources {
    netns: Netns,
    group: Cgroup,
    app: Cgroup,
    limited: ProcessLimits,
    proxy: Cgroup,
    files: Vec<(PathBuf, PathBuf)>,
    /// The files for an application with its own root file system. It sees these in place of `files`.
    own_files: Option<Vec<(PathBuf, PathBuf)>>,
    captured: RefCell<Option<Captured>>,
    /// Whether the capture recognises the proxy by its user. This is so once the instance has been in node mode.
    proxy_by_user: Cell<bool>,
    /// The first node proxy of the instance, if it starts in node mode.
    shared: RefCell<Option<Rc<NodeProxyGroup>>>,
    /// The files with the instance's token, by the numbers of the proxy processes and memberships that read them.
    /// A new token invalidates the earlier one, so it is written to all files; each reader needs it to renew its
    /// certificate.
    tokens: Rc<RefCell<BTreeMap<u64, PathBuf>>>,
    /// The last number that was given to a proxy process or membership of the instance.
    number: Cell<u64>,
    /// The proxy processes and memberships that finish their open streams.
    finishing: Rc<Finishing>,
    /// The processes that run in the control group of the instance's proxy.
    processes: ProxyProcesses,
}

impl InstanceResources {
    /// The files that are mounted over those that the application would otherwise see.
    fn application_files(&self) -> &[(PathBuf, PathBuf)] {
        self.own_files.as_deref().unwrap_or(&self.files)
    }

    /// A number that no earlier proxy process or membership of the instance has had.
    fn next_number(&self) -> u64 {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }
}

/// Runs an instance until `stop` ends it, then removes it. `proxy` names the process that should serve as its
/// proxy; when that changes, the new process takes over while the instance runs.
pub async fn live(
    mesh: Rc<MeshContext>,
    instance: PlannedInstance,
    stop: watch::Receiver<StopStage>,
    proxy: watch::Receiver<ProxySettings>,
) {
    let life = InstanceTask { mesh, instance, stop, proxy, waits: Waits::default() };
    if let Some(place) = life.placed().await {
        let surroundings = Box::new(life.surroundings(&place));
        let backend = place.captured.borrow().as_ref().map(Captured::backend);
        life.report(InstanceChange::Placed(surroundings, backend)).await;
        life.run(&place).await;
        let captured = place.captured.take();
        if let Some(captured) = captured {
            life.release(captured).await;
        }
        if let Some(group) = place.shared.take() {
            let stop = *life.stop.borrow();
            group.release(stop).await;
        }
    }
    if let Err(error) = life.remove().await {
        life.complain(&error);
    }
    life.report(InstanceChange::Gone).await;
}

impl InstanceTask {
    /// Sets the instance up, and tries again after a wait if that fails. `None` if the instance is stopped before
    /// it succeeds.
    async fn placed(&self) -> Option<InstanceResources> {
        let mut stop = self.stop.clone();
        let mut backoff = Backoff::patient(Instant::now());
        loop {
            backoff.started(Instant::now());
            let error = match self.place().await {
                Ok(place) => return Some(place),
                Err(error) => error,
            };
            self.complain(&error);
            self.report(InstanceChange::Failed(error.chain())).await;
            // Leftovers of the failed attempt would be in the way of the next one.
            if let Err(error) = self.remove().await {
                self.complain(&error);
            }
            let wait = backoff.ended(Instant::now());
            self.say(&format!("{}: retrying {}", self.instance.label, after(wait)));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // If the sender is dropped, the mesh has ended.
                _ = stop.wait_for(|now| *now >= StopStage::Applications) => return None,
            }
        }
    }

    /// Creates everything that the instance's processes need.
    async fn place(&self) -> Result<InstanceResources> {
        let Self { mesh, instance, .. } = self;
        self.check_user()?;
        let name = mesh.layout.netns(&instance.name);
        self.record(MeshResource::Netns(name.clone()))?;
        let netns = tokio::task::spawn_blocking(move || Netns::create(&name));
        let netns = joined(netns.await)?;
        let listening = &instance.listening;
        mesh.switch.connect(&netns, &instance.addresses, listening).await?;
        mesh.flows.enrol((&mesh.layout, &mesh.hierarchy), &mesh.switch, instance).await;
        let group = mesh.layout.instance_cgroup(&mesh.hierarchy, &instance.name);
        let names = ResolverNames {
            instance: &instance.name.name,
            full: &instance.full_names,
            namespace: &instance.name.namespace,
            addresses: instance.addresses,
            server: mesh.switch.subnet().gateway().v4.into(),
        };
        let directory = mesh.layout.instance(&instance.name);
        let files = write_files(&directory, &names)?;
        let root = instance.launch.root.as_deref();
        let own_files = root.map(|root| root::write_files(&directory, &names, root)).transpose()?;
        let app = Cgroup::create(group.join("app"))?;
        let place = InstanceResources {
            netns,
            limited: self.limit(&app)?,
            app,
            proxy: Cgroup::create(group.join("proxy"))?,
            group: Cgroup::at(group),
            files,
            own_files,
            captured: RefCell::default(),
            proxy_by_user: Cell::default(),
            shared: RefCell::default(),
            tokens: Rc::default(),
            number: Cell::new(0),
            finishing: Rc::default(),
            processes: ProxyProcesses::default(),
        };
        let wanted = self.proxy.borrow().group.clone();
        if let Some(name) = wanted {
            place.shared.replace(Some(NodeProxyGroup::enter(mesh, &name, &instance.name)?));
            place.proxy_by_user.set(true);
        }
        if instance.launch.meshed {
            match self.capture(&place).await {
                Ok(captured) => drop(place.captured.replace(Some(captured))),
                Err(error) => {
                    let group = place.shared.take();
                    if let Some(group) = group {
                        let stop = *self.stop.borrow();
                        group.exit(&instance.name, stop).await;
                    }
                    return Err(error);
                }
            }
        }
        Ok(place)
    }

    /// Rejects an application that runs as the proxies' user. The capture recognises proxies by that user, so such
    /// an application would bypass its proxy. For sidecars with kernel programs this is not so, but the
    /// application could listen on the proxy's ports (`SO_REUSEPORT`). The user is rejected in both modes, so that
    /// a change of mode needs no further check.
    fn check_user(&self) -> Result<()> {
        let launch = &self.instance.launch;
        let is_of_proxies = || credentials::of(&launch.account).map(|of| of.uid() == PROXY_UID);
        // A user that does not exist is reported when the application starts.
        if launch.meshed && is_of_proxies().unwrap_or_default() {
            return Err(Error::Refused(format!(
                "it would run as user {PROXY_UID}, which is reserved for proxies: set another \
                 user, or leno.dev/inject: disabled"
            )));
        }
        Ok(())
    }

    /// Limits what the processes of a group may use.
    fn limit(&self, group: &Cgroup) -> Result<ProcessLimits> {
        let Self { mesh, instance, .. } = self;
        let mounts =
            limits::mounts().attempt(|| "cannot read the mounts of this machine".to_owned())?;
        let machine = limits::CgroupMounts { root: &mesh.hierarchy, mounts: &mounts };
        let record = |made: &Path| self.record(MeshResource::Cgroup(made.to_owned()));
        ProcessLimits::apply(instance.launch.limits, machine, group, record)
    }

    async fn capture(&self, place: &InstanceResources) -> Result<Captured> {
        let Self { mesh, instance, .. } = self;
        let choice = match instance.launch.capture {
            // Only kernel programs can capture datagrams.
            CaptureChoice::Auto if instance.launch.datagrams.is_on() => {
                CaptureChoice::Only(Backend::Ebpf)
            }
            choice => choice,
        };
        let backend = mesh.proxy.machine.choose(choice)?;
        let workload = self.workload(place, place.shared.borrow().is_some());
        self.record(MeshResource::Capture(workload.name.clone()))?;
        let captured =
            tokio::task::spawn_blocking(move || leno_capture::capture(backend, &workload));
        joined(captured.await.map(|result| result.map_err(Error::from)))
    }

    /// Describes to the capture what it must redirect. In node mode the proxy is recognised by its user, because
    /// its process may change.
    fn workload(
        &self,
        place: &InstanceResources,
        in_node_mode: bool,
    ) -> leno_capture::CaptureTarget {
        let Self { mesh, instance, .. } = self;
        leno_capture::CaptureTarget {
            name: mesh.layout.netns(&instance.name),
            netns: place.netns.path(),
            cgroup: place.group.path().to_owned(),
            proxy_cgroup: place.proxy.path().to_owned(),
            fail_closed: true,
            excluded: proxy::never_captured(&mesh.switch.subnet().gateway()),
            proxy_uid: PROXY_UID,
            datagrams: instance.launch.datagrams,
            proxy_process: in_node_mode.then(|| place.group.path().to_owned()),
        }
    }

    /// Removes the capture, in a blocking task because some backends run commands.
    async fn release(&self, mut captured: Captured) {
        let released = tokio::task::spawn_blocking(move || Ok(captured.release()?));
        if let Err(error) = joined(released.await) {
            self.complain(&error);
        }
    }

    /// Runs the proxy and, once it is ready, the application, until both are stopped.
    async fn run(&self, place: &InstanceResources) {
        if !self.instance.launch.meshed {
            self.application(place).await;
            return self.report(InstanceChange::ApplicationEnded).await;
        }
        let (ready, mut is_ready) = watch::channel(false);
        let application = async {
            let mut stop = self.stop.clone();
            let may_start = tokio::select! {
                ready = is_ready.wait_for(|ready| *ready) => ready.is_ok(),
                _ = stop.wait_for(|now| *now >= StopStage::Applications) => false,
            };
            if may_start {
                self.application(place).await;
            }
            self.report(InstanceChange::ApplicationEnded).await;
        };
        tokio::join!(self.proxies(place, ready), application);
    }

    /// Returns once the proxy is ready. If this takes long, prints the reason.
    async fn until_ready(&self, place: &InstanceResources) {
        let admin = Admin::within(&place.netns);
        let mut told = Instant::now();
        loop {
            let answer = admin.get("/ready").await;
            if matches!(&answer, Ok(reply) if reply.status == 200) {
                return;
            }
            if told.elapsed() >= READY_PATIENCE {
                told = Instant::now();
                let why = match answer {
                    Ok(reply) => reply.body.trim().to_owned(),
                    Err(error) => error.chain(),
                };
                let label = &self.instance.label;
                self.say(&format!("the proxy of {label} is not ready: {why}"));
            }
            tokio::time::sleep(READY_POLL).await;
        }
    }

    /// Removes all resources of the instance.
    async fn remove(&self) -> Result<()> {
        let Self { mesh, instance, .. } = self;
        let limiting = self.limiting_groups();
        let limited = limiting.clone();
        let group = Cgroup::at(mesh.layout.instance_cgroup(&mesh.hierarchy, &instance.name));
        let directory = mesh.layout.instance(&instance.name);
        let removed = tokio::task::spawn_blocking(move || {
            group.kill()?;
            group.remove()?;
            for group in limited.into_iter().map(Cgroup::at) {
                group.kill()?;
                group.remove()?;
            }
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).attempt(|| format!("cannot remove {}", directory.display()))
                }
                _ => Ok(()),
            }
        });
        joined(removed.await)?;
        mesh.flows.withdraw(instance).await;
        mesh.proxy.tokens.revoke(&instance.name)?;
        mesh.switch.disconnect(&instance.addresses).await?;
        let name = mesh.layout.netns(&instance.name);
        let mut made = vec![MeshResource::Netns(name.clone())];
        if instance.launch.meshed {
            made.push(MeshResource::Capture(name));
        }
        made.extend(limiting.into_iter().map(MeshResource::Cgroup));
        mesh.record.borrow_mut().remove(&made)
    }

    /// The control groups that limit the instance's processes, from the mesh's record.
    fn limiting_groups(&self) -> Vec<PathBuf> {
        let Self { mesh, instance, .. } = self;
        let group = mesh.layout.instance_cgroup(&mesh.hierarchy, &instance.name).join("app");
        let below = group.strip_prefix(&mesh.hierarchy).unwrap_or(&group).to_owned();
        let record = mesh.record.borrow();
        record.cgroups().filter(|path| path.ends_with(&below)).cloned().collect()
    }

    fn surroundings(&self, place: &InstanceResources) -> ProcessSurroundings {
        let environment = &self.mesh.environment;
        let credentials = credentials::of(&self.instance.launch.account);
        let credentials = credentials.unwrap_or_else(|_| ProcessCredentials::invoking());
        ProcessSurroundings {
            netns: place.netns.name().to_owned(),
            cgroup: place.app.path().to_owned(),
            limits: place.limited.groups.iter().map(|one| one.path().to_owned()).collect(),
            files: place.application_files().to_vec(),
            root: self.instance.launch.root.clone(),
            volumes: self.instance.launch.volumes.clone(),
            account: self.instance.launch.account.clone(),
            // An unreadable file or a user that does not exist is reported when the application starts.
            environment: environment.of_instance(&self.instance, &credentials).unwrap_or_default(),
            directory: self.instance.launch.directory.clone(),
        }
    }

    fn record(&self, made: MeshResource) -> Result<()> {
        self.mesh.record.borrow_mut().add(made)
    }

    async fn report(&self, change: InstanceChange) {
        // The receiver is dropped once the mesh has ended.
        let _ = self.mesh.changes.send((self.instance.name.clone(), change)).await;
    }

    fn say(&self, text: &str) {
        self.mesh.output.say(text);
    }

    fn complain(&self, error: &Error) {
        self.say(&format!("{}: {}", self.instance.label, error.chain()));
    }

    /// Prints why an attempt has failed that will be repeated until it succeeds. Returns the reason if it was
    /// printed this time; the same reason is printed only at intervals.
    fn complain_again(&self, failures: &mut RepeatedFailures, error: &Error) -> Option<String> {
        let why = error.chain();
        let line = failures.failed(&why, Instant::now())?;
        self.say(&format!("{}: {line}", self.instance.label));
        Some(why)
    }
}

/// The longest label in front of an instance's lines of output.
pub(crate) fn longest_label(instance: &PlannedInstance) -> String {
    match instance.launch.meshed {
        true => proxy_label(instance),
        false => instance.label.clone(),
    }
}

fn proxy_label(instance: &PlannedInstance) -> String {
    format!("{} proxy", instance.label)
}

/// The result of a blocking task. A panic of the task continues in the caller.
fn joined<T>(result: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match result {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(Error::Refused(cancelled.to_string())),
        },
    }
}
