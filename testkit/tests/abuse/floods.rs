//! Sends HTTP/2 floods to the real `leno-proxy` with its default limits. The connection must be closed, memory
//! must stay bounded, a metric must count the flood, and another client must be served all the time.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::peer::{Backend, Server};
use leno_testkit::proxy::{Proxy, Side};
use leno_testkit::{usage, wait};

use crate::client::{self, Cut};
use crate::frames::{self, PREFACE};

/// How much anonymous memory a flood may cost permanently: the buffers of one connection and of the pool.
const MEMORY_SLACK_KIB: u64 = 8 * 1024;
/// Most repetitions of a flood. The proxy closes the connection long before.
const MAX_PIECES: usize = 100_000;
/// How long a flood may continue; much longer than a busy machine needs.
const LIMIT: Duration = Duration::from_secs(60);
/// How long the proxy's counters may take to show what has happened.
const METRIC_LIMIT: Duration = Duration::from_secs(20);
/// The request of another client.
const MARKER: &[u8] = b"GET /?size=5 HTTP/1.1\r\nHost: marker\r\n\r\n";

/// The frames of an attack.
struct Flood {
    /// The label `kind` of `leno_http2_abuse_total`. If it depends on how far the requests have proceeded, there
    /// are several.
    kinds: &'static [&'static str],
    /// Bytes that are sent once, after the preface and SETTINGS.
    begin: Vec<u8>,
    /// Bytes that are sent repeatedly; they may depend on the number of the repetition.
    piece: fn(u32) -> Vec<u8>,
    /// Whether the proxy closes the connection; otherwise it only refuses the requests.
    ends: bool,
}

fn floods() -> Vec<Flood> {
    let get = || frames::section(&frames::GET);
    vec![
        Flood {
            // CVE-2023-44487. A stream that is still being closed counts as open. While there are too many,
            // further streams are refused.
            kinds: &["rapid-reset", "stream-errors"],
            begin: Vec::new(),
            piece: |nth| {
                let stream = 2 * nth + 1;
                let head = frames::frame(1, 5, stream, &frames::section(&frames::GET));
                [head, frames::frame(3, 0, stream, &8_u32.to_be_bytes())].concat()
            },
            ends: true,
        },
        Flood {
            // CVE-2024-24549 and similar ones: a field section that never ends.
            kinds: &["continuation-flood"],
            begin: frames::frame(1, 1, 1, &get()),
            piece: |_| frames::frame(9, 0, 1, &frames::section(&[(b"a", b"b")])),
            ends: true,
        },
        Flood {
            // The SETTINGS flood, CVE-2019-9515. The proxy may also end the connection because the client has not
            // read the replies.
            kinds: &["settings-flood", "unread-replies"],
            begin: Vec::new(),
            piece: |_| frames::frame(4, 0, 0, &[0, 4, 0, 1, 0, 0]),
            ends: true,
        },
        Flood {
            // The ping flood, CVE-2019-9512. Here as well the proxy may end the connection because of unread
            // replies.
            kinds: &["ping-flood", "unread-replies"],
            begin: Vec::new(),
            piece: |_| frames::frame(6, 0, 0, &[7; 8]),
            ends: true,
        },
        Flood {
            // The flood of empty frames, CVE-2019-9518.
            kinds: &["empty-frames"],
            begin: frames::frame(1, 4, 1, &frames::section(&frames::POST)),
            piece: |_| frames::frame(0, 0, 1, &[]),
            ends: true,
        },
        Flood {
            // Increases a window beyond its limit (RFC 9113 section 6.9.1).
            kinds: &["window-overflow"],
            begin: Vec::new(),
            piece: |_| frames::frame(8, 0, 0, &0x7fff_ffff_u32.to_be_bytes()),
            ends: true,
        },
        Flood {
            // CVE-2016-6581: one long entry of the dynamic table that is referenced very often.
            kinds: &["header-list"],
            begin: Vec::new(),
            piece: |nth| {
                let mut section = frames::section(&frames::GET);
                section.extend_from_slice(&[0x40, 1, b'x']);
                frames::integer(&mut section, 3000);
                section.extend([b'y'; 3000]);
                section.extend([0x80 | 62; 4000]);
                frames::frame(1, 5, 2 * nth + 1, &section)
            },
            ends: false,
        },
    ]
}

/// How many times a flood whose requests are only refused is repeated.
const REFUSED_PIECES: usize = 500;

#[test]
fn the_inbound_side_survives_floods() {
    run(Side::Inbound);
}

#[test]
fn the_outbound_side_survives_floods() {
    run(Side::Outbound("http"));
}

