//! Implements the command `leno install`.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use leno_charts::{NAMESPACE, Values, render};

use super::print;

/// Prints the objects to install in a Kubernetes cluster, as YAML for kubectl
///
/// Sends nothing to a cluster: review the output, store it in a repository, apply it. It has the same objects and
/// values as the Helm chart (charts/leno).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno install | kubectl apply --server-side -f -\n  \
                  leno install --ha --set mtls=strict --set image.registry=registry.example.org/leno\n  \
                        leno install --show-values > values.yaml      # every value, with an explanation\n\n\
                  Then: kubectl label namespace NAMESPACE leno.dev/inject=enabled")]
pub(crate) struct Install {
    #[command(flatten)]
    options: InstallOptions,

    /// Prints the chart's default values instead, each with an explanation
    #[arg(long)]
    show_values: bool,
}

/// The options that set the values of an installation.
#[derive(Debug, Args)]
pub(crate) struct InstallOptions {
    /// Runs three replicas of the control plane on different nodes, so that one of them may fail
    #[arg(long)]
    ha: bool,

    /// YAML file with values of the chart; "-" reads standard input. Can be repeated; later files take precedence
    #[arg(long, short = 'f', value_name = "FILE")]
    values: Vec<PathBuf>,

    /// Sets one value of the chart, for example controller.log=debug. Can be repeated; takes precedence over files
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Namespace of the control plane and the node agents
    #[arg(long, short, default_value = NAMESPACE, value_parser = label)]
    pub(crate) namespace: String,
}

impl InstallOptions {
    /// The values that result from these options, starting from `before`: the chart's defaults, or the values of
    /// the present installation.
    pub(crate) fn values(&self, before: Option<(String, String)>) -> Result<Values> {
        let mut files: Vec<(String, String)> = before.into_iter().collect();
        for path in &self.values {
            files.push((path.display().to_string(), read(path)?));
        }
        let mut settings = self.set.clone();
        if self.ha {
            settings.push("ha=true".to_owned());
        }
        Values::load(&files, &settings).map_err(|error| {
            anyhow::anyhow!("{error:#} (`leno install --show-values` lists the values)")
        })
    }
}

pub(crate) fn run(install: &Install) -> Result<bool> {
    if install.show_values {
        print(leno_charts::VALUES)?;
    } else {
        print(&render(&install.options.values(None)?, &install.options.namespace)?)?;
    }
    Ok(true)
}

fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn label(text: &str) -> Result<String, leno_types::NameError> {
    leno_types::check_label("namespace", text)?;
    Ok(text.to_owned())
}
