//! The command-line options and environment variables of the control plane.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use leno_admission::{
    ContainerShape, InjectionSettings as Proxies, WorkloadApiVolume, pull_secrets,
};
use leno_crypto::TlsProfile;
use leno_identity::{MAX_LIFETIME, MIN_LIFETIME};
use leno_program::{duration, within};
use leno_types::{Egress, MtlsMode, TrustDomain, WorkloadApiAddress};

use crate::federation::{self, Federation};
use crate::observe::Observe;

/// The bounds of the lifetime of streams. With the shortest one, 2,000 proxies connect 200 times a second.
const STREAM_AGES: (Duration, Duration) = (Duration::from_secs(10), Duration::from_hours(24));

/// The version, and whether it was built with the FIPS module.
const VERSION: &str = match cfg!(feature = "fips") {
    true => concat!(env!("CARGO_PKG_VERSION"), "+fips"),
    false => env!("CARGO_PKG_VERSION"),
};

/// The control plane of the Leno service mesh.
///
/// It reads YAML documents or the objects of a Kubernetes cluster and follows their changes. It issues certificates to
/// proxies that present tokens, and sends each proxy what it subscribes to.
#[derive(Clone, Debug, Parser)]
#[command(name = "leno-controller", version = VERSION, max_term_width = 100, subcommand_negates_reqs = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,

    /// YAML files or directories with the documents of the mesh. Edits are followed. Can be repeated
    #[arg(long, visible_alias = "state", env = "LENO_FILES", value_name = "PATH",
          value_delimiter = ',', num_args = 1.., required_unless_present = "kubernetes",
          conflicts_with = "kubernetes")]
    pub(crate) files: Vec<PathBuf>,

    /// Reads the objects of a Kubernetes cluster instead of files, keeps the certificate authority in it (Secret
    /// leno-ca), and accepts its service accounts' tokens. The cluster is the one that --kubeconfig or the variable
    /// KUBECONFIG names, or else the one in which this process runs
    #[arg(long, env = "LENO_KUBERNETES", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) kubernetes: bool,

    /// Kubeconfig file with the cluster's address and credentials; only with --kubernetes
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Namespace of the control plane in the cluster; only with --kubernetes
    #[arg(long, env = "LENO_NAMESPACE", default_value = "leno-system")]
    pub(crate) namespace: String,

    /// Name of this replica in the cluster; only with --kubernetes [default: the host name]
    #[arg(long, env = "LENO_NAME")]
    pub(crate) name: Option<String>,

    /// Audience that the tokens of proxies must have; only with --kubernetes
    #[arg(long, env = "LENO_TOKEN_AUDIENCE", default_value = leno_cluster::AUDIENCE)]
    pub(crate) token_audience: String,

    /// Address to serve the webhooks on, which inject proxies into pods and validate objects; only with --kubernetes
    #[arg(long, env = "LENO_WEBHOOK", value_name = "ADDRESS", default_value = "[::]:15017")]
    pub(crate) webhook: SocketAddr,

    /// Image of the proxies that are injected into pods; only with --kubernetes
    #[arg(long, env = "LENO_PROXY_IMAGE", value_name = "IMAGE",
          default_value_t = leno_admission::InjectionSettings::default().image)]
    pub(crate) proxy_image: String,

    /// When nodes pull that image; only with --kubernetes [default: that of Kubernetes]
    #[arg(long, env = "LENO_PROXY_PULL_POLICY", value_name = "POLICY",
          value_parser = ["Always", "IfNotPresent", "Never"])]
    pub(crate) proxy_pull_policy: Option<String>,

    /// Secrets in the namespace of each pod with which its node logs in to the registry of that image, in the form of
    /// a pod's imagePullSecrets: [{"name": NAME}]; only with --kubernetes
    #[arg(long, env = "LENO_PROXY_PULL_SECRETS", value_name = "JSON", default_value = "[]")]
    pub(crate) proxy_pull_secrets: String,

    /// Kind of container in which proxies run: sidecar, a native sidecar; container, an ordinary container for
    /// Kubernetes before 1.29; only with --kubernetes
    #[arg(long, env = "LENO_PROXY_SHAPE", value_name = "SHAPE", default_value = "sidecar",
          value_parser = ["sidecar", "container"])]
    pub(crate) proxy_shape: String,

    /// Log filter of proxies in pods, unless a pod sets it; only with --kubernetes [default: warn]
    #[arg(long, env = "LENO_PROXY_LOG", value_name = "FILTER")]
    pub(crate) proxy_log: Option<String>,

    /// Collector of the spans of proxies in pods and the sampling, in the form of --traces of leno-proxy, unless a
    /// pod sets it; only with --kubernetes [default: none]
    #[arg(long, env = "LENO_PROXY_TRACES", value_name = "SETTINGS")]
    pub(crate) proxy_traces: Option<String>,

    /// Access log of proxies in pods, in the form of --access-log of leno-proxy, unless a pod sets it; only with
    /// --kubernetes [default: off]
    #[arg(long, env = "LENO_PROXY_ACCESS_LOG", value_name = "SETTINGS")]
    pub(crate) proxy_access_log: Option<String>,

    /// Other meshes under whose names and labels proxies in pods also serve their metrics, in the form of
    /// --metrics-compat of leno-proxy, unless a pod sets it; only with --kubernetes [default: off]
    #[arg(long, env = "LENO_PROXY_METRICS_COMPAT", value_name = "MESHES")]
    pub(crate) proxy_metrics_compat: Option<String>,

    /// Network addresses that may read the metrics of proxies in pods, CIDRs separated by commas; only with
    /// --kubernetes [default: all]
    #[arg(long, env = "LENO_PROXY_SCRAPE_FROM", value_name = "CIDR")]
    pub(crate) proxy_scrape_from: Option<String>,

    /// Volume through which pods reach the SPIFFE Workload API that issues the certificates of their proxies instead
    /// of the control plane: csi:DRIVER/SOCKET or hostPath:/DIRECTORY/SOCKET. The control plane reaches the same
    /// Workload API through --spiffe-endpoint-socket; only with --kubernetes
    #[arg(
        long,
        env = "LENO_PROXY_WORKLOAD_API",
        value_name = "VOLUME",
        requires = "spiffe_endpoint_socket"
    )]
    pub(crate) proxy_workload_api: Option<WorkloadApiVolume>,

    /// Permits `leno trace-request --bodies` to show the first 4 KiB of request and response bodies of pods,
    /// including any secrets in them; only with --kubernetes
    #[arg(long, env = "LENO_PROXY_TAP_BODIES")]
    pub(crate) proxy_tap_bodies: bool,

    /// How long containers of a deleted pod wait before SIGTERM, in seconds, so that clients can switch to other
    /// pods. Applies to containers without a preStop hook, from Kubernetes 1.30 on. 0: no wait; only with
    /// --kubernetes
    #[arg(long, env = "LENO_PRE_STOP_SLEEP", value_name = "SECONDS",
          default_value_t = leno_admission::DEFAULT_PRE_STOP_SLEEP)]
    pub(crate) pre_stop_sleep: u32,

    /// Publishes the trust bundle as the ClusterTrustBundle leno.dev:identity:mesh, which pods can mount; only with
    /// --kubernetes
    #[arg(long, env = "LENO_CLUSTER_TRUST_BUNDLE", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) cluster_trust_bundle: bool,

    /// Signs the certificates that kubelets request for pods (PodCertificateRequest, Kubernetes 1.37) from the signer
    /// leno.dev/identity, gives proxies in pods such certificates, and publishes the trust bundle as
    /// --cluster-trust-bundle does; only with --kubernetes
    #[arg(long, env = "LENO_POD_CERTIFICATES", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue, conflicts_with = "proxy_workload_api")]
    pub(crate) pod_certificates: bool,

    /// Runs a Deployment of proxies for each Gateway of the class leno-waypoint, with its Service and service
    /// account; only with --kubernetes
    #[arg(long, env = "LENO_WAYPOINTS", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) waypoints: bool,

    /// Proxies connect with mTLS to pods in node mode once the agents of their nodes report that node proxies serve them,
    /// which agents with --report-served do, and not from the label on; only with --kubernetes
    #[arg(long, env = "LENO_AGENTS_REPORT", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    pub(crate) agents_report: bool,

    /// The shortest time of each phase of a rotation of the root, because nodes take that long to update mounted roots
    /// in pods; only with --kubernetes
    #[arg(long, env = "LENO_PHASE_HOLD", value_name = "DURATION", default_value = "3m", value_parser = phase_hold)]
    pub(crate) phase_hold: Duration,

    /// Address to serve discovery and certificates to proxies on
    #[arg(long, env = "LENO_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:15010")]
    pub(crate) listen: SocketAddr,

    /// Directory of the certificate authority, which is created if it does not exist
    #[arg(
        long,
        visible_alias = "data",
        env = "LENO_CA_DIR",
        value_name = "DIR",
        required_unless_present = "kubernetes",
        conflicts_with = "kubernetes"
    )]
    pub(crate) ca_dir: Option<PathBuf>,

    /// Directory with the issuer that signs certificates: tls.crt (its certificate, followed by intermediate
    /// certificates), tls.key (its key) and ca.crt (the roots), as cert-manager names them. Replaced files are used
    /// without a restart [default: a root that the mesh creates]
    #[arg(long, env = "LENO_ISSUER", value_name = "DIR")]
    pub(crate) issuer: Option<PathBuf>,

    /// File to which the roots are written whenever they change. Proxies verify the control plane with them
    #[arg(long, env = "LENO_ROOTS_FILE", value_name = "FILE", conflicts_with = "kubernetes")]
    pub(crate) roots_file: Option<PathBuf>,

    /// Directory of the workloads' tokens [default: "tokens" beside the authority's directory]
    #[arg(long, env = "LENO_TOKENS", value_name = "DIR", conflicts_with = "kubernetes")]
    pub(crate) tokens: Option<PathBuf>,

    /// Unix socket to serve the SPIFFE Workload API on, from which applications get their own certificates. Callers
    /// are identified by their control groups, which `leno up` creates beside that of this process
    #[arg(long, env = "LENO_WORKLOAD_API", value_name = "PATH", conflicts_with = "kubernetes")]
    pub(crate) workload_api: Option<PathBuf>,

    /// Address of a SPIFFE Workload API, such as that of SPIRE's agent, as unix:///PATH. Its trust bundle is trusted
    /// in addition to the mesh's own roots, so that proxies may use certificates that it issues. The control plane
    /// serves nothing before its first response
    #[arg(long, env = "SPIFFE_ENDPOINT_SOCKET", value_name = "ADDRESS")]
    pub(crate) spiffe_endpoint_socket: Option<WorkloadApiAddress>,

    /// Another trust domain whose workloads are accepted as clients, and the source of its trust bundle. DOMAIN=FILE:
    /// a SPIFFE bundle or PEM file, which is read again when it changes. DOMAIN=https://URL: a bundle endpoint, whose
    /// server is authenticated by its DNS name (https_web); append ;spiffe-id=ID;bundle=FILE to authenticate it by
    /// its SPIFFE ID (https_spiffe), with FILE for the first connection. DOMAIN=workload-api: the Workload API of
    /// --spiffe-endpoint-socket. Can be repeated
    #[arg(long, env = "LENO_FEDERATE", value_name = "DOMAIN=SOURCE", value_delimiter = ',')]
    pub(crate) federate: Vec<Federation>,

    /// PEM file with further certificate authorities for the HTTPS servers of token keys and trust bundles. They are
    /// trusted in addition to those of the machine (SSL_CERT_FILE), or if it has none, to Mozilla's, which are built
    /// in. The file is read again when it changes
    #[arg(long, env = "LENO_WEB_AUTHORITIES", value_name = "FILE")]
    pub(crate) web_authorities: Option<PathBuf>,

    /// Address to serve the trust bundle of this trust domain on, for others, over HTTPS at the path /. The server is
    /// authenticated by its SPIFFE ID, spiffe://TRUST-DOMAIN/leno/control-plane (https_spiffe) [default: none, and it
    /// is not served]
    #[arg(long, env = "LENO_BUNDLE_ENDPOINT", value_name = "ADDRESS")]
    pub(crate) bundle_endpoint: Option<SocketAddr>,

    /// Directory with a certificate and its key for the bundle endpoint, tls.crt and tls.key, which are read again
    /// when they change. With it, the server is authenticated by its DNS name (https_web)
    #[arg(
        long,
        env = "LENO_BUNDLE_ENDPOINT_CERTIFICATE",
        value_name = "DIR",
        requires = "bundle_endpoint"
    )]
    pub(crate) bundle_endpoint_certificate: Option<PathBuf>,

    /// How often other trust domains should fetch the trust bundle, from 1s to 1h. If there is a bundle endpoint,
    /// each phase of a root rotation lasts at least three times as long
    #[arg(long, env = "LENO_BUNDLE_REFRESH", value_name = "DURATION", default_value = "1m", value_parser = bundle_refresh)]
    pub(crate) bundle_refresh: Duration,

    /// Trust domain of the mesh
    #[arg(long, env = "LENO_TRUST_DOMAIN", default_value = "cluster.local")]
    pub(crate) trust_domain: String,

    /// Cryptography of TLS, here and in the proxies of pods: default, or fips for only what FIPS 140-3 approves, with
    /// aws-lc's FIPS module. fips needs programs that were built with `make release FIPS=1`
    #[arg(long, env = "LENO_TLS_PROFILE", value_name = "PROFILE", default_value_t)]
    pub(crate) tls_profile: TlsProfile,

    /// How long workloads' certificates are valid, from 10s to 90d
    #[arg(long, env = "LENO_CERT_LIFETIME", value_name = "DURATION", default_value = "24h",
          value_parser = lifetime)]
    pub(crate) cert_lifetime: Duration,

    /// How long a proxy stays connected to one replica, plus or minus a quarter, from 10s to 1d. Then it connects
    /// again, so that proxies spread over all replicas after some of them were restarted
    #[arg(long, env = "LENO_STREAM_AGE", value_name = "DURATION", default_value = "30m",
          value_parser = stream_age)]
    pub(crate) stream_age: Duration,

    /// Which connections workloads accept if no document sets it: strict, only mTLS; permissive, mTLS and plaintext;
    /// disabled, only plaintext
    #[arg(long, env = "LENO_DEFAULT_MTLS", value_name = "MODE", default_value = "permissive")]
    pub(crate) default_mtls: MtlsMode,

    /// Whether workloads may connect to addresses outside of the mesh if no document sets it: allow or deny
    #[arg(long, env = "LENO_DEFAULT_EGRESS", value_name = "EGRESS", default_value = "allow")]
    pub(crate) default_egress: Egress,

    /// Address to serve /metrics, /ready and /live on [default: none, and they are not served]
    #[arg(long, env = "LENO_ADMIN", value_name = "ADDRESS")]
    pub(crate) admin: Option<SocketAddr>,

    /// Filter of the log on standard error, such as info or warn,leno_serve=debug
    #[arg(long, env = "LENO_LOG", default_value = "warn")]
    pub(crate) log: String,
}

