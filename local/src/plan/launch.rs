//! Determines from a `Workload` document how the application of an instance is started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::jiff::tz::TimeZone;
use leno_capture::CaptureChoice;
use leno_resources::{
    Cron, DependencyCondition, GrpcCheck, HttpGet, Located, Object, PortRef, ResourceLimits,
    RestartPolicy, STDIN, TcpSocket, WAYPOINT_LABEL, Workload,
};
use leno_types::{Datagrams, WorkloadApiAddress};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::Draft;
use super::settings::WorkloadSettings;
use crate::credentials;
use crate::{root, zone};

/// How the processes of an instance are started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceLaunch {
    /// Program and arguments.
    pub command: Vec<String>,
    /// The variables that its documents set.
    pub environment: BTreeMap<String, String>,
    /// The absolute paths of files with variables.
    pub environment_files: Vec<PathBuf>,
    /// Variables taken from the shell of `leno up`.
    pub inherited: Vec<String>,
    /// The directory that is its root file system, absolute; `None` if it uses this machine's.
    pub root: Option<PathBuf>,
    /// Its working directory, absolute; inside its root file system, if it has one.
    pub directory: PathBuf,
    /// The service account in its identity.
    pub service_account: String,
    /// Whether it gets a proxy.
    pub meshed: bool,
    /// Whether its proxy serves clients of services, as their waypoint.
    pub waypoint: bool,
    /// The group whose node proxy serves it; `None` if it has a proxy of its own, or none.
    pub group: Option<String>,
    /// The source of its proxy's certificates.
    pub certificates: CertificateOrigin,
    /// How its traffic is captured.
    pub capture: CaptureChoice,
    /// Which of its datagrams its proxy carries.
    pub datagrams: Datagrams,
    /// The user and the group of its processes.
    pub account: RunAs,
    /// Files and directories that are mounted at other paths.
    pub volumes: Vec<BoundVolume>,
    /// Its limits of CPU and memory.
    pub limits: ResourceLimits,
    /// Commands that run before the application.
    pub init: Vec<Vec<String>>,
    /// The schedule of its runs; `None` if it always runs.
    pub cron: Option<Timetable>,
    /// Whether it is restarted when it ends.
    pub restart: RestartPolicy,
    /// The signal that asks it to end.
    pub stop_signal: Signal,
    /// How long it may take to end; `None` is `leno up --grace`.
    pub grace: Option<Duration>,
    /// The conditions that must be satisfied before it starts, by namespace and name of the workloads.
    pub depends_on: BTreeMap<(String, String), DependencyCondition>,
    /// Decides whether it takes traffic; `None` if that depends on its listening ports.
    pub readiness: Option<InstanceProbe>,
    /// Decides whether it is alive.
    pub liveness: Option<InstanceProbe>,
}

/// The source of a proxy's certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CertificateOrigin {
    /// The documents do not set it; the options of `leno up` decide.
    #[default]
    Unset,
    /// The control plane.
    ControlPlane,
    /// A SPIFFE Workload API.
    WorkloadApi(WorkloadApiAddress),
}

impl CertificateOrigin {
    /// The address of the Workload API; `default` applies if the documents set no source.
    #[must_use]
    pub fn workload_api<'a>(
        &'a self,
        default: Option<&'a WorkloadApiAddress>,
    ) -> Option<&'a WorkloadApiAddress> {
        match self {
            Self::Unset => default,
            Self::ControlPlane => None,
            Self::WorkloadApi(address) => Some(address),
        }
    }
}

/// A schedule with its time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timetable {
    /// The schedule from the document.
    pub cron: Cron,
    /// The zone of its times.
    pub zone: TimeZone,
}

/// A user and a group, by name or number. `None` stands for that of the caller of `leno up`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAs {
    /// The user.
    pub user: Option<String>,
    /// The group.
    pub group: Option<String>,
    /// The root file system whose accounts the names refer to; `None` for those of this machine.
    pub root: Option<PathBuf>,
}

/// A file or directory that is mounted at another path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundVolume {
    /// The file or directory, absolute.
    pub from: PathBuf,
    /// The mount point, absolute.
    pub onto: PathBuf,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// A probe of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceProbe {
    /// The kind of the probe.
    pub question: ProbeQuestion,
    /// The time from the start of the process to the first probe.
    pub delay: Duration,
    /// The time between two probes.
    pub period: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// How many successes in a row make the probe succeed.
    pub successes: u32,
    /// How many failures in a row make the probe fail.
    pub failures: u32,
}

/// The kinds of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeQuestion {
    /// An HTTP request.
    Http {
        /// The application's port.
        port: u16,
        /// Path and query.
        path: String,
        /// Additional headers.
        headers: Vec<(String, String)>,
    },
    /// A call of the gRPC health service.
    Grpc {
        /// The application's port.
        port: u16,
        /// The service in the request.
        service: String,
    },
    /// A connection to a port.
    Tcp(u16),
    /// A command.
    Exec(Vec<String>),
}

impl InstanceLaunch {
    /// The path on this machine that an absolute path of the application leads to. Volumes are not considered.
    #[must_use]
    pub fn inside(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }
}

