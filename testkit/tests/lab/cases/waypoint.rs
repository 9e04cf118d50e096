//! Tests services whose workloads have no proxy, behind a waypoint.
//!
//! ```text
//! web, other (meshed) ══ CONNECT app:80, bytes:90 ══► edge (waypoint) ─► app, bytes (no proxy)
//! far, an HBONE client without a proxy ══ CONNECT ══►      └═ mTLS ═► guarded (meshed; permits edge alone)
//! ```

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::{tools, wait};

use super::{Case, hbone, once};

/// Clients with a proxy, one without, and the waypoint, with its service.
pub(super) const AROUND: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: other, namespace: lab}
spec: {serviceAccount: other, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {serviceAccount: plain, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: edge, namespace: lab, labels: {app: edge, leno.dev/waypoint: edge}}
spec: {serviceAccount: edge, command: ['@BIN@/leno-peer', idle], ports: [{name: hbone, port: 15008}]}
---
apiVersion: v1
kind: Service
metadata: {name: edge, namespace: lab}
spec: {selector: {app: edge}, ports: [{name: hbone, port: 15008}]}
";

const MESH: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: app, namespace: lab, labels: {app: app}, annotations: {leno.dev/inject: disabled}}
spec:
  serviceAccount: app
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: bytes, namespace: lab, labels: {app: bytes}, annotations: {leno.dev/inject: disabled}}
spec:
  serviceAccount: bytes
  command: ['@BIN@/leno-peer', echo, --listen, '[::]:9000']
  ports: [{name: bytes, port: 9000}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: guarded, namespace: lab, labels: {app: guarded, leno.dev/use-waypoint: edge}}
spec:
  serviceAccount: guarded
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080}]
---
apiVersion: v1
kind: Service
metadata: {name: app, namespace: lab, labels: {leno.dev/use-waypoint: @USE@}}
spec:
  selector: {app: app}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: bytes, namespace: lab, labels: {leno.dev/use-waypoint: edge}}
spec: {selector: {app: bytes}, ports: [{name: bytes, port: 90, targetPort: 9000}]}
---
apiVersion: v1
kind: Service
metadata: {name: guarded, namespace: lab, labels: {leno.dev/use-waypoint: edge}}
spec: {selector: {app: guarded}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: free, namespace: lab}
spec: {selector: {app: app}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: app, namespace: lab}
spec:
  parentRefs: [{group: '', kind: Service, name: app}]
  rules:
    - filters:
        - type: ResponseHeaderModifier
          responseHeaderModifier: {set: [{name: x-route, value: of-the-waypoint}]}
      backendRefs: [{name: app, port: 80}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: app}]
  rules: [{from: [{serviceAccounts: [web]}], to: [{paths: [{prefix: /open}]}]}]
";

/// Limits each of two services.
const LIMITED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: five, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: app}, {group: '', kind: Service, name: guarded}]
  limits: [{requests: 5, per: 5m, burst: 5}]
";

/// How long a change, or a first answer, may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_waypoint_serves_for_workloads_without_a_proxy)]
}

fn mesh(waypoint: &str) -> String {
    format!("{AROUND}{MESH}").replace("@USE@", waypoint)
}

fn a_waypoint_serves_for_workloads_without_a_proxy(capture: Capture) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let prepared = |directory: &Path| {
        fs::copy(&program, directory.join("spiffe-peer"))?;
        Ok(())
    };
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, &mesh("edge"), prepared)?;
    let outcome = || -> Result<()> {
        clients_of_the_mesh(&lab).context("clients of the mesh")?;
        only_through_it(&lab).context("a workload behind the waypoint")?;
        strangers(&lab).context("clients that mean harm")?;
        edits(&lab).context("other waypoints")
    };
    lab.explain(outcome())?;
    lab.end()
}

/// The status, the cause and `x-route` of the response.
pub(super) fn answer(lab: &Lab, who: &str, url: &str) -> Result<String> {
    let form = "%{http_code} %header{leno-error} %header{x-route}";
    let ask = ["curl", "-sS", "-o", "/dev/null", "-m", "20", "-w", form, url];
    Ok(lab.text(who, &ask)?.trim().to_owned())
}

pub(super) fn until(lab: &Lab, who: &str, url: &str, what: &str) -> Result<()> {
    let mut last = String::new();
    let answered = wait::until(&format!("{what} of {url} for {who}"), ANSWER_LIMIT, || {
        last = answer(lab, who, url).unwrap_or_else(|error| format!("{error:#}"));
        Ok((last == what).then_some(()))
    });
    answered.with_context(|| format!("the last answer: {last}"))
}

fn clients_of_the_mesh(lab: &Lab) -> Result<()> {
    until(lab, "web", "http://app.lab/open", "200  of-the-waypoint")?;
    for _ in 0..20 {
        let said = answer(lab, "web", "http://app.lab/open/x")?;
        ensure!(said == "200  of-the-waypoint", "{said}");
    }
    // The policies of the service apply to the client's identity, which the waypoint has verified, and to each
    // request.
    until(lab, "web", "http://app.lab/closed", "403 authorization-denied")?;
    until(lab, "other", "http://app.lab/open", "403 authorization-denied")?;
    // The service `free` selects the same server, but has neither a waypoint nor a policy.
    until(lab, "other", "http://free.lab/", "200")?;
    let steps = [Step::Send("hello".into()), Step::Expect("hello".into()), Step::ShutdownWrite];
    let talk = lab.talk("web", &format!("{}:90", vip(lab, "bytes")?), &steps)?;
    ensure!(talk.failure().is_none(), "{talk:?}");
    let metrics = lab.metrics("edge")?;
    let counted = metrics.lines().any(|line| {
        line.starts_with("leno_requests_total{direction=\"inbound\"")
            && line.contains("client=\"web\"")
            && line.contains("server=\"app\"")
            && line.contains("mtls=\"true\"")
    });
    ensure!(counted, "requests are counted by client and service: {metrics}");
    ensure!(tunnels(lab, "web", "outbound", "opened")? > 0, "the client has opened no tunnel");
    Ok(())
}

