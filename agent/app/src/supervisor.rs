//! The supervisor of node proxies (`leno-agent supervise`, DaemonSet `leno-node`): groups the pods that the agent hands
//! over, and keeps a process running for each group (`leno_supervise::Group`).
//!
//! It runs beside the agent, so that an update of the agent ends no proxy. Its processes are its children, and end with
//! it. It reads no traffic and has no right in the cluster; the token in its pod, by which certificates of the node's
//! pods are requested, is read by the proxies.

#![expect(unsafe_code, reason = "pre_exec runs between fork and exec")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context as _;
use leno_handover::{
    AsyncChannel, Channel, MAX_MEMBERS, Member, PlacedPod, Placement, PlacementReport,
};
use leno_supervise::{
    Credentials, Error, Group, Happened, Joining, NodeProxyHost, Running, Stop, Tether,
};
use leno_types::InstanceName;
use leno_types::ports::PROXY_UID;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::LocalSet;

use crate::config::Supervise;

/// The pause before the agent's socket is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// Longest wait for an agent that does not read what it is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a pod that ends may have its requests finished. Its application has ended by then.
const LEAVE_BOUND: Duration = Duration::from_secs(5);
/// Variables with this prefix are the proxies' settings.
const PREFIX: &str = "LENO_";

/// The pods that are served, and their groups.
struct Served {
    program: PathBuf,
    token: PathBuf,
    pods: BTreeMap<String, ServedPod>,
    groups: BTreeMap<String, (Rc<Group>, u16)>,
    agent: Option<Rc<AsyncChannel>>,
    joined: u64,
}

struct ServedPod {
    pod: PlacedPod,
    name: InstanceName,
    /// The key of its group.
    group: String,
    /// Handed to the next agent.
    orders: Channel,
}

/// Starts the processes of a group.
struct Host {
    program: PathBuf,
}

type Shared = Rc<RefCell<Served>>;

/// Runs until SIGTERM or SIGINT; its processes end then.
pub(crate) fn run(flags: Supervise) -> anyhow::Result<()> {
    let program = match flags.proxy_binary {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("leno-proxy"),
    };
    let served = Served {
        program,
        token: flags.token,
        pods: BTreeMap::new(),
        groups: BTreeMap::new(),
        agent: None,
        joined: 0,
    };
    let served = Rc::new(RefCell::new(served));
    // On this thread alone: the processes are tied to the thread that starts them.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
        tokio::select! {
            () = follow(&served, &flags.socket) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let groups = std::mem::take(&mut served.borrow_mut().groups);
        let ends = groups.into_values().map(|(group, _)| end(group));
        futures_util::future::join_all(ends).await;
        Ok(())
    })
}

/// Follows the agent of the node, and each that comes after it.
async fn follow(served: &Shared, socket: &Path) {
    let mut failing = false;
    loop {
        match meet(served, socket).await {
            Ok(()) => failing = false,
            Err(error) if !failing => {
                failing = true;
                tracing::warn!(%error, socket = %socket.display(), "the agent cannot be reached; tried again");
            }
            Err(_) => {}
        }
        served.borrow_mut().agent = None;
        tokio::time::sleep(PAUSE).await;
    }
}

/// One agent, until it ends.
async fn meet(served: &Shared, socket: &Path) -> io::Result<()> {
    let agent = Rc::new(AsyncChannel::new(Channel::connect(socket)?)?);
    // Pods come and go below alone, so that none is missed.
    let held = served.borrow().held()?;
    for (pod, orders) in &held {
        agent.send_within(PATIENCE, pod, &[orders.as_fd()]).await?;
    }
    agent.send_within(PATIENCE, &PlacementReport::Complete, &[]).await?;
    served.borrow_mut().agent = Some(Rc::clone(&agent));
    tracing::info!(pods = held.len(), "connected to the agent");
    drop(held);
    while let Some((placement, descriptors)) = agent.receive::<Placement>().await? {
        match placement {
            Placement::Serve(pod) => {
                let Ok([orders]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                    return Err(io::Error::other("the agent hands over no broker"));
                };
                serve(served, pod, orders.into());
            }
            Placement::Release { uid } => release(served, &uid),
        }
    }
    Ok(())
}

