//! Ten thousand clients that send almost nothing, or have no identity, connect to one proxy. A meshed client and
//! the workload's own connections must be served as usual.

use std::env;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leno_testkit::peer::{Faulty, FaultyAct};
use leno_testkit::tunnel::Tunnel;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use crate::frames::{self, Field, StreamOutcome};

const LIMIT: Duration = Duration::from_secs(30);
/// A budget for 384 connections: three quarters of it are for new work, and each connection is charged 16 KiB.
const BUDGET: [&str; 2] = ["--memory-budget", "8Mi"];
const MOST: f64 = 384.0;
/// The number of rounds. In each round strangers connect at an even pace, while a meshed client and the workload
/// itself continue to send requests.
const ROUNDS: u8 = 50;
/// How many times each of the first bytes is sent in each round, from each address: 10,000 times in all.
const TIMES: usize = 20;
/// The variable with the number of seconds in which all strangers together connect. It is for measurements on an
/// otherwise idle machine, with 10. The time between two strangers is then processor time for others. If the
/// variable is set, strangers first connect to another proxy, for comparison.
const SECONDS: &str = "LENO_STRANGERS_SECONDS";
const SECONDS_OF_A_TEST: u64 = 4;
/// The time between two requests of the mesh.
const PACE: Duration = Duration::from_millis(10);
/// The first bytes of strangers: none, one byte, an unknown protocol, the beginning of TLS, and an unfinished
/// request line.
const SAID: [&[u8]; 5] =
    [b"", b"G", b"\0\xff\x07garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01", b"GET /aaaa"];
const ADDRESSES: [u8; 2] = [2, 3];
/// The number of clients in each round that use TLS without a certificate.
const NAMELESS: usize = 6;

const GET: [Field<'static>; 5] = [
    (b":method", b"GET"),
    (b":scheme", b"http"),
    (b":authority", b"a"),
    (b":path", b"/"),
    (b"leno-h1", b"1.1 l"),
];

#[test]
fn strangers_take_no_place_from_others_under_permissive() {
    besiege("permissive").expect("the mesh and the workload are served");
}

#[test]
fn strangers_take_no_place_from_others_under_strict() {
    besiege("strict").expect("the mesh and the workload are served");
}

/// A test holds this while it runs. Two tests at once would need more descriptors than a process may have on many
/// machines.
static TURN: Mutex<()> = Mutex::new(());

/// Connects strangers. They stay connected as long as the proxy permits.
fn besiege(mtls: &str) -> Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let application =
        Faulty::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), |_| FaultyAct::Good)?;
    let tunnel = Tunnel::start_given(application.address(), mtls, &BUDGET)?;
    let time = Duration::from_secs(seconds_given()?.unwrap_or(SECONDS_OF_A_TEST));
    let started = Instant::now();
    let mut before = times(&tunnel, |_| started.elapsed() > time / 2)
        .context("a client of the mesh before there are strangers")?;
    let before = p99(&mut before);
    // Strangers, and any proxy that serves them, take processor time from other processes on the machine.
    let elsewhere = match seconds_given()? {
        Some(_) => {
            let neighbour = Tunnel::start_given(application.address(), mtls, &BUDGET)?;
            Some(times_among(time, &tunnel, &neighbour)?.0)
        }
        None => None,
    };
    let (among, strangers) = times_among(time, &tunnel, &tunnel)?;
    println!(
        "a new connection and a request of a proven client under {mtls}: p99 {before:?} before, {among:?} among {} strangers{}",
        strangers.len(),
        compared(before, among, elsewhere)
    );
    let refused = "leno_connections_refused_total{direction=\"inbound\",reason=\"silent\"}";
    ensure!(metric(&tunnel, refused)? > 0.0, "no stranger made room for another");
    let open = metric(&tunnel, "leno_connections_open")?;
    ensure!(open <= MOST, "{open} connections are open");
    Ok(())
}

fn seconds_given() -> Result<Option<u64>> {
    Ok(env::var(SECONDS).ok().map(|text| text.parse()).transpose()?)
}

