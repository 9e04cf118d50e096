//! Node proxies: a process for each group of instances.
//!
//! ```text
//! instance ── enter ──► Group ── keeps running ──► leno-proxy --node     (switch namespace, its own control group)
//!    │ join, leave        │                             ▲
//!    ▼                    └── a channel each ───────────┤ sockets
//! leno-proxy --broker ──────────────────────────────────┘     (the instance's namespace and control group)
//! ```
//! The first instance that enters a group starts it, the last one that releases it ends it. A process that ends is
//! started again at once, and serves all members again: their brokers, and so their listeners, live on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use leno_handover::{AsyncChannel, Channel, Member, Serve, WorkloadReleased};
use leno_types::InstanceName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::cgroup::Cgroup;
use crate::error::{Attempt, Result};
use crate::instance::{Mesh, after};
use crate::isolation::{Isolation, Names, write_files};
use crate::layout::Layout;
use crate::plan::Instance;
use crate::process::{Running, describe};
use crate::program::Program;
use crate::record;
use crate::supervise::{Event, Rules, Stop, keep_running};

/// The longest a process may take to end. It has no members by then.
const END_BOUND: Duration = Duration::from_secs(5);
/// Between a member that is served no more, although its broker lives, and the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// The groups of a mesh that have members.
#[derive(Debug, Default)]
pub struct Groups {
    running: RefCell<BTreeMap<String, Weak<Group>>>,
    /// How many were started. Each has files and a control group of its own, so that one may end while the next of
    /// the same name begins.
    started: Cell<u64>,
}

/// A group of instances and the process that serves them.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
    cgroup: Cgroup,
    orders: mpsc::UnboundedSender<Order>,
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

/// What a member learns of the process that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was told to serve the member.
    Joined,
    /// It does so no more.
    Lost,
}

/// What members want of their group.
#[derive(Debug)]
enum Order {
    Join(InstanceName, Joining),
    /// Try again for the member that joined with this number, if it is still the same.
    Again(InstanceName, u64),
    /// The answer comes when nothing of the member is under way.
    Leave(InstanceName, oneshot::Sender<Joining>),
}

/// A member as its group knows it.
#[derive(Debug)]
struct Joining {
    workload: Arc<str>,
    broker: Channel,
    events: mpsc::UnboundedSender<Happened>,
    number: u64,
}

impl Group {
    /// The group of this name; started if it has no member yet.
    ///
    /// # Errors
    /// When its files or its control group cannot be made.
    pub fn enter(mesh: &Rc<Mesh>, name: &str) -> Result<Rc<Self>> {
        let groups = &mesh.groups;
        if let Some(group) = groups.running.borrow().get(name).and_then(Weak::upgrade) {
            return Ok(group);
        }
        groups.started.set(groups.started.get() + 1);
        let own = format!("{name}.{}", groups.started.get());
        let group = Rc::new(Self::start(mesh, name, &own)?);
        groups.running.borrow_mut().insert(name.to_owned(), Rc::downgrade(&group));
        Ok(group)
    }

    fn start(mesh: &Rc<Mesh>, name: &str, own: &str) -> Result<Self> {
        let directory = mesh.layout.group(own);
        let gateway = mesh.switch.subnet().gateway();
        let names = Names {
            instance: name,
            full: &[],
            namespace: "default",
            addresses: gateway,
            server: gateway.v4.into(),
        };
        let files = write_files(&directory, &names)?;
        let tokens = directory.join("tokens");
        record::make_directory(&tokens, 0o755)?;
        // Its folder is where the tokens are laid.
        record::make_place(&mesh.layout.token())?;
        let cgroup = Cgroup::create(mesh.layout.group_cgroup(&mesh.hierarchy, own))?;
        let (orders, received) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(Stop::No);
        let task = NodeProxyTask {
            mesh: mesh.clone(),
            name: name.to_owned(),
            cgroup: cgroup.clone(),
            files,
            tokens,
            orders: orders.clone(),
            members: BTreeMap::new(),
            leaving: BTreeMap::new(),
            process: None,
        };
        let task = tokio::task::spawn_local(task.run(received, stopped));
        Ok(Self { directory, cgroup, orders, stop, task })
    }

    /// The control group of its process.
    #[must_use]
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// The file for the token of an instance.
    #[must_use]
    pub fn token(&self, instance: &InstanceName) -> PathBuf {
        self.directory.join("tokens").join(Layout::token_name(instance))
    }

