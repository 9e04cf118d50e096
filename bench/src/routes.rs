//! Changes routes many times a second under load, to see whether a request is lost or a stream is broken.
//!
//! ```text
//!   leno-load ──► proxy ═══ mTLS ═══► proxy ──► v1 or v2, as the current route says
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_console::print_line;
use leno_testkit::lab::Lab;
use leno_testkit::wait;
use minijinja::context;

use crate::documents::{CHANGED_ROUTE, ROUTES, from_template, mesh};

/// How long a change may take to reach the client's proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(30);
/// Connections of the load: more than the number of requests that are ever in flight.
const CONNECTIONS: &str = "32";
/// The number of streams that last as long as the load, and the number of bytes of each.
const STREAMS: usize = 8;
const STREAM_BYTES: usize = 100_000;

/// The options of the measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Args {
    /// Rate of the load, in requests per second
    #[arg(long, default_value_t = 2000)]
    rate: u32,
    /// Rate of changes of the route, per second
    #[arg(long, default_value_t = 10)]
    changes: u32,
    /// Duration of the load, in seconds
    #[arg(long, default_value_t = 20)]
    seconds: u32,
}

/// Starts a mesh and changes its route under load. Returns whether no request or stream was lost
/// and the rate was held.
pub(crate) fn run(args: Args) -> Result<bool> {
    let lab = mesh(&from_template(ROUTES, context! {}))?;
    lab.explain(measure(&lab, args))
}

fn measure(lab: &Lab, args: Args) -> Result<bool> {
    let changes = Changes::new(lab)?;
    changes.write(0)?;
    wait::until("the first route", HEAR_LIMIT, || Ok((seen(lab)? == "0").then_some(())))?;
    let (rate, duration) = (args.rate.to_string(), format!("{}s", args.seconds + 1));
    let load = ["--url", "http://web/", "--rate", &rate, "--connections", CONNECTIONS];
    let load = lab.load("client", &[&load[..], &["--duration", &duration]].concat())?;
    let pieces = args.seconds * 10;
    let url = format!("http://web/?size={STREAM_BYTES}&chunked={pieces}&pause_ms=100");
    let stream = ["curl", "-sS", "-m", "600", "-o", "/dev/null", "-w", "%{size_download}", &url];
    let streams: Vec<_> =
        (0..STREAMS).map(|_| lab.spawn("client", &stream)).collect::<Result<_>>()?;
    let made = changes.make(args)?;
    wait::until("the last change", HEAR_LIMIT, || {
        Ok((seen(lab)? == made.to_string()).then_some(()))
    })?;
    let report = load.finish()?;
    let mut whole = 0;
    for stream in streams {
        let output = stream.finish(Duration::from_secs(60))?;
        whole += usize::from(output.stdout == STREAM_BYTES.to_string().as_bytes());
    }
    let held = report.requests_per_s >= f64::from(args.rate) * 0.99;
    print_line!(
        "{} requests at {:.0}/s while the route changed {made} times: {} errors, p50 {:.1} ms, p99 {:.1} ms, \
         {whole} of {STREAMS} streams whole",
        report.requests,
        report.requests_per_s,
        report.errors,
        report.latency_us.p50 as f64 / 1000.0,
        report.latency_us.p99 as f64 / 1000.0,
    );
    if !held {
        print_line!(
            "the load did not keep {}/s, which is too much for this machine: lower --rate",
            args.rate
        );
    }
    Ok(held && report.errors == 0 && whole == STREAMS)
}

/// Reads the number of the change from a header of a response.
fn seen(lab: &Lab) -> Result<String> {
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "-w", "%header{x-change}"];
    lab.text("client", &[&curl[..], &["http://web/"]].concat())
}

/// Writes the route directly into the state that the control plane reads. `leno up` would be too slow, because it waits
/// until a file no longer changes.
struct Changes {
    state: PathBuf,
    /// The content of the state file without the route that changes.
    without: String,
}

impl Changes {
    fn new(lab: &Lab) -> Result<Self> {
        let state = Path::new("/run/leno").join(lab.name()).join("state/state.yaml");
        let without = fs::read_to_string(&state).context("the state of the mesh")?;
        Ok(Self { state, without })
    }

    fn write(&self, number: u32) -> Result<()> {
        let draft = self.state.with_file_name(".draft");
        fs::write(
            &draft,
            self.without.clone() + &from_template(CHANGED_ROUTE, context! { number }),
        )?;
        Ok(fs::rename(draft, &self.state)?)
    }

    /// Changes the route at the given rate; returns the number of changes.
    fn make(&self, args: Args) -> Result<u32> {
        ensure!(args.changes > 0, "--changes must be at least 1");
        let (begun, all) = (Instant::now(), args.changes * args.seconds);
        for number in 1..=all {
            self.write(number)?;
            let next = begun + Duration::from_secs(1) / args.changes * number;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(all)
    }
}
