//! Implements the command `leno up`.

mod detach;

use std::io::{self, IsTerminal as _};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use leno_capture::CaptureChoice;
use leno_console::{duration, within};
use leno_crypto::TlsProfile;
use leno_flows::{FlowMetricsSource, FlowSizes, OptionalBudget};
use leno_local::layout::DEFAULT_MESH;
use leno_local::output::LineStyle;
use leno_local::plan::{ProcessSharing, ProxyMode};
use leno_local::ranges::MeshRange;
use leno_local::up::{MAX_LIFETIME, MIN_LIFETIME, PromotionRules, UpOptions};
use leno_telemetry::MetricsCompat;
use leno_telemetry::access::{AccessSettings, AccessSettingsError};
use leno_telemetry::trace::{TraceSettings, TraceSettingsError};
use leno_types::authorization::Cidr;
use leno_types::{Egress, MtlsMode, WorkloadApiAddress};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

/// Runs the workloads of YAML documents as processes in a mesh on this machine, until Ctrl-C or `leno down`
///
/// Each instance gets a network namespace, addresses, DNS names, a proxy and an identity. `leno up` watches the files
/// and applies each edit. An edit with a mistake is rejected with its file and line, and the last valid state stays
/// in effect. Needs root.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  sudo env PATH=$PATH leno up examples/shop/shop.yaml --mtls strict\n  \
                  sudo env PATH=$PATH leno up --wait mesh.yaml"
)]
pub(crate) struct Up {
    /// YAML files, or directories of YAML files; "-" reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Name of the mesh: 1 to 32 of a-z, 0-9 and '-'
    #[arg(long, visible_alias = "mesh", default_value = DEFAULT_MESH, value_name = "NAME")]
    name: String,

    /// How connections of workloads are steered into their proxies: ebpf, nftables, iptables, or auto for the first
    /// of these that works on this machine. The annotation leno.dev/capture of a workload takes precedence
    #[arg(long, default_value = "auto", value_name = "BACKEND")]
    capture: CaptureChoice,

    /// What flow metrics are counted from: sockets, packets (frames, which include UDP and ICMP), requests (frames
    /// and the requests in them, for workloads without a proxy) or off. The annotation leno.dev/flow-metrics of a
    /// workload takes precedence
    #[arg(long, default_value = "sockets", value_name = "SOURCE")]
    flow_metrics: FlowMetricsSource,

    /// Number of connections that the flow table can hold, from 1 to 1048576. Further connections are not counted
    #[arg(long, default_value_t = 16_384, value_name = "COUNT")]
    flow_map_size: u32,

    /// Number of connection changes that are buffered for `leno flows --follow`, from 1 to 1048576
    #[arg(long, default_value_t = 4_096, value_name = "COUNT")]
    flow_ring_size: u32,

    /// Largest share of the machine's CPU time that the kernel may spend on flow metrics. Above it, less detail is
    /// counted. none: no limit
    #[arg(long, default_value = "1%", value_name = "SHARE", value_parser = OptionalBudget::of)]
    flow_cpu_budget: OptionalBudget,

    /// Where proxies run: sidecar, one process for each instance; node, processes that several instances share. The
    /// annotation leno.dev/mode of a workload takes precedence
    #[arg(long, default_value = "sidecar", value_name = "MODE")]
    mode: ProxyMode,

    /// In node mode, which instances share one proxy process: those of the same workload, service-account or
    /// namespace, or all of the node
    #[arg(long, default_value = "service-account", value_name = "SHARE")]
    share: ProcessSharing,