/// Has a process serve a pod.
fn serve(served: &Shared, pod: PlacedPod, orders: Channel) {
    let name = match InstanceName::new(&pod.namespace, &pod.name) {
        Ok(name) => name,
        Err(error) => {
            tracing::error!(?pod, %error, "is no pod");
            return;
        }
    };
    let held = match orders.try_clone() {
        Ok(held) => held,
        Err(error) => {
            tracing::error!(%name, %error, "cannot be served");
            return;
        }
    };
    // A pod of a StatefulSet that comes back has the name of the one before it.
    let same_name = |held: &&ServedPod| held.name == name && held.pod.uid != pod.uid;
    let earlier = served.borrow().pods.values().find(same_name).map(|held| held.pod.uid.clone());
    if let Some(uid) = earlier {
        release(served, &uid);
    }
    let (events, mut happened) = mpsc::unbounded_channel();
    let uid = pod.uid.clone();
    let (group, number) = {
        let mut served = served.borrow_mut();
        served.joined = served.joined.wrapping_add(1);
        let before = served.pods.remove(&pod.uid).map(|before| before.group);
        let key = before.unwrap_or_else(|| served.enter(&pod.group));
        let Some((group, _)) = served.groups.get(&key) else { return };
        let group = Rc::clone(group);
        let served_pod =
            ServedPod { name: name.clone(), group: key, orders: held, pod: pod.clone() };
        served.pods.insert(pod.uid.clone(), served_pod);
        (group, served.joined)
    };
    let token = served.borrow().token.join("token");
    let member = Member {
        namespace: pod.namespace,
        name: pod.name,
        token,
        workload: pod.workload,
        pod_uid: Some(pod.uid),
        kubelet: pod.kubelet,
    };
    let joining = Joining { member, broker: orders, events, number, succeeds: false };
    group.join(&name, joining);
    let served = Rc::clone(served);
    // Ends with the group's record of this broker.
    tokio::task::spawn_local(async move {
        while let Some(happened) = happened.recv().await {
            tracing::info!(%name, ?happened, "node proxy");
            let agent = served.borrow().agent.clone();
            if let (Happened::Joined, Some(agent)) = (happened, agent) {
                let report = PlacementReport::Served { uid: uid.clone() };
                if agent.send_within(PATIENCE, &report, &[]).await.is_err() {
                    // The next connection tells it.
                    agent.shut_down();
                }
            }
        }
    });
}

/// Serves a pod no more: what is under way for it is finished, within a bound.
fn release(served: &Shared, uid: &str) {
    let Some(pod) = served.borrow_mut().pods.remove(uid) else { return };
    let Some((group, members)) =
        served.borrow().groups.get(&pod.group).map(|(group, count)| (Rc::clone(group), *count))
    else {
        return;
    };
    if members > 1 {
        served.borrow_mut().groups.insert(pod.group.clone(), (Rc::clone(&group), members - 1));
    } else {
        served.borrow_mut().groups.remove(&pod.group);
    }
    // At once: a pod of this name may join next.
    let left = group.leave(&pod.name, false);
    tokio::task::spawn_local(async move {
        // The broker ends when its channel is dropped.
        let _orders = tokio::time::timeout(LEAVE_BOUND, left).await;
        drop(pod.orders);
        end(group).await;
    });
}

/// Ends the process of a group that has no member, unless another task still waits for one that leaves: it ends it then.
async fn end(group: Rc<Group>) {
    if let Ok(group) = Rc::try_unwrap(group) {
        group.end(Stop::All).await;
    }
}

impl Served {
    /// What is said of each pod to an agent, with the orders for its broker.
    fn held(&self) -> io::Result<Vec<(PlacementReport, Channel)>> {
        let report = |held: &ServedPod| {
            Ok((PlacementReport::Held(held.pod.clone()), held.orders.try_clone()?))
        };
        self.pods.values().map(report).collect()
    }

    /// The key of the group that a pod of this share joins: a process has a bound of members, so that there may be
    /// several groups of one name.
    fn enter(&mut self, name: &str) -> String {
        let mut number = 0_u32;
        loop {
            let key = if number == 0 { name.to_owned() } else { format!("{name}.{number}") };
            match self.groups.get_mut(&key) {
                Some((_, members)) if *members >= MAX_MEMBERS => number = number.saturating_add(1),
                Some((_, members)) => {
                    *members += 1;
                    return key;
                }
                None => {
                    let host = Host { program: self.program.clone() };
                    self.groups.insert(key.clone(), (Rc::new(Group::start(&key, host)), 1));
                    return key;
                }
            }
        }
    }
}

impl NodeProxyHost for Host {
    type Error = Error;

    fn start(&self, orders: Channel) -> Result<Running, Error> {
        let settings = std::env::vars_os().filter(|(name, _)| is_setting(name));
        let mut command = Command::new(&self.program);
        command
            .arg("--node")
            .env_clear()
            .envs(settings)
            .stdin(Stdio::from(OwnedFd::from(orders)))
            .current_dir("/");
        let (credentials, tether) = (Credentials::confined(PROXY_UID), Tether::to_this_process());
        let prepare = move || {
            credentials.assume()?;
            tether.tie()
        };
        // SAFETY: `prepare` makes system calls on numbers; it neither allocates nor takes a lock.
        let started = unsafe { Running::spawn(command, prepare) };
        started.map_err(|source| {
            let what = format!("cannot start {}", self.program.display());
            Error::Os { what, source }
        })
    }

    fn say(&self, text: &str) {
        tracing::warn!("{text}");
    }
}

fn is_setting(name: &OsString) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX))
}
