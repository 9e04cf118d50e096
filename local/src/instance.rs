//! The life of one instance: namespace, links, control groups, capture, proxy, application, and the
//! removal of all of it.
//!
//! ```text
//! set up ─► proxy ─► proxy ready ─► application ─► (stop) application ends ─► proxy drains ─► removed
//!              ▲ └─ died: at once, then back-off │ ▲ └─ ended: back-off
//!              └─────────────────────────────────┘ └── each is started again by itself
//! ```

mod application;
mod failures;
mod finishing;
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
    Backoff, Cgroup, DescriptorLimit, ProcessCredentials, PromotionRules, StopStage,
    SuccessionTurns, after,
};
use leno_types::InstanceName;
use leno_types::ports::PROXY_UID;
use tokio::sync::{mpsc, watch};

use self::failures::RepeatedFailures;
use self::finishing::Finishing;
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

/// How often a proxy that is not ready is polled: it is ready within milliseconds after it got its certificate.
const READY_POLL: Duration = Duration::from_millis(10);
/// How long a proxy may take to become ready before a line is printed about it, and the interval of further lines.
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// Longest time for a proxy to finish its open requests after its application has ended: no application is left to
/// answer others.
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
    /// The output for the access log of the proxies, if it differs from `output`.
    pub access_log: Option<LineOutput>,
    /// Counts the connections of instances.
    pub flows: Accounting,
    /// The settings of proxies.
    pub proxy: proxy::MeshProxySettings,
    /// The node proxies.
    pub groups: NodeProxyGroups,
    /// Counts the proxies that hang.
    pub hung: Arc<HungProxies>,
    /// Counts the proxies that finish open streams.
    pub finishing: Arc<FinishingProxies>,
    /// Which instances go to another process now.
    pub successions: SuccessionTurns,
    /// When a busy instance gets a node proxy of its own.
    pub promotion: PromotionRules,
    /// How long an application may take to end.
    pub grace: Duration,
    /// The source of the environment variables of applications.
    pub environment: Environment,
    /// How many descriptors applications may have open: the limit with which `leno` was started.
    pub descriptors: DescriptorLimit,
    /// Ends all processes if this process is killed.
    pub guard: MeshGuard,
    /// How far the workloads have come, for workloads that depend on others.
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
    /// Their processes have been started.
    pub started: bool,
    /// They take traffic.
    pub ready: bool,
    /// Their processes have exited with 0.
    pub completed: bool,
}

impl WorkloadStage {
    /// Whether the workload satisfies the condition. A completed workload counts as ready, because it was, if only for
    /// a moment.
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
    /// It is set up; its application may start.
    Placed(Box<ProcessSurroundings>, Option<Backend>),
    /// Its application is not started yet: what it waits for, or what runs before it.
    Starting(String),
    /// Its application was started, as this process.
    Started(i32),
    /// Its application takes traffic: its readiness probe succeeds, or, without a probe, it listens on all of its ports
    /// or has had time to.
    Running,
    /// Whether ports of its application are open in one address family only. Only reported for an instance without a
    /// proxy, because a proxy is reachable in both families.
    Families(OneFamily),
    /// Which of the ports that it declares no process listens on.
    Closed(Vec<u16>),
    /// Its application runs but takes no traffic, for this reason.
    NotReady(String),
    /// Its application ended in this way and is started again after a wait.
    Ended {
        /// How, `exited with 3`.
        how: String,
        /// The last line that it printed.
        last_line: String,
        /// The wait.
        wait: Duration,
    },
    /// Its application, or an init command, ended in this way and is not started again.
    Over {
        /// How, `exited with 3`.
        how: String,
        /// The last line that it printed.
        last_line: String,
        /// Whether it has completed its task.
        completed: bool,
    },
    /// What its schedule has done, and will do.
    Scheduled(Box<Schedule>),
    /// Its application was asked to end.
    Stopping,
    /// Its proxy became able or unable to serve.
    Proxy {
        /// Whether it serves.
        ready: bool,
        /// How often it was started again.
        restarts: u32,
        /// How it ended the last time.
        ended: Option<String>,
    },
    /// The process of its proxy.
    ProxyRuns(ProxyProcess),
    /// Why the next proxy process does not serve it yet; `None` once that serves, or if there is no next process.
    ProxyWaits(Option<String>),
    /// It could not be set up, for this reason. The reason was printed, and the set-up is tried again.
    Failed(String),
    /// Its application has ended for good; its proxy still finishes open requests.
    ApplicationEnded,
    /// The instance has been removed.
    Gone,
}

/// One instance while it lives.
struct InstanceTask {
    mesh: Rc<MeshContext>,
    instance: PlannedInstance,
    stop: watch::Receiver<StopStage>,
    /// Which process should be its proxy; it may change while the instance runs.
    proxy: watch::Receiver<ProxySettings>,
    waits: Waits,
}

/// Which process should be the proxy of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxySettings {
    /// The group whose node proxy should serve it; `None` if it has a proxy of its own, or none.
    pub group: Option<String>,
    /// When it gets a process of its own although its documents have it share one.
    pub promotion: PromotionRules,
    /// The wanted revision of proxy processes. A process of an earlier revision is replaced.
    pub revision: u64,
}

