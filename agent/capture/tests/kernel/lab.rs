//! Two connected network namespaces, a cgroup, and processes in them. Dropping them removes them.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use leno_capture::{
    Backend, CaptureTarget, Captured, OpenWay, Way, capture, cgroup2_root, open_ways,
};
use leno_types::Datagrams;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::worker::ANSWER;

/// The workload's addresses.
pub const POD: [&str; 2] = ["10.77.0.2", "[fd77::2]"];
/// The addresses of the outside machine.
pub const OUTSIDE: [&str; 2] = ["10.77.0.1", "[fd77::1]"];
/// The link-local addresses of the workload and of the outside machine.
pub const LINK_LOCAL: [&str; 2] = ["fe80::77:2", "fe80::77:1"];
/// Service addresses, which no interface has.
pub const VIP: [&str; 2] = ["10.96.0.10", "[fd96::10]"];
/// The proxy's listeners.
pub const PROXY: [&str; 4] = ["127.0.0.1:15001", "[::1]:15001", "0.0.0.0:15006", "[::]:15006"];

/// Whether this process is root. If it is not, prints that the test is skipped, or fails if `LENO_REQUIRE`
/// contains `root`.
pub fn has_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
        assert!(!required, "needs root");
        eprintln!("skipped: needs root");
    }
    root
}

thread_local! {
    /// Whether the labs of this thread recognise the proxy by its user, as for a pod: the pod's cgroup exists when
    /// it is captured, but the cgroups of its containers do not.
    pub static BY_USER: Cell<bool> = const { Cell::new(false) };
}

/// Makes these files empty for the calling thread and the processes that it starts.
pub fn hide(files: &[&str]) {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    for file in files.iter().filter(|file| Path::new(file).exists()) {
        mount(Some("/dev/null"), *file, none, MsFlags::MS_BIND, none).unwrap();
    }
}

/// Longest wait until a packet that was sent is counted. Packets inside this machine take microseconds.
const COUNT_TIMEOUT: Duration = Duration::from_secs(20);

/// The settings of a test that differ from the defaults.
#[derive(Clone, Default)]
pub struct TestSettings {
    pub fail_closed: bool,
    pub excluded: Vec<(IpAddr, u8)>,
    pub datagrams: Datagrams,
}

pub struct Lab {
    pub workload: CaptureTarget,
    pub captured: Captured,
    proxy_place: PathBuf,
    outside: PathBuf,
}

