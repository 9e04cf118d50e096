//! Reads everything for a report. If something cannot be read, the report notes that, and the rest is still read.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream;
use k8s_openapi::api::core::v1::{Event, Pod};
use leno_kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, LogParams};
use leno_kube::{Api, Client};
use leno_resources::Kind;
use leno_sources::{PROXY_CONTAINER, is_ready};
use leno_types::ports;
use serde_json::Value;
use tokio::time::timeout;

use super::ReportScope;
use super::archive::Archive;
use super::tail::tail;
use crate::namespaces::NamespaceModes;
use crate::pod_admin::{PodAdminClient, PodName};
use crate::pods::{all, name, phase, statuses};
use crate::{Error, namespaces};

/// How many logs are read at the same time.
const AT_ONCE: usize = 8;
/// Most lines that are read of one log; the newest are read. A component without problems writes this many in some
/// hours.
const LOG_LINES: i64 = 2_000;
/// Longest wait for one log: 2,000 lines of the greatest length that a container runtime writes are 32 MiB.
const LOG_BOUND: Duration = Duration::from_secs(30);
/// Most objects of one kind that are included.
const MAX_OBJECTS: usize = 2_000;
/// Most events of one namespace that are included; Kubernetes keeps events for an hour.
const MAX_EVENTS: u32 = 500;
/// The parts of the control plane by the names of their pods, each with the port of its admin server. The proxies
/// of node mode have no such port, because they listen only in the network namespaces of pods.
const PARTS: [(&str, Option<u16>); 3] = [
    ("leno-controller", Some(ports::ADMIN)),
    ("leno-agent", Some(ports::AGENT_ADMIN)),
    ("leno-node", None),
];
/// The pages of a proxy's admin server that are included.
const OF_PROXY: &[&str] = &["ready", "config", "metrics"];
/// The kinds of objects in an installation's namespace: API version and kind.
const INSTALLED: [(&str, &str); 9] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "ReplicaSet"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("coordination.k8s.io/v1", "Lease"),
    ("policy/v1", "PodDisruptionBudget"),
];
/// The cluster-scoped objects of an installation: API version, kind and prefix of the name.
const OF_THE_CLUSTER: [(&str, &str, &str); 4] = [
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration", "leno-"),
    ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "leno-"),
    ("v1", "Node", ""),
    ("v1", "Namespace", ""),
];

/// The namespaces and pods that the report covers.
pub(super) struct ReportCoverage {
    pub(super) system: String,
    /// The namespaces of workloads.
    pub(super) namespaces: BTreeSet<String>,
    /// How many pods in these namespaces have a proxy.
    pub(super) meshed: usize,
    /// The pods with a proxy that are included.
    pub(super) proxies: Vec<Pod>,
    /// The pods of the control plane and of the agents.
    parts: Vec<Pod>,
}

impl ReportCoverage {
    pub(super) async fn find(client: &Client, wanted: &ReportScope) -> Result<Self, Error> {
        let mut pods = Vec::new();
        match wanted.namespaces.as_slice() {
            [] => pods = all(client, None).await?,
            some => {
                for namespace in some {
                    namespaces::check(client, namespace).await?;
                    pods.extend(all(client, Some(namespace)).await?);
                }
            }
        }
        // If the user may not list these pods, later requests to the namespace report that.
        let parts = all(client, Some(&wanted.system)).await.unwrap_or_default();
        // The namespace may contain other applications' pods.
        let parts: Vec<Pod> = parts.into_iter().filter(is_part).collect();
        let modes = match wanted.namespaces.as_slice() {
            [one] => NamespaceModes::permitted(client, Some(one)).await?,
            _ => NamespaceModes::permitted(client, None).await?,
        };
        let mut proxies: Vec<Pod> = pods.into_iter().filter(|pod| modes.has_proxy(pod)).collect();
        let mut namespaces: BTreeSet<String> = wanted.namespaces.iter().cloned().collect();
        namespaces.extend(proxies.iter().map(|pod| name(pod).namespace));
        namespaces.remove(&wanted.system);
        // Pods that are not ready come first, and pods that have ended come last.
        proxies.sort_by_key(|pod| (matches!(phase(pod), "Succeeded" | "Failed"), is_ready(pod)));
        let meshed = proxies.len();
        proxies.truncate(wanted.proxies);
        Ok(Self { system: wanted.system.clone(), namespaces, meshed, proxies, parts })
    }
}

