//! The status of a running mesh. Its `leno up` writes it to a file, which other commands read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use leno_observe::stat::StatInstance;
use leno_types::{MtlsMode, nearest};
use serde::{Deserialize, Serialize};

use crate::error::{Attempt, Error, Result};
use crate::layout::Layout;
use crate::plan::{BoundVolume, RunAs};
use crate::ranges::MeshRanges;
use crate::record;

/// The status of a running mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeshStatus {
    /// Its name.
    pub mesh: String,
    /// The process id of the `leno up` that runs the mesh.
    pub owner: i32,
    /// The process id of the control plane; `None` while it is down, or if no workload has a proxy.
    pub controller: Option<i32>,
    /// Whether the mesh needs a control plane.
    pub needs_controller: bool,
    /// The address of the DNS server and the control plane.
    pub gateway: IpAddr,
    /// The name of the bridge's network namespace.
    pub switch_netns: String,
    /// Whether the mesh has an uplink.
    pub uplink: bool,
    /// Its address ranges.
    pub ranges: MeshRanges,
    /// Why the last edit of the files was rejected; `None` if it was applied.
    pub refused_edit: Option<String>,
    /// The mistakes in the files that do not prevent the mesh from running.
    pub mistakes: Vec<FileMistake>,
    /// The last edits of the files, the newest last.
    pub edits: Vec<FileEdit>,
    /// The files that the mesh was started from, as absolute paths; `-` for standard input.
    pub files: Vec<PathBuf>,
    /// The wanted revision of proxy processes; each `leno upgrade --proxies` raises it.
    #[serde(default)]
    pub proxy_revision: u64,
    /// The instances, by namespace and name.
    pub instances: Vec<InstanceStatus>,
}

/// A mistake in the files of a mesh, as `leno analyze` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMistake {
    /// Whether it is an error, and not just a warning.
    pub error: bool,
    /// Its description in one line.
    pub text: String,
}

/// An edit of the files of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEdit {
    /// When it was applied or rejected, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Whether it was rejected.
    pub refused: bool,
    /// What it changed, one object per line, or why it was rejected.
    pub lines: Vec<String>,
}

/// A running instance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceStatus {
    /// Its namespace.
    pub namespace: String,
    /// Its workload.
    pub workload: String,
    /// Its name, such as `web-0`.
    pub name: String,
    /// Its addresses, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// What its proxy does with plaintext connections to it.
    pub mtls: MtlsMode,
    /// The backend that captures its traffic; `None` if it is not captured.
    pub capture: Option<String>,
    /// Which of its datagrams its proxy carries; `None` if none.
    #[serde(default)]
    pub datagrams: Option<String>,
    /// Which phase it is in.
    pub phase: InstancePhase,
    /// Whether it takes traffic.
    pub ready: bool,
    /// How many times its application was restarted.
    pub restarts: u32,
    /// The application's process, if it runs.
    pub pid: Option<i32>,
    /// When that process was started, in milliseconds since 1970.
    pub started_unix_ms: Option<i64>,
    /// The ports that it declares.
    pub ports: Vec<u16>,
    /// The ports of the instance on which no process listened when they were last checked.
    #[serde(default)]
    pub closed_ports: Vec<u16>,
    /// Addresses of this machine at which ports are published, each with the instance's port.
    pub published: Vec<(SocketAddr, u16)>,
    /// Why the application takes no traffic, or took none the last time.
    pub trouble: ApplicationTrouble,
    /// The last and next runs of its schedule; `None` if it has no schedule.
    pub schedule: Option<Schedule>,
    /// How many times its proxy was restarted.
    pub proxy_restarts: u32,
    /// How its proxy last ended, such as `was ended by SIGKILL`.
    #[serde(default)]
    pub proxy_ended: Option<String>,
    /// The process of its proxy, if it has one.
    #[serde(default)]
    pub proxy: Option<ProxyProcess>,
    /// Why the next proxy process does not serve it yet, while the present one does.
    #[serde(default)]
    pub proxy_waits: Option<String>,
    /// The surroundings of its application, which a command needs in order to run beside it.
    pub surroundings: ProcessSurroundings,
}

/// The process of an instance's proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyProcess {
    /// The group whose node proxy serves the instance; `None` if it has a sidecar.
    pub group: Option<String>,
    /// The control group of the proxy's process.
    pub cgroup: PathBuf,
    /// Whether the instance has its own node proxy process while it is busy, although its documents make it share
    /// one.
    #[serde(default)]
    pub promoted: bool,
    /// The value of [`MeshStatus::proxy_revision`] when the process was first started.
    #[serde(default)]
    pub revision: u64,
}

