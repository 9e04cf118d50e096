//! Bytes through a proxy to a server that sends them back.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::Count;

/// Bytes of a round trip: a small command and its answer.
const ROUND_TRIP: usize = 64;
/// Bytes of one read or write in bulk.
const BLOCK: usize = 64 * 1024;
const MIB: u64 = 1 << 20;

/// Each connection sends 64 bytes and waits for them, over and over.
pub(crate) fn round_trips(
    address: SocketAddr,
    connections: usize,
    duration: Duration,
) -> Result<Count> {
    run(connections, duration, move |until| async move {
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
    })
}

/// Each connection sends as fast as it can and reads it all back; a request is 1 MiB.
pub(crate) fn bulk(address: SocketAddr, connections: usize, duration: Duration) -> Result<Count> {
    run(connections, duration, move |until| async move {
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
    })
}

/// Runs `connection` so many times side by side on one thread; each gives what it counted.
fn run<F>(
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
