//! Implements the command `leno explain`.

pub(super) mod text;

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use leno_analysis::{ExplainQuestion, Explanation, MeshModel};
use leno_observe::ejected::EjectedEndpoint;
use leno_operate::{ClusterObjects, ClusterTarget, Ejections, ObjectExtent, PodName};

use super::{AnyMesh, ChosenMesh, OutputForm, PlannedRanges, block_on, print, print_json};

/// Explains what happens to a request: service, route, rule, filters, backends and endpoints, and why other routes do
/// not match
///
/// Evaluates the objects of a running mesh, on this machine or in a cluster, or files as `leno up` would run them.
/// Sends no request. The decision is made by the same code as in the proxies.
#[derive(Debug, Args)]
#[command(
    mut_args(PlannedRanges::with_files),
    after_help = "Examples:\n  \
                  sudo leno explain -n shop web -- GET http://cart/items -H 'x: y'\n  \
                  leno explain --context prod -n shop deploy/web -- GET http://cart/items\n  \
                  leno explain -f shop.yaml deploy/web -- POST http://cart.shop/items?page=2\n  \
                  leno explain -f shop.yaml -n shop web -- grpc://stock:9000/shop.Stock/Take\n  \
                  leno explain -f shop.yaml -n shop web -o json -- http://cart/"
)]
pub(crate) struct Explain {
    #[command(flatten)]
    mesh: AnyMesh,

    /// YAML file to read instead of the running mesh. Can be repeated
    #[arg(short, long = "file", value_name = "FILE",
          conflicts_with_all = ["name", "cluster", "kubeconfig", "context"])]
    files: Vec<PathBuf>,

    #[command(flatten)]
    ranges: PlannedRanges,

    /// Namespace of the client. Not needed if its name is in only one namespace
    #[arg(short, long)]
    namespace: Option<String>,

    /// The client that sends the request: a workload (web, deploy/web, shop/web), an instance (web-1, pod/web-1) or a
    /// service account (sa/web)
    client: String,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,

    /// The request: [METHOD] URL [-H 'name: value']...
    #[arg(last = true, required = true, value_name = "REQUEST")]
    request: Vec<String>,
}

pub(crate) fn run(explain: &Explain) -> Result<bool> {
    let question =
        ExplainQuestion::parse(explain.namespace.as_deref(), &explain.client, &explain.request)?;
    let explanation = match explain.files.as_slice() {
        [] => match explain.mesh.choose()? {
            ChosenMesh::Machine(name) => of_machine(&name, &question)?,
            ChosenMesh::Cluster(target) => of_cluster(explain, &target, &question)?,
        },
        files => {
            let ranges = explain.ranges.asked().unwrap_or_default();
            leno_local::analysis::of_files(files, ranges)?.explain(&question)?
        }
    };
    if explain.output == OutputForm::Json {
        print_json(&explanation)?;
    } else {
        print(&text::text(&explanation))?;
    }
    Ok(true)
}

/// Explains from the state of the control plane on this machine, and from the endpoints that the client's proxies
/// currently eject.
fn of_machine(name: &str, question: &ExplainQuestion) -> Result<Explanation> {
    let mut explanation = leno_local::analysis::running(name)?.explain(question)?;
    let (namespace, workload) = (&explanation.client.namespace, &explanation.client.workload);
    let ejected =
        block_on(async { Ok(leno_local::analysis::ejected(name, namespace, workload).await?) })?;
    eject(&mut explanation, &ejected);
    Ok(explanation)
}

fn eject(explanation: &mut Explanation, ejected: &[EjectedEndpoint]) {
    for one in ejected {
        explanation.eject((&one.server_namespace, &one.service), &one.server, &one.reason);
    }
}

/// Explains from the objects that the cluster's control plane follows, and from the endpoints that the client's
/// proxies currently eject.
fn of_cluster(
    explain: &Explain,
    target: &ClusterTarget,
    question: &ExplainQuestion,
) -> Result<Explanation> {
    let namespace = explain.namespace.as_deref();
    let (mesh, ignored, gaps) = cluster(namespace, target, &explain.mesh.system_namespace)?;
    let mut explanation = mesh.explain(question)?;
    let pods = mesh
        .clients(question)?
        .into_iter()
        .map(|name| PodName { namespace: name.namespace.to_string(), name: name.name.to_string() });
    let pods: Vec<PodName> = pods.collect();
    let Ejections { ejected, gaps: silent } = block_on(async {
        let client = leno_operate::connect(target).await?;
        Ok(leno_operate::ejections(&client, &pods).await)
    })?;
    eject(&mut explanation, &ejected);
    explanation.ignored.extend(ignored);
    explanation.notes.extend(gaps.into_iter().chain(silent));
    Ok(explanation)
}

/// The mesh of a cluster, the objects that cannot be read, and descriptions of what is unknown.
pub(super) fn cluster(
    namespace: Option<&str>,
    target: &ClusterTarget,
    system_namespace: &str,
) -> Result<(MeshModel, Vec<String>, Vec<String>)> {
    let extent = match namespace {
        Some(namespace) => ObjectExtent::AtLeast(namespace.to_owned()),
        None => ObjectExtent::Cluster,
    };
    let mut known = block_on(async {
        let client = leno_operate::connect(target).await?;
        let known = ClusterObjects::read(&client, &extent, system_namespace).await?;
        namespace.iter().try_for_each(|one| known.has_namespace(one))?;
        Ok(known)
    })?;
    let ignored = known.replace_unread();
    let mesh = MeshModel::told(known.settings, known.read.objects).owned(known.read.owners);
    Ok((mesh, ignored, known.gaps))
}
