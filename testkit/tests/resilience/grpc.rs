//! Tests gRPC calls, which are retried by their status and routed by weight.

use http::Request;

use crate::balancing::is_share;
use crate::front::{FrontOptions, FrontProxy};
use crate::http2::{self, Reply, Server, ServerBehaviour, Upload};

const CALLS: usize = 300;

fn front(spec: &str, servers: &[Server], more: &str) -> FrontProxy {
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    FrontProxy::outbound(
        spec,
        &addresses,
        &FrontOptions { protocol: "grpc", more, ..FrontOptions::default() },
    )
}

fn call(front: &FrontProxy, id: &str) -> Reply {
    let request = Request::builder().method("POST").uri("http://web/shop.Cart/Add");
    let request = request.header("content-type", "application/grpc").header("te", "trailers");
    let request = request.header("x-id", id).body(()).expect("a request");
    http2::ask(front.address(), request, Upload::default())
}

/// The gRPC status of a call.
fn code(reply: &Reply) -> Option<&str> {
    reply.headers.get("grpc-status").and_then(|status| status.to_str().ok())
}

/// How many calls have reached the servers.
fn seen(servers: &[Server]) -> usize {
    servers.iter().map(|server| server.seen().len()).sum()
}

fn retries(on: &str, more: &str) -> String {
    format!("  retries:\n    attempts: 3\n    on: [{on}]\n    backoff: 1ms\n{more}")
}

const FREE: &str = "    nonIdempotent: true\n    budget: {percent: 100, minPerSecond: 1000}\n";

/// One of two servers always returns UNAVAILABLE. If the policy names that status, its calls must be retried on
/// the other server.
#[test]
fn calls_are_tried_again_by_their_code() {
    let unavailable: http2::Script = |_, _| ServerBehaviour::Grpc(14);
    let good: http2::Script = |_, _| ServerBehaviour::Grpc(0);
    let internal: http2::Script = |_, _| ServerBehaviour::Grpc(13);
    for (on, more, first, expected) in [
        ("UNAVAILABLE", FREE, unavailable, true),
        ("RESOURCE_EXHAUSTED, UNAVAILABLE", FREE, unavailable, true),
        // The policy does not name this status.
        ("UNAVAILABLE", FREE, internal, false),
        // HTTP statuses in the policy do not apply to the grpc-status of a call.
        ("503, 5xx", FREE, unavailable, false),
        // A gRPC call is a POST, which is sent only once unless the policy permits more.
        ("UNAVAILABLE", "    budget: {percent: 100, minPerSecond: 1000}\n", unavailable, false),
    ] {
        let servers = [Server::start(first), Server::start(good)];
        let front = front(&retries(on, more), &servers, "");
        let replies: Vec<Reply> = (0..60).map(|id| call(&front, &id.to_string())).collect();
        let failed = replies.iter().filter(|reply| code(reply) != Some("0")).count();
        assert!(!servers[0].seen().is_empty(), "{on}: nothing came to the first");
        assert_eq!(failed == 0, expected, "{on}: {failed} failed");
        let again = seen(&servers) - replies.len();
        assert_eq!(again, if expected { servers[0].seen().len() } else { 0 }, "{on}");
        assert_eq!(front.metric(&["leno_retries_total"]), again as f64, "{on}");
    }
}

/// All calls fail. The servers receive the clients' calls, and as many retries as the budget allows.
#[test]
fn calls_are_tried_again_within_the_budget() {
    let unavailable: http2::Script = |_, _| ServerBehaviour::Grpc(14);
    let servers = [Server::start(unavailable), Server::start(unavailable)];
    let budget = "    nonIdempotent: true\n    budget: {percent: 10, minPerSecond: 2}\n";
    let front = front(&retries("UNAVAILABLE", budget), &servers, "");
    let began = std::time::Instant::now();
    for id in 0..CALLS {
        assert_eq!(code(&call(&front, &id.to_string())), Some("14"));
    }
    let seconds = began.elapsed().as_secs_f64() + 1.0;
    let again = (seen(&servers) - CALLS) as f64;
    let share = CALLS as f64 * 0.1;
    assert!(again >= share - 1.0 && again <= share + seconds * 2.0, "{again} in {seconds} s");
    assert!(front.metric(&["leno_retries_denied_total", "budget"]) > 0.0);
}

/// Tests the features that the Gateway API's conformance tests GRPCRouteWeight and GRPCRouteNamedRule are about.
#[test]
fn grpc_calls_go_by_weight() {
    let servers: Vec<Server> =
        (0..2).map(|_| Server::start(|_, _| ServerBehaviour::Grpc(0))).collect();
    let more = servers.iter().zip(["one", "two"]).map(|(server, name)| {
        let (ip, port) = (server.address.ip(), server.address.port());
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: t}}\n\
             spec:\n  clusterIP: None\n  ports: [{{name: x, port: 80, appProtocol: grpc}}]\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}-1, namespace: t, labels: {{kubernetes.io/service-name: {name}}}}}\n\
             addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: grpc}}]\n\
             endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
        )
    });
    let more = more.collect::<String>()
        + "---\napiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\n\
           metadata: {name: r, namespace: t}\nspec:\n  \
           parentRefs: [{group: \"\", kind: Service, name: web}]\n  rules:\n  \
           - name: cart\n    matches: [{method: {service: shop.Cart}}]\n    \
           backendRefs: [{name: one, port: 80, weight: 3}, {name: two, port: 80, weight: 1}]\n";
    let front = front("  timeouts: {request: 1m}\n", &[], &more);
    for id in 0..CALLS {
        assert_eq!(code(&call(&front, &id.to_string())), Some("0"));
    }
    let counts: Vec<usize> = servers.iter().map(|server| server.seen().len()).collect();
    assert_eq!(counts.iter().sum::<usize>(), CALLS);
    assert!(is_share(counts[0], CALLS, 0.75), "{counts:?}");
}
