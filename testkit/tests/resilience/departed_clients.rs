//! Tests clients that leave before they have a response: during an injected delay, in a queue, between two attempts,
//! while the proxy connects, or while a server and a mirror stall. The proxy must end its work for them and must not
//! send the request to a server afterwards. Only what the client of an opaque connection (its bytes are relayed without
//! being parsed) has sent must still be delivered.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use leno_testkit::peer::FaultyAct;
use leno_testkit::wait;
use socket2::SockRef;

use crate::connecting::FullServer;
use crate::front::{FrontOptions, FrontProxy};
use crate::proxied_servers::ProxiedServers;

/// How long a test waits for an effect. It is shorter than the delay (5 minutes) and the back-off (1 minute) below, so
/// that a proxy that finishes these waits for a client that has left fails the test.
const LIMIT: Duration = Duration::from_secs(15);

/// A request in HTTP/1.1, and a request in HTTP/2: the preface, SETTINGS, and a GET of `/` on stream 1.
const REQUESTS: [&[u8]; 2] = [
    b"GET /1 HTTP/1.1\r\nHost: web\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x01\x05\0\0\0\x01\x82\x86\x84\x41\x03web",
];

fn ask(front: &FrontProxy, request: &[u8]) -> TcpStream {
    let mut client = front.connect();
    client.write_all(request).unwrap();
    client
}

fn wait_for(what: &str, front: &FrontProxy, metric: &[&str], value: f64) {
    wait::until(what, LIMIT, || Ok((front.metric(metric) == value).then_some(()))).unwrap();
}

/// Checks that the proxy has noticed that a client left, and has ended its work for that client.
fn assert_over(front: &FrontProxy) {
    wait_for("the work to end", front, &["leno_busy"], 0.0);
    wait_for("its connection to end", front, &["leno_connections_open"], 0.0);
    // If an HTTP/2 connection breaks, that is counted in addition to its request.
    let counted = |cause| front.metric(&["leno_errors_total", cause]);
    let causes = [counted("\"closed\""), counted("\"broken\"")];
    assert!(causes[0] >= 1.0 && causes.iter().sum::<f64>() == counted(""), "{causes:?}");
}

fn assert_counted(front: &FrontProxy) {
    assert_eq!(front.metric(&["leno_requests_total", "status=\"499\""]), 1.0);
}

#[test]
fn in_the_delay_of_a_fault() {
    for request in REQUESTS {
        let faults = "  faults: {delay: {by: 5m, percent: 100}}\n";
        let world = ProxiedServers::outbound(faults, &[|_| FaultyAct::Good]);
        let client = ask(world.front(), request);
        wait_for("the delay", world.front(), &["leno_faults_total", "delay"], 1.0);
        drop(client);
        assert_over(world.front());
        assert_counted(world.front());
        assert!(world.seen().is_empty());
    }
}

#[test]
fn in_the_queue_of_a_service() {
    for request in REQUESTS {
        let world = ProxiedServers::outbound(
            "  limits: {requests: 1, pending: 5}\n",
            &[|_| FaultyAct::Stall],
        );
        let held = world.send("GET", "held", "", "");
        wait::until("it to arrive", LIMIT, || Ok((world.seen().len() == 1).then_some(()))).unwrap();
        let client = ask(world.front(), request);
        wait_for("it to be queued", world.front(), &["leno_busy"], 2.0);
        drop(client);
        wait_for("it to end", world.front(), &["leno_busy"], 1.0);
        assert_counted(world.front());
        drop(held);
        wait_for("the other to end", world.front(), &["leno_busy"], 0.0);
        assert_eq!(world.seen(), ["held"]);
    }
}

#[test]
fn in_the_backoff_of_a_retry() {
    let retries = "  retries: {attempts: 3, on: [503], backoff: 1m}\n";
    let world = ProxiedServers::outbound(retries, &[|_| FaultyAct::Status(503)]);
    let client = world.send("GET", "once", "", "");
    wait_for("the back-off", world.front(), &["leno_retries_total"], 1.0);
    drop(client);
    assert_over(world.front());
    assert_counted(world.front());
    assert_eq!(world.seen(), ["once"]);
}

