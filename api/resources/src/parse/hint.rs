//! Advice for fields that a Kubernetes pod has and a `Workload` does not: what to write instead.

const HINTS: [(&str, &str); 18] = [
    ("spec.args", "write them in command, after the program"),
    ("spec.containers", "a Workload runs one program: write its command, env and ports in spec"),
    (
        "spec.image",
        "images are not run: write as command a program of this machine, or the directory of an unpacked image as root",
    ),
    ("spec.initContainers", "write their commands in init"),
    ("spec.livenessProbe", "write liveness, with the same fields"),
    ("spec.readinessProbe", "write readiness, with the same fields"),
    ("spec.restartPolicy", "write restart: always, on-failure or never"),
    ("spec.schedule", "write cron: {schedule: ...}"),
    ("spec.securityContext", "write user and group"),
    ("spec.selector", "is for a Service: a Workload has one program and needs none"),
    ("spec.serviceAccountName", "write serviceAccount"),
    ("spec.startupProbe", "write initialDelaySeconds in liveness"),
    ("spec.template", "write the fields of the program, such as command and ports, in spec"),
    ("spec.terminationGracePeriodSeconds", "write stopGracePeriod: 30s"),
    ("spec.volumeMounts", "write volumes: [{path: ./data, mountPath: /data}]"),
    ("spec.resources.requests", "there are limits only: remove it"),
    ("spec.resources.limits", "there are limits of cpu and memory only: remove it"),
    ("spec.envFrom", "write envFile: [FILE]"),
];

/// The remedy for an unknown field; `None` if no pod has the field.
pub(super) fn of(path: &str) -> Option<&'static str> {
    let is = |known: &str| {
        path == known || path.strip_prefix(known).is_some_and(|rest| rest.starts_with('.'))
    };
    HINTS.iter().find(|(known, _)| is(known)).map(|(_, hint)| *hint)
}
