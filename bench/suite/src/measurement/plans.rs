//! The load of a scenario: one plan for each service, and the flood by a neighbour.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_measure::load::{Pace, Plan, Protocol};

use super::options::Options;
use crate::application::BYTES;
use crate::scenario::{self, Flood, Neighbour, Scenario};

const WEBSOCKET_BYTES: usize = 64;

/// The load on each service; `rate` replaces the scenario's own.
pub(crate) fn load_plans<A: Copy + Into<SocketAddr>>(
    addresses: &[A],
    scenario: &Scenario,
    options: &Options,
    rate: Option<f64>,
) -> Result<Vec<Plan>> {
    let pace = match (rate.or(scenario.rate_per_service(options.scale)), &scenario.pace) {
        (Some(rate), _) => Pace::Rate(rate),
        (None, scenario::Pace::ThinkMs(ms)) => Pace::Think(Duration::from_millis(*ms)),
        (None, _) => Pace::Saturate,
    };
    ensure!(!addresses.is_empty(), "there is no service");
    let published = rate.map(|rate| rate / options.scale);
    let plan = |address: &A| Plan {
        protocol: scenario.protocol,
        streams: scenario.streams,
        pace,
        connections: scenario.connections_at(published),
        new_connection: scenario.new_connection,
        primed: true,
        method: if scenario.request_bytes > 0 { "POST" } else { "GET" }.to_owned(),
        body_size: scenario.request_bytes,
        paths: scenario.paths_in_turn().to_vec(),
        ..Plan::new(
            format!("http://{}{}", (*address).into(), scenario.path()),
            1.0,
            options.duration,
        )
    };
    Ok(addresses.iter().take(scenario.loaded() as usize).map(plan).collect())
}

/// The same load with another duration.
pub(crate) fn lasting(plans: &[Plan], duration: Duration) -> Vec<Plan> {
    plans.iter().map(|plan| Plan { duration, ..plan.clone() }).collect()
}

/// The neighbour's load on a service for `duration`.
pub(crate) fn flood(
    neighbour: Neighbour,
    scenario: &Scenario,
    addresses: &[impl Copy + Into<SocketAddr>],
    duration: Duration,
) -> Result<Plan> {
    let address = addresses.get(neighbour.service as usize).context("no such service")?;
    let address = (*address).into();
    let plan = Plan {
        protocol: scenario.protocol,
        pace: Pace::Saturate,
        connections: neighbour.connections,
        ..Plan::new(format!("http://{address}/"), 1.0, duration)
    };
    Ok(match neighbour.sends {
        Flood::Requests => plan,
        Flood::ConnectionsPerS(rate) => {
            Plan { pace: Pace::Rate(rate), new_connection: true, ..plan }
        }
        Flood::Bodies(body_size) => Plan { method: "POST".to_owned(), body_size, ..plan },
        Flood::Unread(size) => {
            Plan { url: format!("http://{address}{BYTES}{size}"), unread: true, ..plan }
        }
    })
}

/// The WebSockets that stay open during the load, for `duration`; `None` if the scenario has none.
pub(crate) fn websockets(
    scenario: &Scenario,
    addresses: &[impl Copy + Into<SocketAddr>],
    duration: Duration,
) -> Option<Plan> {
    let address = (*addresses.first()?).into();
    let connections = scenario.websockets;
    (connections > 0).then(|| Plan {
        protocol: Protocol::WebSocket,
        connections,
        body_size: WEBSOCKET_BYTES,
        ..Plan::new(format!("http://{address}/"), connections as f64, duration)
    })
}
