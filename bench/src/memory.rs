//! Resident memory of one proxy: idle, with idle connections open, and after they closed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leno_testkit::http1::ResponseReader;

use crate::backend::Backends;
use crate::process::Place;
use crate::proxy::{Contender, Proxy};
use crate::record::{self, Record, RssKib};
use crate::report;
use crate::scenario::Work;

/// The time limit of a request while connections are opened.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// Measures each proxy in turn, writes the records and prints the table.
pub(crate) fn run(proxies: &[Contender], connections: usize, out: &Path) -> Result<()> {
    let backends = Backends::start(&[Work::Http1], Place::Anywhere)?;
    let backend = backends.address(Work::Http1)?;
    let mut records = Vec::new();
    for contender in proxies {
        match measure(*contender, backend, connections) {
            Ok(record) => records.push(record),
            Err(error) => eprintln!("{contender}: left out: {error:#}"),
        }
        record::write(out, &records)?;
    }
    print!("{}", report::tables(&records));
    println!("records: {}", out.display());
    Ok(())
}

fn measure(contender: Contender, backend: SocketAddr, connections: usize) -> Result<Record> {
    let proxy = Proxy::start(contender, Work::Http1, backend, Place::Anywhere)?;
    let process = proxy.process.as_ref().context("there is no process to measure")?;
    let idle = process.usage()?;
    // Each connection has carried a request, as the connections of a pool have.
    let open: Vec<TcpStream> = (0..connections)
        .map(|_| {
            let mut stream = TcpStream::connect(proxy.address)?;
            stream.set_read_timeout(Some(REQUEST_LIMIT))?;
            request(&mut stream)?;
            Ok(stream)
        })
        .collect::<Result<_>>()?;
    let connections_open = process.usage()?.rss_kib;
    drop(open);
    request(&mut TcpStream::connect(proxy.address)?)?;
    let connections_closed = process.usage()?.rss_kib;
    Ok(Record {
        bench: "memory".into(),
        scenario: format!("{connections} connections"),
        proxy: contender.to_string(),
        version: proxy.version.clone(),
        connections,
        rss_kib: RssKib {
            idle: idle.rss_kib,
            idle_anonymous: idle.anonymous_kib,
            connections_open,
            connections_closed,
        },
        ..Record::default()
    })
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