fn opaque(server: &FullServer) -> FrontProxy {
    let around = FrontOptions { protocol: "tcp", ..FrontOptions::default() };
    FrontProxy::outbound("  timeouts: {}\n", &[server.address()], &around)
}

/// For an opaque connection, attempts to reach a server must end if the client leaves without having sent
/// anything, or if its connection breaks.
#[test]
fn while_an_opaque_connection_is_made() {
    let server = FullServer::new();
    let front = opaque(&server);
    let client = front.connect();
    wait_for("the connection", &front, &["leno_busy"], 1.0);
    drop(client);
    wait_for("the work to end", &front, &["leno_busy"], 0.0);
    let client = ask(&front, b"any bytes");
    wait_for("the connection", &front, &["leno_busy"], 1.0);
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_over(&front);
}

/// The opaque client closes its connection after it has sent its bytes, as `nc -N` and programs that send logs do.
#[test]
fn what_a_client_of_bytes_has_sent_arrives_after_it_has_left() {
    let sides: [fn(&FullServer) -> FrontProxy; 2] =
        [opaque, |server| FrontProxy::inbound("", server.address())];
    for side in sides {
        let server = FullServer::new();
        let front = side(&server);
        let client = ask(&front, b"\0all of it");
        wait_for("the connection", &front, &["leno_busy"], 1.0);
        drop(client);
        let mut arrived = Vec::new();
        server.accept().read_to_end(&mut arrived).unwrap();
        assert_eq!(arrived, b"\0all of it");
        wait_for("its connection to end", &front, &["leno_connections_open"], 0.0);
        assert_eq!(front.metric(&["leno_errors_total"]), 0.0);
    }
}

#[test]
fn while_the_application_is_connected_to() {
    for request in REQUESTS {
        let application = FullServer::new();
        let front = FrontProxy::inbound("", application.address());
        let client = ask(&front, request);
        wait_for("the connection", &front, &["leno_busy"], 1.0);
        drop(client);
        assert_over(&front);
        assert_counted(&front);
    }
}

/// The client sends nothing. In some protocols the server speaks first, so the proxy connects to the application
/// anyway. That attempt must end when the client leaves.
#[test]
fn in_silence_while_the_application_is_connected_to() {
    let application = FullServer::new();
    let front = FrontProxy::inbound("", application.address());
    let client = front.connect();
    wait_for("the connection", &front, &["leno_connections_open"], 1.0);
    drop(client);
    wait_for("its end", &front, &["leno_connections_open"], 0.0);
    // The client's leaving has ended the attempt: if the attempt had run into its timeout, it would be counted here.
    assert_eq!(front.metric(&["leno_connect_failures_total"]), 0.0);
}

#[test]
fn the_copy_for_a_mirror_ends_with_its_request() {
    let mirror = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
        metadata: {name: r, namespace: t}\nspec:\n  \
        parentRefs: [{group: \"\", kind: Service, name: web}]\n  rules:\n  - filters:\n    \
        - type: RequestMirror\n      requestMirror: {backendRef: {name: web, port: 80}}\n    \
        backendRefs: [{name: web, port: 80}]\n";
    let world = ProxiedServers::outbound_with("  timeouts: {}\n", &[|_| FaultyAct::Stall], mirror);
    let client = world.send("GET", "1", "", "");
    wait::until("both to arrive", LIMIT, || Ok((world.seen().len() == 2).then_some(()))).unwrap();
    drop(client);
    let left = ["leno_mirrored_requests_total", "client_left"];
    wait_for("the copy to end", world.front(), &left, 1.0);
    wait::until("the server to see it", Duration::from_secs(8), || {
        Ok((world.backends[0].given_up() == 2).then_some(()))
    })
    .unwrap();
    assert_eq!(world.metric(&["leno_mirrored_requests_total"]), 1.0);
}
