//! A mesh whose servers fail as scripted, with the policies that cases add.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use leno_testkit::lab::{Capture, Lab, LabOptions};
use leno_testkit::wait;

use super::HEAR_LIMIT;

/// The address at which servers list the requests that they have received.
const TELL: &str = "127.0.0.1:8081";

/// The instances of the service `uneven`; one of them is slow.
pub(super) const UNEVEN: [&str; 3] = ["slow-0", "even-0", "even-1"];

/// The servers: the name of each, its service, its replicas, and its script.
const SERVERS: [(&str, &str, u32, &str); 13] = [
    ("good", "good", 1, "good"),
    ("half", "mixed", 1, "503,good"),
    ("stall", "mixed", 1, "stall"),
    ("close", "mixed", 1, "close"),
    ("garbage", "mixed", 1, "garbage"),
    ("well", "mixed", 2, "good"),
    ("failing", "failing", 1, "503"),
    ("stalling", "stalling", 1, "stall"),
    ("third-bad", "third", 1, "503"),
    ("third-good", "third", 2, "good"),
    ("slow", "uneven", 1, "after:40"),
    ("even", "uneven", 2, "after:2"),
    ("forging", "forging", 2, "forged"),
];

/// All services.
pub(super) const ALL: [&str; 7] =
    ["good", "mixed", "failing", "stalling", "third", "uneven", "forging"];

/// A rule of a route with a fault that responds before any endpoint is chosen.
pub(super) const FAULTS_OF_A_RULE: &str = "---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: good, namespace: lab}
spec:
  parentRefs: [{group: \"\", kind: Service, name: good}]
  rules:
    - name: tea
      matches: [{path: {value: /teapot}}]
      backendRefs: [{name: good, port: 80}]
    - backendRefs: [{name: good, port: 80}]
---
apiVersion: leno.dev/v1alpha1
kind: TrafficPolicy
metadata: {name: teapot, namespace: lab}
spec:
  targetRefs:
    - {group: gateway.networking.k8s.io, kind: HTTPRoute, name: good, sectionName: tea}
  faults: {abort: {status: 418, percent: 100}}
";

/// The mesh, and the documents that cases have added.
pub(super) struct TrafficMesh {
    pub(super) lab: Lab,
    services: &'static [&'static str],
    more: RefCell<BTreeMap<String, String>>,
    /// The number of policies that were added so far.
    policies: Cell<u32>,
}

impl TrafficMesh {
    /// Starts the mesh with the servers of these services.
    pub(super) fn start(capture: Capture, services: &'static [&'static str]) -> Result<Self> {
        let lab = Lab::start(&LabOptions::new(capture), &documents(services), |_| Ok(()))?;
        Ok(Self { lab, services, more: RefCell::default(), policies: Cell::default() })
    }

    /// Replaces the documents that were added under this name.
    pub(super) fn edit(&self, name: &str, yaml: &str) -> Result<()> {
        let mut more = self.more.borrow_mut();
        more.insert(name.to_owned(), yaml.to_owned());
        let rest: String = more.values().map(String::as_str).collect();
        self.lab.edit(&(documents(self.services) + &rest))
    }

    /// Replaces the policy of a service.
    pub(super) fn policy(&self, service: &str, spec: &str) -> Result<()> {
        let target = format!("[{{group: '', kind: Service, name: {service}}}]");
        self.edit(service, &traffic(service, &target, spec))
    }

    /// Like [`Self::policy`], with a balancing algorithm. Waits until the policy applies, which the name of its
    /// session cookie shows.
    pub(super) fn policy_holds(&self, service: &str, way: &str, spec: &str) -> Result<()> {
        let cookie = format!("policy{}", self.policies.replace(self.policies.get() + 1));
        self.policy(
            service,
            &format!("{spec}  balancing: {{algorithm: {way}, sessionCookie: {cookie}}}\n"),
        )?;
        let url = format!("http://{service}/policy");
        let named = format!("{cookie}=");
        wait::until("the policy", HEAR_LIMIT, || {
            let curl = ["curl", "-s", "-m", "0.5", "-o", "/dev/null", "-D", "-", &url];
            let head = self.lab.exec("client", &curl)?;
            Ok(String::from_utf8_lossy(&head.stdout).contains(&named).then_some(()))
        })
    }

    /// Sends requests one after another on one connection, to paths that end with a number. Returns their
    /// statuses.
    pub(super) fn ask_many(
        &self,
        who: &str,
        url: &str,
        count: usize,
        more: &[&str],
    ) -> Result<Vec<String>> {
        let urls = format!("{url}[1-{count}]");
        let curl = ["curl", "-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}\n"];
        let said = self.lab.exec(who, &[&curl[..], more, &[&urls]].concat())?;
        Ok(String::from_utf8_lossy(&said.stdout).lines().map(str::to_owned).collect())
    }

    /// The requests that reached these instances.
    pub(super) fn seen(&self, instances: &[&str]) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        for instance in instances {
            let url = format!("http://{TELL}/");
            let lines = self.lab.text(instance, &["curl", "-sS", "-m", "20", &url])?;
            seen.extend(lines.lines().map(str::to_owned));
        }
        Ok(seen)
    }

    /// The instances of the service `mixed`.
    pub(super) fn mixed(&self) -> [&'static str; 6] {
        ["half-0", "stall-0", "close-0", "garbage-0", "well-0", "well-1"]
    }
}

/// A traffic policy.
pub(super) fn traffic(name: &str, targets: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
         metadata: {{name: {name}, namespace: lab}}\nspec:\n  targetRefs: {targets}\n{spec}"
    )
}

/// A rate limit.
pub(super) fn rate_limit(targets: &str, limit: &str) -> String {
    format!(
        "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\n\
         metadata: {{name: limit, namespace: lab}}\nspec:\n  targetRefs: {targets}\n  \
         limits: [{limit}]\n"
    )
}

fn documents(services: &[&str]) -> String {
    let mut text = String::new();
    for client in ["client", "other"] {
        let command = "[\"@BIN@/leno-peer\", idle]";
        push(&mut text, client, &format!("{{serviceAccount: {client}, command: {command}}}"), "");
    }
    for (name, service, replicas, acts) in SERVERS {
        if !services.contains(&service) {
            continue;
        }
        push(&mut text, name, &spec(replicas, acts), service);
    }
    for service in services {
        let _infallible = write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {service}, namespace: lab}}\n\
             spec: {{selector: {{of: {service}}}, \
             ports: [{{name: http, port: 80, targetPort: 8080, appProtocol: http}}]}}\n"
        );
    }
    text
}

/// A further server of a service.
pub(super) fn server(name: &str, service: &str, acts: &str) -> String {
    let mut text = String::new();
    push(&mut text, name, &spec(1, acts), service);
    text
}

fn spec(replicas: u32, acts: &str) -> String {
    let command = format!(
        "[\"@BIN@/leno-peer\", faulty, --listen, \"0.0.0.0:8080\", --tell, \"{TELL}\", \
         --acts, \"{acts}\"]"
    );
    format!(
        "{{replicas: {replicas}, command: {command}, \
         ports: [{{name: http, port: 8080, appProtocol: http}}]}}"
    )
}

fn push(text: &mut String, name: &str, spec: &str, of: &str) {
    let _infallible = write!(
        text,
        "---\napiVersion: leno.dev/v1alpha1\nkind: Workload\n\
         metadata: {{name: {name}, namespace: lab, labels: {{of: \"{of}\"}}}}\nspec: {spec}\n"
    );
}
