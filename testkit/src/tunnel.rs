//! mTLS before an inbound side, as another proxy's would be: what is sent here comes to it as it is,
//! behind ALPN `leno-h2`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tempfile::TempDir;

use crate::binaries;
use crate::command::{self, Listening};
use crate::proxy::{Proxy, free_address};

/// How long openssl may take.
const OPENSSL_LIMIT: Duration = Duration::from_secs(20);

/// An inbound side with an identity, and HAProxy, which carries connections inside mTLS to it.
/// Dropping it ends both.
#[derive(Debug)]
pub struct Tunnel {
    carrier: Listening,
    proxy: Proxy,
    _directory: TempDir,
}

impl Tunnel {
    /// Starts both before the application at this address, with one identity for both. The proxy is
    /// permissive, so that clients without one may ask it as well.
    pub fn start(application: SocketAddr) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (key, certificate) = (directory.path().join("key"), directory.path().join("crt"));
        let mut make = Command::new(binaries::require("openssl", "openssl")?);
        make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        make.args(["-nodes", "-days", "1", "-subj", "/CN=web"]);
        make.args(["-addext", "subjectAltName=URI:spiffe://cluster.local/ns/t/sa/web"]);
        // A root that is its own leaf.
        make.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        make.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
        command::text(&mut make, OPENSSL_LIMIT)?;
        let both = [fs::read(&certificate)?, fs::read(&key)?].concat();
        fs::write(directory.path().join("both.pem"), both)?;
        let (key, certificate) = (key.display(), certificate.display());
        let proxy = Proxy::start_with(|address, admin| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\n\
                 metadata: {{name: web, namespace: t}}\n\
                 spec:\n  workers: 1\n  admin: \"{admin}\"\n  mtls: permissive\n  \
                 inbound: {{listen: \"{address}\", application: \"{application}\"}}\n  \
                 identity: {{certificate: {certificate}, key: {key}, roots: {certificate}}}\n"
            )
        })?;
        let carrier = carrier(proxy.address(), directory.path())?;
        Ok(Tunnel { carrier, proxy, _directory: directory })
    }

    /// Where connections are accepted that go on inside TLS.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.carrier.address()
    }

    /// The proxy behind.
    #[must_use]
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }
}

fn carrier(proxy: SocketAddr, directory: &Path) -> Result<Listening> {
    let address = free_address()?;
    let config = directory.join("haproxy.cfg");
    fs::write(
        &config,
        format!(
            "defaults\n  mode tcp\n  timeout connect 20s\n  timeout client 60s\n  \
             timeout server 60s\nlisten tls\n  bind {address}\n  \
             server proxy {proxy} ssl verify none alpn leno-h2 crt {}\n",
            directory.join("both.pem").display()
        ),
    )?;
    let mut command = Command::new(binaries::require("haproxy", "haproxy")?);
    Listening::start(command.arg("-db").arg("-f").arg(config), address)
}
