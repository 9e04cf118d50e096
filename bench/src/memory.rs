//! Measures the memory of proxies: idle, with idle connections open, and after these connections were closed.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leno_console::{note, print_line, print_text};
use leno_suite::interrupt::Interrupt;
use leno_suite::lab::mesh::{self, Choices};
use leno_suite::lab::one_hop::{Listening, proxy, server};
use leno_suite::tabular::{Column, markdown, rows};
use leno_suite::{files, scenario};
use leno_testkit::http1::ResponseReader;
use leno_testkit::usage::Memory;
use serde::{Deserialize, Serialize};

/// The time limit of a request while connections are opened.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// The scenario whose server is behind the proxies.
const SCENARIO: &str = "keepalive-1k";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Proxies to measure, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "leno,haproxy,nginx",
          value_parser = crate::one_proxy::PROXIES)]
    proxies: Vec<String>,
    /// Number of idle connections to keep open to each proxy, each after one request
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// Number of proxies of each kind that run at the same time, as on a node, from 1 to 200. Figures are their sum
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=200))]
    copies: u16,
    /// An earlier build of leno-proxy, for the proxy "before"
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,
    /// File for the records
    #[arg(long, default_value = "target/bench-memory.json")]
    out: PathBuf,
}

/// The memory of one kind of proxies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MemoryRecord {
    /// Always `memory`, the name of this measurement.
    pub(crate) bench: String,
    proxy: String,
    /// The version, as the proxy prints it.
    version: String,
    /// The number of connections to each proxy.
    connections: usize,
    /// The number of proxies that run beside each other. Figures are the sums of all.
    copies: usize,
    /// Resident memory.
    rss_kib: MemoryByMoment,
    /// Proportional memory: pages of several processes are divided among them.
    pss_kib: MemoryByMoment,
    /// Memory that no other process shares.
    private_kib: MemoryByMoment,
}

/// Memory in KiB at named moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct MemoryByMoment {
    /// The memory before any connection.
    idle: u64,
    /// The memory while the idle connections are open.
    connections_open: u64,
    /// The memory after the connections were closed.
    connections_closed: u64,
}

/// Measures each proxy in turn, writes the records and prints the table.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let interrupt = Interrupt::default();
    let server = server(&scenario::find(SCENARIO)?, false, &interrupt)?;
    let mut records = Vec::new();
    for name in &args.proxies {
        match measure(name, args, &server) {
            Ok(record) => records.push(record),
            Err(error) => note!("{name}: not measured: {error:#}"),
        }
        files::write(&args.out, &(serde_json::to_string_pretty(&records)? + "\n"))?;
    }
    print_text!("{}", table(&records));
    print_line!("records: {}", args.out.display());
    Ok(true)
}

fn measure(name: &str, args: &Args, server: &Listening) -> Result<MemoryRecord> {
    let choices = Choices { before: args.before.clone(), ..Choices::default() };
    let mesh = mesh::named(name, &choices)?;
    let found = mesh.find()?;
    let program = found.program.context("the proxy has no process to measure")?;
    let behind = (server.address, scenario::find(SCENARIO)?.protocol);
    let start = |_| proxy((&mesh, &program), behind, false, &Interrupt::default());
    let proxies = (0..args.copies).map(start).collect::<Result<Vec<_>>>()?;
    let idle = memory(&proxies)?;
    let mut open = Vec::new();
    for proxy in &proxies {
        // Each connection carries a request first, as the connections of a pool have done.
        for _ in 0..args.connections {
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
    let moments = |of: fn(Memory) -> u64| MemoryByMoment {
        idle: of(idle),
        connections_open: of(connections_open),
        connections_closed: of(connections_closed),
    };
    Ok(MemoryRecord {
        bench: "memory".into(),
        proxy: name.to_owned(),
        version: found.version,
        connections: args.connections,
        copies: args.copies.into(),
        rss_kib: moments(|memory| memory.rss_kib),
        pss_kib: moments(|memory| memory.pss_kib),
        private_kib: moments(|memory| memory.private_kib),
    })
}

/// Returns the memory of all the proxies together.
fn memory(proxies: &[Listening]) -> Result<Memory> {
    let mut sum = Memory::default();
    for proxy in proxies {
        sum += proxy.memory()?;
    }
    Ok(sum)
}

fn request(stream: &mut TcpStream) -> Result<()> {
    stream.write_all(b"GET /1k HTTP/1.1\r\nHost: bench\r\n\r\n")?;
    let mut reader = ResponseReader::new(false, false);
    let (mut buffer, mut piece) = (Vec::new(), [0_u8; 4096]);
    loop {
        let n = stream.read(&mut piece)?;
        ensure!(n != 0, "the proxy closed a connection");
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

/// A table of these records, as Markdown.
pub(crate) fn table(records: &[MemoryRecord]) -> String {
    type Row<'r> = (&'r MemoryRecord, &'static str, MemoryByMoment);
    let all: Vec<Row<'_>> = records
        .iter()
        .flat_map(|one| {
            let kinds = [
                ("private", one.private_kib),
                ("proportional", one.pss_kib),
                ("resident", one.rss_kib),
            ];
            kinds.map(|(kind, kib)| (one, kind, kib))
        })
        .collect();
    let columns: [Column<'_, Row<'_>>; 6] = [
        ("proxies", &|(one, ..)| format!("{} {}", one.copies, one.proxy)),
        ("connections each", &|(one, ..)| one.connections.to_string()),
        ("kind", &|(_, kind, _)| (*kind).to_owned()),
        ("idle", &|(.., kib)| kib.idle.to_string()),
        ("connections open", &|(.., kib)| kib.connections_open.to_string()),
        ("after they closed", &|(.., kib)| kib.connections_closed.to_string()),
    ];
    format!(
        "\n**Memory, KiB** (private: shared with no other process; proportional: shared pages divided among \
         their processes)\n{}",
        markdown(&rows(&all, &columns))
    )
}
