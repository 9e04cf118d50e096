//! The command-line options and environment variables of the proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use leno_crypto::TlsProfile;
use leno_telemetry::MetricsCompat;
use leno_telemetry::access::AccessSettings;
use leno_telemetry::trace::TraceSettings;
use leno_types::authorization::{Cidr, CidrError};
use leno_types::{WorkloadApiAddress, ports};

use crate::admin::probe::Probes;
use crate::hook::Hook;

/// The version, and whether it was built with the FIPS module.
const VERSION: &str = match cfg!(feature = "fips") {
    true => concat!(env!("CARGO_PKG_VERSION"), "+fips"),
    false => env!("CARGO_PKG_VERSION"),
};

/// The data-plane proxy of the Leno service mesh.
///
/// It needs no Linux capability. It gets its identity, services and policy from the control plane of --control, or
/// with --static from YAML documents.
#[derive(Clone, Debug, Parser)]
#[command(name = "leno-proxy", version = VERSION, max_term_width = 100)]
pub(crate) struct Flags {
    /// YAML file to run from, without a control plane: one Proxy document with its Services, EndpointSlices and other
    /// objects; "-" reads standard input
    #[arg(long = "static", value_name = "FILE", env = "LENO_STATIC")]
    pub(crate) static_file: Option<PathBuf>,

    /// Name of the workload instance, for example web-0
    #[arg(long, env = "LENO_NAME", required_unless_present_any = ["static_file", "hook", "node"])]
    pub(crate) name: Option<String>,

    /// Namespace of the instance
    #[arg(long, env = "LENO_NAMESPACE", default_value = "default")]
    pub(crate) namespace: String,

    /// Name of the workload to which the instance belongs, which its spans in traces contain [default: the instance's
    /// name]
    #[arg(long, env = "LENO_WORKLOAD", value_name = "NAME", value_parser = workload_name)]
    pub(crate) workload: Option<String>,

    /// Service account of the instance
    #[arg(long, env = "LENO_SERVICE_ACCOUNT", default_value = "default")]
    pub(crate) service_account: String,

    /// Trust domain of the mesh
    #[arg(long, env = "LENO_TRUST_DOMAIN", default_value = "cluster.local")]
    pub(crate) trust_domain: String,

    /// Address of the control plane, for example https://10.89.0.1:15010
    #[arg(long, env = "LENO_CONTROL", value_name = "URL", required_unless_present_any = ["static_file", "hook"])]
    pub(crate) control: Option<String>,

    /// PEM file with the roots that verify the control plane's certificate
    #[arg(long, env = "LENO_ROOTS", value_name = "FILE", required_unless_present_any = ["static_file", "hook"])]
    pub(crate) roots: Option<PathBuf>,

