//! Tests routes for HTTP/2 requests and gRPC calls, through the control plane and two proxies, and routes that
//! change under traffic.
//!
//! ```text
//!   client ──► web:80 (HTTP/2)  ──► v1, v2   nginx, which speaks HTTP/2 itself
//!          ──► calls:90 (gRPC)  ──► g1, g2   tonic
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leno_testkit::command::Running;
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, load, wait};

use super::{Case, once};

/// How long a change may take to reach a proxy.
const HEAR_LIMIT: Duration = Duration::from_secs(90);
/// How many requests are sent to measure a weight.
const WEIGHED: usize = 40;
/// The number of route changes per second, and for how many seconds the routes change.
const CHANGES_PER_S: u32 = 10;
const CHANGING_S: u32 = 6;
/// The rate of requests per second that is used if the machine can generate it; otherwise a lower one.
const FULL_RATE: f64 = 2000.0;
/// The share of the machine's maximum rate that is generated.
const LOADED: f64 = 0.4;

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v1, namespace: lab, labels: {app: web}}
spec:
  command: [nginx, -c, \"@DIR@/v1.conf\"]
  ports: [{name: h2, port: 8081, appProtocol: kubernetes.io/h2c}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: v2, namespace: lab}
spec:
  command: [nginx, -c, \"@DIR@/v2.conf\"]
  ports: [{name: h2, port: 8081, appProtocol: kubernetes.io/h2c}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: g1, namespace: lab, labels: {app: calls}}
spec:
  command: [\"@BIN@/examples/tonic-peer\", serve, \"10000\", g1]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: g2, namespace: lab}
spec:
  command: [\"@BIN@/examples/tonic-peer\", serve, \"10000\", g2]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: lab}
spec: {selector: {app: web}, ports: [{name: h2, port: 80, targetPort: 8081, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
";

/// Matches and filters of HTTP/2 requests.
const WEB: &str = "
  - matches: [{headers: [{name: version, value: two}]}]
    backendRefs: [{name: v2, port: 8081}]
  - matches: [{method: POST}]
    backendRefs: [{name: v2, port: 8081}]
  - matches: [{queryParams: [{name: version, value: two}]}]
    backendRefs: [{name: v2, port: 8081}]
  - matches: [{path: {value: /api}}]
    filters:
      - type: URLRewrite
        urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /seen}}
      - type: RequestHeaderModifier
        requestHeaderModifier: {set: [{name: x-marker, value: set}]}
    backendRefs: [{name: v1, port: 8081}]
  - matches: [{path: {value: /copied}}]
    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: v2, port: 8081}}}]
    backendRefs: [{name: v1, port: 8081}]
  - matches: [{path: {value: /old}}]
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /new}, statusCode: 308}}]
  - matches: [{path: {value: /split}}]
    backendRefs: [{name: v1, port: 8081, weight: 3}, {name: v2, port: 8081}]
  - matches: [{path: {value: /nobody}}]
    backendRefs: [{name: nobody, port: 8081}]
  - matches: [{path: {type: Exact, value: /}}, {path: {value: /slow}}]
    backendRefs: [{name: v1, port: 8081}]
";

/// Matches of gRPC calls.
const CALLS: &str = "
  - matches: [{method: {service: shop.Cart, method: Add}}]
    backendRefs: [{name: g1, port: 10000}]
  - matches: [{method: {service: shop.Cart}}]
    backendRefs: [{name: g2, port: 10000}]
  - matches: [{method: {type: RegularExpression, service: 'shop\\.S.*', method: 'Take(All)?'}}]
    backendRefs: [{name: g2, port: 10000}]
  - matches: [{headers: [{name: version, value: two}]}]
    backendRefs: [{name: g2, port: 10000}]
  - matches: [{method: {service: shop.Split}}]
    backendRefs: [{name: g1, port: 10000, weight: 3}, {name: g2, port: 10000}]
  - matches: [{method: {service: shop.Nobody}}]
    backendRefs: [{name: nobody, port: 10000}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(http2_requests_follow_routes),
        once!(grpc_calls_follow_routes),
        once!(mesh_grpc_route_request_header_modifier),
        once!(routes_that_change_ten_times_a_second_cut_no_stream_and_lose_no_request),
    ]
}

