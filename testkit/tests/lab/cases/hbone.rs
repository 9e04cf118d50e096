//! Tests HBONE between real proxies and independent peers, which use the `h2` crate over `tokio-rustls`, as
//! ztunnel does.
//!
//! ```text
//! plain, an HBONE client without a proxy ══ CONNECT ══► proxies of cart (HTTP) and echo (bytes)
//! web, cart (meshed) ══ CONNECT ══► far, an HBONE server before HTTP and bytes; permits web
//!                        └────────► liar, which has the certificate of far
//! ```

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::peer::Step;
use leno_testkit::{tools, wait};
use serde_json::Value;

use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab}
spec: {serviceAccount: web, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: plain, namespace: lab, annotations: {leno.dev/inject: disabled}}
spec: {serviceAccount: plain, command: ['@BIN@/leno-peer', idle]}
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: cart, namespace: lab, labels: {app: cart}}
spec:
  serviceAccount: cart
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: echo, namespace: lab, labels: {app: echo}}
spec:
  serviceAccount: echo
  command: ['@BIN@/leno-peer', echo, --listen, '127.0.0.1:9000']
  ports: [{name: bytes, port: 9000}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  {name: far, namespace: lab, annotations: {leno.dev/inject: disabled, leno.dev/tunnel: hbone}}
spec:
  serviceAccount: far
  command: [sh, '@DIR@/far.sh']
  ports: [{name: http, port: 8080, appProtocol: http}, {name: bytes, port: 9000}]
---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata:
  {name: liar, namespace: lab, annotations: {leno.dev/inject: disabled, leno.dev/tunnel: hbone}}
spec:
  serviceAccount: liar
  command: [sh, '@DIR@/far.sh']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: lab}
spec:
  selector: {app: far}
  ports: [{name: http, port: 80, targetPort: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: lab}
spec:
  selector: {matchLabels: {app: cart}}
  action: Deny
  rules: [{to: [{paths: [{prefix: /admin}]}]}]
";

const ECHO: &str = "{name: echo, namespace: lab, labels: {app: echo}}";

/// A policy by which only `web` may connect to `echo`.
const CLOSED: &str = "
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: clients, namespace: lab}
spec:
  selector: {matchLabels: {app: echo}}
  rules: [{from: [{serviceAccounts: [web]}]}]
";

/// The command of `far` and `liar`. It starts the servers once it has a certificate.
const FAR: &str = "
'@BIN@/leno-peer' http --listen 127.0.0.1:8080 &
'@BIN@/leno-peer' echo --listen 127.0.0.1:9000 &
until [ -e '@DIR@/identity/ready' ]; do sleep 0.1; done
exec '@BIN@/examples/hbone-peer' take '@DIR@/identity' '[::]:15008' spiffe://cluster.local/ns/lab/sa/@CLIENT@
";

/// How long a change, or a first answer, may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(90);

pub(super) fn cases() -> Vec<Case> {
    vec![once!(peers_of_other_code_speak_hbone_with_proxies_both_ways)]
}

fn peers_of_other_code_speak_hbone_with_proxies_both_ways(capture: Capture) -> Result<()> {
    let program = tools::install("spiffe")?.join("spiffe");
    let prepared = |directory: &Path| prepare(directory, &program, "web");
    let options = LabOptions { mtls: Some("strict"), ..LabOptions::new(capture) };
    let lab = Lab::start(&options, MESH, prepared)?;
    let outcome = || -> Result<()> {
        to_proxies(&lab).context("to proxies of the mesh")?;
        of_proxies(&lab).context("of proxies of the mesh")
    };
    lab.explain(outcome())?;
    lab.end()
}

/// Writes the command of servers that permit this client, and the program by which [`identity`] gets certificates.
pub(super) fn prepare(directory: &Path, program: &Path, client: &str) -> Result<()> {
    fs::copy(program, directory.join("spiffe-peer"))?;
    let binaries = leno_testkit::binaries::ours("leno-peer")?;
    let binaries = binaries.parent().context("no directory of programs")?;
    let script = FAR.replace("@BIN@", &binaries.display().to_string());
    let script = script.replace("@DIR@", &directory.display().to_string());
    fs::write(directory.join("far.sh"), script.replace("@CLIENT@", client))?;
    Ok(())
}

/// Writes the certificate that `who` gets from the Workload API to files.
pub(super) fn identity(lab: &Lab, who: &str, directory: &str) -> Result<String> {
    let peer = lab.directory().join("spiffe-peer");
    let peer = peer.to_str().context("a path")?;
    let files: Value = serde_json::from_str(&lab.text(who, &[peer, "svid"])?)?;
    let directory = lab.directory().join(directory);
    fs::create_dir(&directory)?;
    for name in ["chain", "key", "roots"] {
        let text = files[name].as_str().with_context(|| format!("no {name}"))?;
        fs::write(directory.join(format!("{name}.pem")), text)?;
    }
    fs::write(directory.join("ready"), "")?;
    Ok(directory.display().to_string())
}