    /// Has the process serve an instance, in place of an earlier one of the same name: its token is written, and
    /// `broker` takes the orders for its broker.
    pub fn join(
        &self,
        instance: &Instance,
        broker: Channel,
        events: mpsc::UnboundedSender<Happened>,
        number: u64,
    ) {
        // The task ends after the last member.
        let workload = Arc::clone(&instance.workload);
        let joining = Joining { workload, broker, events, number };
        let _ended = self.orders.send(Order::Join(instance.name.clone(), joining));
    }

    /// Has the process finish what is under way for an instance, and waits for that. Returns the channel to its
    /// broker, which ends with it.
    pub async fn leave(&self, instance: &InstanceName) -> Option<Channel> {
        let (answer, answered) = oneshot::channel();
        let _ended = self.orders.send(Order::Leave(instance.clone(), answer));
        // A sender that is dropped is an answer, too: it was no member.
        let joining = answered.await.ok();
        // A token that stays is void once the instance is removed.
        let _gone = std::fs::remove_file(self.token(instance));
        joining.map(|joining| joining.broker)
    }

    /// Gives a member's hold of the group back. The last one ends the process and waits for that.
    pub async fn release(self: Rc<Self>, stop: Stop) {
        let Ok(group) = Rc::try_unwrap(self) else { return };
        group.stop.send_replace(stop.max(Stop::All));
        // A panic is printed by the runtime; what is left, the end of the mesh removes.
        let _ended = group.task.await;
    }
}

/// The task of a group.
struct NodeProxyTask {
    mesh: Rc<Mesh>,
    name: String,
    cgroup: Cgroup,
    files: Vec<(PathBuf, PathBuf)>,
    tokens: PathBuf,
    orders: mpsc::UnboundedSender<Order>,
    members: BTreeMap<InstanceName, Joining>,
    /// Members until what is under way for them has ended: connections out of their namespaces still need brokers.
    leaving: BTreeMap<InstanceName, (Joining, oneshot::Sender<Joining>)>,
    /// Takes orders while the process runs.
    process: Option<Rc<AsyncChannel>>,
}

impl NodeProxyTask {
    async fn run(
        mut self,
        mut received: mpsc::UnboundedReceiver<Order>,
        stop: watch::Receiver<Stop>,
    ) {
        let (mesh, cgroup) = (self.mesh.clone(), self.cgroup.clone());
        let (files, tokens) = (self.files.clone(), self.tokens.clone());
        let label = format!("{} proxy", self.name);
        let origin = mesh.output.origin(&label, &label, &self.name);
        let newest = RefCell::new(None);
        let start = || -> Result<Running> {
            let what = || "cannot make a socket for orders".to_owned();
            let (near, far) = Channel::pair().attempt(what)?;
            let program = Program::prepare(&mesh.layout, "leno-proxy")?;
            let token = mesh.layout.token();
            let laid = token.parent().unwrap_or(Path::new("/"));
            let over = [program.file(), (tokens.clone(), laid.to_owned())];
            let files = [files.as_slice(), &over].concat();
            let netns = mesh.switch.netns();
            let isolation = Isolation::new(&cgroup, netns, &files, mesh.layout.mesh())?;
            let task = mesh.proxy.node_task(&program, laid, isolation, far);
            // A proxy prints its access log alone on standard output.
            let access = mesh.access_log.as_ref().unwrap_or(&mesh.output);
            let running = task.start_with(access, &mesh.output, &origin)?;
            *newest.borrow_mut() = Some(Rc::new(AsyncChannel::new(near).attempt(what)?));
            Ok(running)
        };
        let (events, mut happened) = mpsc::unbounded_channel();
        let rules = Rules::always(Backoff::eager(Instant::now()), END_BOUND);
        let process = async {
            // The receiver is polled beside the process and ends after it.
            let report = |event| drop(events.send(event));
            keep_running(start, rules, (stop, Stop::All), report).await;
            drop(events);
        };
        let work = async {
            loop {
                let process = self.process.clone();
                tokio::select! {
                    event = happened.recv() => match event {
                        Some(Event::Started(_)) => self.serve_all(newest.borrow_mut().take()),
                        Some(event) => self.has_ended(&event),
                        None => break,
                    },
                    Some(order) = received.recv() => self.obey(order),
                    left = hear(process.as_deref()) => self.left(left),
                }
            }
        };
        tokio::join!(process, work);
        drop(received);
        let (cgroup, files) = (self.cgroup.clone(), self.tokens.parent().map(Path::to_owned));
        let removed = tokio::task::spawn_blocking(move || -> Result<()> {
            cgroup.kill()?;
            cgroup.remove()?;
            let Some(files) = files else { return Ok(()) };
            std::fs::remove_dir_all(&files).attempt(|| format!("cannot remove {}", files.display()))
        });
        // A panic is printed by the runtime.
        if let Ok(Err(error)) = removed.await {
            self.say(&error.chain());
        }
    }

