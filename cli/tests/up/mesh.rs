//! A mesh that the real command starts. It is removed at the end of the test.

#![expect(clippy::unwrap_used, reason = "test code")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leno_local::layout::Layout;
use leno_local::record::RecordedProcess;
use leno_local::status::MeshStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long any wait may last before the test fails; much longer than on an idle machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Pause between two checks.
const LOOK: Duration = Duration::from_millis(20);

/// Starts a program with a new terminal as its output. Another process copies the terminal's output to its own
/// output.
const TERMINAL: &str = "
import os, sys
ours, theirs = os.openpty()
if os.fork() == 0:
    os.close(theirs)
    try:
        while data := os.read(ours, 65536): os.write(1, data)
    except OSError: pass
    os._exit(0)
os.close(ours)
os.dup2(theirs, 1)
os.execv(sys.argv[1], sys.argv[1:])
";

/// A server on port 8080. It answers 200; 500 if the path contains `fail`; and late if the path contains `slow`.
const SERVER: &str = "import http.server as h, time
class H(h.BaseHTTPRequestHandler):
    def do_GET(self):
        if 'slow' in self.path: time.sleep(0.4)
        self.send_response(500 if 'fail' in self.path else 200)
        self.send_header('content-length', '0')
        self.end_headers()
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8080), H).serve_forever()
";

/// Documents in which `@SERVER@` is replaced by a Python program whose answers depend on the path of a request.
pub(crate) fn with_server(yaml: &str) -> String {
    yaml.replace("@SERVER@", &format!("{SERVER:?}"))
}

/// The beginning of a workload without a proxy in the namespace `shop`, up to its `spec`.
pub(crate) fn unmeshed(name: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: {name}, namespace: shop, labels: \
         {{leno.dev/inject: disabled}}}}\n"
    )
}

/// A mesh with a unique name.
pub(crate) struct Mesh {
    layout: Layout,
    directory: tempfile::TempDir,
    up: Option<Child>,
}

/// Runs `make` as root. Without root, skips the test with a message, or fails if root is required.
pub(crate) fn root<T>(make: impl FnOnce() -> T) -> Option<T> {
    if nix::unistd::geteuid().is_root() {
        return Some(make());
    }
    let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|what| what == "root"), "LENO_REQUIRE wants root");
    println!("skipped: needs root");
    None
}

/// The standard output of a command.
pub(crate) fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The standard error of a command.
pub(crate) fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The standard output of a command, followed by its standard error.
pub(crate) fn said(output: &Output) -> String {
    out(output) + &err(output)
}

impl Mesh {
    /// Starts a mesh and waits until all instances take traffic.
    pub(crate) fn start(yaml: &str) -> Self {
        let mut mesh = Self::new(yaml);
        mesh.restart();
        mesh
    }

    /// Starts a mesh in which ending applications get this much time, unless their documents set another time.
    pub(crate) fn start_with_grace(yaml: &str, grace: &str) -> Self {
        let mut mesh = Self::new(yaml);
        mesh.spawn(mesh.leno(&["up", "--grace", grace]));
        mesh.wait_for_line(" ready after ");
        mesh
    }

    /// Starts a mesh from a shell with these environment variables, with these files in the folder of its
    /// documents.
    pub(crate) fn start_with(yaml: &str, shell: &[(&str, &str)], files: &[(&str, &str)]) -> Self {
        let mut mesh = Self::new(yaml);
        for (name, text) in files {
            fs::write(mesh.directory().join(name), text).unwrap();
        }
        let mut up = mesh.leno(&["up"]);
        up.envs(shell.iter().copied());
        mesh.spawn(up);
        mesh.wait_for_line(" ready after ");
        mesh
    }

    /// The documents of a mesh that is not started.
    pub(crate) fn draft(yaml: &str) -> Self {
        Self::new(yaml)
    }

    /// Runs `leno up -d` with further arguments until it returns.
    pub(crate) fn detached(&self, more: &[&str]) -> Output {
        let mut up = self.leno(&["up", "-d", "--name", self.name(), "--grace", "5s"]);
        up.args(more).arg(self.file()).output().unwrap()
    }

    /// Runs `leno up` on documents that it must refuse.
    pub(crate) fn refused(yaml: &str) -> (Self, Output) {
        let mesh = Self::new(yaml);
        let output = mesh.leno(&["up", "--name", mesh.name()]).arg(mesh.file()).output().unwrap();
        (mesh, output)
    }

