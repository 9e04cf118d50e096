//! A captured workload, from capture to release.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use leno_bpf::{Instance, PinRoot};
use leno_types::Datagrams;

use crate::backend::Backend;
use crate::error::Error;
use crate::{command, ebpf, iptables, nftables, stand_in};

/// The number of connections by how they were treated. The keys are names of `leno_bpf::abi::Counter`. Netfilter
/// has fewer of these than eBPF, and two of its own; its counters restart at zero each time its rules are
/// installed.
pub type CaptureCounters = BTreeMap<&'static str, u64>;

/// SYNs from outside that bypassed netfilter's redirection, for example after a forged ACK with the same
/// addresses and ports. eBPF has no such counter: its decision does not depend on earlier packets.
pub(crate) const INBOUND_DROPPED_UNCAPTURED: &str = "inbound_dropped_uncaptured";

/// SYNs that the workload has sent and that bypassed netfilter's redirection.
pub(crate) const OUTBOUND_DROPPED_UNCAPTURED: &str = "outbound_dropped_uncaptured";

/// The counters that only netfilter has.
pub(crate) const UNCAPTURED: [&str; 2] = [INBOUND_DROPPED_UNCAPTURED, OUTBOUND_DROPPED_UNCAPTURED];

/// The workload to capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureTarget {
    /// Its name, unique among the captured workloads of the machine: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its network namespace, as a file in `/run/netns` or `/proc/<pid>/ns/net`.
    pub netns: PathBuf,
    /// Its cgroup (version 2), for eBPF: all processes in it and below it are captured.
    pub cgroup: PathBuf,
    /// The cgroup below `cgroup` in which only the proxy runs. Equal to `cgroup` if the proxy's cgroup does not
    /// exist yet, as for a pod that is captured before its containers start. The proxy is then recognised by its
    /// user.
    pub proxy_cgroup: PathBuf,
    /// The cgroup in which the process of a node proxy runs. Its sockets are created in `proxy_cgroup`. `None` if
    /// the proxy runs in `proxy_cgroup` itself. Only eBPF distinguishes the two.
    pub proxy_process: Option<PathBuf>,
    /// Whether connections are refused while the proxy does not listen. Otherwise they pass unchanged.
    pub fail_closed: bool,
    /// Destinations that are never captured: an address and a prefix length.
    pub excluded: Vec<(IpAddr, u8)>,
    /// The user that the proxy runs as. Netfilter recognises the proxy's connections by this user. So does eBPF if
    /// the proxy has no cgroup of its own.
    pub proxy_uid: u32,
    /// Which of the workload's datagrams the proxy carries. Only eBPF can capture datagrams.
    pub datagrams: Datagrams,
}

/// A captured workload. Dropping it leaves the capture in place, and so does the end of this process: only
/// [`Captured::release`], [`prune`] or the end of the namespace undoes it.
#[derive(Debug)]
#[must_use = "a captured workload stays captured until it is released"]
pub struct Captured {
    workload: CaptureTarget,
    state: State,
}

/// The state that a backend keeps.
#[derive(Debug)]
enum State {
    Ebpf(Instance),
    Netfilter { rules: Rules, installed: bool },
    Released(Backend),
}

/// The two kinds of netfilter rules, which differ only in how they are written.
#[derive(Clone, Copy, Debug)]
enum Rules {
    Nftables,
    Iptables,
}

/// Captures a workload. The caller must do so before the proxy listens, because eBPF only notices sockets that
/// begin to listen later. A capture that an earlier process left under the same name is replaced.
///
/// # Errors
/// If the backend does not work here, or a path of the workload is invalid. Nothing is captured then.
pub fn capture(backend: Backend, workload: &CaptureTarget) -> Result<Captured, Error> {
    if workload.datagrams.is_on() && backend != Backend::Ebpf {
        return Err(Error::Datagrams(backend));
    }
    stand_in::route(&workload.netns, workload.datagrams)?;
    let rules = match backend {
        Backend::Ebpf => {
            let state = State::Ebpf(ebpf::capture(workload)?);
            return Ok(Captured { workload: workload.clone(), state });
        }
        Backend::Nftables => Rules::Nftables,
        Backend::Iptables => Rules::Iptables,
    };
    let mut captured = Captured {
        workload: workload.clone(),
        // The opposite of the wanted state, so that `install` below does its work.
        state: State::Netfilter { rules, installed: !workload.fail_closed },
    };
    captured.install(workload.fail_closed)?;
    Ok(captured)
}

/// Releases the workloads that eBPF captures and for whose names `keep` returns false. Returns their names.
/// Netfilter rules need no pruning, because they end with their namespace.
///
/// # Errors
/// When a pin cannot be removed.
pub fn prune(keep: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let removed = leno_bpf::prune(&PinRoot::find()?, |leftover| keep(&leftover.owner))?;
    Ok(removed.into_iter().map(|leftover| leftover.owner).collect())
}

/// Stops capturing new connections of the workload that an earlier process captured under this name. This is the
/// first half of [`release`]. The proxy can still look up the original destination of connections that it has not
/// accepted yet. With netfilter this does nothing, because each connection keeps its original destination.
///
/// # Errors
/// When something cannot be removed; calling again tries again.
pub fn let_pass(backend: Backend, workload: &CaptureTarget) -> Result<(), Error> {
    if backend != Backend::Ebpf {
        return Ok(());
    }
    let found = Instance::open(&PinRoot::find()?, &workload.name)?;
    Ok(found.map_or(Ok(()), |instance| instance.let_pass())?)
}