impl Draft<'_> {
    /// How each instance of a workload is started.
    pub(super) fn launch(
        &mut self,
        located: &Located<Object>,
        workload: &Workload,
        settings: &WorkloadSettings,
    ) -> InstanceLaunch {
        let spec = &workload.spec;
        let root = spec.root.as_ref().map(|root| beside(&located.file, root));
        if let Some(reason) = root.as_deref().and_then(|root| root::check(root).err()) {
            self.problem(located, "spec.root", reason);
        }
        let account = RunAs {
            user: spec.user.as_ref().map(|user| user.0.clone()),
            group: spec.group.as_ref().map(|group| group.0.clone()),
            root: root.clone(),
        };
        if let Err((field, reason)) = credentials::of(&account) {
            self.problem(located, &format!("spec.{field}"), reason);
        }
        let cron = self.timetable(located, spec.cron.as_ref());
        let beside = |file: &str| beside(&located.file, file);
        let volume = |volume: &leno_resources::Volume| BoundVolume {
            from: beside(&volume.path),
            onto: PathBuf::from(&volume.mount_path),
            read_only: volume.read_only,
        };
        let probe = |probe: &leno_resources::Probe| of_probe(probe, workload);
        let signal = spec.stop_signal.map(|signal| signal.0.parse());
        InstanceLaunch {
            command: spec.command.clone(),
            environment: spec.env.clone(),
            environment_files: spec.env_file.iter().map(|file| beside(file)).collect(),
            inherited: spec.inherit_env.clone(),
            directory: match (&root, &spec.working_dir) {
                (Some(_), directory) => PathBuf::from(directory.as_deref().unwrap_or("/")),
                (None, directory) => beside(directory.as_deref().unwrap_or(".")),
            },
            root,
            service_account: spec.service_account.clone(),
            meshed: settings.meshed,
            waypoint: workload.metadata.labels.contains_key(WAYPOINT_LABEL),
            group: None,
            certificates: settings.certificates.clone(),
            capture: settings.capture,
            datagrams: self.datagrams(located, workload, settings),
            account,
            volumes: spec.volumes.iter().map(volume).collect(),
            limits: spec.resources.limits,
            init: spec.init.iter().map(|init| init.command.clone()).collect(),
            cron,
            restart: spec.restart,
            // Validation has rejected anything but names of Linux signals.
            stop_signal: signal.and_then(Result::ok).unwrap_or(Signal::SIGTERM),
            grace: spec.stop_grace_period.map(|grace| grace.0),
            depends_on: super::depends::wanted(workload),
            readiness: spec.readiness.as_ref().and_then(probe),
            liveness: spec.liveness.as_ref().and_then(probe),
        }
    }

    /// The schedule of a workload. Reports a time zone that this machine does not have.
    fn timetable(&mut self, located: &Located<Object>, cron: Option<&Cron>) -> Option<Timetable> {
        let cron = cron?;
        let zone = zone::named(cron.time_zone.as_deref()).unwrap_or_else(|reason| {
            self.problem(located, "spec.cron.timeZone", reason);
            TimeZone::UTC
        });
        Some(Timetable { cron: cron.clone(), zone })
    }
}

/// A probe with its port as a number; `None` if the document is invalid.
fn of_probe(probe: &leno_resources::Probe, workload: &Workload) -> Option<InstanceProbe> {
    let port = |port: &PortRef| match port {
        PortRef::Number(number) => Some(*number),
        PortRef::Name(name) => {
            let named = workload.spec.ports.iter().find(|port| port.name == *name);
            named.map(|port| port.port)
        }
    };
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    let question = match (&probe.http_get, &probe.grpc, &probe.tcp_socket, &probe.exec) {
        (Some(HttpGet { path, port: at, http_headers, .. }), ..) => {
            let headers = http_headers.iter().map(|one| (one.name.clone(), one.value.clone()));
            ProbeQuestion::Http { port: port(at)?, path: path.clone(), headers: headers.collect() }
        }
        (_, Some(GrpcCheck { port: at, service }), ..) => {
            ProbeQuestion::Grpc { port: port(at)?, service: service.clone() }
        }
        (_, _, Some(TcpSocket { port: at }), _) => ProbeQuestion::Tcp(port(at)?),
        (.., exec) => ProbeQuestion::Exec(exec.as_ref()?.command.clone()),
    };
    Some(InstanceProbe {
        question,
        delay: seconds(probe.initial_delay_seconds),
        period: seconds(probe.period_seconds),
        timeout: seconds(probe.timeout_seconds),
        successes: probe.success_threshold,
        failures: probe.failure_threshold,
    })
}

/// Resolves a path in a document, which is relative to the directory of the document's file.
fn beside(file: &str, wanted: &str) -> PathBuf {
    let base = match file {
        STDIN => Path::new("."),
        file => Path::new(file).parent().unwrap_or(Path::new(".")),
    };
    let path = base.join(wanted);
    let absolute = std::path::absolute(&path).unwrap_or(path);
    // Drops the `.` that `join` leaves, for better messages.
    absolute.components().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_file() {
        assert_eq!(beside("/srv/shop/mesh.yaml", "."), Path::new("/srv/shop"));
        assert_eq!(beside("/srv/shop/mesh.yaml", "web"), Path::new("/srv/shop/web"));
        assert_eq!(beside("/srv/shop/mesh.yaml", "/tmp"), Path::new("/tmp"));
        let here = std::env::current_dir().unwrap();
        assert_eq!(beside("mesh.yaml", "."), here);
        assert_eq!(beside("-", "."), here);
    }
}
