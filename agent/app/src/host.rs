//! Finds the control groups, processes and network namespace of a pod on the node.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leno_supervise::{Hang, status_field};
use leno_types::ports;
use serde::{Deserialize, Serialize};

/// Deepest level below the root at which pods are searched for. There are usually three levels, and two or three
/// more if the node itself runs in a container.
const MAX_DEPTH: usize = 8;
/// Most directories that one search reads. It is enough for forty in each of a thousand pods.
const MAX_DIRECTORIES: usize = 40_000;

/// Most addresses of a node that are passed to a node proxy. The address of the pods' bridge is usually among the
/// first.
const MAX_ADDRESSES: usize = 64;

/// Longest name of a process in `/proc` (`TASK_COMM_LEN` without the final zero).
const LONGEST_NAME: usize = 15;

/// The hierarchies of version 1 in which a pod's processes are looked up if version 2 is not mounted.
const VERSION_1: [&str; 3] = ["pids", "memory", "systemd"];

/// The hierarchy of version 1 in which kubelets create no groups for pods. The runtime creates them with the first
/// container, which is after the pod's network. Runtimes use these groups to kill the remaining processes of a
/// container without its own process namespace.
const MADE_BY_RUNTIMES: &str = "devices";

/// Identifies a network namespace by the device and inode of its file. The numbers stay the same while the
/// namespace exists. Afterwards the kernel may use them for another namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct NetnsId {
    device: u64,
    inode: u64,
}

impl NetnsId {
    /// The namespace to which a file in `/run/netns` or `/proc/<pid>/ns/net` refers; `None` if the file is gone.
    pub(crate) fn of(file: &Path) -> Option<Self> {
        let found = fs::metadata(file).ok()?;
        Some(Self { device: found.dev(), inode: found.ino() })
    }
}

/// The node's file systems, as they are mounted in the agent's container.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    /// The node's `/sys/fs/cgroup`.
    pub(crate) cgroups: PathBuf,
    /// The node's `/proc`.
    pub(crate) proc: PathBuf,
    /// Where container runtimes keep network namespaces as files.
    pub(crate) netns: PathBuf,
}

impl Host {
    /// The root of the version 2 hierarchy; `None` if the node does not mount it. Version 1 may be mounted as
    /// well.
    pub(crate) fn cgroup2(&self) -> Option<PathBuf> {
        let beside = self.cgroups.join("unified");
        let roots = [&self.cgroups, &beside];
        roots.into_iter().find(|root| root.join("cgroup.controllers").exists()).cloned()
    }

    /// The pod's control group of version 2. The kubelet creates it before everything else of the pod.
    pub(crate) fn pod_cgroup(&self, uid: &str) -> Option<PathBuf> {
        find(&self.cgroup2()?, uid)
    }

    /// The pod's control groups of version 2 and of version 1. The group in [`MADE_BY_RUNTIMES`] may not exist
    /// yet.
    pub(crate) fn groups_of(&self, uid: &str) -> (Option<PathBuf>, Vec<PathBuf>) {
        let hierarchies = directories(&self.cgroups).unwrap_or_default();
        let version_2 = self.cgroup2();
        let is_version_1 = |root: &PathBuf| version_2.as_ref() != Some(root);
        let others: Vec<PathBuf> = match &version_2 {
            Some(root) if *root == self.cgroups => Vec::new(),
            _ => hierarchies.into_iter().filter(is_version_1).collect(),
        };
        let found = others.iter().filter_map(|root| Some((root, find(root, uid)?)));
        let found: Vec<(&PathBuf, PathBuf)> = found.collect();
        let is_found = |root: &PathBuf| found.iter().any(|(of, _)| *of == root);
        let unmade = others.iter().find(|root| root.ends_with(MADE_BY_RUNTIMES) && !is_found(root));
        // The group will have the same path as in the other hierarchies.
        let called = found.first().and_then(|(root, group)| group.strip_prefix(root).ok());
        let unmade = unmade.zip(called).map(|(root, called)| root.join(called));
        let groups = found.iter().map(|(_, group)| group.clone()).chain(unmade).collect();
        (version_2.and_then(|root| find(&root, uid)), groups)
    }

