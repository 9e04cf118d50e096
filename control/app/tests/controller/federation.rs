//! Tests the exchange of trust bundles between trust domains over bundle endpoints (SPIFFE Federation).
//!
//! ```text
//! near.example ── / ──► far.example        leno-controller at both ends
//! near.example ── / ──► spiffe-peer fetch  SPIFFE's own Go module as the client, and as the server
//! spiffe-peer publish ──► far.example
//! ```

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leno_identity::{AuthorityDirectory, OperatorVerb};
use leno_testkit::tools;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use serde_json::Value;

use super::{GOOD, PATIENCE, command, directory, page, write_state};

const NEAR: &str = "near.example";
const FAR: &str = "far.example";
/// The metric in which a control plane counts how often it has fetched the bundle of `near.example`.
const FETCHED: &str =
    "leno_control_bundle_fetches_total{trust_domain=\"near.example\",result=\"fetched\"}";
const POLL: Duration = Duration::from_millis(100);

/// A control plane with its own directory.
struct Mesh {
    place: tempfile::TempDir,
    domain: &'static str,
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    child: Option<Child>,
}

impl Mesh {
    fn new(domain: &'static str, arguments: &[&str]) -> Self {
        let place = directory();
        write_state(place.path(), GOOD);
        let arguments = arguments.iter().map(|one| (*one).to_owned()).collect();
        Self { place, domain, arguments, environment: Vec::new(), child: None }
    }

    /// Starts or restarts the control plane, with an empty log.
    fn start(&mut self) {
        self.stop();
        let mut command = command(self.place.path());
        command.args(["--trust-domain", self.domain]).args(&self.arguments);
        command.arg("--roots-file").arg(self.roots()).envs(self.environment.iter().cloned());
        command.stderr(File::create(self.log()).unwrap());
        self.child = Some(command.spawn().unwrap());
        self.says("serving discovery and identity");
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn log(&self) -> PathBuf {
        self.place.path().join("log")
    }

    /// Waits for the first line of the log that contains this text.
    fn says(&self, text: &str) -> String {
        let find = || {
            let log = fs::read_to_string(self.log()).unwrap();
            let line = log.lines().find(|line| line.contains(text)).map(str::to_owned);
            line.ok_or(log)
        };
        until(text, find, Result::is_ok).unwrap()
    }

    /// The address in the first line of the log that contains this text.
    fn address(&self, text: &str) -> String {
        self.says(text).split("address=").nth(1).unwrap().trim().to_owned()
    }

    /// The file in which the control plane keeps the bundle of another trust domain.
    fn stored(&self, domain: &str) -> PathBuf {
        self.place.path().join(format!("control/federation/{domain}.json"))
    }

    /// The file with the control plane's own roots, in PEM.
    fn roots(&self) -> PathBuf {
        self.place.path().join("roots.pem")
    }

    /// A copy of the present roots.
    fn first_bundle(&self) -> PathBuf {
        until("the roots", || self.roots().exists(), |is_there| *is_there);
        let copy = self.place.path().join("first.pem");
        fs::copy(self.roots(), &copy).unwrap();
        copy
    }

    fn get(&self, path: &str) -> String {
        page(&self.address("serving /metrics"), path)
    }

    fn report(&self) -> Value {
        serde_json::from_str(self.get("/identity").split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// The hashes of the control plane's own roots.
    fn own(&self) -> Vec<String> {
        hashes(&self.report()["roots"])
    }

    /// The hashes of the roots that the control plane has of another trust domain.
    fn federated(&self, domain: &str) -> Vec<String> {
        hashes(&self.report()["federated"][domain])
    }

    /// Waits until the control plane has these roots of another trust domain.
    fn has(&self, domain: &str, roots: &[String]) {
        until("the roots of the other domain", || self.federated(domain), |found| found == roots);
    }

    fn metric(&self, sample: &str) -> u64 {
        let page = self.get("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(sample));
        line.unwrap_or_else(|| panic!("{sample}: {page}")).trim().parse().unwrap()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: {}", self.domain, fs::read_to_string(self.log()).unwrap_or_default());
        }
        self.stop();
    }
}

fn hashes(roots: &Value) -> Vec<String> {
    let all = roots.as_array().into_iter().flatten();
    all.map(|root| root["sha256"].as_str().unwrap().to_owned()).collect()
}

/// Reads a value repeatedly until it fits. The wait is longer than others, because a rotation also waits for
/// proxies.
fn until<T: std::fmt::Debug>(what: &str, read: impl Fn() -> T, fits: impl Fn(&T) -> bool) -> T {
    let begin = Instant::now();
    loop {
        let found = read();
        if fits(&found) {
            return found;
        }
        assert!(begin.elapsed() < 4 * PATIENCE, "{what}: {found:?}");
        std::thread::sleep(POLL);
    }
}

#[test]
fn a_mesh_follows_the_bundle_endpoint_of_another_through_a_rotation_and_a_restart() {
    let mut near = Mesh::new(NEAR, &["--bundle-endpoint", "127.0.0.1:0", "--bundle-refresh", "1s"]);
    near.start();
    let (address, first) = (near.address("serving the trust bundle"), near.first_bundle());
    let federate =
        |id: &str| format!("{NEAR}=https://{address}/;spiffe-id={id};bundle={}", first.display());
    let endpoint = federate("spiffe://near.example/leno/control-plane");
    let mut far = Mesh::new(FAR, &["--federate", &endpoint]);
    far.start();
    far.says("trust bundle fetched");
    far.has(NEAR, &near.own());

    // The endpoint has another SPIFFE ID than the one that is expected here, although of the same trust domain.
    let mut wary = Mesh::new(FAR, &["--federate", &federate("spiffe://near.example/other")]);
    wary.start();
    let said = wary.says("cannot fetch a trust bundle");
    assert!(said.contains("NotValidForName"), "{said}");
    let last = "leno_control_bundle_fetched_timestamp_seconds{trust_domain=\"near.example\"}";
    assert_eq!(wary.metric(last), 0);
    wary.stop();

    let before = near.own();
    AuthorityDirectory::new(&near.place.path().join("control")).ask(OperatorVerb::Begin).unwrap();
    let held = "other trust domains have fetched";
    let is_held = |report: &Value| report["waits"].to_string().contains(held);
    until("a phase to be held", || near.report(), is_held);
    let is_next = |own: &Vec<String>| own.len() == 1 && *own != before;
    let after = until("the next root", || near.own(), is_next);
    far.has(NEAR, &after);

    // The given bundle contains only the first root, with which the endpoint can no longer be verified.
    far.start();
    assert_eq!(far.federated(NEAR), after, "it was stored");
    until("a fetch by the stored roots", || far.metric(FETCHED), |count| *count > 0);
    assert!(near.metric("leno_control_bundle_requests_total") > 0);

    // A bundle is stored even if it equals the given one.
    let stored = far.stored(NEAR);
    let kept = || fs::read_to_string(&stored).ok();
    let good = until("what is stored", kept, Option::is_some).unwrap();
    far.stop();
    fs::remove_file(&stored).unwrap();
    fs::write(&first, good).unwrap();
    far.start();
    until("the same to be stored", kept, Option::is_some);
}

/// A certificate authority like those of the web. Web::certify writes a certificate for 127.0.0.1 that it has signed.
struct Web {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

impl Web {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), root }
    }

    fn certify(&self, directory: &Path) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
        fs::write(directory.join("tls.crt"), leaf.pem()).unwrap();
    }
}

