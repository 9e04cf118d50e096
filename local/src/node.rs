//! Node proxies: one process for each group of instances, in the network namespace of the bridge and in a separate
//! control group (`leno_supervise::Group`).
//!
//! The process of a group is started when the first instance enters the group, and ended when the last one has
//! released it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

use leno_handover::{Channel, KubeletProbes, MAX_MEMBERS, Member};
use leno_supervise::{
    Cgroup, DepartedMember, Group as Process, JoiningMember, MemberEvent, NodeProxyHost,
    RunningProcess, StopStage, group_key,
};
use leno_types::InstanceName;
use tokio::sync::{mpsc, watch};

use crate::error::{Attempt, Error, Result};
use crate::instance::MeshContext;
use crate::isolation::{Isolation, ResolverNames, write_files};
use crate::layout::Layout;
use crate::limits::{self, MemberLimit};
use crate::plan::PlannedInstance;
use crate::program::Program;
use crate::record::{self, MeshResource};
use crate::status::ProxyProcess;

/// The groups of a mesh that have members.
#[derive(Debug, Default)]
pub struct NodeProxyGroups {
    running: RefCell<BTreeMap<String, Weak<NodeProxyGroup>>>,
    /// How many groups were started so far. Each has separate files and a separate control group, so that one can
    /// end while the next one of the same name starts.
    started: Cell<u64>,
    /// The wanted revision of proxy processes; processes of earlier revisions are replaced.
    revision: Cell<u64>,
}

impl NodeProxyGroups {
    /// The wanted revision of proxy processes.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision.get()
    }

    /// Raises the wanted revision, so that new processes replace all present ones. Returns the new revision.
    pub fn renew(&self) -> u64 {
        self.revision.set(self.revision.get() + 1);
        self.revision.get()
    }
}

/// A group of instances, its files and the process that serves them.
#[derive(Debug)]
pub struct NodeProxyGroup {
    mesh: Rc<MeshContext>,
    /// The name that its instances share. There are several groups for the same name if there are more instances
    /// than one process may serve.
    share: String,
    name: String,
    /// The wanted revision of proxy processes when the group was started.
    revision: u64,
    directory: PathBuf,
    cgroup: Cgroup,
    process: Process,
    /// Its memory limit; `None` if the machine has none.
    limit: Option<Rc<MemberLimit>>,
    /// The instances whose tokens the process can read, each with the number of its last membership.
    tokens: RefCell<BTreeMap<InstanceName, u64>>,
    /// The instances that have entered the group. The process may still finish streams of other instances.
    members: RefCell<BTreeSet<InstanceName>>,
    /// Why the process does not serve an instance that waits for it.
    waits: watch::Receiver<String>,
}

/// Starts and restarts the process of a group.
struct GroupHost {
    mesh: Rc<MeshContext>,
    name: String,
    cgroup: Cgroup,
    limit: Option<Rc<MemberLimit>>,
    /// How many kills by the memory limit the kernel had counted when the process was last started.
    killed: Cell<u64>,
    files: Vec<(PathBuf, PathBuf)>,
    tokens: PathBuf,
    /// The last message about the process.
    said: watch::Sender<String>,
}

impl NodeProxyGroup {
    /// Enters a group for this name that has room for an instance. Starts a new group if there is none, or if its
    /// process is of an earlier revision; that process ends once it has finished its streams.
    ///
    /// # Errors
    /// When the files or the control group of a new group cannot be created.
    pub fn enter(mesh: &Rc<MeshContext>, share: &str, instance: &InstanceName) -> Result<Rc<Self>> {
        let groups = &mesh.groups;
        let mut number = 0_u32;
        let name = loop {
            let name = group_key(share, number);
            match groups.running.borrow().get(&name).and_then(Weak::upgrade) {
                Some(group) if group.revision < groups.revision() => break name,
                Some(group) if takes(&group.members.borrow(), instance) => {
                    group.members.borrow_mut().insert(instance.clone());
                    return Ok(group);
                }
                Some(_) => number = number.saturating_add(1),
                None => break name,
            }
        };
        groups.started.set(groups.started.get() + 1);
        let own = format!("{name}.{}", groups.started.get());
        let group = Self::start(mesh, (share, &name), &own).inspect_err(|_| {
            // Each attempt creates new files, and there may be an attempt every second, for example while the disk
            // is full. So the files of a failed attempt are removed.
            let _nothing_made = std::fs::remove_dir_all(mesh.layout.group(&own));
        });
        let group = Rc::new(group?);
        group.members.borrow_mut().insert(instance.clone());
        groups.running.borrow_mut().insert(name, Rc::downgrade(&group));
        Ok(group)
    }

