//! Connections between two planes: TCP over loopback, because mTLS needs the addresses of its sockets. For planes of
//! one process, also makes the inbound plane a guest on the thread of the outbound plane.

use std::cell::RefCell;
use std::future::pending;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream as StdStream};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::{LazyLock, mpsc};
use std::thread;

use leno_handover::Channel;
use leno_transport::{Domain, HandedNamespace, LentNamespace};
use nix::sys::socket::{Shutdown, SockaddrIn, getsockname, shutdown};
use socket2::{Domain as Family, Socket, Type};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, LocalOptions};

/// The address of a server in another process than its client.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The address of a server in the same process.
const IN_PROCESS: Ipv4Addr = Ipv4Addr::new(127, 66, 0, 1);

/// The connections between the planes.
#[derive(Default)]
pub(crate) struct Network {
    /// The sockets of clients, each with its address. The planes may have closed them.
    clients: RefCell<Vec<(RawFd, SocketAddr)>>,
}

impl Network {
    /// Opens a connection; returns the ends of the client and of the server. All sent bytes are at the other end at
    /// once, since the kernel delivers over loopback while it sends.
    pub(crate) fn connect(&self, in_process: bool) -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((if in_process { IN_PROCESS } else { ELSEWHERE }, 0))?;
        let client = StdStream::connect(listener.local_addr()?)?;
        let (server, _) = listener.accept()?;
        self.clients.borrow_mut().push((client.as_raw_fd(), client.local_addr()?));
        Ok((prepared(client)?, prepared(server)?))
    }

    /// Ends all connections, at both ends.
    pub(crate) fn cut(&self) {
        for (socket, address) in self.clients.take() {
            // The descriptor may have been closed, and its number may belong to another socket by now.
            let now = getsockname::<SockaddrIn>(socket);
            if now.is_ok_and(|now| SocketAddr::from((now.ip(), now.port())) == address) {
                // Fails only if the other end has closed the connection.
                let _gone = shutdown(socket, Shutdown::Both);
            }
        }
    }
}

fn prepared(socket: StdStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket)
}

/// The tasks of a new guest (an inbound plane that runs on another worker's thread) on the calling thread.
pub(crate) fn guest() -> Rc<Domain> {
    static LENT: LazyLock<LentNamespace> = LazyLock::new(|| {
        let (lends, lent) = mpsc::channel();
        thread::spawn(move || serve_elsewhere(&lends).expect("descriptors are free"));
        lent.recv().expect("the thread lends its namespace")
    });
    Domain::new(LENT.clone())
}

/// Runs the thread of the server's own workload, which ends with the process. It makes [`IN_PROCESS`] an address of a
/// workload in this process.
fn serve_elsewhere(lends: &mpsc::Sender<LentNamespace>) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(async {
        let (_broker, channel) = Channel::pair()?;
        let probe = Socket::new(Family::IPV4, Type::STREAM, None)?;
        // As an IPv4-mapped address. An IPv4 loopback address would not be registered, because every namespace has it.
        let addresses = vec![IN_PROCESS.to_ipv6_mapped().into()];
        let diagnosis = (leno_sockets::diagnosis()?.into(), None);
        let (handed, _ended) =
            HandedNamespace::new(channel, (addresses, false), diagnosis, probe.into())?;
        handed.enter()?;
        let lent = leno_transport::lend().expect("it was entered");
        lends.send(lent).expect("the caller waits for it");
        pending().await
    })
}
