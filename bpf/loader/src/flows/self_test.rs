//! Tests whether the flow programs of this build count correctly on this kernel: with one connection, in a network
//! namespace and a control group of its own.
#![expect(unsafe_code, reason = "an interface is brought up by ioctl(2)")]

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use leno_bpf_abi::flow::{FIRST_WORKLOAD, FlowRole, FlowSums, FlowWorkload, PEER_SELF};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{FlowSizes, Flows};
use crate::PinRoot;
use crate::error::Error;

/// What each side of the connection sends.
const BYTES: usize = 1000;
/// Longest wait for the kernel to end the connection; it takes microseconds.
const LIMIT: Duration = Duration::from_secs(5);
/// The mount point of a tmpfs for the file systems of the test, in a mount namespace of its own.
const PLACE: &str = "/dev";

/// Lets the programs account for one connection, and compares the result. This process is in another control group
/// meanwhile, so call it only if nothing else runs in the process.
///
/// # Errors
/// If the kernel refuses something, or if the programs have counted something unexpected.
pub fn self_test() -> Result<(), Error> {
    let inside = || {
        let groups = own_namespaces().map_err(Error::io("make namespaces for the self-test"))?;
        let moved = Moved::into_new(&groups).map_err(Error::io("enter a control group"))?;
        let root = PinRoot::at(&Path::new(PLACE).join("bpf"))?;
        let sizes = FlowSizes::new(64, 64)?;
        let (flows, _) = Flows::attach(&root, "self-test", &moved.group, sizes)?;
        let compared = compare(&flows);
        flows.detach()?;
        compared
    };
    thread::scope(|scope| scope.spawn(inside).join().expect("the self-test does not panic"))
}

/// Moves this thread into new mount and network namespaces, and mounts a cgroup2 and a bpffs. Returns the path of the
/// cgroup2.
pub(super) fn own_namespaces() -> io::Result<PathBuf> {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET)?;
    let (none, place) = (None::<&str>, Path::new(PLACE));
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), none)?;
    for kind in ["cgroup2", "bpf"] {
        fs::create_dir(place.join(kind))?;
        mount(Some(kind), &place.join(kind), Some(kind), MsFlags::empty(), none)?;
    }
    bring_up_loopback()?;
    Ok(place.join("cgroup2"))
}

fn bring_up_loopback() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: a request of zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(*b"lo") {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the kernel reads the request, which lives through the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs a test in new namespaces, with a control group and a directory for pins; does nothing without root.
#[cfg(test)]
pub(super) fn apart(name: &str, test: impl FnOnce(&Path, &PinRoot) + Send) {
    if !crate::tests::has_root() {
        return;
    }
    let run = || {
        let group = own_namespaces().unwrap().join(format!("leno-{name}-{}", std::process::id()));
        fs::create_dir(&group).unwrap();
        test(&group, &PinRoot::at(&Path::new(PLACE).join("bpf")).unwrap());
        fs::remove_dir(&group).unwrap();
    };
    thread::scope(|scope| scope.spawn(run).join().unwrap());
}

/// This process in a control group of its own; dropping this moves the process back.
struct Moved {
    group: PathBuf,
    came_from: PathBuf,
}

impl Moved {
    fn into_new(root: &Path) -> io::Result<Self> {
        let text = fs::read_to_string("/proc/self/cgroup")?;
        let own = text.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let group = root.join(format!("leno-self-test-{}", std::process::id()));
        fs::create_dir(&group)?;
        let moved = Self { group, came_from: root.join(own) };
        fs::write(moved.group.join("cgroup.procs"), "0")?;
        Ok(moved)
    }
}

impl Drop for Moved {
    fn drop(&mut self) {
        let left = fs::write(self.came_from.join("cgroup.procs"), "0");
        if let Err(error) = left.and_then(|()| fs::remove_dir(&self.group)) {
            tracing::warn!(group = %self.group.display(), %error, "cannot leave a control group");
        }
    }
}

fn compare(flows: &Flows) -> Result<(), Error> {
    let netns = Path::new("/proc/thread-self/ns/net");
    flows.enrol(netns, FlowWorkload { id: FIRST_WORKLOAD, proxy_uid: u32::MAX })?;
    talk().map_err(Error::io("make a connection for the self-test"))?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let counted = counted(flows)?;
        if counted == [expected(), expected()] {
            return Ok(());
        }
        if Instant::now() > deadline {
            let text =
                format!("the programs counted {counted:?}, not {:?} for each end", expected());
            return Err(Error::io("trust the flow programs of this build")(io::Error::other(text)));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// The expected counts for each end: connections opened, established and ended, bytes sent and received.
fn expected() -> [u64; 5] {
    [1, 1, 1, BYTES as u64, BYTES as u64]
}

/// The counts of the client's end and of the server's end.
fn counted(flows: &Flows) -> Result<[[u64; 5]; 2], Error> {
    let mut all = [[0; 5]; 2];
    for (pair, sums) in flows.pairs()? {
        if (pair.workload, pair.peer) != (FIRST_WORKLOAD, PEER_SELF) {
            continue;
        }
        let FlowSums { opened, established, bytes_sent, bytes_received, ended, .. } = sums;
        let ended = ended.iter().sum();
        let end = usize::from(pair.role != FlowRole::Client as u8);
        all[end] = [opened, established, ended, bytes_sent, bytes_received];
    }
    Ok(all)
}

/// Makes one connection over loopback, sends in both directions, and closes it in order.
fn talk() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    let mut bytes = [7; BYTES];
    client.write_all(&bytes)?;
    server.read_exact(&mut bytes)?;
    server.write_all(&bytes)?;
    client.read_exact(&mut bytes)?;
    client.shutdown(std::net::Shutdown::Write)?;
    server.read(&mut bytes).map(drop)?;
    drop(server);
    client.read(&mut bytes).map(drop)
}