fn run(side: Side) {
    for flood in floods() {
        if let Err(error) = survive(side, &flood) {
            panic!("{side:?}, {:?}: {error:#}", flood.kinds);
        }
    }
}

fn survive(side: Side, flood: &Flood) -> Result<()> {
    let server = Server::start(Backend::default())?;
    let proxy = Proxy::start(side, server.address())?;
    ensure!(marked(&proxy)? == [200], "not even before the flood is anybody served");
    let before = usage::of_process(proxy.pid())?;
    let over = AtomicBool::new(false);
    let (sent, others) = std::thread::scope(|scope| {
        let others = scope.spawn(|| -> Result<usize> {
            for served in 1.. {
                let statuses = marked(&proxy).context("another client during the flood")?;
                ensure!(statuses == [200], "another client was answered {statuses:?}");
                if over.load(Ordering::Relaxed) {
                    return Ok(served);
                }
            }
            unreachable!("it is over before so many were served")
        });
        let sent = pour(proxy.address(), flood);
        over.store(true, Ordering::Relaxed);
        (sent, others.join())
    });
    let (sent, served) = (sent?, others.expect("no panic of another client")?);
    let any = || {
        flood.kinds.iter().find_map(|kind| {
            match counted(&proxy, &[ABUSE, &format!("kind=\"{kind}\"")]) {
                Ok(0) => None,
                other => Some(other),
            }
        })
    };
    wait::until("the metric", METRIC_LIMIT, || any().transpose())
        .with_context(|| format!("{sent} pieces were sent"))?;
    ensure!(marked(&proxy)? == [200], "no client is served after the flood");
    let after = usage::of_process(proxy.pid())?;
    eprintln!(
        "{side:?}, {:?}: {sent} pieces, {served} others served, KiB {} then {}, CPU {} us",
        flood.kinds,
        before.anonymous_kib,
        after.anonymous_kib,
        (after.cpu - before.cpu).total_us()
    );
    let allowed = before.anonymous_kib + MEMORY_SLACK_KIB;
    ensure!(after.anonymous_kib <= allowed, "memory has grown: {before:?}, then {after:?}");
    Ok(())
}

const METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// The metric that counts floods by kind.
const ABUSE: &str = "leno_http2_abuse_total";

/// The sum of those samples in `/metrics` that start with the first text of `sample` and contain all the others.
pub(crate) fn counted(proxy: &Proxy, sample: &[&str]) -> Result<u64> {
    let page = client::to_end(proxy.admin(), METRICS, Cut::Whole)?;
    let text = page.responses.first().context("no metrics")?.text();
    let (name, labels) = sample.split_first().context("no name of a metric")?;
    let wanted = |line: &&str| line.starts_with(name) && labels.iter().all(|it| line.contains(it));
    let value = |line: &str| line.rsplit(' ').next().unwrap_or_default().parse::<f64>();
    let values = text.lines().filter(wanted).map(value);
    Ok(values.sum::<Result<f64, _>>()? as u64)
}

pub(crate) fn marked(proxy: &Proxy) -> Result<Vec<u16>> {
    client::statuses(proxy.address(), MARKER, &[false], Cut::Whole)
}

/// Sends a flood until the proxy closes the connection; returns the number of repetitions.
fn pour(proxy: SocketAddr, flood: &Flood) -> Result<usize> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_nonblocking(true)?;
    let start = Instant::now();
    let settings = frames::frame(4, 0, 0, &[]);
    let mut unsent = [PREFACE, &settings, &flood.begin].concat();
    let most = if flood.ends { MAX_PIECES } else { REFUSED_PIECES };
    let mut nth = 0;
    loop {
        ensure!(start.elapsed() < LIMIT, "the flood goes on after {nth} pieces");
        if unsent.is_empty() && nth < most {
            unsent = (flood.piece)(u32::try_from(nth)?);
            nth += 1;
        }
        let mut idle = true;
        match stream.write(&unsent) {
            Ok(count) => {
                idle = count == 0;
                unsent.drain(..count);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) if flood.ends => return Ok(nth),
            Err(error) => return Err(error).context("the connection ended"),
        }
        match stream.read(&mut [0; 64 * 1024]) {
            Ok(0) if flood.ends => return Ok(nth),
            Ok(0) => bail!("the connection ended after {nth} pieces"),
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) if flood.ends => return Ok(nth),
            Err(error) => return Err(error).context("the connection ended"),
        }
        if nth == most && unsent.is_empty() {
            ensure!(!flood.ends, "the proxy takes {nth} pieces and more");
            return Ok(nth);
        }
        if idle {
            std::thread::yield_now();
        }
    }
}
