//! A captured workload, from capture to release.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use leno_bpf::{Instance, PinRoot};

use crate::backend::Backend;
use crate::error::Error;
use crate::{command, ebpf, iptables, nftables, stand_in};

/// Connections by what became of them, named as `leno_bpf::abi::Counter` names them. Netfilter
/// counts fewer kinds than eBPF, two of its own, and from zero each time its rules are installed.
pub type Counters = BTreeMap<&'static str, u64>;

/// SYNs from outside that came past netfilter's redirection, as after a forged ACK of the same addresses and
/// ports. eBPF has none: it does not depend on what came before.
pub(crate) const INBOUND_DROPPED_UNCAPTURED: &str = "inbound_dropped_uncaptured";

/// The same of SYNs that the workload sent.
pub(crate) const OUTBOUND_DROPPED_UNCAPTURED: &str = "outbound_dropped_uncaptured";

/// What netfilter alone counts.
pub(crate) const UNCAPTURED: [&str; 2] = [INBOUND_DROPPED_UNCAPTURED, OUTBOUND_DROPPED_UNCAPTURED];

/// What is to be captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name among all captured workloads of the machine: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Its network namespace, as a file of `/run/netns` or `/proc/<pid>/ns/net`.
    pub netns: PathBuf,
    /// Its cgroup (version 2), for eBPF: what runs in it and below is captured.
    pub cgroup: PathBuf,
    /// The cgroup, below the other, in which the proxy alone runs; the other itself where there is
    /// none when the workload is captured, as of a pod, whose containers come later. The proxy is
    /// told by its user then.
    pub proxy_cgroup: PathBuf,
    /// While the proxy is not listening: refuse connections instead of passing them.
    pub fail_closed: bool,
    /// Destinations that are never captured: an address and a prefix length.
    pub excluded: Vec<(IpAddr, u8)>,
    /// The user the proxy runs as, by which netfilter tells its connections from the workload's, and
    /// eBPF where the proxy has no cgroup of its own.
    pub proxy_uid: u32,
}

/// A captured workload. Dropping it leaves the capture in place, as the end of the process does:
/// only [`Captured::release`] (or [`prune`], or the end of the namespace) undoes it.
#[derive(Debug)]
#[must_use = "a captured workload stays captured until it is released"]
pub struct Captured {
    workload: Workload,
    state: State,
}

/// What a backend has to remember.
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

/// Captures a workload. Do this before its proxy listens: eBPF notices a listener when it begins
/// to. What an earlier process left under the same name is replaced.
///
/// # Errors
/// When the backend does not work here, or a path of the workload is not what it should be;
/// nothing is captured then.
pub fn capture(backend: Backend, workload: &Workload) -> Result<Captured, Error> {
    stand_in::route(&workload.netns)?;
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
        // Not known yet, so that installing or removing what is wanted is not skipped.
        state: State::Netfilter { rules, installed: !workload.fail_closed },
    };
    captured.install(workload.fail_closed)?;
    Ok(captured)
}

/// Releases the workloads that eBPF captures and `keep` does not want, by name; those released.
/// Netfilter rules need none of this: they end with the namespace they are in.
///
/// # Errors
/// When a pin cannot be removed.
pub fn prune(keep: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let removed = leno_bpf::prune(&PinRoot::find()?, |leftover| keep(&leftover.owner))?;
    Ok(removed.into_iter().map(|leftover| leftover.owner).collect())
}

/// Captures no new connection of what an earlier process captured under this name, as the first half of
/// [`release`]: connections that the proxy has not yet accepted still tell it where they were meant to go.
/// Of netfilter they do so while they last, which needs none of this.
///
/// # Errors
/// When something cannot be removed; calling again tries again.
pub fn let_pass(backend: Backend, workload: &Workload) -> Result<(), Error> {
    if backend != Backend::Ebpf {
        return Ok(());
    }
    let found = Instance::open(&PinRoot::find()?, &workload.name)?;
    Ok(found.map_or(Ok(()), |instance| instance.let_pass())?)
}

/// Releases what an earlier process captured under this name by this backend, whatever its version;
/// fine if there is nothing, or if the namespace is gone.
///
/// # Errors
/// When something cannot be removed; calling again tries again.
pub fn release(backend: Backend, workload: &Workload) -> Result<(), Error> {
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
    /// Takes over what an earlier process captured by eBPF under the same name, as it is; `None`
    /// if there is nothing. The proxy's listeners stay known, and [`Captured::upgrade`] brings the
    /// programs up to date. Netfilter rules need no taking over: [`capture`] replaces them.
    ///
    /// # Errors
    /// When bpffs cannot be read.
    pub fn adopt(workload: &Workload) -> Result<Option<Self>, Error> {
        let found = Instance::open(&PinRoot::find()?, &workload.name)?;
        let captured = |instance| Self { workload: workload.clone(), state: State::Ebpf(instance) };
        Ok(found.map(captured))
    }

    /// By what it is captured.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match &self.state {
            State::Ebpf(_) => Backend::Ebpf,
            State::Netfilter { rules: Rules::Nftables, .. } => Backend::Nftables,
            State::Netfilter { rules: Rules::Iptables, .. } => Backend::Iptables,
            State::Released(backend) => *backend,
        }
    }

    /// What is captured.
    #[must_use]
    pub fn workload(&self) -> &Workload {
        &self.workload
    }

    /// The same namespace has another file, as when the process is gone whose it was.
    pub fn moved(&mut self, netns: PathBuf) {
        self.workload.netns = netns;
    }

    /// Says whether the proxy listens. Under netfilter a workload that fails open is steered only
    /// after `set_listening(true)`, which is for whoever supervises the proxy to call; between the
    /// death of a proxy and `set_listening(false)` connections are refused. A workload that fails
    /// closed is always steered, to a port that refuses while nobody listens. Under eBPF the
    /// kernel knows by itself and this does nothing.
    ///
    /// # Errors
    /// When the rules cannot be changed.
    pub fn set_listening(&mut self, listening: bool) -> Result<(), Error> {
        self.install(listening || self.workload.fail_closed)
    }

    /// What became of connections so far; empty where nothing is installed.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn counters(&self) -> Result<Counters, Error> {
        match &self.state {
            State::Ebpf(instance) => ebpf::counters(instance),
            State::Netfilter { installed: false, .. } | State::Released(_) => Ok(Counters::new()),
            State::Netfilter { rules, .. } => {
                command::inside(&self.workload.netns, || match rules {
                    Rules::Nftables => nftables::counters(),
                    Rules::Iptables => iptables::counters(),
                })
            }
        }
    }

    /// Puts this build's programs or rules, with new settings, in place of the old ones. Under
    /// eBPF no connection notices; name, namespace and cgroups must be the same.
    ///
    /// # Errors
    /// When the backend refuses; the old or the new ones are in place then.
    pub fn upgrade(&mut self, workload: &Workload) -> Result<(), Error> {
        self.workload = workload.clone();
        stand_in::route(&workload.netns)?;
        match &mut self.state {
            State::Ebpf(instance) => ebpf::upgrade(instance, workload),
            State::Netfilter { installed, .. } => {
                let wanted = std::mem::take(installed) || workload.fail_closed;
                self.install(wanted)
            }
            State::Released(_) => Ok(()),
        }
    }

    /// Undoes the capture; fine if it is undone or the namespace is gone. Connections that were
    /// steered before stay with the proxy.
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

    /// Makes netfilter's rules be there or not.
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