    /// Starts a mesh without waiting until all instances take traffic.
    pub(crate) fn start_unready(yaml: &str) -> Self {
        let mut mesh = Self::new(yaml);
        mesh.spawn(mesh.leno(&["up"]));
        mesh
    }

    /// Starts a mesh from a process with a low limit on descriptors.
    pub(crate) fn with_descriptors(yaml: &str, limit: u32) -> Self {
        let mesh = Self::start_by(yaml, &format!("ulimit -Sn {limit}; exec \"$0\" \"$@\""));
        mesh.wait_for_line(" ready after ");
        mesh
    }

    /// Starts a mesh whose standard output is a terminal. The terminal's output is the log.
    pub(crate) fn on_terminal(yaml: &str) -> Self {
        let mesh = Self::interpreted("python3", yaml, TERMINAL);
        mesh.wait_for_line(" ready after ");
        mesh
    }

    /// Starts a mesh by a shell script that has the command as its `$0` and `$@`, and in the variable `ETC` a path
    /// at which it may create a directory. Does not wait until all instances take traffic.
    pub(crate) fn start_by(yaml: &str, script: &str) -> Self {
        Self::interpreted("sh", yaml, script)
    }

    fn interpreted(by: &str, yaml: &str, script: &str) -> Self {
        let mut mesh = Self::new(yaml);
        let mut up = Command::new(by);
        up.args(["-c", script, env!("CARGO_BIN_EXE_leno"), "up"]);
        up.env("ETC", mesh.directory().join("etc"));
        mesh.spawn(up);
        mesh
    }

