//! An open loop of HTTP/2 requests, in a process of its own. Each request is sent when it is due,
//! even if earlier ones are still unanswered, and its latency counts from that moment.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use h2::client::{self, SendRequest};
use hdrhistogram::Histogram;
use http::Request;
use leno_testkit::load::clock::Clock;
use leno_testkit::load::{Latency, MAX_LAG_US, MAX_LATENCY_US};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local, yield_now};

use super::paced::Paced;

/// The largest number of requests in flight; further ones count as errors. Ten seconds of what one
/// thread can send.
const MAX_IN_FLIGHT: usize = 400_000;
/// How long to wait for answers after the last request.
const GRACE: Duration = Duration::from_secs(2);
/// Flow-control windows, so large that they are never the bottleneck.
const WINDOW: u32 = 1 << 20;

/// Send HTTP/2 requests at a fixed rate and print the results as JSON.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Plan {
    /// The URL to request, http://host:port/path
    url: String,
    /// Connections that take turns
    #[arg(long, default_value_t = 4)]
    connections: usize,
    /// Requests a second
    #[arg(long)]
    rate: f64,
    /// Seconds of load before the measurement
    #[arg(long, default_value_t = 0.0)]
    warm_up: f64,
    /// Seconds to measure
    #[arg(long)]
    seconds: f64,
    /// A file with a gRPC message; without it, GET
    #[arg(long)]
    message: Option<PathBuf>,
}

/// The state that all requests share.
struct Desk {
    request: Request<()>,
    message: Bytes,
    from: Instant,
    to: Instant,
    in_flight: Cell<usize>,
    tally: RefCell<Tally>,
}

struct Tally {
    latency: Histogram<u64>,
    lag: Histogram<u64>,
    requests: u64,
    errors: u64,
}

/// Runs the plan to its end.
pub(crate) fn run(plan: &Plan) -> Result<Paced> {
    ensure!(plan.rate > 0.0 && plan.seconds > 0.0, "rate and seconds must be above 0");
    ensure!(plan.connections > 0, "there must be a connection");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, drive(plan))
}

async fn drive(plan: &Plan) -> Result<Paced> {
    let uri: http::Uri = plan.url.parse().context("the URL is none")?;
    let authority = uri.authority().context("the URL has no host")?.to_string();
    let message = plan.message.as_ref().map(std::fs::read).transpose()?.map(Bytes::from);
    let request = match &message {
        None => Request::get(uri),
        Some(_) => {
            let call = Request::post(uri).header("content-type", "application/grpc");
            call.header("te", "trailers")
        }
    };
    let mut connections = Vec::new();
    for _ in 0..plan.connections {
        connections.push(connect(&authority).await?);
    }
    let histogram = || Histogram::new_with_bounds(1, MAX_LATENCY_US, 3);
    let start = Instant::now();
    let from = start + Duration::from_secs_f64(plan.warm_up);
    let desk = Rc::new(Desk {
        request: request.body(())?,
        message: message.unwrap_or_default(),
        from,
        to: from + Duration::from_secs_f64(plan.seconds),
        in_flight: Cell::new(0),
        tally: RefCell::new(Tally {
            latency: histogram()?,
            lag: histogram()?,
            requests: 0,
            errors: 0,
        }),
    });
    schedule(&desk, &connections, start, Duration::from_secs_f64(1.0 / plan.rate)).await?;
    let end = Instant::now() + GRACE;
    while desk.in_flight.get() > 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let tally = desk.tally.borrow();
    let unanswered = desk.in_flight.get() as u64;
    Ok(Paced {
        requests: tally.requests + unanswered,
        errors: tally.errors + unanswered,
        requests_per_s: tally.requests as f64 / plan.seconds,
        latency_us: Latency::of(&tally.latency),
        generator_limited: tally.lag.value_at_quantile(0.99) > MAX_LAG_US,
    })
}

async fn connect(authority: &str) -> Result<SendRequest<Bytes>> {
    let stream = TcpStream::connect(authority).await.context("cannot connect")?;
    stream.set_nodelay(true)?;
    let mut builder = client::Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW * 16);
    let (send, connection) = builder.handshake(stream).await?;
    spawn_local(async move {
        // A connection error fails its requests, which are counted.
        let _ = connection.await;
    });
    Ok(send)
}

/// Sends requests as they fall due.
async fn schedule(
    desk: &Rc<Desk>,
    connections: &[SendRequest<Bytes>],
    start: Instant,
    interval: Duration,
) -> Result<()> {
    let clock = Clock::new()?;
    for nth in 0_u32.. {
        let due = start + interval.saturating_mul(nth);
        if due >= desk.to {
            break;
        }
        if due > Instant::now() {
            clock.until(due).await?;
        } else if nth.is_multiple_of(64) {
            // Behind schedule: lets the connections work between bursts.
            yield_now().await;
        }
        if due >= desk.from {
            let lag = micros(due.elapsed());
            desk.tally.borrow_mut().lag.saturating_record(lag);
        }
        if desk.in_flight.get() >= MAX_IN_FLIGHT {
            desk.end(due, false);
            continue;
        }
        desk.in_flight.set(desk.in_flight.get() + 1);
        let send = connections[nth as usize % connections.len()].clone();
        let desk = Rc::clone(desk);
        spawn_local(async move {
            let answered = desk.exchange(send).await.is_ok();
            desk.in_flight.set(desk.in_flight.get() - 1);
            desk.end(due, answered);
        });
    }
    Ok(())
}

impl Desk {
    async fn exchange(&self, send: SendRequest<Bytes>) -> Result<()> {
        let mut send = send.ready().await?;
        let alone = self.message.is_empty();
        let (response, mut stream) = send.send_request(self.request.clone(), alone)?;
        if !alone {
            stream.send_data(self.message.clone(), true)?;
        }
        let response = response.await?;
        if response.status() != 200 {
            bail!("status {}", response.status());
        }
        let mut body = response.into_body();
        while let Some(piece) = body.data().await {
            let count = piece?.len();
            body.flow_control().release_capacity(count)?;
        }
        let trailers = body.trailers().await?;
        let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
        if !alone && status.is_none_or(|status| status != "0") {
            bail!("the call failed");
        }
        Ok(())
    }

    fn end(&self, due: Instant, answered: bool) {
        if due < self.from || due >= self.to {
            return;
        }
        let mut tally = self.tally.borrow_mut();
        tally.requests += 1;
        if answered {
            tally.latency.saturating_record(micros(due.elapsed()));
        } else {
            tally.errors += 1;
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(message: Option<PathBuf>) -> Plan {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        std::thread::spawn(move || crate::server::run(address));
        let url = format!("http://{address}/bench.Echo/Unary");
        Plan { url, connections: 2, rate: 500.0, warm_up: 0.1, seconds: 0.2, message }
    }

    fn run_when_listening(plan: &Plan) -> Paced {
        let limit = Duration::from_secs(20);
        leno_testkit::wait::until("the server", limit, || Ok(run(plan).ok())).unwrap()
    }

    #[test]
    fn every_request_of_the_measured_time_is_counted() {
        let paced = run_when_listening(&plan(None));
        assert_eq!((paced.requests, paced.errors), (100, 0));
        assert!(paced.latency_us.p50 > 0);
    }

    #[test]
    fn calls_must_come_to_a_grpc_status() {
        let directory = tempfile::tempdir().unwrap();
        let payloads = crate::load::Payloads::write(directory.path()).unwrap();
        let paced = run_when_listening(&plan(Some(payloads.message)));
        assert_eq!((paced.requests, paced.errors), (100, 0));
    }
}
