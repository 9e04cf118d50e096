//! Tests services outside the mesh, which are called by name, over TLS that the proxy originates.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::resolver::{DnsAnswer, Resolver};
use leno_testkit::{binaries, command, wait};

use super::{Case, alone};
use crate::outside::{ADDRESS, Outside};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(an_external_name_is_a_service_over_tls)]
}

/// How long a change may take; the TTL of DNS answers is one second.
const LIMIT: Duration = Duration::from_secs(90);
/// The DNS name of the external server.
pub(super) const HOST: &str = "api.pay.example";
/// How long `openssl` may take.
const MAKE_LIMIT: Duration = Duration::from_secs(90);

/// The external services: their names, their external names, their ports, and the validation in their TLS
/// policies.
const SERVICES: [(&str, &str, &str, &str); 8] = [
    (
        "pay",
        HOST,
        "{name: http, port: 80, targetPort: 443, appProtocol: http}, \
                   {name: https, port: 443, appProtocol: https}",
        GIVEN,
    ),
    (
        "strange",
        HOST,
        "{port: 80, targetPort: 443, appProtocol: http}",
        "hostname: api.pay.example, wellKnownCACertificates: System",
    ),
    (
        "wrong",
        HOST,
        "{port: 80, targetPort: 443, appProtocol: http}",
        "hostname: other.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]",
    ),
    (
        "unproven",
        HOST,
        "{port: 80, targetPort: 443, appProtocol: http}",
        "hostname: api.pay.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: none}]",
    ),
    ("nowhere", "nowhere.pay.example", "{port: 80, appProtocol: http}", ""),
    ("inward", "inward.pay.example", "{port: 80, targetPort: 8444, appProtocol: http}", GIVEN),
    ("plainly", HOST, "{port: 80, targetPort: 8444, appProtocol: http}", GIVEN),
    ("flaky", "flaky.pay.example", "{port: 80, targetPort: 8080, appProtocol: http}", ""),
];
const GIVEN: &str =
    "hostname: api.pay.example, caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]";

fn documents(authority: &str) -> Result<String> {
    let mut text = format!(
        "apiVersion: v1\nkind: Namespace\n\
         metadata: {{name: lab, annotations: {{leno.dev/egress: deny}}}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: client, namespace: lab}}\n\
         spec: {{command: ['@BIN@/leno-peer', idle]}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: plain, namespace: lab, labels: {{leno.dev/inject: disabled}}}}\n\
         spec: {{command: ['@BIN@/leno-peer', idle]}}\n---\n\
         apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ca, namespace: lab}}\n\
         data: {{ca.crt: {}}}\n---\n\
         apiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: flaky, namespace: lab}}\n\
         spec:\n  targetRefs: [{{group: '', kind: Service, name: flaky}}]\n  \
         retries: {{attempts: 1, on: [503]}}\n  timeouts: {{request: 2s}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: front, namespace: lab}}\n\
         spec: {{ports: [{{port: 443, appProtocol: tcp}}]}}\n---\n\
         apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {{name: front, namespace: lab}}\n\
         spec:\n  parentRefs: [{{group: '', kind: Service, name: front}}]\n  \
         rules: [{{backendRefs: [{{name: pay, port: 443}}]}}]\n",
        serde_json::to_string(authority)?
    );
    for (name, host, ports, validation) in SERVICES {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: lab}}\n\
             spec: {{type: ExternalName, externalName: {host}, ports: [{ports}]}}\n"
        )?;
        if !validation.is_empty() {
            write!(
                text,
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy\n\
                 metadata: {{name: {name}, namespace: lab}}\nspec:\n  \
                 targetRefs: [{{group: '', kind: Service, name: {name}}}]\n  \
                 validation: {{{validation}}}\n"
            )?;
        }
    }
    Ok(text)
}

