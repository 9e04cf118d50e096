//! Compares `leno explain` with the proxies for every pair of a client and a name in a generated mesh.
//!
//! There is a server for every combination of a protocol with what accepts its connections: a proxy that admits
//! plaintext, one that does not, or no proxy. A seed determines the targets of aliases and routes, and the
//! weights.

mod ask;
mod generated;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::resolver::{DnsAnswer, Resolver};
use leno_testkit::{binaries, command, netns};
use serde_json::Value;

use self::ask::{CallOutcome, ask, cause};
use self::generated::{
    CLIENTS, CUT_HOST, Destination, Generated, HOST, OUTSIDE, OUTSIDE_GRPC, OUTSIDE_TCP, Scheme,
};
use super::calls::peer;
use super::{Case, alone};
use crate::outside::{ADDRESS, Machine, Outside};

pub(super) fn cases() -> Vec<Case> {
    vec![alone!(explain_agrees_with_the_proxy_about_every_pair)]
}

/// The most requests that are sent until each backend of a route has answered. The rarest backend, with a share of
/// one in seven, is missed by this many once in 10^13 runs.
const TRIES: usize = 200;
/// How long `leno explain` may take, and how long creating the certificate may take.
const LIMIT: Duration = Duration::from_secs(90);

/// Each capture backend has its own seed, because a mesh takes more than a minute. `LENO_SEED` sets another seed,
/// as every nightly run does. Clients and destinations outside the mesh are addressed as the backend captures
/// them.
fn explain_agrees_with_the_proxy_about_every_pair(capture: Capture) -> Result<()> {
    let seed = match (std::env::var("LENO_SEED"), capture) {
        (Ok(seed), _) => seed.parse().context("LENO_SEED")?,
        (Err(_), Capture::Ebpf) => 1,
        (Err(_), Capture::Nftables) => 2,
        (Err(_), Capture::Iptables) => 3,
    };
    pairs(capture, seed).with_context(|| format!("LENO_SEED={seed}"))
}

fn pairs(capture: Capture, seed: u64) -> Result<()> {
    peer()?;
    let directory = tempfile::tempdir()?;
    prepare(directory.path())?;
    let machine = Machine::new()?;
    let _outside = outside(&machine, directory.path())?;
    let resolver = netns::inside(&netns::path(machine.name()), Resolver::start)?;
    for host in [HOST, CUT_HOST] {
        resolver.set(host, DnsAnswer::Addresses(vec![ADDRESS.parse()?], 60));
    }
    let generated = Generated::new(seed)?;
    let options = LabOptions {
        machine: Some(machine.name().to_owned()),
        uplink: true,
        resolver: Some(resolver.address()),
        ..LabOptions::new(capture)
    };
    let lab = Lab::start(&options, &generated.yaml, prepare)?;
    let mut differences = Vec::new();
    for (namespace, client, _) in CLIENTS {
        for to in &generated.destinations {
            if let Err(error) = agrees(&lab, (namespace, client), to) {
                let url = url(to);
                differences.push(format!("{namespace}/{client} -> {url}: {error:#}"));
            }
        }
    }
    let all = differences.join("\n");
    lab.explain(if differences.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("{all}")) })
}

/// Writes the HTTPS server and creates its certificate.
fn prepare(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    fs::write(directory.join("server.py"), include_str!("pairs/server.py"))?;
    let (key, leaf) = (directory.join("key.pem"), directory.join("leaf.pem"));
    let mut make = Command::new(binaries::require("openssl", "openssl")?);
    make.args(["req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=pair"]);
    make.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    make.arg("-keyout").arg(&key).arg("-out").arg(&leaf);
    command::text(&mut make, LIMIT)?;
    let both = fs::read_to_string(&key)? + &fs::read_to_string(&leaf)?;
    Ok(fs::write(directory.join("pair.pem"), both)?)
}

