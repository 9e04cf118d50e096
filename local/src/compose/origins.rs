//! Determines which field of a Compose service each part of its Workload comes from.

use leno_resources::{DocumentOrigin, Position};

use super::{Name, Service, place};

/// Parts of a Workload, and the fields that they may come from.
const PARTS: [(&str, &[&str]); 18] = [
    ("spec.command", &["command", "entrypoint"]),
    ("spec.dependsOn", &["depends_on"]),
    ("spec.env", &["environment"]),
    ("spec.envFile", &["env_file"]),
    ("spec.group", &["user"]),
    ("spec.inheritEnv", &["environment"]),
    ("spec.ports", &["ports", "expose"]),
    ("spec.readiness", &["healthcheck"]),
    ("spec.replicas", &["scale", "deploy"]),
    ("spec.resources.limits.cpu", &["cpus", "deploy"]),
    ("spec.resources.limits.memory", &["mem_limit", "deploy"]),
    ("spec.restart", &["restart"]),
    ("spec.root", &["image"]),
    ("spec.stopGracePeriod", &["stop_grace_period"]),
    ("spec.stopSignal", &["stop_signal"]),
    ("spec.user", &["user"]),
    ("spec.volumes", &["volumes"]),
    ("spec.workingDir", &["working_dir"]),
];

/// The origins of the parts of a service's Workload. `project` is the position of the project's name in the file.
pub(super) fn of(name: &Name, service: &Service, project: Option<Position>) -> Vec<DocumentOrigin> {
    let whole = format!("services.{}", name.text);
    let parts = PARTS.into_iter().map(|(part, fields)| {
        let written = fields.iter().find_map(|field| Some((*field, place(service.get(*field)?))));
        // If the field is missing, the problem is reported at the service, where the field would be added.
        let (field, place) = written.unwrap_or((fields[0], name.place));
        DocumentOrigin { part, field: format!("{whole}.{field}"), place }
    });
    let namespace = project.map(|place| DocumentOrigin {
        part: "metadata.namespace",
        field: "name".to_owned(),
        place,
    });
    let all = DocumentOrigin { part: "", field: whole.clone(), place: name.place };
    parts.chain(namespace).chain([all]).collect()
}