/// Makes an authority, a certificate for [`HOST`] and a server's configuration.
pub(super) fn prepare(directory: &Path) -> Result<String> {
    let openssl = |words: &[&str]| {
        let mut command = Command::new(binaries::require("openssl", "openssl")?);
        command.current_dir(directory).args(["req", "-x509", "-nodes", "-days", "1"]);
        command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]).args(words);
        command::text(&mut command, MAKE_LIMIT)
    };
    openssl(&["-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt"])?;
    let name = format!("subjectAltName=DNS:{HOST}");
    let leaf = ["-CA", "ca.crt", "-CAkey", "ca.key", "-keyout", "leaf.key", "-out", "leaf.crt"];
    let more = ["-subj", "/CN=leaf", "-addext", "basicConstraints=critical,CA:FALSE", "-addext"];
    openssl(&[&leaf[..], &more, &[&name]].concat())?;
    let at = directory.display();
    let server = |address: &str, said: &str| {
        format!(
            "  server {{\n    listen {address}:443 ssl http2;\n    ssl_certificate {at}/leaf.crt;\n    \
             ssl_certificate_key {at}/leaf.key;\n    default_type text/plain;\n    location / {{ return \
             200 \"{said} $ssl_server_name $host $server_protocol\\n\"; }}\n  }}\n"
        )
    };
    let nginx = format!(
        "daemon off; master_process off; user root; pid {at}/nginx.pid;\nerror_log stderr error;\n\
         events {{ }}\nhttp {{\n  access_log off;\n  client_body_temp_path {at}/b;\n  \
         proxy_temp_path {at}/p;\n  fastcgi_temp_path {at}/f;\n  uwsgi_temp_path {at}/u;\n  \
         scgi_temp_path {at}/s;\n{}{}}}\n",
        server(ADDRESS, "first"),
        server(Outside::SECOND, "second"),
    );
    fs::write(directory.join("outside.conf"), nginx)?;
    Ok(fs::read_to_string(directory.join("ca.crt"))?)
}

/// The last line of the body; for an error, the status and the cause.
fn asks(lab: &Lab, who: &str, url: &str, more: &[&str]) -> Result<String> {
    let curl = ["curl", "-s", "-m", "15", "-w", "\n%{http_code} %header{leno-error}"];
    let said = lab.exec(who, &[&curl[..], more, &[url]].concat())?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let (body, status) = said.rsplit_once('\n').unwrap_or(("", &said));
    match status.trim() {
        "200" => Ok(body.trim().to_owned()),
        other => Ok(other.to_owned()),
    }
}

/// Waits until a request gets this response.
fn comes(lab: &Lab, url: &str, expected: &str) -> Result<()> {
    let mut last = String::new();
    let came = wait::until(expected, LIMIT, || {
        last = asks(lab, "client", url, &[])?;
        Ok((last == expected).then_some(()))
    });
    if came.is_err() {
        bail!("{url}: {last:?} in place of {expected:?}");
    }
    Ok(())
}

fn an_external_name_is_a_service_over_tls(capture: Capture) -> Result<()> {
    let files = tempfile::tempdir()?;
    let resolver = Resolver::start()?;
    let at = |address: &str| -> Result<DnsAnswer> {
        Ok(DnsAnswer::Addresses(vec![address.parse()?], 1))
    };
    resolver.set(HOST, at(ADDRESS)?);
    resolver.set("flaky.pay.example", at(ADDRESS)?);
    resolver.set("inward.pay.example", at("127.0.0.1")?);
    let authority = prepare(files.path())?;
    let options = LabOptions { resolver: Some(resolver.address()), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &documents(&authority)?, |_| Ok(()))?;
    let mut outside = Outside::beside(&lab)?;
    let configuration = files.path().join("outside.conf").display().to_string();
    outside.start(&["nginx", "-e", "stderr", "-c", &configuration])?;
    outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:8444"])?;
    let faulty = ["leno-peer", "faulty", "--listen", "0.0.0.0:8080", "--tell", "127.0.0.1:8081"];
    outside.start(&[&faulty[..], &["--acts", "503,good"]].concat())?;
    let _inside = lab.spawn("client", &["leno-peer", "http", "--listen", "127.0.0.1:8444"])?;
    lab.explain(over_tls(&lab, files.path()))?;
    lab.explain(mistakes_are_named(&lab))?;
    lab.explain(names_are_answered(&lab))?;
    // The retries of a policy apply: each request is sent twice, and only the second attempt succeeds.
    for _ in 0..3 {
        let said = asks(&lab, "client", "http://flaky/", &[])?;
        ensure!(said == "ok", "not tried again: {said}");
    }
    // A new address is used once the TTL of the old answer has passed. The old address is kept as long as no
    // resolver answers.
    resolver.set(HOST, at(Outside::SECOND)?);
    lab.explain(comes(&lab, "http://pay/", &format!("second {HOST} pay HTTP/1.1")))?;
    resolver.set(HOST, DnsAnswer::Failure);
    lab.explain(wait::until("a name to be stale", LIMIT, || {
        let metrics = lab.metrics("client")?;
        Ok(metrics.contains("\nleno_names_stale 1\n").then_some(()))
    }))?;
    let said = asks(&lab, "client", "http://pay/", &[])?;
    ensure!(said == format!("second {HOST} pay HTTP/1.1"), "without a resolver: {said}");
    drop(outside);
    lab.end()?;
    let remains = lab.remains()?;
    ensure!(remains.is_empty(), "left behind: {}", remains.join(", "));
    Ok(())
}