    fn start(mesh: &Rc<MeshContext>, (share, name): (&str, &str), own: &str) -> Result<Self> {
        let directory = mesh.layout.group(own);
        let gateway = mesh.switch.subnet().gateway();
        let names = ResolverNames {
            instance: name,
            full: &[],
            namespace: "default",
            addresses: gateway,
            server: gateway.v4.into(),
        };
        let files = write_files(&directory, &names)?;
        let tokens = directory.join("tokens");
        record::make_directory(&tokens, 0o755)?;
        // The folder in which tokens are mounted.
        record::make_place(&mesh.layout.token())?;
        let cgroup = Cgroup::create(mesh.layout.group_cgroup(&mesh.hierarchy, own))?;
        let limit = limit(mesh, &cgroup).map(Rc::new);
        let (name, mesh) = (name.to_owned(), mesh.clone());
        let (said, waits) =
            watch::channel(format!("the proxy of group {name} does not serve it yet"));
        let host = GroupHost {
            mesh: mesh.clone(),
            name: name.clone(),
            cgroup: cgroup.clone(),
            limit: limit.clone(),
            killed: Cell::new(0),
            files,
            tokens,
            said,
        };
        let (process, tokens) =
            (Process::start(&name, host, mesh.successions.clone()), RefCell::default());
        let members = RefCell::default();
        let share = share.to_owned();
        let revision = mesh.groups.revision();
        Ok(Self {
            process,
            mesh,
            share,
            name,
            revision,
            directory,
            cgroup,
            limit,
            tokens,
            members,
            waits,
        })
    }

    /// The wanted revision of proxy processes when the group was started.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The last message about why the process does not serve an instance that waits for it.
    #[must_use]
    pub fn waits(&self) -> watch::Receiver<String> {
        self.waits.clone()
    }

    /// The name that the group's instances share.
    #[must_use]
    pub fn share(&self) -> &str {
        &self.share
    }

    /// Leaves the group without having joined it, and releases the instance's slot and its hold on the process.
    pub async fn exit(self: Rc<Self>, instance: &InstanceName, stop: StopStage) {
        self.members.borrow_mut().remove(instance);
        self.release(stop).await;
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A description of its process.
    #[must_use]
    pub fn process(&self) -> ProxyProcess {
        ProxyProcess {
            group: Some(self.name.clone()),
            cgroup: self.cgroup.path().to_owned(),
            promoted: false,
            revision: self.revision,
        }
    }

    /// Whether the group has more than one instance.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.members.borrow().len() > 1
    }

    /// The path of the file with the token of an instance.
    #[must_use]
    pub fn token(&self, instance: &InstanceName) -> PathBuf {
        self.directory.join("tokens").join(Layout::token_name(instance))
    }

    /// Makes the process serve an instance, in place of an earlier instance of the same name. `broker` is the
    /// channel for orders to the instance's broker. `succeeds` is whether another group serves the instance until
    /// this one does.
    pub fn join(
        &self,
        instance: &PlannedInstance,
        broker: Channel,
        events: mpsc::UnboundedSender<MemberEvent>,
        (number, succeeds): (u64, bool),
    ) {
        let name = &instance.name;
        self.tokens.borrow_mut().insert(name.clone(), number);
        self.limit();
        let member = Member {
            namespace: name.namespace.to_string(),
            name: name.name.to_string(),
            workload: Some(instance.workload.to_string()),
            token: self.mesh.layout.token().with_file_name(Layout::token_name(name)),
            pod_uid: None,
            kubelet: KubeletProbes::default(),
            datagrams: instance.launch.datagrams.is_on(),
        };
        self.process.join(name, JoiningMember { member, broker, events, number, succeeds });
    }

    /// Has the process finish the open streams of an instance; the future waits for that. Its result has the channel to
    /// the instance's broker, which ends when that is dropped. `succeeded`: another group serves the instance, so the
    /// streams may take hours.
    pub fn leave(
        &self,
        instance: &InstanceName,
        (number, succeeded): (u64, bool),
    ) -> impl Future<Output = Option<DepartedMember>> + use<> {
        self.members.borrow_mut().remove(instance);
        self.process.leave(instance, (number, succeeded))
    }

    /// Removes the token of an instance after the membership `number` has ended, unless the instance has joined
    /// again. A token that is not removed becomes invalid when the instance is removed.
    pub fn forget(&self, instance: &InstanceName, number: u64) {
        let mut tokens = self.tokens.borrow_mut();
        if tokens.get(instance) == Some(&number) {
            tokens.remove(instance);
            let _gone = std::fs::remove_file(self.token(instance));
        }
        drop(tokens);
        self.limit();
    }

    /// Adjusts the memory limit to the number of members, including those whose streams are being finished.
    fn limit(&self) {
        if let Some(limit) = &self.limit {
            limit.follow(self.tokens.borrow().len());
        }
    }

