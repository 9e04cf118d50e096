//! Implements the command `leno diagnostics`.

mod capture;
mod text;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use leno_local::admin::Admin;
use leno_local::layout::Layout;
use leno_local::netns::Netns;
use leno_local::status::{InstanceStatus, MeshStatus};
use leno_observe::admin::AdminReply;
use leno_observe::ejected::EjectedEndpoint;
use leno_operate::{ClusterTarget, Diagnosis, ProxyPod};
use serde::Serialize;
use serde_json::Value;

use super::{AnyMesh, ChosenMesh, OutputForm, block_on, print, print_json};

/// Shows the state of one proxy, or how a pod is captured
#[derive(Debug, Args)]
pub(crate) struct Diagnostics {
    #[command(subcommand)]
    of: DiagnosticsCommand,
}

#[derive(Debug, Subcommand)]
enum DiagnosticsCommand {
    Proxy(Proxy),
    Capture(capture::Capture),
}

/// Shows the state of one proxy: identity, policy, services and endpoints, and how old it is
///
/// Queries the proxy itself; in a cluster through a port-forward. Exits 1 if the proxy does not answer or is not
/// ready.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  sudo leno diagnostics proxy web-0\n  \
                  leno diagnostics proxy -n shop web-7d9c-x2x4k\n  \
                  leno diagnostics proxy --context prod -n shop deploy/web -o json")]
pub(crate) struct Proxy {
    /// The pod, or its owner, such as deploy/web, for one of its pods; for `leno up`, an instance or a workload
    #[arg(value_name = "POD")]
    pod: String,

    /// Namespace of the pod [default: the kubeconfig's; for `leno up`, any namespace that has the name]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    mesh: AnyMesh,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

/// What is known about a proxy.
#[derive(Debug, Serialize)]
struct Report {
    /// The pod's status in Kubernetes; `None` for `leno up`.
    pod: Option<ProxyPod>,
    /// Why the proxy does not serve; `None` if it serves.
    not_ready: Option<String>,
    /// What it reports about itself.
    config: Option<Value>,
    /// Endpoints that it currently ejects; `None` if they are unknown.
    ejected: Option<Vec<EjectedEndpoint>>,
    /// Why the ejected endpoints are unknown; `None` if they are known.
    unknown: Option<String>,
}

pub(crate) fn run(diagnostics: &Diagnostics) -> Result<bool> {
    let proxy = match &diagnostics.of {
        DiagnosticsCommand::Proxy(proxy) => proxy,
        DiagnosticsCommand::Capture(capture) => return capture::run(capture),
    };
    let report = match proxy.mesh.choose()? {
        ChosenMesh::Machine(name) => of_machine(proxy, &name)?,
        ChosenMesh::Cluster(target) => of_cluster(proxy, &target)?,
    };
    if proxy.output == OutputForm::Json {
        print_json(&report)?;
    } else {
        print(&text::text(&report))?;
    }
    Ok(report.not_ready.is_none() && report.unknown.is_none())
}

/// The instance of a mesh of `leno up` that the user names. It must have a proxy.
fn meshed_instance<'s>(
    status: &'s MeshStatus,
    namespace: Option<&str>,
    pod: &str,
) -> Result<&'s InstanceStatus> {
    let wanted = pod.strip_prefix("pod/").unwrap_or(pod);
    let instance = status.find(namespace, wanted)?;
    if !instance.meshed {
        bail!(
            "{}/{} has no proxy, so there is no state to show: set leno.dev/inject: enabled for \
             it",
            instance.namespace,
            instance.name
        );
    }
    Ok(instance)
}

fn of_machine(proxy: &Proxy, mesh: &str) -> Result<Report> {
    let status = MeshStatus::read(&Layout::new(mesh)?)?;
    let instance = meshed_instance(&status, proxy.namespace.as_deref(), &proxy.pod)?;
    block_on(async {
        let netns = Netns::open(&instance.surroundings.netns)?;
        let admin = Admin::within(&netns);
        let (ready, config) = (admin.get("/ready").await, admin.get("/config").await);
        let metrics = admin.get("/metrics").await;
        let report = report(
            None,
            ready.map_err(|error| error.chain()),
            config.map_err(|error| error.chain()),
        );
        Ok(Report { ejected: metrics.ok().as_ref().and_then(ejected), ..report })
    })
}

fn of_cluster(proxy: &Proxy, target: &ClusterTarget) -> Result<Report> {
    let Diagnosis { seen, ready, config, metrics } = block_on(async {
        let client = leno_operate::connect(target).await?;
        let namespace = proxy.namespace.as_deref();
        Ok(leno_operate::diagnose(&client, namespace, &proxy.pod).await?)
    })?;
    let said = |error: leno_operate::Error| error.said();
    let report = report(Some(seen), ready.map_err(said), config.map_err(said));
    Ok(Report { ejected: metrics.ok().as_ref().and_then(ejected), ..report })
}

/// The endpoints that a proxy ejects, from an answer to `/metrics`.
fn ejected(reply: &AdminReply) -> Option<Vec<EjectedEndpoint>> {
    (reply.status == 200).then(|| EjectedEndpoint::of(&leno_observe::metrics::parse(&reply.body)))
}

fn report(
    pod: Option<ProxyPod>,
    ready: Result<AdminReply, String>,
    config: Result<AdminReply, String>,
) -> Report {
    let not_ready = match ready {
        Ok(reply) if reply.status == 200 => None,
        Ok(reply) => Some(reply.body.trim().to_owned()),
        Err(reason) => Some(reason),
    };
    let (config, unknown) = match config.and_then(|reply| read(&reply)) {
        Ok(config) => (Some(config), None),
        Err(reason) => (None, Some(reason)),
    };
    Report { pod, not_ready, config, ejected: None, unknown }
}

/// The JSON in an answer to `/config`.
fn read(reply: &AdminReply) -> Result<Value, String> {
    if reply.status != 200 {
        return Err(format!("HTTP {}: {}", reply.status, reply.body.trim()));
    }
    serde_json::from_str(&reply.body).map_err(|error| format!("the response is not JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_says_nothing_is_no_answer() {
        let reply = |status, body: &str| Ok(AdminReply { status, body: body.to_owned() });
        let whole = report(None, reply(200, "ready\n"), reply(200, "{\"busy\": 1}"));
        assert_eq!((whole.not_ready, whole.unknown), (None, None));
        assert_eq!(whole.config.unwrap()["busy"], 1);
        for (config, reason) in [
            (reply(404, "no such page\n"), "HTTP 404: no such page"),
            (reply(200, "{"), "the response is not JSON: "),
            (Err("not reached".to_owned()), "not reached"),
        ] {
            let half = report(None, reply(200, "ready\n"), config);
            assert!(half.unknown.unwrap().starts_with(reason), "{reason}");
            assert!(half.config.is_none() && half.not_ready.is_none());
        }
    }
}
