//! Two connected network namespaces whose connections are accounted for, and helpers for connections between them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::{Duration, Instant};

use leno_capture::cgroup2_root;
use leno_flows::{
    Accounts, EarlierMaps, FlowConnection, FlowMember, FlowMetricsSource, FlowSizes, FlowView,
    WorkloadInterface,
};
use nix::sched::{CloneFlags, setns};
use socket2::{Domain, SockRef, Socket, Type};

/// The client's and the server's addresses.
pub(crate) const CLIENT: [&str; 2] = ["10.78.0.1", "fd78::1"];
pub(crate) const SERVER: [&str; 2] = ["10.78.0.2", "fd78::2"];
/// Longest wait for the kernel.
const LIMIT: Duration = Duration::from_secs(20);

/// Whether this process is root. If it is not, prints that the test is skipped, or fails if `LENO_REQUIRE`
/// contains `root`.
pub(crate) fn has_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
        assert!(!required, "needs root");
        eprintln!("skipped: needs root");
    }
    root
}

/// Runs tests of this program again with an environment variable that makes it treat the kernel as a less capable
/// one.
pub(crate) fn run_again((name, value): (&str, &str), tests: &[&str]) {
    if !has_root() || std::env::var_os(name).is_some() {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(tests).env(name, value).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains(" 0 passed"), "{text}");
}

/// How many labs use this process's cgroup, and the cgroup in which the process was before.
static USERS: Mutex<(usize, Option<PathBuf>)> = Mutex::new((0, None));

/// All labs share a cgroup, so the programs of one lab also run for the connections of the others. Tests that
/// measure the cost of programs must run alone.
static LAB_LOCK: RwLock<()> = RwLock::new(());

/// A lock that is held as long as a lab exists.
enum LabLock {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

pub(crate) struct Lab {
    /// The name of the owner of the flow accounts.
    pub(crate) owner: String,
    pub(crate) accounts: Option<Accounts>,
    pub(crate) cgroup: PathBuf,
    source: FlowMetricsSource,
    _lock: LabLock,
}

impl Lab {
    /// Creates the namespaces, and enrols both.
    pub(crate) fn new(sizes: FlowSizes) -> Self {
        Self::make(sizes, FlowMetricsSource::Sockets, shared())
    }

    /// As [`Lab::new`], and the frames of the client's interface are counted.
    pub(crate) fn of_frames(sizes: FlowSizes) -> Self {
        Self::make(sizes, FlowMetricsSource::Packets, shared())
    }

    /// As [`Lab::of_frames`], and requests are read from the frames.
    pub(crate) fn of_requests(sizes: FlowSizes) -> Self {
        Self::make(sizes, FlowMetricsSource::Requests, shared())
    }

    /// As [`Lab::new`], but no other lab exists at the same time.
    pub(crate) fn alone(sizes: FlowSizes) -> Self {
        let alone = LabLock::Alone(LAB_LOCK.write().unwrap_or_else(PoisonError::into_inner));
        Self::make(sizes, FlowMetricsSource::Sockets, alone)
    }

    fn make(sizes: FlowSizes, source: FlowMetricsSource, lock: LabLock) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let owner = format!("leno-flows-test-{}-{number}", std::process::id());
        let cgroup = join_cgroup();
        make_network(&owner);
        let (accounts, earlier) = Accounts::start(&owner, &cgroup, sizes).unwrap();
        assert_eq!(earlier, EarlierMaps::New);
        let mut lab = Self { owner, accounts: Some(accounts), cgroup, source, _lock: lock };
        lab.enrol_both();
        lab
    }

    /// Ends the process that accounts for flows as a kill would, without removing anything, and starts the next
    /// one.
    pub(crate) fn restart(&mut self, sizes: FlowSizes) -> EarlierMaps {
        drop(self.accounts.take());
        let (accounts, earlier) = Accounts::start(&self.owner, &self.cgroup, sizes).unwrap();
        self.accounts = Some(accounts);
        self.enrol_both();
        earlier
    }

    /// Ends the process that accounts for flows as a kill would.
    pub(crate) fn kill(&mut self) {
        drop(self.accounts.take());
    }

    /// Starts the next such process, which keeps the namespaces that the killed one has enrolled.
    pub(crate) fn resume(&mut self) {
        let (accounts, earlier) =
            Accounts::resume(&self.owner, &self.cgroup, FlowSizes::default()).unwrap();
        assert_eq!(earlier, EarlierMaps::Kept);
        self.accounts = Some(accounts);
    }