/// What the program does in place of being the control plane.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Task {
    /// Collects the counts of a cluster's proxies, keeps them for 24 hours, and serves them to users who may see
    /// them; the StatefulSet leno-observer runs this
    Observe(Observe),
}

/// The configuration that follows from all flags together, checked.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) source: MeshSource,
    pub(crate) listen: SocketAddr,
    pub(crate) trust_domain: TrustDomain,
    /// The directory in which the operator places an issuer: a certificate and its key that sign workloads'
    /// certificates.
    pub(crate) issuer: Option<PathBuf>,
    /// The Workload API of another authority, such as SPIRE, from which further trust bundles come.
    pub(crate) spiffe_endpoint_socket: Option<WorkloadApiAddress>,
    pub(crate) federate: Vec<Federation>,
    /// The PEM file with authorities for HTTPS servers, in addition to those of the machine.
    pub(crate) web_authorities: Option<PathBuf>,
    /// The bundle endpoint of the own trust domain.
    pub(crate) bundle_endpoint: Option<BundleEndpoint>,
    pub(crate) cert_lifetime: Duration,
    pub(crate) stream_age: Duration,
    pub(crate) default_mtls: MtlsMode,
    pub(crate) default_egress: Egress,
    /// Whether agents report which pods node proxies serve.
    pub(crate) agents_report: bool,
    pub(crate) admin: Option<SocketAddr>,
}