fn route(kind: &str, service: &str, rules: &str) -> String {
    format!(
        "---\napiVersion: gateway.networking.k8s.io/v1\nkind: {kind}\n\
         metadata: {{name: {service}, namespace: lab}}\nspec:\n  \
         parentRefs: [{{group: \"\", kind: Service, name: {service}}}]\n  rules:\n{rules}"
    )
}

fn prepare(directory: &Path) -> Result<()> {
    binaries::require("nginx", "nginx")?;
    for name in ["v1", "v2"] {
        fs::write(
            directory.join(format!("{name}.conf")),
            nginx(&directory.display().to_string(), name),
        )?;
    }
    fs::create_dir(directory.join("slow"))?;
    fs::write(directory.join("slow/file"), vec![b'x'; 600 << 10])?;
    Ok(())
}

/// The configuration of an nginx. Its response to `/slow/file` takes as long as the routes change, and it logs
/// every request.
pub(super) fn nginx(directory: &str, name: &str) -> String {
    format!(
        "daemon off; master_process off; user root; pid {directory}/{name}.pid;\n\
         error_log stderr error;\nevents {{ worker_connections 1024; }}\n\
         http {{\n  log_format paths '$request_method $request_uri $server_protocol';\n  \
         access_log {directory}/{name}.log paths;\n  \
         client_body_temp_path {directory}/{name}-b;\n  proxy_temp_path {directory}/{name}-p;\n  \
         fastcgi_temp_path {directory}/{name}-f;\n  uwsgi_temp_path {directory}/{name}-u;\n  \
         scgi_temp_path {directory}/{name}-s;\n  \
         server {{\n    listen 8081 http2; listen [::]:8081 http2;\n    \
         keepalive_requests 1000000;\n    add_header x-served-by {name} always;\n    \
         location / {{ return 200 \"$server_protocol $request_uri $http_x_marker\\n\"; }}\n    \
         location /slow/ {{ root {directory}; limit_rate 100k; }}\n  }}\n}}\n"
    )
}

/// The name of the server that answers an HTTP/2 request; for a status other than 200, the status with
/// `leno-error` and the body.
fn web(lab: &Lab, request: &[&str]) -> Result<String> {
    let format = "\n%{http_version} %{http_code} %header{x-served-by} %header{leno-error}";
    let curl = ["curl", "-sS", "-m", "20", "--http2-prior-knowledge", "-w", format];
    let text = lab.text("client", &[&curl[..], request].concat())?;
    let (body, line) = text.rsplit_once('\n').context("no line")?;
    Ok(format!("{} | {}", line.trim(), body.trim()).trim_end_matches([' ', '|']).to_owned())
}

/// The output of a gRPC client for one call.
fn call(lab: &Lab, more: &[&str]) -> Result<String> {
    let peer = peer()?;
    let command = [&[&*peer, "one", "calls", "90"], more].concat();
    Ok(lab.text("client", &command)?.trim().to_owned())
}

/// The program that serves gRPC and calls it.
pub(super) fn peer() -> Result<String> {
    let peer = binaries::directory()?.join("examples/tonic-peer");
    ensure!(peer.is_file(), "build it first: cargo build -p leno-testkit --examples");
    Ok(peer.display().to_string())
}

fn until(expected: &str, mut look: impl FnMut() -> Result<String>) -> Result<()> {
    let mut last = String::new();
    let heard = wait::until("the answer", HEAR_LIMIT, || {
        last = look()?;
        Ok((last.starts_with(expected)).then_some(()))
    });
    heard.with_context(|| format!("{last:?} where {expected:?} is expected"))
}

fn start(capture: Capture, routes: &str) -> Result<Lab> {
    peer()?;
    Lab::start(&LabOptions::new(capture), &format!("{MESH}{routes}"), prepare)
}

