//! Reads the status file of `leno up`. This code is independent of the code that writes the file.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// The part of `/run/leno/MESH/mesh.json` that tests need.
#[derive(Clone, Debug, Deserialize)]
pub struct Status {
    /// The control plane's process.
    pub controller: Option<u32>,
    /// The network namespace of the bridge.
    pub switch_netns: String,
    /// Why the last edit was rejected; `None` if it was accepted.
    pub refused_edit: Option<String>,
    /// All instances.
    pub instances: Vec<Instance>,
}

/// One instance.
#[derive(Clone, Debug, Deserialize)]
pub struct Instance {
    /// Its workload.
    pub workload: String,
    /// Its name.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Whether it has a proxy.
    pub meshed: bool,
    /// The backend that captures its traffic.
    pub capture: Option<String>,
    /// Its phase, which is `running` while its application runs.
    pub phase: String,
    /// Whether it receives traffic.
    pub ready: bool,
    /// How many times its application was restarted.
    pub restarts: u32,
    /// How many times its proxy was restarted.
    pub proxy_restarts: u32,
    /// How its proxy last ended.
    pub proxy_ended: Option<String>,
    /// Where its proxy runs.
    pub proxy: Option<ProxyProcess>,
    /// The namespace and control group of its processes.
    pub surroundings: InstanceSurroundings,
}

/// Where the proxy of an instance runs.
#[derive(Clone, Debug, Deserialize)]
pub struct ProxyProcess {
    /// The group whose node proxy serves the instance; `None` if the instance has a sidecar.
    pub group: Option<String>,
    /// The control group of the proxy's process.
    pub cgroup: PathBuf,
}

/// The namespace and control group in which an instance runs.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceSurroundings {
    /// The name of its network namespace.
    pub netns: String,
    /// The control group of its application.
    pub cgroup: PathBuf,
}

impl Status {
    /// Reads the status of mesh `name`.
    pub fn read(name: &str) -> Result<Self> {
        let path = Path::new("/run/leno").join(name).join("mesh.json");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("no mesh {name}: {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("unexpected {}", path.display()))
    }

    /// Whether every instance receives traffic.
    #[must_use]
    pub fn ready(&self) -> bool {
        self.instances.iter().all(|i| i.ready && i.phase == "running")
    }

    /// The instance `name`, or the first instance of workload `name`.
    pub fn instance(&self, name: &str) -> Result<&Instance> {
        self.instances
            .iter()
            .find(|i| i.name == name)
            .or_else(|| self.instances.iter().find(|i| i.workload == name))
            .with_context(|| format!("no instance {name}"))
    }

    /// The address of an instance in one family.
    pub fn address(&self, name: &str, ipv6: bool) -> Result<IpAddr> {
        let instance = self.instance(name)?;
        let family = if ipv6 { "IPv6" } else { "IPv4" };
        let mut addresses = instance.addresses.iter().filter(|a| a.is_ipv6() == ipv6);
        addresses.next().copied().with_context(|| format!("{name} has no {family} address"))
    }
}

impl Instance {
    /// The group whose node proxy serves the instance; `None` if the instance has a sidecar.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        self.proxy.as_ref()?.group.as_deref()
    }

    /// The control group of its sidecar or, in node mode, of its group's node proxy.
    pub fn proxy_cgroup(&self) -> Result<&Path> {
        let proxy = self.proxy.as_ref().with_context(|| format!("{} has no proxy", self.name))?;
        Ok(&proxy.cgroup)
    }

    /// The control group of its broker, which exists in node mode.
    pub fn broker_cgroup(&self) -> Result<PathBuf> {
        ensure!(self.group().is_some(), "{} has a sidecar", self.name);
        let group = self.surroundings.cgroup.parent().context("a control group has a parent")?;
        Ok(group.join("proxy"))
    }
}

/// The control groups of the mesh `name` in every mounted cgroup2 hierarchy.
pub(super) fn cgroups(name: &str) -> Result<Vec<PathBuf>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let cgroup2 = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (_, directory, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| Path::new(directory).join("leno").join(name))
    });
    Ok(cgroup2.filter(|group| group.exists()).collect())
}
