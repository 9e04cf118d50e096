//! Tests workloads of another trust domain as clients with their own identities, which are verified with that
//! domain's trust bundle.
//!
//! ```text
//! bundle.json ──► control plane ──► proxy of web
//!                                    ▲ openssl, with certificates of the authorities of other trust domains
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::{binaries, command, netns, wait};

use super::{Case, once};

const MESH: &str = "
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: web, namespace: lab, labels: {app: web}}
spec:
  serviceAccount: web
  command: ['@BIN@/leno-peer', http, --listen, '[::]:8080']
  ports: [{name: http, port: 8080, appProtocol: http}]
---
apiVersion: leno.dev/v1alpha1
kind: AuthorizationPolicy
metadata: {name: one-of-the-others, namespace: lab}
spec:
  selector: {matchLabels: {app: web}}
  rules:
  - from: [{identities: [{exact: 'spiffe://near.example/ns/shop/sa/friend'}]}]
  - from: [{serviceAccounts: [own]}]
";

const LIMIT: Duration = Duration::from_secs(60);
const FRIEND: &str = "spiffe://near.example/ns/shop/sa/friend";

pub(super) fn cases() -> Vec<Case> {
    vec![once!(clients_of_a_federated_trust_domain_are_known_by_its_bundle_alone)]
}

fn clients_of_a_federated_trust_domain_are_known_by_its_bundle_alone(
    capture: Capture,
) -> Result<()> {
    let place = tempfile::tempdir()?;
    let openssl = binaries::require("openssl", "openssl")?;
    let authority = |name: &str| Authority::new(&openssl, place.path(), name);
    let (near, next, far) = (authority("near")?, authority("next")?, authority("far")?);
    let bundle = place.path().join("bundle.json");
    fs::write(&bundle, near.bundle()?)?;
    let options = LabOptions {
        mtls: Some("strict"),
        federate: Some(format!("near.example={}", bundle.display())),
        ..LabOptions::new(capture)
    };
    let lab = Lab::start(&options, MESH, |_| Ok(()))?;
    let outcome = || -> Result<()> {
        let ask = |authority: &Authority, id: &str| authority.ask(&lab, id);
        wait::until("the friend's first answer", LIMIT, || {
            Ok(ask(&near, FRIEND)?.contains(" 200 ").then_some(()))
        })?;
        // The first is another identity of the same trust domain; the account of the second has the name that the
        // policy permits in this mesh.
        for id in ["spiffe://near.example/ns/shop/sa/other", "spiffe://near.example/ns/lab/sa/own"]
        {
            let said = ask(&near, id)?;
            ensure!(said.contains(" 403 "), "{id}: {said}");
        }
        // The other domain's authority cannot prove an identity of this mesh, and a third authority cannot prove
        // any identity.
        for (authority, id) in [
            (&near, "spiffe://cluster.local/ns/lab/sa/own"),
            (&far, FRIEND),
            (&far, "spiffe://far.example/ns/shop/sa/friend"),
        ] {
            let said = ask(authority, id)?;
            ensure!(said.contains("alert"), "{id}: {said}");
        }
        let shown = command::text(&mut lab.leno("identity"), LIMIT)?;
        ensure!(shown.contains("FEDERATED near.example"), "{shown}");
        // A new root is used without a restart, while an invalid file changes nothing.
        fs::write(&bundle, "{")?;
        wait::until("the broken bundle to be reported", LIMIT, || {
            Ok(lab.log().contains("cannot read a trust bundle").then_some(()))
        })?;
        let said = ask(&near, FRIEND)?;
        ensure!(said.contains(" 200 "), "{said}");
        fs::write(&bundle, next.bundle()?)?;
        wait::until("the next root", LIMIT, || {
            Ok(ask(&next, FRIEND)?.contains(" 200 ").then_some(()))
        })?;
        let said = ask(&near, FRIEND)?;
        ensure!(said.contains("alert"), "{said}");
        Ok(())
    };
    lab.explain(outcome())
}

/// The authority of another trust domain, in files.
struct Authority {
    openssl: PathBuf,
    config: PathBuf,
    key: PathBuf,
    root: PathBuf,
}

impl Authority {
    fn new(openssl: &Path, place: &Path, name: &str) -> Result<Self> {
        let [key, root] = ["key", "crt"].map(|end| place.join(format!("{name}.{end}")));
        let config = place.join("openssl.cnf");
        // The configuration avoids the extensions of the machine's own configuration.
        fs::write(&config, "[req]\ndistinguished_name = subject\n[subject]\n")?;
        let made = Self { openssl: openssl.to_owned(), config, key, root };
        let extensions =
            ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"];
        let mut make = made.request((&made.key, &made.root), &format!("/CN={name}"), &extensions);
        command::text(&mut make, LIMIT)?;
        Ok(made)
    }

    /// A command that creates a key and a certificate for it.
    fn request(
        &self,
        (key, certificate): (&Path, &Path),
        subject: &str,
        extensions: &[&str],
    ) -> Command {
        let mut make = Command::new(&self.openssl);
        make.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        make.args(["-nodes", "-days", "1", "-subj", subject, "-config"]).arg(&self.config);
        make.arg("-keyout").arg(key).arg("-out").arg(certificate);
        for extension in extensions {
            make.args(["-addext", extension]);
        }
        make
    }

    /// The authority's trust bundle in SPIFFE's format.
    fn bundle(&self) -> Result<String> {
        let pem = fs::read_to_string(&self.root)?;
        let base64: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
        let key = serde_json::json!({"kty": "EC", "use": "x509-svid", "x5c": [base64]});
        let other = serde_json::json!({"kty": "EC", "use": "jwt-svid", "kid": "a"});
        let set = serde_json::json!({"spiffe_sequence": 1, "keys": [key, other]});
        Ok(serde_json::to_string(&set)?)
    }

    /// The response of `web` to a client with a certificate for `id`, or the TLS alert.
    fn ask(&self, lab: &Lab, id: &str) -> Result<String> {
        let (key, certificate) =
            (lab.directory().join("leaf.key"), lab.directory().join("leaf.crt"));
        let name = format!("subjectAltName=URI:{id}");
        let extensions = [
            name.as_str(),
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=clientAuth,serverAuth",
        ];
        let mut make = self.request((&key, &certificate), "/O=SPIFFE", &extensions);
        make.arg("-CA").arg(&self.root).arg("-CAkey").arg(&self.key);
        command::text(&mut make, LIMIT)?;
        let address = lab.status()?.address("web-0", false)?;
        let request = r"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n";
        let script = format!("printf '{request}' | \"$@\" 2>&1");
        let mut client = Command::new("sh");
        client.args(["-c", &script, "sh"]).arg(&self.openssl);
        client.args(["s_client", "-quiet", "-ign_eof", "-alpn", "leno-h1", "-connect"]);
        client.arg(format!("{address}:8080"));
        client.arg("-cert").arg(&certificate).arg("-key").arg(&key);
        let said = netns::inside(&lab.switch()?, || command::run(&mut client, LIMIT));
        let said = said.context("openssl")?;
        Ok(String::from_utf8_lossy(&said.stdout).into_owned())
    }
}
