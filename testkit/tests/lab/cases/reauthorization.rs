//! Tests requests and connections in progress when a policy changes. Exactly those that are no longer permitted
//! must end.
//!
//! ```text
//! web (denied), cart (permitted, except below /upgrade) ──► front (HTTP), echo (bytes), calls (gRPC)
//! plain (no proxy) ──► front, echo, banner (speaks first)
//! ```

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::command::{self, Running};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::{Event, Step, Transcript};
use leno_testkit::wait;

use super::calls::peer;
use super::{Case, once};

/// How long it may take until a change reaches a proxy and ends what it denies.
pub(super) const HEAR_LIMIT: Duration = Duration::from_secs(90);

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab}
spec: {serviceAccount: cart, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: front, namespace: lab, labels: {app: front}}
spec:
  command: ['@BIN@/leno-peer', http, --listen, '0.0.0.0:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '0.0.0.0:9000']
  ports: [{name: bytes, port: 9000, appProtocol: tcp}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: banner, namespace: lab, labels: {app: banner}}
spec:
  command: ['@BIN@/leno-peer', banner, --listen, '0.0.0.0:2500', --greeting, secret]
  ports: [{name: mail, port: 2500}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: calls, namespace: lab, labels: {app: calls}}
spec:
  command: ['@BIN@/examples/tonic-peer', serve, '10000', calls]
  ports: [{name: grpc, port: 10000, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: lab}
spec: {selector: {app: front}, ports: [{name: http, port: 80, targetPort: http, appProtocol: http}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: lab}
spec: {selector: {app: echo}, ports: [{name: bytes, port: 9000, appProtocol: tcp}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: lab}
spec: {selector: {app: calls}, ports: [{name: grpc, port: 90, targetPort: 10000, appProtocol: grpc}]}
";

const POLICIES: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-web, namespace: lab}
spec:
  selector: {}
  action: Deny
  rules: [{from: [{serviceAccounts: [web]}, {unauthenticated: true}]}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-upgrades, namespace: lab}
spec:
  targetRefs: [{group: leno.dev, kind: Workload, name: front}]
  action: Deny
  rules: [{to: [{paths: [{prefix: /upgrade}]}]}]
";

pub(super) fn cases() -> Vec<Case> {
    vec![
        once!(what_a_changed_policy_denies_ends),
        once!(what_a_new_denial_by_server_name_denies_ends),
    ]
}

/// A server whose port is not declared, in addition to the documents of MESH.
const UNDECLARED: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: bytes, namespace: lab, labels: {app: bytes}}
spec:
  command: ['@BIN@/leno-peer', echo, --listen, '0.0.0.0:9100']
  ports: [{name: bytes, port: 9100}]
";

const NO_NAME: &str = "---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-name, namespace: lab}
spec:
  selector: {}
  action: Deny
  rules: [{to: [{serverNames: [bad.example.com]}]}]
";

/// A connection of `leno-peer talk` that is in progress.
pub(super) struct OpenTalk {
    what: String,
    running: Running,
    goes_on: bool,
}

impl OpenTalk {
    /// Waits until the connection ends, and checks that it ends properly if it may continue, and early otherwise.
    pub(super) fn end(self) -> Result<()> {
        let said = command::success(&self.what, self.running.finish(HEAR_LIMIT)?)?;
        let transcript: Transcript = serde_json::from_str(&said)?;
        let is_as_wanted =
            if self.goes_on { transcript.failure().is_none() } else { transcript.was_cut() };
        ensure!(is_as_wanted, "{}: {transcript:?}", self.what);
        Ok(())
    }
}

fn what_a_changed_policy_denies_ends(capture: Capture) -> Result<()> {
    let peer = peer()?;
    let lab = Lab::start(&LabOptions::new(capture), MESH, |_| Ok(()))?;
    lab.explain(changes(&lab, &peer))
}

fn changes(lab: &Lab, peer: &str) -> Result<()> {
    lab.reach("web", "front.lab:80")?;
    let go = lab.directory().join("go");
    let (bytes, front) = ("echo.lab:9000", "front.lab:80");
    let mut open = Vec::new();
    for (client, address, begin, goes_on) in [
        ("web", bytes, begin_bytes(), false),
        ("cart", bytes, begin_bytes(), true),
        ("plain", "echo-0.echo.lab:9000", begin_bytes(), false),
        ("web", front, begin_upgrade(), false),
        ("cart", front, begin_upgrade(), false),
        ("plain", "front-0.front.lab:8080", begin_upgrade(), false),
    ] {
        open.push(begin_talk(lab, (client, address), begin, (&go, goes_on))?);
    }
    let streams = [("web", false), ("cart", true)].map(|(client, goes_on)| {
        let head = lab.directory().join(format!("{client}-head"));
        begin_stream(lab, (client, "x-no: token"), (&head, &go))
            .map(|running| (client, running, goes_on))
    });
    let waiting = lab.spawn("web", &[peer, "one", "calls.lab", "90", "/t.Peer/Sleep"])?;
    wait::until("three calls", HEAR_LIMIT, || {
        let page = lab.metrics("calls")?;
        Ok(page.lines().any(|line| line == "leno_busy 3").then_some(()))
    })?;
    lab.edit(&format!("{MESH}{POLICIES}"))?;
    let (ends, stays): (Vec<_>, Vec<_>) = open.into_iter().partition(|one| !one.goes_on);
    ends.into_iter().try_for_each(OpenTalk::end)?;
    let denied = command::success("the call", waiting.finish(HEAR_LIMIT)?)?;
    ensure!(denied.starts_with("PermissionDenied"), "{denied}");
    let mut kept = Vec::new();
    for stream in streams {
        let (client, running, goes_on) = stream?;
        if goes_on {
            kept.push(running);
            continue;
        }
        let end = running.finish(HEAR_LIMIT)?;
        ensure!(!end.status.success(), "{client}: the stream ended in order: {end:?}");
    }
    // Connections that are still permitted were checked as well, and continue.
    std::fs::write(&go, "")?;
    stays.into_iter().try_for_each(OpenTalk::end)?;
    for running in kept {
        let end = command::success("the stream of cart", running.finish(HEAR_LIMIT)?)?;
        ensure!(end == "200", "the stream of cart: {end:?}");
    }
    a_server_tells_nothing_to_the_denied(lab)?;
    for (workload, policy) in
        [("echo", "lab/no-web"), ("front", "lab/no-upgrades"), ("calls", "lab/no-web")]
    {
        let line = format!("leno_authorization_total{{decision=\"end\",policy=\"{policy}\"}}");
        let page = lab.metrics(workload)?;
        ensure!(page.contains(&line), "{line} is not in\n{page}");
    }
    Ok(())
}

pub(super) fn begin_bytes() -> Vec<Step> {
    vec![Step::Send("hello".into()), Step::Expect("hello".into())]
}

pub(super) fn begin_upgrade() -> Vec<Step> {
    let request =
        "GET /upgrade HTTP/1.1\r\nHost: front\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    vec![Step::Send(request.into()), Step::Response(false)]
}

/// Opens a connection. It continues when `go` exists; without `go`, the client only reads.
pub(super) fn begin_talk(
    lab: &Lab,
    (client, address): (&str, &str),
    mut steps: Vec<Step>,
    (go, goes_on): (&PathBuf, bool),
) -> Result<OpenTalk> {
    let what = format!("{client} to {address}, {} steps", steps.len());
    let name = format!("{client}-{}-{}", address.replace(':', "-"), steps.len());
    let begun = lab.directory().join(name);
    steps.push(Step::Touch(begun.clone()));
    if goes_on {
        steps.push(Step::WaitFor(go.clone()));
        steps.push(Step::Send("still here".into()));
        steps.push(Step::Expect("still here".into()));
    } else {
        steps.push(Step::Read(1));
    }
    let steps = serde_json::to_string(&steps)?;
    let running = lab.spawn(client, &["leno-peer", "talk", address, &steps])?;
    wait::until("the connection", HEAR_LIMIT, || Ok(begun.exists().then_some(())))
        .with_context(|| what.clone())?;
    Ok(OpenTalk { what, running, goes_on })
}

/// Starts a response that is in progress until `go` exists, over HTTP/2 from end to end.
pub(super) fn begin_stream(
    lab: &Lab,
    (client, header): (&str, &str),
    (head, go): (&Path, &Path),
) -> Result<Running> {
    let curl = format!(
        "curl -sS -N --http2-prior-knowledge -o /dev/null -D {} -w '%{{http_code}}' \
         -H 'content-type: application/grpc' -H 'te: trailers' -H '{header}' -T . \
         -X POST http://calls.lab:90/t.Peer/Echo < <(exec 2>/dev/null; for _ in {{1..900}}; do [ -e {} ] && break; sleep 0.1; done)",
        head.display(),
        go.display()
    );
    let running = lab.spawn(client, &["bash", "-c", &curl])?;
    let begun = || Ok(std::fs::metadata(head).is_ok_and(|file| file.len() > 0).then_some(()));
    wait::until("the head of the response", HEAR_LIMIT, begun)?;
    Ok(running)
}

/// A client that sends nothing waits for the server's greeting, which it must not receive.
fn a_server_tells_nothing_to_the_denied(lab: &Lab) -> Result<()> {
    let heard = lab.talk("plain", "banner-0.banner.lab:2500", &[Step::Read(6)])?;
    let secret = |event: &Event| matches!(event, Event::Bytes { text, .. } if text == "secret");
    ensure!(!heard.events.iter().any(secret), "{heard:?}");
    let line = "leno_authorization_total{decision=\"deny\",policy=\"lab/no-web\"}";
    let page = lab.metrics("banner")?;
    ensure!(page.contains(line), "{line} is not in\n{page}");
    Ok(())
}

/// The proxy does not read the server name of a connection before a policy needs it. So an earlier connection that
/// may have the denied name ends, and one whose bytes were read continues.
fn what_a_new_denial_by_server_name_denies_ends(capture: Capture) -> Result<()> {
    let mesh = format!("{MESH}{UNDECLARED}");
    let lab = Lab::start(&LabOptions::new(capture), &mesh, |_| Ok(()))?;
    lab.explain(names(&lab, &mesh))
}

fn names(lab: &Lab, mesh: &str) -> Result<()> {
    let go = lab.directory().join("go");
    let bytes = || vec![Step::Send("\u{1}hello\n".into()), Step::Expect("\u{1}hello\n".into())];
    let unread = [
        begin_talk(lab, ("cart", "echo.lab:9000"), bytes(), (&go, false))?,
        begin_talk(lab, ("plain", "echo-0.echo.lab:9000"), bytes(), (&go, false))?,
    ];
    let read = begin_talk(lab, ("plain", "bytes-0.bytes.lab:9100"), bytes(), (&go, true))?;
    lab.edit(&format!("{mesh}{NO_NAME}"))?;
    unread.into_iter().try_for_each(OpenTalk::end)?;
    std::fs::write(&go, "")?;
    read.end()?;
    // The proxy reads the server name of connections that begin under the policy.
    let begun = lab.talk("cart", "echo.lab:9000", &bytes())?;
    ensure!(begun.failure().is_none(), "{begun:?}");
    Ok(())
}
