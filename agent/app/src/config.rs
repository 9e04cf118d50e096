//! The agent's flags and environment variables.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use leno_flows::{FlowMetricsSource, FlowSizes, LedgerSettings, OptionalBudget};
use leno_supervise::PromotionRules;
use leno_types::ports;

/// The default address of the admin server; the listener falls back to IPv4 on a node without IPv6.
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), ports::AGENT_ADMIN);

/// The agent of a node in the Leno service mesh: captures the pods that have a proxy.
///
/// It runs once on each node, as root. No request passes through it. When it ends, everything that it has set up in the
/// kernel continues to work, and the next agent takes it over.
#[derive(Clone, Debug, Parser)]
#[command(name = "leno-agent", version, max_term_width = 100)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,

    #[command(flatten)]
    pub(crate) node: NodeFlags,

    /// The name of the node whose pods are followed
    #[arg(long = "node", env = "LENO_NODE", value_name = "NAME", default_value = "")]
    pub(crate) name: String,

    /// Kubeconfig with the cluster's address and credentials; by default the pod's own
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Address that serves /metrics, /ready and /live
    #[arg(long, env = "LENO_ADMIN", value_name = "ADDRESS", default_value_t = ADMIN)]
    pub(crate) admin: SocketAddr,

    /// CNI plugin's binary to install; by default leno-cni beside this program
    #[arg(long, env = "LENO_CNI_BINARY", value_name = "FILE")]
    pub(crate) cni_binary: Option<PathBuf>,

    /// Broker's binary, which creates sockets in pods of node mode; by default leno-broker beside this program
    #[arg(long, env = "LENO_BROKER_BINARY", value_name = "FILE")]
    pub(crate) broker_binary: Option<PathBuf>,

    /// Where the kubelet keeps its pods, as the node names it
    #[arg(long, env = "LENO_KUBELET", value_name = "FOLDER", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet: PathBuf,

    /// Namespaces whose pods start without the agent even if the plugin cannot read their volumes
    #[arg(
        long,
        env = "LENO_EXEMPT",
        value_name = "NAME",
        value_delimiter = ',',
        default_value = "kube-system,leno-system"
    )]
    pub(crate) exempt: Vec<String>,

    /// Reports in the status of pods in node mode that node proxies serve them (the condition leno.dev/Served), for which it
    /// may write the status of pods
    #[arg(long, env = "LENO_REPORT_SERVED", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) report_served: bool,

    #[command(flatten)]
    pub(crate) flows: FlowsFlags,

    /// Filter of the log on standard error, for example info or leno_agent=debug
    #[arg(long, env = "LENO_LOG", default_value = "info")]
    pub(crate) log: String,
}

/// How the connections of pods are accounted for in the kernel.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FlowsFlags {
    /// Where the metrics of connections come from, if a pod's annotation leno.dev/flow-metrics does not set it:
    /// sockets, packets, requests or off. With off, no pod has such metrics
    #[arg(
        long = "flow-metrics",
        env = "LENO_FLOW_METRICS",
        default_value = "sockets",
        value_name = "SOURCE"
    )]
    pub(crate) source: FlowMetricsSource,

    /// How many connections the table of flows holds, up to 1048576
    #[arg(long, env = "LENO_FLOW_MAP_SIZE", default_value_t = 16_384, value_name = "COUNT")]
    pub(crate) flow_map_size: u32,

    /// How many changes of connections may wait for a reader, up to 1048576
    #[arg(long, env = "LENO_FLOW_RING_SIZE", default_value_t = 4_096, value_name = "COUNT")]
    pub(crate) flow_ring_size: u32,

    /// The largest share of the node's CPU time that accounting for connections may take in the kernel; above it less
    /// is accounted for. none: no limit
    #[arg(long, env = "LENO_FLOW_CPU_BUDGET", default_value = "1%", value_name = "SHARE", value_parser = OptionalBudget::of)]
    pub(crate) flow_cpu_budget: OptionalBudget,
}

