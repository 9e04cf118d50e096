//! `leno up`: makes a plan run, follows edits of its files, and removes everything at the end.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_capture::Choice;
use leno_identity::Authority;
use leno_resources::Documents;
use leno_types::{InstanceName, MtlsMode};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::cgroup::Cgroup;
use crate::controller;
use crate::dns;
use crate::error::{Attempt, Error, Result};
use crate::instance::{self, Change, Mesh};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::network::{self, Switch};
use crate::output::Output;
use crate::plan::{Defaults, Plan, subnet};
use crate::proxy;
use crate::record::{self, Made, Record};
use crate::status::{InstanceStatus, Phase, Status, Surroundings};
use crate::supervise::Stop;
use crate::token::Tokens;
use crate::watch::Files;

/// Changes that wait to be taken in. Instances wait when it is full.
const QUEUE: usize = 256;
/// Between the removal of an endpoint and the end of its application: the control plane tells the
/// proxies within milliseconds.
const NOTICE: Duration = Duration::from_millis(300);

/// What `leno up` is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The documents: files, directories or `-`.
    pub files: Vec<PathBuf>,
    /// The name of the mesh.
    pub mesh: String,
    /// How traffic is captured where documents do not say.
    pub capture: Choice,
    /// What inbound sides do with plaintext where documents do not say.
    pub mtls: MtlsMode,
    /// How long certificates hold.
    pub cert_lifetime: Duration,
    /// How long applications may take to end.
    pub grace: Duration,
    /// Whether lines are coloured.
    pub colour: bool,
    /// What proxies and the control plane log.
    pub log: String,
    /// The form of the proxies' access log: `off`, `text` or `json`.
    pub access_log: String,
}

/// A mesh while it runs.
struct Up<'a> {
    options: &'a Options,
    files: Files,
    mesh: Rc<Mesh>,
    plan: Plan,
    defaults: Defaults,
    /// What is known of every instance that lives, or is ending.
    lives: BTreeMap<InstanceName, Life>,
    zone: watch::Sender<Arc<dns::Zone>>,
    controller: Option<controller::Controller>,
    controller_changed: Rc<Notify>,
    stop: watch::Sender<Stop>,
    refused_edit: Option<String>,
    /// What was written last, so that nothing is written that nobody needs to read.
    rendered: String,
    begun: Instant,
    announced: bool,
}

/// What is known of an instance.
struct Life {
    task: JoinHandle<()>,
    stop: watch::Sender<Stop>,
    /// Whether its traffic is refused while its proxy does not listen.
    closed: watch::Sender<bool>,
    phase: Phase,
    started: bool,
    proxy_ready: bool,
    application_ended: bool,
    restarts: u32,
    proxy_restarts: u32,
    capture: Option<String>,
    surroundings: Surroundings,
    /// It ends, to be started again as the plan says by then, or not.
    ending: bool,
}

/// Runs a mesh until a signal ends it. Everything runs on the calling thread, which must be the
/// one that lives longest: its children die with it.
///
/// # Errors
/// When the documents are refused, the mesh runs already, or something cannot be made or removed.
pub fn up(options: &Options) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        let reason = "leno up makes network namespaces and loads kernel programs: run it as root, \
                      for example with sudo";
        return Err(Error::Refused(reason.to_owned()));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.attempt(|| "cannot start the runtime".to_owned())?;
    let (output, writer) = Output::start(options.colour);
    let ended = tokio::task::LocalSet::new().block_on(&runtime, run(options, output));
    // Tasks that still print hold an output; they end with the runtime.
    runtime.shutdown_timeout(Duration::from_secs(1));
    writer.finish();
    ended
}

