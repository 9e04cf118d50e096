//! Finds files and directories that documents name but that do not exist on this machine. An instance starts only
//! once the files that it needs exist.

use std::io;
use std::path::Path;

use leno_analysis::{Finding, Severity};
use leno_resources::{Documents, Located, Object, Outline, Workload};

use crate::plan::{InstanceLaunch, Plan};

/// The kind of file that a path must lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathKind {
    File,
    Directory,
    Either,
}

/// One finding for each file or directory that a workload of the plan needs and this machine lacks.
pub(crate) fn findings(documents: &Documents, plan: &Plan) -> Vec<Finding> {
    let mut found = Vec::new();
    for (located, outline) in documents.objects.iter().zip(&documents.outlines) {
        let Object::Workload(workload) = &located.value else { continue };
        let first = plan.instances.values().find(|instance| {
            *instance.name.namespace == *workload.metadata.namespace
                && *instance.workload == *workload.metadata.name
        });
        // A workload without replicas needs no files.
        let Some(instance) = first else { continue };
        for (path, reason) in absent(workload, &instance.launch) {
            found.push(finding(located, outline, &path, reason));
        }
    }
    found
}

/// The fields of a workload whose file is missing, each with the reason.
fn absent(workload: &Workload, launch: &InstanceLaunch) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut look = |field: String, path: &Path, kind: PathKind| {
        all.extend(wrong(path, kind).map(|reason| (field, reason)));
    };
    for (index, file) in launch.environment_files.iter().enumerate() {
        look(format!("spec.envFile[{index}]"), file, PathKind::File);
    }
    if workload.spec.working_dir.is_some() {
        let path = launch.inside(&launch.directory);
        look("spec.workingDir".to_owned(), &path, PathKind::Directory);
    }
    for (index, volume) in launch.volumes.iter().enumerate() {
        look(format!("spec.volumes[{index}].path"), &volume.from, PathKind::Either);
        let others = launch.volumes.iter().filter(|other| other.onto != volume.onto);
        // This path is inside another volume, so it need not exist on this machine.
        if others.clone().any(|other| volume.onto.starts_with(&other.onto)) {
            continue;
        }
        let kind = match std::fs::metadata(&volume.from) {
            Ok(of) if of.is_dir() => PathKind::Directory,
            Ok(_) => PathKind::File,
            Err(_) => PathKind::Either,
        };
        look(format!("spec.volumes[{index}].mountPath"), &launch.inside(&volume.onto), kind);
    }
    all
}

/// Why `path` is missing or of the wrong kind; `None` if it is right, or if this user has no permission to examine
/// it.
fn wrong(path: &Path, kind: PathKind) -> Option<String> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some(format!("{shown} does not exist"))
        }
        Err(_) => None,
        Ok(of) if of.is_dir() && kind == PathKind::File => Some(format!("{shown} is a directory")),
        Ok(of) if !of.is_dir() && kind == PathKind::Directory => {
            Some(format!("{shown} is not a directory"))
        }
        Ok(_) => None,
    }
}

fn finding(located: &Located<Object>, outline: &Outline, path: &str, reason: String) -> Finding {
    let place = outline.place(path);
    Finding {
        severity: Severity::Error,
        code: "missing-file",
        file: located.file.clone(),
        line: place.line,
        column: place.column,
        object: located.value.key().to_string(),
        path: outline.field(path),
        reason,
        remedy: "create it before `leno up`: instances do not start until it exists".to_owned(),
    }
}