    /// In node mode, how long an instance may use more than --promote-above of a CPU before it gets a proxy process
    /// of its own, from 1s to 1d. It returns to the shared process after five times as long below half of that.
    /// never: it always stays in the shared process
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = PromoteAfter::of)]
    promote_after: PromoteAfter,

    /// In node mode, CPU use of one instance in a shared process, in percent of one CPU from 1 to 100, above which it
    /// gets a process of its own
    #[arg(long, default_value_t = 50, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    promote_above: u32,

    /// In node mode, largest number of new connections per second, for each instance and for each client address of
    /// an instance. A burst of one second's worth is accepted at once, as many again wait for up to one second, and
    /// further connections are reset. 0: no limit
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    connection_rate: u32,

    /// In node mode, whether instances that share a process exchange data in the memory of that process. They do so
    /// once an mTLS connection over the network has authenticated both
    #[arg(long, value_name = "BOOLEAN", default_value_t = true, action = clap::ArgAction::Set)]
    one_pass: bool,

    /// Which connections workloads accept: strict, only mTLS; permissive, mTLS and plaintext; disabled, only
    /// plaintext. The annotation leno.dev/mtls of a workload takes precedence
    #[arg(long, default_value = "permissive", value_name = "MODE")]
    mtls: MtlsMode,

    /// Whether workloads may connect to addresses outside of the mesh: allow or deny. The annotation leno.dev/egress
    /// of a workload takes precedence
    #[arg(long, default_value = "allow", value_name = "EGRESS")]
    egress: Egress,

    /// Lets workloads connect to addresses outside of this machine, with the machine's routes and source addresses.
    /// Turns on IPv4 forwarding while the mesh runs. Needs nft
    #[arg(long)]
    uplink: bool,

    /// Address range of workloads, a private /16 [default: 10.89.0.0/16; with --uplink, another one if a route of the
    /// machine overlaps it]
    #[arg(long, value_name = "RANGE")]
    workload_range: Option<MeshRange>,

    /// Address range of services, a private /16 [default: 10.96.0.0/16; with --uplink, another one if a route of the
    /// machine overlaps it]
    #[arg(long, value_name = "RANGE")]
    service_range: Option<MeshRange>,

    /// DNS resolver for names outside of the mesh, such as 192.0.2.53 or 127.0.0.1:5353. Can be repeated, up to three
    /// times [default: the resolvers of /etc/resolv.conf]
    #[arg(long = "resolver", value_name = "ADDRESS", value_parser = resolver)]
    resolvers: Vec<SocketAddr>,

    /// How long certificates are valid, from 10s to 90d. Proxies renew them after 70 % of this time
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = lifetime)]
    cert_lifetime: Duration,

    /// Directory with the issuer that signs certificates: tls.crt (its certificate, followed by intermediate
    /// certificates), tls.key (its key) and ca.crt (the roots). Replaced files are used without a restart [default: a
    /// root that the mesh creates]
    #[arg(long, value_name = "DIR", value_parser = directory)]
    issuer: Option<PathBuf>,

    /// Address of a SPIFFE Workload API, such as that of SPIRE's agent, as unix:///PATH. It issues the certificates
    /// of proxies instead of the control plane. The annotation leno.dev/spiffe-endpoint-socket of a workload takes
    /// precedence. The mesh trusts both its own roots and those of this Workload API
    #[arg(long, value_name = "ADDRESS")]
    spiffe_endpoint_socket: Option<WorkloadApiAddress>,

    /// Another trust domain whose workloads are accepted as clients, and the source of its trust bundle. DOMAIN=FILE:
    /// a SPIFFE bundle or PEM file, which is read again when it changes. DOMAIN=https://URL: a bundle endpoint, whose
    /// server is authenticated by its DNS name (https_web); append ;spiffe-id=ID;bundle=FILE to authenticate it by
    /// its SPIFFE ID (https_spiffe), with FILE for the first connection. DOMAIN=workload-api: the Workload API of
    /// --spiffe-endpoint-socket. Can be repeated
    #[arg(long, value_name = "DOMAIN=SOURCE", value_parser = federation)]
    federate: Vec<String>,

    /// How long applications may take to end after SIGTERM before they are killed, up to 1d. stopGracePeriod of a
    /// Workload takes precedence
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = grace)]
    grace: Duration,

    /// How long a proxy waits for an HTTP response to begin while no byte is transferred, up to 1d. 0: no limit. A
    /// TrafficPolicy takes precedence
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = grace)]
    response_wait: Duration,

    /// How long opaque streams and WebSockets may continue in a replaced proxy process after its successor serves the
    /// instance, from 1s to 90d. After that they are closed
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = handover)]
    handover_timeout: Duration,

    /// File of lines NAME=VALUE that are added to the environment of every workload. Can be repeated
    #[arg(long = "env-file", value_name = "FILE")]
    env_files: Vec<PathBuf>,

    /// Rejects files in which `leno analyze` finds errors, at the start and after edits [default: prints the errors,
    /// and runs the rest]
    #[arg(long)]
    refuse_errors: bool,

    /// Prints without colours, as the variable NO_COLOR also does
    #[arg(long)]
    no_color: bool,

    /// Filter of the logs of leno, the proxies and the control plane, such as info or warn,leno_outbound=debug
    #[arg(long, default_value = "warn", env = "LENO_LOG", value_name = "FILTER",
          value_parser = filter)]
    log: String,

    /// What proxies log for each request and connection: text or json prints a line, otlp exports a record to the
    /// collector of --traces, off does neither. Fields can follow a colon, such as
    /// json:time,client,agent=header(user-agent); for text a template, such as text:%time% %client% %status%
    #[arg(long, value_name = "SETTINGS", default_value = "off", value_parser = access_log)]
    access_log: String,

    /// Appends the access log to this file, without labels, instead of printing it; in JSON unless --access-log
    /// selects text
    #[arg(long, value_name = "FILE")]
    access_log_file: Option<PathBuf>,

    /// Exports spans of requests with OTLP to this service: NAMESPACE/SERVICE:PORT[,protocol=grpc|http]
    /// [,sampling=PERCENT%][,route=NAMESPACE/NAME:PERCENT%][,errors][,slower=DURATION]. Example:
    /// observability/collector:4317,sampling=10%,errors
    #[arg(long, value_name = "SETTINGS", value_parser = traces)]
    traces: Option<String>,

    /// Also serves the metrics of proxies under the names and labels of other meshes: linkerd, istio, both separated
    /// by a comma, or off
    #[arg(long, value_name = "MESHES", default_value = "off", value_parser = metrics_compat)]
    metrics_compat: String,

    /// Cryptography of TLS: default, or fips for only what FIPS 140-3 approves, with aws-lc's FIPS module. fips needs
    /// programs that were built with `make release FIPS=1`
    #[arg(long, value_name = "PROFILE", default_value_t)]
    tls_profile: TlsProfile,

    /// Network addresses that may read the metrics of proxies, such as 10.0.0.0/8; separate several by commas. This
    /// machine always may [default: all]
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    scrape_from: Vec<Cidr>,

    /// Permits `leno trace-request --bodies` to show the first 4 KiB of request and response bodies, including any
    /// secrets in them
    #[arg(long)]
    tap_bodies: bool,

    /// Begins each line with its time in UTC
    #[arg(short, long)]
    timestamps: bool,

    /// Runs in the background. `leno logs` prints its output, and `leno down` ends it
    #[arg(short, long)]
    detach: bool,

    /// Runs in the background, and returns when every instance is ready for traffic
    #[arg(long)]
    wait: bool,

    /// How long --wait waits until every instance is ready
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = duration)]
    wait_timeout: Duration,

    /// Ends when the process that started it ends, for whatever reason
    #[arg(long, hide = true)]
    with_parent: bool,
}