fn http2_requests_follow_routes(capture: Capture) -> Result<()> {
    let lab = start(capture, &route("HTTPRoute", "web", WEB))?;
    let cases = || -> Result<()> {
        until("2 200 v1", || web(&lab, &["http://web/"]))?;
        let invalid =
            "2 500  backend-invalid; reason=BackendNotFound; by=\"HTTPRoute lab/web rule 7\"";
        for (request, expected) in [
            (&["http://web/"][..], "2 200 v1 | HTTP/2.0 /"),
            (&["-H", "Version: two", "http://web/any"], "2 200 v2 | HTTP/2.0 /any"),
            // The request has no body, because nginx resets a stream whose request body it has not read when it
            // returns a text.
            (&["-X", "POST", "http://web/any"], "2 200 v2 | HTTP/2.0 /any"),
            (&["http://web/any?version=two"], "2 200 v2 | HTTP/2.0 /any?version=two"),
            (&["http://web/api/items?a=b"], "2 200 v1 | HTTP/2.0 /seen/items?a=b set"),
            (&["http://web/any"], "2 404  no-route-matches"),
            (&["http://web/nobody"], invalid),
        ] {
            let said = web(&lab, request)?;
            // The bodies of the mesh's own responses are texts for users, and are not compared.
            let head = said.split(" | ").next().unwrap_or_default();
            let same = said == expected || head == expected;
            ensure!(same, "{request:?}: {said:?} where {expected:?} is expected");
        }
        let location = ["-o", "/dev/null", "-w", "%{http_code} %header{location}"];
        let curl = ["curl", "-sS", "-m", "20", "--http2-prior-knowledge"];
        let said = lab.text("client", &[&curl[..], &location, &["http://web/old?a=b"]].concat())?;
        ensure!(said == "308 http://web/new?a=b", "{said}");
        copied(&lab)?;
        let mut by = Vec::new();
        for _ in 0..WEIGHED {
            by.push(web(&lab, &["http://web/split"])?);
        }
        let to_first = by.iter().filter(|said| said.starts_with("2 200 v1")).count();
        let to_second = by.iter().filter(|said| said.starts_with("2 200 v2")).count();
        ensure!(to_first + to_second == WEIGHED && to_first > to_second && to_second > 0, "{by:?}");
        Ok(())
    };
    lab.explain(cases())
}

/// The client gets the response of the backend, and the mirror receives the same request once.
fn copied(lab: &Lab) -> Result<()> {
    let said = web(lab, &["-X", "PUT", "http://web/copied?n=1"])?;
    ensure!(said.starts_with("2 200 v1 | HTTP/2.0 /copied?n=1"), "{said}");
    let log = lab.directory().join("v2.log");
    let wanted = "PUT /copied?n=1 HTTP/2.0";
    let copies = || -> Result<usize> {
        Ok(fs::read_to_string(&log)?.lines().filter(|line| *line == wanted).count())
    };
    wait::until("the copy", HEAR_LIMIT, || Ok((copies()? > 0).then_some(())))?;
    ensure!(copies()? == 1, "{} copies", copies()?);
    Ok(())
}

fn grpc_calls_follow_routes(capture: Capture) -> Result<()> {
    let lab = start(capture, &route("GRPCRoute", "calls", CALLS))?;
    let cases = || -> Result<()> {
        until("Ok g1 -", || call(&lab, &["/shop.Cart/Add"]))?;
        for (request, expected) in [
            (&["/shop.Cart/Add"][..], "Ok g1 -"),
            (&["/shop.Cart/Remove"], "Ok g2 -"),
            (&["/shop.Stock/Take"], "Ok g2 -"),
            (&["/shop.Stock/TakeAll"], "Ok g2 -"),
            (&["/shop.Stock/TakeNone"], "Unimplemented - no-route-matches"),
            (&["/shop.Stock/TakeNone", "version=two"], "Ok g2 -"),
            (&["/shop.Cart/Add", "version=two"], "Ok g1 -"),
            (
                &["/shop.Nobody/Is"],
                "Unavailable - backend-invalid; reason=BackendNotFound; by=\"GRPCRoute lab/calls rule 5\"",
            ),
        ] {
            let said = call(&lab, request)?;
            ensure!(said == expected, "{request:?}: {said:?} where {expected:?} is expected");
        }
        let mut by = BTreeSet::new();
        let both = wait::until("both backends", HEAR_LIMIT, || {
            by.insert(call(&lab, &["/shop.Split/One"])?);
            Ok((by.len() == 2).then_some(()))
        });
        both.with_context(|| format!("{by:?}"))?;
        ensure!(by == BTreeSet::from(["Ok g1 -".into(), "Ok g2 -".into()]), "{by:?}");
        Ok(())
    };
    lab.explain(cases())
}

