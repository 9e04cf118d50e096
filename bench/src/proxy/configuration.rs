//! The configurations: what each proxy's manual recommends for one hop and one worker, with pools
//! and limits so large that none is ever reached. If there is TLS, it is configured as between
//! meshed workloads.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Result, bail};

use super::hop::{Hop, Leg, Tls};
use crate::scenario::Work;

/// The prefix of the names of Envoy's own types.
const ENVOY: &str = "type.googleapis.com/envoy.extensions";
/// Debian packages nginx's TCP proxy as a separate module.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

pub(super) fn leno(hop: &Hop, admin: SocketAddr) -> String {
    let Hop { address, backend, work, .. } = hop;
    let protocol = match work {
        Work::Http1 => "http",
        Work::Http2 => "kubernetes.io/h2c",
        Work::Tcp => "tcp",
    };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: bench, namespace: bench}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  \
         outbound: {{listen: \"{address}\", service: \"bench/backend:80\"}}\n  \
         mtls: disabled\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: backend, namespace: bench}}\n\
         spec:\n  clusterIP: 10.96.0.10\n  \
         ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: {protocol}}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: backend-1, namespace: bench, \
         labels: {{kubernetes.io/service-name: backend}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: {protocol}}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n",
        port = backend.port(),
        ip = backend.ip(),
    )
}

pub(super) fn haproxy(hop: &Hop) -> String {
    let Hop { address, backend, work, accept, connect } = hop;
    let mode = match work {
        Work::Http1 => "http\n  http-reuse always\n  option http-keep-alive",
        Work::Http2 => "http\n  http-reuse always",
        Work::Tcp => "tcp",
    };
    let speak = |leg: &Leg| {
        let mut words = String::new();
        if leg.http2 && *work != Work::Tcp {
            words += " proto h2";
        }
        if let Some(Tls { directory, .. }) = &leg.tls {
            let at = directory.display();
            words += &format!(
                " ssl crt {at}/both.pem ca-file {at}/roots.pem verify required \
                 ssl-min-ver TLSv1.3"
            );
            words += if leg.http2 && *work != Work::Tcp { " alpn h2" } else { "" };
        }
        words
    };
    format!(
        "global\n  nbthread 1\n  maxconn 8192\n\
         defaults\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n  \
         mode {mode}\n\
         frontend f\n  bind {address}{}\n  default_backend b\n\
         backend b\n  server s {backend}{} pool-max-conn 512\n",
        speak(accept),
        speak(connect),
    )
}

pub(super) fn nginx(hop: &Hop, root: &str) -> Result<String> {
    let Hop { address, backend, work, .. } = hop;
    let mut start = format!(
        "daemon off; master_process off; worker_processes 1; pid {root}/pid;\n\
         error_log stderr crit;\nevents {{ worker_connections 8192; }}\n"
    );
    if *work == Work::Tcp {
        if !Path::new(NGINX_STREAM).exists() {
            bail!("nginx has no relay for TCP: apt-get install -y libnginx-mod-stream");
        }
        start.insert_str(0, &format!("load_module {NGINX_STREAM};\n"));
        return Ok(format!(
            "{start}stream {{\n  server {{ listen {address} backlog=4096; proxy_pass {backend}; }}\n}}\n"
        ));
    }
    let (listen, pass) = match work {
        // Bodies are streamed, as the other proxies do.
        Work::Http1 => (
            "",
            "proxy_pass http://b; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
             proxy_request_buffering off;",
        ),
        // Only nginx's gRPC module speaks HTTP/2 to servers.
        _ => (" http2", "grpc_pass grpc://b;"),
    };
    Ok(format!(
        "{start}http {{\n  access_log off; keepalive_requests 100000000;\n  \
         client_max_body_size 0;\n  \
         client_body_temp_path {root}/b; proxy_temp_path {root}/p; fastcgi_temp_path {root}/f;\n  \
         uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
         upstream b {{ server {backend}; keepalive 512; keepalive_requests 100000000; }}\n  \
         server {{ listen {address}{listen} backlog=4096;\n    location / {{ {pass} }}\n  }}\n}}\n"
    ))
}