pub(crate) fn run(up: &Up) -> Result<bool> {
    // This process creates the keys of the authority, so it needs the profile as well.
    leno_crypto::select(up.tls_profile).context("--tls-profile")?;
    if (up.detach || up.wait) && !detach::is_background()? {
        let reads_stdin = up.files.iter().any(|file| file.as_os_str() == "-");
        return detach::start(&up.name, reads_stdin, up.wait.then_some(up.wait_timeout));
    }
    if up.with_parent {
        set_pdeathsig(Signal::SIGTERM)
            .context("cannot bind the life of leno up to that of its parent")?;
    }
    // Cannot fail, because the filter was already parsed once when the options were read.
    let filter: Targets = up.log.parse().context("--log")?;
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let no_colour = up.no_color || std::env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let exports = up.access_log.starts_with("otlp");
    if exports && up.traces.is_none() {
        bail!(
            "--access-log otlp exports to the collector of --traces: add --traces \
             NAMESPACE/SERVICE:PORT"
        );
    }
    let access_log = match &*up.access_log {
        "off" if up.access_log_file.is_some() => "json",
        access_log => access_log,
    };
    let options = UpOptions {
        files: up.files.clone(),
        mesh: up.name.clone(),
        capture: up.capture,
        flows: leno_flows::LedgerSettings {
            source: up.flow_metrics,
            sizes: FlowSizes::new(up.flow_map_size, up.flow_ring_size)?,
            budget: up.flow_cpu_budget.0,
        },
        mode: up.mode,
        share: up.share,
        connection_rate: up.connection_rate,
        one_pass: up.one_pass,
        promotion: PromotionRules { after: up.promote_after.0, above_percent: up.promote_above },
        mtls: up.mtls,
        egress: up.egress,
        uplink: up.uplink,
        ranges: (up.workload_range, up.service_range),
        resolvers: up.resolvers.clone(),
        cert_lifetime: up.cert_lifetime,
        issuer: up.issuer.clone(),
        spiffe_endpoint_socket: up.spiffe_endpoint_socket.clone(),
        federate: up.federate.clone(),
        grace: up.grace,
        env_files: up.env_files.clone(),
        // 0 would mean no limit.
        response_wait: whole_seconds(up.response_wait),
        handover_timeout: up.handover_timeout,
        refuse_errors: up.refuse_errors,
        style: LineStyle {
            colour: !no_colour && std::io::stdout().is_terminal(),
            times: up.timestamps,
            plain: false,
            escaped: std::io::stdout().is_terminal(),
        },
        log: up.log.clone(),
        access_log: access_log.to_owned(),
        access_log_file: up.access_log_file.clone(),
        traces: up.traces.clone(),
        metrics_compat: up.metrics_compat.clone(),
        tap_bodies: up.tap_bodies,
        tls_profile: up.tls_profile.to_string(),
        scrape_from: up.scrape_from.clone(),
    };
    leno_local::up::up(&options)?;
    Ok(true)
}

