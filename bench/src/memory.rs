//! Memory of proxies: idle, with idle connections open, and after they closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::http1::ResponseReader;
use leno_testkit::usage::Memory;

use crate::backend::Backends;
use crate::process::Pinning;
use crate::proxy::{Contender, Proxy};
use crate::record::{self, Moments, Record};
use crate::report;
use crate::scenario::Work;

/// The time limit of a request while connections are opened.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Measures each proxy in turn, `copies` of it beside each other, writes the records and prints the table.
pub(crate) fn run(
    proxies: &[Contender],
    copies: usize,
    connections: usize,
    out: &Path,
) -> Result<()> {
    let backends = Backends::start(&[Work::Http1], Pinning::Anywhere)?;
    let backend = backends.address(Work::Http1)?;
    let mut records = Vec::new();
    for contender in proxies {
        match measure(*contender, copies, backend, connections) {
            Ok(record) => records.push(record),
            Err(error) => eprintln!("{contender}: left out: {error:#}"),
        }
        record::write(out, &records)?;
    }
    print!("{}", report::tables(&records));
    println!("records: {}", out.display());
    Ok(())
}

fn measure(
    contender: Contender,
    copies: usize,
    backend: SocketAddr,
    connections: usize,
) -> Result<Record> {
    let proxies = (0..copies)
        .map(|_| Proxy::start(contender, Work::Http1, backend, Pinning::Anywhere))
        .collect::<Result<Vec<_>>>()?;
    let idle = memory(&proxies)?;
    let mut open = Vec::new();
    for proxy in &proxies {
        // Each connection has carried a request, as the connections of a pool have.
        for _ in 0..connections {
            let mut stream = TcpStream::connect(proxy.address)?;
            stream.set_read_timeout(Some(REQUEST_LIMIT))?;
            request(&mut stream)?;
            open.push(stream);
        }
    }
    let connections_open = memory(&proxies)?;
    drop(open);
    for proxy in &proxies {
        request(&mut TcpStream::connect(proxy.address)?)?;
    }
    let connections_closed = memory(&proxies)?;
    let moments = |of: fn(Memory) -> u64| Moments {
        idle: of(idle),
        connections_open: of(connections_open),
        connections_closed: of(connections_closed),
    };
    Ok(Record {
        bench: "memory".into(),
        scenario: format!("{connections} connections"),
        proxy: contender.to_string(),
        version: proxies.first().map(|proxy| proxy.version.clone()).unwrap_or_default(),
        connections,
        copies,
        rss_kib: moments(|memory| memory.rss_kib),
        pss_kib: moments(|memory| memory.pss_kib),
        private_kib: moments(|memory| memory.private_kib),
        ..Record::default()
    })
}

/// The memory of all of them together.
fn memory(proxies: &[Proxy]) -> Result<Memory> {
    let mut sum = Memory::default();
    for proxy in proxies {
        sum += proxy.process.as_ref().context("there is no process to measure")?.memory()?;
    }
    Ok(sum)
}

fn request(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"GET /1k HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut reader = ResponseReader::new(false, false);
    let (mut buffer, mut piece) = (Vec::new(), [0_u8; 4096]);
    loop {
        let n = stream.read(&mut piece)?;
        if n == 0 {
            bail!("the proxy closed a connection");
        }
        buffer.extend_from_slice(&piece[..n]);
        let (used, response) = reader.read(&buffer)?;
        buffer.drain(..used);
        match response {
            Some(response) if response.status == 200 => return Ok(()),
            Some(response) => bail!("the proxy answered {}", response.status),
            None => {}
        }
    }
}
