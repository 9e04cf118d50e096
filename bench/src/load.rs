//! The load: established generators where there are good ones, the suite's own otherwise. All run from
//! here or inside a workload of a mesh.

pub(crate) mod client_address;
mod origin;
pub(crate) mod tcp;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use leno_suite::generator::Generator;
use leno_suite::interrupt::Interrupt;
use leno_testkit::load::{MAX_STREAMS, Pace, Plan, Protocol, Report};

pub(crate) use origin::{Count, Origin};

use crate::scenario::Scenario;

/// HTTP/2 connections, and streams on each: what a busy sidecar has towards a few others.
const H2_CONNECTIONS: usize = 4;
const H2_STREAMS: usize = 10;
/// Connections of large bodies and bulk: enough to keep a worker busy, few enough that each makes
/// progress.
const BULK_CONNECTIONS: usize = 4;
/// Bytes of a gRPC message.
const MESSAGE: usize = 128;
/// Bytes of an uploaded body.
const UPLOAD: usize = 1024 * 1024;

/// The target of the load.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) origin: Origin,
    /// `host:port`.
    pub(crate) address: String,
}

impl Target {
    /// Runs a closed loop; `connections` applies if the scenario has no number of its own.
    pub(crate) fn saturate(
        &self,
        scenario: Scenario,
        connections: usize,
        duration: Duration,
    ) -> Result<Count> {
        let mut plan = Plan {
            pace: Pace::Saturate,
            streams: H2_STREAMS,
            ..self.plan(scenario, connections, (1.0, duration))
        };
        let generator = match scenario {
            Scenario::TcpRoundTrip | Scenario::TcpBulk => {
                let bulk = scenario == Scenario::TcpBulk;
                let plan = tcp::Plan::new(&self.address, bulk, plan.connections, duration);
                return tcp::start(&self.origin, &plan);
            }
            Scenario::H2 | Scenario::GrpcUnary => Generator::H2load,
            _ => Generator::Wrk,
        };
        if scenario == Scenario::Upload1m {
            (plan.method, plan.body_size) = ("POST".into(), UPLOAD);
        }
        let Report { requests, errors, requests_per_s, .. } = self.run(generator, plan)?;
        Ok(Count { requests, errors, requests_per_s })
    }

    /// Runs an open loop at `rate` requests a second.
    pub(crate) fn pace(
        &self,
        scenario: Scenario,
        connections: usize,
        pace: (f64, Duration),
    ) -> Result<Report> {
        self.run(Generator::Leno, self.plan(scenario, connections, pace))
    }

    fn plan(
        &self,
        scenario: Scenario,
        connections: usize,
        (rate, duration): (f64, Duration),
    ) -> Plan {
        // A request over HTTP/2 waits for no other: there are more streams than requests in flight.
        let (protocol, streams, body_size) = match scenario {
            Scenario::H2 => (Protocol::Http2, MAX_STREAMS, 0),
            Scenario::GrpcUnary => (Protocol::Grpc, MAX_STREAMS, MESSAGE),
            _ => (Protocol::Http1, 1, 0),
        };
        let url = format!("http://{}{}", self.address, scenario.path());
        Plan {
            protocol,
            streams,
            body_size,
            connections: connections_of(scenario, connections),
            new_connection: scenario == Scenario::NewConnection,
            ..Plan::new(url, rate, duration)
        }
    }

    fn run(&self, generator: Generator, plan: Plan) -> Result<Report> {
        let client = |program: &Path| Ok(self.origin.command(program));
        generator.run(&client, &[plan], &Interrupt::default())
    }
}

/// The number of connections of a scenario; `otherwise` if it has none of its own.
pub(crate) fn connections_of(scenario: Scenario, otherwise: usize) -> usize {
    match scenario {
        Scenario::H2 | Scenario::GrpcUnary => H2_CONNECTIONS,
        Scenario::Download1m | Scenario::Upload1m | Scenario::TcpBulk => BULK_CONNECTIONS,
        _ => otherwise,
    }
}