async fn run(options: &Options, output: Output) -> Result<()> {
    let layout = Layout::new(&options.mesh)?;
    let defaults =
        Defaults { mtls: options.mtls, capture: options.capture, ipv6: network::has_ipv6() };
    let begun = Instant::now();
    // Looked at before they are read, so that no edit is missed.
    let files = Files::new(options.files.clone());
    let documents = load(&options.files)?;
    let plan = make(&documents, defaults, &Plan::default())?;
    let mut signals = Signals::new()?;
    let record = Record::acquire(&layout)?;
    let (changes, mut received) = mpsc::channel(QUEUE);
    let mesh = prepare(options, &layout, record, output, changes).await;
    let mesh = match mesh {
        Ok(mesh) => mesh,
        Err((error, record)) => {
            // The first error is the one to report; what is left, the next run removes.
            let _ = record.remove_all();
            return Err(error);
        }
    };
    let (zone, zone_received) = watch::channel(Arc::default());
    let mut up = Up {
        options,
        files,
        mesh: Rc::new(mesh),
        plan: Plan::default(),
        defaults,
        lives: BTreeMap::new(),
        zone,
        controller: None,
        controller_changed: Rc::default(),
        stop: watch::channel(Stop::No).0,
        refused_edit: None,
        rendered: String::new(),
        begun,
        announced: false,
    };
    let dns = up.serve_dns(zone_received);
    let result = match dns {
        Ok(()) => up.serve(plan, &documents, &mut signals, &mut received).await,
        Err(error) => Err(error),
    };
    up.end(&mut signals, &mut received).await;
    result
}

/// Makes what is there before any instance. On failure the record comes back, to be undone.
async fn prepare(
    options: &Options,
    layout: &Layout,
    mut record: Record,
    output: Output,
    changes: mpsc::Sender<(InstanceName, Change)>,
) -> Result<Mesh, (Error, Record)> {
    macro_rules! try_or_undo {
        ($result:expr) => {
            match $result {
                Ok(value) => value,
                Err(error) => return Err((Error::from(error), record)),
            }
        };
    }
    let hierarchy = try_or_undo!(leno_capture::cgroup2_root());
    let group = layout.cgroup(&hierarchy);
    try_or_undo!(record.add(Made::Cgroup(group.clone())));
    try_or_undo!(Cgroup::create(group));
    let name = layout.switch_netns();
    try_or_undo!(record.add(Made::Netns(name.clone())));
    let netns = try_or_undo!(Netns::create(&name));
    let switch = try_or_undo!(Switch::create(netns, &subnet()).await);
    let tokens = try_or_undo!(Tokens::prepare(layout));
    // Made here and not by the controller, so that no proxy has to wait for the roots.
    let authority = Authority::open(&layout.control(), tokens.trust_domain());
    let authority = try_or_undo!(authority.map_err(io::Error::other).attempt(|| {
        format!("cannot open the certificate authority in {}", layout.control().display())
    }));
    let roots = authority.roots_pem().as_bytes();
    try_or_undo!(record::write_atomically(&layout.roots(), roots, 0o644));
    let trust_domain = tokens.trust_domain().to_string();
    let proxy = proxy::Settings {
        binary: proxy::find("leno-proxy"),
        machine: leno_capture::Report::probe(),
        tokens,
        roots: layout.roots(),
        trust_domain,
        log: options.log.clone(),
        access_log: options.access_log.clone(),
    };
    Ok(Mesh {
        layout: layout.clone(),
        record: RefCell::new(record),
        switch,
        hierarchy,
        output,
        proxy,
        grace: options.grace,
        changes,
    })
}