    /// File with the token that authenticates the first certificate request; with --node, the directory into which
    /// the tokens of its workloads are written
    #[arg(long, env = "LENO_TOKEN", value_name = "FILE",
          required_unless_present_any = ["static_file", "hook", "spiffe_endpoint_socket"])]
    pub(crate) token: Option<PathBuf>,

    /// Address of a SPIFFE Workload API, such as that of SPIRE's agent, as unix:///PATH. It issues this workload's
    /// certificates instead of the control plane, for the identity of the workload's service account. Not with
    /// --static or --node
    #[arg(long, env = "SPIFFE_ENDPOINT_SOCKET", value_name = "ADDRESS")]
    pub(crate) spiffe_endpoint_socket: Option<WorkloadApiAddress>,

    /// Unix socket to serve the SPIFFE Workload API on, from which the application gets its own certificates for the
    /// same identity, with another key than the proxy's. The socket must be in a volume that only containers of the
    /// pod mount, because every caller is served. Not with --static, --node or --spiffe-endpoint-socket
    #[arg(
        long,
        env = "LENO_WORKLOAD_API",
        value_name = "PATH",
        conflicts_with_all = ["static_file", "node", "spiffe_endpoint_socket"]
    )]
    pub(crate) workload_api: Option<PathBuf>,

    /// Cryptography of TLS: default, or fips for only what FIPS 140-3 approves, with aws-lc's FIPS module. fips needs
    /// a program that was built with `make release FIPS=1`
    #[arg(long, env = "LENO_TLS_PROFILE", value_name = "PROFILE", default_value_t)]
    pub(crate) tls_profile: TlsProfile,

    /// PEM file with the private key and the certificate of this workload, which a kubelet renews (podCertificate of
    /// a projected volume). If it contains no usable certificate, the control plane issues one for the token. Not
    /// with --static or --node
    #[arg(
        long,
        env = "LENO_CERTIFICATE",
        value_name = "FILE",
        requires = "certificate_roots",
        conflicts_with = "spiffe_endpoint_socket"
    )]
    pub(crate) certificate: Option<PathBuf>,

    /// PEM file with the roots of the mesh beside that certificate (clusterTrustBundle of the volume). They are used
    /// until the control plane sends its own
    #[arg(long, env = "LENO_CERTIFICATE_ROOTS", value_name = "FILE", requires = "certificate")]
    pub(crate) certificate_roots: Option<PathBuf>,

    /// Number of worker threads, from 1 to 64. Each has its own listeners, pools and counters
    #[arg(long, env = "LENO_WORKERS", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) workers: u16,

    /// Memory that buffers and connections may use, such as 64Mi. Above it, new requests are answered with 503 and
    /// new connections are refused [default: half of the memory limit of the proxy's cgroup, or an eighth of the
    /// machine's memory, at most 1Gi]
    #[arg(long, env = "LENO_MEMORY_BUDGET", value_name = "SIZE",
          value_parser = crate::setup::memory::parse_size)]
    pub(crate) memory_budget: Option<usize>,

    /// With --node, largest number of new connections per second, for each workload and for each client address of a
    /// workload. A burst of one second's worth is accepted at once, as many again wait for up to one second, and
    /// further connections are reset. 0: no limit
    #[arg(long, env = "LENO_CONNECTION_RATE", value_name = "COUNT", default_value_t = 0)]
    pub(crate) connection_rate: u32,

    /// With --node, whether workloads that share a process exchange data in the memory of that process. They do so
    /// once an mTLS connection over the network has authenticated both
    #[arg(long, env = "LENO_ONE_PASS", value_name = "BOOLEAN", default_value_t = true,
          action = clap::ArgAction::Set)]
    pub(crate) one_pass: bool,

    /// Address to accept connections of applications on. Can be repeated
    #[arg(long, env = "LENO_OUTBOUND", value_name = "ADDRESS", value_delimiter = ',',
          default_values_t = default_outbound())]
    pub(crate) outbound: Vec<SocketAddr>,

    /// Address to accept connections to the workload on. Can be repeated
    #[arg(long, env = "LENO_INBOUND", value_name = "ADDRESS", value_delimiter = ',',
          default_values_t = default_inbound())]
    pub(crate) inbound: Vec<SocketAddr>,

    /// Address to serve /metrics, /ready, /live and /config on; /config only to loopback
    #[arg(long, env = "LENO_ADMIN", value_name = "ADDRESS", default_value_t = default_admin())]
    pub(crate) admin: SocketAddr,

    /// Network addresses that may read /metrics, such as 10.0.0.0/8, separated by commas. Loopback always may
    /// [default: all]
    #[arg(long, env = "LENO_SCRAPE_FROM", value_name = "CIDR", value_parser = scrapers)]
    pub(crate) scrape_from: Vec<Scrapers>,

    /// Serves, over HBONE, the clients of the services whose waypoint this proxy is according to the control plane. A
    /// waypoint that is not captured listens on port 15008 itself (--inbound). Not with --static or --node
    #[arg(long, env = "LENO_WAYPOINT", conflicts_with_all = ["static_file", "node"])]
    pub(crate) waypoint: bool,

    /// Carries UDP datagrams that the kernel programs of the capture send to port 15001, to and from other proxies
    /// over QUIC on port 15008. Not with --node, whose supervisor sets it for each workload
    #[arg(long, env = "LENO_DATAGRAMS", conflicts_with = "node")]
    pub(crate) datagrams: bool,

    /// Unix socket to serve POST /drain on, for processes of this user and of root. SIGTERM drains the proxy as well
    #[arg(long, env = "LENO_ADMIN_SOCKET", value_name = "PATH")]
    pub(crate) admin_socket: Option<PathBuf>,

    /// Waits until the node's agent has captured the connections of its network namespace before it listens and
    /// becomes ready, so that an application that waits for the proxy never bypasses it
    #[arg(long, env = "LENO_AWAIT_CAPTURE")]
    pub(crate) await_capture: bool,

    /// Probes that /probe/CONTAINER/KIND sends to the application for the kubelet, as JSON; `leno inject` writes this
    #[arg(
        long,
        env = "LENO_PROBES",
        value_name = "JSON",
        default_value = "{}",
        hide_default_value = true
    )]
    pub(crate) probes: Probes,

    /// Runs as a lifecycle hook of the proxy's container, beside the proxy, until Kubernetes may continue
    #[arg(long, value_enum)]
    pub(crate) hook: Option<Hook>,

    /// Serves several workloads in one process, on the orders of a supervisor at the other end of standard input, a
    /// Unix socket; `leno up` and `leno-agent supervise` start it in this way
    #[arg(long, conflicts_with_all = ["static_file", "hook"])]
    pub(crate) node: bool,

    /// Runs under a supervisor at the other end of standard input, a Unix socket. The proxy reports to it when it
    /// serves, and the supervisor can order it to hand its workload over to another process that listens on the same
    /// ports; `leno up` starts it in this way
    #[arg(long, conflicts_with_all = ["static_file", "hook", "node"])]
    pub(crate) supervised: bool,

    /// Takes the workload over from another process, which serves it until this one does
    #[arg(long, requires = "supervised")]
    pub(crate) succeeds: bool,

    /// Longest time, in seconds, that connections may continue once the proxy drains
    #[arg(long, env = "LENO_DRAIN_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    pub(crate) drain_timeout_s: u64,

    /// Longest time, in seconds, that streams may continue once another process serves their workload
    #[arg(long, env = "LENO_HANDOVER_TIMEOUT", value_name = "SECONDS", default_value_t = 86_400)]
    pub(crate) handover_timeout_s: u64,

    /// How long, in seconds, the proxy waits for an HTTP response to begin while no byte is transferred. 0: no limit.
    /// A TrafficPolicy takes precedence
    #[arg(long, env = "LENO_RESPONSE_WAIT", value_name = "SECONDS", default_value_t = 300)]
    pub(crate) response_wait_s: u64,

    /// Filter of the log on standard error, such as info or warn,leno_outbound=debug
    #[arg(long, env = "LENO_LOG", default_value = "warn")]
    pub(crate) log: String,

    /// What is logged for each request and connection: text or json prints a line to standard output, otlp exports a
    /// record to the collector of --traces, off does neither. Fields can follow a colon, such as
    /// json:time,client,agent=header(user-agent); for text a template, such as text:%time% %client% %status%
    #[arg(long, env = "LENO_ACCESS_LOG", value_name = "SETTINGS", default_value = "off")]
    pub(crate) access_log: AccessSettings,

    /// Exports spans of requests with OTLP to this service, in or outside of the mesh, and takes part in traces (W3C
    /// Trace Context and B3): NAMESPACE/SERVICE:PORT[,protocol=grpc|http][,sampling=PERCENT%]
    /// [,route=NAMESPACE/NAME:PERCENT%][,errors][,slower=DURATION]. A request with a parent span is sampled as the
    /// parent was, others with the probability of sampling (1% by default). With errors and slower, failed and slow
    /// requests have spans even if their trace is not sampled
    #[arg(long, env = "LENO_TRACES", value_name = "SETTINGS")]
    pub(crate) traces: Option<TraceSettings>,

    /// Also serves the metrics under the names and labels of other meshes: linkerd, istio, both separated by a comma,
    /// or off
    #[arg(long, env = "LENO_METRICS_COMPAT", value_name = "MESHES", default_value = "off")]
    pub(crate) metrics_compat: MetricsCompat,

    /// Permits `leno trace-request --bodies` to show the first 4 KiB of request and response bodies, including any
    /// secrets in them
    #[arg(long, env = "LENO_TAP_BODIES")]
    pub(crate) tap_bodies: bool,
}