    /// The process ids of the pod, from the control groups of its containers.
    pub(crate) fn processes(&self, uid: &str) -> Vec<u32> {
        self.processes_within(uid, 1)
    }

    /// The process ids of the pod, including those in control groups that its containers have created.
    pub(crate) fn all_processes(&self, uid: &str) -> Vec<u32> {
        self.processes_within(uid, MAX_DEPTH)
    }

    /// The processes of the pod's broker: those that run a program of this name as the proxies' user.
    pub(crate) fn brokers(&self, uid: &str, program: &str) -> Vec<i32> {
        let is_broker = |pid: &u32| {
            let path = self.proc.join(pid.to_string()).join("status");
            fs::read_to_string(path).is_ok_and(|status| runs_as_proxy(&status, program))
        };
        let found = self.all_processes(uid).into_iter().filter(is_broker);
        found.filter_map(|pid| pid.try_into().ok()).filter(|pid| *pid > 0).collect()
    }

    /// How a broker that receives no messages hangs. `None` if a debugger has stopped it, or if it waits for the reader
    /// of its output.
    pub(crate) fn hangs(&self, pid: i32) -> Option<Hang> {
        leno_supervise::deaf(&self.proc, pid)
    }

    /// The processes in the pod's control group and down to this many levels below it.
    fn processes_within(&self, uid: &str, levels: usize) -> Vec<u32> {
        let version_1 = VERSION_1.iter().map(|name| self.cgroups.join(name));
        let roots = self.cgroup2().into_iter().chain(version_1);
        let mut found = Vec::new();
        for root in roots.filter(|root| root.is_dir()) {
            let Some(directory) = find(&root, uid) else { continue };
            for list in below(directory, levels).iter().map(|group| group.join("cgroup.procs")) {
                let text = fs::read_to_string(list).unwrap_or_default();
                found.extend(text.lines().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            if !found.is_empty() {
                break;
            }
        }
        found
    }

    /// The network namespace of most of the pod's processes, and a file for it. If possible, that is the runtime's
    /// file, which exists longer than the processes; otherwise it is a process's file. Some processes may be in
    /// other namespaces, because they have created one or have not entered the pod's yet.
    pub(crate) fn netns_of(&self, uid: &str) -> Option<(PathBuf, NetnsId)> {
        let mut found: HashMap<NetnsId, (usize, PathBuf)> = HashMap::new();
        for pid in self.processes(uid) {
            let file = self.proc.join(pid.to_string()).join("ns/net");
            if let Some(id) = NetnsId::of(&file) {
                found.entry(id).or_insert((0, file)).0 += 1;
            }
        }
        let (id, (_, file)) = found.into_iter().max_by_key(|(_, (processes, _))| *processes)?;
        let kept = fs::read_dir(&self.netns).into_iter().flatten().flatten();
        let kept = kept.map(|entry| entry.path()).find(|path| NetnsId::of(path) == Some(id));
        Some((kept.unwrap_or(file), id))
    }

    /// Whether a proxy listens in the pod's network namespace.
    pub(crate) fn proxy_listens(&self, uid: &str) -> bool {
        let Some(pid) = self.processes(uid).into_iter().next() else { return false };
        ["tcp", "tcp6"].iter().any(|table| {
            let path = self.proc.join(pid.to_string()).join("net").join(table);
            fs::read_to_string(path).is_ok_and(|text| listens(&text, ports::INBOUND))
        })
    }
}

/// The addresses of the node. Its kubelet connects to pods from one of them.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
    });
    towards_pods(addresses)
}

/// Leaves out link-local addresses. Every interface has one, and the kubelet does not connect to pods from them.
fn towards_pods(addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let on_link = |address: &IpAddr| match address {
        IpAddr::V6(address) => address.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    };
    let mut seen = HashSet::new();
    let others = addresses.filter(|address| !address.is_loopback() && !on_link(address));
    others.filter(|address| seen.insert(*address)).take(MAX_ADDRESSES).collect()
}

/// Whether a process runs a program of this name as the proxies' user, according to its `/proc/PID/status`.
fn runs_as_proxy(status: &str, program: &str) -> bool {
    let name = program.get(..LONGEST_NAME).unwrap_or(program);
    let user = status_field(status, "Uid").and_then(|users| users.split('\t').next());
    status_field(status, "Name") == Some(name)
        && user == Some(ports::PROXY_UID.to_string().as_str())
}