/// The results of these CONNECT requests, which `plain` sends over one connection to the proxy of `server`.
pub(super) fn asked(
    lab: &Lab,
    directory: &str,
    server: &str,
    connects: &[String],
) -> Result<Vec<Value>> {
    let peer = leno_testkit::binaries::ours("leno-peer")?.with_file_name("examples/hbone-peer");
    let peer = peer.to_str().context("a path")?.to_owned();
    let proxy = format!("{}:15008", lab.status()?.address(server, false)?);
    let id = format!("spiffe://cluster.local/ns/lab/sa/{server}");
    let mut command = vec![&*peer, "ask", directory, &proxy, &id];
    command.extend(connects.iter().map(String::as_str));
    let said = lab.text("plain", &command)?;
    said.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn to_proxies(lab: &Lab) -> Result<()> {
    let directory = identity(lab, "plain", "plain")?;
    let address = |who: &str| lab.status()?.address(who, false);
    let (cart, echo) = (address("cart")?, address("echo")?);
    let get = |path: &str| {
        format!(
            "{cart}:8080=GET {path} HTTP/1.1\\r\\nHost: cart\\r\\nConnection: close\\r\\n\\r\\n"
        )
    };
    let connects = [get("/"), get("/admin"), format!("{echo}:9000"), format!("{cart}:15020")];
    let all = wait::until("an answer of cart", ANSWER_LIMIT, || {
        let all = asked(lab, &directory, "cart", &connects)?;
        let served = all.first().is_some_and(|one| one.to_string().contains("HTTP/1.1 200 OK"));
        Ok(served.then_some(all))
    })?;
    let [_, admin, elsewhere, own] = &all[..] else { anyhow::bail!("{all:?}") };
    ensure!(
        admin["status"] == 200 && admin["said"].to_string().contains("HTTP/1.1 403"),
        "{admin}"
    );
    ensure!(elsewhere["status"] == 403 && own["status"] == 403, "{elsewhere} {own}");
    let metrics = lab.metrics("cart")?;
    ensure!(
        metrics.contains("leno_hbone_tunnels_total{direction=\"inbound\",result=\"opened\"} "),
        "{metrics}"
    );
    ensure!(metrics.contains("client=\"plain\""), "requests are counted by identity: {metrics}");

    let hello = [format!("{echo}:9000=hello")];
    let all = asked(lab, &directory, "echo", &hello)?;
    ensure!(all[0]["status"] == 200 && all[0]["said"] == "hello", "{all:?}");
    ensure!(all[0]["ended"].is_null(), "the end is passed on as an end: {all:?}");
    lab.edit(&[MESH, CLOSED].concat())?;
    wait::until("the policy of echo", ANSWER_LIMIT, || {
        let all = asked(lab, &directory, "echo", &hello)?;
        Ok((all[0]["said"] == "" && !all[0]["ended"].is_null()).then_some(()))
    })?;
    // Without HBONE, the port belongs to the application, and only proxies of the mesh are served there.
    let off =
        MESH.replace(ECHO, &ECHO.replace("labels", "annotations: {leno.dev/tunnel: none}, labels"));
    lab.edit(&off)?;
    wait::until("no HBONE of echo", ANSWER_LIMIT, || {
        Ok(asked(lab, &directory, "echo", &hello).is_err().then_some(()))
    })?;
    let metrics = lab.metrics("echo")?;
    let refused = "leno_plaintext_refused_total{direction=\"inbound\"} ";
    let refused = metrics.lines().find_map(|line| line.strip_prefix(refused));
    ensure!(refused.is_some_and(|count| count != "0"), "{metrics}");
    lab.edit(MESH)?;
    wait::until("HBONE of echo", ANSWER_LIMIT, || Ok(asked(lab, &directory, "echo", &hello).ok()))?;
    Ok(())
}

fn of_proxies(lab: &Lab) -> Result<()> {
    identity(lab, "far", "identity")?;
    let status = |who: &str, url: &str| -> Result<String> {
        let ask = ["curl", "-sS", "-o", "/dev/null", "-m", "20", "-D", "-", url];
        lab.text(who, &ask)
    };
    let until_served = |who: &str, url: &str, what: &str| {
        let mut last = String::new();
        let served = wait::until(&format!("{what} of {url}"), ANSWER_LIMIT, || {
            last = status(who, url).unwrap_or_else(|error| format!("{error:#}"));
            Ok(last.contains(what).then_some(()))
        });
        served.with_context(|| format!("the last answer: {last}"))
    };
    let far = lab.status()?.address("far", false)?;
    until_served("web", &format!("http://{far}:8080/"), "HTTP/1.1 200")?;
    for _ in 0..5 {
        let said = status("web", &format!("http://{far}:8080/"))?;
        ensure!(said.starts_with("HTTP/1.1 200"), "{said}");
        let steps = [Step::Send("hello".into()), Step::Expect("hello".into()), Step::ShutdownWrite];
        let talk = lab.talk("web", &format!("{far}:9000"), &steps)?;
        ensure!(talk.failure().is_none(), "{talk:?}");
    }
    // This client's identity is not the permitted one.
    until_served("cart", &format!("http://{far}:8080/"), "authorization-denied")?;
    let log = lab.log();
    let of_port = |port: u16| format!(" CONNECT {far}:{port} 200");
    for port in [8080, 9000] {
        ensure!(log.contains(&of_port(port)), "no tunnel to {port}");
    }
    ensure!(log.contains(&format!(" CONNECT {far}:8080 401")), "nothing was refused");
    // The server at this address proves the identity of `far`, which is not the expected one.
    let liar = lab.status()?.address("liar", false)?;
    until_served("web", &format!("http://{liar}:8080/"), "tls-handshake-failed")?;
    ensure!(!lab.log().contains(&format!(" CONNECT {liar}")), "the liar got a request");
    let metrics = lab.metrics("web")?;
    ensure!(
        metrics.contains("leno_hbone_tunnels_total{direction=\"outbound\",result=\"opened\"} "),
        "{metrics}"
    );
    Ok(())
}