impl FlowsFlags {
    /// # Errors
    /// If a size is beyond its bounds.
    pub(crate) fn settings(self) -> Result<LedgerSettings, leno_flows::Error> {
        let sizes = FlowSizes::new(self.flow_map_size, self.flow_ring_size)?;
        Ok(LedgerSettings { source: self.source, sizes, budget: self.flow_cpu_budget.0 })
    }
}

/// Where the agent finds the parts of the node.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeFlags {
    /// Where the socket and the records of captured pods are; on the node, in a folder that a
    /// reboot empties
    #[arg(
        long,
        global = true,
        env = "LENO_STATE",
        value_name = "FOLDER",
        default_value = "/run/leno"
    )]
    pub(crate) state: PathBuf,

    /// Where the node's /sys/fs/cgroup is mounted
    #[arg(
        long,
        global = true,
        env = "LENO_CGROUPS",
        value_name = "FOLDER",
        default_value = "/sys/fs/cgroup"
    )]
    pub(crate) cgroups: PathBuf,

    /// Where the node's CNI configuration is mounted; without it the plugin is not installed
    #[arg(long, global = true, env = "LENO_CNI_CONFIGURATION", value_name = "FOLDER")]
    pub(crate) cni_configuration: Option<PathBuf>,

    /// Where the node's CNI plugins are mounted
    #[arg(
        long,
        global = true,
        env = "LENO_CNI_PLUGINS",
        value_name = "FOLDER",
        default_value = "/opt/cni/bin"
    )]
    pub(crate) cni_plugins: PathBuf,
}

/// A task that the agent does instead of running.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Removes everything of the mesh from the node: captures, plugin, configuration. End the agent first, because it
    /// would restore them
    Cleanup,
    /// Runs the node proxies of the pods that the agent of this node hands over; the DaemonSet leno-node does. Variables
    /// that begin with LENO_ are the settings of the proxies
    Supervise(SuperviseFlags),
}

/// The supervisor's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct SuperviseFlags {
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = "/run/leno/node/supervisor.sock")]
    pub(crate) socket: PathBuf,

    /// The folder with the file `token`, with which the proxies request certificates for the pods of this node
    #[arg(long, env = "LENO_TOKEN", value_name = "FOLDER")]
    pub(crate) token: PathBuf,

    /// The proxy's binary; by default leno-proxy beside this program
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_binary: Option<PathBuf>,

    /// The address on which /metrics, /ready and /live are served
    #[arg(long, value_name = "ADDRESS", default_value_t = ADMIN)]
    pub(crate) admin: SocketAddr,

    /// The longest wait, in seconds, for streams to end once another supervisor serves their pods. It also applies to
    /// the proxies, and is the same as this pod's grace period
    #[arg(long, env = "LENO_HANDOVER_TIMEOUT", value_name = "SECONDS", default_value_t = 86_400)]
    pub(crate) handover_timeout_s: u64,

    /// How long, in seconds, a pod may use more than --promote-above-percent of a CPU before it gets a process of its
    /// own. It returns to the shared process after five times as long with less than half of that. 0: it never gets one
    #[arg(long, env = "LENO_PROMOTE_AFTER", value_name = "SECONDS", default_value_t = 0)]
    pub(crate) promote_after_s: u64,

    /// How much of a CPU, in percent, a shared process may use for one pod before the pod gets a process of its own
    #[arg(long, env = "LENO_PROMOTE_ABOVE", value_name = "PERCENT", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) promote_above_percent: u32,
}

impl SuperviseFlags {
    /// When a busy pod gets a process of its own.
    pub(crate) fn promotion(&self) -> PromotionRules {
        let after = (self.promote_after_s > 0).then(|| Duration::from_secs(self.promote_after_s));
        PromotionRules { after, above_percent: self.promote_above_percent }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_reference_has_every_option() {
        let page = leno_testkit::reference::page(Flags::command(), "leno-agent");
        leno_testkit::reference::check("leno-agent.md", &page);
    }
}