    /// A new process serves all members.
    fn serve_all(&mut self, process: Option<Rc<AsyncChannel>>) {
        self.process = process;
        let members: Vec<InstanceName> = self.members.keys().cloned().collect();
        members.iter().for_each(|name| self.serve(name));
    }

    /// Connects a member's broker to the process, if that runs.
    fn serve(&self, name: &InstanceName) {
        let (Some(process), Some(member)) = (&self.process, self.members.get(name)) else { return };
        let token = self.mesh.layout.token().with_file_name(Layout::token_name(name));
        let order = leno_handover::Order::Join(Member {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            workload: Some(member.workload.to_string()),
            token,
            pod_uid: None,
        });
        let connect = || {
            let (near, far) = Channel::pair()?;
            member.broker.send(&Serve {}, &[near.as_fd()])?;
            process.send(&order, &[far.as_fd()])
        };
        match connect() {
            Ok(()) => {
                // The instance has an end of its own.
                let _ending = member.events.send(Happened::Joined);
            }
            // Either the process or the broker has ended, and is started again.
            Err(error) => self.say(&format!("the proxy of {name} cannot be connected: {error}")),
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Join(name, joining) => {
                self.members.insert(name.clone(), joining);
                self.serve(&name);
            }
            Order::Again(name, number) => {
                if self.members.get(&name).is_some_and(|member| member.number == number) {
                    self.serve(&name);
                }
            }
            Order::Leave(name, answer) => {
                let Some(member) = self.members.remove(&name) else { return };
                let order = leno_handover::Order::Leave {
                    namespace: name.namespace.to_string(),
                    name: name.name.to_string(),
                };
                let process = self.process.as_ref();
                if process.is_some_and(|process| process.send(&order, &[]).is_ok()) {
                    self.leaving.insert(name, (member, answer));
                } else {
                    has_left(member, answer);
                }
            }
        }
    }

    /// The process serves an instance no more, or cannot be heard.
    fn left(&mut self, left: Option<WorkloadReleased>) {
        let Some(WorkloadReleased { namespace, name }) = left else {
            // It has ended, or does so now.
            self.process = None;
            return;
        };
        let Ok(name) = InstanceName::new(&namespace, &name) else { return };
        if let Some((member, answer)) = self.leaving.remove(&name) {
            return has_left(member, answer);
        }
        let Some(member) = self.members.get(&name) else { return };
        let _ending = member.events.send(Happened::Lost);
        let (orders, number) = (self.orders.clone(), member.number);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(AGAIN).await;
            let _ended = orders.send(Order::Again(name, number));
        });
    }

    fn has_ended(&mut self, event: &Event) {
        self.process = None;
        // Nothing is under way any more.
        for (member, answer) in std::mem::take(&mut self.leaving).into_values() {
            has_left(member, answer);
        }
        for member in self.members.values() {
            let _ending = member.events.send(Happened::Lost);
        }
        match event {
            Event::Ended(status, wait) => {
                let (how, when) = (describe(*status), after(*wait));
                let (group, members) = (&self.name, self.members.len());
                self.say(&format!(
                    "the proxy of group {group} ({members} served) {how}; starting it again {when}"
                ));
            }
            Event::Failed(error, _) => self.say(&error.chain()),
            Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
        }
    }

    fn say(&self, text: &str) {
        self.mesh.output.say(text);
    }
}

fn has_left(member: Joining, answer: oneshot::Sender<Joining>) {
    // The instance may have waited long enough.
    let _left = answer.send(member);
}

/// The next instance that the process serves no more; `None` if it says nothing any more. Waits for ever without
/// a process.
async fn hear(process: Option<&AsyncChannel>) -> Option<WorkloadReleased> {
    match process {
        Some(process) => {
            process.receive::<WorkloadReleased>().await.ok().flatten().map(|(left, _)| left)
        }
        None => std::future::pending().await,
    }
}
