//! TCP load through a proxy to an echo server, in a process of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leno_testkit::binaries;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::origin::{Count, Origin};

/// Bytes of a round trip in each direction: a small command and its answer.
const ROUND_TRIP: usize = 64;
/// Bytes of one read or write in bulk.
const BLOCK: usize = 64 * 1024;
const MIB: u64 = 1 << 20;

/// Send bytes to an echo in a closed loop and print the counts as JSON.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Plan {
    /// The echo server, host:port
    address: String,
    /// Send as many bytes as possible, instead of 64 in each direction
    #[arg(long)]
    bulk: bool,
    /// Concurrent connections
    #[arg(long)]
    connections: usize,
    /// Seconds
    #[arg(long)]
    seconds: f64,
}

impl Plan {
    pub(crate) fn new(address: &str, bulk: bool, connections: usize, duration: Duration) -> Self {
        Self { address: address.to_owned(), bulk, connections, seconds: duration.as_secs_f64() }
    }
}

/// Runs the plan in a process started through `origin`.
pub(crate) fn start(origin: &Origin, plan: &Plan) -> Result<Count> {
    let mut command = origin.command(binaries::ours("leno-bench")?);
    command.args(["load", "tcp", &plan.address]);
    command.args(["--connections", &plan.connections.to_string()]);
    command.args(["--seconds", &plan.seconds.to_string()]);
    if plan.bulk {
        command.arg("--bulk");
    }
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the plan in this process.
pub(crate) fn run(plan: &Plan) -> Result<Count> {
    let duration = Duration::from_secs_f64(plan.seconds);
    let (address, connections) = (&plan.address, plan.connections);
    if plan.bulk {
        all(connections, duration, |until| bulk(address.clone(), until))
    } else {
        all(connections, duration, |until| round_trips(address.clone(), until))
    }
}

/// Sends 64 bytes and waits for their echo, repeatedly; returns the number of round trips.
async fn round_trips(address: String, until: Instant) -> std::io::Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let mut bytes = [b'x'; ROUND_TRIP];
    let mut count = 0;
    while Instant::now() < until {
        stream.write_all(&bytes).await?;
        stream.read_exact(&mut bytes).await?;
        count += 1;
    }
    Ok(count)
}

/// Sends as fast as possible and reads all of it back; returns the number of MiB.
async fn bulk(address: String, until: Instant) -> std::io::Result<u64> {
    let (mut reader, mut writer) = TcpStream::connect(address).await?.into_split();
    let send = async move {
        let block = vec![b'x'; BLOCK];
        while Instant::now() < until {
            writer.write_all(&block).await?;
        }
        writer.shutdown().await
    };
    let receive = async move {
        let mut block = vec![0_u8; BLOCK];
        let mut bytes = 0;
        loop {
            match reader.read(&mut block).await? {
                0 => return Ok::<u64, std::io::Error>(bytes),
                count => bytes += count as u64,
            }
        }
    };
    let ((), bytes) = tokio::try_join!(send, receive)?;
    Ok(bytes / MIB)
}

/// Runs `connections` instances of `connection` concurrently on one thread and adds up their
/// counts.
fn all<F>(
    connections: usize,
    duration: Duration,
    connection: impl Fn(Instant) -> F,
) -> Result<Count>
where
    F: Future<Output = std::io::Result<u64>> + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        let start = Instant::now();
        let mut all = JoinSet::new();
        for _ in 0..connections {
            all.spawn_local(connection(start + duration));
        }
        let mut count = Count::default();
        while let Some(done) = all.join_next().await {
            match done.context("a connection of the load panicked")? {
                Ok(requests) => count.requests += requests,
                Err(_) => count.errors += 1,
            }
        }
        count.requests_per_s = count.requests as f64 / start.elapsed().as_secs_f64();
        Ok(count)
    })
}
