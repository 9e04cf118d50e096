//! Tests how many resources a proxy holds in a mesh with many services and routes.
//!
//! ```text
//!   client (lab) ──► three of them     1,000 services with 5,000 routes, and web (shop)
//! ```

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions, MeshProcess};
use leno_testkit::wait;

use super::{Case, once};

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_proxy_holds_what_its_workload_uses)]
}

/// How long a change may take to reach a proxy.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of services in the large mesh, each with [`ROUTES`] routes: 5,000 routes in all.
const SERVICES: usize = 1000;
const ROUTES: usize = 5;
/// The number of services that the client calls.
const USED: usize = 3;
/// The most services and workloads that a proxy may hold: the called services, the server behind them, the proxy's
/// own workload, and the name server of the mesh.
const HELD: f64 = (USED + 4) as f64;
/// How much more memory a proxy may use in the large mesh, in KiB. One or two pages of the allocator are noise,
/// while 5,000 routes would take several MiB.
const MORE_KIB: u64 = 1024;

fn documents(services: usize) -> Result<String> {
    let mut text = "apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
        metadata: {name: client, namespace: lab}\nspec: {command: ['@BIN@/leno-peer', idle]}\n---\n\
        apiVersion: leno.dev/v1alpha1\nkind: Workload\n\
        metadata: {name: web, namespace: shop, labels: {app: web}}\nspec:\n  \
        command: ['@BIN@/leno-peer', http, --listen, '[::]:8080', --name, web]\n  \
        ports: [{name: http, port: 8080, appProtocol: http}]\n"
        .to_owned();
    for service in 0..services {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: s{service}, namespace: shop}}\nspec:\n  \
             selector: {{app: web}}\n  \
             ports: [{{name: http, port: 80, targetPort: 8080, appProtocol: http}}]\n"
        )?;
        for route in 0..ROUTES {
            write!(
                text,
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
                 metadata: {{name: s{service}-{route}, namespace: shop}}\nspec:\n  \
                 parentRefs: [{{group: '', kind: Service, name: s{service}}}]\n  \
                 rules: [{{matches: [{{path: {{value: /r{route}}}}}], \
                 backendRefs: [{{name: s{service}, port: 80}}]}}]\n"
            )?;
        }
    }
    Ok(text)
}

/// The amount of resources that proxies hold.
#[derive(Debug)]
struct ProxyResources {
    /// The number of resources that the client's proxy holds; the client has called some of the services.
    client: f64,
    /// The number of resources that a proxy in the services' namespace holds, whose workload has called none.
    neighbour: f64,
    /// The memory of the client's proxy, in KiB.
    memory: u64,
}

fn resources(lab: &Lab, who: &str) -> Result<f64> {
    let metrics = lab.metrics(who)?;
    let name = "leno_discovery_resources ";
    let held = metrics.lines().find_map(|line| line.strip_prefix(name));
    Ok(held.with_context(|| metrics.clone())?.parse()?)
}

fn held(capture: Capture, services: usize) -> Result<ProxyResources> {
    let lab = Lab::start(&LabOptions::new(capture), &documents(services)?, |_| Ok(()))?;
    for service in 0..USED {
        for route in 0..ROUTES {
            let url = format!("http://s{}.shop/r{route}", service * (services / USED));
            lab.explain(wait::until(&url, LIMIT, || {
                let said = lab.exec("client", &["curl", "-s", "--fail", "-m", "10", &url])?;
                Ok(said.status.success().then_some(()))
            }))?;
        }
    }
    let memory = lab.usage(MeshProcess::Proxy("client-0"))?.anonymous_kib;
    let (client, neighbour) = (resources(&lab, "client")?, resources(&lab, "web")?);
    lab.end()?;
    Ok(ProxyResources { client, neighbour, memory })
}

fn a_proxy_holds_what_its_workload_uses(capture: Capture) -> Result<()> {
    let (few, many) = (held(capture, USED)?, held(capture, SERVICES)?);
    let both = format!("with {SERVICES} services {many:?}, with {USED} {few:?}");
    println!("{both}");
    ensure!(many.client <= HELD && many.neighbour <= HELD, "{both}");
    ensure!(many.memory <= few.memory + MORE_KIB, "{both}");
    Ok(())
}