/// The archive, and a list of what is missing from it so far.
pub(super) struct ReportContent {
    pub(super) archive: Archive,
    pub(super) missing: Vec<String>,
}

impl ReportContent {
    pub(super) fn new(archive: Archive) -> Self {
        Self { archive, missing: Vec::new() }
    }

    /// Returns the value, or records that it is missing.
    pub(super) fn or_missing<T>(&mut self, read: Result<T, Error>) -> Option<T> {
        read.map_err(|error| self.missing.push(error.said())).ok()
    }

    fn note_full(&mut self, file: &str, has_room: bool) {
        if !has_room {
            self.missing.push(format!(
                "{file}: left out, because the archive has reached its \
                 largest size"
            ));
        }
    }

    /// Leno's own objects, and the users' objects that concern the mesh.
    pub(super) async fn objects(
        &mut self,
        client: &Client,
        place: &ReportCoverage,
    ) -> io::Result<()> {
        for (version, kind) in INSTALLED {
            let read = list(client, (version, kind), Some(&place.system)).await;
            self.kind(&format!("system/{kind}.json"), read, |_| true)?;
        }
        for (version, kind, begin) in OF_THE_CLUSTER {
            let read = list(client, (version, kind), None).await;
            let mine = |one: &DynamicObject| {
                let name = one.metadata.name.as_deref().unwrap_or_default();
                let known = name == place.system || place.namespaces.contains(name);
                name.starts_with(begin) && (kind != "Namespace" || known)
            };
            self.kind(&format!("system/{kind}.json"), read, mine)?;
        }
        for namespace in &place.namespaces {
            for kind in Kind::ALL {
                // These kinds exist only in files, not as resources of a cluster.
                let of_files = matches!(kind, Kind::Proxy | Kind::ServiceLevelObjective);
                if of_files || matches!(kind, Kind::Namespace | Kind::ConfigMap) {
                    continue;
                }
                let read = list(client, (kind.api_version(), kind.as_str()), Some(namespace)).await;
                self.kind(&format!("objects/{namespace}/{}.json", kind.as_str()), read, |_| true)?;
            }
        }
        let file = "objects/pods.json";
        let pods =
            place.proxies.iter().map(|pod| serde_json::to_value(pod).map_err(io::Error::from));
        let room = self.archive.objects(file, pods.collect::<io::Result<_>>()?)?;
        self.note_full(file, room);
        Ok(())
    }

    /// Adds the objects of one kind, if there are any.
    fn kind(
        &mut self,
        file: &str,
        read: Result<Vec<DynamicObject>, Error>,
        wanted: impl Fn(&DynamicObject) -> bool,
    ) -> io::Result<()> {
        let Some(objects) = self.or_missing(read) else { return Ok(()) };
        let objects: Vec<DynamicObject> = objects.into_iter().filter(wanted).collect();
        if objects.is_empty() {
            return Ok(());
        }
        let values = objects.iter().map(|one| serde_json::to_value(one).map_err(io::Error::from));
        let room = self.archive.objects(file, values.collect::<io::Result<Vec<Value>>>()?)?;
        self.note_full(file, room);
        Ok(())
    }