impl ProxySettings {
    /// From the documents of the instance; what they do not set comes from the mesh.
    #[must_use]
    pub fn of(mesh: &MeshContext, instance: &PlannedInstance) -> Self {
        let promotion = mesh.promotion.with_after(instance.promote_after);
        let group = instance.launch.group.clone();
        Self { group, promotion, revision: mesh.groups.revision() }
    }
}

/// What was made for an instance.
struct InstanceResources {
    netns: Netns,
    group: Cgroup,
    app: Cgroup,
    limited: ProcessLimits,
    proxy: Cgroup,
    files: Vec<(PathBuf, PathBuf)>,
    /// The files that the application sees instead, if it has a root file system of its own.
    own_files: Option<Vec<(PathBuf, PathBuf)>>,
    captured: RefCell<Option<Captured>>,
    /// The capture recognises the proxy by its user, because the instance is or was in node mode.
    proxy_by_user: Cell<bool>,
    /// The node proxy that serves the instance first, if it starts in node mode.
    shared: RefCell<Option<Rc<NodeProxyGroup>>>,
    /// The files with the instance's token, by the numbers of the processes and memberships that read them. A new token
    /// is written to all of them, because it invalidates the one before, and all need one to renew their certificates.
    tokens: Rc<RefCell<BTreeMap<u64, PathBuf>>>,
    /// The last number that was given to a process or a membership of the instance.
    number: Cell<u64>,
    /// The processes and memberships that finish their open streams.
    finishing: Rc<Finishing>,
    /// The processes that run in the control group of its proxy.
    processes: ProxyProcesses,
}

impl InstanceResources {
    /// The files that are mounted over those that the application would see.
    fn application_files(&self) -> &[(PathBuf, PathBuf)] {
        self.own_files.as_deref().unwrap_or(&self.files)
    }

    /// A number that no process or membership of the instance has had.
    fn next_number(&self) -> u64 {
        self.number.set(self.number.get() + 1);
        self.number.get()
    }
}

/// Runs an instance until `stop` ends it, then removes it. `proxy` decides which process is its proxy; if it changes,
/// another process takes over while the instance runs.
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
    /// Sets the instance up. On an error it tries again after a wait; `None` if the instance is stopped meanwhile.
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
            self.say(&format!("{}: trying again {}", self.instance.label, after(wait)));
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

    /// Whether the instance may have a proxy. The capture recognises proxies by their user, so an application of that
    /// user would bypass its proxy. Only the capture of a sidecar by kernel programs does not go by the user; but there
    /// the application could listen on the ports of the proxy (`SO_REUSEPORT`). So the user is refused in both modes,
    /// and a change of mode needs no further check.
    fn check_user(&self) -> Result<()> {
        let launch = &self.instance.launch;
        let is_of_proxies = || credentials::of(&launch.account).map(|of| of.uid() == PROXY_UID);
        // An unknown user is reported when the application starts.
        if launch.meshed && is_of_proxies().unwrap_or_default() {
            return Err(Error::Refused(format!(
                "it would run as user {PROXY_UID}, which is the proxies': use another, or leno.dev/inject: disabled"
            )));
        }
        Ok(())
    }

    /// Limits what the processes of a group may use.
    fn limit(&self, group: &Cgroup) -> Result<ProcessLimits> {
        let Self { mesh, instance, .. } = self;
        let mounts = limits::mounts().attempt(|| "cannot read the mounts".to_owned())?;
        let machine = limits::CgroupMounts { root: &mesh.hierarchy, mounts: &mounts };
        let record = |made: &Path| self.record(MeshResource::Cgroup(made.to_owned()));
        ProcessLimits::apply(instance.launch.limits, machine, group, record)
    }

    async fn capture(&self, place: &InstanceResources) -> Result<Captured> {
        let Self { mesh, instance, .. } = self;
        let choice = match instance.launch.capture {
            // Only kernel programs capture datagrams.
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

    /// Describes the capture. In node mode it recognises the proxy by its user, because the process may change.
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

    /// Undoes the capture, in a blocking task, because some backends run commands.
    async fn release(&self, mut captured: Captured) {
        let released = tokio::task::spawn_blocking(move || Ok(captured.release()?));
        if let Err(error) = joined(released.await) {
            self.complain(&error);
        }
    }

    /// Runs the proxy and, once that is ready, the application, until both are stopped.
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

    /// Returns once the proxy is ready. If that takes long, prints why it is not.
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

    /// The control groups that limit its processes, from the record.
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
            // A file that cannot be read, or a user that no longer exists, is reported when the application starts.
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

    /// Prints why an attempt has failed that is repeated until it succeeds. Returns the reason if it was printed now.
    fn complain_again(&self, failures: &mut RepeatedFailures, error: &Error) -> Option<String> {
        let why = error.chain();
        let line = failures.failed(&why, Instant::now())?;
        self.say(&format!("{}: {line}", self.instance.label));
        Some(why)
    }
}

/// The longest label among those of an instance's lines.
pub(crate) fn longest_label(instance: &PlannedInstance) -> String {
    match instance.launch.meshed {
        true => proxy_label(instance),
        false => instance.label.clone(),
    }
}

fn proxy_label(instance: &PlannedInstance) -> String {
    format!("{} proxy", instance.label)
}

/// The result of a blocking task. A panic of the task is resumed here.
fn joined<T>(result: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match result {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(Error::Refused(cancelled.to_string())),
        },
    }
}
