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

/// The node agent of the Leno service mesh: captures the traffic of the pods that have a proxy.
///
/// One agent runs on each node, as root. No request passes through it. When it ends, everything that it has set up in
/// the kernel continues to work, and the next agent takes it over.
#[derive(Clone, Debug, Parser)]
#[command(name = "leno-agent", version, max_term_width = 100)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,

    #[command(flatten)]
    pub(crate) node: NodeFlags,

    /// Name of the node whose pods the agent watches
    #[arg(long = "node", env = "LENO_NODE", value_name = "NAME", default_value = "")]
    pub(crate) name: String,

    /// Kubeconfig file with the cluster's address and credentials [default: those of the pod that this runs in]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Address to serve /metrics, /ready and /live on
    #[arg(long, env = "LENO_ADMIN", value_name = "ADDRESS", default_value_t = ADMIN)]
    pub(crate) admin: SocketAddr,

    /// Binary of the CNI plugin to install [default: leno-cni beside this program]
    #[arg(long, env = "LENO_CNI_BINARY", value_name = "FILE")]
    pub(crate) cni_binary: Option<PathBuf>,

    /// Binary of the broker, which creates sockets in pods of node mode [default: leno-broker beside this program]
    #[arg(long, env = "LENO_BROKER_BINARY", value_name = "FILE")]
    pub(crate) broker_binary: Option<PathBuf>,

    /// Directory in which the kubelet keeps its pods, as a path on the node
    #[arg(long, env = "LENO_KUBELET", value_name = "FOLDER", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet: PathBuf,

    /// Namespaces whose pods start without the agent even if the plugin cannot read their volumes, separated by
    /// commas
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

    /// Filter of the log on standard error, such as info or warn,leno_agent=debug
    #[arg(long, env = "LENO_LOG", default_value = "info")]
    pub(crate) log: String,
}

/// How the connections of pods are accounted for in the kernel.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct FlowsFlags {
    /// What flow metrics are counted from: sockets, packets (frames, which include UDP and ICMP), requests (frames
    /// and the requests in them, for pods without a proxy) or off. The annotation leno.dev/flow-metrics of a pod
    /// takes precedence, but with off no pod has flow metrics
    #[arg(
        long = "flow-metrics",
        env = "LENO_FLOW_METRICS",
        default_value = "sockets",
        value_name = "SOURCE"
    )]
    pub(crate) source: FlowMetricsSource,

    /// Number of connections that the flow table can hold, from 1 to 1048576. Further connections are not counted
    #[arg(long, env = "LENO_FLOW_MAP_SIZE", default_value_t = 16_384, value_name = "COUNT")]
    pub(crate) flow_map_size: u32,

    /// Number of connection changes that are buffered for a reader, from 1 to 1048576
    #[arg(long, env = "LENO_FLOW_RING_SIZE", default_value_t = 4_096, value_name = "COUNT")]
    pub(crate) flow_ring_size: u32,

    /// Largest share of the node's CPU time that the kernel may spend on flow metrics. Above it, less detail is
    /// counted. none: no limit
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
    /// Directory for the agent's socket and the records of captured pods. A reboot of the node must empty it
    #[arg(
        long,
        global = true,
        env = "LENO_STATE",
        value_name = "FOLDER",
        default_value = "/run/leno"
    )]
    pub(crate) state: PathBuf,

    /// Directory at which the node's /sys/fs/cgroup is mounted
    #[arg(
        long,
        global = true,
        env = "LENO_CGROUPS",
        value_name = "FOLDER",
        default_value = "/sys/fs/cgroup"
    )]
    pub(crate) cgroups: PathBuf,

    /// Directory at which the node's CNI configuration is mounted [default: none, and the plugin is not installed]
    #[arg(long, global = true, env = "LENO_CNI_CONFIGURATION", value_name = "FOLDER")]
    pub(crate) cni_configuration: Option<PathBuf>,

    /// Directory at which the node's CNI plugins are mounted
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
    /// Removes everything of the mesh from the node: captures, CNI plugin and its configuration. End the agent first,
    /// because it would restore them
    Cleanup,
    /// Runs the node proxies for the pods that the agent of this node hands over; the DaemonSet leno-node runs this.
    /// Variables that begin with LENO_ are passed to the proxies
    Supervise(SuperviseFlags),
}

/// The supervisor's flags.
#[derive(Clone, Debug, Args)]
pub(crate) struct SuperviseFlags {
    /// Unix socket of the agent
    #[arg(long, value_name = "PATH", default_value = "/run/leno/node/supervisor.sock")]
    pub(crate) socket: PathBuf,

    /// Directory with the file `token`, with which the proxies request certificates for the pods of this node
    #[arg(long, env = "LENO_TOKEN", value_name = "FOLDER")]
    pub(crate) token: PathBuf,

    /// Binary of the proxy [default: leno-proxy beside this program]
    #[arg(long, value_name = "FILE")]
    pub(crate) proxy_binary: Option<PathBuf>,

    /// Address to serve /metrics, /ready and /live on
    #[arg(long, value_name = "ADDRESS", default_value_t = ADMIN)]
    pub(crate) admin: SocketAddr,

    /// Longest time, in seconds, that streams may continue once another supervisor serves their pods. The proxies use
    /// it too, and it must equal this pod's grace period
    #[arg(long, env = "LENO_HANDOVER_TIMEOUT", value_name = "SECONDS", default_value_t = 86_400)]
    pub(crate) handover_timeout_s: u64,

    /// How long, in seconds, a pod may use more than --promote-above-percent of a CPU before it gets a proxy process
    /// of its own. It returns to the shared process after five times as long below half of that. 0: it always stays
    /// in the shared process
    #[arg(long, env = "LENO_PROMOTE_AFTER", value_name = "SECONDS", default_value_t = 0)]
    pub(crate) promote_after_s: u64,

    /// CPU use of one pod in a shared process, in percent of one CPU from 1 to 100, above which it gets a process of
    /// its own
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
