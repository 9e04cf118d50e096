//! The life of one instance: namespace, links, control groups, capture, proxy, application, and the
//! removal of all of it.
//!
//! ```text
//! set up ─► proxy ─► proxy ready ─► application ─► (stop) application ends ─► proxy drains ─► removed
//!              ▲ └─ died: at once, then back-off │ ▲ └─ ended: back-off
//!              └─────────────────────────────────┘ └── each is started again by itself
//! ```

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_capture::{Backend, Captured};
use leno_types::InstanceName;
use tokio::sync::{mpsc, watch};

use crate::admin::Admin;
use crate::backoff::Backoff;
use crate::cgroup::Cgroup;
use crate::descriptors::Descriptors;
use crate::enclosure::{Credentials, Enclosure, Names, write_files};
use crate::environment::Environment;
use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::listening;
use crate::netns::Netns;
use crate::network::Switch;
use crate::output::{Origin, Output};
use crate::plan::Instance;
use crate::process::{Running, Task, describe};
use crate::program::Program;
use crate::proxy;
use crate::record::{Made, Record};
use crate::status::Surroundings;
use crate::supervise::{Event, Stop, keep_running};

/// How often a proxy that is not ready is asked again: it is ready within milliseconds of having
/// its identity.
const READY_POLL: Duration = Duration::from_millis(10);
/// How long a proxy may take before somebody is told that it is not ready, and how often again.
const READY_PATIENCE: Duration = Duration::from_secs(10);
/// How long an application may take until it listens on the ports it declares. Kubernetes waits for
/// a readiness probe without end; here nobody declares one, so the wait has an end.
const LISTEN_BOUND: Duration = Duration::from_secs(5);
/// The longest a proxy may take to finish what is under way once its application has ended, and
/// with it every request it could still answer.
const DRAIN_BOUND: Duration = Duration::from_secs(5);

/// What all instances of a mesh share.
#[derive(Debug)]
pub struct Mesh {
    /// Its paths.
    pub layout: Layout,
    /// Everything made for it.
    pub record: RefCell<Record>,
    /// The bridge.
    pub switch: Switch,
    /// Where cgroup2 is mounted.
    pub hierarchy: PathBuf,
    /// Where lines go.
    pub output: Output,
    /// Where the proxies' access log goes, where that is not among the other lines.
    pub access_log: Option<Output>,
    /// How proxies are run.
    pub proxy: proxy::Settings,
    /// How long an application may take to end.
    pub grace: Duration,
    /// Where the variables of applications come from.
    pub environment: Environment,
    /// How many descriptors applications may have: as many as whoever called leno.
    pub descriptors: Descriptors,
    /// What instances report.
    pub changes: mpsc::Sender<(InstanceName, Change)>,
}

/// What an instance reports about itself.
#[derive(Clone, Debug)]
pub enum Change {
    /// It is set up; its application may start.
    Placed(Box<Surroundings>, Option<Backend>),
    /// Its application was started, as this process.
    Started(i32),
    /// Its application listens on all of its ports, or has had time to.
    Running,
    /// Its application ended in this way and is started again after a wait.
    Ended {
        /// How, `exited with 3`.
        how: String,
        /// The last line that it printed.
        last_line: String,
        /// The wait.
        wait: Duration,
    },
    /// Its application was asked to end.
    Stopping,
    /// Its proxy became able or unable to serve.
    Proxy {
        /// Whether it serves.
        ready: bool,
        /// How often it was started again.
        restarts: u32,
    },
    /// It could not be set up; the reason has been printed, and it is tried again.
    Failed,
    /// Its application has ended for good; its proxy still serves what is under way.
    ApplicationEnded,
    /// Nothing of it is left.
    Gone,
}

/// One instance while it lives.
struct Life {
    mesh: Rc<Mesh>,
    instance: Instance,
    stop: watch::Receiver<Stop>,
}

/// What was made for an instance.
struct Place {
    netns: Netns,
    group: Cgroup,
    app: Cgroup,
    proxy: Cgroup,
    files: Vec<(PathBuf, PathBuf)>,
    captured: Option<Captured>,
}

