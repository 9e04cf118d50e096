//! An open-loop load generator for HTTP/1.1, and a closed-loop one to find saturation.
//!
//! Requests are due at fixed moments, whatever the server does; each goes to a free connection or
//! waits for one, and its latency counts from the moment it was due. So a server that stalls for
//! a second shows a second of bad latencies, not one slow request (no coordinated omission).
//!
//! ```text
//!   clock ── due ──► backlog ── free connection ──► request ── response ──► histogram
//!              └───────────────── latency ───────────────────────┘
//!              └─── lag ───┘ (only where a connection was free: the generator's own delay)
//! ```

pub mod clock;
mod connection;
mod record;
mod worker;

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use record::Tally;
pub use record::{Latency, MAX_LAG_US, MAX_LATENCY_US, Report};

/// Most connections of one plan; far above what one proxy is asked to hold in a test.
pub const MAX_CONNECTIONS: usize = 20_000;

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: so many requests a second, evenly spaced.
    Rate(f64),
    /// Closed loop: each connection sends as soon as it has its response.
    Saturate,
}

/// What load to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `http://host[:port]/path`.
    pub url: String,
    /// When requests are sent.
    pub pace: Pace,
    /// Connections kept at most.
    pub connections: usize,
    /// A new connection for each request.
    pub new_connection: bool,
    /// How long to measure.
    pub duration: Duration,
    /// Load before that, not measured.
    pub warm_up: Duration,
    /// Method of the request.
    pub method: String,
    /// Bytes of request body; none when 0.
    pub body_size: usize,
    /// More header fields.
    pub headers: Vec<(String, String)>,
    /// How long a request may take, from its first byte.
    pub timeout: Duration,
    /// Threads; one drives some 40,000 requests a second.
    pub threads: usize,
}

impl Plan {
    /// GET `url` at `rate` requests a second for `duration` over 16 connections.
    pub fn new(url: impl Into<String>, rate: f64, duration: Duration) -> Self {
        Plan {
            url: url.into(),
            pace: Pace::Rate(rate),
            connections: 16,
            new_connection: false,
            duration,
            warm_up: Duration::ZERO,
            method: "GET".into(),
            body_size: 0,
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            threads: 1,
        }
    }
}

/// What every connection sends, and where to.
#[derive(Clone, Debug)]
struct Target {
    addresses: Vec<SocketAddr>,
    request: Vec<u8>,
    head_request: bool,
    new_connection: bool,
    timeout: Duration,
}

/// Runs `plan` to its end and reports. Blocks; the load has threads of its own.
pub fn run(plan: &Plan) -> Result<Report> {
    check(plan)?;
    let target = target(plan)?;
    let threads = plan.threads.min(plan.connections);
    let start = Instant::now();
    let cpu_before = crate::usage::cpu_of_process(std::process::id())?;
    let tallies = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|i| {
                let share = worker::Share::of(plan, i, threads, start);
                let target = &target;
                scope.spawn(move || worker::run(target, share))
            })
            .collect();
        running
            .into_iter()
            .map(|t| t.join().map_err(|_| anyhow!("a load thread panicked"))?)
            .collect::<Result<Vec<Tally>>>()
    })?;
    let cpu = crate::usage::cpu_of_process(std::process::id())? - cpu_before;
    Ok(Report::new(plan, &Tally::merge(tallies), cpu))
}

fn check(plan: &Plan) -> Result<()> {
    if plan.connections == 0 || plan.connections > MAX_CONNECTIONS {
        bail!("connections must be 1 to {MAX_CONNECTIONS}, not {}", plan.connections);
    }
    if let Pace::Rate(rate) = plan.pace
        && !(rate.is_finite() && rate > 0.0)
    {
        bail!("the rate must be above 0 requests a second, not {rate}");
    }
    if plan.threads == 0 || plan.duration.is_zero() {
        bail!("threads and duration must be above 0");
    }
    Ok(())
}

fn target(plan: &Plan) -> Result<Target> {
    let rest = plan.url.strip_prefix("http://").context("the URL must start with http://")?;
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let has_port = authority.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
    let socket = if has_port { authority.to_string() } else { format!("{authority}:80") };
    let addresses: Vec<_> =
        socket.to_socket_addrs().with_context(|| format!("cannot resolve {authority}"))?.collect();
    if addresses.is_empty() {
        bail!("{authority} has no address");
    }
    let mut head = format!("{} /{path} HTTP/1.1\r\nHost: {authority}\r\n", plan.method);
    for (name, value) in &plan.headers {
        head += &format!("{name}: {value}\r\n");
    }
    if plan.body_size > 0 {
        head += &format!("Content-Length: {}\r\n", plan.body_size);
    }
    if plan.new_connection {
        head += "Connection: close\r\n";
    }
    let mut request = (head + "\r\n").into_bytes();
    request.resize(request.len() + plan.body_size, b'x');
    Ok(Target {
        addresses,
        request,
        head_request: plan.method.eq_ignore_ascii_case("HEAD"),
        new_connection: plan.new_connection,
        timeout: plan.timeout,
    })
}

#[cfg(test)]
mod tests;