#[test]
fn an_endpoint_with_a_certificate_of_the_web_is_known_by_its_name() {
    let place = tempfile::tempdir().unwrap();
    let certificate = place.path().join("certificate");
    let web = Web::new();
    web.certify(&certificate);
    let directory = certificate.to_str().unwrap();
    let serve = ["--bundle-endpoint", "127.0.0.1:0", "--bundle-refresh", "1s"];
    let mut near =
        Mesh::new(NEAR, &[&serve[..], &["--bundle-endpoint-certificate", directory]].concat());
    near.start();
    let address = near.address("serving the trust bundle");

    let federate = format!("{NEAR}=https://{address}/");
    let mut far = Mesh::new(FAR, &["--federate", &federate]);
    // As in the control plane's image, there is no file of authorities.
    let none = place.path().join("none");
    fs::create_dir(&none).unwrap();
    far.environment = vec![("SSL_CERT_DIR", none.clone()), ("SSL_CERT_FILE", none.join("none"))];
    fs::write(none.join("none"), "").unwrap();
    far.start();
    let said = far.says("cannot fetch a trust bundle");
    assert!(said.contains("UnknownIssuer") || said.contains("invalid peer certificate"), "{said}");
    assert_eq!(far.federated(NEAR), Vec::<String>::new());
    let authorities =
        |source| far.metric(&format!("leno_control_web_authorities{{source=\"{source}\"}}"));
    assert_eq!((authorities("machine"), authorities("file")), (0, 0));
    assert!(authorities("built-in") > 50, "those of Mozilla");

    let authorities = place.path().join("authorities.pem");
    fs::write(&authorities, &web.root).unwrap();
    far.environment.push(("SSL_CERT_FILE", authorities.clone()));
    far.start();
    far.has(NEAR, &near.own());
    // The operator's authorities are trusted in addition to the others, and their file is read again when it
    // changes.
    far.environment.pop();
    let own = place.path().join("ca.crt");
    fs::write(&own, Web::new().root).unwrap();
    far.arguments.extend(["--web-authorities".to_owned(), own.to_str().unwrap().to_owned()]);
    far.start();
    far.says("cannot fetch a trust bundle");
    fs::write(&own, &web.root).unwrap();
    until("a fetch", || far.metric(FETCHED), |count| *count > 0);

    // The certificate is replaced by one that another authority has signed, without a restart.
    let next = Web::new();
    next.certify(&certificate);
    near.says("the certificate of the bundle endpoint was replaced");
    let failed = FETCHED.replace("fetched\"}", "failed\"}");
    let before = far.metric(&failed);
    until("a failed fetch", || far.metric(&failed), |count| *count > before);
    assert_eq!(far.federated(NEAR), near.own(), "the last bundle stays");
}

