//! The real process of a node proxy. The test acts as its supervisor, which orders it to serve pods, and as the broker
//! of each pod: the process inside the pod's namespace that provides its sockets.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use leno_handover::{BrokerOffer, Channel, KubeletProbes, Member, ProxyOrder, SocketRole};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

/// A node proxy's process, which at first serves no pods. Dropping this kills it.
pub(super) struct NodeProxy {
    child: Child,
    orders: Channel,
    /// How many pods the process was ordered to serve. Each order has the next number.
    number: Cell<u64>,
    token: PathBuf,
    log: PathBuf,
}

/// A pod that the process serves. Its sockets are in the network namespace of this test.
pub(super) struct Served {
    admin: SocketAddr,
    /// The broker's end of the channel to the process.
    _broker: Channel,
}

impl NodeProxy {
    /// Starts a process whose files are in `folder`.
    pub(super) fn start(folder: &Path, control: &str, roots: &str, token: &str) -> Self {
        fs::create_dir(folder).unwrap();
        let file = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            folder.join(name)
        };
        let (roots, token) = (file("roots.pem", roots), file("token", token));
        let log = folder.join("log");
        let path =
            PathBuf::from(env!("CARGO_BIN_EXE_leno-controller")).with_file_name("leno-proxy");
        let (orders, far) = Channel::pair().unwrap();
        let child = Command::new(&path)
            .args(["--node", "--log", "info", "--control", control])
            .args([Path::new("--roots"), &roots])
            .args([Path::new("--token"), folder])
            .env("NO_COLOR", "1")
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stderr(File::create(&log).unwrap())
            .spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{}: {error}: cargo build -p leno-proxy", path.display())
        });
        Self { child, orders, number: Cell::new(0), token, log }
    }

    /// Orders the process to serve a pod of the namespace `shop`.
    pub(super) fn serve(&self, (pod, uid): (&str, &str)) -> Served {
        let listener = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let [outbound, inbound, admin] = [listener(), listener(), listener()];
        let address = admin.local_addr().unwrap();
        for listener in [&outbound, &inbound, &admin] {
            listener.set_nonblocking(true).unwrap();
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let diagnosis = SockProtocol::NetlinkSockDiag;
        let diagnosis =
            socket(AddressFamily::Netlink, SockType::Datagram, flags, diagnosis).unwrap();
        let probe =
            socket(AddressFamily::Inet, SockType::Stream, flags, SockProtocol::Tcp).unwrap();

        let (broker, far) = Channel::pair().unwrap();
        let roles = [
            SocketRole::Outbound,
            SocketRole::Inbound,
            SocketRole::Admin,
            SocketRole::Diagnosis,
            SocketRole::Probe,
        ];
        let offer = BrokerOffer::Namespace {
            roles: roles.to_vec(),
            addresses: vec![Ipv4Addr::LOCALHOST.into()],
            makes_udp: true,
        };
        let listeners = [outbound.as_fd(), inbound.as_fd(), admin.as_fd()];
        let all = [&listeners[..], &[diagnosis.as_fd(), probe.as_fd()]].concat();
        broker.send(&offer, &all).unwrap();
        let member = Member {
            namespace: "shop".to_owned(),
            name: pod.to_owned(),
            workload: None,
            token: self.token.clone(),
            pod_uid: Some(uid.to_owned()),
            kubelet: KubeletProbes::default(),
            datagrams: false,
        };
        self.number.set(self.number.get() + 1);
        let order =
            ProxyOrder::Join { number: self.number.get(), succeeds: false, member, reports: false };
        self.orders.send(&order, &[far.as_fd()]).unwrap();
        Served { admin: address, _broker: broker }
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }
}

impl Served {
    /// A page of the pod's proxy, with its status. The process serves the page once it has carried out the order.
    pub(super) fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for NodeProxy {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}