    pub(crate) fn enrol_both(&mut self) {
        for (side, addresses) in [("client", CLIENT), ("server", SERVER)] {
            let member = FlowMember {
                namespace: "shop".to_owned(),
                workload: side.to_owned(),
                netns: self.netns(side),
                addresses: addresses.map(|ip| ip.parse().unwrap()).to_vec(),
                proxy_uid: 2102,
                proxies: Vec::new(),
                // An interface is named by its index in one namespace. Here each side's namespace has the outer
                // end of the other side's interface, so only one side can be counted by frames.
                source: if side == "client" { self.source } else { FlowMetricsSource::Sockets },
                budget: None,
                port: Some(self.port_of(side)),
            };
            self.accounts().enrol(&format!("{side}-0"), member).unwrap();
        }
    }

    /// The outer end of one side's interface, which is the interface of the other side.
    fn port_of(&self, side: &str) -> WorkloadInterface {
        let outer = if side == "client" { "server" } else { "client" };
        WorkloadInterface { netns: self.netns(outer), name: "eth0".to_owned() }
    }

    pub(crate) fn accounts(&mut self) -> &mut Accounts {
        self.accounts.as_mut().unwrap()
    }

    pub(crate) fn netns(&self, side: &str) -> PathBuf {
        format!("/run/netns/{}-{side}", self.owner).into()
    }

    /// Calls `run` on a thread in the network namespace of one side.
    pub(crate) fn within<T: Send>(&self, side: &str, run: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(self.netns(side)).unwrap();
        thread::scope(|scope| {
            let inside = || {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                run()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// The filters of one side's interface, as `tc` shows them.
    pub(crate) fn filters(&self, side: &str, direction: &str) -> String {
        let namespace = format!("{}-{side}", self.owner);
        let show = ["-n", &namespace, "filter", "show", "dev", "eth0", direction];
        let output = Command::new("tc").args(show).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Creates a listener of the server on a free port.
    pub(crate) fn listen(&self, ip: &str) -> TcpListener {
        let at = SocketAddr::new(ip.parse().unwrap(), 0);
        self.within("server", || {
            let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
            socket.bind(&at.into()).unwrap();
            socket.listen(4096).unwrap();
            socket.into()
        })
    }

    /// Connects the client to this listener. Returns both ends.
    pub(crate) fn connect(&self, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let client = self.within("client", || TcpStream::connect(to).unwrap());
        (client, listener.accept().unwrap().0)
    }

    pub(crate) fn view(&self) -> FlowView {
        FlowView::open(&self.owner).unwrap().unwrap()
    }

    /// The flows of one side, as soon as `done` returns true for them.
    pub(crate) fn flows(
        &self,
        side: &str,
        done: impl Fn(&[FlowConnection]) -> bool,
    ) -> Vec<FlowConnection> {
        let view = self.view();
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut flows = view.list().unwrap().0;
            flows.retain(|flow| flow.workload == side);
            if done(&flows) {
                return flows;
            }
            assert!(Instant::now() < deadline, "{flows:#?}");
            thread::yield_now();
        }
    }

    /// The metrics, which are collected now, as rows with names and labels.
    pub(crate) fn metrics(&mut self) -> PrometheusRows {
        self.accounts().collect().unwrap();
        PrometheusRows::of(&self.accounts().metrics())
    }

    /// The metrics, as soon as `done` returns true for them.
    pub(crate) fn metrics_when(
        &mut self,
        done: impl Fn(&PrometheusRows) -> bool,
    ) -> PrometheusRows {
        let deadline = Instant::now() + LIMIT;
        loop {
            let rows = self.metrics();
            if done(&rows) {
                return rows;
            }
            assert!(Instant::now() < deadline, "{rows:#?}");
            thread::yield_now();
        }
    }
}

/// Waits until `look` is true.
pub(crate) fn until(what: &str, look: impl Fn() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !look() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::yield_now();
    }
}

fn shared() -> LabLock {
    LabLock::Shared(LAB_LOCK.read().unwrap_or_else(PoisonError::into_inner))
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(accounts) = self.accounts.take()
            && let Err(error) = accounts.end()
        {
            eprintln!("end: {error}");
        }
        for side in ["client", "server"] {
            ip(&["netns", "delete", &format!("{}-{side}", self.owner)]);
        }
        leave_cgroup();
    }
}

/// Rows of Prometheus' text format.
#[derive(Debug)]
pub(crate) struct PrometheusRows(BTreeMap<String, f64>);

impl PrometheusRows {
    pub(crate) fn of(text: &str) -> Self {
        let rows = text.lines().filter(|line| !line.starts_with('#'));
        let row = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        Self(rows.map(row).collect())
    }

    /// The sum of the rows with this name that have all these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let wanted: Vec<String> =
            labels.iter().map(|(name, is)| format!("{name}=\"{is}\"")).collect();
        let rows = self.0.iter().filter(|(row, _)| row.split('{').next() == Some(name));
        let rows = rows.filter(|(row, _)| wanted.iter().all(|label| row.contains(label.as_str())));
        rows.map(|(_, value)| *value as u64).sum()
    }

    /// The sum of a metric over the connections that one side has with the other.
    pub(crate) fn of_side(&self, side: &str, name: &str, more: &[(&str, &str)]) -> u64 {
        let (peer, role) = match side {
            "client" => ("server", "client"),
            _ => ("client", "server"),
        };
        let labels = [("workload", side), ("peer_workload", peer), ("role", role)];
        self.sum(name, &[&labels, more].concat())
    }
}

/// How a connection is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    ClientCloses,
    ServerCloses,
    ClientResets,
    ServerResets,
}

