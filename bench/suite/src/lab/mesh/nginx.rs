//! nginx beside a workload, with mTLS between proxies. It cannot get the original destination, so
//! its configuration lists the services.

use std::fmt::Write;
use std::path::Path;

use leno_measure::load::Protocol;
use leno_types::ports::{INBOUND, OUTBOUND};
use nix::sys::signal::Signal;

use super::adapter::{Mesh, MeshPrograms};
use super::hop::{Configuration, Hop};
use crate::application::PUSHED;
use crate::scenario::Scenario;
use crate::tools::{self, Missing};

/// Debian packages nginx's TCP proxy as a separate module.
const STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

#[derive(Debug)]
pub(super) struct Nginx;

impl Mesh for Nginx {
    fn name(&self) -> &str {
        "nginx"
    }

    fn find(&self) -> Result<MeshPrograms, Missing> {
        let missing = || Missing::new("nginx", "apt-get install -y nginx-light");
        let program = tools::find("nginx").ok_or_else(missing)?;
        Ok(MeshPrograms::of(program, "-v"))
    }

    fn unable(&self, scenario: &Scenario) -> Option<&'static str> {
        match scenario.protocol {
            _ if !scenario.calls.is_empty() => {
                Some("its adapter is for one hop, without calls behind it")
            }
            Protocol::Tcp if !Path::new(STREAM).exists() => {
                Some("nginx has no relay for TCP: apt-get install -y libnginx-mod-stream")
            }
            _ => None,
        }
    }

    fn configure(&self, hop: &Hop<'_>) -> Option<Configuration> {
        let at = hop.directory.display();
        let arguments = ["-c", "{}", "-e", "stderr", "-p"].map(str::to_owned);
        let arguments = arguments.into_iter().chain([at.to_string()]).collect();
        let file = "nginx.conf";
        let told_by = hop.is_revised().then_some(Signal::SIGHUP);
        let text = text(hop);
        Some(Configuration { file, text, arguments, told_by, ..Configuration::default() })
    }
}

fn text(hop: &Hop<'_>) -> String {
    let at = hop.directory.display();
    // With a master process, nginx reads the file again on a signal.
    let master = if hop.is_revised() { "on" } else { "off" };
    let mut text = format!(
        "daemon off; master_process {master}; worker_processes 1; pid {at}/pid;\n\
         error_log stderr crit;\nevents {{ worker_connections 8192; }}\n"
    );
    let files = |role: &str| {
        format!("{role}ssl_certificate {at}/chain.pem; {role}ssl_certificate_key {at}/key.pem; ")
    };
    let listens = format!(
        "{}ssl_client_certificate {at}/roots.pem; ssl_verify_client on; ssl_protocols TLSv1.3;",
        files("")
    );
    let calls = format!(
        "{}proxy_ssl_trusted_certificate {at}/roots.pem; proxy_ssl_verify off; \
         proxy_ssl_protocols TLSv1.3; proxy_ssl_session_reuse on;",
        files("proxy_")
    );
    let upstreams = upstreams(hop);
    if hop.protocol == Protocol::Tcp {
        text.insert_str(0, &format!("load_module {STREAM};\n"));
        let server = match (hop.application, hop.listen) {
            (_, Some(at)) => format!("listen {at} backlog=4096; proxy_pass u0;"),
            (None, _) => {
                format!("listen 127.0.0.1:{OUTBOUND}; proxy_pass u0; proxy_ssl on; {calls}")
            }
            (Some(_), _) => format!("listen 0.0.0.0:{INBOUND} ssl; proxy_pass u0; {listens}"),
        };
        return text + &format!("stream {{\n{upstreams}  server {{ {server} }}\n}}\n");
    }
    let (http2, scheme, scheme_header) = match hop.http2() {
        true => (" http2", "grpc", "grpc_set_header"),
        false => ("", "http", "proxy_set_header"),
    };
    let pass = |tls: &str, to: &str| match hop.http2() {
        true => format!("grpc_pass {scheme}{tls}://{to};"),
        false => format!(
            "proxy_pass {scheme}{tls}://{to}; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; proxy_request_buffering off;"
        ),
    };
    let calls = if hop.http2() { calls.replace("proxy_", "grpc_") } else { calls };
    let pushed =
        hop.pushed().map_or_else(String::new, |nth| format!("{scheme_header} {PUSHED} {nth};"));
    let server = match (hop.application, hop.listen) {
        (_, Some(at)) => {
            format!("listen {at}{http2} backlog=4096; location / {{ {} }}", pass("", "u0"))
        }
        (None, _) => format!(
            "listen 127.0.0.1:{OUTBOUND}{http2}; location / {{ {calls} {pushed} {} }}",
            pass("s", "$to")
        ),
        (Some(_), _) => format!(
            "listen 0.0.0.0:{INBOUND} ssl{http2}; {listens} location / {{ {} }}",
            pass("", "u0")
        ),
    };
    let calls_by = upstream_map(hop);
    text + &format!(
        "http {{\n  access_log off; keepalive_requests 100000000; client_max_body_size 0;\n  \
         client_body_temp_path {at}/b; proxy_temp_path {at}/p; fastcgi_temp_path {at}/f;\n  \
         uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n{upstreams}{calls_by}  \
         server {{ {server} }}\n}}\n"
    )
}

/// The upstreams: each service of the client, or the application.
fn upstreams(hop: &Hop<'_>) -> String {
    let servers = hop.services.iter().chain(&hop.application);
    let keep = match hop.protocol {
        Protocol::Tcp => "",
        _ => " keepalive 1024; keepalive_requests 100000000;",
    };
    let mut text = String::new();
    if let Some(endpoints) = hop.churning() {
        let servers: String = endpoints.iter().map(|one| format!(" server {one};")).collect();
        let _ = writeln!(text, "  upstream u0 {{{servers}{keep} }}");
        return text;
    }
    for (nth, server) in servers.enumerate() {
        let _ = writeln!(text, "  upstream u{nth} {{ server {server};{keep} }}");
    }
    text
}

/// Selects the upstream by the `Host` header.
fn upstream_map(hop: &Hop<'_>) -> String {
    let mut text = "  map $http_host $to { default u0;".to_owned();
    let one = hop.churning().is_some();
    for (nth, server) in hop.services.iter().enumerate().filter(|_| !one) {
        let _ = write!(text, " \"{server}\" u{nth};");
    }
    text + " }\n"
}