/// Corresponds to the Gateway API's conformance test MeshGRPCRouteRequestHeaderModifier. The server returns the
/// metadata that it received.
fn mesh_grpc_route_request_header_modifier(capture: Capture) -> Result<()> {
    let changes = "
  - matches: [{method: {service: shop.Cart}}]
    filters:
      - type: RequestHeaderModifier
        requestHeaderModifier:
          set: [{name: x-text, value: set}]
          add: [{name: x-more, value: added}]
    backendRefs: [{name: g1, port: 10000}]
  - filters:
      - type: RequestHeaderModifier
        requestHeaderModifier: {remove: [x-text]}
    backendRefs: [{name: g1, port: 10000}]
";
    let lab = start(capture, &route("GRPCRoute", "calls", changes))?;
    let cases = || -> Result<()> {
        until("Ok g1 - x-text=set", || call(&lab, &["/shop.Cart/Add"]))?;
        for (request, expected) in [
            (&["/shop.Cart/Add"][..], "Ok g1 - x-text=set x-more=added"),
            (
                &["/shop.Cart/Add", "x-text=own", "x-more=own"],
                "Ok g1 - x-text=set x-more=own|added",
            ),
            (&["/shop.Stock/Take", "x-text=own", "x-more=own"], "Ok g1 - x-more=own"),
        ] {
            let said = call(&lab, request)?;
            ensure!(said == expected, "{request:?}: {said:?} where {expected:?} is expected");
        }
        Ok(())
    };
    lab.explain(cases())
}

/// The routes of both services after the `nth` change: alternating backends, and a header with the
/// number.
fn nth(nth: u32) -> String {
    let (web, calls) = if nth.is_multiple_of(2) { ("v1", "g1") } else { ("v2", "g2") };
    let marked = format!(
        "  - filters: [{{type: ResponseHeaderModifier, responseHeaderModifier: {{set: \
         [{{name: x-change, value: \"{nth}\"}}]}}}}]\n    backendRefs: "
    );
    route("HTTPRoute", "web", &format!("{marked}[{{name: {web}, port: 8081}}]\n"))
        + &route("GRPCRoute", "calls", &format!("{marked}[{{name: {calls}, port: 10000}}]\n"))
}

/// While the routes of both services change, HTTP/2 requests, gRPC calls, streams and a slow response are in
/// progress.
fn routes_that_change_ten_times_a_second_cut_no_stream_and_lose_no_request(
    capture: Capture,
) -> Result<()> {
    let lab = start(capture, "")?;
    let changes = Changes::new(&lab)?;
    let cases = || -> Result<()> {
        changes.write(0)?;
        until("2 200 v1", || web(&lab, &["http://web/"]))?;
        until("Ok g1 -", || call(&lab, &["/shop.Cart/Add"]))?;
        until("0", || changed(&lab))?;
        let most = run(&lab, "http2", "http://web/", ("max", "2s"))?.requests_per_s;
        let rate = FULL_RATE.min(most * LOADED);
        let seconds = format!("{}s", CHANGING_S + 2);
        // Two thirds of the rate are requests; the rest are calls, and messages on long-lived streams.
        let (half, sixth) = (format!("{:.0}", rate * 2.0 / 3.0), format!("{:.0}", rate / 6.0));
        let loads = [
            ("http2", "http://web/", &half),
            ("grpc", "http://calls:90/shop.Cart/Add", &sixth),
            ("grpc-stream", "http://calls:90/shop.Cart/Watch", &sixth),
        ];
        let under_way = loads.map(|(protocol, url, rate)| {
            lab.load("client", &load_of(protocol, url, (rate, &seconds)))
        });
        let slow = ["curl", "-sS", "-m", "60", "--http2-prior-knowledge", "http://web/slow/file"];
        let slow = lab.spawn("client", &slow)?;
        let watched = lab.spawn("client", &WATCH)?;
        changes.make()?;
        let last = (CHANGES_PER_S * CHANGING_S).to_string();
        wait::until("the last change", HEAR_LIMIT, || Ok((changed(&lab)? == last).then_some(())))?;
        let seen = seen(watched)?;
        for (load, (protocol, ..)) in under_way.into_iter().zip(loads) {
            let report = load?.finish()?;
            println!(
                "{protocol}: {} requests at {:.0}/s (the machine takes {most:.0}/s), {} errors, {} \
                 connections opened, {seen} of {last} changes seen by a client",
                report.requests, report.requests_per_s, report.errors, report.connections_opened
            );
            ensure!(report.errors == 0 && report.requests > 0, "{protocol}: {report:?}");
        }
        let slow = slow.finish(Duration::from_secs(60))?;
        ensure!(slow.status.success() && slow.stdout.len() == 600 << 10, "cut: {:?}", slow.status);
        // If the machine is too busy for edits to settle, the control plane reads only once a second. On most
        // machines all changes are seen.
        ensure!(seen >= CHANGING_S as usize / 2, "only {seen} changes were seen");
        Ok(())
    };
    lab.explain(cases())
}