/// Whether this table from `/proc/net/tcp` has a listener on the port (proc(5): state 0A).
fn listens(table: &str, port: u16) -> bool {
    let local = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (address, state) = (words.next(), words.nth(1));
        address.is_some_and(|a| a.ends_with(&local)) && state == Some("0A")
    })
}

/// Finds the directory of a pod below a root. The kubelet's two cgroup drivers name it differently.
fn find(root: &Path, uid: &str) -> Option<PathBuf> {
    let plain = format!("pod{uid}");
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    let mut level = vec![root.to_owned()];
    let mut read = 0;
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for directory in level {
            read += 1;
            if read > MAX_DIRECTORIES {
                return None;
            }
            for child in directories(&directory).unwrap_or_default() {
                let name = child.file_name().unwrap_or_default().to_string_lossy();
                if name == plain || name.ends_with(&slice) {
                    return Some(child);
                }
                next.push(child);
            }
        }
        level = next;
    }
    None
}

/// A directory, and all directories up to `levels` levels below it.
fn below(root: PathBuf, levels: usize) -> Vec<PathBuf> {
    let mut all = vec![root];
    let mut from = 0;
    for _ in 0..levels {
        let to = all.len();
        let room = MAX_DIRECTORIES.saturating_sub(to);
        let level = all.get(from..to).unwrap_or_default();
        let children = level.iter().flat_map(|one| directories(one).unwrap_or_default());
        let children: Vec<PathBuf> = children.take(room).collect();
        all.extend(children);
        from = to;
    }
    all
}

