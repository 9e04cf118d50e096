//! Builds the model of a mesh, from files or from a running mesh, for `leno explain` and `leno analyze`.

use std::path::{Path, PathBuf};

use leno_analysis::{Finding, MeshModel, OutsideReach, Severity, analyze};
use leno_capture::CaptureChoice;
use leno_observe::ejected::EjectedEndpoint;
use leno_observe::metrics;
use leno_resources::{Documents, IgnoredDocument, Kind, Located, Object, Problem};
use leno_types::{Egress, InstanceName, MtlsMode};

use crate::absent;
use crate::admin::Admin;
use crate::compose;
use crate::error::{Error, Result};
use crate::layout::Layout;
use crate::netns::Netns;
use crate::network;
use crate::plan::{Plan, PlanDefaults, ProcessSharing, ProxyMode};
use crate::ranges::{MeshRanges, RequestedRanges};
use crate::status::{FileMistake, InstanceStatus, MeshStatus};

/// The Kubernetes kinds that run pods. `leno inject` adds proxies to these.
const OF_PODS: [&str; 7] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "Pod", "ReplicaSet", "StatefulSet"];

/// How many mistakes the status of a mesh lists at most.
const MAX_MISTAKES: usize = 100;

/// The model of the running mesh, built from the last state that was written for its control plane.
///
/// # Errors
/// [`Error::NotRunning`], or if that state cannot be read.
pub fn running(mesh: &str) -> Result<MeshModel> {
    let layout = Layout::new(mesh)?;
    let status = MeshStatus::read(&layout)?;
    let Some(documents) = state(&layout)? else {
        let reason = format!(
            "no workload of mesh {mesh:?} has a proxy, so there is nothing to explain: set \
             leno.dev/inject: enabled"
        );
        return Err(Error::Refused(reason));
    };
    let way_out = if status.uplink { OutsideReach::Open } else { OutsideReach::None };
    let mesh_of =
        MeshModel::new(documents.objects.into_iter().map(|located| located.value).collect());
    let mesh_of = mesh_of.of_leno_up(way_out);
    // Line numbers come from the files that the mesh follows, unless these have changed since.
    let written = followed_by(mesh).ok().and_then(|(files, _)| compose::load(&files).ok());
    Ok(match written {
        Some(written) => mesh_of.written_in(&written),
        None => mesh_of,
    })
}

/// The last state that was written for the control plane of a mesh; `None` if no workload of the mesh has a proxy.
fn state(layout: &Layout) -> Result<Option<Documents>> {
    let state = layout.state().join("state.yaml");
    if !state.exists() {
        return Ok(None);
    }
    leno_resources::load(&[state]).map(Some).map_err(|problems| refused(&problems))
}

/// The services of a mesh, by namespace and name.
///
/// # Errors
/// If the state of the mesh cannot be read.
pub fn services(layout: &Layout) -> Result<Vec<(String, String)>> {
    let objects = state(layout)?.map(|documents| documents.objects).unwrap_or_default();
    let keys = objects.into_iter().map(|located| located.value.key());
    let services = keys.filter(|key| key.kind == Kind::Service);
    Ok(services.map(|key| (key.namespace, key.name)).collect())
}

/// The endpoints that the proxies of a workload have ejected. A proxy that does not answer counts as having none.
///
/// # Errors
/// [`Error::NotRunning`], or if there is no such workload.
pub async fn ejected(mesh: &str, namespace: &str, workload: &str) -> Result<Vec<EjectedEndpoint>> {
    let status = MeshStatus::read(&Layout::new(mesh)?)?;
    let mut all = Vec::new();
    for instance in status.meant(Some(namespace), Some(workload))? {
        if !instance.meshed {
            continue;
        }
        let netns = Netns::open(&instance.surroundings.netns)?;
        if let Ok(reply) = Admin::within(&netns).get("/metrics").await {
            all.extend(EjectedEndpoint::of(&metrics::parse(&reply.body)));
        }
    }
    Ok(all)
}

