//! `leno-load`: constant-rate load of HTTP or gRPC with latencies from the moment each request was due.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use leno_program::duration;
use leno_testkit::load::{self, Pace, Plan, Report};

/// Send requests at a constant rate and report latency without coordinated omission.
///
/// Exits 1 when a request failed, 2 when the load could not be generated.
#[derive(Parser)]
#[command(name = "leno-load", version)]
struct Args {
    /// Target, http://host[:port]/path
    #[arg(long)]
    url: String,
    /// Requests a second; "max" sends as fast as the responses come (closed loop)
    #[arg(long, default_value = "100")]
    rate: String,
    /// Most connections
    #[arg(long, default_value_t = 16)]
    connections: usize,
    /// How long to measure, such as 10s, 500ms, 2m
    #[arg(long, default_value = "10s", value_parser = duration)]
    duration: Duration,
    /// Load before the measurement
    #[arg(long, default_value = "0s", value_parser = duration)]
    warm_up: Duration,
    /// How long one request may take
    #[arg(long, default_value = "10s", value_parser = duration)]
    timeout: Duration,
    /// Protocol of the requests
    #[arg(long, value_enum, default_value_t = Spoken::Http1)]
    protocol: Spoken,
    /// Parallel requests on each connection, if the protocol supports it
    #[arg(long, default_value_t = 1)]
    streams: usize,
    /// Method of the request
    #[arg(long, default_value = "GET")]
    method: String,
    /// Bytes of request body
    #[arg(long, default_value_t = 0)]
    body_size: usize,
    /// A new connection for each request
    #[arg(long)]
    new_connection: bool,
    /// Send one request on each connection before the first one that is due
    #[arg(long)]
    primed: bool,
    /// Further header field, "name: value"
    #[arg(long = "header")]
    headers: Vec<String>,
    /// Threads that generate the load
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// How to print the report
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Clone, Copy, ValueEnum)]
enum Spoken {
    /// HTTP/1.1
    Http1,
    /// HTTP/2 with prior knowledge
    Http2,
    /// Unary gRPC calls
    Grpc,
    /// Messages on gRPC streams that stay open
    GrpcStream,
    /// Bytes of the body, and as many back
    Tcp,
}

impl From<Spoken> for load::Protocol {
    fn from(spoken: Spoken) -> Self {
        match spoken {
            Spoken::Http1 => Self::Http1,
            Spoken::Http2 => Self::Http2,
            Spoken::Grpc => Self::Grpc,
            Spoken::GrpcStream => Self::GrpcStream,
            Spoken::Tcp => Self::Tcp,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

fn main() {
    let args = Args::parse();
    match run(&args) {
        Ok(report) => std::process::exit(i32::from(report.errors > 0)),
        Err(error) => {
            eprintln!("leno-load: {error:#}");
            std::process::exit(2);
        }
    }
}

fn run(args: &Args) -> Result<Report> {
    let mut report = load::run(&plan(args)?)?;
    // The histogram is thousands of lines; users of this program want a few percentiles.
    report.buckets.clear();
    match args.output {
        Output::Json => println!("{}", serde_json::to_string(&report)?),
        Output::Table => print_table(&report),
    }
    Ok(report)
}

fn plan(args: &Args) -> Result<Plan> {
    let pace = match args.rate.as_str() {
        "max" => Pace::Saturate,
        rate => Pace::Rate(rate.parse().with_context(|| format!("{rate:?} is no rate"))?),
    };
    let headers = args
        .headers
        .iter()
        .map(|field| {
            let (name, value) = field.split_once(':').context("a header is \"name: value\"")?;
            Ok((name.trim().to_string(), value.trim().to_string()))
        })
        .collect::<Result<_>>()?;
    Ok(Plan {
        url: args.url.clone(),
        protocol: args.protocol.into(),
        streams: args.streams,
        pace,
        connections: args.connections,
        new_connection: args.new_connection,
        primed: args.primed,
        duration: args.duration,
        warm_up: args.warm_up,
        paths: Vec::new(),
        method: args.method.clone(),
        body_size: args.body_size,
        unread: false,
        headers,
        timeout: args.timeout,
        threads: args.threads,
    })
}

fn print_table(r: &Report) {
    println!(
        "requests   {:>10}   {:.1}/s over {:.1} s",
        r.requests, r.requests_per_s, r.duration_s
    );
    println!("errors     {:>10}   {:?}", r.errors, r.errors_by_kind);
    let l = &r.latency_us;
    println!(
        "latency us  p50 {}  p90 {}  p99 {}  p99.9 {}  max {}",
        l.p50, l.p90, l.p99, l.p99_9, l.max
    );
    if r.generator_limited {
        println!(
            "warning: the generator could not keep the schedule (its own delay: p99 {} us, busy \
             {:.0} %); these latencies are its own",
            r.lag_us.p99,
            r.generator_busy * 100.0
        );
    }
}