/// The network outside the mesh, with a server for each protocol.
fn outside(machine: &Machine, directory: &Path) -> Result<Outside> {
    let mut outside = Outside::of(machine)?;
    outside.start(&["leno-peer", "http", "--listen", "0.0.0.0:80", "--name", OUTSIDE])?;
    let tcp = format!("0.0.0.0:{OUTSIDE_TCP}");
    outside.start(&["leno-peer", "banner", "--listen", &tcp, "--greeting", OUTSIDE])?;
    let script = directory.join("server.py").display().to_string();
    outside.start(&["python3", &script, "443", OUTSIDE])?;
    outside.start(&[&peer()?, "serve", &OUTSIDE_GRPC.to_string(), OUTSIDE])?;
    Ok(outside)
}

fn url(to: &Destination) -> String {
    let path = if to.scheme == Scheme::Grpc { "t.Peer/Echo" } else { "" };
    format!("{}://{}:{}/{path}", to.scheme.as_str(), to.host(), to.port)
}

/// Compares the answer of `leno explain` with the outcome of the request.
fn agrees(lab: &Lab, (namespace, client): (&str, &str), to: &Destination) -> Result<()> {
    let mut explain = lab.leno("explain");
    explain.args(["-n", namespace, "-o", "json", client, "--", &url(to)]);
    let said: Value = serde_json::from_str(&command::text(&mut explain, LIMIT)?)?;
    let expected = expected(&said, to.scheme)?;
    let mut seen = Vec::new();
    let tries = if to.split && expected.len() > 1 { TRIES } else { 1 };
    for _ in 0..tries {
        let got = ask(lab, &format!("{namespace}/{client}-0"), to)?;
        ensure!(
            expected.iter().any(|one| one.allows(&got)),
            "explain says {}, the proxy {got:?}",
            said["outcome"]
        );
        if !seen.contains(&got) {
            seen.push(got);
        }
        if seen.len() == expected.len() {
            break;
        }
    }
    ensure!(seen.len() == expected.len(), "explain says {expected:?}, seen is {seen:?}");
    Ok(())
}

/// The outcomes that the explanation permits.
#[derive(Debug)]
enum Expected {
    /// Exactly this outcome.
    Is(CallOutcome),
    /// An answer of any server.
    AnyServer,
}

impl Expected {
    fn allows(&self, got: &CallOutcome) -> bool {
        match self {
            Self::Is(this) => this == got,
            Self::AnyServer => matches!(got, CallOutcome::Served(_)),
        }
    }
}

fn expected(said: &Value, scheme: Scheme) -> Result<Vec<Expected>> {
    let outcome = &said["outcome"];
    Ok(match outcome["kind"].as_str().context("no kind")? {
        "outside" => vec![Expected::Is(CallOutcome::Served(OUTSIDE.to_owned()))],
        "unmeshed" => vec![Expected::AnyServer],
        "forwarded" | "relayed" => {
            let backends = said["backends"].as_array().context("no backends")?;
            let taken = backends.iter().filter(|one| one["share"].as_f64() > Some(0.0));
            taken.map(|one| Expected::Is(CallOutcome::Served(server_of(one)))).collect()
        }
        _ => vec![Expected::Is(match (outcome["status"].as_u64(), scheme) {
            (None, _) | (_, Scheme::Https | Scheme::Tcp) => CallOutcome::Nothing,
            (Some(status), scheme) => {
                let status = match scheme {
                    Scheme::Grpc => grpc_status(status).to_owned(),
                    _ => status.to_string(),
                };
                CallOutcome::Answered(
                    status,
                    cause(outcome["leno_error"].as_str().unwrap_or_default()),
                )
            }
        })],
    })
}

/// The gRPC status that corresponds to an HTTP status (from gRPC's document "HTTP to gRPC Status Code Mapping").
fn grpc_status(of_http: u64) -> &'static str {
    match of_http {
        403 => "PermissionDenied",
        404 => "Unimplemented",
        429 | 502..=504 => "Unavailable",
        _ => "Unknown",
    }
}

/// The name with which the server of a backend answers: the name of the instance without its number.
fn server_of(backend: &Value) -> String {
    let workload = backend["endpoints"][0]["workload"].as_str();
    let instance = workload.and_then(|name| name.strip_prefix("lab/"));
    instance.and_then(|name| name.strip_suffix("-0")).unwrap_or(OUTSIDE).to_owned()
}