fn default_outbound() -> Vec<SocketAddr> {
    vec![
        SocketAddr::from(([127, 0, 0, 1], ports::OUTBOUND)),
        SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], ports::OUTBOUND)),
    ]
}

fn default_inbound() -> Vec<SocketAddr> {
    vec![
        SocketAddr::from(([0, 0, 0, 0], ports::INBOUND)),
        SocketAddr::from(([0u16; 8], ports::INBOUND)),
    ]
}

fn default_admin() -> SocketAddr {
    SocketAddr::from(([0u16; 8], ports::ADMIN))
}

/// The addresses that one `--scrape-from` lists.
pub(crate) type Scrapers = Arc<[Cidr]>;

fn scrapers(text: &str) -> Result<Scrapers, CidrError> {
    Cidr::list(text).map(Into::into)
}

impl Flags {
    /// The network addresses that may request metrics; without any, all may.
    pub(crate) fn scrapers(&self) -> Vec<Cidr> {
        self.scrape_from.iter().flat_map(|some| some.iter().copied()).collect()
    }
}

/// Parses a workload name, which must not need escaping as a label value in metrics.
fn workload_name(text: &str) -> Result<String, String> {
    let is_refused = |c: char| c.is_control() || matches!(c, '"' | '\\');
    match text.chars().find(|c| is_refused(*c)) {
        None => Ok(text.to_owned()),
        Some(c) => Err(format!("it contains {c:?}: use the name of a workload, such as web")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_reference_has_every_option() {
        let page = leno_testkit::reference::page(Flags::command(), "leno-proxy");
        leno_testkit::reference::check("leno-proxy.md", &page);
    }

    #[test]
    fn scrapers_are_taken_as_a_chart_may_have_them() {
        let of = |text: &str| {
            let args = ["leno-proxy", "--static", "-", "--scrape-from", text];
            Flags::try_parse_from(args).map(|flags| {
                flags.scrapers().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            })
        };
        for (text, taken) in [
            ("10.0.0.0/8, fd00::/8", "10.0.0.0/8,fd00::/8"),
            (" 10.0.0.0/8,,192.0.2.7,", "10.0.0.0/8,192.0.2.7/32"),
            ("", ""),
        ] {
            assert_eq!(of(text).unwrap(), taken, "{text:?}");
        }
        let error = of("10.0.0.0/8 fd00::/8").unwrap_err().to_string();
        assert!(error.contains("10.0.0.0/8 fd00::/8"), "{error}");
    }

    #[test]
    fn a_workload_that_would_break_a_page_of_metrics_is_refused() {
        let of = |text: &str| {
            let args = ["leno-proxy", "--static", "-", "--workload", text];
            Flags::try_parse_from(args).map(|flags| flags.workload)
        };
        for fine in ["web", "deploy/web", "wéb 1"] {
            assert_eq!(of(fine).unwrap().as_deref(), Some(fine));
        }
        for broken in ["we\"b", "web\nleno_up 1", "web\\"] {
            let error = of(broken).unwrap_err().to_string();
            assert!(error.contains("the name of a workload"), "{error}");
        }
    }
}