/// Checks settings of the access log by parsing them as proxies do, so that mistakes are found before a proxy
/// starts.
fn access_log(text: &str) -> Result<String, AccessSettingsError> {
    text.parse::<AccessSettings>().map(|_| text.to_owned())
}

/// Checks the option in advance, like [`access_log`].
fn metrics_compat(text: &str) -> Result<String, String> {
    text.parse::<MetricsCompat>().map(|_| text.to_owned())
}

/// Checks settings of traces in advance, like [`access_log`].
fn traces(text: &str) -> Result<String, TraceSettingsError> {
    text.parse::<TraceSettings>().map(|_| text.to_owned())
}

/// Checks a trust domain and the source of its bundle. The path of a file is made absolute, because the control
/// plane has another working directory.
fn federation(text: &str) -> Result<String, String> {
    let form = || format!("{text:?} is not DOMAIN=FILE, DOMAIN=https://URL or DOMAIN=workload-api");
    let (domain, source) = text.split_once('=').ok_or_else(form)?;
    if source == "workload-api" {
        return Ok(text.to_owned());
    }
    if source.contains(',') {
        return Err(format!(
            "{source:?}: a comma separates trust domains; give the file another name, and write %2C in a URL"
        ));
    }
    if !source.starts_with("https://") {
        return Ok(format!("{domain}={}", bundle_file(source)?));
    }
    let parts = source.split(';').map(|part| match part.strip_prefix("bundle=") {
        Some(file) => Ok(format!("bundle={}", bundle_file(file)?)),
        None => Ok(part.to_owned()),
    });
    let parts: Vec<String> = parts.collect::<Result<_, String>>()?;
    Ok(format!("{domain}={}", parts.join(";")))
}