impl Up<'_> {
    fn serve_dns(&self, zone: watch::Receiver<Arc<dns::Zone>>) -> Result<()> {
        let gateway = subnet().gateway();
        let what = || "cannot serve DNS on the gateway".to_owned();
        let netns = self.mesh.switch.netns();
        let sockets = netns.within(|| dns::Sockets::bind(gateway.iter(), 53).attempt(what))?;
        dns::serve(sockets, zone, dns::Upstreams::of_host()).attempt(what)?;
        Ok(())
    }

    /// Starts everything, then takes in changes and edits until a signal comes.
    async fn serve(
        &mut self,
        plan: Plan,
        documents: &Documents,
        signals: &mut Signals,
        received: &mut mpsc::Receiver<(InstanceName, Change)>,
    ) -> Result<()> {
        for ignored in &documents.ignored {
            let (place, value) = (format!("{}:{}", ignored.file, ignored.place), &ignored.value);
            let text = format!("{place}: ignored {} {}", value.api_version, value.kind);
            self.say(&text).await;
        }
        self.greet(&plan).await;
        self.adopt(plan).await?;
        loop {
            tokio::select! {
                () = signals.asked() => return Ok(()),
                change = received.recv() => {
                    if let Some((name, change)) = change {
                        self.take_in(&name, change, received)?;
                        self.announce().await;
                    }
                }
                () = self.controller_changed.notified() => self.publish()?,
                () = self.files.edited() => self.edited().await?,
            }
        }
    }

    /// Makes `plan` the one that runs: ends what it does not want, starts what is new.
    async fn adopt(&mut self, plan: Plan) -> Result<()> {
        if plan.meshed() && self.controller.is_none() {
            record::make_directory(&self.mesh.layout.state(), 0o700)?;
        }
        let difference = self.plan.difference(&plan);
        for warning in &plan.warnings {
            self.say(warning).await;
        }
        self.plan = plan;
        for name in &difference.ended {
            if let Some(life) = self.lives.get_mut(name) {
                life.ending = true;
            }
        }
        // What ends is no endpoint any more before it ends.
        self.publish()?;
        if self.plan.meshed() && self.controller.is_none() {
            let stop = self.stop.subscribe();
            let changed = self.controller_changed.clone();
            self.controller = Some(controller::start(&self.mesh, self.options, stop, changed)?);
        }
        for name in difference.ended {
            if let Some(life) = self.lives.get(&name) {
                let stop = life.stop.clone();
                tokio::task::spawn_local(async move {
                    tokio::time::sleep(NOTICE).await;
                    raise(&stop, Stop::Applications);
                });
            }
        }
        for (name, life) in &self.lives {
            if let Some(instance) = self.plan.instances.get(name) {
                let closed = instance.mtls == MtlsMode::Strict;
                life.closed.send_if_modified(|now| std::mem::replace(now, closed) != closed);
            }
        }
        for name in difference.started {
            if !self.lives.contains_key(&name) {
                self.start(&name);
            }
        }
        self.publish()
    }

    fn start(&mut self, name: &InstanceName) {
        let Some(instance) = self.plan.instances.get(name) else { return };
        let (stop, stopped) = watch::channel(Stop::No);
        let (closed, is_closed) = watch::channel(instance.mtls == MtlsMode::Strict);
        let life = instance::live(self.mesh.clone(), instance.clone(), stopped, is_closed);
        let life = Life {
            task: tokio::task::spawn_local(life),
            stop,
            closed,
            phase: Phase::Starting,
            started: false,
            proxy_ready: !instance.launch.meshed,
            application_ended: false,
            restarts: 0,
            proxy_restarts: 0,
            capture: None,
            surroundings: Surroundings::default(),
            ending: false,
        };
        self.lives.insert(name.clone(), life);
    }

    /// Takes in a change and those that came with it, then tells everybody.
    fn take_in(
        &mut self,
        name: &InstanceName,
        change: Change,
        received: &mut mpsc::Receiver<(InstanceName, Change)>,
    ) -> Result<()> {
        self.change(name, change);
        while let Ok((name, change)) = received.try_recv() {
            self.change(&name, change);
        }
        self.publish()
    }

    fn change(&mut self, name: &InstanceName, change: Change) {
        if matches!(change, Change::Gone) {
            self.lives.remove(name);
            // Ended by an edit that starts it in another way.
            if *self.stop.borrow() == Stop::No {
                self.start(name);
            }
            return;
        }
        let Some(life) = self.lives.get_mut(name) else { return };
        match change {
            Change::Placed(surroundings, backend) => {
                life.surroundings = *surroundings;
                life.capture = backend.map(|backend| backend.to_string());
            }
            Change::Application(phase) => {
                if phase == Phase::Running {
                    life.restarts += u32::from(life.started);
                    life.started = true;
                }
                life.phase = phase;
            }
            Change::Proxy { ready, restarts } => {
                life.proxy_ready = ready;
                life.proxy_restarts = restarts;
            }
            Change::Failed => life.phase = Phase::Failed,
            Change::ApplicationEnded => {
                life.application_ended = true;
                // Its proxy served it to the end.
                if life.ending {
                    raise(&life.stop, Stop::All);
                }
            }
            Change::Gone => {}
        }
    }

    fn ready(&self) -> BTreeSet<InstanceName> {
        let ready = |life: &&Life| life.phase == Phase::Running && life.proxy_ready && !life.ending;
        let all = self.lives.iter().filter(|(_, life)| ready(life));
        all.map(|(name, _)| name.clone()).collect()
    }

    /// Writes what the control plane, DNS and the other commands read.
    fn publish(&mut self) -> Result<()> {
        let ready = self.ready();
        let layout = &self.mesh.layout;
        if self.plan.meshed() || self.controller.is_some() {
            let rendered = self.plan.render(&ready);
            if rendered != self.rendered {
                let path = layout.state().join("state.yaml");
                record::write_atomically(&path, rendered.as_bytes(), 0o644)?;
                self.rendered = rendered;
            }
        }
        self.zone.send_replace(Arc::new(self.plan.zone(&ready)));
        self.status(&ready).write(layout)
    }

    fn status(&self, ready: &BTreeSet<InstanceName>) -> Status {
        let instances = self.plan.instances.values().map(|instance| {
            let life = self.lives.get(&instance.name);
            InstanceStatus {
                namespace: instance.name.namespace.to_string(),
                workload: instance.workload.to_string(),
                name: instance.name.name.to_string(),
                addresses: instance.addresses.iter().collect(),
                meshed: instance.launch.meshed,
                mtls: instance.mtls,
                capture: life.and_then(|life| life.capture.clone()),
                phase: life.map_or(Phase::Starting, |life| life.phase),
                ready: ready.contains(&instance.name),
                restarts: life.map_or(0, |life| life.restarts),
                proxy_restarts: life.map_or(0, |life| life.proxy_restarts),
                surroundings: life.map(|life| life.surroundings.clone()).unwrap_or_default(),
            }
        });
        Status {
            mesh: self.mesh.layout.mesh().to_owned(),
            owner: nix::unistd::getpid().as_raw(),
            controller: self.controller.as_ref().and_then(controller::Controller::pid),
            needs_controller: self.controller.is_some(),
            gateway: IpAddr::V4(subnet().gateway().v4),
            switch_netns: self.mesh.layout.switch_netns(),
            refused_edit: self.refused_edit.clone(),
            instances: instances.collect(),
        }
    }

    /// Takes an edit of the files, or says why not and leaves everything as it is.
    async fn edited(&mut self) -> Result<()> {
        let plan = load(&self.options.files).and_then(|new| make(&new, self.defaults, &self.plan));
        match plan {
            Ok(plan) => {
                let difference = self.plan.difference(&plan);
                let (ended, started) = (difference.ended.len(), difference.started.len());
                self.refused_edit = None;
                self.adopt(plan).await?;
                self.say(&format!("edit taken: {ended} of the instances end, {started} start"))
                    .await;
            }
            Err(error) => {
                let reason = error.chain();
                self.say(&format!("edit refused, the last good state stays:\n{reason}")).await;
                self.refused_edit = Some(reason);
                self.publish()?;
            }
        }
        Ok(())
    }

    async fn greet(&self, plan: &Plan) {
        for instance in plan.instances.values() {
            // Known now, so that the first lines are as wide as the last.
            self.mesh.output.reserve(&instance::longest_label(instance));
        }
        let (instances, services) = (plan.instances.len(), plan.services());
        let mesh = self.mesh.layout.mesh();
        let chosen = match self.options.capture {
            Choice::Only(backend) => Some(backend),
            Choice::Auto => self.mesh.proxy.machine.chosen,
        };
        let capture = match (plan.meshed(), chosen) {
            (false, _) => "nothing meshed".to_owned(),
            (true, Some(backend)) => format!("captured by {backend}"),
            (true, None) => "no way to capture".to_owned(),
        };
        let instances = counted(instances, "instance");
        let services = counted(services, "service");
        let text = format!("mesh {mesh}: {instances}, {services}, {capture}");
        self.say(&text).await;
    }

    /// Says once that everything takes traffic.
    async fn announce(&mut self) {
        let ready = self.ready().len();
        if !self.announced && ready == self.plan.instances.len() {
            self.announced = true;
            let after = self.begun.elapsed().as_secs_f64();
            let ready = counted(ready, "instance");
            self.say(&format!("{ready} ready after {after:.2} s")).await;
        }
    }

    async fn say(&self, text: &str) {
        self.mesh.output.say(text).await;
    }

    /// Ends everything in order, and at once when a second signal comes.
    async fn end(
        mut self,
        signals: &mut Signals,
        received: &mut mpsc::Receiver<(InstanceName, Change)>,
    ) {
        self.stop.send_replace(Stop::Applications);
        self.say("stopping; once more to stop at once").await;
        let deadline = tokio::time::Instant::now() + self.options.grace + LATE;
        for level in [Stop::Applications, Stop::All] {
            self.reach(level);
            let done = |up: &Self| match level {
                Stop::Applications => up.lives.values().all(|life| life.application_ended),
                _ => up.lives.is_empty(),
            };
            while !done(&self) && *self.stop.borrow() < Stop::Now {
                tokio::select! {
                    change = received.recv() => {
                        let Some((name, change)) = change else { break };
                        self.change(&name, change);
                    }
                    () = signals.asked() => self.reach(Stop::Now),
                    () = tokio::time::sleep_until(deadline) => self.reach(Stop::Now),
                }
            }
        }
        self.reach(Stop::Now);
        let lives = std::mem::take(&mut self.lives);
        // Changes are not read any more: the tasks must not wait for room.
        received.close();
        for life in lives.into_values() {
            // A task that panicked has left what the removal of the whole mesh takes.
            let _ = tokio::time::timeout(LATE, life.task).await;
        }
        if let Some(controller) = self.controller.take() {
            controller.ended().await;
        }
        let output = self.mesh.output.clone();
        drop(self.zone);
        match Rc::try_unwrap(self.mesh) {
            Ok(mesh) => {
                drop(mesh.switch);
                if let Err(error) = mesh.record.into_inner().remove_all() {
                    output.say(&format!("{}: run `leno cleanup`", error.chain())).await;
                }
            }
            Err(_) => output.say("something still runs: run `leno cleanup`").await,
        }
    }

    fn reach(&self, level: Stop) {
        raise(&self.stop, level);
        self.lives.values().for_each(|life| raise(&life.stop, level));
    }
}

