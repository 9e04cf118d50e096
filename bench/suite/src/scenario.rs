//! The scenarios, which a typed file defines. It names the source of the load for each.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use leno_measure::load::Protocol;
use serde::Deserialize;

/// The file of the scenarios, built into this program.
const SCENARIOS: &str = include_str!("../data/scenarios.yaml");

/// The number of processors for which the published rates were chosen: about four nodes with a few processors each.
const PUBLISHED_CPUS: f64 = 20.0;

/// The workload in which the load generator runs.
pub(crate) const CLIENT: &str = "client";

/// The first workload that floods a service which is not measured.
pub(crate) const NEIGHBOUR: &str = "neighbour";

/// The name of a workload that floods a service.
pub(crate) fn neighbour(nth: usize) -> String {
    if nth == 0 { NEIGHBOUR.to_owned() } else { format!("{NEIGHBOUR}-{}", nth + 1) }
}

/// A scenario.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of the scenario.
    pub name: String,
    /// A description in one line.
    pub about: String,
    /// The source of the load that the scenario reproduces.
    pub source: String,
    /// Whether the scenario compares one proxy with others, as `leno bench http` and `leno bench mesh` do.
    #[serde(default)]
    pub one_proxy: bool,
    /// The protocol of the load.
    pub protocol: Protocol,
    /// The number of services. Each has its own workload.
    #[serde(default = "one")]
    pub services: u32,
    /// The names of the services; by default `s0`, `s1`, ...
    #[serde(default)]
    pub names: Vec<String>,
    /// Services that do not speak HTTP in the real application. A mesh must forward their traffic as opaque bytes.
    #[serde(default)]
    pub opaque: Vec<u32>,
    /// How long an application works before it answers, in milliseconds.
    #[serde(default)]
    pub work_ms: u64,
    /// The number of bytes of a request's body, gRPC message or TCP message.
    #[serde(default)]
    pub request_bytes: usize,
    /// The number of bytes of an HTTP answer. gRPC and TCP services echo what they receive.
    #[serde(default)]
    pub response_bytes: usize,
    /// The number of connections to each service.
    pub connections: usize,
    /// The number of concurrent streams on each connection.
    #[serde(default = "one_stream")]
    pub streams: usize,
    /// Whether to open a new connection for each request.
    #[serde(default)]
    pub new_connection: bool,
    /// When requests are sent.
    pub pace: Pace,
    /// A rate at which a closed loop is measured a second time, as an open loop.
    #[serde(default)]
    pub also_at: Option<f64>,
    /// The paths that each connection requests in turn; `/` by default.
    #[serde(default)]
    pub paths: Vec<String>,
    /// The calls that services make before they answer. If there are any, only the first service is under load.
    #[serde(default)]
    pub calls: Vec<Call>,
    /// Clients that flood other services. The measured services are always the first ones.
    #[serde(default)]
    pub neighbours: Vec<Neighbour>,
    /// How many connections of the client to the first service are upgraded to WebSockets and stay open during the
    /// load. A message is sent on each every second.
    #[serde(default)]
    pub websockets: usize,
    /// The disturbance during the measurement.
    #[serde(default)]
    pub disturbance: Option<Disturbance>,
}

/// A call of one service to another.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The number of the calling service; the first by default.
    #[serde(default)]
    pub from: u32,
    /// The number of the called service.
    pub service: u32,
    /// The endings of the paths (without query) for which the call is made; none means all paths.
    #[serde(default)]
    pub on: Vec<String>,
    /// Whether to call over gRPC instead of HTTP/1.1.
    #[serde(default)]
    pub grpc: bool,
}

/// A workload that floods a service while other services are measured.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Neighbour {
    /// The number of the service that it floods.
    pub service: u32,
    /// The number of connections that the neighbour opens.
    pub connections: usize,
    /// What the neighbour sends.
    #[serde(default)]
    pub sends: Flood,
}

/// What a neighbour sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flood {
    /// Requests, as fast as they are answered.
    #[default]
    Requests,
    /// This many requests a second, each on a connection of its own.
    ConnectionsPerS(f64),
    /// Bodies of this many bytes, as fast as they are answered.
    Bodies(usize),
    /// A request for this many bytes on each connection, whose response is not read.
    Unread(usize),
}