impl ProxyProcess {
    /// This process as `leno stat` shows it.
    #[must_use]
    pub fn reported(&self) -> leno_observe::stat::ProxyProcess {
        use leno_observe::stat::ProxyProcess as Reported;
        self.group
            .as_deref()
            .map_or_else(Reported::sidecar, |group| Reported::of_group(group, self.promoted))
    }

    /// The ids of the processes in its control group; empty while the proxy is being restarted.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let processes = leno_supervise::Cgroup::at(self.cgroup.clone()).processes();
        processes.into_iter().map(nix::unistd::Pid::as_raw).collect()
    }
}

/// The phases of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstancePhase {
    /// The namespace, proxy and capture are being created, or the application does not listen yet.
    #[default]
    Starting,
    /// The application runs.
    Running,
    /// The application has ended and will be restarted.
    Waiting,
    /// The application was asked to end.
    Stopping,
    /// The instance could not be set up.
    Failed,
    /// The instance waits for the next run of its schedule.
    Scheduled,
    /// The application exited with 0 and is not restarted.
    Completed,
    /// The application has failed and is not restarted.
    Ended,
}

/// What is wrong with an application, as `leno up` has recorded it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplicationTrouble {
    /// Why it takes no traffic although it runs, such as `not ready: GET / on port 80 answers 503`.
    pub reason: Option<String>,
    /// How it last ended, such as `exited with 3`.
    pub ended: Option<String>,
    /// How many times in a row it has ended in this way.
    pub times: u32,
    /// When it is restarted, in milliseconds since 1970; `None` while it runs.
    pub next_try_unix_ms: Option<i64>,
    /// The last line that it printed before it ended.
    pub last_line: String,
}

/// The state of a workload's schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// How many runs are under way.
    pub running: u32,
    /// When the newest run began, in milliseconds since 1970.
    pub started_unix_ms: Option<i64>,
    /// The last run that ended without being replaced or stopped.
    pub last: Option<ScheduledRun>,
    /// When the next run begins, in milliseconds since 1970; `None` while the schedule is suspended.
    pub next_unix_ms: Option<i64>,
    /// Whether the schedule is suspended.
    pub suspended: bool,
}

/// A run that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledRun {
    /// When it began, in milliseconds since 1970.
    pub started_unix_ms: i64,
    /// When it ended, in milliseconds since 1970.
    pub ended_unix_ms: i64,
    /// Whether it exited with 0.
    pub succeeded: bool,
    /// How it ended, such as `exited with 3`.
    pub how: String,
    /// The last line that it printed, if it has failed.
    pub last_line: String,
}

/// The surroundings of an instance's processes: their isolation, user and environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessSurroundings {
    /// The network namespace.
    pub netns: String,
    /// The application's control group.
    pub cgroup: PathBuf,
    /// Control groups of other hierarchies that limit the application.
    pub limits: Vec<PathBuf>,
    /// The directory that is its root file system; `None` if it uses this machine's.
    pub root: Option<PathBuf>,
    /// Files that are mounted over the system's: source and mount point.
    pub files: Vec<(PathBuf, PathBuf)>,
    /// Files and directories that are mounted at other paths.
    pub volumes: Vec<BoundVolume>,
    /// The user and the group that the application runs as.
    pub account: RunAs,
    /// The application's whole environment.
    pub environment: BTreeMap<String, String>,
    /// The working directory of the application.
    pub directory: PathBuf,
}

impl Schedule {
    /// Records that a run of the schedule has begun.
    pub(crate) fn begins(&mut self, at_unix_ms: i64) {
        self.running += 1;
        self.started_unix_ms = Some(at_unix_ms);
    }

    /// Records that a run of the schedule has ended; `None` if the mesh has ended it.
    pub(crate) fn ended(&mut self, run: Option<ScheduledRun>) {
        self.running -= 1;
        self.last = run.or(self.last.take());
    }
}

impl InstancePhase {
    /// Whether an instance in this phase takes no traffic on purpose.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Scheduled)
    }

    /// The name of the phase in tables.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
            Self::Scheduled => "scheduled",
            Self::Completed => "completed",
            Self::Ended => "ended",
        }
    }
}

