//! Sends mTLS to a proxy's inbound side, as another proxy would. Bytes that are sent to the tunnel reach the
//! inbound side unchanged, in TLS with ALPN `leno-h2`, with or without a certificate of the mesh.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use crate::binaries;
use crate::command::{self, Listening};
use crate::proxy::{Proxy, free_address};

/// How long openssl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(20);

/// The source address of the connections of [`Tunnel::stranger`].
pub const STRANGER: &str = "127.0.0.66";

/// A proxy with an identity and one application behind both of its sides, and HAProxy, which forwards connections
/// over mTLS to the proxy's inbound side. Dropping the value ends both.
#[derive(Debug)]
pub struct Tunnel {
    carrier: Listening,
    outbound: SocketAddr,
    proxy: Proxy,
    directory: TempDir,
}

impl Tunnel {
    /// Starts both, for the application at this address. Both have the same identity. The proxy is permissive, so
    /// clients without an identity may send requests as well.
    pub fn start(application: SocketAddr) -> Result<Self> {
        Self::start_given(application, "permissive", &[])
    }

    /// Like [`Self::start`], with this mTLS mode and these arguments for the proxy.
    pub fn start_given(application: SocketAddr, mtls: &str, arguments: &[&str]) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (key, certificate) = (directory.path().join("key"), directory.path().join("crt"));
        let mut make = Command::new(binaries::require("openssl", "openssl")?);
        make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        make.args(["-nodes", "-days", "1", "-subj", "/CN=web"]);
        make.args(["-addext", "subjectAltName=URI:spiffe://cluster.local/ns/t/sa/web"]);
        // A single certificate is both the root and the leaf.
        make.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command::text(&mut make, OPENSSL_LIMIT)?;
        let both = [fs::read(&certificate)?, fs::read(&key)?].concat();
        fs::write(directory.path().join("both.pem"), both)?;
        let (key, certificate) = (key.display(), certificate.display());
        let outbound = free_address()?;
        let (ip, port) = (application.ip(), application.port());
        let proxy = Proxy::start_given(arguments, |address, admin| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\n\
                 metadata: {{name: web, namespace: t}}\n\
                 spec:\n  workers: 1\n  admin: \"{admin}\"\n  mtls: {mtls}\n  \
                 inbound: {{listen: \"{address}\", application: \"{application}\"}}\n  \
                 outbound: {{listen: \"{outbound}\", service: \"t/web:80\"}}\n  \
                 identity: {{certificate: {certificate}, key: {key}, roots: {certificate}}}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
                 spec:\n  clusterIP: 10.96.0.10\n  \
                 ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: http}}]\n---\n\
                 apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{name: web-1, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
                 addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: http}}]\n\
                 endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
            )
        })?;
        let pem = directory.path().join("both.pem");
        let carrier =
            carrier(proxy.address(), &format!("crt {}", pem.display()), &directory, "peer")?;
        Ok(Tunnel { carrier, outbound, proxy, directory })
    }

    /// Starts a listener that forwards to the inbound side over TLS without a client certificate,
    /// from [`STRANGER`].
    pub fn stranger(&self) -> Result<Listening> {
        carrier(self.proxy.address(), &format!("source {STRANGER}"), &self.directory, "stranger")
    }

    /// The proxy's outbound side, which forwards to the same application.
    #[must_use]
    pub fn outbound(&self) -> SocketAddr {
        self.outbound
    }

    /// The address from which connections are forwarded over mTLS.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.carrier.address()
    }

    /// The proxy.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }
}

fn carrier(proxy: SocketAddr, with: &str, directory: &TempDir, name: &str) -> Result<Listening> {
    let address = free_address()?;
    let config = directory.path().join(format!("{name}.cfg"));
    fs::write(
        &config,
        format!(
            "defaults\n  mode tcp\n  timeout connect 20s\n  timeout client 60s\n  \
             timeout server 60s\nlisten tls\n  bind {address}\n  \
             server proxy {proxy} ssl verify none alpn leno-h2 {with}\n"
        ),
    )?;
    let mut command = Command::new(binaries::require("haproxy", "haproxy")?);
    Listening::start(command.arg("-db").arg("-f").arg(config), address)
}