/// A disturbance during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Disturbance {
    /// Every proxy and the control plane are killed and started again.
    Restart,
    /// New processes take over from the proxies again and again, as in an update.
    Upgrade {
        /// The time between two updates, in milliseconds.
        every_ms: u64,
    },
    /// The configuration of the measured route changes repeatedly.
    Push {
        /// The time between two changes, in milliseconds.
        every_ms: u64,
    },
    /// All services are endpoints of a single service. All endpoints but the first are removed and added again in turn.
    Churn {
        /// The number of endpoints that are added or removed per second.
        changes_per_s: u32,
    },
}

/// The time between two lists of endpoints. All changes within a tenth of a second are written together, because every
/// control plane sends them together in any case.
const CHURN_PERIOD: Duration = Duration::from_millis(100);

impl Disturbance {
    /// The time between two revisions of the configuration; `None` if there is only one revision.
    pub fn period(self) -> Option<Duration> {
        match self {
            Self::Restart => None,
            Self::Push { every_ms } | Self::Upgrade { every_ms } => {
                Some(Duration::from_millis(every_ms))
            }
            Self::Churn { .. } => Some(CHURN_PERIOD),
        }
    }

    /// The numbers of the endpoints that exist in a revision, out of `of` endpoints. In revision 0 all exist. The first
    /// endpoint always stays; the others leave and return in turn.
    pub fn endpoints(self, of: u32, revision: u64) -> Vec<u32> {
        let Self::Churn { changes_per_s } = self else { return (0..of).collect() };
        let others = u64::from(of.saturating_sub(1)).max(1);
        let each = u64::from(changes_per_s) * CHURN_PERIOD.as_millis() as u64 / 1000;
        let changes = revision * each.max(1);
        // The nth of the other endpoints exists if it has changed an even number of times.
        let is_there = |nth: &u32| {
            *nth == 0 || ((changes + others - u64::from(*nth)) / others).is_multiple_of(2)
        };
        (0..of).filter(is_there).collect()
    }
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// An open loop at a fixed rate to each service.
    RatePerService(f64),
    /// An open loop at several total rates, with one measurement for each.
    Rates(Vec<f64>),
    /// Several numbers of users, with one measurement for each. Every user has a connection.
    Users {
        /// The numbers of users.
        counts: Vec<usize>,
        /// The number of requests that each user sends per second.
        requests_per_s: f64,
    },
    /// A closed loop with pauses of up to this many milliseconds.
    ThinkMs(u64),
    /// A closed loop without pauses.
    Saturate,
    /// A search for the highest rate at which the 99th percentile stays under this number of milliseconds.
    SearchP99Ms(u64),
}

fn one() -> u32 {
    1
}

fn one_stream() -> usize {
    1
}

/// All scenarios.
pub fn all() -> Result<Vec<Scenario>> {
    let wrong = |error| anyhow!("the file of scenarios is damaged: {error}");
    serde_saphyr::from_str(SCENARIOS).map_err(wrong)
}

/// Looks up a scenario by its name.
///
/// # Errors
/// If no scenario has this name. The error lists all names.
pub fn find(name: &str) -> Result<Scenario> {
    let mut all = all()?;
    let Some(nth) = all.iter().position(|one| one.name == name) else {
        let known: Vec<String> = all.into_iter().map(|one| one.name).collect();
        bail!("there is no scenario {name:?}: use one of {}", known.join(", "));
    };
    Ok(all.swap_remove(nth))
}

/// Parses the name of a scenario, optionally with an `@` and the steps to measure, `faces@60,600`.
///
/// # Errors
/// If there is no such scenario or step. The error lists the existing ones.
pub fn asked_for(text: &str) -> Result<Scenario> {
    let Some((name, steps)) = text.split_once('@') else { return find(text) };
    let mut scenario = find(name)?;
    let known: Vec<f64> = scenario.steps().into_iter().flatten().collect();
    let mut wanted = Vec::new();
    for step in steps.split(',') {
        let step = step.parse().ok().filter(|step| known.contains(step));
        wanted.push(step.ok_or_else(|| {
            let known: Vec<String> = known.iter().map(f64::to_string).collect();
            let known = if known.is_empty() { "no steps".to_owned() } else { known.join(", ") };
            anyhow!("there is no {text:?}: {name} has {known}")
        })?);
    }
    match &mut scenario.pace {
        Pace::Rates(rates) => rates.retain(|rate| wanted.contains(rate)),
        Pace::Users { counts, requests_per_s } => {
            counts.retain(|users| wanted.contains(&(*users as f64 * *requests_per_s)));
        }
        _ => scenario.pace = Pace::Rates(wanted),
    }
    Ok(scenario)
}