/// The absolute path of a trust bundle, which must exist. A symbolic link is not resolved, because users may
/// replace the link to switch to another bundle.
fn bundle_file(file: &str) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("{file:?}: {error}");
    std::fs::metadata(file).map_err(unreadable)?;
    Ok(std::path::absolute(file).map_err(unreadable)?.display().to_string())
}

/// Parses an address. The default port is 53.
fn resolver(text: &str) -> Result<SocketAddr, String> {
    let whole = text.parse().or_else(|_| text.parse().map(|ip: IpAddr| SocketAddr::new(ip, 53)));
    whole.map_err(|_| {
        format!(
            "{text:?} is not an IP address: use for example 192.0.2.53 or \
             127.0.0.1:5353"
        )
    })
}

/// Parses the lifetime of certificates: whole seconds within the limits of the certificate authority.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = within(duration(text)?, (MIN_LIFETIME, MAX_LIFETIME))?;
    Ok(Duration::from_secs(lifetime.as_secs()))
}

/// Parses the time for open streams, in whole seconds as proxies take it.
fn handover(text: &str) -> Result<Duration, String> {
    let bounds = (Duration::from_secs(1), Duration::from_hours(90 * 24));
    within(duration(text)?, bounds).map(whole_seconds)
}

/// Rounds up to whole seconds.
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

/// Returns an absolute path, because the control plane has another working directory.
fn directory(text: &str) -> Result<PathBuf, String> {
    let path = std::path::Path::new(text).canonicalize().map_err(|error| error.to_string())?;
    if path.is_dir() { Ok(path) } else { Err("it is not a directory".to_owned()) }
}

/// Parses the grace period, which may be at most one day.
fn grace(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::ZERO, Duration::from_hours(24)))
}

/// A duration, or `None` for `never`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromoteAfter(Option<Duration>);

impl PromoteAfter {
    fn of(text: &str) -> Result<Self, String> {
        if text == "never" {
            return Ok(Self(None));
        }
        let bounds = (Duration::from_secs(1), Duration::from_hours(24));
        within(duration(text)?, bounds).map(|after| Self(Some(after)))
    }
}

/// Checks the log filter here. Otherwise every proxy would refuse it at each start.
fn filter(text: &str) -> Result<String, String> {
    let wrong = |error| format!("{error}: use for example info or warn,leno_outbound=debug");
    text.parse::<Targets>().map(|_| text.to_owned()).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_part_of_the_mesh_would_take_is_refused_at_once() {
        assert_eq!(lifetime("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(lifetime("10500ms"), Ok(Duration::from_secs(10)));
        for wrong in ["500ms", "9s", "91d", "0"] {
            assert!(lifetime(wrong).is_err(), "{wrong}");
        }
        assert!(grace("0").is_ok());
        assert_eq!(PromoteAfter::of("never"), Ok(PromoteAfter(None)));
        assert!(PromoteAfter::of("1m").is_ok() && PromoteAfter::of("2d").is_err());
        assert!(grace("2d").is_err());
        assert_eq!(handover("1500ms"), Ok(Duration::from_secs(2)));
        assert!(handover("90d").is_ok() && handover("0").is_err() && handover("91d").is_err());
        assert!(filter("warn,leno_outbound=debug").is_ok());
        assert!(filter("a=b=c").is_err());
    }
}