fn directories(parent: &Path) -> io::Result<HashSet<PathBuf>> {
    let entries = fs::read_dir(parent)?.flatten();
    let is_directory = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    Ok(entries.filter(is_directory).map(|entry| entry.path()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8aa5b486-ea4b-4246-9144-60a996131924";

    fn host(files: &[&str]) -> (tempfile::TempDir, Host) {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let at = |name: &str| folder.path().join(name);
        let host = Host { cgroups: at("cgroup"), proc: at("proc"), netns: at("netns") };
        (folder, host)
    }

    #[test]
    fn a_broker_is_told_from_processes_of_the_application() {
        let group = format!("cgroup/kubepods/pod{UID}/leno-broker/cgroup.procs");
        let (folder, host) = host(&["cgroup/cgroup.controllers", &group]);
        fs::write(folder.path().join(group), "7\n8\n9\n10\n").unwrap();
        let write = |pid: u32, name: &str, user: u32| {
            let process = folder.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&process).unwrap();
            let status = format!("Name:\t{name}\nUmask:\t0022\nUid:\t{user}\t{user}\t0\t0\n");
            fs::write(process.join("status"), status).unwrap();
        };
        write(7, "leno-broker", 2102);
        write(8, "leno-broker", 1000);
        write(9, "sh", 2102);
        assert_eq!(host.brokers(UID, "leno-broker"), [7]);
        write(9, "leno-broker-of-", 2102);
        assert_eq!(host.brokers(UID, "leno-broker-of-a-test"), [9]);
    }

    #[test]
    fn a_pods_cgroup_is_found_as_every_kubelet_calls_it() {
        let plain = format!("kubepods/burstable/pod{UID}");
        let nested = format!("kubelet/kubepods/besteffort/pod{UID}");
        let sliced = format!(
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
            UID.replace('-', "_")
        );
        for (root, controllers) in
            [("", "cgroup.controllers"), ("unified", "unified/cgroup.controllers")]
        {
            for pod in [&plain, &nested, &sliced] {
                let pod = Path::new("cgroup").join(root).join(pod);
                let file = pod.join("sandbox/cgroup.procs");
                let (folder, host) =
                    host(&[&format!("cgroup/{controllers}"), file.to_str().unwrap()]);
                assert_eq!(host.pod_cgroup(UID), Some(folder.path().join(&pod)), "{pod:?}");
                assert_eq!(host.pod_cgroup("another"), None);
            }
        }
        let (_folder, host) = host(&[&format!("cgroup/pids/kubepods/pod{UID}/cgroup.procs")]);
        assert_eq!(host.pod_cgroup(UID), None, "version 1 alone");
    }

    #[test]
    fn a_pod_that_has_no_container_yet_has_a_group_in_the_hierarchy_of_devices() {
        let (pod, other) =
            (format!("e/kubepods/besteffort/pod{UID}"), "e/kubepods/burstable/pod-other");
        let pids = format!("cgroup/pids/{pod}/cgroup.procs");
        let devices = format!("cgroup/devices/{other}/cgroup.procs");
        let without = "cgroup/foreign/cgroup.procs";
        let (folder, host) = host(&["cgroup/unified/cgroup.controllers", &pids, &devices, without]);
        let at = |root: &str| folder.path().join("cgroup").join(root).join(&pod);
        let (version_2, groups) = host.groups_of(UID);
        assert_eq!((version_2, groups), (None, vec![at("pids"), at("devices")]));
        fs::create_dir_all(at("devices")).unwrap();
        assert_eq!(host.groups_of(UID).1.len(), 2, "the runtime has made it");
        assert_eq!(host.groups_of("another").1, Vec::<PathBuf>::new());
    }

    #[test]
    fn a_pods_processes_are_in_its_containers() {
        for root in ["cgroup", "cgroup/unified", "cgroup/pids"] {
            let file = format!("{root}/kubepods/pod{UID}/sandbox/cgroup.procs");
            let (folder, host) = host(&["cgroup/unified/cgroup.controllers", &file]);
            fs::write(folder.path().join(file), "12\n34\n").unwrap();
            let expected: &[u32] = if root == "cgroup" { &[] } else { &[12, 34] };
            assert_eq!(host.processes(UID), expected, "{root}");
            let nested = folder.path().join(format!("{root}/kubepods/pod{UID}/sandbox/own"));
            fs::create_dir(&nested).unwrap();
            fs::write(nested.join("cgroup.procs"), "56\n").unwrap();
            assert_eq!(host.processes(UID), expected, "{root}");
            let all: &[u32] = if expected.is_empty() { &[] } else { &[12, 34, 56] };
            assert_eq!(host.all_processes(UID), all, "{root}");
        }
    }

    #[test]
    fn a_pods_namespace_is_the_one_that_most_of_its_processes_are_in() {
        let list = format!("cgroup/pids/kubepods/pod{UID}/sandbox/cgroup.procs");
        let (folder, host) = host(&[&list, "pod", "other"]);
        fs::write(folder.path().join(list), "1\n2\n3\n4\n").unwrap();
        for (pid, namespace) in [(1, "other"), (2, "pod"), (3, "pod")] {
            let directory = folder.path().join(format!("proc/{pid}/ns"));
            fs::create_dir_all(&directory).unwrap();
            fs::hard_link(folder.path().join(namespace), directory.join("net")).unwrap();
        }
        let pod = NetnsId::of(&folder.path().join("pod"));
        let (file, id) = host.netns_of(UID).unwrap();
        assert_eq!((Some(id), NetnsId::of(&file)), (pod, pod));
        assert!(file.starts_with(folder.path().join("proc")), "{file:?}");
    }

    #[test]
    fn the_addresses_of_a_node_are_those_that_a_pod_is_called_from() {
        let of = |texts: &[&str]| towards_pods(texts.iter().map(|text| text.parse().unwrap()));
        let found = of(&["127.0.0.1", "10.0.0.1", "fe80::1", "::1", "10.0.0.1", "fd00::1"]);
        assert_eq!(found, of(&["10.0.0.1", "fd00::1"]));
        let many: Vec<String> = (0..=255).map(|i| format!("10.0.0.{i}")).collect();
        assert_eq!(towards_pods(many.iter().map(|a| a.parse().unwrap())).len(), MAX_ADDRESSES);
    }

    #[test]
    fn a_listener_is_told_from_a_connection_and_another_port() {
        let line = |local: &str, state: &str| {
            format!("  sl  local_address ...\n   0: {local} 00000000:0000 {state} 00000000\n")
        };
        assert!(listens(&line("00000000:3A9E", "0A"), 15006));
        assert!(!listens(&line("00000000:3A9E", "01"), 15006));
        assert!(!listens(&line("00000000:3A99", "0A"), 15006));
    }
}
