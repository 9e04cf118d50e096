//! Lets deliberately slow clients connect to the real `leno-proxy` with its default limits. Their connections must
//! be closed, memory must stay bounded, a metric must count them, and another client must be served all the time.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::command::Listening;
use leno_testkit::peer::{Backend, Server};
use leno_testkit::proxy::{Proxy, Side, free_address};
use leno_testkit::{binaries, usage};
use nix::libc::POLLRDHUP;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::floods::{counted, marked};
use crate::frames::{self, PREFACE, StreamOutcome};

/// The number of connections of each kind that sends its request slowly.
const SLOW: usize = 50;
/// The number of connections of each kind that does not read its response. It is lower because the server holds
/// each response whole.
const STALLED: usize = 10;
/// The interval at which slow clients send their next bytes.
const TICK: Duration = Duration::from_secs(2);
/// A time that is longer than the minute that a head may take.
const HEAD_LIMIT: Duration = Duration::from_secs(100);
/// A time that is longer than twice the five minutes that bytes may wait for a reader.
const STALL_LIMIT: Duration = Duration::from_secs(660);
/// How much anonymous memory slow clients may cost at any moment: first the windows and buffers of stalled
/// connections, then memory that the pools keep and the allocator has not returned yet.
const MEMORY_SLACK_KIB: u64 = 16 * 1024;
/// The size of the response that stalled clients request: more than the sockets in between buffer.
const LARGE: u64 = 32 * 1024 * 1024;

/// A kind of slow client.
struct Slow {
    name: &'static str,
    /// The sample in `/metrics` that counts it.
    sample: &'static [&'static str],
    begin: Vec<u8>,
    /// The bytes that are sent at each [`TICK`]; they may depend on the number of the tick.
    then: fn(usize) -> Vec<u8>,
    /// Whether it reads what it receives.
    reads: bool,
    /// Whether only its stream is reset, while the connection stays open.
    stream: bool,
}

const NOTHING: fn(usize) -> Vec<u8> = |_| Vec::new();

fn slow_heads() -> Vec<Slow> {
    let slow =
        |name, sample, begin, then| Slow { name, sample, begin, then, reads: true, stream: false };
    let http1: &[&str] = &["leno_errors_total", "cause=\"head-timeout\""];
    let http2: &[&str] = &["leno_http2_abuse_total", "kind=\"slow-head\""];
    let opening = || [PREFACE, &frames::frame(4, 0, 0, &[]), &frames::frame(4, 1, 0, &[])].concat();
    let section = frames::section(&frames::GET);
    vec![
        slow("a line of a head", http1, b"GET / HTTP/1.1\r\nHost: a\r\nX: ".to_vec(), |_| {
            b"x".to_vec()
        }),
        slow("lines of a head", http1, b"GET / HTTP/1.1\r\nHost: a\r\n".to_vec(), |nth| {
            format!("X-{nth}: y\r\n").into_bytes()
        }),
        slow("a frame's head", http2, [&opening()[..], &[0, 0]].concat(), NOTHING),
        slow(
            "a frame",
            http2,
            [&opening()[..], &frames::frame(1, 5, 1, &section)[..12]].concat(),
            NOTHING,
        ),
        slow(
            "a field section",
            http2,
            [opening(), frames::frame(1, 1, 1, &section)].concat(),
            // One frame every ten ticks. At this pace, the limit on the time of a section is reached before the limit
            // on its number of frames.
            |nth| match nth % 10 {
                0 => frames::frame(9, 0, 1, &frames::section(&[(b"a", b"b")])),
                _ => Vec::new(),
            },
        ),
    ]
}

fn stalls_of_http1() -> Vec<Slow> {
    vec![Slow {
        name: "HTTP/1 that does not read",
        sample: &["leno_errors_total", "cause=\"stalled\""],
        begin: format!("GET /?size={LARGE} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes(),
        then: NOTHING,
        reads: false,
        stream: false,
    }]
}

fn stalls_of_http2() -> Vec<Slow> {
    let slow = |name, kind, window: &[u8], reads| {
        let settings = frames::frame(4, 0, 0, &[&[0, 4], window].concat());
        let acknowledged = frames::frame(4, 1, 0, &[]);
        let more = frames::frame(8, 0, 0, &(1_u32 << 30).to_be_bytes());
        let head = frames::frame(1, 5, 1, &frames::section(&frames::GET));
        let begin = [PREFACE, &settings, &acknowledged, &more, &head].concat();
        Slow { name, sample: kind, begin, then: NOTHING, reads, stream: reads }
    };
    let window: &[&str] = &["leno_http2_abuse_total", "kind=\"zero-window\""];
    let write: &[&str] = &["leno_http2_abuse_total", "kind=\"write-stall\""];
    vec![
        slow("no window for a stream", window, &[0; 4], true),
        slow("HTTP/2 that does not read", write, &[0x7f, 255, 255, 255], false),
    ]
}

#[test]
fn slow_heads_end_after_a_minute_at_the_inbound_side() -> Result<()> {
    slow_heads_end(Side::Inbound)
}

#[test]
fn slow_heads_end_after_a_minute_at_the_outbound_side() -> Result<()> {
    slow_heads_end(Side::Outbound("http"))
}

fn slow_heads_end(side: Side) -> Result<()> {
    let server = Server::start(Backend::default())?;
    survive((side, server.address()), &slow_heads(), (SLOW, HEAD_LIMIT))
}

#[test]
#[ignore = "takes ten minutes: cargo test -p leno-testkit --test abuse -- --ignored"]
fn stalls_of_http1_end_after_minutes() -> Result<()> {
    let server = Server::start(Backend::default())?;
    survive((Side::Inbound, server.address()), &stalls_of_http1(), (STALLED, STALL_LIMIT))
}

#[test]
#[ignore = "takes ten minutes: cargo test -p leno-testkit --test abuse -- --ignored"]
fn stalls_of_http2_end_after_minutes() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let server = nginx(directory.path())?;
    survive((Side::Inbound, server.address()), &stalls_of_http2(), (STALLED, STALL_LIMIT))
}