/// Fetches a page from the admin server of each instance's proxy, and returns the page or the error for each.
///
/// # Errors
/// [`Error::NotRunning`].
pub async fn pages(
    mesh: &str,
    names: &[InstanceName],
    path: &str,
) -> Result<Vec<(InstanceName, std::result::Result<String, String>)>> {
    let status = MeshStatus::read(&Layout::new(mesh)?)?;
    let mut all = Vec::new();
    for name in names {
        let is_meant = |one: &&InstanceStatus| {
            one.meshed && *one.namespace == *name.namespace && *one.name == *name.name
        };
        let Some(instance) = status.instances.iter().find(is_meant) else { continue };
        let netns = Netns::open(&instance.surroundings.netns)?;
        let page = match Admin::within(&netns).get(path).await {
            Ok(reply) => reply.page(),
            Err(error) => Err(error.to_string()),
        };
        all.push((name.clone(), page));
    }
    Ok(all)
}

/// The model of the mesh that these files describe, with addresses from `ranges` and all instances ready.
///
/// # Errors
/// All reasons for which `leno up` would reject the files.
pub fn of_files(files: &[PathBuf], ranges: RequestedRanges) -> Result<MeshModel> {
    let documents = compose::load(files).map_err(|problems| refused(&problems))?;
    let plan = plan(&documents, self::ranges(ranges)?).map_err(|problems| refused(&problems))?;
    Ok(MeshModel::new(objects(&plan)).of_leno_up(OutsideReach::WithUplink).written_in(&documents))
}

/// The address ranges that `leno up` would use on a machine without conflicting routes.
///
/// # Errors
/// When the ranges of instances and of VIPs are the same.
pub fn ranges(asked: RequestedRanges) -> Result<MeshRanges> {
    Ok(MeshRanges::choose(asked, &[]).map_err(Error::Refused)?.0)
}

/// The files that a mesh follows, and its addresses.
///
/// # Errors
/// [`Error::NotRunning`], or if the mesh reads its documents from standard input.
pub fn followed_by(mesh: &str) -> Result<(Vec<PathBuf>, MeshRanges)> {
    let status = MeshStatus::read(&Layout::new(mesh)?)?;
    if status.files.iter().any(|file| file == Path::new(leno_resources::STDIN)) {
        let reason = format!(
            "mesh {mesh:?} was read from standard input, which cannot be read \
             again: name the files"
        );
        return Err(Error::Refused(reason));
    }
    Ok((status.files, status.ranges))
}

/// The result of analysing files.
#[derive(Clone, Debug)]
pub struct FileAnalysis {
    /// The mistakes, or, if the files cannot be parsed, the parse errors.
    pub findings: Vec<Finding>,
    /// Documents of a kind that no mesh reads, such as a Deployment, each with its place and kind.
    pub not_analyzed: Vec<String>,
}

/// Finds the mistakes in the files of a mesh that uses these address ranges.
#[must_use]
pub fn of_mesh_files(files: &[PathBuf], ranges: MeshRanges) -> FileAnalysis {
    match compose::load(files) {
        Ok(documents) => {
            let findings = of_documents(files, &documents, ranges);
            // A policy for another mesh is not read either, but has a finding already. An ignored part of a
            // Compose file is not a document.
            let is_found = |one: &Located<IgnoredDocument>| {
                let mut all = findings.iter();
                all.any(|finding| (&finding.file, finding.line) == (&one.file, one.place.line))
            };
            let is_part =
                |one: &Located<IgnoredDocument>| one.value.api_version == compose::COMPOSE;
            let left_out = documents.ignored.iter().filter(|one| !is_found(one) && !is_part(one));
            let not_analyzed = left_out.map(with_place).collect();
            FileAnalysis { findings, not_analyzed }
        }
        Err(problems) => FileAnalysis {
            findings: problems.iter().map(Finding::from).collect(),
            not_analyzed: Vec::new(),
        },
    }
}

/// Formats a document that no mesh reads: its place and its kind.
fn with_place(Located { value, file, place }: &Located<IgnoredDocument>) -> String {
    format!("{file}:{place}: {} {}", value.api_version, value.kind)
}

fn of_documents(files: &[PathBuf], documents: &Documents, ranges: MeshRanges) -> Vec<Finding> {
    let mut findings = empty(files, documents);
    findings.extend(foreign(documents));
    match plan(documents, ranges) {
        Ok(plan) => {
            findings.extend(findings_of(documents, &plan));
            findings.extend(absent::findings(documents, &plan));
        }
        Err(problems) => findings.extend(problems.iter().map(Finding::from)),
    }
    findings
}