/// The 99th percentile of the times of a meshed client of `tunnel` while strangers connect to `besieged`, and
/// these strangers.
fn times_among(
    time: Duration,
    tunnel: &Tunnel,
    besieged: &Tunnel,
) -> Result<(Duration, Vec<TcpStream>)> {
    thread::scope(|scope| {
        let knocking = scope.spawn(|| knock_for(time, besieged));
        let among = times(tunnel, |asked| knocking.is_finished() && asked >= usize::from(ROUNDS));
        let strangers =
            knocking.join().map_err(|_| anyhow!("the strangers' thread panicked"))??;
        let mut among = among.context("a client of the mesh among strangers")?;
        Ok((p99(&mut among), strangers))
    })
}

/// A text with the ratio of a meshed client's times with and without strangers, and the ratio if the strangers connect
/// to another proxy instead. The latter part is the cost of the load on the machine, and not of this proxy.
fn compared(before: Duration, among: Duration, elsewhere: Option<Duration>) -> String {
    let times = |time: Duration| time.as_secs_f64() / before.as_secs_f64();
    let Some(elsewhere) = elsewhere else { return String::new() };
    format!(
        ": {:.2} x; the machine's own share is {:.2} x ({elsewhere:?} while as many knock at another proxy), and this proxy's \
         {:.2} x",
        times(among),
        times(elsewhere),
        times(among) / times(elsewhere)
    )
}

/// Connects all strangers within this time, at an even pace. After each round, the workload itself sends a
/// request.
fn knock_for(time: Duration, tunnel: &Tunnel) -> Result<Vec<TcpStream>> {
    let nameless = tunnel.stranger()?;
    let pause = time / (u32::from(ROUNDS) * u32::try_from(TIMES * SAID.len() * ADDRESSES.len())?);
    let mut strangers = Vec::new();
    for round in 0..ROUNDS {
        for said in SAID.iter().cycle().take(TIMES * SAID.len()) {
            for from in ADDRESSES {
                strangers.push(knock(tunnel.proxy().address(), from, said)?);
                thread::sleep(pause);
            }
        }
        for _ in 0..NAMELESS {
            strangers.push(TcpStream::connect(nameless.address())?);
        }
        // Some strangers send one more byte. Those that were refused get an error now.
        for stranger in strangers.iter_mut().step_by(7) {
            let _refused = stranger.write(b"x");
        }
        let answer = own(tunnel).with_context(|| format!("the workload in round {round}"))?;
        ensure!(answer.starts_with("HTTP/1.1 200 "), "the workload, in round {round}: {answer:?}");
    }
    Ok(strangers)
}

/// The times of a meshed client's requests. One is sent every [`PACE`], unless the one before is still unanswered,
/// until `is_over` returns true for their number.
fn times(tunnel: &Tunnel, is_over: impl Fn(usize) -> bool) -> Result<Vec<Duration>> {
    let mut times = Vec::new();
    while !is_over(times.len()) {
        let time = proven(tunnel).with_context(|| format!("request {}", times.len()))?;
        times.push(time);
        thread::sleep(PACE.saturating_sub(time));
    }
    Ok(times)
}

/// How long a meshed client takes to connect and get an answer.
fn proven(tunnel: &Tunnel) -> Result<Duration> {
    let started = Instant::now();
    let told = frames::ask(tunnel.address(), &frames::request(&GET, None, &[]))?;
    ensure!(told == StreamOutcome::Status(200), "it was told {told:?}");
    Ok(started.elapsed())
}

fn p99(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

/// Opens a stranger's connection that has sent `said`.
fn knock(proxy: SocketAddr, from: u8, said: &[u8]) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from(([127, 0, 0, from], 0)).into())?;
    socket.connect_timeout(&proxy.into(), LIMIT).context("a stranger connects")?;
    let mut stream = TcpStream::from(socket);
    // Fails if the proxy has already refused the connection.
    let _refused = stream.write_all(said);
    Ok(stream)
}

/// Sends a request of the workload itself.
fn own(tunnel: &Tunnel) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&tunnel.outbound(), LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// The value of one series in the proxy's metrics.
fn metric(tunnel: &Tunnel, series: &str) -> Result<f64> {
    let mut stream = TcpStream::connect(tunnel.proxy().admin())?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    Ok(value.context("the series is there")?.parse()?)
}