pub(super) fn envoy(hop: &Hop) -> String {
    let Hop { address, backend, work, accept, connect } = hop;
    let filter = match work {
        Work::Tcp => format!(
            "name: envoy.filters.network.tcp_proxy\n        typed_config:\n          \
             \"@type\": {ENVOY}.filters.network.tcp_proxy.v3.TcpProxy\n          \
             stat_prefix: bench\n          cluster: b\n"
        ),
        _ => format!(
            "name: envoy.filters.network.http_connection_manager\n        typed_config:\n          \
             \"@type\": {ENVOY}.filters.network.http_connection_manager.v3.HttpConnectionManager\n          \
             stat_prefix: bench\n          codec_type: {codec}\n          \
             generate_request_id: false\n          \
             route_config: {{virtual_hosts: [{{name: b, domains: [\"*\"], \
             routes: [{{match: {{prefix: /}}, route: {{cluster: b, timeout: 0s}}}}]}}]}}\n          \
             http_filters:\n          - name: envoy.filters.http.router\n            \
             typed_config: {{\"@type\": {ENVOY}.filters.http.router.v3.Router}}\n",
            codec = if accept.http2 { "HTTP2" } else { "HTTP1" },
        ),
    };
    let protocol = if connect.http2 && *work != Work::Tcp {
        format!(
            "    typed_extension_protocol_options:\n      \
             envoy.extensions.upstreams.http.v3.HttpProtocolOptions:\n        \
             \"@type\": {ENVOY}.upstreams.http.v3.HttpProtocolOptions\n        \
             explicit_http_config: {{http2_protocol_options: {{}}}}\n"
        )
    } else {
        String::new()
    };
    let at = |address: &SocketAddr| {
        format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
    };
    format!(
        "static_resources:\n  listeners:\n  - address: {listen}\n    filter_chains:\n    \
         - filters:\n      - {filter}{downstream}  clusters:\n  - name: b\n    type: STATIC\n    \
         connect_timeout: 5s\n    circuit_breakers: {{thresholds: [{{max_connections: 8192, \
         max_pending_requests: 8192, max_requests: 8192}}]}}\n{protocol}{upstream}    \
         load_assignment: {{cluster_name: b, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {server}}}}}]}}]}}\n",
        listen = at(address),
        server = at(backend),
        downstream = envoy_tls("      ", "Downstream", accept, *work),
        upstream = envoy_tls("    ", "Upstream", connect, *work),
    )
}

/// The transport socket of a leg; empty if the leg has no TLS.
fn envoy_tls(indent: &str, side: &str, leg: &Leg, work: Work) -> String {
    let Some(Tls { directory, other }) = &leg.tls else { return String::new() };
    let at = directory.display();
    let alpn = if work == Work::Tcp { "" } else { "alpn_protocols: [h2], " };
    let require = if side == "Downstream" { "require_client_certificate: true, " } else { "" };
    format!(
        "{indent}transport_socket:\n{indent}  name: envoy.transport_sockets.tls\n\
         {indent}  typed_config: {{\"@type\": {ENVOY}.transport_sockets.tls.v3.{side}TlsContext, \
         {require}common_tls_context: {{{alpn}\
         tls_params: {{tls_minimum_protocol_version: TLSv1_3, \
         tls_maximum_protocol_version: TLSv1_3}}, \
         tls_certificates: [{{certificate_chain: {{filename: {at}/chain.pem}}, \
         private_key: {{filename: {at}/key.pem}}}}], \
         validation_context: {{trusted_ca: {{filename: {at}/roots.pem}}, \
         match_typed_subject_alt_names: [{{san_type: URI, matcher: {{exact: \"{other}\"}}}}]}}}}}}\n"
    )
}
