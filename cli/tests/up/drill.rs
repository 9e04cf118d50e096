//! The drill: injects faults, one at a time, into a mesh of twenty workloads. For each fault, `leno why` must name
//! the culprit first, within a minute; while nothing is broken, it must name nothing.
//!
//! `make test` injects a few of the faults; with `LENO_DRILL=all`, as in `make nightly`, all are injected.

#![expect(clippy::unwrap_used, reason = "test code")]

mod faults;

use std::cell::RefCell;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use leno_dashboard::api::Problem;
use leno_local::status::MeshStatus;
use leno_testkit::stopped::StoppedThreads;

use crate::mesh::{Mesh, root};
use faults::{FAULTS, Fault};

/// How long `leno why` may take to name a culprit when all faults are injected, on a machine that does nothing
/// else.
const NAMED: Duration = Duration::from_secs(60);
/// The same limit in `make test`, and how long the mesh may take to be healthy again.
const PATIENT: Duration = Duration::from_secs(480);
/// How long the mesh runs before the first fault, in seconds, so that `leno why` knows what is usual.
const USUAL: u64 = 60;
/// The window of time that `leno why` examines. It is shorter than the default minute, so that the drill does not
/// take hours.
const SINCE: &str = "30s";
/// Pause between two runs of `leno why`.
const LOOK: Duration = Duration::from_secs(2);
/// Most faults for which another culprit may be named first.
const MAX_WRONG: usize = 2;

/// The faults that every run injects.
const USUAL_FAULTS: [&str; 3] = ["slow", "unknown-name", "denied"];

/// The workloads: the name of each, the servers that it calls for each request, and further settings in its
/// document.
const WORKLOADS: [(&str, &[&str], &str); 20] = [
    ("customer", &["web"], "EVERY"),
    ("mobile", &["api"], "EVERY"),
    ("batch", &["orders"], "EVERY"),
    ("web", &["catalog", "cart", "search"], ""),
    ("api", &["cart", "users"], ""),
    ("cart", &["pricing"], ""),
    ("catalog", &["images", "catalog-db"], ""),
    ("search", &["index"], ""),
    ("users", &["auth"], ""),
    ("orders", &["payments", "stock", "mail", "tcp://orders-db"], ""),
    ("payments", &["bank"], ""),
    ("pricing", &[], ""),
    ("images", &[], ""),
    ("catalog-db", &[], ""),
    ("index", &[], ""),
    ("auth", &[], ""),
    ("stock", &[], ""),
    ("mail", &[], ""),
    ("bank", &[], ""),
    ("orders-db", &[], "BYTES: '1'"),
];

/// The settings of a workload's document besides the program.
fn spec(name: &str) -> &'static str {
    match name {
        "pricing" => "  replicas: 2\n",
        "catalog-db" => "  resources: {limits: {cpu: 200m}}\n",
        "stock" => "  resources: {limits: {memory: 96Mi}}\n",
        _ => "",
    }
}

/// The running mesh. What its instances do besides serving is read from files in the mesh's directory `knobs`.
struct Drill {
    mesh: Mesh,
    /// The threads of the proxy that is frozen.
    stopped: RefCell<Vec<StoppedThreads>>,
}

impl Drill {
    fn start() -> Self {
        let mesh = Mesh::prepared(&documents(&[]), |directory| {
            fs::create_dir(directory.join("knobs")).unwrap();
            fs::write(directory.join("app.py"), include_str!("drill/app.py")).unwrap();
        });
        Self { mesh, stopped: RefCell::default() }
    }

    /// Tells an instance, as JSON, what to do besides serving. With an empty text, the instance only serves.
    fn turn(&self, instance: &str, knobs: &str) {
        let file = self.mesh.directory().join("knobs").join(instance);
        if knobs.is_empty() {
            let _absent = fs::remove_file(file);
        } else {
            fs::write(file, knobs).unwrap();
        }
    }

    /// Replaces texts in the documents. Each change is a text in the document of a workload and its replacement;
    /// if the first text is empty, the second is a further document.
    fn edit(&self, changes: &[(&str, &str)]) {
        self.mesh.edit(&documents(changes));
    }

    /// Runs a command in the network namespace of an instance.
    fn within(&self, instance: &str, command: &[&str]) {
        let status = MeshStatus::read(self.mesh.layout()).unwrap();
        let netns = status.find(None, instance).unwrap().surroundings.netns.clone();
        let run =
            Command::new("ip").args(["netns", "exec", &netns]).args(command).output().unwrap();
        assert!(run.status.success(), "{command:?}: {run:?}");
    }

