//! Builds the command lines of proxies and brokers, which run as a separate user without any capability.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leno_handover::Channel;
use leno_supervise::ProcessCredentials;
use leno_types::{WorkloadApiAddress, ports};

use crate::addresses::Addresses;
use crate::isolation::Isolation;
use crate::plan::PlannedInstance;
use crate::process::ProcessCommand;
use crate::program::Program;
use crate::token::MeshTokens;

/// The variable that makes a proxy of a development build panic; see `leno_transport::test_panic`.
const TEST_PANIC: &str = "LENO_TEST_PANIC";

/// The common settings of a mesh's proxies.
#[derive(Debug)]
pub struct MeshProxySettings {
    /// The capture backends that this machine supports.
    pub machine: leno_capture::ProbeReport,
    /// The tokens with which proxies request their first certificate.
    pub tokens: MeshTokens,
    /// The roots for verifying the control plane's certificate.
    pub roots: PathBuf,
    /// The trust domain.
    pub trust_domain: String,
    /// The log filter of proxies.
    pub log: String,
    /// Which requests the access log contains, in the form of the proxy's option.
    pub access_log: String,
    /// Which requests get spans and where the spans are sent, in the form of the proxy's option. `None` if traces
    /// are off.
    pub traces: Option<String>,
    /// The meshes whose metric names the proxy serves in addition to its own, in the form of the proxy's option.
    pub metrics_compat: String,
    /// Whether taps may show bodies.
    pub tap_bodies: bool,
    /// The cryptography profile of TLS, in the form of the proxy's option.
    pub tls_profile: String,
    /// The addresses of the network that may request metrics, separated by commas; empty if all may.
    pub scrape_from: String,
    /// The SPIFFE Workload API that issues certificates for workloads whose documents set none.
    pub spiffe_endpoint_socket: Option<WorkloadApiAddress>,
    /// The addresses of the DNS server and the control plane.
    pub gateway: Addresses,
    /// How long a response may take to begin if no policy sets a bound; zero for no bound.
    pub response_wait: Duration,
    /// How long streams may continue once another proxy serves their instance, in whole seconds.
    pub handover_timeout: Duration,
    /// Most new connections a second of an instance in node mode, and of each of its clients; 0 for no limit.
    pub connection_rate: u32,
    /// Whether requests between instances of the same node proxy are passed within its memory.
    pub one_pass: bool,
}

impl MeshProxySettings {
    /// The command of a sidecar. `orders` is the channel on which it receives the supervisor's orders. `succeeds`
    /// is whether another proxy serves the instance until this one does.
    #[must_use]
    pub fn task(
        &self,
        instance: &PlannedInstance,
        (program, token): (&Program, &Path),
        isolation: Isolation,
        (orders, succeeds): (Channel, bool),
    ) -> ProcessCommand {
        let name = &instance.name;
        let token = token.to_string_lossy();
        let certificates = &instance.launch.certificates;
        let api = certificates.workload_api(self.spiffe_endpoint_socket.as_ref());
        let api = api.map(ToString::to_string);
        let certificates = match &api {
            Some(address) => ("SPIFFE_ENDPOINT_SOCKET", address.as_str()),
            None => ("LENO_TOKEN", &*token),
        };
        let waypoint = instance.launch.waypoint.to_string();
        let datagrams = instance.launch.datagrams.is_on().to_string();
        let own: [(&str, &str); 8] = [
            ("LENO_NAME", &name.name),
            ("LENO_WORKLOAD", &instance.workload),
            ("LENO_NAMESPACE", &name.namespace),
            ("LENO_SERVICE_ACCOUNT", &instance.launch.service_account),
            certificates,
            ("LENO_WORKERS", "1"),
            ("LENO_WAYPOINT", &waypoint),
            ("LENO_DATAGRAMS", &datagrams),
        ];
        let mut command = vec![program.path().into(), "--supervised".into()];
        command.extend(succeeds.then(|| "--succeeds".into()));
        confined(command, self.environment(&own), isolation, orders)
    }