    /// Adds the recent events.
    pub(super) async fn events(
        &mut self,
        client: &Client,
        place: &ReportCoverage,
    ) -> io::Result<()> {
        for namespace in place.namespaces.iter().chain([&place.system]) {
            let api: Api<Event> = Api::namespaced(client.clone(), namespace);
            let read = api.list(&ListParams::default().limit(MAX_EVENTS)).await;
            let read = read.map_err(Error::api(format!("list events of {namespace}")));
            let Some(events) = self.or_missing(read) else { continue };
            if events.metadata.continue_.is_some_and(|more| !more.is_empty()) {
                self.missing
                    .push(format!("events of {namespace}: there are more than {MAX_EVENTS}"));
            }
            let line = |event: Event| {
                let of = event.involved_object;
                let time = event.last_timestamp.or(event.first_timestamp);
                format!(
                    "{} {} {} {}/{} x{}: {}\n",
                    time.map(|time| time.0.to_string()).unwrap_or_default(),
                    event.type_.unwrap_or_default(),
                    event.reason.unwrap_or_default(),
                    of.kind.unwrap_or_default(),
                    of.name.unwrap_or_default(),
                    event.count.unwrap_or(1),
                    event.message.unwrap_or_default()
                )
            };
            let text: String = events.items.into_iter().map(line).collect();
            let file = format!("events/{namespace}.txt");
            let room = self.archive.text(&file, &text)?;
            self.note_full(&file, room);
        }
        Ok(())
    }

    /// Adds the newest lines of the logs of the control plane, the agents and the proxies. Also adds their logs
    /// from before the last restart.
    pub(super) async fn logs(&mut self, client: &Client, place: &ReportCoverage) -> io::Result<()> {
        let of_parts = place.parts.iter().flat_map(|pod| wanted_logs(pod, |_| true));
        let of_proxies =
            place.proxies.iter().flat_map(|pod| wanted_logs(pod, |name| name == PROXY_CONTAINER));
        let all: Vec<Log> = of_parts.chain(of_proxies).collect();
        let mut read = stream::iter(all.into_iter().map(|log| log.read(client.clone())))
            .buffer_unordered(AT_ONCE);
        while let Some((file, (text, read))) = read.next().await {
            self.or_missing(read);
            if let Some(text) = text {
                let room = self.archive.text(&file, &text)?;
                self.note_full(&file, room);
            }
        }
        Ok(())
    }

    /// Adds the pages of the admin servers.
    pub(super) async fn states(
        &mut self,
        client: &Client,
        place: &ReportCoverage,
    ) -> io::Result<()> {
        let reach = PodAdminClient::new(client.clone());
        let proxies = place.proxies.iter().map(|pod| (pod, Some(ports::ADMIN), OF_PROXY));
        let parts = place.parts.iter().map(|pod| (pod, port_of(pod), pages_of(pod)));
        let running = proxies.chain(parts).filter(|(pod, ..)| phase(pod) == "Running");
        let asked = running.flat_map(|(pod, port, pages)| {
            let of = move |page: &&'static str| Some((name(pod), port?, *page));
            pages.iter().filter_map(of).collect::<Vec<(PodName, u16, &'static str)>>()
        });
        let asked: Vec<_> = asked.collect();
        let ask = |(pod, port, page): (PodName, u16, &'static str)| {
            let reach = reach.clone();
            async move {
                let answer = reach.get_from(&pod, port, &format!("/{page}")).await;
                (format!("states/{}/{}/{page}", pod.namespace, pod.name), answer)
            }
        };
        let mut answers = stream::iter(asked.into_iter().map(ask)).buffer_unordered(AT_ONCE);
        while let Some((file, answer)) = answers.next().await {
            if let Some(reply) = self.or_missing(answer) {
                let room = self.archive.text(&file, &reply.body)?;
                self.note_full(&file, room);
            }
        }
        Ok(())
    }
}

/// The admin server's pages that are included, for a pod of the control plane or an agent.
fn pages_of(pod: &Pod) -> &'static [&'static str] {
    match part(pod) {
        Some("leno-agent") => &["ready", "captures", "metrics"],
        _ => &["ready", "metrics"],
    }
}