    /// The problems that `leno why` reports. On a busy machine the observer may answer too late.
    fn why(&self) -> Vec<Problem> {
        let begun = Instant::now();
        loop {
            let output = self.mesh.run(&["why", "--since", SINCE, "-o", "json"]);
            match serde_json::from_slice(&output.stdout) {
                Ok(problems) => return problems,
                Err(_) => assert!(begun.elapsed() < PATIENT, "{output:?}"),
            }
        }
    }

    /// Waits until no problem is reported.
    fn wait_until_well(&self) {
        let begun = Instant::now();
        loop {
            let problems = self.why();
            if problems.is_empty() {
                return;
            }
            assert!(begun.elapsed() < PATIENT, "not well: {problems:#?}\n{}", self.mesh.log());
            std::thread::sleep(LOOK);
        }
    }

    /// Injects a fault, and returns whether its culprit was named first in time.
    fn is_named(&self, fault: &Fault) -> bool {
        (fault.inject)(self);
        let begun = Instant::now();
        let mut problems = Vec::new();
        let mut named = false;
        let bound = if all_faults() { NAMED } else { PATIENT };
        while !named && begun.elapsed() < bound {
            std::thread::sleep(LOOK);
            if let Some(again) = fault.again {
                again(self);
            }
            problems = self.why();
            named = problems.first().is_some_and(|first| fault.is_told_by(first));
        }
        let seconds = begun.elapsed().as_secs();
        let first = problems.first().map(|one| format!("{}; culprit: {}", one.title, one.culprit));
        println!(
            "{:<16}{} after {seconds} s: {first:?}",
            fault.name,
            if named { "named" } else { "NOT named" }
        );
        if !named {
            println!("{problems:#?}");
        }
        (fault.mend)(self);
        named
    }
}

impl Fault {
    fn is_told_by(&self, problem: &Problem) -> bool {
        let evidence = problem.evidence.join("\n");
        problem.culprit.contains(self.culprit)
            && format!("{}\n{evidence}", problem.culprit).contains(self.evidence)
    }
}

fn documents(changes: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, calls, env) in WORKLOADS {
        let calls: Vec<String> = calls
            .iter()
            .map(|call| match call.contains("://") {
                true => (*call).to_owned(),
                false => format!("http://{call}:8080/"),
            })
            .collect();
        let ports = match (env.contains("EVERY"), env.contains("BYTES")) {
            (true, _) => "",
            (_, true) => "  ports: [{port: 5432, appProtocol: tcp}]\n",
            _ => "  ports: [{port: 8080, appProtocol: http}]\n",
        };
        let env = match env {
            "" => String::new(),
            // A few requests are enough, and other tests need the processors.
            "EVERY" => format!(", EVERY: '{}'", if all_faults() { 0.4 } else { 1.0 }),
            other => format!(", {other}"),
        };
        text += &format!(
            "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: shop, labels: \
             {{app: {name}}}}}\nspec:\n  command: [python3, app.py]\n  workingDir: .\n  serviceAccount: {name}\n  \
             env: {{CALLS: '{}'{env}}}\n{ports}{}---\n",
            calls.join(" "),
            spec(name)
        );
    }
    for (from, to) in changes {
        if from.is_empty() {
            text += &format!("{to}\n---\n");
        } else {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
    }
    text
}

#[test]
fn why_names_the_culprit_first_and_nothing_while_nothing_is_broken() {
    let all = all_faults();
    let Some(drill) = root(Drill::start) else { return };
    let seen = |drill: &Drill| {
        let target = format!("/api/v1/topology?window={}", USUAL * 1000);
        drill
            .mesh
            .observed(&target)
            .is_some_and(|now: leno_dashboard::api::Topology| now.observed_s >= USUAL as f64 - 10.0)
    };
    let begun = Instant::now();
    while !seen(&drill) {
        assert!(begun.elapsed() < PATIENT, "{}", drill.mesh.log());
        std::thread::sleep(LOOK);
    }
    let mut wrong = Vec::new();
    let wanted = |fault: &&Fault| all || USUAL_FAULTS.contains(&fault.name);
    let only = std::env::var("LENO_DRILL_ONLY").unwrap_or_default();
    let faults: Vec<&Fault> =
        FAULTS.iter().filter(wanted).filter(|fault| fault.name.contains(&only)).collect();
    for fault in &faults {
        drill.wait_until_well();
        if !drill.is_named(fault) {
            wrong.push(fault.name);
        }
    }
    drill.wait_until_well();
    println!("{} of {} culprits were named first", faults.len() - wrong.len(), faults.len());
    let allowed = if all { MAX_WRONG } else { 0 };
    assert!(wrong.len() <= allowed, "not named: {wrong:?}");
}

/// Whether all faults are injected.
fn all_faults() -> bool {
    std::env::var("LENO_DRILL").is_ok_and(|wanted| wanted == "all")
}
