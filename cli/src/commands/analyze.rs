//! Implements the command `leno analyze`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use leno_analysis::{Finding, Severity};
use leno_local::analysis::FileAnalysis;
use leno_local::ranges::MeshRanges;
use leno_operate::{ClusterObjects, ClusterTarget, ObjectExtent};
use serde::Serialize;

use super::{AnyMesh, ChosenMesh, OutputForm, PlannedRanges, block_on, print, print_json};

/// Finds mistakes in documents before they are applied, or in a cluster, each with its place, reason and remedy
///
/// Mistakes are, for example, references to objects that do not exist or are not granted, rules without a backend,
/// matches that no request reaches, routes, selectors and grants that match nothing, and unknown fields. Documents of
/// kinds that the mesh does not use, such as a Deployment, are listed as not analyzed. A file that is named twice is
/// read once. Exits 1 if there are errors; with --strict also if there are warnings.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leno analyze examples/shop/shop.yaml\n  \
                  leno analyze --strict -o json manifests/\n  \
                  leno analyze shop            # what a namespace of the cluster has\n  \
                  leno analyze -A --context prod\n  \
                  sudo leno analyze            # the files of the mesh that runs")]
pub(crate) struct Analyze {
    /// YAML files or directories ("-" reads standard input), or namespaces of a cluster [default: the files of the
    /// running mesh]
    #[arg(value_name = "FILE|NAMESPACE", conflicts_with = "name")]
    what: Vec<PathBuf>,

    /// Analyzes this namespace of the cluster. Can be repeated
    #[arg(short, long = "namespace", value_name = "NAME", conflicts_with = "name")]
    namespaces: Vec<String>,

    /// Analyzes all namespaces of the cluster
    #[arg(short = 'A', long, conflicts_with_all = ["what", "namespaces", "name"])]
    all_namespaces: bool,

    #[command(flatten)]
    mesh: AnyMesh,

    #[command(flatten)]
    ranges: PlannedRanges,

    /// Treats warnings as errors
    #[arg(long)]
    strict: bool,

    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputForm,
}

#[derive(Serialize)]
struct Report<'a> {
    errors: usize,
    warnings: usize,
    findings: &'a [Finding],
    /// Documents in the files of kinds that are not analyzed.
    not_analyzed: &'a [String],
}

/// The text output names at most this many of the documents that were not analyzed.
const MAX_NOT_ANALYZED: usize = 3;

pub(crate) fn run(analyze: &Analyze) -> Result<bool> {
    let FileAnalysis { findings, not_analyzed } = match analyze.subject()? {
        Subject::Files(files, ranges) => leno_local::analysis::of_mesh_files(&files, ranges),
        Subject::Cluster(target, namespaces) => FileAnalysis {
            findings: of_cluster(analyze, &target, &namespaces)?,
            not_analyzed: Vec::new(),
        },
    };
    let errors = findings.iter().filter(|one| one.severity == Severity::Error).count();
    let warnings = findings.len() - errors;
    if analyze.output == OutputForm::Json {
        let (findings, not_analyzed) = (&findings, &not_analyzed);
        print_json(&Report { errors, warnings, findings, not_analyzed })?;
    } else {
        print(&text(&findings, (errors, warnings)))?;
        print(&left_out(&not_analyzed))?;
    }
    Ok(errors == 0 && !(analyze.strict && warnings > 0))
}

/// What the command analyzes.
enum Subject {
    /// Files, with the address ranges of the mesh.
    Files(Vec<PathBuf>, MeshRanges),
    /// These namespaces of a cluster; all of its namespaces if the list is empty.
    Cluster(ClusterTarget, Vec<String>),
}