/// Releases what an earlier process of any version captured under this name with this backend; succeeds if
/// there is nothing, or if the namespace is gone.
///
/// # Errors
/// When something cannot be removed; calling again tries again.
pub fn release(backend: Backend, workload: &CaptureTarget) -> Result<(), Error> {
    let rules = match backend {
        Backend::Ebpf => {
            let found = Instance::open(&PinRoot::find()?, &workload.name)?;
            return Ok(found.map_or(Ok(()), |instance| instance.detach())?);
        }
        Backend::Nftables => Rules::Nftables,
        Backend::Iptables => Rules::Iptables,
    };
    let state = State::Netfilter { rules, installed: true };
    Captured { workload: workload.clone(), state }.release()
}

impl Captured {
    /// Takes over what an earlier process captured with eBPF under the same name, without changing it; `None` if
    /// there is nothing. The kernel keeps its list of the proxy's listeners, and [`Captured::upgrade`] replaces
    /// the programs. Netfilter rules need not be taken over, because [`capture`] replaces them.
    ///
    /// # Errors
    /// When bpffs cannot be read.
    pub fn adopt(workload: &CaptureTarget) -> Result<Option<Self>, Error> {
        let found = Instance::open(&PinRoot::find()?, &workload.name)?;
        let captured = |instance| Self { workload: workload.clone(), state: State::Ebpf(instance) };
        Ok(found.map(captured))
    }

    /// The backend that captures the workload.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match &self.state {
            State::Ebpf(_) => Backend::Ebpf,
            State::Netfilter { rules: Rules::Nftables, .. } => Backend::Nftables,
            State::Netfilter { rules: Rules::Iptables, .. } => Backend::Iptables,
            State::Released(backend) => *backend,
        }
    }

    /// The workload that is captured.
    #[must_use]
    pub fn workload(&self) -> &CaptureTarget {
        &self.workload
    }

    /// Sets another file of the same namespace, for example because the process to which the old file belongs has
    /// ended.
    pub fn moved(&mut self, netns: PathBuf) {
        self.workload.netns = netns;
    }

    /// Sets whether the proxy listens, which the proxy's supervisor reports. With eBPF this does nothing, because
    /// the kernel programs notice listeners themselves. With netfilter, a workload that fails open is only
    /// captured while this is true; if the proxy dies, connections are refused until this is set to false. A
    /// workload that fails closed is always captured, and its connections are refused while no proxy listens.
    ///
    /// # Errors
    /// When the rules cannot be changed.
    pub fn set_listening(&mut self, listening: bool) -> Result<(), Error> {
        self.install(listening || self.workload.fail_closed)
    }

    /// How connections were treated so far; empty if nothing is installed.
    ///
    /// # Errors
    /// If the counters cannot be read.
    pub fn counters(&self) -> Result<CaptureCounters, Error> {
        match &self.state {
            State::Ebpf(instance) => ebpf::counters(instance),
            State::Netfilter { installed: false, .. } | State::Released(_) => {
                Ok(CaptureCounters::new())
            }
            State::Netfilter { rules, .. } => {
                command::inside(&self.workload.netns, || match rules {
                    Rules::Nftables => nftables::counters(),
                    Rules::Iptables => iptables::counters(),
                })
            }
        }
    }

    /// Replaces the programs or rules by those of this build, with new settings. With eBPF no connection is
    /// interrupted. The name, namespace and cgroups must be the same as before.
    ///
    /// # Errors
    /// If the backend refuses; either the old or the new programs or rules are in place then.
    pub fn upgrade(&mut self, workload: &CaptureTarget) -> Result<(), Error> {
        let backend = self.backend();
        if workload.datagrams.is_on() && backend != Backend::Ebpf {
            return Err(Error::Datagrams(backend));
        }
        self.workload = workload.clone();
        stand_in::route(&workload.netns, workload.datagrams)?;
        match &mut self.state {
            State::Ebpf(instance) => ebpf::upgrade(instance, workload),
            State::Netfilter { installed, .. } => {
                let wanted = std::mem::take(installed) || workload.fail_closed;
                self.install(wanted)
            }
            State::Released(_) => Ok(()),
        }
    }

    /// Stops capturing new connections, as [`let_pass`] does; with netfilter, removes the rules, because each connection keeps
    /// its original destination.
    ///
    /// # Errors
    /// When something cannot be removed; calling again tries again.
    pub fn let_pass(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ebpf(instance) => Ok(instance.let_pass()?),
            State::Netfilter { .. } => self.install(false),
            State::Released(_) => Ok(()),
        }
    }

    /// Undoes the capture; succeeds if that is done already or the namespace is gone. Connections that were
    /// captured before stay with the proxy.
    ///
    /// # Errors
    /// When something cannot be removed; calling again tries again.
    pub fn release(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ebpf(instance) => instance.detach()?,
            State::Netfilter { .. } if self.workload.netns.exists() => self.install(false)?,
            State::Netfilter { .. } | State::Released(_) => {}
        }
        self.state = State::Released(self.backend());
        Ok(())
    }

    /// Installs or removes netfilter's rules, unless they are in the wanted state.
    fn install(&mut self, wanted: bool) -> Result<(), Error> {
        let State::Netfilter { rules, installed } = &mut self.state else { return Ok(()) };
        if *installed == wanted {
            return Ok(());
        }
        command::inside(&self.workload.netns, || match (*rules, wanted) {
            (Rules::Nftables, true) => nftables::install(&self.workload),
            (Rules::Nftables, false) => nftables::remove(),
            (Rules::Iptables, true) => iptables::install(&self.workload),
            (Rules::Iptables, false) => iptables::remove(),
        })?;
        *installed = wanted;
        Ok(())
    }
}
