//! Forwards ports of this machine to instances: `leno port-forward`, and `published` ports of workloads.
//!
//! Like `kubectl port-forward`, it connects to loopback inside the instance's namespace. A forwarded connection
//! therefore bypasses the proxy and works even if the proxy requires mTLS. If the application does not listen on
//! loopback, it connects to the instance's address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;

use crate::error::{Attempt, Error, Result};
use crate::netns::Netns;

/// Connections that one port forwards at a time; further ones wait in the kernel's queue. A browser opens six.
const MAX_CONNECTIONS: usize = 1024;
/// How long connecting inside a namespace may take. Everything there is on this machine.
const CONNECT_BOUND: Duration = Duration::from_secs(5);
/// The pause after a failed `accept`. Without it, `accept` would fail again and again while the process has no
/// free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where connections are forwarded to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardTarget {
    /// The instance's name, for messages.
    pub instance: String,
    /// Its network namespace.
    pub netns: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// The application's port.
    pub port: u16,
}

/// Listens on an address of this machine.
///
/// # Errors
/// When the address is in use.
pub async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.attempt(|| format!("cannot listen on {address}"))
}

/// Forwards connections until the future is dropped. `next` returns the target of each connection, and `report`
/// gets a line for each that fails.
pub async fn serve(
    listener: TcpListener,
    next: impl Fn() -> Result<ForwardTarget>,
    report: impl Fn(String) + Clone + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => {
                report(format!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let target = match next() {
            Ok(target) => target,
            Err(error) => {
                report(error.chain());
                continue;
            }
        };
        let report = report.clone();
        // The task ends when either side closes the connection, or with the runtime.
        tokio::spawn(async move {
            if let Err(error) = carry(client, &target).await {
                report(error.chain());
            }
            drop(place);
        });
    }
}

async fn carry(mut client: TcpStream, target: &ForwardTarget) -> Result<()> {
    let mut server = connect(target).await?;
    // An error in the middle is not reported: the client and the application both see that the connection has
    // ended.
    let _ = copy_bidirectional(&mut client, &mut server).await;
    Ok(())
}

/// Connects inside the namespace: first to loopback, then to the instance's addresses.
pub(crate) async fn connect(target: &ForwardTarget) -> Result<TcpStream> {
    let netns = Netns::open(&target.netns)?;
    let loopback = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    let mut reason = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in loopback.into_iter().chain(target.addresses.iter().copied()) {
        let address = SocketAddr::new(address, target.port);
        let connecting = open(&netns, address)?.connect(address);
        match tokio::time::timeout(CONNECT_BOUND, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => reason = error,
            Err(_) => reason = io::ErrorKind::TimedOut.into(),
        }
    }
    let what = format!("cannot reach port {} of {}", target.port, target.instance);
    Err(Error::Os { what, source: reason })
}

fn open(netns: &Netns, address: SocketAddr) -> Result<TcpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let opened = netns.within(|| {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        socket(family, SockType::Stream, flags, SockProtocol::Tcp)
            .attempt(|| format!("cannot create a socket in {}", netns.name()))
    });
    Ok(TcpSocket::from_std_stream(opened?.into()))
}