/// Goes at least as far as `level`.
fn raise(stop: &watch::Sender<Stop>, level: Stop) {
    stop.send_modify(|now| *now = (*now).max(level));
}

/// How long after the grace proxies may take, and the removal of an instance.
const LATE: Duration = Duration::from_secs(6);

/// The signals that end a mesh.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let on = |kind| signal(kind).attempt(|| "cannot wait for signals".to_owned());
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

fn counted(number: usize, what: &str) -> String {
    match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    }
}

fn load(files: &[PathBuf]) -> Result<Documents> {
    leno_resources::load(files).map_err(|problems| refused(&problems))
}

fn make(documents: &Documents, defaults: Defaults, before: &Plan) -> Result<Plan> {
    let plan = Plan::make(documents, defaults, before).map_err(|problems| refused(&problems))?;
    if plan.instances.is_empty() && before.instances.is_empty() {
        let reason = "the files hold no Workload document, so there is nothing to run";
        return Err(Error::Documents(reason.to_owned()));
    }
    if plan.meshed() {
        for name in ["leno-proxy", "leno-controller"] {
            proxy::find(name).ok_or_else(|| proxy::missing(name))?;
        }
    }
    Ok(plan)
}

fn refused(problems: &[leno_resources::Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Error::Documents(lines.join("\n"))
}