/// The endpoint from which other trust domains fetch the trust bundle.
#[derive(Clone, Debug)]
pub(crate) struct BundleEndpoint {
    pub(crate) address: SocketAddr,
    /// The directory of the endpoint's certificate; `None` for the control plane's own certificate.
    pub(crate) certificate: Option<PathBuf>,
    /// The interval at which other trust domains should fetch the bundle.
    pub(crate) refresh: Duration,
}

/// Where objects, the certificate authority and tokens come from.
#[derive(Clone, Debug)]
pub(crate) enum MeshSource {
    /// On this machine.
    Files(FileSettings),
    /// In a Kubernetes cluster.
    Cluster(ClusterSettings),
}

/// The files of a mesh on one machine, without a cluster.
#[derive(Clone, Debug)]
pub(crate) struct FileSettings {
    pub(crate) documents: Vec<PathBuf>,
    /// The directory with the state of the certificate authority.
    pub(crate) ca_dir: PathBuf,
    /// The directory with the tokens of instances.
    pub(crate) tokens: PathBuf,
    /// The file to which the roots for verifying the control plane are written.
    pub(crate) roots_file: Option<PathBuf>,
    /// The Unix socket on which the SPIFFE Workload API is served.
    pub(crate) workload_api: Option<PathBuf>,
}

