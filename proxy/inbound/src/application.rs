//! The application of this workload, on one port.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

use leno_pool::{CONN_IDLE, Lent, Pool, PoolError};
use leno_transport::{
    CONNECT_TIMEOUT, ClientAddress, ConnectError, Counted, Passage, connect, own_addresses,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// The application as one client reaches it.
#[derive(Debug)]
pub(crate) struct Application {
    path: Path,
    pub(crate) server: Rc<Server>,
}

/// How the application is connected to.
#[derive(Clone, Debug)]
enum Path {
    /// It is configured where it listens: no agent has prepared the network namespace, and it sees the kernel's choice of
    /// an address.
    Configured,
    /// It is shown this client.
    For(SocketAddr, Rc<ClientAddress>),
    /// It is a service, which the outbound side of this proxy connects to.
    Service(Rc<Passage>),
}

/// Where the application listens for one original destination, with idle connections to it that show
/// the application the same client.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address the client dialled.
    dialled: SocketAddr,
    /// Whether it may be looked for on loopback too, on the same port.
    on_loopback: bool,
    /// The address that answered last.
    answers: Cell<SocketAddr>,
    /// It has sent HTTP/2's SETTINGS before its client had said anything.
    http2_first: Cell<bool>,
    /// The requests of HTTP/2 clients share connections.
    pub(crate) pool: Pool<Counted, (), ConnectError>,
}

/// Why the application has no stream for a request. It has seen nothing of it.
#[derive(Debug)]
pub(crate) enum NoStream {
    /// It cannot be connected to.
    Unreachable(Rc<ConnectError>),
    /// It allows no more than are in use.
    Full,
    /// The client's deadline has passed.
    Deadline,
}

impl Server {
    pub(crate) fn new(
        dialled: SocketAddr,
        on_loopback: bool,
        limits: &Rc<leno_h2::Limits>,
    ) -> Self {
        Self {
            dialled,
            on_loopback,
            answers: Cell::new(dialled),
            http2_first: Cell::new(false),
            pool: Pool::new(Rc::clone(limits), CONN_IDLE),
        }
    }

    /// Whether it may be looked for on loopback.
    pub(crate) fn on_loopback(&self) -> bool {
        self.on_loopback
    }
}

impl Application {
    pub(crate) fn new(client: Option<(SocketAddr, Rc<ClientAddress>)>, server: Rc<Server>) -> Self {
        let path = client.map_or(Path::Configured, |(client, shown)| Path::For(client, shown));
        Self { path, server }
    }

    /// The address that was dialled as one of a service that this proxy is the waypoint of.
    pub(crate) fn service(passage: Rc<Passage>, server: Rc<Server>) -> Self {
        Self { path: Path::Service(passage), server }
    }

    /// The address the client dialled, or the one that is configured.
    pub(crate) fn dialled(&self) -> SocketAddr {
        self.server.dialled
    }

    /// Whether it is known to send HTTP/2's SETTINGS first.
    pub(crate) fn speaks_http2_first(&self) -> bool {
        self.server.http2_first.get()
    }

    /// Remembers that it does, so that silent clients cost it no connection any more.
    pub(crate) fn note_http2_first(&self) {
        self.server.http2_first.set(true);
    }

    /// A connection with room for a stream, shared with other requests, by HTTP/2 with prior
    /// knowledge.
    pub(crate) async fn stream(&self, deadline: Option<Instant>) -> Result<Lent<()>, NoStream> {
        let connect = || {
            let (path, server) = (self.path.clone(), Rc::clone(&self.server));
            let application = Self { path, server };
            async move { application.connect().await.map(|stream| (stream, ())) }
        };
        let lent = self.server.pool.stream(connect);
        let lent = match deadline {
            None => lent.await,
            Some(deadline) => timeout_at(deadline, lent).await.map_err(|_| NoStream::Deadline)?,
        };
        lent.map_err(|error| match error {
            PoolError::Connect(error) => NoStream::Unreachable(error),
            PoolError::Full | PoolError::Late => NoStream::Full,
        })
    }

    /// Connects where it answered last, then on the address the client dialled, then, where it may
    /// be there, on loopback of either family, for an application that is bound to that only.
    pub(crate) async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let server = &*self.server;
        if let Path::Service(passage) = &self.path {
            return passage.connect(server.dialled).await;
        }
        let last = server.answers.get();
        let refused = match self.connect_to(last).await {
            Err(ConnectError::Refused(address)) => ConnectError::Refused(address),
            other => return other,
        };
        for candidate in own_addresses(server.dialled) {
            if candidate == last || candidate != server.dialled && !server.on_loopback {
                continue;
            }
            if let Ok(stream) = self.connect_to(candidate).await {
                server.answers.set(candidate);
                return Ok(stream);
            }
        }
        Err(refused)
    }

    async fn connect_to(&self, address: SocketAddr) -> Result<TcpStream, ConnectError> {
        match &self.path {
            Path::For(client, shown) => {
                shown.connect(address, (*client, self.server.dialled.ip())).await
            }
            Path::Configured => connect(address, CONNECT_TIMEOUT).await,
            Path::Service(passage) => passage.connect(address).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn application(dialled: SocketAddr, on_loopback: bool) -> Application {
        Application::new(None, Rc::new(Server::new(dialled, on_loopback, &Rc::default())))
    }

    #[tokio::test]
    async fn an_application_on_loopback_only_is_found_and_remembered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nothing listens on this address of loopback, as on the workload's own.
        let application = application(SocketAddr::from(([127, 0, 0, 77], port)), true);
        application.connect().await.unwrap();
        assert_eq!(application.server.answers.get(), listener.local_addr().unwrap());
        application.connect().await.unwrap();
    }

    #[tokio::test]
    async fn loopback_is_out_of_reach_on_an_undeclared_port() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let dialled = SocketAddr::from(([127, 0, 0, 77], port));
        let refused = application(dialled, false).connect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::Refused(address) if address == dialled));
    }

    #[tokio::test]
    async fn an_application_that_does_not_listen_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let refused = application(address, true).connect().await.unwrap_err();
        assert!(matches!(refused, ConnectError::Refused(_)), "{refused}");
    }
}
