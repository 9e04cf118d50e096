//! Finds ways around the capture of a workload that are open at present, with data from the kernel.
//!
//! The capture of a workload redirects its TCP connections. Which other traffic can reach the network depends on
//! the privileges of the workload's processes and on the kernel. docs/security.md lists all ways, including those
//! that are closed.

use std::fs;

use leno_types::Datagrams;
use serde::Serialize;

use crate::backend::Backend;
use crate::captured::CaptureTarget;

mod connections;
mod processes;

use connections::past_the_proxy;
use processes::{Capability, Process};

/// Most processes or connections that are named for one way.
const MAX_NAMED: usize = 8;
/// Most processes that are examined. A kubelet usually permits a pod a quarter of that.
const MAX_PROCESSES: usize = 4_096;

/// The open ways of one workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OpenWays {
    /// The ways that are known to be open.
    pub ways: Vec<OpenWay>,
    /// What could not be read, in words. More ways may be open than `ways` lists.
    pub unknown: Vec<String>,
}

/// One open way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpenWay {
    /// The name of the way, which stays the same in later versions.
    pub way: Way,
    /// Which traffic bypasses the proxy.
    pub what: &'static str,
    /// What closes it.
    pub remedy: &'static str,
    /// The processes, connections or protocols for which it is open, at most eight. Empty if it is open to every
    /// process.
    pub by: Vec<String>,
    /// How many there are, including those that are not named.
    pub count: usize,
}

/// The ways that can be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Datagrams that the proxy does not carry, and other traffic that is not TCP over IP.
    Datagrams,
    /// Protocols and address families other than UDP that the kernel supports.
    OtherProtocols,
    /// Raw and packet sockets, whose packets are not captured.
    RawSockets,
    /// Permission to change rules, routes and addresses in the network namespace.
    NetworkSettings,
    /// Permission to change the control groups by which eBPF recognises the workload.
    ControlGroups,
    /// Processes that run as the user by which the proxy is recognised.
    ProxyUser,
    /// Connections that the capture has not redirected because they are older.
    OlderConnections,
}

impl Way {
    fn what(self) -> &'static str {
        match self {
            Self::Datagrams => {
                "UDP, UDP-Lite and multicast, in and out, under strict and egress: deny too"
            }
            Self::OtherProtocols => "protocols and address families that this kernel has",
            Self::RawSockets => "raw and packet sockets",
            Self::NetworkSettings => "changed rules, routes and addresses of the network namespace",
            Self::ControlGroups => "sockets of a process that leaves its control group",
            Self::ProxyUser => "TCP of the proxy's user",
            Self::OlderConnections => "TCP connections that began before the capture",
        }
    }

    fn remedy(self) -> &'static str {
        match self {
            Self::Datagrams => {
                "leno.dev/udp, and a NetworkPolicy or a firewall for what must not pass"
            }
            Self::OtherProtocols => "a seccomp profile, or do not load the kernel's modules",
            Self::RawSockets => "drop the capability NET_RAW",
            Self::NetworkSettings => "drop the capability NET_ADMIN",
            Self::ControlGroups => {
                "run as another user than root, without the capability SYS_ADMIN"
            }
            Self::ProxyUser => {
                "run as another user than root and the proxy's, and drop the capability SETUID"
            }
            Self::OlderConnections => "restart the workload",
        }
    }

    fn open_by(self, mut by: Vec<String>) -> OpenWay {
        let count = by.len();
        by.truncate(MAX_NAMED);
        OpenWay { way: self, what: self.what(), remedy: self.remedy(), by, count }
    }
}

/// The ways that are open to a captured workload. `processes` are its process ids, including the proxy's if the
/// proxy has no control group of its own. The caller must have permission to read these processes, as root has.
#[must_use]
pub fn open_ways(backend: Backend, workload: &CaptureTarget, processes: &[u32]) -> OpenWays {
    let mut open = OpenWays::default();
    open.ways.push(Way::Datagrams.open_by(uncarried(workload.datagrams)));
    match fs::read_to_string("/proc/net/protocols") {
        Ok(table) => open.add(Way::OtherProtocols, other_protocols(&table)),
        Err(error) => open.unknown.push(format!("the kernel's protocols: {error}")),
    }
    if processes.len() > MAX_PROCESSES {
        let all = processes.len();
        open.unknown.push(format!("only {MAX_PROCESSES} of {all} processes were examined"));
    }
    let processes = processes.get(..MAX_PROCESSES).unwrap_or(processes);
    let users = proxy_users(workload.proxy_uid, processes);
    match processes::read(&workload.netns, processes) {
        Ok(all) => {
            let is_by_user = backend != Backend::Ebpf || workload.proxy_cgroup == workload.cgroup;
            open.add_of_processes(backend, is_by_user, &users, &all);
        }
        Err(error) => open.unknown.push(format!("the processes: {}", error.chain())),
    }
    match connections::read(&workload.netns) {
        // If not all sockets were read, the proxy's end of a connection may be missing, so no connection can be
        // judged.
        Ok(None) => open.unknown.push("the connections: there are too many".to_owned()),
        Ok(Some(sockets)) => {
            let past = past_the_proxy(&sockets, &users, &workload.excluded);
            open.add(Way::OlderConnections, past);
        }
        Err(error) => open.unknown.push(format!("the connections: {}", error.chain())),
    }
    open
}