/// The settings for a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterSettings {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) namespace: String,
    pub(crate) name: Option<String>,
    pub(crate) token_audience: String,
    pub(crate) webhook: SocketAddr,
    /// Whether the trust bundle is published as a `ClusterTrustBundle`.
    pub(crate) trust_bundle: bool,
    /// Whether the control plane signs the certificates that kubelets request for pods.
    pub(crate) pod_certificates: bool,
    /// Whether the leader creates a waypoint, a shared proxy, for each Gateway of the class `leno-waypoint`.
    pub(crate) waypoints: bool,
    /// Shortest duration of a phase of a root rotation.
    pub(crate) phase_hold: Duration,
    /// The settings of the proxies that the webhook adds to pods.
    pub(crate) proxies: Box<Proxies>,
}

impl Flags {
    /// Checks the sources of other trust domains' bundles. Returns the bundle endpoint of this trust domain, if there
    /// is one.
    fn bundles(&self, own: &TrustDomain) -> anyhow::Result<Option<BundleEndpoint>> {
        federation::check(&self.federate, own, self.spiffe_endpoint_socket.is_some())
            .context("--federate")?;
        Ok(self.bundle_endpoint.map(|address| BundleEndpoint {
            address,
            certificate: self.bundle_endpoint_certificate.clone(),
            refresh: self.bundle_refresh,
        }))
    }
}