/// An HTTP/2 server with a large response.
fn nginx(directory: &Path) -> Result<Listening> {
    let (address, root) = (free_address()?, directory.display().to_string());
    File::create(directory.join("index.html"))?.set_len(LARGE)?;
    let config = directory.join("nginx.conf");
    fs::write(
        &config,
        format!(
            "daemon off; master_process off; user root; pid {root}/pid; error_log stderr crit;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  \
             client_body_temp_path {root}/b; proxy_temp_path {root}/p;\n  \
             fastcgi_temp_path {root}/f; uwsgi_temp_path {root}/u; scgi_temp_path {root}/s;\n  \
             send_timeout 1h;\n  server {{ listen {address} http2; root {root}; }}\n}}\n"
        ),
    )?;
    let mut command = Command::new(binaries::require("nginx", "nginx")?);
    command.arg("-c").arg(&config).arg("-p").arg(&root).args(["-e", "stderr"]);
    Listening::start(&mut command, address)
}

fn survive(
    (side, server): (Side, SocketAddr),
    kinds: &[Slow],
    (each, limit): (usize, Duration),
) -> Result<()> {
    let proxy = Proxy::start(side, server)?;
    let asks_http2 = kinds.iter().all(|kind| kind.begin.starts_with(PREFACE));
    let others = || -> Result<()> {
        if asks_http2 {
            // On this port, nginx accepts only HTTP/2.
            let get = frames::request(&frames::HEAD_ONLY, None, &[]);
            let told = frames::ask(proxy.address(), &get)?;
            ensure!(told == StreamOutcome::Status(200), "another client was told {told:?}");
        } else {
            let statuses = marked(&proxy)?;
            ensure!(statuses == [200], "another client was answered {statuses:?}");
        }
        Ok(())
    };
    others().context("not even before")?;
    let before = usage::of_process(proxy.pid())?;
    let mut open = Vec::new();
    for kind in kinds {
        for _ in 0..each {
            open.push((kind, Attacker::start(proxy.address(), kind)?));
        }
    }
    let (start, mut most_kib, mut tick) = (Instant::now(), 0, 0);
    while !open.is_empty() {
        let left = || open.iter().map(|(kind, _)| kind.name).collect::<Vec<_>>();
        ensure!(start.elapsed() < limit, "after {limit:?} there are still {:?}", left());
        // This sleep is part of the attack, not a wait for a condition.
        std::thread::sleep(TICK);
        tick += 1;
        others().context("meanwhile")?;
        most_kib = most_kib.max(usage::of_process(proxy.pid())?.anonymous_kib);
        let mut ended = Vec::new();
        for (at, (kind, attacker)) in open.iter_mut().enumerate() {
            if attacker.has_ended(kind, tick).context(kind.name)? {
                ended.push(at);
            }
        }
        ended.iter().rev().for_each(|at| drop(open.swap_remove(*at)));
    }
    let took = start.elapsed();
    for kind in kinds {
        let times = counted(&proxy, kind.sample)?;
        ensure!(times >= each as u64, "{} was counted {times} times", kind.name);
    }
    others().context("after it")?;
    let after = usage::of_process(proxy.pid())?;
    eprintln!(
        "{side:?}: all ended after {took:?}, KiB {}, {most_kib} at most, then {}, CPU {} us",
        before.anonymous_kib,
        after.anonymous_kib,
        (after.cpu - before.cpu).total_us()
    );
    most_kib = most_kib.max(after.anonymous_kib);
    let allowed = before.anonymous_kib + MEMORY_SLACK_KIB;
    ensure!(most_kib <= allowed, "memory has grown: {before:?}, then {most_kib} KiB");
    Ok(())
}

/// One connection of a slow client.
struct Attacker {
    stream: TcpStream,
    /// Received bytes that are not yet a complete frame.
    unread: Vec<u8>,
}

impl Attacker {
    fn start(proxy: SocketAddr, kind: &Slow) -> Result<Self> {
        let mut stream = TcpStream::connect(proxy)?;
        stream.write_all(&kind.begin)?;
        stream.set_nonblocking(true)?;
        Ok(Attacker { stream, unread: Vec::new() })
    }

    /// Sends the next bytes, and returns whether the proxy has ended the stream or the connection.
    fn has_ended(&mut self, kind: &Slow, tick: usize) -> Result<bool> {
        let bytes = (kind.then)(tick);
        if !bytes.is_empty() && self.stream.write_all(&bytes).is_err() {
            return Ok(true);
        }
        if kind.reads && self.read(kind.stream) {
            return Ok(true);
        }
        let gone = PollFlags::from_bits_retain(POLLRDHUP);
        let mut of = [PollFd::new(self.stream.as_fd(), gone)];
        Ok(frames::has_reset(&mut self.unread) || poll(&mut of, PollTimeout::ZERO)? > 0)
    }

    /// Reads all available bytes, keeps them if `keep` is set, and returns whether the connection
    /// has ended.
    fn read(&mut self, keep: bool) -> bool {
        let mut piece = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut piece) {
                Ok(count @ 1..) if keep => self.unread.extend(&piece[..count]),
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                // A reset is an end as well.
                Ok(0) | Err(_) => return true,
            }
        }
    }
}