/// A warning if no mesh reads any of the documents, because then nothing was analysed.
fn foreign(documents: &Documents) -> Option<Finding> {
    let first = documents.ignored.first().filter(|_| documents.objects.is_empty())?;
    let remedy = match OF_PODS.contains(&first.value.kind.as_str()) {
        true => {
            ": `leno inject` adds the proxy to its pods, and `leno analyze NAMESPACE` reads the mesh of a cluster"
        }
        false => "",
    };
    let reason = format!(
        "no document is of a kind that the mesh uses, such as Workload or HTTPRoute, so nothing \
         was analyzed; the first is {} {}{remedy}",
        first.value.api_version, first.value.kind
    );
    Some(Finding::of_file(Severity::Warning, "no-documents", &first.file, &reason))
}

/// A finding for each path that contains no documents, because the user probably meant another path.
fn empty(paths: &[PathBuf], documents: &Documents) -> Vec<Finding> {
    let finding = |(path, reason): (&PathBuf, &str)| {
        Finding::of_file(Severity::Error, "no-documents", &path.to_string_lossy(), reason)
    };
    silent(paths, documents).into_iter().map(finding).collect()
}

/// The paths that contain no documents, each with what it contains instead.
pub(crate) fn silent<'a>(
    paths: &'a [PathBuf],
    documents: &Documents,
) -> Vec<(&'a PathBuf, &'static str)> {
    let objects = documents.objects.iter().map(|one| &one.file);
    let said: Vec<&Path> = objects
        .chain(documents.ignored.iter().map(|one| &one.file))
        .map(|file| Path::new(&**file))
        .collect();
    let silent = |path: &'a PathBuf| {
        let reason = if leno_resources::holds_no_file(path) {
            "the directory has no *.yaml, *.yml or *.json file: name a directory that has (its \
             subdirectories are not read)"
        } else if said.iter().any(|file| is_of(file, path)) {
            return None;
        } else if path.is_dir() {
            "the files of the directory have no document: name files with documents"
        } else {
            "the file has no document: name a file with documents"
        };
        Some((path, reason))
    };
    paths.iter().filter_map(silent).collect()
}

/// Whether `file`, which was read, is `path` or is in that folder. The same file may have been read by another of
/// its names.
fn is_of(file: &Path, path: &Path) -> bool {
    let parent = file.parent().map(|parent| match parent.as_os_str().is_empty() {
        true => Path::new("."),
        false => parent,
    });
    compose::resolved(file) == compose::resolved(path)
        || parent.is_some_and(|parent| compose::resolved(parent) == compose::resolved(path))
}

/// The mistakes in documents that have passed validation.
pub(crate) fn findings_of(documents: &Documents, plan: &Plan) -> Vec<Finding> {
    analyze(documents, objects(plan))
}

/// The mistakes that the status of the mesh lists: at most [`MAX_MISTAKES`].
pub(crate) fn mistakes(documents: &Documents, plan: &Plan) -> Vec<FileMistake> {
    let all = findings_of(documents, plan).into_iter().take(MAX_MISTAKES);
    let mistake = |one: Finding| FileMistake {
        error: one.severity == Severity::Error,
        text: one.to_string(),
    };
    all.map(mistake).collect()
}

/// The plan of `leno up`; static proxies are left out.
fn plan(documents: &Documents, ranges: MeshRanges) -> Result<Plan, Vec<Problem>> {
    let defaults = PlanDefaults {
        mtls: MtlsMode::default(),
        egress: Egress::default(),
        mode: ProxyMode::default(),
        share: ProcessSharing::default(),
        capture: CaptureChoice::Auto,
        flows: leno_flows::FlowMetricsSource::default(),
        ipv6: network::has_ipv6(),
        ranges,
        spiffe: false,
    };
    // Each object keeps its outline, so that a problem is reported at the line of its field.
    let with_outlines = documents.objects.iter().zip(&documents.outlines);
    let planned = with_outlines.filter(|(located, _)| located.value.key().kind != Kind::Proxy);
    let (objects, outlines) =
        planned.map(|(located, outline)| (located.clone(), outline.clone())).unzip();
    let documents = Documents { objects, outlines, ignored: Vec::new() };
    Plan::make(&documents, defaults, &Plan::default())
}

fn objects(plan: &Plan) -> Vec<Object> {
    plan.objects(&plan.all_ready())
}

pub(crate) fn refused(problems: &[Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Error::Documents(lines.join("\n"))
}
