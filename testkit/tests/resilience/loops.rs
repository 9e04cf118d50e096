//! Tests routes and endpoints that lead back to where a request comes from.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use leno_testkit::proxy::Proxy;

use crate::front::{FrontOptions, FrontProxy};
use crate::proxied_servers::get;

/// An application that forwards each request unchanged, like a gateway.
struct Gateway {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The address to which it sends requests.
    to: Option<SocketAddr>,
    /// The answers that it got from there.
    answers: Vec<String>,
}

impl Gateway {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state: Arc<Mutex<State>> = Arc::default();
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                thread::spawn(move || pass_on(client, &state));
            }
        });
        Self { address, state }
    }

    fn answers(&self) -> Vec<String> {
        self.state.lock().unwrap().answers.clone()
    }
}

fn pass_on(mut client: TcpStream, state: &Mutex<State>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    // The proxy has removed this header, which is for a single connection, so it is added again.
    let line_end = head.windows(2).position(|two| two == b"\r\n").unwrap() + 2;
    head.splice(line_end..line_end, *b"Connection: close\r\n");
    let to = state.lock().unwrap().to.unwrap();
    let mut server = TcpStream::connect(to).unwrap();
    server.write_all(&head).unwrap();
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).unwrap();
    state.lock().unwrap().answers.push(String::from_utf8(answer.clone()).unwrap());
    client.write_all(&answer).unwrap();
}

/// Without a check, each round would occupy two more connections.
#[test]
fn a_route_to_oneself_is_noticed_at_the_second_turn() {
    let route = "---\napiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
        metadata: {name: r, namespace: t}\nspec:\n  \
        parentRefs: [{group: \"\", kind: Service, name: web}]\n  rules:\n  \
        - backendRefs: [{name: web, port: 80}]\n";
    let gateway = Gateway::start();
    let around = FrontOptions { more: route, ..FrontOptions::default() };
    let front = FrontProxy::outbound("  timeouts: {}\n", &[gateway.address], &around);
    gateway.state.lock().unwrap().to = Some(front.address());
    let answer = get(&front, "1");
    assert_eq!(answer.status, 508, "{answer:?}");
    let answers = gateway.answers();
    assert_eq!(answers.len(), 1, "turns: {answers:#?}");
    assert!(answers[0].contains("leno-error: loop\r\n"), "{answers:?}");
    assert_eq!(front.metric(&["leno_errors_total", "\"loop\""]), 1.0);
    // Another request is not affected.
    assert_eq!(get(&front, "2").status, 508);
    assert_eq!(gateway.answers().len(), 2);
}

/// The endpoint's address is the proxy's own listener.
#[test]
fn an_endpoint_that_is_the_proxys_own_listener_is_refused() {
    for protocol in ["http", "tcp"] {
        let proxy = Proxy::start_with(|address, admin| {
            let (ip, port) = (address.ip(), address.port());
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
                 spec:\n  workers: 1\n  admin: \"{admin}\"\n  mtls: disabled\n  \
                 outbound: {{listen: \"{address}\", service: \"t/web:80\"}}\n---\n\
                 apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
                 spec:\n  clusterIP: 10.96.0.10\n  \
                 ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: {protocol}}}]\n---\n\
                 apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{name: web-1, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
                 addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: {protocol}}}]\n\
                 endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
            )
        });
        let front = FrontProxy::from(proxy.unwrap());
        let answer = get(&front, "1");
        if protocol == "http" {
            let seen = (answer.status, answer.header("leno-error"));
            assert_eq!(seen, (508, Some("loop")), "{answer:?}");
        } else {
            assert_eq!(answer.status, 0, "{answer:?}");
        }
        assert!(front.metric(&["leno_errors_total", "\"loop\""]) >= 1.0, "{protocol}");
    }
}