/// Uses one connection: each side sends its number of bytes and reads those of the other. Then one side ends the
/// connection.
pub(crate) fn talk(client: TcpStream, server: TcpStream, sent: [usize; 2], ending: Ending) {
    thread::scope(|scope| {
        for (stream, bytes) in [(&client, sent[0]), (&server, sent[1])] {
            scope.spawn(move || write(stream, bytes).unwrap());
        }
        scope.spawn(|| read(&client, sent[1]).unwrap());
        scope.spawn(|| read(&server, sent[0]).unwrap());
    });
    let (first, second) = match ending {
        Ending::ClientCloses | Ending::ClientResets => (client, server),
        Ending::ServerCloses | Ending::ServerResets => (server, client),
    };
    if matches!(ending, Ending::ClientResets | Ending::ServerResets) {
        SockRef::from(&first).set_linger(Some(Duration::ZERO)).unwrap();
        drop(first);
        assert!((&second).read(&mut [0]).is_err(), "reset");
        return;
    }
    first.shutdown(Shutdown::Write).unwrap();
    assert_eq!((&second).read(&mut [0]).unwrap(), 0, "the end");
    drop(second);
    assert_eq!((&first).read(&mut [0]).unwrap(), 0, "the end");
}

pub(crate) fn write(mut to: &TcpStream, mut bytes: usize) -> io::Result<()> {
    let block = [7; 16 * 1024];
    while bytes > 0 {
        let part = bytes.min(block.len());
        to.write_all(&block[..part])?;
        bytes -= part;
    }
    Ok(())
}

pub(crate) fn read(mut from: &TcpStream, mut bytes: usize) -> io::Result<()> {
    from.set_read_timeout(Some(LIMIT))?;
    let mut block = [0; 16 * 1024];
    while bytes > 0 {
        let part = bytes.min(block.len());
        from.read_exact(&mut block[..part])?;
        bytes -= part;
    }
    Ok(())
}

/// Moves this process into a separate cgroup, which all labs share. Each network namespace is accounted for by one
/// of the labs.
fn join_cgroup() -> PathBuf {
    let mut users = USERS.lock().unwrap();
    let root = cgroup2_root().unwrap();
    let own = root.join(format!("leno-flows-test-{}", std::process::id()));
    if users.0 == 0 {
        let text = fs::read_to_string("/proc/self/cgroup").unwrap();
        let came_from = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap();
        users.1 = Some(root.join(came_from));
        // The cgroup still exists if a child of another test had not ended when the last lab was removed.
        let made = fs::create_dir(&own);
        assert!(made.is_ok() || own.is_dir(), "{}: {made:?}", own.display());
        fs::write(own.join("cgroup.procs"), "0").unwrap();
    }
    users.0 += 1;
    own
}

fn leave_cgroup() {
    let mut users = USERS.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    users.0 -= 1;
    if users.0 > 0 {
        return;
    }
    let Some(came_from) = users.1.take() else { return };
    let own = cgroup2_root().unwrap().join(format!("leno-flows-test-{}", std::process::id()));
    let left = fs::write(came_from.join("cgroup.procs"), "0").and_then(|()| fs::remove_dir(&own));
    if let Err(error) = left {
        eprintln!("{}: {error}", own.display());
    }
}

fn make_network(owner: &str) {
    let (client, server) = (format!("{owner}-client"), format!("{owner}-server"));
    ip(&["netns", "add", &client]);
    ip(&["netns", "add", &server]);
    ip(&[
        "-n", &client, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
        &server,
    ]);
    for (namespace, [ipv4, ipv6]) in [(&client, CLIENT), (&server, SERVER)] {
        ip(&["-n", namespace, "address", "add", &format!("{ipv4}/24"), "dev", "eth0"]);
        ip(&["-n", namespace, "address", "add", &format!("{ipv6}/64"), "dev", "eth0", "nodad"]);
        ip(&["-n", namespace, "link", "set", "lo", "up"]);
        ip(&["-n", namespace, "link", "set", "eth0", "up"]);
    }
}

pub(crate) fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    if !output.status.success() && !thread::panicking() {
        panic!("ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