/// Runs an instance until `stop` says otherwise, then removes everything of it.
pub async fn live(mesh: Rc<Mesh>, instance: Instance, stop: watch::Receiver<Stop>) {
    let life = Life { mesh, instance, stop };
    if let Some(mut place) = life.placed().await {
        let surroundings = Box::new(life.surroundings(&place));
        let backend = place.captured.as_ref().map(Captured::backend);
        life.report(Change::Placed(surroundings, backend)).await;
        life.run(&place).await;
        if let Some(captured) = place.captured.take() {
            life.release(captured).await;
        }
    }
    if let Err(error) = life.remove().await {
        life.complain(&error);
    }
    life.report(Change::Gone).await;
}

impl Life {
    /// Makes the place, again with waits while that fails; none when it is not wanted any more.
    async fn placed(&self) -> Option<Place> {
        let mut stop = self.stop.clone();
        let mut backoff = Backoff::patient(Instant::now());
        loop {
            backoff.started(Instant::now());
            match self.place().await {
                Ok(place) => return Some(place),
                Err(error) => self.complain(&error),
            }
            self.report(Change::Failed).await;
            // What was half made is in the way of the next attempt.
            if let Err(error) = self.remove().await {
                self.complain(&error);
            }
            let wait = backoff.ended(Instant::now());
            self.say(&format!("{}: trying again {}", self.instance.label, after(wait)));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                // A sender that is gone is the end of the mesh.
                _ = stop.wait_for(|now| *now >= Stop::Applications) => return None,
            }
        }
    }

    /// Makes everything that an instance's processes are put into.
    async fn place(&self) -> Result<Place> {
        let Self { mesh, instance, .. } = self;
        let name = mesh.layout.netns(&instance.name);
        self.record(Made::Netns(name.clone()))?;
        let netns = tokio::task::spawn_blocking(move || Netns::create(&name));
        let netns = joined(netns.await)?;
        let subnet = crate::plan::subnet();
        let listening = &instance.listening;
        mesh.switch.connect(&netns, &instance.addresses, &subnet, listening).await?;
        let group = mesh.layout.instance_cgroup(&mesh.hierarchy, &instance.name);
        let names = Names {
            instance: &instance.name.name,
            full: &instance.full_names,
            namespace: &instance.name.namespace,
            addresses: instance.addresses,
            server: subnet.gateway().v4.into(),
        };
        let mut place = Place {
            netns,
            app: Cgroup::create(group.join("app"))?,
            proxy: Cgroup::create(group.join("proxy"))?,
            group: Cgroup::at(group),
            files: write_files(&mesh.layout.instance(&instance.name), &names)?,
            captured: None,
        };
        if instance.launch.meshed {
            place.captured = Some(self.capture(&place).await?);
        }
        Ok(place)
    }

    async fn capture(&self, place: &Place) -> Result<Captured> {
        let Self { mesh, instance, .. } = self;
        let backend = mesh.proxy.machine.choose(instance.launch.capture)?;
        let workload = leno_capture::Workload {
            name: mesh.layout.netns(&instance.name),
            netns: place.netns.path(),
            cgroup: place.group.path().to_owned(),
            proxy_cgroup: place.proxy.path().to_owned(),
            fail_closed: true,
            excluded: proxy::never_captured(),
            proxy_uid: leno_types::ports::PROXY_UID,
        };
        self.record(Made::Capture(workload.name.clone()))?;
        let captured =
            tokio::task::spawn_blocking(move || leno_capture::capture(backend, &workload));
        joined(captured.await.map(|result| result.map_err(Error::from)))
    }

    /// Undoes the capture on a thread of its own: some backends run commands.
    async fn release(&self, mut captured: Captured) {
        let released = tokio::task::spawn_blocking(move || Ok(captured.release()?));
        if let Err(error) = joined(released.await) {
            self.complain(&error);
        }
    }

    /// Proxy first, then the application; both until they are stopped.
    async fn run(&self, place: &Place) {
        if !self.instance.launch.meshed {
            self.application(place).await;
            return self.report(Change::ApplicationEnded).await;
        }
        let (ready, mut is_ready) = watch::channel(false);
        let application = async {
            let mut stop = self.stop.clone();
            let may_start = tokio::select! {
                ready = is_ready.wait_for(|ready| *ready) => ready.is_ok(),
                _ = stop.wait_for(|now| *now >= Stop::Applications) => false,
            };
            if may_start {
                self.application(place).await;
            }
            self.report(Change::ApplicationEnded).await;
        };
        tokio::join!(self.proxy(place, ready), application);
    }

    async fn application(&self, place: &Place) {
        let Self { mesh, instance, .. } = self;
        let name = instance.name.to_string();
        let origin = mesh.output.origin(&instance.label, &name, &instance.workload);
        let start = || self.task(place)?.start(&mesh.output, &origin);
        let (events, mut happened) = mpsc::unbounded_channel();
        let backoff = Backoff::patient(Instant::now());
        let until = (self.stop.clone(), Stop::Applications);
        let process = async {
            // The receiver is polled beside the process and ends after it.
            let report = |event| drop(events.send(event));
            keep_running(start, backoff, until, mesh.grace, report).await;
            drop(events);
        };
        let listen = async {
            // The process that was started and does not listen yet.
            let mut silent = None;
            loop {
                let event = tokio::select! {
                    event = happened.recv() => event,
                    () = self.until_listening(silent.unwrap_or_default()), if silent.is_some() => {
                        silent = None;
                        self.report(Change::Running).await;
                        continue;
                    }
                };
                let Some(event) = event else { break };
                silent = if let Event::Started(pid) = event { Some(pid) } else { None };
                self.application_event(event, &origin).await;
            }
        };
        tokio::join!(process, listen);
    }

    /// Comes back when the application listens on the ports it declares, or takes so long that
    /// traffic may as well find that out by itself.
    async fn until_listening(&self, pid: i32) {
        let closed = listening::until(pid, &self.instance.listening, LISTEN_BOUND).await;
        if !closed.is_empty() {
            let label = &self.instance.label;
            let seconds = LISTEN_BOUND.as_secs();
            let ports = listening::shown(&closed);
            self.say(&format!(
                "{label} does not listen on {ports} after {seconds} s; it takes traffic all the same"
            ));
        }
    }

    async fn application_event(&self, event: Event, origin: &Origin) {
        let label = &self.instance.label;
        match event {
            Event::Started(pid) => self.report(Change::Started(pid)).await,
            Event::Ended(status, wait) => {
                let (how, last_line) = (describe(status), origin.last_line());
                self.say(&format!("{label} {how}; starting it again {}", after(wait)));
                self.report(Change::Ended { how, last_line, wait }).await;
            }
            Event::Failed(error, wait) => {
                self.complain(&error);
                self.say(&format!("{label}: trying again {}", after(wait)));
                let (how, last_line) = (error.chain(), origin.last_line());
                self.report(Change::Ended { how, last_line, wait }).await;
            }
            Event::Stopping => self.report(Change::Stopping).await,
            Event::Stopped => {}
        }
    }

    fn task(&self, place: &Place) -> Result<Task> {
        let instance = &self.instance;
        let launch = &instance.launch;
        let files = &place.files;
        let credentials = Credentials::invoking();
        let environment = self.mesh.environment.of_instance(instance, &credentials)?;
        Ok(Task {
            command: launch.command.iter().map(OsString::from).collect(),
            environment: environment
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            directory: Some(launch.directory.clone()),
            enclosure: Enclosure::new(&place.app, &place.netns, files, &instance.name.name)?,
            credentials,
            descriptors: Some(self.mesh.descriptors),
        })
    }

    /// Keeps the proxy running; `ready` follows whether it serves.
    async fn proxy(&self, place: &Place, ready: watch::Sender<bool>) {
        let Self { mesh, instance, .. } = self;
        let label = proxy_label(instance);
        let name = format!("{} proxy", instance.name);
        let origin = mesh.output.origin(&label, &name, &instance.workload);
        let start = || -> Result<Running> {
            let token = mesh.proxy.tokens.issue(instance, &mesh.layout)?;
            let program = Program::prepare(&mesh.layout, "leno-proxy")?;
            let laid = token.1.clone();
            let files = [place.files.as_slice(), &[program.file(), token]].concat();
            let enclosure =
                Enclosure::new(&place.proxy, &place.netns, &files, &instance.name.name)?;
            let task = mesh.proxy.task(instance, &program, &laid, enclosure);
            // A proxy prints its access log alone on standard output.
            let access = mesh.access_log.as_ref().unwrap_or(&mesh.output);
            task.start_with(access, &mesh.output, &origin)
        };
        let (events, happened) = mpsc::unbounded_channel();
        let backoff = Backoff::eager(Instant::now());
        let until = (self.stop.clone(), Stop::All);
        let process = async {
            // The receiver is polled beside the process and ends after it.
            let report = |event| drop(events.send(event));
            keep_running(start, backoff, until, DRAIN_BOUND, report).await;
            drop(events);
        };
        tokio::join!(process, self.watch_proxy(place, ready, happened));
    }

    async fn watch_proxy(
        &self,
        place: &Place,
        ready: watch::Sender<bool>,
        mut happened: mpsc::UnboundedReceiver<Event>,
    ) {
        let label = &self.instance.label;
        let mut starts = 0_u32;
        let mut alive = false;
        loop {
            let event = tokio::select! {
                event = happened.recv() => event,
                () = self.until_ready(place), if alive && !*ready.borrow() => {
                    self.proxy_serves(true, starts).await;
                    ready.send_replace(true);
                    continue;
                }
            };
            let Some(event) = event else { return };
            alive = matches!(event, Event::Started(_));
            match &event {
                Event::Started(_) => starts += 1,
                Event::Ended(status, wait) => {
                    let (how, when) = (describe(*status), after(*wait));
                    self.say(&format!("the proxy of {label} {how}; starting it again {when}"));
                }
                Event::Failed(error, _) => self.complain(error),
                Event::Stopping | Event::Stopped => {}
            }
            if !alive && ready.send_replace(false) {
                self.proxy_serves(false, starts).await;
            }
        }
    }

    async fn proxy_serves(&self, serves: bool, starts: u32) {
        let restarts = starts.saturating_sub(1);
        self.report(Change::Proxy { ready: serves, restarts }).await;
    }

    /// Comes back when the proxy says that it serves; tells why it does not when that takes long.
    async fn until_ready(&self, place: &Place) {
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

    /// Removes everything of the instance.
    async fn remove(&self) -> Result<()> {
        let Self { mesh, instance, .. } = self;
        let group = Cgroup::at(mesh.layout.instance_cgroup(&mesh.hierarchy, &instance.name));
        let directory = mesh.layout.instance(&instance.name);
        let removed = tokio::task::spawn_blocking(move || {
            group.kill()?;
            group.remove()?;
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).attempt(|| format!("cannot remove {}", directory.display()))
                }
                _ => Ok(()),
            }
        });
        joined(removed.await)?;
        mesh.proxy.tokens.revoke(&instance.name)?;
        mesh.switch.disconnect(&instance.addresses, &crate::plan::subnet()).await?;
        let name = mesh.layout.netns(&instance.name);
        let mut made = vec![Made::Netns(name.clone())];
        if instance.launch.meshed {
            made.push(Made::Capture(name));
        }
        mesh.record.borrow_mut().remove(&made)
    }

    fn surroundings(&self, place: &Place) -> Surroundings {
        let environment = &self.mesh.environment;
        Surroundings {
            netns: place.netns.name().to_owned(),
            cgroup: place.app.path().to_owned(),
            files: place.files.clone(),
            // A file that cannot be read is reported when the application starts.
            environment: environment
                .of_instance(&self.instance, &Credentials::invoking())
                .unwrap_or_default(),
            directory: self.instance.launch.directory.clone(),
        }
    }

    fn record(&self, made: Made) -> Result<()> {
        self.mesh.record.borrow_mut().add(made)
    }

    async fn report(&self, change: Change) {
        // Nobody listens any more once the mesh is gone.
        let _ = self.mesh.changes.send((self.instance.name.clone(), change)).await;
    }

    fn say(&self, text: &str) {
        self.mesh.output.say(text);
    }

    fn complain(&self, error: &Error) {
        self.say(&format!("{}: {}", self.instance.label, error.chain()));
    }
}

/// When something is tried again, in words.
pub(crate) fn after(wait: Duration) -> String {
    match wait.as_secs() {
        0 => "at once".to_owned(),
        seconds => format!("in {seconds} s"),
    }
}

/// The longest label of an instance's lines.
pub(crate) fn longest_label(instance: &Instance) -> String {
    match instance.launch.meshed {
        true => proxy_label(instance),
        false => instance.label.clone(),
    }
}

fn proxy_label(instance: &Instance) -> String {
    format!("{} proxy", instance.label)
}

/// The result of work done on another thread; its panic goes on here.
fn joined<T>(result: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    match result {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => Err(Error::Refused(cancelled.to_string())),
        },
    }
}
