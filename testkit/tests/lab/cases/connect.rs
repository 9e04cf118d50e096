//! Tests CONNECT through two proxies. It must be refused unless a route is for it and the server's policies permit
//! it.

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::wait;

use super::routes::{HEAR_LIMIT, route};
use super::{Case, once};

/// `far` accepts every CONNECT and echoes the bytes of the tunnel.
const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: client, namespace: lab}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, labels: {leno.dev/inject: disabled}}
spec: {command: [\"@BIN@/leno-peer\", idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: far, namespace: lab, labels: {app: web}}
spec:
  command: [\"@BIN@/leno-peer\", faulty, --listen, \"[::]:8080\", --tell, \"127.0.0.1:8081\", --acts, tunnel]
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: lab}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]}
";

const DENIED: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-tunnels, namespace: lab}
spec:
  selector: {matchLabels: {app: web}}
  action: Deny
  rules: [{to: [{methods: [CONNECT]}]}]
";

/// A policy that hedges requests of all methods if their responses are late.
const HEDGED: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: hedged, namespace: lab}
spec:
  targetRefs: [{group: '', kind: Service, name: web}]
  hedging: {delay: 5ms, nonIdempotent: true}
";

const ASKS: &str = "CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(a_route_and_the_servers_policies_decide_on_connect)]
}

/// The response that the client gets to a CONNECT.
fn answer(lab: &Lab, who: &str, to: &str) -> Result<String> {
    Ok(serde_json::to_string(&lab.talk(
        who,
        to,
        &[Step::Send(ASKS.into()), Step::Response(false)],
    )?)?)
}

fn until_answered(lab: &Lab, what: &[&str]) -> Result<()> {
    let mut last = String::new();
    let heard = wait::until("the answer", HEAR_LIMIT, || {
        last = answer(lab, "client", "web:80")?;
        Ok(what.iter().all(|part| last.contains(part)).then_some(()))
    });
    heard.with_context(|| format!("{last} where {what:?} is expected"))
}

fn a_route_and_the_servers_policies_decide_on_connect(capture: Capture) -> Result<()> {
    let tunnels = |filters: &str| {
        let rule = "  - matches: [{method: CONNECT}]\n    backendRefs: [{name: web, port: 80}]\n";
        route("tunnels", "lab", &format!("{rule}{filters}"))
    };
    let mirrored = tunnels(
        "    filters: [{type: RequestMirror, requestMirror: {backendRef: {name: web, port: 80}}}]\n",
    );
    let tunnels = tunnels("");
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    let cases = || -> Result<()> {
        let refused = ["501", "leno-error", "\"connect\""];
        until_answered(&lab, &refused)?;
        lab.edit(&format!("{MESH}{tunnels}"))?;
        let through = [
            Step::Send(ASKS.into()),
            Step::Expect("HTTP/1.1 200 OK\r\n\r\n".into()),
            Step::Send("GET / HTTP/1.1\r\n\r\n".into()),
            Step::Expect("GET / HTTP/1.1\r\n\r\n".into()),
            Step::ShutdownWrite,
            Step::ReadToEnd,
        ];
        let talk =
            || -> Result<bool> { Ok(lab.talk("client", "web:80", &through)?.failure().is_none()) };
        let opened = || wait::until("a tunnel", HEAR_LIMIT, || Ok(talk()?.then_some(())));
        opened()?;
        // A tunnel must be neither hedged nor mirrored, because a copy would take some of the bytes that the
        // client sends in the tunnel.
        lab.edit(&format!("{MESH}{mirrored}{HEDGED}"))?;
        opened()?;
        for _ in 0..20 {
            ensure!(talk()?, "a tunnel through a route with a mirror, and hedging");
        }
        let metrics = lab.metrics("client")?;
        for copies in ["leno_mirrored_requests_total", "leno_hedges_total"] {
            let counted =
                metrics.lines().find(|line| line.starts_with(copies) && !line.ends_with(" 0"));
            ensure!(counted.is_none(), "{counted:?}");
        }
        let seen = lab.text("far", &["curl", "-sS", "-m", "20", "http://127.0.0.1:8081/"])?;
        ensure!(
            !seen.is_empty() && seen.lines().all(|line| line == "far.example:443"),
            "seen {seen:?}"
        );
        // A client without a proxy has no route.
        let address = lab.status()?.address("far", false)?;
        let unmeshed = answer(&lab, "plain", &format!("{address}:8080"))?;
        ensure!(refused.iter().all(|part| unmeshed.contains(part)), "{unmeshed}");
        lab.edit(&format!("{MESH}{tunnels}{DENIED}"))?;
        until_answered(&lab, &["403", "authorization-denied"])
    };
    lab.explain(cases())
}