/// The share of the published rates that a machine with this many processors can generate. On one machine the load, the
/// proxies, the applications and the control plane share the processors; in the published measurements they had nodes
/// of their own.
pub fn usual_scale(cpus: usize) -> f64 {
    (cpus as f64 / PUBLISHED_CPUS).min(1.0)
}

impl Scenario {
    /// The rate for each service, in requests a second, if the scenario has such a rate.
    pub fn rate_per_service(&self, scale: f64) -> Option<f64> {
        match self.pace {
            Pace::RatePerService(rate) => Some(rate * scale),
            _ => None,
        }
    }

    /// The rates to measure one after the other. `None` stands for the scenario's pace without a rate.
    pub fn steps(&self) -> Vec<Option<f64>> {
        match &self.pace {
            Pace::Rates(rates) => rates.iter().map(|rate| Some(*rate)).collect(),
            Pace::Users { counts, requests_per_s } => {
                counts.iter().map(|users| Some(*users as f64 * requests_per_s)).collect()
            }
            _ => std::iter::once(None).chain(self.also_at.map(Some)).collect(),
        }
    }

    /// Connections to each service at a step.
    pub fn connections_at(&self, step: Option<f64>) -> usize {
        match (&self.pace, step) {
            (Pace::Users { requests_per_s, .. }, Some(rate)) => (rate / requests_per_s) as usize,
            _ => self.connections,
        }
    }

    /// The number of services to which load is sent. These are the first ones.
    pub fn loaded(&self) -> u32 {
        match self.calls[..] {
            [] if !self.churns() => self.services.saturating_sub(self.neighbours.len() as u32),
            _ => 1,
        }
    }

    /// Whether new processes take over from the proxies.
    pub fn upgrades(&self) -> bool {
        matches!(self.disturbance, Some(Disturbance::Upgrade { .. }))
    }

    /// Whether the scenario can be measured only in the lab, on one machine.
    pub fn is_of_the_lab(&self) -> bool {
        self.upgrades() || self.websockets > 0 || self.neighbours.len() > 1
    }

    /// Whether endpoints come and go.
    pub fn churns(&self) -> bool {
        matches!(self.disturbance, Some(Disturbance::Churn { .. }))
    }

    /// The name of a service, which is also the name of its workload.
    pub fn service(&self, nth: u32) -> String {
        self.names.get(nth as usize).cloned().unwrap_or_else(|| format!("s{nth}"))
    }

    /// The names of the workloads; those that generate load are first.
    pub(crate) fn workloads(&self) -> Vec<String> {
        let mut all = vec![CLIENT.to_owned()];
        all.extend((0..self.neighbours.len()).map(neighbour));
        all.extend((0..self.services).map(|nth| self.service(nth)));
        all
    }

    /// Whether the scenario models a real application. The services of such a scenario have names.
    pub fn is_an_application(&self) -> bool {
        !self.names.is_empty()
    }

    /// The path of all requests; `/` if there are several paths, which [`Self::paths_in_turn`] returns.
    pub fn path(&self) -> &str {
        match &self.paths[..] {
            [one] => one,
            _ => "/",
        }
    }

    /// The paths that each connection requests in turn; empty if all requests have the same path.
    pub fn paths_in_turn(&self) -> &[String] {
        if self.paths.len() > 1 { &self.paths } else { &[] }
    }

    /// Whether a workload calls other services.
    pub fn has_calls(&self, workload: &str) -> bool {
        self.calls.iter().any(|call| self.service(call.from) == workload)
    }

    /// Whether the traffic is a mix of HTTP/1.1 and gRPC calls.
    pub fn is_mixed(&self) -> bool {
        self.calls.iter().any(|call| call.grpc)
    }

    /// Whether the traffic is any version of HTTP.
    pub fn is_http(&self) -> bool {
        self.protocol != Protocol::Tcp
    }