impl Config {
    /// Parses and checks the flags together.
    pub(crate) fn new(flags: Flags) -> anyhow::Result<Self> {
        let trust_domain = TrustDomain::new(&flags.trust_domain).context("--trust-domain")?;
        let bundle_endpoint = flags.bundles(&trust_domain)?;
        let source = if flags.kubernetes {
            let proxies = proxies(&flags)?;
            MeshSource::Cluster(ClusterSettings {
                kubeconfig: flags.kubeconfig,
                namespace: flags.namespace,
                name: flags.name,
                token_audience: flags.token_audience,
                webhook: flags.webhook,
                trust_bundle: flags.cluster_trust_bundle || flags.pod_certificates,
                pod_certificates: flags.pod_certificates,
                waypoints: flags.waypoints,
                phase_hold: flags.phase_hold,
                proxies: Box::new(proxies),
            })
        } else {
            let ca_dir = flags.ca_dir.context("--ca-dir is missing")?;
            let tokens = flags.tokens.unwrap_or_else(|| ca_dir.with_file_name("tokens"));
            MeshSource::Files(FileSettings {
                documents: flags.files,
                ca_dir,
                tokens,
                roots_file: flags.roots_file,
                workload_api: flags.workload_api,
            })
        };
        Ok(Self {
            federate: flags.federate,
            web_authorities: flags.web_authorities,
            bundle_endpoint,
            source,
            listen: flags.listen,
            trust_domain,
            issuer: flags.issuer,
            spiffe_endpoint_socket: flags.spiffe_endpoint_socket,
            cert_lifetime: flags.cert_lifetime,
            stream_age: flags.stream_age,
            default_mtls: flags.default_mtls,
            default_egress: flags.default_egress,
            agents_report: flags.agents_report,
            admin: flags.admin,
        })
    }
}