    /// Starts mesh `x-y` with namespace `z`, and mesh `x` with namespace `y-z`.
    pub(crate) fn similar() -> (Self, Self) {
        let yaml = |namespace: &str| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Workload\nmetadata: {{name: client, \
                 namespace: {namespace}, labels: {{leno.dev/inject: disabled}}}}\nspec: \
                 {{command: [sleep, infinity]}}\n"
            )
        };
        let mut short = Self::new(&yaml("y-z"));
        let mut long = Self::named(&format!("{}-y", short.name()), &yaml("z"));
        short.restart();
        long.restart();
        (long, short)
    }

    fn new(yaml: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        // All names have the same number of digits, so that no name is the beginning of another one. Otherwise a
        // shell could complete one to the other.
        Self::named(&format!("c{}-{number:03}", std::process::id()), yaml)
    }

    fn named(name: &str, yaml: &str) -> Self {
        let layout = Layout::new(name).unwrap();
        let mesh = Self { layout, directory: tempfile::tempdir().unwrap(), up: None };
        mesh.edit(yaml);
        mesh
    }

    /// Starts a mesh from a directory that `prepare` fills, and waits until all instances take traffic.
    pub(crate) fn prepared(yaml: &str, prepare: impl Fn(&Path)) -> Self {
        let mut mesh = Self::new(yaml);
        prepare(mesh.directory());
        mesh.restart();
        mesh
    }

    /// The answer of the mesh's observer; `None` if it does not answer.
    pub(crate) fn observed<T: serde::de::DeserializeOwned>(&self, target: &str) -> Option<T> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(leno_local::observer::ask(&self.layout, target)).ok()
    }

    /// Starts `leno up` (again) and waits until all instances take traffic.
    pub(crate) fn restart(&mut self) {
        self.spawn(self.leno(&["up"]));
        self.wait_for_line(" ready after ");
    }

    fn spawn(&mut self, mut up: Command) {
        let log = fs::File::create(self.log_file()).unwrap();
        if !up.get_args().any(|argument| argument == "--grace") {
            up.args(["--grace", "5s"]);
        }
        up.args(["--name", self.name()]);
        up.arg(self.file()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.up = Some(up.spawn().unwrap());
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn name(&self) -> &str {
        self.layout.mesh()
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.path().join("mesh.yaml")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.up.as_ref().unwrap().id()
    }

    /// Replaces the documents.
    pub(crate) fn edit(&self, yaml: &str) {
        let draft = self.directory.path().join("draft");
        fs::write(&draft, yaml).unwrap();
        fs::rename(draft, self.file()).unwrap();
    }

    /// The `leno` command with these arguments.
    pub(crate) fn leno(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leno"));
        command.args(arguments);
        for variable in ["SUDO_UID", "SUDO_GID"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs a command about this mesh to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.leno(arguments).args(["--name", self.name()]).output().unwrap()
    }

    pub(crate) fn exec(&self, who: &str, command: &[&str]) -> Output {
        let mut exec = self.leno(&["exec", "--name", self.name(), who, "--"]);
        exec.args(command).stdin(Stdio::null()).output().unwrap()
    }

    /// The output of a command in an instance; the command must succeed.
    pub(crate) fn text(&self, who: &str, command: &[&str]) -> String {
        let output = self.exec(who, command);
        assert!(output.status.success(), "{command:?}: {output:?}\n{}", self.log());
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    pub(crate) fn check(&self) -> String {
        out(&self.run(&["check"]))
    }

    /// The process id of an instance's application.
    pub(crate) fn application(&self, instance: &str) -> i32 {
        self.try_application(instance).unwrap_or_else(|| panic!("no {instance}\n{}", self.log()))
    }

    pub(crate) fn try_application(&self, instance: &str) -> Option<i32> {
        let status = MeshStatus::read(&self.layout).ok()?;
        let instance = status.find(None, instance).ok()?;
        let processes = instance.surroundings.cgroup.join("cgroup.procs");
        fs::read_to_string(processes).ok()?.lines().next()?.parse().ok()
    }

    pub(crate) fn takes_traffic(&self, instance: &str) -> bool {
        let status = MeshStatus::read(&self.layout);
        status.is_ok_and(|status| status.find(None, instance).is_ok_and(|found| found.ready))
    }

    pub(crate) fn wait_for_line(&self, text: &str) {
        self.wait_for(text, || self.log().contains(text));
    }

    pub(crate) fn wait_for(&self, what: &str, look: impl Fn() -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !look() {
            assert!(Instant::now() < deadline, "waited in vain for {what}\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn interrupt(&self) {
        let pid = self.pid().try_into().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    }

    pub(crate) fn kill_process(&self, pid: i32) {
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }

    /// Kills `leno up` with SIGKILL.
    pub(crate) fn kill(&mut self) {
        let mut up = self.up.take().unwrap();
        up.kill().unwrap();
        up.wait().unwrap();
    }

    /// Waits until `leno up` exits.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let mut up = self.up.take().unwrap();
        let deadline = Instant::now() + LIMIT;
        loop {
            if let Some(status) = up.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "does not end\n{}", self.log());
            std::thread::sleep(LOOK);
        }
    }

    /// All traces of the mesh on this machine.
    pub(crate) fn remains(&self) -> Vec<String> {
        let own = format!("leno-{}", self.name());
        let of_mesh = |name: &String| *name == own || name.starts_with(&format!("{own}."));
        let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        let mut found: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(of_mesh)
            .collect();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mounted = mounts.lines().filter(|line| line.contains(&format!("/{own}")));
        found.extend(mounted.map(str::to_owned));
        let hierarchy = leno_capture::cgroup2_root().unwrap();
        for path in [self.layout.directory().to_owned(), self.layout.cgroup(&hierarchy)] {
            found.extend(path.exists().then(|| path.display().to_string()));
        }
        for bpffs in ["/sys/fs/bpf/leno", "/run/leno/bpf/leno"] {
            let pins = fs::read_dir(bpffs).into_iter().flatten().flatten();
            let owners = pins.filter_map(|pin| pin.file_name().into_string().ok());
            found.extend(owners.map(|owner| owner.replace(':', ".")).filter(of_mesh));
        }
        let mark = format!("/leno/{}/", self.name());
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            // The process may have ended since the directory was read.
            let group = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let name = entry.file_name().to_string_lossy().into_owned();
            // Zombies do not count, because only their new parent can remove them.
            if group.contains(&mark)
                && name.parse().is_ok_and(|pid| RecordedProcess::find(pid).is_some())
            {
                found.push(format!("process {name}"));
            }
        }
        found
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("up.log")
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if let Some(mut up) = self.up.take() {
            // The test is over, so only removing everything matters now.
            let _gone = up.kill();
            let _gone = up.wait();
        } else if let Ok(status) = MeshStatus::read(&self.layout) {
            // The mesh runs in the background, because an assertion failed before it was stopped.
            let _gone = kill(Pid::from_raw(status.owner), Signal::SIGKILL);
        }
        let _left = leno_local::cleanup::cleanup(Some(self.name()));
    }
}