    /// Releases an instance's hold on the group. The last release ends the process and waits until it has ended.
    pub async fn release(self: Rc<Self>, stop: StopStage) {
        let Ok(Self { mesh, directory, cgroup, process, limit, .. }) = Rc::try_unwrap(self) else {
            return;
        };
        process.end(stop).await;
        let groups = limit.iter().flat_map(|limit| limit.groups());
        let made: Vec<_> =
            groups.map(|group| MeshResource::Cgroup(group.path().to_owned())).collect();
        if !made.is_empty()
            && let Err(error) = mesh.record.borrow_mut().remove(&made)
        {
            mesh.output.say(&error.chain());
        }
        let removed = tokio::task::spawn_blocking(move || -> Result<()> {
            cgroup.kill()?;
            cgroup.remove()?;
            std::fs::remove_dir_all(&directory)
                .attempt(|| format!("cannot remove {}", directory.display()))
        });
        // The runtime prints a panic. Resources that remain are removed with the mesh.
        if let Ok(Err(error)) = removed.await {
            mesh.output.say(&error.chain());
        }
    }
}

/// Whether a group with these members has room for the instance. Every member counts, because all join the next
/// process at once if the present one ends.
fn takes(members: &BTreeSet<InstanceName>, instance: &InstanceName) -> bool {
    members.len() < usize::from(MAX_MEMBERS) || members.contains(instance)
}

/// Limits the memory of a group's process, if the machine supports it.
fn limit(mesh: &MeshContext, group: &Cgroup) -> Option<MemberLimit> {
    let limited = || -> Result<Option<MemberLimit>> {
        let mounts =
            limits::mounts().attempt(|| "cannot read the mounts of this machine".to_owned())?;
        let machine = limits::CgroupMounts { root: &mesh.hierarchy, mounts: &mounts };
        let record =
            |made: &Path| mesh.record.borrow_mut().add(MeshResource::Cgroup(made.to_owned()));
        MemberLimit::apply(machine, group, record)
    };
    limited().unwrap_or_else(|error| {
        tracing::warn!(
            error = error.chain(),
            "cannot limit the memory of a node proxy by its \
             control group; only its own memory budget applies"
        );
        None
    })
}

impl NodeProxyHost for GroupHost {
    type Error = Error;

    fn start(&self, orders: Channel) -> Result<RunningProcess> {
        let Self { mesh, name, cgroup, limit, files, tokens, .. } = self;
        if let Some(limit) = limit {
            let killed = limit.killed();
            if killed > self.killed.replace(killed) {
                mesh.output.say(&format!(
                    "the kernel has killed the proxy of group {name}, because it exceeded its \
                     memory limit of {}: see \"Memory of a process\" in docs/guide/node-mode.md",
                    limit.now()
                ));
            }
        }
        // Kills processes that an earlier process of the group has started and left behind.
        if !cgroup.processes().is_empty() {
            cgroup.kill()?;
        }
        let program = Program::prepare(&mesh.layout, "leno-proxy")?;
        let token = mesh.layout.token();
        let laid = token.parent().unwrap_or(Path::new("/"));
        let over = [program.file(), (tokens.clone(), laid.to_owned())];
        let files = [files.as_slice(), &over].concat();
        let isolation = Isolation::new(cgroup, mesh.switch.netns(), &files, mesh.layout.mesh())?;
        let groups = limit.as_ref().map_or(&[][..], |limit| limit.groups());
        let isolation = isolation.within_groups(groups)?;
        let budget = limit.as_ref().map(|limit| limit.budget());
        let label = format!("{name} proxy");
        let origin = mesh.output.origin(&label, &label, name);
        let task = mesh.proxy.node_task(&program, laid, isolation, (orders, budget));
        // A proxy prints only its access log to standard output.
        let access = mesh.access_log.as_ref().unwrap_or(&mesh.output);
        task.start_with(access, &mesh.output, &origin)
    }

    fn say(&self, text: &str) {
        self.mesh.output.say(text);
        self.said.send_replace(text.to_owned());
    }

    fn has_hung(&self) {
        self.mesh.hung.nodes.count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the process ends, the next one must be able to serve all members.
    #[test]
    fn a_group_takes_no_more_members_than_a_process_serves() {
        let name = |number: u16| InstanceName::new("shop", &format!("web-{number}")).unwrap();
        let mut members: BTreeSet<_> = (0..MAX_MEMBERS - 1).map(name).collect();
        assert!(takes(&members, &name(MAX_MEMBERS)));
        members.insert(name(MAX_MEMBERS));
        assert!(!takes(&members, &name(200)) && takes(&members, &name(0)));
    }
}