impl Lab {
    /// Creates the namespaces and the cgroup, and captures the workload.
    pub fn new(backend: Backend, wish: TestSettings) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leno-test-{}-{number}", std::process::id());
        let cgroup = cgroup2_root().unwrap().join(&name);
        let proxy_place = cgroup.join("proxy");
        let workload = CaptureTarget {
            netns: Path::new("/run/netns").join(format!("{name}-in")),
            proxy_cgroup: if BY_USER.get() { cgroup.clone() } else { proxy_place.clone() },
            proxy_process: None,
            cgroup,
            fail_closed: wish.fail_closed,
            excluded: wish.excluded,
            proxy_uid: 2102,
            datagrams: wish.datagrams,
            name: name.clone(),
        };
        make_network(&format!("{name}-in"), &format!("{name}-out"));
        fs::create_dir(&workload.cgroup).unwrap();
        fs::create_dir(workload.cgroup.join("app")).unwrap();
        fs::create_dir(&proxy_place).unwrap();
        let captured = capture(backend, &workload).unwrap();
        Self { workload, captured, proxy_place, outside: format!("/run/netns/{name}-out").into() }
    }

    /// A lab with a proxy that listens, which was reported with `set_listening`.
    pub fn with_proxy(backend: Backend, wish: TestSettings) -> (Self, Worker) {
        let mut lab = Self::new(backend, wish);
        let mut proxy = lab.proxy();
        proxy.listen_as_proxy();
        lab.captured.set_listening(true).unwrap();
        (lab, proxy)
    }

    /// Starts a process of the workload, inside its cgroup.
    pub fn app(&self) -> Worker {
        let cgroup = self.workload.cgroup.join("app");
        Worker::start(&self.workload.netns, &format!("{} -", cgroup.display()))
    }

    /// Starts a process of the workload with this user.
    pub fn app_as(&self, user: u32) -> Worker {
        let cgroup = self.workload.cgroup.join("app");
        Worker::start(&self.workload.netns, &format!("{} {user}", cgroup.display()))
    }

    /// The open way of this kind, if it is open to these processes.
    pub fn open_way(&self, way: Way, processes: &[&Worker]) -> Option<OpenWay> {
        let pids: Vec<u32> = processes.iter().map(|one| one.pid()).collect();
        let open = open_ways(self.captured.backend(), &self.workload, &pids);
        assert_eq!(open.unknown, [""; 0]);
        open.ways.into_iter().find(|one| one.way == way)
    }

    /// Starts a process in the proxy's cgroup with the proxy's user.
    pub fn proxy(&self) -> Worker {
        let place = format!("{} 2102", self.proxy_place.display());
        Worker::start(&self.workload.netns, &place)
    }

    /// Starts a process on the outside machine.
    pub fn outside(&self) -> Worker {
        Worker::start(&self.outside, "- -")
    }

    /// Starts a process in the workload's cgroup, but in the outside network namespace.
    pub fn stray(&self) -> Worker {
        let cgroup = self.workload.cgroup.join("app");
        Worker::start(&self.outside, &format!("{} -", cgroup.display()))
    }

    /// Sets one of the kernel's settings in both network namespaces.
    pub fn set_on_both(&self, name: &str, value: &str) {
        for netns in [&self.workload.netns, &self.outside] {
            let namespace = File::open(netns).unwrap();
            // The directory shows the settings of the network namespace of the thread that opens a file.
            std::thread::scope(|scope| {
                let set = || {
                    setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
                    fs::write(Path::new("/proc/sys/net/ipv4").join(name), value).unwrap();
                };
                scope.spawn(set).join().unwrap();
            });
        }
    }

    pub fn outside_netns(&self) -> &Path {
        &self.outside
    }

    /// The link-local addresses of the workload and of the outside machine, each with the scope of the side that
    /// connects to it.
    pub fn link_local(&self) -> [String; 2] {
        let scope = |netns: &Path| {
            let link = inside(netns, "ip -o link show dev eth0");
            link.split(':').next().unwrap().to_owned()
        };
        let dialled = |address: &str, from: &Path| format!("[{address}%{}]", scope(from));
        [dialled(LINK_LOCAL[0], &self.outside), dialled(LINK_LOCAL[1], &self.workload.netns)]
    }

    pub fn count(&self, counter: &str) -> u64 {
        self.captured.counters().unwrap().get(counter).copied().unwrap_or_default()
    }

    pub fn wait_for_count(&self, counter: &str, least: u64) {
        let deadline = Instant::now() + COUNT_TIMEOUT;
        while self.count(counter) < least {
            assert!(Instant::now() < deadline, "{counter} stays below {least}");
            std::thread::yield_now();
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.captured.release() {
            eprintln!("release: {error}");
        }
        for namespace in [&self.workload.netns, &self.outside] {
            let name = namespace.file_name().unwrap().to_str().unwrap();
            ip(&["netns", "delete", name]);
        }
        let cgroup = &self.workload.cgroup;
        for directory in [&self.proxy_place, &cgroup.join("app"), cgroup] {
            if let Err(error) = fs::remove_dir(directory) {
                eprintln!("rmdir {}: {error}", directory.display());
            }
        }
    }
}

