//! Determines by trying which backends this machine can use.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use leno_bpf::mounts;
use serde::Serialize;

use crate::backend::{Backend, CaptureChoice};
use crate::captured::CaptureTarget;
use crate::error::Error;
use crate::{cgroup, command, iptables, nftables};

/// The capabilities that capture needs, with their numbers (capability.h).
const CAPABILITIES: &[(&str, u32)] =
    &[("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];

/// The result of a probe; `leno check` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeReport {
    /// The kernel's release.
    pub kernel: String,
    /// Whether the kernel describes its types (BTF). The kernel programs need that when they are loaded.
    pub btf: bool,
    /// Where cgroup2 is mounted, or else where it would be mounted.
    pub cgroup2: String,
    /// Where bpffs is mounted, or else where it would be mounted.
    pub bpffs: String,
    /// The capabilities of this process.
    pub capabilities: Vec<Capability>,
    /// The result for every backend, the best first.
    pub backends: Vec<BackendReport>,
    /// The backend that `auto` chooses here.
    pub chosen: Option<Backend>,
    /// Why that backend is chosen, or why none is.
    pub why: String,
}

/// Whether this process has a capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Capability {
    /// Its name in capabilities(7).
    pub name: &'static str,
    /// Whether it is in the effective set.
    pub held: bool,
}

/// Whether a backend works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackendReport {
    /// The backend.
    pub backend: Backend,
    /// Whether it works here, for this process.
    pub usable: bool,
    /// What was tried successfully, or why it does not work.
    pub reason: String,
}

impl ProbeReport {
    /// Tries every backend: loads the kernel programs without attaching them, and installs the rules in new
    /// network namespaces. No changes remain.
    #[must_use]
    pub fn probe() -> Self {
        let backends: Vec<BackendReport> = Backend::ALL.into_iter().map(try_backend).collect();
        let chosen = backends.iter().find(|report| report.usable);
        let why = match chosen {
            Some(report) if report.backend == Backend::Ebpf => {
                "the kernel accepts the programs; it costs nothing per packet".to_owned()
            }
            Some(_) => format!("the first that works: {}", refusals(&backends)),
            None => format!("no backend works; {}", refusals(&backends)),
        };
        Self {
            kernel: read("/proc/sys/kernel/osrelease"),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            cgroup2: place("cgroup2", cgroup::mounted()),
            bpffs: place("bpf", bpffs()),
            capabilities: capabilities(&read("/proc/self/status")),
            chosen: chosen.map(|report| report.backend),
            backends,
            why,
        }
    }

    /// The backend for a workload with this choice.
    ///
    /// # Errors
    /// [`Error::Unusable`], with the reason, if the chosen backend does not work here.
    pub fn choose(&self, choice: CaptureChoice) -> Result<Backend, Error> {
        match choice {
            CaptureChoice::Auto => self.chosen.ok_or_else(|| Error::Unusable(self.why.clone())),
            CaptureChoice::Only(wanted) => {
                let report = self.backends.iter().find(|report| report.backend == wanted);
                match report {
                    Some(report) if report.usable => Ok(wanted),
                    Some(report) => {
                        Err(Error::Unusable(format!("{wanted} does not work: {}", report.reason)))
                    }
                    None => Err(Error::Unusable(format!("{wanted} was not tried"))),
                }
            }
        }
    }
}

/// The reasons why backends do not work, on one line.
fn refusals(backends: &[BackendReport]) -> String {
    let lines: Vec<String> = backends
        .iter()
        .filter(|report| !report.usable)
        .map(|report| format!("{}: {}", report.backend, report.reason))
        .collect();
    lines.join("; ")
}

fn try_backend(backend: Backend) -> BackendReport {
    let tried = match backend {
        Backend::Ebpf => try_ebpf().map(|()| "the kernel verified every program"),
        Backend::Nftables => command::inside_new(|| nftables::install(&made_up()))
            .map(|()| "the kernel accepted the rules in a temporary namespace"),
        Backend::Iptables => command::inside_new(|| iptables::install(&made_up()))
            .map(|()| "the kernel accepted the rules in a temporary namespace"),
    };
    match tried {
        Ok(reason) => BackendReport { backend, usable: true, reason: reason.to_owned() },
        Err(error) => BackendReport { backend, usable: false, reason: error.chain() },
    }
}

