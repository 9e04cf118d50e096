//! Runs a mesh from its first instance to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_capture::CaptureChoice;
use leno_resources::Documents;
use leno_supervise::StopStage;
use leno_types::InstanceName;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::MissedTickBehavior;

use super::UpOptions;
use super::counted;
use super::documents;
use super::edit::{self, AffectedInstance, EditEffect, Replacements, RunningObjects};
use super::instance_handle::{InstanceHandle, raise};
use super::rolling::{self, RollingInstance};
use super::signals::Signals;
use crate::analysis;
use crate::controller::{self, Controller};
use crate::dns::Zone;
use crate::error::{Error, Result};
use crate::forward::ForwardTarget;
use crate::hint::command;
use crate::instance::{self, InstanceChange, MeshContext, WorkloadStage, WorkloadStages};
use crate::observer::{self, Observer};
use crate::orders::{self, MeshOrder};
use crate::plan::{Plan, PlanDefaults, ReadyInstances};
use crate::program::Program;
use crate::publish::{PublishedPorts, Publisher};
use crate::record;
use crate::status::{FileEdit, FileMistake, InstancePhase, InstanceStatus, MeshStatus};
use crate::watch::WatchedFiles;

/// The time between the removal of an instance from the endpoints and the end of its application. The control
/// plane informs proxies of the removal within milliseconds.
const NOTICE: Duration = Duration::from_millis(300);
/// How long an instance's proxy may take to end, and the instance's resources to be removed, after the grace
/// period.
const LATE: Duration = Duration::from_secs(6);
/// The pause before a failed write is repeated. An operator may have to make room in `/run` first.
const REWRITE: Duration = Duration::from_secs(1);
/// How often to check that the guard runs and the files of the mesh exist.
const LOOK: Duration = Duration::from_secs(1);
/// Most edits that are kept in the status. The observer reads them every few seconds and keeps them for a day.
const MAX_EDITS: usize = 32;

/// A running mesh.
pub(super) struct MeshLifecycle<'a> {
    options: &'a UpOptions,
    files: WatchedFiles,
    mesh: Rc<MeshContext>,
    plan: Plan,
    /// The objects from which the plan was made.
    objects: RunningObjects,
    replacements: Replacements,
    /// The instances that must be restarted although the plan has not changed them.
    restarts: BTreeSet<InstanceName>,
    orders: mpsc::Receiver<orders::ReceivedOrder>,
    publisher: Publisher,
    defaults: PlanDefaults,
    lives: BTreeMap<InstanceName, InstanceHandle>,
    zone: watch::Sender<Arc<Zone>>,
    controller: Option<Controller>,
    controller_changed: Rc<Notify>,
    observer: Option<Observer>,
    /// Stops the control plane. It is stopped last, so that proxies can use it until they end.
    controller_stop: watch::Sender<StopStage>,
    stop: StopStage,
    refused_edit: Option<String>,
    mistakes: Vec<FileMistake>,
    edits: Vec<FileEdit>,
    /// Whether the last attempt to write the state has failed.
    unwritten: bool,
    /// The text that was last written. The same text is not written again.
    rendered: String,
    begun: Instant,
    announced: bool,
}

type Changes = mpsc::Receiver<(InstanceName, InstanceChange)>;

impl<'a> MeshLifecycle<'a> {
    /// A mesh without instances.
    pub(super) fn new(
        options: &'a UpOptions,
        (mesh, zone): (Rc<MeshContext>, watch::Sender<Arc<Zone>>),
        files: WatchedFiles,
        orders: mpsc::Receiver<orders::ReceivedOrder>,
        (defaults, begun): (PlanDefaults, Instant),
    ) -> Self {
        let publisher = Publisher::new(mesh.output.clone());
        Self {
            options,
            files,
            mesh,
            plan: Plan::default(),
            objects: RunningObjects::new(),
            replacements: Replacements::default(),
            restarts: BTreeSet::new(),
            orders,
            publisher,
            defaults,
            lives: BTreeMap::new(),
            zone,
            controller: None,
            controller_changed: Rc::default(),
            observer: None,
            controller_stop: watch::channel(StopStage::No).0,
            stop: StopStage::No,
            refused_edit: None,
            mistakes: Vec::new(),
            edits: Vec::new(),
            unwritten: false,
            rendered: String::new(),
            begun,
            announced: false,
        }
    }