/// A process of SPIFFE's Go module. It ends with this test.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // The process has ended already, or is about to.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped()).process_group(0);
    command
}

#[test]
fn bundles_are_exchanged_with_the_go_module_of_spiffe_both_ways() {
    let Some(tools) = tools::install_or_skip("spiffe").unwrap() else { return };
    let program = tools.join("spiffe");
    let file = tempfile::tempdir().unwrap();
    let bundle = file.path().join("bundle.json");
    let endpoint = "spiffe://near.example/spire/server";
    let served = peer(&program, &["publish", endpoint, bundle.to_str().unwrap()]).spawn();
    let mut served = Peer(served.unwrap());
    let mut printed = BufReader::new(served.0.stdout.take().unwrap()).lines();
    let address = printed.next().unwrap().unwrap();
    let federate = format!(
        "{NEAR}=https://{}/;spiffe-id={endpoint};bundle={}",
        address.trim(),
        bundle.display()
    );
    let serve = ["--bundle-endpoint", "127.0.0.1:0", "--bundle-refresh", "7s"];
    let mut far = Mesh::new(FAR, &[&serve[..], &["--federate", &federate]].concat());
    far.start();
    let own = far.address("serving the trust bundle");
    until("a fetch", || far.metric(FETCHED), |count| *count > 0);
    let first = far.federated(NEAR);
    assert_eq!(first.len(), 1);
    // Each signal moves the module's root rotation one step on: the new root is added, then signs, then is the
    // only one. The kernel merges a signal with an earlier one that was not handled yet, so each step is awaited.
    let mut step = || {
        kill(Pid::from_raw(served.0.id().try_into().unwrap()), Signal::SIGHUP).unwrap();
        printed.next().unwrap().unwrap();
    };
    step();
    until("both roots", || far.federated(NEAR), |roots| roots.len() == 2);
    step();
    step();
    let is_next = |roots: &Vec<String>| roots.len() == 1 && *roots != first;
    until("the next root alone", || far.federated(NEAR), is_next);

    let (url, roots) = (format!("https://{own}/"), far.first_bundle());
    let fetch = |id: &str| {
        let arguments = ["fetch", FAR, &url, id, roots.to_str().unwrap()];
        peer(&program, &arguments).stderr(Stdio::piped()).output().unwrap()
    };
    let fetched = fetch("spiffe://far.example/leno/control-plane");
    let text = String::from_utf8_lossy(&fetched.stderr).into_owned();
    assert!(fetched.status.success(), "{text}");
    let shown: Value = serde_json::from_slice(&fetched.stdout).unwrap();
    assert_eq!((shown["roots"].as_array().unwrap().len(), &shown["refresh_s"]), (1, &7.into()));
    assert!(!fetch("spiffe://far.example/other").status.success());

    // No endpoint vouches for the sequence number of a bundle in the store, so a wrong number there must not prevent
    // later fetches.
    far.stop();
    let stored = far.stored(NEAR);
    let mut wrong: Value = serde_json::from_str(&fs::read_to_string(&stored).unwrap()).unwrap();
    let sequence = std::mem::replace(&mut wrong["spiffe_sequence"], 1_000_000.into());
    assert!(sequence.is_u64(), "{sequence}");
    fs::write(&stored, wrong.to_string()).unwrap();
    far.start();
    until("a fetch", || far.metric(FETCHED), |count| *count > 0);
}