fn is_part(pod: &Pod) -> bool {
    PARTS.into_iter().any(|(name, _)| part(pod) == Some(name))
}

/// The port of the admin server of a pod of the control plane or an agent; `None` for pods of which only the logs are
/// included.
fn port_of(pod: &Pod) -> Option<u16> {
    PARTS.into_iter().find(|(name, _)| part(pod) == Some(name))?.1
}

fn part(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get("app.kubernetes.io/name").map(String::as_str)
}

/// One log of a container, to be read.
struct Log {
    pod: PodName,
    container: String,
    /// Whether this is the log from before the last restart.
    previous: bool,
}

fn wanted_logs(pod: &Pod, wanted: impl Fn(&str) -> bool) -> Vec<Log> {
    let mut logs = Vec::new();
    for status in statuses(pod).filter(|status| wanted(&status.name)) {
        let log = |previous| Log { pod: name(pod), container: status.name.clone(), previous };
        logs.push(log(false));
        if status.restart_count > 0 {
            logs.push(log(true));
        }
    }
    logs
}

impl Log {
    /// Reads a log. Returns its file in the report, the text that was read, and whether the text is complete; the
    /// text is `None` if there is no log, for example because the container waits.
    async fn read(self, client: Client) -> (String, (Option<String>, Result<(), Error>)) {
        let Self { pod: PodName { namespace, name }, container, previous } = self;
        let which = if previous { ".previous" } else { "" };
        let file = format!("logs/{namespace}/{name}/{container}{which}.log");
        let params = LogParams {
            container: Some(container.clone()),
            previous,
            tail_lines: Some(LOG_LINES),
            timestamps: true,
            ..LogParams::default()
        };
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        let what = format!("read {file}");
        let read = match timeout(LOG_BOUND, pods.log_stream(&name, &params)).await {
            Ok(Ok(log)) => {
                let (text, read) = tail(log, LOG_BOUND).await;
                (Some(text), read.map_err(|error| Error::Pod(what, error.to_string())))
            }
            Ok(Err(leno_kube::Error::Api(status))) if status.code == 400 => (None, Ok(())),
            Ok(Err(error)) => (None, Err(Error::api(what)(error))),
            Err(_) => (None, Err(Error::Late(what, LOG_BOUND.as_secs()))),
        };
        (file, read)
    }
}

/// The objects of a kind; empty if the cluster does not have the kind.
async fn list(
    client: &Client,
    (version, kind): (&str, &str),
    namespace: Option<&str>,
) -> Result<Vec<DynamicObject>, Error> {
    let (group, plain) = version.split_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, plain, kind));
    let api: Api<DynamicObject> = match namespace {
        Some(name) => Api::namespaced_with(client.clone(), name, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let asked = ListParams::default().limit(MAX_OBJECTS as u32);
    match api.list(&asked).await {
        Ok(list) => Ok(list.items),
        Err(error) if crate::objects::is_absent(&error) => Ok(Vec::new()),
        Err(error) => {
            let place = namespace.map(|name| format!(" of {name}")).unwrap_or_default();
            Err(Error::api(format!("list objects of kind {kind}{place}"))(error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_admin_server_is_asked_for_what_it_knows_of_capture() {
        let pod = |part: &str| -> Pod {
            let labels = format!(r#"{{"labels":{{"app.kubernetes.io/name":"{part}"}}}}"#);
            serde_json::from_str(&format!(r#"{{"metadata":{labels}}}"#)).unwrap()
        };
        assert_eq!(pages_of(&pod("leno-agent")), ["ready", "captures", "metrics"]);
        assert_eq!(pages_of(&pod("leno-controller")), ["ready", "metrics"]);
        let all = [
            ("leno-agent", true, Some(15025)),
            ("leno-controller", true, Some(15020)),
            ("leno-node", true, None),
            ("web", false, None),
        ];
        for (part, is, port) in all {
            assert_eq!((is_part(&pod(part)), port_of(&pod(part))), (is, port), "{part}");
        }
    }
}
