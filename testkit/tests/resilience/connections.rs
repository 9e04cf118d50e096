//! Tests the limit on connections to a service: which requests are refused, and when there is space again.

use std::io::Read;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use http::Request;
use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;
use socket2::{Domain, Socket, Type};

use crate::front::{FrontOptions, FrontProxy};
use crate::http2::{self, Reply, Server, ServerBehaviour, Upload};
use crate::proxied_servers::{ProxiedServers, Script, get, server};

const LIMIT: Duration = Duration::from_secs(20);

/// Requests in progress use all permitted connections. One more request is refused at once, with the cause.
#[test]
fn no_more_connections_are_made_than_policy_allows() {
    let stalls: Script = |_| FaultyAct::Stall;
    let world = ProxiedServers::outbound("  limits: {connections: 3}\n", &[stalls, stalls]);
    let held: Vec<_> =
        (0..3).map(|number| world.send("GET", &number.to_string(), "", "")).collect();
    wait::until("three requests to be under way", LIMIT, || {
        Ok((world.seen().len() == 3).then_some(()))
    })
    .unwrap();
    let refused = world.get("refused");
    assert_eq!((refused.status, refused.header("leno-error")), (503, Some("connections-in-use")));
    assert_eq!(world.seen().len(), 3);
    assert_eq!(world.metric(&["leno_errors_total", "connections-in-use"]), 1.0);
    // A client that leaves frees its connection.
    drop(held);
    wait::until("the clients that left to have made room", LIMIT, || {
        let mut next = world.send("GET", "next", "", "");
        next.set_read_timeout(Some(Duration::from_millis(100)))?;
        // A response would mean that the request was refused, because the stalling server sends none.
        Ok(next.read(&mut [0]).is_err().then_some(()))
    })
    .unwrap();
}

/// An idle connection to one endpoint must be closed if another endpoint needs it.
#[test]
fn idle_connections_make_room() {
    let world = ProxiedServers::outbound(
        "  balancing: {algorithm: RoundRobin}\n  limits: {connections: 1}\n",
        &[|_| FaultyAct::Good, |_| FaultyAct::Good, |_| FaultyAct::Good],
    );
    for number in 0..12 {
        let answer = world.get(&number.to_string());
        assert!(answer.is_good(), "{answer:?}");
    }
    assert!(world.backends.iter().all(|backend| backend.seen().len() == 4));
}

fn http2_front(spec: &str, servers: &[Server]) -> FrontProxy {
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    FrontProxy::outbound(
        spec,
        &addresses,
        &FrontOptions { protocol: "kubernetes.io/h2c", ..FrontOptions::default() },
    )
}

fn ask(front: &FrontProxy, id: &str) -> Reply {
    let request = Request::builder().uri("http://web/").header("x-id", id).body(());
    http2::ask(front.address(), request.expect("a request"), Upload::default())
}

fn cause(reply: &Reply) -> Option<&str> {
    reply.headers.get("leno-error").and_then(|cause| cause.to_str().ok())
}

/// HTTP/2 requests share the existing connections, however many arrive at once. Another endpoint gets a connection
/// as long as policy permits it.
#[test]
fn requests_of_http2_share_the_connections_that_policy_allows() {
    let spec = "  balancing: {algorithm: RoundRobin}\n  limits: {connections: 2}\n";
    let servers: Vec<Server> =
        (0..3).map(|_| Server::start(|_, _| ServerBehaviour::AfterBody)).collect();
    let front = http2_front(spec, &servers);
    thread::scope(|scope| {
        for client in 0..6 {
            let front = &front;
            scope.spawn(move || {
                for number in 0..20 {
                    let reply = ask(front, &format!("{client}-{number}"));
                    assert_eq!((reply.status, reply.error), (200, None), "{client} {number}");
                }
            });
        }
    });
    let connections: Vec<usize> = servers.iter().map(Server::connections).collect();
    assert_eq!(connections.iter().sum::<usize>(), 2, "{connections:?}");
    let seen: Vec<usize> = servers.iter().map(|server| server.seen().len()).collect();
    assert_eq!(seen.iter().sum::<usize>(), 120, "{seen:?}");
    assert!(
        connections.iter().zip(&seen).all(|(open, seen)| (*open > 0) == (*seen > 0)),
        "{seen:?}"
    );
}

/// A connection on which no bytes arrive any more must be replaced by another one, once requests have timed out on
/// it.
#[test]
fn a_connection_that_is_stuck_makes_room() {
    let script: http2::Script = |connection, number| match (connection, number) {
        (0, 1..) => ServerBehaviour::Freeze,
        _ => ServerBehaviour::Good,
    };
    let server = Server::start(script);
    let spec = "  limits: {connections: 1}\n  timeouts: {response: 300ms}\n";
    let front = http2_front(spec, std::slice::from_ref(&server));
    assert_eq!(ask(&front, "good").status, 200);
    let stuck = ask(&front, "stuck");
    assert_eq!((stuck.status, cause(&stuck)), (504, Some("response-timeout")), "{stuck:?}");
    wait::until("another connection", LIMIT, || {
        let reply = ask(&front, "next");
        let refused = (503, Some("connections-in-use"));
        assert!(reply.status == 200 || (reply.status, cause(&reply)) == refused, "{reply:?}");
        Ok((reply.status == 200).then_some(()))
    })
    .unwrap();
    assert_eq!(server.connections(), 2);
}

/// The connection to a server that is only slow must be kept, because other requests are answered on it in the
/// meantime.
#[test]
fn a_connection_that_answers_others_is_kept() {
    let server =
        Server::start(
            |_, number| if number == 0 { ServerBehaviour::Stall } else { ServerBehaviour::Good },
        );
    let front = http2_front("  timeouts: {response: 2s}\n", std::slice::from_ref(&server));
    thread::scope(|scope| {
        let slow = scope.spawn(|| ask(&front, "slow"));
        wait::until("it to be under way", LIMIT, || Ok((!server.seen().is_empty()).then_some(())))
            .unwrap();
        assert_eq!(ask(&front, "meanwhile").status, 200);
        assert_eq!(slow.join().expect("a client").status, 504);
    });
    assert_eq!(ask(&front, "next").status, 200);
    assert_eq!(server.connections(), 1);
}

/// Seven of eight endpoints have ended, and discovery has not removed them yet. Each refuses at once, and the
/// first request must reach the remaining one.
#[test]
fn endpoints_that_end_together_fail_no_request() {
    // The sockets are bound, so that no other program gets their ports, but they do not listen.
    let gone: Vec<Socket> = (0..7)
        .map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
            socket
        })
        .collect();
    let address = |socket: &Socket| socket.local_addr().unwrap().as_socket().unwrap();
    let mut addresses: Vec<SocketAddr> = gone.iter().map(address).collect();
    let good = server(|_| FaultyAct::Good);
    addresses.push(good.address());
    for spec in ["  balancing: {algorithm: Random}\n", "  retries: {attempts: 1, on: [503]}\n"] {
        let mut quick = 0;
        while quick < 3 {
            let front = FrontProxy::outbound(spec, &addresses, &FrontOptions::default());
            let begun = Instant::now();
            let answer = get(&front, "first");
            // A busy machine may slow an attempt down so much that the request's three attempts are used up. So
            // slow rounds do not count.
            if begun.elapsed() < Duration::from_millis(400) {
                quick += 1;
                assert!(answer.is_good(), "{spec}{answer:?}");
            }
        }
    }
}