/// Creates two namespaces that are connected by a veth pair. Each has an IPv4 and an IPv6 address. The default
/// route of the inner one leads to the outer one.
fn make_network(inner: &str, outer: &str) {
    ip(&["netns", "add", inner]);
    ip(&["netns", "add", outer]);
    ip(&[
        "-n", inner, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", outer,
    ]);
    for (namespace, ends, link_local) in
        [(inner, POD, LINK_LOCAL[0]), (outer, OUTSIDE, LINK_LOCAL[1])]
    {
        let [ipv4, ipv6] = ends.map(|ip| ip.trim_matches(['[', ']']));
        ip(&["-n", namespace, "address", "add", &format!("{ipv4}/24"), "dev", "eth0"]);
        ip(&["-n", namespace, "address", "add", &format!("{ipv6}/64"), "dev", "eth0", "nodad"]);
        let link_local = format!("{link_local}/64");
        ip(&["-n", namespace, "address", "add", &link_local, "dev", "eth0", "nodad"]);
        ip(&["-n", namespace, "link", "set", "lo", "up"]);
        ip(&["-n", namespace, "link", "set", "eth0", "up"]);
    }
    ip(&["-n", inner, "route", "add", "default", "via", "10.77.0.1"]);
    ip(&["-n", inner, "-6", "route", "add", "default", "via", "fd77::1"]);
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    if !output.status.success() && !std::thread::panicking() {
        panic!("ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Runs a command in a namespace. Returns its standard output.
pub fn inside(netns: &Path, command: &str) -> String {
    let mut words = command.split(' ');
    let mut command = Command::new(words.next().unwrap());
    command.args(words).stdout(Stdio::piped());
    let output = spawn_inside(netns, &mut command).wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Starts the child on a thread in the namespace, because a child inherits the namespace of that thread.
fn spawn_inside(netns: &Path, command: &mut Command) -> Child {
    let namespace = File::open(netns).unwrap();
    std::thread::scope(|scope| {
        let start = || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
            command.spawn().unwrap()
        };
        scope.spawn(start).join().unwrap()
    })
}

/// A process that executes the commands of a test (`worker.rs`). Dropping this kills it.
pub struct Worker {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(netns: &Path, place: &str) -> Self {
        // In a chroot, /proc/self/exe would be a path outside of it for a thread with its own mounts.
        let mut command = Command::new(std::env::args_os().next().unwrap());
        command
            .args(["--exact", "worker", "--nocapture", "--test-threads=1"])
            .env("LENO_TEST_WORKER", place)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = spawn_inside(netns, &mut command);
        let stdin = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut worker = Self { child, stdin, answers };
        assert_eq!(worker.answer(), "ready");
        worker
    }

    /// Sends a command. Returns the answer.
    pub fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    pub fn send(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").unwrap();
    }

    pub fn answer(&mut self) -> String {
        loop {
            let line = self.answers.next().expect("the worker died").unwrap();
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    pub fn listen_as_proxy(&mut self) {
        self.listen_as("proxy");
    }

    /// Listens on the proxy's addresses. `who` is the name that it sends to clients.
    pub fn listen_as(&mut self, who: &str) {
        for at in PROXY {
            assert_eq!(self.ask(&format!("listen {who} {at}")), at);
        }
    }

    /// Shuts the listeners down, but keeps their sockets.
    pub fn shut_proxy(&mut self) {
        for at in PROXY {
            assert_eq!(self.ask(&format!("shut {at}")), "shut");
        }
    }

    pub fn close_proxy(&mut self) {
        for at in PROXY {
            assert_eq!(self.ask(&format!("close {at}")), "closed");
        }
    }

    /// Serves on a free port of this address. Returns the socket address.
    pub fn serve_at(&mut self, ip: &str) -> String {
        self.ask(&format!("listen server {ip}:0"))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Pauses or resumes the process.
    pub fn stop(&mut self, stop: bool) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, if stop { Signal::SIGSTOP } else { Signal::SIGCONT }).unwrap();
    }

    /// The result of a `dial` command that was sent earlier: what the server and the client have observed.
    pub fn seen(&mut self) -> DialReport {
        DialReport(self.answer())
    }

    /// Connects. Returns what the server and the client have observed.
    pub fn dial(&mut self, to: &str) -> DialReport {
        DialReport(self.ask(&format!("dial {to}")))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The answer to a `dial` command, in words of the form `name=value`.
#[derive(Debug)]
pub struct DialReport(pub String);

impl DialReport {
    /// One of the values; empty if it is missing.
    pub fn get(&self, name: &str) -> &str {
        let mut words = self.0.split(' ').filter_map(|word| word.split_once('='));
        words.find(|(found, _)| *found == name).map(|(_, value)| value).unwrap_or_default()
    }

    #[track_caller]
    pub fn assert_captured(&self, original: &str) {
        assert_eq!((self.get("who"), self.get("original")), ("proxy", original), "{self:?}");
    }

    #[track_caller]
    pub fn assert_direct(&self) {
        assert_eq!(self.get("who"), "server", "{self:?}");
    }

    #[track_caller]
    pub fn assert_refused(&self) {
        // Before Linux 5.18, programs that refuse `connect` could not choose its error.
        if self.0 == "error PermissionDenied" && leno_bpf::kernel_is_before(5, 18) {
            return;
        }
        assert_eq!(self.0, "error ConnectionRefused");
    }
}
