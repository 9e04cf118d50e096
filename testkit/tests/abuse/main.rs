//! Sends malicious requests to the real `leno-proxy`. Tests the response to each, and that the server behind the
//! proxy never receives a byte that it should not receive.
//!
//! Every row states the request, the section of the specification that decides, and the required
//! outcome ([`row::RequiredOutcome`]). After a row the attacker sends a request for `/smuggled`, which no
//! server may ever see; then another client sends a request, which must be served as usual.
//!
//! ```text
//!   rows ──► client ──► leno-proxy --static ──► recording server: every byte, by connection
//! ```

mod client;
mod floods;
mod frames;
mod row;
mod rows;
mod server;
mod slow;
mod strangers;

use std::fmt::Write as _;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::proxy::{Proxy, Side};
use leno_testkit::tunnel::Tunnel;

use crate::client::Cut;
use crate::frames::StreamOutcome;
use crate::row::{RequiredOutcome, Row, SMUGGLED};
use crate::server::{ReceivedBytes, Server};

/// The number of rows that issue 3 requires. Fewer mean that the table is broken.
const FEWEST_ROWS: usize = 60;

/// The request that another client sends after each row.
const MARKER: &[u8] = b"GET /marker HTTP/1.1\r\nHost: marker\r\n\r\n";

#[test]
fn the_outbound_side_in_one_piece() {
    run(Side::Outbound("http"), Cut::Whole);
}

#[test]
fn the_outbound_side_byte_by_byte() {
    run(Side::Outbound("http"), Cut::Bytes);
}

#[test]
fn the_inbound_side_in_one_piece() {
    run(Side::Inbound, Cut::Whole);
}

/// Only the mesh may set the fields that tell an application the identity of its client.
#[test]
fn no_client_can_set_identity_headers() {
    let ways = |proxy: &Proxy| ProxyAddresses { rows: proxy.address(), others: proxy.address() };
    play(&rows::forged(), Cut::Whole, |server| Proxy::start(Side::Inbound, server), ways);
}

/// HTTP/2 requests from another proxy are forwarded to the application as HTTP/1.
#[test]
fn requests_of_another_proxy_become_http1() {
    let ways = |tunnel: &Tunnel| ProxyAddresses {
        rows: tunnel.address(),
        others: tunnel.proxy().address(),
    };
    play(&rows::of_a_proxy(), Cut::Whole, Tunnel::start, ways);
}

#[test]
fn rows_are_many_and_named_once() {
    let rows = rows::all();
    assert!(rows.len() >= FEWEST_ROWS, "{} rows", rows.len());
    let mut names: Vec<_> = rows.iter().map(|row| row.name).collect();
    names.sort_unstable();
    let twice = names.windows(2).find(|pair| pair[0] == pair[1]);
    assert_eq!(twice, None, "a name is there twice");
}

fn run(side: Side, cut: Cut) {
    // The inbound side detects the protocol, so it does not parse rows as HTTP that do not begin like HTTP.
    let http = |row: &Row| side != Side::Inbound || row.begins_as_http();
    let rows: Vec<Row> = rows::all().into_iter().filter(http).collect();
    let ways = |proxy: &Proxy| ProxyAddresses { rows: proxy.address(), others: proxy.address() };
    play(&rows, cut, |server| Proxy::start(side, server), ways);
}

/// The addresses of a proxy.
struct ProxyAddresses {
    /// The address for the attacker.
    rows: SocketAddr,
    /// The address for other clients.
    others: SocketAddr,
}

/// Runs `rows` against the proxy that `start` starts in front of a server.
fn play<P>(
    rows: &[Row],
    cut: Cut,
    start: impl Fn(SocketAddr) -> Result<P>,
    ways: impl Fn(&P) -> ProxyAddresses,
) {
    let outcome = || -> Result<String> {
        let mut failures = String::new();
        let mut place = None;
        for row in rows {
            let (server, proxy) = match place.take() {
                Some(place) => place,
                None => {
                    let server = Server::start()?;
                    let proxy = start(server.address())?;
                    (server, proxy)
                }
            };
            match judge(&ways(&proxy), &server, row, cut) {
                // All rows share one proxy, so that state left behind by a row would make the next one fail.
                Ok(()) => place = Some((server, proxy)),
                Err(error) => writeln!(failures, "{}, {}: {error:#}", row.name, row.section)?,
            }
        }
        Ok(failures)
    };
    let failures = outcome().expect("the test's own processes start");
    assert!(failures.is_empty(), "{cut:?}:\n{failures}");
}

/// Sends a row, then another client's request, and checks what arrived at both ends.
fn judge(ways: &ProxyAddresses, server: &Server, row: &Row, cut: Cut) -> Result<()> {
    let mut expected = row.expected();
    expected.push(MARKER.to_vec());
    server.answer(&expected);
    match row.fate {
        RequiredOutcome::Refused(status) | RequiredOutcome::Broken { status, .. } => {
            let ended = client::to_end(ways.rows, &row.sent(), cut)?;
            let [response] = &ended.responses[..] else {
                bail!("not one answer: {:?}", ended.responses);
            };
            ensure!(response.status == status, "answered {}, not {status}", response.status);
            ensure!(response.header("leno-error").is_some(), "not the proxy's own answer");
            ensure!(!response.keep_alive, "the connection is said to stay open");
            ensure!(ended.rest.is_empty(), "behind the answer: {}", ended.rest.escape_ascii());
        }
        RequiredOutcome::Served { .. } if row.is_http2() => {
            let told = frames::ask(ways.rows, &row.sent())?;
            ensure!(
                told == StreamOutcome::Status(200),
                "told {told:?}; the server saw {:?}",
                server.take()
            );
        }
        RequiredOutcome::Served { .. } => {
            let statuses = client::statuses(ways.rows, &row.sent(), &row.is_head(), cut)?;
            ensure!(statuses.iter().all(|status| *status == 200), "answered {statuses:?}");
        }
        RequiredOutcome::OnStream(expected) => {
            let told = frames::ask(ways.rows, &row.sent())?;
            ensure!(told == expected, "told {told:?}, not {expected:?}");
        }
    }
    let marked = client::statuses(ways.others, MARKER, &[false], Cut::Whole);
    let seen = server.take();
    let marked = marked.with_context(|| format!("another client; the server saw {seen:?}"))?;
    ensure!(marked == [200], "another client was answered {marked:?}");
    harmless(row, &expected, &seen)
}

/// Checks that the server received the expected requests, and only the valid beginning of a broken one.
fn harmless(row: &Row, expected: &[Vec<u8>], seen: &ReceivedBytes) -> Result<()> {
    ensure!(seen.requests == expected, "the server saw {seen:?}");
    let asking = |bytes: &&Vec<u8>| !frames::asks_nothing(bytes);
    let fragments: Vec<_> = seen.fragments.iter().filter(asking).collect();
    let begun = match (&row.fate, &fragments[..]) {
        (_, []) => return Ok(()),
        (RequiredOutcome::Broken { .. }, [begun]) => begun,
        _ => bail!("the server was sent more: {seen:?}"),
    };
    let sound = row.sound();
    ensure!(sound.starts_with(begun), "the server was sent {}", begun.escape_ascii());
    let smuggled = begun.windows(SMUGGLED.len()).any(|window| window == SMUGGLED);
    ensure!(!smuggled, "the server was sent what is behind the fault");
    Ok(())
}