    /// Starts everything, then handles changes and edits until a signal arrives.
    pub(super) async fn serve(
        &mut self,
        plan: Plan,
        documents: &Documents,
        signals: &mut Signals,
        received: &mut Changes,
    ) -> Result<()> {
        for line in documents::ignored(documents) {
            self.say(&line);
        }
        self.greet(&plan);
        self.adopt(plan, documents).await?;
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = signals.asked() => return Ok(()),
                change = received.recv() => {
                    if let Some((name, change)) = change {
                        self.take_in(&name, change, received);
                        self.announce();
                        self.count_replaced();
                    }
                }
                Some((order, answer)) = self.orders.recv() => {
                    // Sending fails if the command that gave the order no longer waits.
                    let _ = answer.send(self.obey(order));
                }
                () = self.controller_changed.notified() => self.publish(),
                () = self.files.edited() => self.edited().await,
                _ = looks.tick() => self.mend(),
                () = tokio::time::sleep(REWRITE), if self.unwritten => self.publish(),
            }
        }
    }

    /// Restarts the guard if it has ended, and rewrites files that were removed by other programs.
    fn mend(&mut self) {
        if let Some(report) = self.mesh.guard.revive() {
            self.say(&report);
        }
        if self.unwritten {
            return;
        }
        let layout = &self.mesh.layout;
        let has_objects = !self.rendered.is_empty();
        let files =
            [(self.objects_file(), has_objects), (layout.record(), true), (layout.status(), true)];
        let [objects, record, status] = files.map(|(path, is_wanted)| {
            let is_removed = is_wanted && !path.exists();
            if is_removed {
                self.say(&format!("{} was removed; writing it again", path.display()));
            }
            is_removed
        });
        if record && let Err(error) = self.mesh.record.borrow().write() {
            self.say(&error.chain());
        }
        if objects {
            self.rendered.clear();
        }
        if objects || status {
            self.publish();
        }
    }

    /// The file from which the control plane reads the objects of the mesh.
    fn objects_file(&self) -> PathBuf {
        self.mesh.layout.state().join("state.yaml")
    }

    /// Makes `plan` the running plan: ends instances that it does not have, starts new ones, and restarts changed
    /// ones one after another.
    async fn adopt(&mut self, plan: Plan, documents: &Documents) -> Result<()> {
        self.mistakes = analysis::mistakes(documents, &plan);
        for mistake in &self.mistakes {
            self.say(&mistake.text);
        }
        if self.mistakes.iter().any(|one| one.error) {
            self.say(
                "the parts with these errors do not work, the rest runs: `leno up --refuse-errors` \
                 rejects such files",
            );
        }
        self.plan = plan;
        self.objects = edit::objects(documents);
        let wanted = self.published(&ReadyInstances::new());
        let listening = self.publisher.listen(&wanted).await;
        self.publisher.follow(&self.published(&self.ready()));
        if let Err((address, error)) = listening {
            let error = self.unpublished(address, &error);
            // An error at the start ends the mesh. After an edit the mesh continues without the port.
            if self.lives.is_empty() {
                return Err(error);
            }
            self.say(&format!(
                "{}: the edit has no effect; save the files again to retry",
                error.chain()
            ));
        }
        if self.plan.meshed() && self.controller.is_none() {
            record::make_directory(&self.mesh.layout.state(), 0o700)?;
        }
        let unwanted: Vec<InstanceName> = self
            .lives
            .keys()
            .filter(|name| !self.plan.instances.contains_key(name))
            .cloned()
            .collect();
        self.end_instances(unwanted);
        match self.options.flows.with(self.plan.flow_sizes) {
            Ok(flows) => self.mesh.flows.resize(flows.sizes).await,
            Err(error) => self.say(&format!("flows: {error}")),
        }
        for life in self.lives.values_mut().filter(|life| !life.ending) {
            if let Some(group) = self.plan.moves(&life.instance).cloned() {
                life.go_to(group);
            }
            if let Some(wanted) = self.plan.instances.get(&life.instance.name) {
                life.promote_after(self.mesh.promotion.with_after(wanted.promote_after));
            }
        }
        for instance in self.plan.instances.values() {
            self.mesh.flows.adopt(instance).await;
            if !self.lives.contains_key(&instance.name) {
                let life = InstanceHandle::start(&self.mesh, instance);
                self.lives.insert(instance.name.clone(), life);
            }
        }
        self.proceed();
        if self.plan.meshed() && self.controller.is_none() {
            let stop = self.controller_stop.subscribe();
            let changed = self.controller_changed.clone();
            self.controller = Some(controller::start(&self.mesh, self.options, stop, changed)?);
            self.publish();
            let stop = self.controller_stop.subscribe();
            self.observer = Some(observer::start(&self.mesh, stop)?);
        }
        Ok(())
    }

    /// Takes the next steps of an edit in progress, and publishes the state.
    fn proceed(&mut self) {
        let member = |instance: &crate::plan::PlannedInstance| {
            let life = self.lives.get(&instance.name);
            RollingInstance {
                name: instance.name.clone(),
                workload: instance.workload.to_string(),
                settled: life.is_some_and(InstanceHandle::settled),
                ending: life.is_some_and(|life| life.ending),
                outdated: life.is_some_and(|life| !self.plan.wants(&life.instance))
                    || self.restarts.contains(&instance.name),
            }
        };
        let members: Vec<RollingInstance> = self.plan.instances.values().map(member).collect();
        self.end_instances(rolling::next(&members));
        // Instances are removed from the endpoints before their applications end.
        self.publish();
    }

    /// Ends instances, after the time that proxies need to learn of it.
    fn end_instances(&mut self, names: Vec<InstanceName>) {
        for name in names {
            let Some(life) = self.lives.get_mut(&name).filter(|life| !life.ending) else {
                continue;
            };
            life.ending = true;
            let stop = life.stop();
            tokio::task::spawn_local(async move {
                tokio::time::sleep(NOTICE).await;
                raise(&stop, StopStage::Applications);
            });
        }
    }

    /// Handles a report of an instance, and all reports that are queued after it.
    fn take_in(&mut self, name: &InstanceName, change: InstanceChange, received: &mut Changes) {
        self.change(name, change);
        while let Ok((name, change)) = received.try_recv() {
            self.change(&name, change);
        }
        self.proceed();
    }

    fn change(&mut self, name: &InstanceName, change: InstanceChange) {
        if !matches!(change, InstanceChange::Gone) {
            if let Some(life) = self.lives.get_mut(name) {
                life.take_in(change);
            }
            return;
        }
        self.lives.remove(name);
        self.restarts.remove(name);
        // An edit has ended the instance, which is now started with its new settings.
        if self.stop == StopStage::No
            && let Some(instance) = self.plan.instances.get(name)
        {
            self.lives.insert(name.clone(), InstanceHandle::start(&self.mesh, instance));
        }
    }

    fn ready(&self) -> ReadyInstances {
        let ready = self.lives.iter().filter(|(_, life)| life.ready());
        ready.map(|(name, life)| (name.clone(), life.families.clone())).collect()
    }

    /// Publishes the state for the control plane, DNS and the other commands. A write that fails is repeated
    /// later; until then the earlier state is in use.
    fn publish(&mut self) {
        let written = self.write();
        if let Err(error) = &written
            && !self.unwritten
        {
            self.say(&format!("{}; retrying until it succeeds", error.chain()));
        }
        self.unwritten = written.is_err();
    }

    fn write(&mut self) -> Result<()> {
        let ready = self.ready();
        let layout = &self.mesh.layout;
        if self.plan.meshed() || self.controller.is_some() {
            let rendered = self.plan.render(&ready);
            if rendered != self.rendered {
                record::write_atomically(&self.objects_file(), rendered.as_bytes(), 0o644)?;
                self.rendered = rendered;
            }
        }
        self.zone.send_replace(Arc::new(self.plan.zone(&ready)));
        let stages = self.stages();
        self.mesh.stages.send_if_modified(|now| {
            let changed = *now != stages;
            *now = stages;
            changed
        });
        self.publisher.follow(&self.published(&ready));
        self.status(&ready).write(layout)
    }

    /// The error for an address at which a port cannot be published. It names the workload, the reason and the
    /// remedy.
    fn unpublished(&self, address: SocketAddr, error: &Error) -> Error {
        let of = |one: &&crate::plan::PlannedInstance| {
            one.published.iter().any(|(at, _)| *at == address)
        };
        let of = self.plan.instances.values().find(of);
        let workload =
            of.map_or_else(String::new, |one| format!("{}/{}", one.name.namespace, one.workload));
        Error::Refused(format!(
            "cannot publish {address} for {workload}: {}: end the program that listens there, or \
             publish another port",
            error.chain()
        ))
    }

    fn published(&self, ready: &ReadyInstances) -> PublishedPorts {
        let mut all = PublishedPorts::new();
        for instance in self.plan.instances.values() {
            for (address, port) in &instance.published {
                let targets = all.entry(*address).or_default();
                if ready.contains_key(&instance.name) {
                    targets.push(ForwardTarget {
                        instance: instance.name.to_string(),
                        netns: self.mesh.layout.netns(&instance.name),
                        addresses: instance.addresses.iter().collect(),
                        port: *port,
                    });
                }
            }
        }
        all
    }

    fn status(&self, ready: &ReadyInstances) -> MeshStatus {
        let instances = self.plan.instances.values().map(|instance| {
            let life = self.lives.get(&instance.name);
            let datagrams = instance.launch.datagrams;
            InstanceStatus {
                namespace: instance.name.namespace.to_string(),
                workload: instance.workload.to_string(),
                name: instance.name.name.to_string(),
                addresses: instance.addresses.iter().collect(),
                meshed: instance.launch.meshed,
                mtls: instance.mtls,
                capture: life.and_then(|life| life.capture.clone()),
                datagrams: datagrams.is_on().then(|| datagrams.to_string()),
                phase: life.map_or(InstancePhase::Starting, |life| life.phase),
                ready: ready.contains_key(&instance.name),
                restarts: life.map_or(0, |life| life.restarts),
                pid: life.and_then(|life| life.pid),
                started_unix_ms: life.and_then(|life| life.started_unix_ms),
                ports: instance.listening.clone(),
                closed_ports: life.map(|life| life.closed.clone()).unwrap_or_default(),
                published: instance.published.clone(),
                trouble: life.map(|life| life.trouble.clone()).unwrap_or_default(),
                schedule: life.and_then(|life| life.schedule.clone()),
                proxy_restarts: life.map_or(0, |life| life.proxy_restarts),
                proxy_ended: life.and_then(|life| life.proxy_ended.clone()),
                proxy: life.and_then(|life| life.proxy.clone()),
                proxy_waits: life.and_then(|life| life.proxy_waits.clone()),
                surroundings: life.map(|life| life.surroundings.clone()).unwrap_or_default(),
            }
        });
        MeshStatus {
            mesh: self.mesh.layout.mesh().to_owned(),
            owner: nix::unistd::getpid().as_raw(),
            controller: self.controller.as_ref().and_then(Controller::pid),
            needs_controller: self.controller.is_some(),
            gateway: IpAddr::V4(self.mesh.switch.subnet().gateway().v4),
            switch_netns: self.mesh.layout.switch_netns(),
            uplink: self.options.uplink,
            ranges: self.defaults.ranges,
            refused_edit: self.refused_edit.clone(),
            mistakes: self.mistakes.clone(),
            edits: self.edits.clone(),
            files: self.options.files.iter().map(absolute).collect(),
            proxy_revision: self.mesh.groups.revision(),
            instances: instances.collect(),
        }
    }

    /// Applies an edit of the files, or prints why it is rejected and changes nothing. What is printed is in the status
    /// before, so that a command that follows a line finds the same.
    async fn edited(&mut self) {
        let read = documents::load(&self.options.files).and_then(|new| {
            let plan = documents::plan(self.options, &new, self.defaults, &self.plan)?;
            documents::without_errors(self.options, &new, &plan)?;
            Ok((new, plan))
        });
        match read {
            Ok((documents, plan)) => {
                let affected = self.affected(&plan);
                self.refused_edit = None;
                let lines = edit::changes(&self.objects, &edit::objects(&documents), &affected);
                self.remember(edit::edit(false, lines.clone()));
                self.publish();
                lines.iter().for_each(|line| self.say(line));
                self.replacements.begin(&affected, Instant::now());
                if let Err(error) = self.adopt(plan, &documents).await {
                    self.say(&format!(
                        "{}: the edit has no effect; save the files again to retry",
                        error.chain()
                    ));
                }
            }
            Err(error) => {
                let reason = error.chain();
                self.remember(edit::edit(true, reason.lines().map(str::to_owned).collect()));
                self.refused_edit = Some(reason.clone());
                self.publish();
                self.say(&format!(
                    "edit rejected, the last valid state stays in effect:\n{reason}"
                ));
            }
        }
    }

    /// Adds an edit to those in the status.
    fn remember(&mut self, edit: FileEdit) {
        if self.edits.len() == MAX_EDITS {
            self.edits.remove(0);
        }
        self.edits.push(edit);
    }

    /// The instances that adopting `plan` affects, and how.
    fn affected(&self, plan: &Plan) -> Vec<AffectedInstance> {
        let of = |instance: &crate::plan::PlannedInstance, effect| AffectedInstance {
            name: instance.name.clone(),
            workload: instance.workload.to_string(),
            effect,
        };
        let living = self.lives.values().filter_map(|life| {
            let instance = &life.instance;
            match plan.instances.contains_key(&instance.name) {
                false => Some(of(instance, EditEffect::Ends)),
                true if plan.wants(instance) => None,
                true if plan.moves(instance).is_some() => Some(of(instance, EditEffect::Moves)),
                true => Some(of(instance, EditEffect::Replaced)),
            }
        });
        let absent =
            |instance: &&crate::plan::PlannedInstance| !self.lives.contains_key(&instance.name);
        let new = plan.instances.values().filter(absent).map(|one| of(one, EditEffect::Starts));
        living.chain(new).collect()
    }

    fn obey(&mut self, order: MeshOrder) -> Result<(), String> {
        let names = match order {
            MeshOrder::Restart(names) => names,
            MeshOrder::UpgradeProxies => return self.upgrade_proxies(),
        };
        let mut affected = Vec::new();
        for (namespace, name) in names {
            let found = self.plan.instances.values();
            let found = found.filter(|one| *one.name.namespace == *namespace);
            let Some(instance) = found.clone().find(|one| *one.name.name == *name) else {
                return Err(format!("there is no instance {namespace}/{name}"));
            };
            affected.push(AffectedInstance {
                name: instance.name.clone(),
                workload: instance.workload.to_string(),
                effect: EditEffect::Replaced,
            });
        }
        self.restarts.extend(affected.iter().map(|one| one.name.clone()));
        self.replacements.begin(&affected, Instant::now());
        self.proceed();
        Ok(())
    }

    /// Replaces the process of each proxy by a new one that runs the installed program.
    fn upgrade_proxies(&mut self) -> Result<(), String> {
        // Checked first, because otherwise every instance would fail and report this.
        for name in ["leno-proxy", "leno-broker"] {
            Program::prepare(&self.mesh.layout, name).map_err(|error| error.chain())?;
        }
        let revision = self.mesh.groups.renew();
        let meshed = self.lives.values_mut().filter(|life| life.instance.launch.meshed);
        let meshed = meshed.filter(|life| !life.ending);
        let mut count = 0;
        for life in meshed {
            life.renew_proxy(revision);
            count += 1;
        }
        let instances = counted(count, "instance");
        self.say(&format!(
            "replacing the proxies of {instances}, each by a new process that takes over"
        ));
        // `leno upgrade` waits until the status file has the new revision.
        self.publish();
        Ok(())
    }

    /// Prints how many of the instances that an edit replaces take traffic again.
    fn count_replaced(&mut self) {
        let (plan, lives, restarts) = (&self.plan, &self.lives, &self.restarts);
        let state = |name: &InstanceName| {
            plan.instances.get(name)?;
            let life = lives.get(name);
            let as_wanted =
                |life: &InstanceHandle| plan.wants(&life.instance) && !restarts.contains(name);
            Some(life.is_some_and(|life| life.settled() && as_wanted(life)))
        };
        for line in self.replacements.proceed(Instant::now(), state) {
            self.say(&line);
        }
    }

    fn greet(&self, plan: &Plan) {
        for instance in plan.instances.values() {
            // The width of the labels is reserved now, so that the first lines are aligned with later ones.
            self.mesh.output.reserve(&instance::longest_label(instance));
        }
        let mesh = self.mesh.layout.mesh();
        let chosen = match self.options.capture {
            CaptureChoice::Only(backend) => Some(backend),
            CaptureChoice::Auto => self.mesh.proxy.machine.chosen,
        };
        let capture = match (plan.meshed(), chosen) {
            (false, _) => "no workload has a proxy".to_owned(),
            (true, Some(backend)) => format!("captured by {backend}"),
            (true, None) => "no usable capture backend".to_owned(),
        };
        let instances = counted(plan.instances.len(), "instance");
        let services = counted(plan.services(), "service");
        self.say(&format!("mesh {mesh}: {instances}, {services}, {capture}"));
    }

    /// Prints, once, that all instances take traffic, have completed, or have a schedule.
    fn announce(&mut self) {
        let ready = self.ready().len();
        let of = |phase| self.lives.values().filter(|life| life.phase == phase).count();
        let (completed, scheduled) = (of(InstancePhase::Completed), of(InstancePhase::Scheduled));
        let all = self.plan.instances.len();
        if !self.announced && all > 0 && ready + completed + scheduled == all {
            self.announced = true;
            let after = self.begun.elapsed().as_secs_f64();
            let mut said = counted(ready, "instance") + " ready";
            if completed > 0 {
                said += &format!(", {completed} completed");
            }
            if scheduled > 0 {
                said += &format!(", {scheduled} scheduled");
            }
            self.say(&format!("{said} after {after:.2} s"));
        }
    }

    /// How far each workload has come.
    fn stages(&self) -> WorkloadStages {
        let mut stages = WorkloadStages::new();
        for instance in self.plan.instances.values() {
            let key = (instance.name.namespace.to_string(), instance.workload.to_string());
            let life = self.lives.get(&instance.name);
            let is = |of: &dyn Fn(&InstanceHandle) -> bool| life.is_some_and(of);
            let completed = is(&|life| life.phase == InstancePhase::Completed);
            let (started, ready) = (is(&InstanceHandle::started), is(&InstanceHandle::settled));
            let none = WorkloadStage { started: true, ready: true, completed: true };
            let stage = stages.entry(key).or_insert(none);
            stage.started &= started;
            stage.ready &= ready;
            stage.completed &= completed;
        }
        stages
    }

    fn say(&self, text: &str) {
        self.mesh.output.say(text);
    }

    /// Ends everything in order: applications, proxies, the control plane, and then the foundation. A second signal
    /// ends everything at once.
    ///
    /// # Errors
    /// When something could not be removed. `leno cleanup` and the next run remove it.
    pub(super) async fn end(mut self, signals: &mut Signals, received: &mut Changes) -> Result<()> {
        self.say("stopping; press Ctrl-C again to stop at once");
        let graces = self.lives.values().filter_map(|life| life.instance.launch.grace);
        let grace = graces.chain([self.options.grace]).max().unwrap_or_default();
        let deadline = tokio::time::Instant::now() + grace + LATE;
        for level in [StopStage::Applications, StopStage::All] {
            self.reach(level);
            let done = |up: &Self| match level {
                StopStage::Applications => up.lives.values().all(|life| life.application_ended),
                _ => up.lives.is_empty(),
            };
            while !done(&self) && self.stop < StopStage::Now {
                tokio::select! {
                    change = received.recv() => {
                        let Some((name, change)) = change else { break };
                        self.change(&name, change);
                    }
                    () = signals.asked() => self.reach(StopStage::Now),
                    () = tokio::time::sleep_until(deadline) => self.reach(StopStage::Now),
                }
            }
        }
        self.reach(StopStage::Now);
        let lives = std::mem::take(&mut self.lives);
        // Reports are no longer read, and the instances must not wait for room in the queue.
        received.close();
        for life in lives.into_values() {
            // The resources of an instance whose task has panicked are removed with the mesh.
            let _ = tokio::time::timeout(LATE, life.task).await;
        }
        raise(&self.controller_stop, StopStage::All);
        if let Some(controller) = self.controller.take() {
            controller.ended().await;
        }
        if let Some(observer) = self.observer.take() {
            observer.ended().await;
        }
        drop(self.zone);
        // This drops the last outputs that are not held by tasks.
        drop(self.publisher);
        let cleanup = command(self.mesh.layout.mesh(), "cleanup");
        let Ok(mesh) = Rc::try_unwrap(self.mesh) else {
            return Err(Error::Refused(format!("some processes still run: run `{cleanup}`")));
        };
        drop(mesh.switch);
        mesh.flows.end();
        let left = |error: Error| Error::Refused(format!("{}: run `{cleanup}`", error.chain()));
        let removed = mesh.record.into_inner().remove_all().map_err(left);
        // The mesh's control group is gone now, unless a process is left in it, which the guard kills.
        drop(mesh.guard);
        removed
    }

    fn reach(&mut self, level: StopStage) {
        self.stop = self.stop.max(level);
        self.lives.values().for_each(|life| raise(&life.stop(), level));
    }
}

/// The absolute path of a file. `-`, which is standard input, is kept.
fn absolute(file: &PathBuf) -> PathBuf {
    match file.as_os_str() == leno_resources::STDIN {
        true => file.clone(),
        false => std::path::absolute(file).unwrap_or_else(|_| file.clone()),
    }
}