impl Analyze {
    fn subject(&self) -> Result<Subject> {
        let named = self.mesh.cluster || self.mesh.which.is_named() || !self.namespaces.is_empty();
        let target = self.mesh.which.target();
        if named || self.all_namespaces {
            let mut namespaces = self.namespaces.clone();
            namespaces.extend(self.what.iter().filter_map(|one| namespace(one)));
            if let Some(file) = self.what.iter().find(|one| namespace(one).is_none()) {
                bail!(
                    "{} is a file, not a namespace of the cluster: analyze either files or a \
                     cluster",
                    file.display()
                );
            }
            if namespaces.is_empty() && !self.all_namespaces {
                bail!("no namespace of the cluster is named: name one, or pass -A for all of them");
            }
            return Ok(Subject::Cluster(target, namespaces));
        }
        if self.what.is_empty() {
            let mesh = self.mesh.choose().context("no file is named: leno analyze FILE")?;
            return match mesh {
                ChosenMesh::Machine(name) => {
                    let (files, running) = leno_local::analysis::followed_by(&name)?;
                    let ranges =
                        self.ranges.asked().map_or(Ok(running), leno_local::analysis::ranges);
                    Ok(Subject::Files(files, ranges?))
                }
                ChosenMesh::Cluster(_) => bail!(
                    "no namespace of the cluster is named: name one, \
                     or pass -A for all of them"
                ),
            };
        }
        let no_file = |one: &&PathBuf| namespace(one).is_some() && !one.exists();
        match self.what.iter().filter(no_file).count() {
            count if count == self.what.len() && target.is_there() => Ok(Subject::Cluster(
                target,
                self.what.iter().filter_map(|one| namespace(one)).collect(),
            )),
            _ => {
                let ranges = self.ranges.asked().unwrap_or_default();
                let ranges = leno_local::analysis::ranges(ranges)?;
                Ok(Subject::Files(self.what.clone(), ranges))
            }
        }
    }
}

/// The namespace that a word on the command line may name.
fn namespace(word: &Path) -> Option<String> {
    let name = word.to_str()?;
    leno_types::check_label("namespace", name).ok().map(|()| name.to_owned())
}

fn of_cluster(
    analyze: &Analyze,
    target: &ClusterTarget,
    namespaces: &[String],
) -> Result<Vec<Finding>> {
    let known = block_on(async {
        let client = leno_operate::connect(target).await?;
        let system = &analyze.mesh.system_namespace;
        let known = ClusterObjects::read(&client, &ObjectExtent::Cluster, system).await?;
        namespaces.iter().try_for_each(|one| known.has_namespace(one))?;
        Ok(known)
    })?;
    let wanted =
        |namespace: &String| namespaces.is_empty() || namespaces.iter().any(|one| one == namespace);
    let unread = known.read.unread.iter().filter(|one| wanted(&one.key.namespace));
    let mut findings: Vec<Finding> =
        unread.map(|one| Finding::unread(&one.key, &one.reason)).collect();
    let of = |key: &leno_operate::ObjectKey| wanted(&key.namespace);
    findings.extend(leno_analysis::analyze_stored(known.settings, known.read.objects, of));
    Ok(findings)
}

/// A line on the documents that were not analyzed; empty if all were.
fn left_out(not_analyzed: &[String]) -> String {
    let shown = not_analyzed.iter().take(MAX_NOT_ANALYZED).map(String::as_str);
    let shown = shown.collect::<Vec<_>>().join(", ");
    match (not_analyzed.len(), not_analyzed.len().saturating_sub(MAX_NOT_ANALYZED)) {
        (0, _) => String::new(),
        (_, 0) => format!("not analyzed, because the mesh does not use these kinds: {shown}\n"),
        (_, more) => {
            format!(
                "not analyzed, because the mesh does not use these kinds: {shown}, and {more} \
                 more\n"
            )
        }
    }
}

fn text(findings: &[Finding], (errors, warnings): (usize, usize)) -> String {
    if findings.is_empty() {
        return "no mistakes found\n".to_owned();
    }
    let mut text = String::new();
    for finding in findings {
        text += &format!("{finding}\n");
    }
    let counted = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    text + &format!("{}, {}\n", counted(errors, "error"), counted(warnings, "warning"))
}
