//! Asking a proxy's admin server, from the namespace in which it can be reached.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use leno_observe::admin::{ANSWER_BOUND, Reply, ask};
use leno_types::ports;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::net::TcpSocket;

use crate::error::{Attempt, Result};
use crate::netns::Netns;

/// Which admin server, and from where.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'a> {
    netns: &'a Netns,
    address: SocketAddr,
}

impl<'a> Admin<'a> {
    /// The proxy of the namespace itself, over loopback.
    #[must_use]
    pub fn within(netns: &'a Netns) -> Self {
        Self::at(netns, Ipv4Addr::LOCALHOST.into())
    }

    /// The proxy of the instance at `address`, reached from `netns`.
    #[must_use]
    pub fn at(netns: &'a Netns, address: IpAddr) -> Self {
        Self { netns, address: SocketAddr::new(address, ports::ADMIN) }
    }

    /// Whether the proxy serves.
    pub async fn ready(&self) -> bool {
        matches!(self.get("/ready").await, Ok(Reply { status: 200, .. }))
    }

    /// Asks the proxy to finish what it has and take nothing new.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn drain(&self) -> Result<Reply> {
        self.ask("POST", "/drain").await
    }

    /// Fetches a page.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer in time.
    pub async fn get(&self, path: &str) -> Result<Reply> {
        self.ask("GET", path).await
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Reply> {
        let Self { netns, address } = self;
        let what = || format!("cannot ask http://{address}{path} from {}", netns.name());
        let socket = netns.within(|| {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::Inet,
                SocketAddr::V6(_) => AddressFamily::Inet6,
            };
            socket(family, SockType::Stream, flags, SockProtocol::Tcp).attempt(what)
        })?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let asked = async { ask(socket.connect(*address).await?, method, path).await };
        let answer = tokio::time::timeout(ANSWER_BOUND, asked).await;
        answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).attempt(what)
    }
}