/// The settings of the proxies that the webhook adds to pods.
fn proxies(flags: &Flags) -> anyhow::Result<Proxies> {
    let proxies = Proxies {
        image: flags.proxy_image.clone(),
        pull_policy: flags.proxy_pull_policy.clone(),
        pull_secrets: pull_secrets(&flags.proxy_pull_secrets).context("--proxy-pull-secrets")?,
        trust_domain: flags.trust_domain.clone(),
        control: format!("https://leno-controller.{}.svc:15010", flags.namespace),
        log: flags.proxy_log.clone(),
        traces: leno_admission::traces(flags.proxy_traces.as_deref().unwrap_or_default())
            .context("--proxy-traces")?,
        access_log: leno_admission::access_log(
            flags.proxy_access_log.as_deref().unwrap_or_default(),
        )
        .context("--proxy-access-log")?,
        metrics_compat: leno_admission::metrics_compat(
            flags.proxy_metrics_compat.as_deref().unwrap_or_default(),
        )
        .map_err(anyhow::Error::msg)
        .context("--proxy-metrics-compat")?,
        tap_bodies: flags.proxy_tap_bodies,
        scrape_from: leno_admission::scrape_from(
            flags.proxy_scrape_from.as_deref().unwrap_or_default(),
        )
        .context("--proxy-scrape-from")?,
        tls_profile: (flags.tls_profile != TlsProfile::Default)
            .then(|| flags.tls_profile.to_string()),
        workload_api: flags.proxy_workload_api.clone(),
        pod_certificates: flags
            .pod_certificates
            .then(|| leno_admission::pod_certificate_seconds(flags.cert_lifetime)),
        shape: match &*flags.proxy_shape {
            "container" => ContainerShape::Container,
            _ => ContainerShape::Sidecar,
        },
        pre_stop_sleep: flags.pre_stop_sleep,
        ..Proxies::default()
    };
    let exports = proxies.access_log.as_deref().is_some_and(leno_admission::exports);
    if proxies.traces.is_none() && exports {
        bail!(
            "--proxy-access-log otlp exports to the collector of --proxy-traces: add \
             --proxy-traces NAMESPACE/SERVICE:PORT"
        );
    }
    Ok(proxies)
}

/// How many times other trust domains should have fetched the bundle before a phase of a rotation ends (SPIFFE
/// Federation, section 4.1).
const FETCHES_OF_A_PHASE: u32 = 3;