fn load_of<'a>(
    protocol: &'a str,
    url: &'a str,
    (rate, duration): (&'a str, &'a str),
) -> [&'a str; 12] {
    let (connections, streams) = ("4", "8");
    [
        "--protocol",
        protocol,
        "--url",
        url,
        "--rate",
        rate,
        "--connections",
        connections,
        "--streams",
        streams,
        "--duration",
        duration,
    ]
}

fn run(lab: &Lab, protocol: &str, url: &str, pace: (&str, &str)) -> Result<load::Report> {
    lab.load("client", &load_of(protocol, url, pace))?.finish()
}

/// Changes the routes directly in the state file that the control plane reads. `leno up` waits until edits have
/// settled, and at this rate they never do.
struct Changes {
    state: PathBuf,
    without: String,
}

impl Changes {
    fn new(lab: &Lab) -> Result<Self> {
        let state = Path::new("/run/leno").join(lab.name()).join("state/state.yaml");
        let without = fs::read_to_string(&state)?;
        Ok(Self { state, without })
    }

    fn write(&self, change: u32) -> Result<()> {
        let draft = self.state.with_file_name(".draft");
        fs::write(&draft, format!("{}{}", self.without, nth(change)))?;
        Ok(fs::rename(draft, &self.state)?)
    }

    /// Changes the routes at the required rate.
    fn make(&self) -> Result<()> {
        let begun = Instant::now();
        for change in 1..=CHANGES_PER_S * CHANGING_S {
            self.write(change)?;
            // This sleeps because the rate itself is what is tested.
            let next = begun + Duration::from_secs(1) / CHANGES_PER_S * change;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        Ok(())
    }
}

/// Requests the number of the current change, as long as changes are made. Each request has its own connection,
/// because some versions of curl cannot reuse an HTTP/2 connection.
const WATCH: [&str; 3] = [
    "sh",
    "-c",
    "for n in $(seq 150); do curl -sS -m 20 -o /dev/null --http2-prior-knowledge \
     -w '%header{x-change}\\n' http://web/ || exit 1; sleep 0.03; done",
];

/// The number of different changes that were seen. Fails if an older one was seen after a newer one.
fn seen(watched: Running) -> Result<usize> {
    let output = watched.finish(Duration::from_secs(60))?;
    ensure!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout)?;
    let seen = text.lines().map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    ensure!(seen.len() == 150 && seen.is_sorted(), "{seen:?}");
    Ok(seen.iter().filter(|change| **change > 0).collect::<BTreeSet<_>>().len())
}

/// The number of the change that a response reports.
fn changed(lab: &Lab) -> Result<String> {
    let curl = ["curl", "-sS", "-m", "20", "-o", "/dev/null", "--http2-prior-knowledge"];
    lab.text("client", &[&curl[..], &["-w", "%header{x-change}", "http://web/"]].concat())
}