/// The application sends plaintext, and the server receives TLS for the right name.
fn over_tls(lab: &Lab, files: &Path) -> Result<()> {
    comes(lab, "http://pay/", &format!("first {HOST} pay HTTP/1.1"))?;
    // The external name leads to the same service.
    comes(lab, &format!("http://{HOST}/"), &format!("first {HOST} {HOST} HTTP/1.1"))?;
    let said = asks(lab, "client", "http://pay/", &["--http2-prior-knowledge"])?;
    ensure!(said == format!("first {HOST} pay HTTP/2.0"), "over HTTP/2: {said}");
    // TLS that the application itself originates is passed through.
    let authority = files.join("ca.crt").display().to_string();
    let said = asks(lab, "client", &format!("https://{HOST}/"), &["--cacert", &authority])?;
    ensure!(said == format!("first {HOST} {HOST} HTTP/2.0"), "its own TLS: {said}");
    // TLS that a TCPRoute sends there is passed through as well. For plaintext, the proxy originates TLS.
    let (own, to) = (format!("https://{HOST}/"), format!("{HOST}:443:front:443"));
    let own_tls = ["--cacert", &authority, "--connect-to", &to];
    let said = asks(lab, "client", &own, &own_tls)?;
    ensure!(said == format!("first {HOST} {HOST} HTTP/2.0"), "its own TLS, by a TCPRoute: {said}");
    let said = asks(lab, "client", "http://front:443/", &[])?;
    ensure!(said == format!("first {HOST} front HTTP/1.1"), "in clear, by a TCPRoute: {said}");
    let metrics = lab.metrics("client")?;
    let name = "leno_external_tls_handshakes_total ";
    let mut counts = metrics.lines().filter_map(|line| line.strip_prefix(name));
    ensure!(counts.any(|count| count != "0"), "{metrics}");
    let edge = metrics
        .lines()
        .any(|line| line.starts_with("leno_requests_total{") && line.contains("service=\"pay\""));
    ensure!(edge, "no series of the service: {metrics}");
    Ok(())
}

fn mistakes_are_named(lab: &Lab) -> Result<()> {
    for (service, cause, remedy) in [
        ("strange", "external-unknown-authority", "caCertificateRefs"),
        ("wrong", "external-wrong-name", "subjectAltNames"),
        ("unproven", "external-authorities-missing", "create the ConfigMap"),
        ("nowhere", "external-unresolved", "externalName"),
        ("plainly", "external-tls-failed", "speaks TLS"),
        // A name may resolve to the workload's own address. That does not make the workload the intended server.
        ("inward", "external-tls-failed", "speaks TLS"),
    ] {
        let mut said = String::new();
        // The server outside may have started to listen only now, so this is repeated.
        let named = wait::until(cause, LIMIT, || {
            said = asks(lab, "client", &format!("http://{service}/"), &[])?;
            let expected = format!("503 {cause}; remedy=");
            let is_open = said.starts_with("200");
            ensure!(!is_open, "{service} was called in clear");
            Ok((said.starts_with(&expected) && said.contains(remedy)).then_some(()))
        });
        named.with_context(|| format!("{service}: {said}"))?;
    }
    let metrics = lab.metrics("client")?;
    for cause in ["external-unknown-authority", "external-wrong-name", "external-unresolved"] {
        ensure!(metrics.contains(&format!("cause=\"{cause}\"")), "{cause}: {metrics}");
    }
    Ok(())
}

/// The addresses that applications get for names.
fn names_are_answered(lab: &Lab) -> Result<()> {
    let resolved = |who: &str, name: &str| -> Result<String> {
        let said = lab.text(who, &["getent", "ahostsv4", name])?;
        Ok(said.split_whitespace().next().unwrap_or_default().to_owned())
    };
    let (service, host) = (resolved("client", "pay")?, resolved("client", HOST)?);
    ensure!(service.starts_with("10.96."), "the service is at {service}");
    ensure!(host.starts_with("10.96."), "the name outside is at {host}");
    // A workload without a proxy gets the real address, because no proxy would handle a virtual one.
    for name in ["pay", HOST] {
        let address = resolved("plain", name)?;
        ensure!(address == ADDRESS, "{name} is at {address} to a workload without a proxy");
    }
    let missing = lab.exec("client", &["getent", "ahostsv4", "other.pay.example"])?;
    ensure!(!missing.status.success(), "a name that does not exist was found");
    Ok(())
}