impl InstanceStatus {
    /// Whether there is nothing more to wait for: the instance takes traffic, has completed, or has a schedule.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.ready || self.phase.is_settled()
    }

    /// The instance as `leno stat` shows it. An instance that takes no traffic on purpose counts as ready.
    #[must_use]
    pub fn reported(&self) -> StatInstance {
        StatInstance {
            namespace: self.namespace.clone(),
            workload: self.workload.clone(),
            name: self.name.clone(),
            meshed: self.meshed,
            ready: self.settled(),
            proxy: self.proxy.as_ref().map(ProxyProcess::reported),
        }
    }

    /// Whether the last run of the instance's schedule has failed.
    #[must_use]
    pub fn has_failed_run(&self) -> bool {
        let last = self.schedule.as_ref().and_then(|schedule| schedule.last.as_ref());
        self.phase == InstancePhase::Scheduled && last.is_some_and(|last| !last.succeeded)
    }
}

impl MeshStatus {
    /// The status of the running mesh of this layout.
    ///
    /// # Errors
    /// [`Error::NotRunning`] when no process runs the mesh.
    pub fn read(layout: &Layout) -> Result<Self> {
        let not_running = || Error::NotRunning {
            mesh: layout.mesh().to_owned(),
            was_killed: layout.record().exists(),
            running: record::running(),
        };
        let path = layout.status();
        let text = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let owner = record::owner(layout).ok_or_else(not_running)?.pid;
                return Err(Error::NoStatus { mesh: layout.mesh().to_owned(), owner, path });
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Error::NeedsRoot);
            }
            other => other.attempt(|| format!("cannot read {}", path.display()))?,
        };
        let owner = record::owner(layout).ok_or_else(not_running)?;
        serde_json::from_slice(&text).map_err(|source| {
            let remedy = format!("remove it, and process {} writes it again", owner.pid);
            Error::Damaged { path, remedy, source }
        })
    }

    /// Whether the mesh has instances and all of them take traffic.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.instances.is_empty() && self.instances.iter().all(|instance| instance.ready)
    }

    /// Replaces the status on disk.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, layout: &Layout) -> Result<()> {
        let text = serde_json::to_vec_pretty(self).expect("a status has only text keys");
        // The environment of applications may contain secrets.
        record::write_atomically(&layout.status(), &text, 0o600)
    }

    /// Checks that the mesh has a namespace.
    ///
    /// # Errors
    /// [`Error::NoNamespace`], which lists the existing ones.
    pub fn has_namespace(&self, wanted: &str) -> Result<()> {
        if self.instances.iter().any(|instance| instance.namespace == wanted) {
            return Ok(());
        }
        let present: BTreeSet<&str> = self.instances.iter().map(|one| &*one.namespace).collect();
        Err(Error::NoNamespace {
            mesh: self.mesh.clone(),
            wanted: wanted.to_owned(),
            present: present.into_iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// The instances that a user means: those of the workload `wanted`, or the instance `wanted`; all instances if
    /// there is no `wanted`.
    ///
    /// # Errors
    /// The errors of [`find`](Self::find) and [`has_namespace`](Self::has_namespace).
    pub fn meant(
        &self,
        namespace: Option<&str>,
        wanted: Option<&str>,
    ) -> Result<Vec<&InstanceStatus>> {
        let Some(wanted) = wanted else {
            namespace.map_or(Ok(()), |namespace| self.has_namespace(namespace))?;
            let all = self.instances.iter();
            return Ok(all.filter(|one| namespace.is_none_or(|n| n == one.namespace)).collect());
        };
        let first = self.find(namespace, wanted)?;
        let name = wanted.rsplit('/').next().unwrap_or(wanted);
        if first.name == name {
            return Ok(vec![first]);
        }
        let same = |one: &&InstanceStatus| {
            one.namespace == first.namespace && one.workload == first.workload
        };
        Ok(self.instances.iter().filter(same).collect())
    }

    /// The first instance of the workload `wanted`, else the instance `wanted`. `shop/web` includes the namespace.
    /// A workload takes precedence because policies and services refer to workloads: if a workload is named
    /// `web-0`, that name means this workload and not the first instance of `web`.
    ///
    /// # Errors
    /// [`Error::NoWorkload`], which lists the existing ones; [`Error::Refused`] if the name exists in several
    /// namespaces, or if two different namespaces are given.
    pub fn find(&self, namespace: Option<&str>, wanted: &str) -> Result<&InstanceStatus> {
        let (namespace, wanted) = match (namespace, wanted.split_once('/')) {
            (Some(given), Some((said, _))) if given != said => {
                return Err(Error::Refused(format!(
                    "{wanted:?} is not in the namespace {given:?}: leave out one of the two \
                     namespaces"
                )));
            }
            (_, Some((said, name))) => (Some(said), name),
            (given, None) => (given, wanted),
        };
        namespace.map_or(Ok(()), |namespace| self.has_namespace(namespace))?;
        let here = |instance: &&InstanceStatus| {
            namespace.is_none_or(|namespace| namespace == instance.namespace)
        };
        let mut by_name = self.instances.iter().filter(here).filter(|i| i.name == wanted);
        let mut by_workload = self.instances.iter().filter(here).filter(|i| i.workload == wanted);
        let found = by_workload.next().or_else(|| by_name.next()).ok_or_else(|| {
            let here = self.instances.iter().filter(here);
            let names: BTreeSet<&str> = here.flat_map(|i| [&*i.workload, &*i.name]).collect();
            let present = |i: &InstanceStatus| format!("{}/{}", i.namespace, i.workload);
            let present: BTreeSet<String> = self.instances.iter().map(present).collect();
            Error::NoWorkload {
                mesh: self.mesh.clone(),
                wanted: namespace.map_or(wanted.to_owned(), |n| format!("{n}/{wanted}")),
                remedy: match nearest(wanted, names) {
                    Some(meant) => format!("did you mean {meant}?"),
                    None => format!("it has {}", Vec::from_iter(present).join(", ")),
                },
            }
        })?;
        let elsewhere = self.instances.iter().find(|other| {
            namespace.is_none()
                && other.namespace != found.namespace
                && (other.name == wanted || other.workload == wanted)
        });
        match elsewhere {
            None => Ok(found),
            Some(other) => Err(Error::Refused(format!(
                "{wanted:?} is in the namespaces {} and {}: choose one with -n",
                found.namespace, other.namespace
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(namespace: &str, workload: &str, number: u32) -> InstanceStatus {
        InstanceStatus {
            namespace: namespace.into(),
            workload: workload.into(),
            name: format!("{workload}-{number}"),
            addresses: Vec::new(),
            meshed: true,
            mtls: MtlsMode::Permissive,
            capture: None,
            datagrams: None,
            phase: InstancePhase::Running,
            ready: true,
            restarts: 0,
            pid: None,
            started_unix_ms: None,
            ports: Vec::new(),
            closed_ports: Vec::new(),
            published: Vec::new(),
            trouble: ApplicationTrouble::default(),
            schedule: None,
            proxy_restarts: 0,
            proxy_ended: None,
            proxy: None,
            proxy_waits: None,
            surroundings: ProcessSurroundings::default(),
        }
    }

    #[test]
    fn a_workload_stands_for_its_first_instance() {
        let status = MeshStatus {
            mesh: "default".into(),
            owner: 1,
            controller: None,
            needs_controller: false,
            gateway: IpAddr::from([10, 89, 0, 1]),
            switch_netns: "leno-default".into(),
            uplink: false,
            ranges: MeshRanges::DEFAULT,
            refused_edit: None,
            mistakes: Vec::new(),
            edits: Vec::new(),
            files: Vec::new(),
            proxy_revision: 0,
            instances: vec![
                instance("bank", "web", 0),
                instance("shop", "api", 0),
                instance("shop", "web", 0),
                instance("shop", "web", 1),
                instance("shop", "web-0", 0),
            ],
        };
        assert_eq!(status.find(Some("shop"), "web").unwrap().name, "web-0");
        assert_eq!(status.find(Some("shop"), "web-1").unwrap().name, "web-1");
        assert_eq!(status.find(None, "api").unwrap().namespace, "shop");
        assert_eq!(status.find(Some("shop"), "web-0").unwrap().name, "web-0-0");
        let ambiguous = status.find(None, "web").unwrap_err().to_string();
        assert!(ambiguous.contains("bank and shop"), "{ambiguous}");
        let absent = status.find(None, "db").unwrap_err().to_string();
        assert!(absent.ends_with(": it has bank/web, shop/api, shop/web, shop/web-0"), "{absent}");
        let misspelt = status.find(Some("shop"), "wbe").unwrap_err().to_string();
        assert!(misspelt.ends_with(" \"shop/wbe\": did you mean web?"), "{misspelt}");
    }
}
