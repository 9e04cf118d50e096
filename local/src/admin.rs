//! A client for a proxy's admin server, which may be in another network namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leno_observe::admin::{ANSWER_BOUND, AdminReply, send_with};
use leno_types::ports;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::net::TcpSocket;

use crate::error::{Attempt, Result};
use crate::netns::Netns;

/// An admin server, and the namespace from which it is reached.
#[derive(Clone, Copy, Debug)]
pub struct Admin<'a> {
    /// The namespace to connect from; `None` for the one of this process.
    netns: Option<&'a Netns>,
    address: SocketAddr,
    bound: Duration,
}

impl<'a> Admin<'a> {
    /// The admin server of the proxy in namespace `netns`, reached over loopback.
    #[must_use]
    pub fn within(netns: &'a Netns) -> Self {
        Self::at(netns, Ipv4Addr::LOCALHOST.into())
    }

    /// The admin server of the proxy of the instance at `address`, reached from `netns`.
    #[must_use]
    pub fn at(netns: &'a Netns, address: IpAddr) -> Self {
        Self { netns: Some(netns), ..Self::here(address) }
    }

    /// The admin server of the proxy of the instance at `address`, reached from the namespace of this process.
    #[must_use]
    pub fn here(address: IpAddr) -> Self {
        Self { netns: None, address: SocketAddr::new(address, ports::ADMIN), bound: ANSWER_BOUND }
    }

    /// The server of flow metrics at the gateway's `address`, reached from the namespace of this process.
    #[must_use]
    pub fn accounts(address: IpAddr) -> Self {
        let address = SocketAddr::new(address, ports::AGENT_ADMIN);
        Self { address, ..Self::here(address.ip()) }
    }

    /// The same server, with `bound` as the longest time that a response may take.
    #[must_use]
    pub fn bounded(self, bound: Duration) -> Self {
        Self { bound, ..self }
    }

    /// Whether the server reports that it is ready.
    pub async fn ready(&self) -> bool {
        matches!(self.get("/ready").await, Ok(AdminReply { status: 200, .. }))
    }

    /// Fetches a page.
    ///
    /// # Errors
    /// When the server cannot be reached or does not answer in time.
    pub async fn get(&self, path: &str) -> Result<AdminReply> {
        self.send(None, ("GET", path)).await
    }

    /// Sends a request without a body, with one header, or none.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn send(
        &self,
        header: Option<(&str, &str)>,
        (method, path): (&str, &str),
    ) -> Result<AdminReply> {
        let Self { netns, address, bound } = self;
        let from = netns.map_or_else(String::new, |netns| format!(" from {}", netns.name()));
        let what = || format!("cannot query http://{address}{path}{from}");
        let make = || {
            let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
            let family = match address {
                SocketAddr::V4(_) => AddressFamily::Inet,
                SocketAddr::V6(_) => AddressFamily::Inet6,
            };
            socket(family, SockType::Stream, flags, SockProtocol::Tcp).attempt(what)
        };
        let socket = netns.map_or_else(make, |netns| netns.within(make))?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let asked = async {
            let stream = socket.connect(*address).await?;
            send_with(stream, header, (method, path), "").await
        };
        let answer = tokio::time::timeout(*bound, asked).await;
        answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).attempt(what)
    }
}