/// Checks that the programs load, and that cgroup2 and bpffs are mounted or can be.
fn try_ebpf() -> Result<(), Error> {
    leno_bpf::probe()?;
    for (kind, mounted) in [("cgroup2", cgroup::mounted()?), ("bpf", bpffs()?)] {
        if mounted.is_none() && !is_known(kind) {
            return Err(Error::Unusable(format!("the kernel has no file system {kind}")));
        }
    }
    Ok(())
}

/// An artificial workload, whose values make every rule appear.
fn made_up() -> CaptureTarget {
    CaptureTarget {
        name: "probe".to_owned(),
        netns: PathBuf::new(),
        cgroup: PathBuf::new(),
        proxy_cgroup: PathBuf::new(),
        proxy_process: None,
        fail_closed: true,
        excluded: vec![(Ipv4Addr::new(192, 0, 2, 0).into(), 24)],
        proxy_uid: leno_types::ports::PROXY_UID,
        datagrams: Default::default(),
    }
}

/// Where bpffs is mounted, among the paths that captures use.
fn bpffs() -> Result<Option<PathBuf>, Error> {
    let found = mounts::mounts().map_err(Error::io("read /proc/self/mountinfo"))?;
    let usual = ["/sys/fs/bpf", "/run/leno/bpf"].map(Path::new);
    let used = |m: &mounts::MountEntry| {
        m.kind == "bpf" && m.writable && usual.contains(&m.at.as_path()) && m.is_visible()
    };
    Ok(found.into_iter().find(used).map(|m| m.at))
}

/// Describes where a file system is mounted or will be.
fn place(kind: &str, mounted: Result<Option<PathBuf>, Error>) -> String {
    match mounted {
        Ok(Some(at)) => format!("mounted at {}", at.display()),
        Ok(None) if is_known(kind) => {
            format!("not mounted, but will be below {}", mounts::PRIVATE)
        }
        Ok(None) => "the kernel has none".to_owned(),
        Err(error) => error.chain(),
    }
}

/// Whether the kernel supports this file system.
fn is_known(kind: &str) -> bool {
    read("/proc/filesystems").lines().any(|line| line.split_whitespace().last() == Some(kind))
}

/// Whether each of [`CAPABILITIES`] is in the effective set, from the text of `/proc/self/status`.
fn capabilities(status: &str) -> Vec<Capability> {
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or_default();
    CAPABILITIES
        .iter()
        .map(|(name, bit)| Capability { name, held: set & (1 << bit) != 0 })
        .collect()
}

/// The content of a file of the kernel, or an empty string if it cannot be read.
pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(path).map(|text| text.trim_end().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read() {
        let held = |status: &str| -> Vec<&str> {
            capabilities(status).iter().filter(|c| c.held).map(|c| c.name).collect()
        };
        assert_eq!(
            held("CapPrm:\tffff\nCapEff:\t0000008000001000\n"),
            ["CAP_NET_ADMIN", "CAP_BPF"]
        );
        assert_eq!(held(""), [""; 0]);
    }

    #[test]
    fn a_choice_that_does_not_work_says_why() {
        let report = ProbeReport {
            kernel: String::new(),
            btf: false,
            cgroup2: String::new(),
            bpffs: String::new(),
            capabilities: Vec::new(),
            backends: vec![
                BackendReport { backend: Backend::Ebpf, usable: false, reason: "no".into() },
                BackendReport { backend: Backend::Nftables, usable: true, reason: "yes".into() },
            ],
            chosen: Some(Backend::Nftables),
            why: String::new(),
        };
        assert_eq!(report.choose(CaptureChoice::Auto).unwrap(), Backend::Nftables);
        let error = report.choose(CaptureChoice::Only(Backend::Ebpf)).unwrap_err().to_string();
        assert!(error.ends_with("ebpf does not work: no"), "{error}");
    }
}
