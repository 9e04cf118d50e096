//! Implements the command `leno authz`.

mod suggest;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use leno_analysis::{CheckClient, ExplainQuestion, MeshModel, access_changes};
use leno_console::note;
use leno_local::layout::Layout;
use leno_local::status::MeshStatus;
use leno_resources::{Kind, Object};

use super::{AnyMesh, ChosenMesh, OutputForm, PlannedRanges, explain, print, print_json};

/// Lists which clients may reach a workload and by which policy, checks one request, and shows what other policies
/// would change
///
/// Evaluates the objects of a running mesh, on this machine or in a cluster, or files as `leno up` would run them.
/// Sends no request and applies nothing. The decision is made by the same code as in the proxies. Exits 0 if a
/// checked request is permitted, and 1 if it is denied.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    mut_args(PlannedRanges::with_files),
    after_help = "Examples:\n  \
                  sudo leno authz -n shop orders\n  \
                  leno authz --context prod -n shop deploy/orders\n  \
                  leno authz -n shop orders --from web -- GET http://orders/admin -H 'x-role: guest'\n  \
                  leno authz orders --from spiffe://cluster.local/ns/bank/sa/teller -- http://orders/\n  \
                  leno authz -n shop orders --certificate-age 17h\n  \
                  leno authz -n shop --with new-policy.yaml\n  \
                  sudo leno authz suggest -n shop\n  \
                  leno authz -f shop.yaml -n shop orders -o json"
)]
pub(crate) struct Authz {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    mesh: AnyMesh,

    /// YAML file to read instead of the running mesh. Can be repeated
    #[arg(short, long = "file", value_name = "FILE",
          conflicts_with_all = ["name", "cluster", "kubeconfig", "context"])]
    files: Vec<PathBuf>,

    #[command(flatten)]
    ranges: PlannedRanges,

    /// File with AuthorizationPolicies and Namespaces. Shows what would change if they were applied. Can be repeated
    #[arg(long, value_name = "FILE")]
    with: Vec<PathBuf>,

    /// Namespace of the workload and the client. Not needed if each name is in only one namespace
    #[arg(short, long)]
    namespace: Option<String>,

    /// Workload that receives the request (orders, deploy/orders, shop/orders) [default: every workload with a proxy]
    workload: Option<String>,

    /// The client that sends the request: a workload, an instance, a service account (sa/web), a SPIFFE ID, an
    /// address, or `anything` for a client without an identity
    #[arg(long, value_name = "CLIENT", requires_all = ["request", "workload"])]
    from: Option<String>,

    /// A claim of the request's token, which is assumed to be valid. Can be repeated
    #[arg(long, value_name = "NAME=VALUE", requires = "from", value_parser = claim)]
    claim: Vec<(String, String)>,

    /// Age of the clients' certificates since the start of their validity, for conditions on it (from[].certificate).
    /// A certificate is valid from 5 minutes before it is issued [default: 5m, or 24h less --certificate-left]
    #[arg(long, value_name = "DURATION", value_parser = leno_console::duration)]
    certificate_age: Option<Duration>,

    /// How long the clients' certificates are still valid [default: 24h less --certificate-age]
    #[arg(long, value_name = "DURATION", value_parser = leno_console::duration)]
    certificate_left: Option<Duration>,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,

    /// The request: [METHOD] URL [-H 'name: value']..., to the workload's port
    #[arg(last = true, value_name = "REQUEST", requires = "from")]
    request: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Suggest(Box<suggest::Suggest>),
}

pub(crate) fn run(authz: &Authz) -> Result<bool> {
    if let Some(Command::Suggest(suggest)) = &authz.command {
        return suggest::run(suggest);
    }
    let (mesh, notes) = mesh(authz)?;
    let mesh = mesh.with_certificates(authz.certificate_age, authz.certificate_left);
    for note in notes {
        note!("note: {note}");
    }
    let namespace = authz.namespace.as_deref();
    let changed = match authz.with.as_slice() {
        [] => None,
        files => Some(mesh.with_objects(policies(files)?)),
    };
    if let (Some(workload), Some(from)) = (&authz.workload, &authz.from) {
        let client = client(from);
        let question = ExplainQuestion::parse(namespace, from, &authz.request)?;
        let mesh = changed.as_ref().unwrap_or(&mesh);
        let check = mesh.check(namespace, workload, &client, (&question, &authz.claim))?;
        match authz.output {
            OutputForm::Json => print_json(&check)?,
            OutputForm::Table => print(&text::check(&check, from, &question))?,
        }
        return Ok(check.answer.permitted);
    }
    let now = mesh.access(namespace, authz.workload.as_deref())?;
    let Some(changed) = changed else {
        match authz.output {
            OutputForm::Json => print_json(&now)?,
            OutputForm::Table => print(&text::access(&now))?,
        }
        return Ok(true);
    };
    let then = changed.access(namespace, authz.workload.as_deref())?;
    let changes = access_changes(&now, &then);
    match authz.output {
        OutputForm::Json => print_json(&changes)?,
        OutputForm::Table => print(&text::changes(&changes))?,
    }
    Ok(true)
}

/// The mesh, and descriptions of its parts that could not be read.
fn mesh(authz: &Authz) -> Result<(MeshModel, Vec<String>)> {
    if !authz.files.is_empty() {
        let ranges = authz.ranges.asked().unwrap_or_default();
        return Ok((leno_local::analysis::of_files(&authz.files, ranges)?, Vec::new()));
    }
    match authz.mesh.choose()? {
        ChosenMesh::Machine(name) => {
            if let Some(namespace) = &authz.namespace {
                MeshStatus::read(&Layout::new(&name)?)?.has_namespace(namespace)?;
            }
            Ok((leno_local::analysis::running(&name)?, Vec::new()))
        }
        ChosenMesh::Cluster(target) => {
            let namespace = authz.namespace.as_deref();
            let system_namespace = &authz.mesh.system_namespace;
            let (mesh, ignored, gaps) = explain::cluster(namespace, &target, system_namespace)?;
            Ok((mesh, ignored.into_iter().chain(gaps).collect()))
        }
    }
}

/// The documents in files. Each must be of a kind that decides on authorization.
fn policies(files: &[PathBuf]) -> Result<Vec<Object>> {
    let documents = leno_resources::load(files).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow::Error::msg(lines.join("\n"))
    })?;
    let mut objects = Vec::new();
    for located in documents.objects {
        let key = located.value.key();
        if !matches!(key.kind, Kind::AuthorizationPolicy | Kind::Namespace) {
            bail!(
                "{}:{}: {key} is neither an AuthorizationPolicy nor a Namespace: remove it from \
                 the file of --with",
                located.file,
                located.place
            );
        }
        objects.push(located.value);
    }
    Ok(objects)
}

fn claim(text: &str) -> Result<(String, String), String> {
    let claim =
        text.split_once('=').ok_or("a claim is written NAME=VALUE, for example group=admins")?;
    Ok((claim.0.to_owned(), claim.1.to_owned()))
}

fn client(from: &str) -> CheckClient {
    if from == "anything" {
        return CheckClient::Anything;
    }
    if let Ok(address) = from.parse() {
        return CheckClient::Address(address);
    }
    match from.parse() {
        Ok(identity) => CheckClient::Identity(identity),
        Err(_) => CheckClient::Named(from.to_owned()),
    }
}