    /// The value of `appProtocol` of a service.
    pub fn app_protocol(&self, service: u32) -> &'static str {
        if self.calls.iter().any(|call| call.service == service && call.grpc) {
            return "grpc";
        }
        match self.protocol {
            Protocol::Http1 | Protocol::WebSocket => "http",
            Protocol::Http2 => "kubernetes.io/h2c",
            Protocol::Grpc | Protocol::GrpcStream => "grpc",
            Protocol::Tcp => "tcp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_is_read_and_makes_sense() {
        let all = all().unwrap();
        for scenario in &all {
            let name = &scenario.name;
            assert_eq!(all.iter().filter(|one| one.name == *name).count(), 1, "{name}");
            assert!(scenario.also_at.is_none() || scenario.pace == Pace::Saturate, "{name}");
            assert!(scenario.connections > 0 && scenario.services > 0, "{name}");
            assert!(!scenario.source.is_empty(), "{name}");
            let inner = 1..scenario.services;
            assert!(scenario.calls.iter().all(|call| inner.contains(&call.service)), "{name}");
            assert!(scenario.opaque.iter().all(|service| inner.contains(service)), "{name}");
            let loaded = scenario.loaded()..scenario.services;
            assert!(scenario.neighbours.iter().all(|one| loaded.contains(&one.service)), "{name}");
            let named = scenario.names.len();
            assert!(named == 0 || named == scenario.services as usize, "{name}");
            assert!(scenario.paths.iter().all(|path| path.starts_with('/')), "{name}");
        }
        assert_eq!(find("http-1k").unwrap().rate_per_service(0.1), Some(100.0));
        assert!(find("nothing").unwrap_err().to_string().contains("tcp-64k"));
    }

    #[test]
    fn endpoints_go_and_come_back_in_turn_and_the_first_stays() {
        let churn = find("churn").unwrap();
        let disturbance = churn.disturbance.unwrap();
        let there = |revision| disturbance.endpoints(churn.services, revision);
        assert_eq!(there(0), (0..10).collect::<Vec<_>>());
        assert_eq!(there(1), [0, 6, 7, 8, 9], "the first five of nine are gone");
        assert_eq!(there(2), [0, 1], "four more are, and the first of them is back");
        let mut changes = 0;
        for revision in 1..=100 {
            let (before, after) = (there(revision - 1), there(revision));
            changes += (0..10).filter(|nth| before.contains(nth) != after.contains(nth)).count();
            assert_eq!(after[0], 0);
        }
        assert_eq!(changes, 500, "50 a second over 10 seconds");
        assert_eq!(Disturbance::Restart.endpoints(3, 7), [0, 1, 2]);
    }

    #[test]
    fn users_are_connections_with_a_rate_each() {
        let shop = find("teastore").unwrap();
        assert_eq!(shop.steps(), [25.0, 50.0, 100.0, 200.0].map(Some));
        assert_eq!(shop.connections_at(Some(200.0)), 40);
        assert_eq!((shop.service(6).as_str(), shop.paths.len(), shop.loaded()), ("db", 8, 1));
        assert!(shop.has_calls("persistence") && !shop.has_calls("image"));
        assert_eq!((shop.path(), shop.paths_in_turn().len()), ("/", 8));
        let faces = find("faces").unwrap();
        assert_eq!((faces.path(), faces.paths_in_turn().len()), ("/center/", 0));
        assert!(faces.is_an_application() && !find("http-1k").unwrap().is_an_application());
    }

    #[test]
    fn some_steps_of_a_scenario_can_be_asked_for() {
        let steps = |text: &str| asked_for(text).unwrap().steps();
        assert_eq!(steps("faces@600,60"), [60.0, 600.0].map(Some));
        assert_eq!(steps("teastore@200"), [Some(200.0)]);
        assert_eq!(steps("http-1k"), [None]);
        assert_eq!(steps("keepalive-1k"), [None, Some(8000.0)]);
        assert_eq!(steps("keepalive-1k@8000"), [Some(8000.0)]);
        for (text, known) in [
            ("faces@61", "faces has 60, 120, 240, 600, 1200"),
            ("faces@", "there is no \"faces@\""),
            ("http-1k@1000", "http-1k has no steps"),
            ("face@60", "there is no scenario \"face\""),
        ] {
            let refused = asked_for(text).unwrap_err().to_string();
            assert!(refused.contains(known), "{refused}");
        }
    }

    #[test]
    fn a_small_machine_gets_a_small_part() {
        assert_eq!((usual_scale(2), usual_scale(64)), (0.1, 1.0));
    }
}
