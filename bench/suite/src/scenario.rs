//! The scenarios: small typed files, each with the source whose work it reproduces.

use leno_measure::load::Protocol;
use serde::Deserialize;

use crate::error::{Error, Result};

/// The files, in the order in which they are listed.
const FILES: &[(&str, &str)] = &[
    ("http-1k", include_str!("../scenarios/http-1k.yaml")),
    ("grpc-1k", include_str!("../scenarios/grpc-1k.yaml")),
    ("grpc-1k-open", include_str!("../scenarios/grpc-1k-open.yaml")),
    ("http-10k", include_str!("../scenarios/http-10k.yaml")),
    ("grpc-4k", include_str!("../scenarios/grpc-4k.yaml")),
    ("tcp-64k", include_str!("../scenarios/tcp-64k.yaml")),
    ("connections", include_str!("../scenarios/connections.yaml")),
    ("stream", include_str!("../scenarios/stream.yaml")),
    ("throughput", include_str!("../scenarios/throughput.yaml")),
    ("saturation", include_str!("../scenarios/saturation.yaml")),
    ("faces", include_str!("../scenarios/faces.yaml")),
    ("restart", include_str!("../scenarios/restart.yaml")),
];

/// Processors that the published rates are for: four nodes of a few processors each, about.
const PUBLISHED_CPUS: f64 = 20.0;

/// What is done.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// In one line.
    pub about: String,
    /// Whose work it reproduces.
    pub source: String,
    /// What is spoken.
    pub protocol: Protocol,
    /// Services that are called side by side, each with its own workload.
    #[serde(default = "one")]
    pub services: u32,
    /// How long an application works before it answers, in milliseconds.
    #[serde(default)]
    pub work_ms: u64,
    /// Bytes of a request's body, gRPC message or TCP message.
    #[serde(default)]
    pub request_bytes: usize,
    /// Bytes of an HTTP answer; gRPC and TCP answer with what they were sent.
    #[serde(default)]
    pub response_bytes: usize,
    /// Connections to each service.
    pub connections: usize,
    /// Streams at once on each connection.
    #[serde(default = "one_stream")]
    pub streams: usize,
    /// A new connection for each request.
    #[serde(default)]
    pub new_connection: bool,
    /// When requests are sent.
    pub pace: Pace,
    /// What the first service calls before it answers; then it alone is under load.
    #[serde(default)]
    pub calls: Vec<Call>,
    /// What happens in the middle of the measurement.
    #[serde(default)]
    pub disturbance: Option<Disturbance>,
}

/// A call of the first service to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// The number of the other.
    pub service: u32,
    /// Over gRPC instead of HTTP/1.1.
    #[serde(default)]
    pub grpc: bool,
}

/// What happens in the middle of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Disturbance {
    /// Every proxy and the control plane are killed and started again.
    Restart,
}

/// When requests are sent.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// So many a second to each service, whatever the services do.
    RatePerService(f64),
    /// So many a second, one measurement for each of them.
    Rates(Vec<f64>),
    /// In a closed loop with pauses up to this long, in milliseconds.
    ThinkMs(u64),
    /// In a closed loop without pauses.
    Saturate,
    /// At the highest rate that keeps the 99th percentile under this, in milliseconds.
    SearchP99Ms(u64),
}

fn one() -> u32 {
    1
}

fn one_stream() -> usize {
    1
}

/// All of them.
///
/// # Errors
/// Never with the files this program is built with; a test says so.
pub fn all() -> Result<Vec<Scenario>> {
    FILES.iter().map(|(name, text)| parse(name, text)).collect()
}

/// The one of this name.
///
/// # Errors
/// When there is none; says which there are.
pub fn find(name: &str) -> Result<Scenario> {
    let Some((name, text)) = FILES.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = FILES.iter().map(|(known, _)| *known).collect();
        let reason = format!("there is no scenario {name:?}; there are: {}", known.join(", "));
        return Err(Error::Refused(reason));
    };
    parse(name, text)
}

fn parse(name: &str, text: &str) -> Result<Scenario> {
    let wrong = |error| Error::Refused(format!("the scenario {name} is damaged: {error}"));
    serde_saphyr::from_str(text).map_err(wrong)
}

/// The part of the published rates that a machine of so many processors is asked for: load,
/// proxies, applications and control plane share them, which had nodes of their own.
#[must_use]
pub fn usual_scale(cpus: usize) -> f64 {
    (cpus as f64 / PUBLISHED_CPUS).min(1.0)
}

impl Scenario {
    /// Requests a second to each service, where there is a rate.
    #[must_use]
    pub fn rate_per_service(&self, scale: f64) -> Option<f64> {
        match self.pace {
            Pace::RatePerService(rate) => Some(rate * scale),
            _ => None,
        }
    }

    /// The rates that are measured one after the other; none where there is one measurement.
    #[must_use]
    pub fn steps(&self) -> Vec<Option<f64>> {
        match &self.pace {
            Pace::Rates(rates) => rates.iter().map(|rate| Some(*rate)).collect(),
            _ => vec![None],
        }
    }

    /// Services that the load goes to.
    #[must_use]
    pub fn loaded(&self) -> u32 {
        if self.calls.is_empty() { self.services } else { 1 }
    }

    /// Whether what passes is HTTP of some kind.
    #[must_use]
    pub fn is_http(&self) -> bool {
        self.protocol != Protocol::Tcp
    }

    /// Whether what passes is HTTP/2.
    #[must_use]
    pub fn is_http2(&self) -> bool {
        matches!(self.protocol, Protocol::Http2 | Protocol::Grpc | Protocol::GrpcStream)
    }

    /// The value of `appProtocol` of a service.
    #[must_use]
    pub fn app_protocol(&self, service: u32) -> &'static str {
        if self.calls.iter().any(|call| call.service == service && call.grpc) {
            return "grpc";
        }
        match self.protocol {
            Protocol::Http1 => "http",
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
    fn every_file_is_read_and_named_as_the_scenario_in_it() {
        let all = all().unwrap();
        for ((name, _), scenario) in FILES.iter().zip(&all) {
            assert_eq!(name, &scenario.name);
            assert!(scenario.connections > 0 && scenario.services > 0, "{name}");
            assert!(!scenario.source.is_empty(), "{name}");
            assert!(
                scenario.calls.iter().all(|call| (1..scenario.services).contains(&call.service))
            );
        }
        assert_eq!(find("http-1k").unwrap().rate_per_service(0.1), Some(100.0));
        assert!(find("nothing").unwrap_err().to_string().contains("tcp-64k"));
    }

    #[test]
    fn a_small_machine_gets_a_small_part() {
        assert_eq!((usual_scale(2), usual_scale(64)), (0.1, 1.0));
    }
}
