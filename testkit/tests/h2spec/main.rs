//! Runs h2spec, the conformance suite for HTTP/2 and HPACK, in strict mode against servers and through proxies.
//!
//! `scripts/tools.sh` builds it from its Go module. Without Go or access to the module the tests
//! are skipped, which fails under `LENO_REQUIRE=tools`.
//!
//! ```text
//!   h2spec ── cases ──► leno-proxy ──► nginx (h2c)
//!   h2spec ── cases ──► TLS ──► leno-proxy ──► nginx (h2c)
//!   h2spec ── cases ──► leno-proxy ── mTLS ──► leno-proxy ──► nginx (h2c)     (needs root)
//!      └── JUnit report ── Outcome: every case by name
//! ```

mod mesh;
mod suite;
mod tls;

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use anyhow::Result;
use leno_testkit::binaries;
use leno_testkit::command::Listening;
use leno_testkit::proxy::{Proxy, Side, free_address};
use tempfile::TempDir;

use crate::suite::{Group, Suite};

/// An nginx that responds `hello` once it has read the whole request. Many cases violate the protocol after the head,
/// and must do so before the stream has a response and is closed. The first server of nginx buffers the body, and its
/// second server responds. Dropping the value ends nginx.
struct Nginx {
    server: Listening,
    _directory: TempDir,
}

impl Nginx {
    /// Starts nginx. With `http2`, it speaks only HTTP/2 with prior knowledge.
    fn start(http2: bool) -> Result<Self> {
        let nginx = binaries::require("nginx", "nginx")?;
        let directory = tempfile::tempdir()?;
        let root = directory.path().display().to_string();
        let (address, behind) = (free_address()?, free_address()?);
        let protocol = if http2 { " http2" } else { "" };
        let config = directory.path().join("nginx.conf");
        fs::write(
            &config,
            format!(
                "daemon off; master_process off; pid {root}/pid; error_log stderr crit;\n\
                 events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  \
                 client_body_temp_path {root}/b; proxy_temp_path {root}/p;\n  \
                 fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
                 server {{ listen {address}{protocol}; location / {{\n    \
                   proxy_pass http://{behind}; proxy_request_buffering on; }} }}\n  \
                 server {{ listen {behind}; location / {{ return 200 \"hello\\n\"; }} }}\n}}\n"
            ),
        )?;
        let mut command = Command::new(nginx);
        command.arg("-c").arg(&config).arg("-p").arg(&root).args(["-e", "stderr"]);
        Ok(Nginx { server: Listening::start(&mut command, address)?, _directory: directory })
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

#[test]
fn the_suite_distinguishes_servers_with_http2_from_others() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let outcome = suite.run(Nginx::start(true)?.address(), &[Group::Hpack])?;
    // In a few cases nginx is lenient. Which cases these are depends on its version.
    assert!(outcome.failed.len() < 4 && outcome.passed.len() >= 4, "{outcome:#?}");
    let outcome = suite.run(Nginx::start(false)?.address(), &Group::ALL)?;
    assert!(outcome.passed.is_empty() && outcome.failed.len() > 140, "{outcome:#?}");
    Ok(())
}

/// Cases that the proxy may fail on a port with this `appProtocol`, each with the sentence of the RFC that permits
/// it (docs/guide/protocols.md lists them as well). h2spec tests RFC 7540.
const ALLOWED: &[(&str, &str)] = &[
    // The port accepts HTTP/1.1 as well, and responds 400 in HTTP/1.1. RFC 9113 section 3.4: "A GOAWAY frame
    // (Section 6.8) MAY be omitted in this case, since an invalid preface indicates that the peer is not using
    // HTTP/2."
    ("http", "http2/3.5: Sends invalid connection preface"),
    // Bytes that are no HTTP/2 preface reach the application, and newer versions of nginx respond 400 in HTTP/1.1.
    ("detected", "http2/3.5: Sends invalid connection preface"),
];

#[test]
fn the_proxy_passes_every_case() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let nginx = Nginx::start(true)?;
    for protocol in ["kubernetes.io/h2c", "grpc", "http"] {
        let proxy = Proxy::start(Side::Outbound(protocol), nginx.address())?;
        let mut outcome = suite.run(proxy.address(), &Group::ALL)?;
        outcome.failed.retain(|case, _| !ALLOWED.contains(&(protocol, case.as_str())));
        assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    }
    Ok(())
}

#[test]
fn the_proxy_passes_every_case_if_it_detects_the_protocol() -> Result<()> {
    let Some(suite) = Suite::install()? else { return Ok(()) };
    let nginx = Nginx::start(true)?;
    let proxy = Proxy::start(Side::Inbound, nginx.address())?;
    let mut outcome = suite.run(proxy.address(), &Group::ALL)?;
    outcome.failed.retain(|case, _| !ALLOWED.contains(&("detected", case.as_str())));
    assert!(outcome.failed.is_empty(), "{:#?}", outcome.failed);
    Ok(())
}