impl BundleEndpoint {
    /// Shortest duration of a phase of a root rotation, so that other trust domains have the new bundle.
    pub(crate) fn phase_hold(&self) -> Duration {
        self.refresh * FETCHES_OF_A_PHASE
    }
}

fn lifetime(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (MIN_LIFETIME, MAX_LIFETIME))
}

fn phase_hold(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_secs(1), Duration::from_hours(24)))
}

fn bundle_refresh(text: &str) -> Result<Duration, String> {
    within(duration(text)?, (Duration::from_secs(1), Duration::from_hours(1)))
}

fn stream_age(text: &str) -> Result<Duration, String> {
    within(duration(text)?, STREAM_AGES)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_reference_has_every_option() {
        let page = leno_testkit::reference::page(Flags::command(), "leno-controller");
        leno_testkit::reference::check("leno-controller.md", &page);
    }

    #[test]
    fn a_lifetime_has_a_unit_and_bounds() {
        assert_eq!(lifetime("60s").unwrap(), Duration::from_mins(1));
        assert_eq!(lifetime("24h").unwrap(), Duration::from_hours(24));
        assert_eq!(lifetime("90d").unwrap(), MAX_LIFETIME);
        for text in ["", "s", "-1s", "1.5h", "9s", "91d", "18446744073709551615d", "60ss"] {
            assert!(lifetime(text).is_err(), "{text}");
        }
        assert_eq!(stream_age("10s").unwrap(), Duration::from_secs(10));
        assert!(stream_age("9s").is_err() && stream_age("25h").is_err());
    }

    #[test]
    fn a_stream_lasts_as_long_as_leno_serve_has_it() {
        let flags = Flags::try_parse_from(["leno-controller", "--kubernetes"]).unwrap();
        assert_eq!(flags.stream_age, leno_serve::STREAM_AGE);
    }

    #[test]
    fn leno_up_starts_it_with_its_own_names() {
        let arguments = [
            "leno-controller",
            "--state",
            "/run/leno/default/state",
            "--data",
            "/run/leno/default/control",
            "--listen",
            "10.89.0.1:15010",
            "--cert-lifetime",
            "86400s",
            "--trust-domain",
            "cluster.local",
            "--admin",
            "127.0.0.1:15020",
        ];
        let config = Config::new(Flags::try_parse_from(arguments).unwrap()).unwrap();
        let MeshSource::Files(files) = config.source else { panic!("{config:?}") };
        assert_eq!(files.documents, [PathBuf::from("/run/leno/default/state")]);
        assert_eq!(files.tokens, PathBuf::from("/run/leno/default/tokens"));
        assert_eq!(config.cert_lifetime, Duration::from_hours(24));
        assert_eq!(config.trust_domain, TrustDomain::default());
        assert_eq!(config.admin.unwrap().port(), leno_types::ports::ADMIN);
    }

    #[test]
    fn a_cluster_takes_the_place_of_files() {
        let parse = |arguments: &[&str]| {
            Flags::try_parse_from([&["leno-controller"], arguments].concat()).map(Config::new)
        };
        let config = parse(&["--kubernetes", "--kubeconfig", "/k"]).unwrap().unwrap();
        let MeshSource::Cluster(cluster) = config.source else { panic!("{config:?}") };
        assert_eq!(cluster.kubeconfig, Some(PathBuf::from("/k")));
        assert_eq!((&*cluster.namespace, &*cluster.token_audience), ("leno-system", "leno"));
        // The defaults are the same as those of `leno inject`.
        assert_eq!(*cluster.proxies, Proxies::default());
        assert_eq!(cluster.webhook.port(), 15017);
        for wrong in [
            &["--kubernetes", "--files", "x"][..],
            &["--kubernetes", "--ca-dir", "x"],
            &["--kubeconfig", "x"],
            &["--files", "x"],
            &["--ca-dir", "x"],
            &[],
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