/// The kinds of datagrams that bypass a proxy that carries `carried`. Empty if all kinds bypass it.
fn uncarried(carried: Datagrams) -> Vec<String> {
    let all = ["UDP-Lite", "multicast", "DNS"].map(str::to_owned);
    match carried {
        Datagrams::Off => Vec::new(),
        Datagrams::Enabled => all.into(),
        Datagrams::All => all.into_iter().take(2).collect(),
    }
}

impl OpenWays {
    /// Adds a way, unless no processes or protocols are in `by`.
    fn add(&mut self, way: Way, by: Vec<String>) {
        if !by.is_empty() {
            self.ways.push(way.open_by(by));
        }
    }

    /// Adds the ways that processes have because of their privileges. `is_by_user` is whether the capture
    /// recognises the proxy by its user.
    fn add_of_processes(
        &mut self,
        backend: Backend,
        is_by_user: bool,
        users: &[u32],
        all: &[Process],
    ) {
        let applications: Vec<&Process> = all.iter().filter(|one| !one.is_proxy(users)).collect();
        let mut add = |way, is_open: &dyn Fn(&Process) -> bool| {
            let open = applications.iter().filter(|one| is_open(one));
            self.add(way, open.map(|one| one.named()).collect());
        };
        add(Way::RawSockets, &|one| one.has(Capability::NetRaw));
        add(Way::NetworkSettings, &|one| one.has(Capability::NetAdmin));
        if backend == Backend::Ebpf {
            let writes = |one: &Process| one.writes_cgroups && one.has(Capability::DacOverride);
            add(Way::ControlGroups, &|one| one.has(Capability::SysAdmin) || writes(one));
        }
        if is_by_user {
            let is_user = |one: &Process| users.contains(&one.user);
            add(Way::ProxyUser, &|one| one.has(Capability::SetUid) || is_user(one));
        }
    }
}

/// The user ids of the proxy, as this process sees them: `own`, and the ids to which `own` is mapped in the user
/// namespaces of the workload's processes.
fn proxy_users(own: u32, processes: &[u32]) -> Vec<u32> {
    let mut users = vec![own];
    for pid in processes {
        // The process has ended or may not be read. `processes::read` reports the latter.
        let Ok(map) = fs::read_to_string(format!("/proc/{pid}/uid_map")) else { continue };
        users.extend(mapped(&map, own).filter(|user| !users.contains(user)));
    }
    users
}

/// The id outside of a user namespace that a user inside it has. `map` is the content of a file `uid_map`
/// (user_namespaces(7)).
fn mapped(map: &str, user: u32) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (inside, outside, length) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        let beyond = user.checked_sub(inside).filter(|beyond| *beyond < length)?;
        outside.checked_add(beyond)
    })
}

/// The protocols in `/proc/net/protocols` other than TCP and UDP through which an application could reach another
/// machine or the host.
fn other_protocols(table: &str) -> Vec<String> {
    const OTHERS: [&str; 9] =
        ["SCTP", "SCTPv6", "DCCP", "DCCPv6", "AF_VSOCK", "TIPC", "L2CAP", "RFCOMM", "SCO"];
    let names = table.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| OTHERS.contains(name)).map(ToOwned::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_beside_tcp_and_udp_are_named() {
        let table = "protocol  size sockets\nSCTPv6 1 1\nSCTP  1 1\nAF_VSOCK 1240 0\nTCP 2304 1\nUDP 1 1\nRAW 1 0\n";
        assert_eq!(other_protocols(table), ["SCTPv6", "SCTP", "AF_VSOCK"]);
    }

    #[test]
    fn a_user_of_a_user_namespace_is_another_one_outside() {
        assert_eq!(mapped("         0          0 4294967295\n", 2102), Some(2102));
        assert_eq!(mapped("0 100000 65536\n", 2102), Some(102_102));
        assert_eq!(mapped("0 1000 1\n2000 5000 200\n", 2102), Some(5102));
        assert_eq!(mapped("0 1000 1\n", 2102), None);
    }

    #[test]
    fn a_way_names_the_first_and_counts_all() {
        let way = Way::RawSockets.open_by((0..20).map(|pid| format!("{pid} sh")).collect());
        assert_eq!((way.by.len(), way.count), (MAX_NAMED, 20));
        let json = serde_json::to_value(&way).unwrap();
        assert_eq!(json["way"], "raw_sockets");
        assert_eq!(json["remedy"], "drop the capability NET_RAW");
    }
}
