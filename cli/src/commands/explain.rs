//! `leno explain`.

mod text;

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::Args;
use leno_analysis::Question;

use super::{MeshName, Output, print, print_json};

/// Says what becomes of a request: service, route, rule, filters, backends, endpoints, and why the
/// other routes do not get it
///
/// Asks the mesh that runs, by what its control plane knows, or files as `leno up` would run them.
/// Nothing is sent. The decision is made by the code that the proxies run.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                  sudo leno explain -n shop web -- GET http://cart/items -H 'x: y'\n  \
                  leno explain -f shop.yaml deploy/web -- POST http://cart.shop/items?page=2\n  \
                  leno explain -f shop.yaml -n shop web -- grpc://stock:9000/shop.Stock/Take\n  \
                  leno explain -f shop.yaml -n shop web -o json -- http://cart/")]
pub(crate) struct Explain {
    #[command(flatten)]
    mesh: MeshName,

    /// Files to ask instead of the mesh that runs; may be given several times
    #[arg(short, long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Namespace of the client; not needed where its name is in one namespace only
    #[arg(short, long)]
    namespace: Option<String>,

    /// Who sends the request: a workload (web, deploy/web, shop/web) or an instance (web-1)
    client: String,

    /// The form of output
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,

    /// The request: [METHOD] URL [-H 'name: value']...
    #[arg(last = true, required = true, value_name = "REQUEST")]
    request: Vec<String>,
}

pub(crate) fn run(explain: &Explain) -> Result<bool> {
    let question =
        Question::parse(explain.namespace.as_deref(), &explain.client, &explain.request)?;
    let mesh = match explain.files.as_slice() {
        [] => leno_local::analysis::running(&explain.mesh.name).map_err(|error| {
            anyhow!(error).context("asking the mesh that runs; -f FILE asks files instead")
        })?,
        files => leno_local::analysis::of_files(files)?,
    };
    let explanation = mesh.explain(&question)?;
    if explain.output == Output::Json {
        print_json(&explanation)?;
    } else {
        print(&text::text(&explanation))?;
    }
    Ok(true)
}
