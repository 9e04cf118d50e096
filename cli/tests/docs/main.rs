//! Follows the quick start and the task pages as a reader does: writes their files into an empty folder, and runs
//! their commands as written, with the built `leno` on PATH.
//!
//! The meshes of the pages have no name of their own, so the pages run one after the other, and this machine must
//! run no mesh called `default`.

#![expect(clippy::unwrap_used, reason = "test code")]

mod page;

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use leno_local::layout::{DEFAULT_MESH, Layout};
use leno_testkit::tools::install_or_skip;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use page::{Step, shows};

/// The test that follows the one page for which a cluster is needed (`make e2e`).
const IN_A_CLUSTER: &str = include_str!("../../../e2e/cluster/quickstart_test.go");

/// How long a command is repeated until it prints what its page shows. On an idle machine, edits take effect
/// within a second.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long one run of a command may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two checks, and between two runs of a command.
const PAUSE: Duration = Duration::from_millis(100);

#[test]
fn quick_start() {
    follow("docs/quick-start.md");
}

#[test]
fn canary() {
    follow("docs/tasks/canary.md");
}

#[test]
fn strict_mtls() {
    follow("docs/tasks/strict-mtls.md");
}

#[test]
fn retries() {
    follow("docs/tasks/retries.md");
}

#[test]
fn authorization() {
    follow("docs/tasks/authorization.md");
}

/// The page needs programs that are built as Go modules. If these are missing, the test is skipped.
#[test]
fn sign_in() {
    let installed = ["oauth2-proxy", "oidc"].map(|tool| install_or_skip(tool).unwrap());
    if installed.iter().all(Option::is_some) {
        follow("docs/tasks/sign-in.md");
    }
}

#[test]
fn rate_limits() {
    follow("docs/tasks/rate-limits.md");
}

#[test]
fn egress() {
    follow("docs/tasks/egress.md");
}

#[test]
fn debugging_a_503() {
    follow("docs/tasks/debug-503.md");
}

#[test]
fn upgrade() {
    follow("docs/tasks/upgrade.md");
}

#[test]
fn measure() {
    follow("docs/tasks/measure.md");
}

#[test]
fn every_page_with_commands_is_followed() {
    let docs = root().join("docs");
    let tasks = fs::read_dir(docs.join("tasks")).unwrap().chain(fs::read_dir(&docs).unwrap());
    let mut pages = 0;
    for page in tasks.map(|entry| entry.unwrap().path()) {
        if page.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let steps = page::steps(&fs::read_to_string(&page).unwrap());
        if steps.iter().any(|step| matches!(step, Step::Command { .. })) {
            let name = page.strip_prefix(root()).unwrap().display();
            let followed = format!("follow(\"{name}\")");
            let in_a_cluster = format!("follow(t, \"{name}\")");
            let tests = [(include_str!("main.rs"), followed), (IN_A_CLUSTER, in_a_cluster)];
            assert!(tests.iter().any(|(test, call)| test.contains(call)), "no test follows {name}");
            pages += 1;
        }
    }
    assert!(pages > 0, "no page has commands");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Follows the steps of a page. The page must end the mesh that it starts.
fn follow(name: &str) {
    static TURN: Mutex<()> = Mutex::new(());
    if !nix::unistd::geteuid().is_root() {
        assert!(!leno_testkit::tools::required("root"), "LENO_REQUIRE has root");
        println!("skipped: needs root");
        return;
    }
    // Poisoning is ignored, because a page that failed has removed its mesh as well.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let page = root().join(name);
    let steps = page::steps(&fs::read_to_string(&page).unwrap());
    let reader = Reader::new(name);
    for step in &steps {
        match step {
            Step::File { name, text } => fs::write(reader.folder.path().join(name), text).unwrap(),
            Step::Command { line, command, shown } => reader.run(*line, command, shown.as_deref()),
        }
    }
    assert!(!reader.mesh.directory().exists(), "{name} leaves its mesh running");
}

/// A reader of a page, with an empty folder.
struct Reader<'a> {
    page: &'a str,
    folder: tempfile::TempDir,
    /// The file for the output of commands. It is outside the page's own folder.
    output: tempfile::NamedTempFile,
    mesh: Layout,
}

impl<'a> Reader<'a> {
    fn new(page: &'a str) -> Self {
        let mesh = Layout::new(DEFAULT_MESH).unwrap();
        let directory = mesh.directory();
        assert!(
            !directory.exists(),
            "{} is there: leno down, or leno cleanup",
            directory.display()
        );
        let folder = tempfile::tempdir().unwrap();
        Self { page, folder, output: tempfile::NamedTempFile::new().unwrap(), mesh }
    }

    /// Runs a command. If it does not print what the page shows, repeats it until it does.
    fn run(&self, line: usize, command: &str, shown: Option<&[String]>) {
        let place = format!("{}:{line}: $ {command}", self.page);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, printed) = self.once(&place, command);
            match shown {
                None => return assert!(status.success(), "{place}\n{status}\n{printed}"),
                Some(shown) if shows(shown, &printed) => return,
                Some(shown) => assert!(
                    Instant::now() < deadline,
                    "{place}\n{status}\nthe page shows:\n{}\nit prints:\n{printed}",
                    shown.join("\n")
                ),
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Runs a command once, and returns how it ended and what it printed.
    fn once(&self, place: &str, command: &str) -> (ExitStatus, String) {
        // A file rather than a pipe, because a process that the command leaves in the background would keep a pipe
        // open.
        let output = File::create(self.output.path()).unwrap();
        let leno = Path::new(env!("CARGO_BIN_EXE_leno")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let tools = leno_testkit::binaries::tools().unwrap();
        let tools = ["oauth2-proxy", "oidc"].map(|tool| tools.join(tool).display().to_string());
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).current_dir(self.folder.path());
        shell
            .env("PATH", format!("{}:{}:{path}", leno.display(), tools.join(":")))
            .env("HOME", self.folder.path());
        for variable in ["KUBECONFIG", "SUDO_UID", "SUDO_GID"] {
            shell.env_remove(variable);
        }
        shell.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let mut child = shell.process_group(0).spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                killpg(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
                child.wait().unwrap();
                panic!("{place}\ndoes not end after {LIMIT:?}");
            }
            std::thread::sleep(PAUSE / 5);
        };
        (status, fs::read_to_string(self.output.path()).unwrap())
    }
}

impl Drop for Reader<'_> {
    /// Ends the mesh of a page that has failed.
    fn drop(&mut self) {
        if self.mesh.directory().exists() {
            let mut down = Command::new(env!("CARGO_BIN_EXE_leno"));
            let _ended = down.args(["down", "--now", "--name", DEFAULT_MESH]).status();
            let _removed = leno_local::cleanup::cleanup(Some(DEFAULT_MESH));
        }
    }
}