    /// The command of a node proxy. `tokens` is the folder with the tokens of its members. `budget` is the memory
    /// budget of its buffers, if it has one.
    #[must_use]
    pub fn node_task(
        &self,
        program: &Program,
        tokens: &Path,
        isolation: Isolation,
        (orders, budget): (Channel, Option<u64>),
    ) -> ProcessCommand {
        let budget = budget.map(|bytes| bytes.to_string());
        let budget = budget.as_deref().map(|bytes| ("LENO_MEMORY_BUDGET", bytes));
        let connection_rate = self.connection_rate.to_string();
        let tokens = tokens.to_string_lossy();
        let one_pass = self.one_pass.to_string();
        let own = [
            ("LENO_TOKEN", &*tokens),
            ("LENO_CONNECTION_RATE", &*connection_rate),
            ("LENO_ONE_PASS", &*one_pass),
        ];
        let own: Vec<_> = own.into_iter().chain(budget).collect();
        let environment = self.environment(&own);
        let command = vec![program.path().into(), "--node".into()];
        confined(command, environment, isolation, orders)
    }

    /// The environment that all proxies have, with the variables in `more` added.
    fn environment(&self, more: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
        let control = format!("https://{}:{}", self.gateway.v4, ports::CONTROL);
        let response_wait = self.response_wait.as_secs().to_string();
        let handover_timeout = self.handover_timeout.as_secs().to_string();
        let tap_bodies = self.tap_bodies.to_string();
        let all: [(&str, &str); 10] = [
            ("LENO_TRUST_DOMAIN", &self.trust_domain),
            ("LENO_CONTROL", &control),
            ("LENO_ROOTS", &self.roots.to_string_lossy()),
            ("LENO_RESPONSE_WAIT", &response_wait),
            ("LENO_HANDOVER_TIMEOUT", &handover_timeout),
            ("LENO_LOG", &self.log),
            ("LENO_ACCESS_LOG", &self.access_log),
            ("LENO_METRICS_COMPAT", &self.metrics_compat),
            ("LENO_TAP_BODIES", &tap_bodies),
            ("LENO_TLS_PROFILE", &self.tls_profile),
        ];
        let owned = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
        let traces = self.traces.as_deref().map(|traces| ("LENO_TRACES", traces));
        let scrapers = Some(self.scrape_from.as_str()).filter(|scrapers| !scrapers.is_empty());
        let scrapers = scrapers.map(|scrapers| ("LENO_SCRAPE_FROM", scrapers));
        // Tests use this variable to see what a panic ends. Release builds of the proxy ignore the variable.
        let panic = std::env::var(TEST_PANIC).ok();
        let panic = panic.as_deref().map(|panic| (TEST_PANIC, panic));
        let optional = traces.iter().chain(&scrapers).chain(&panic);
        all.iter().chain(more).chain(optional).map(owned).collect()
    }
}

/// The command of a broker, which opens an instance's listeners for a node proxy. `succeeds` is whether another
/// proxy still serves the instance. If so, the broker binds the listeners but does not listen yet.
#[must_use]
pub fn broker_task(
    program: &Program,
    isolation: Isolation,
    (orders, succeeds): (Channel, bool),
) -> ProcessCommand {
    let mut command = vec![program.path().into(), "--supervised".into()];
    command.extend(succeeds.then(|| "--succeeds".into()));
    confined(command, BTreeMap::new(), isolation, orders)
}

/// The command of a process that runs as the proxies' user.
fn confined(
    command: Vec<OsString>,
    environment: BTreeMap<OsString, OsString>,
    isolation: Isolation,
    orders: Channel,
) -> ProcessCommand {
    ProcessCommand {
        command,
        environment,
        directory: Some("/".into()),
        isolation,
        credentials: ProcessCredentials::confined(ports::PROXY_UID),
        descriptors: None,
        stdin: Some(OwnedFd::from(orders)),
    }
}

/// The destinations whose traffic is never captured: the DNS server and the control plane, which are not services
/// of the mesh.
#[must_use]
pub fn never_captured(gateway: &Addresses) -> Vec<(IpAddr, u8)> {
    let whole = |address: IpAddr| (address, if address.is_ipv4() { 32 } else { 128 });
    gateway.iter().map(whole).collect()
}