/// How many HBONE tunnels the proxy of a workload has counted.
fn tunnels(lab: &Lab, who: &str, direction: &str, result: &str) -> Result<u64> {
    let metrics = lab.metrics(who)?;
    let series =
        format!("leno_hbone_tunnels_total{{direction=\"{direction}\",result=\"{result}\"}} ");
    let counted = metrics.lines().find_map(|line| line.strip_prefix(&series));
    Ok(counted.with_context(|| format!("{series}: {metrics}"))?.trim().parse()?)
}

/// A client without a certificate must be able to connect, but get no response.
fn refused(lab: &Lab, url: &str) -> Result<()> {
    let ask = format!("curl -sSk -m 20 -o /dev/null {url}; echo $?");
    let said = lab.text("plain", &["sh", "-c", &ask])?;
    let exit: u8 = said.trim().parse().with_context(|| said.clone())?;
    // Other exit codes mean that the connection was refused (7) or timed out (28).
    ensure!(![0, 6, 7, 28].contains(&exit), "curl {url} ends with {exit}");
    Ok(())
}

fn only_through_it(lab: &Lab) -> Result<()> {
    let guarded = lab.status()?.address("guarded", false)?;
    until(lab, "web", "http://guarded.lab/", "200")?;
    until(lab, "web", &format!("http://{guarded}:8080/"), "403 authorization-denied")?;
    refused(lab, &format!("http://{guarded}:8080/"))
}

/// The virtual address of a service.
fn vip(lab: &Lab, service: &str) -> Result<IpAddr> {
    let found = lab.text("web", &["getent", "ahostsv4", &format!("{service}.lab")])?;
    let address = found.split_whitespace().next().context("no address")?;
    Ok(address.parse()?)
}

/// Tests a client with an identity of the mesh that sends to the waypoint directly.
fn strangers(lab: &Lab) -> Result<()> {
    let directory = hbone::identity(lab, "plain", "plain")?;
    let get = |to: &str| {
        format!("{to}=GET /open HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
    };
    let (app, free) = (vip(lab, "app")?, vip(lab, "free")?);
    let address = |who: &str| lab.status()?.address(who, false);
    let (edge, workload) = (address("edge")?, address("app")?);
    let connects = [
        get(&format!("{app}:80")),
        // Destinations that do not belong to the waypoint: a service without a waypoint, another port, a workload,
        // an outside address, and the waypoint itself.
        get(&format!("{free}:80")),
        get(&format!("{app}:8080")),
        get(&format!("{workload}:8080")),
        get("192.0.2.1:80"),
        get(&format!("{edge}:15008")),
        get(&format!("{edge}:15001")),
        get(&format!("{edge}:9999")),
        get("127.0.0.1:15020"),
        get(&format!("{}:15008", vip(lab, "edge")?)),
    ];
    let before = tunnels(lab, "edge", "inbound", "refused")?;
    let all = wait::until("an answer of the waypoint", ANSWER_LIMIT, || {
        let all = hbone::asked(lab, &directory, "edge", &connects)?;
        Ok(all.first().is_some_and(|one| one["status"] == 200).then_some(all))
    })?;
    // The service's policies deny this identity.
    ensure!(all[0]["said"].to_string().contains("HTTP/1.1 403"), "{}", all[0]);
    for (one, asked) in all.iter().zip(&connects).skip(1) {
        ensure!(one["status"] == 403, "{asked}: {one}");
    }
    ensure!(all.len() == connects.len(), "{all:?}");
    let refusals = tunnels(lab, "edge", "inbound", "refused")? - before;
    ensure!(refusals >= connects.len() as u64 - 1, "{refusals} are counted");
    // First without a certificate, then in plaintext.
    refused(lab, &format!("https://{edge}:15008/"))?;
    refused(lab, &format!("http://{edge}:15008/"))
}

fn edits(lab: &Lab) -> Result<()> {
    // For a waypoint that does not exist, and for one in a namespace that offers none, nothing may be served, not
    // even by bypassing the waypoint.
    lab.edit(&mesh("none-such"))?;
    until(lab, "web", "http://app.lab/open", "503 no-endpoints")?;
    lab.edit(&mesh("edge, leno.dev/use-waypoint-namespace: elsewhere"))?;
    until(lab, "web", "http://app.lab/open", "503 no-endpoints")?;
    lab.edit(&mesh("edge"))?;
    until(lab, "web", "http://app.lab/open", "200  of-the-waypoint")?;
    each_service_has_its_own_limit(lab)?;
    // Without a waypoint, the client's own proxy applies the route, and no proxy applies the service's policies.
    lab.edit(&mesh("none"))?;
    until(lab, "other", "http://app.lab/closed", "200  of-the-waypoint")
}

fn each_service_has_its_own_limit(lab: &Lab) -> Result<()> {
    lab.edit(&format!("{}{LIMITED}", mesh("edge")))?;
    for url in ["http://app.lab/open", "http://guarded.lab/"] {
        let mut passed = 0;
        wait::until(&format!("{url} is limited"), ANSWER_LIMIT, || {
            let said = answer(lab, "web", url)?;
            passed += u32::from(said.starts_with("200"));
            Ok((said == "429 rate-limited").then_some(()))
        })?;
        // More pass if the limit is not known at once.
        ensure!(passed >= 5, "{passed} requests to {url} have passed");
    }
    Ok(())
}
