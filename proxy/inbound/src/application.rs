//! The application of this workload, on one port.

use std::cell::Cell;
use std::iter::once_with;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use leno_pool::{CONN_IDLE, Lent, Pool, PoolError};
use leno_transport::{
    CONNECT_TIMEOUT, ClientAddress, ConnectError, Counted, Passage, connect, interface_addresses,
    own_addresses,
};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

/// The application at one dialled address, as one client reaches it. The application usually sees the address of that
/// client, so connections to it are not shared with other clients.
#[derive(Debug)]
pub(crate) struct Application {
    path: Path,
    pub(crate) server: Rc<Server>,
}

/// How the proxy connects to the application.
#[derive(Clone, Debug)]
enum Path {
    /// The address of the application is configured. No agent has prepared the network namespace, so the application
    /// sees the client address that the kernel chooses.
    Configured,
    /// The application sees the address of this client, or whatever address [`ClientAddress`] can show it instead.
    For(SocketAddr, Rc<ClientAddress>),
    /// The application is a service, to which the outbound side of this proxy connects.
    Service(Rc<Passage>),
}

/// How the application is reached for one original destination: which address answers, and the connections in the
/// pool. On all of them the application sees the same client.
#[derive(Debug)]
pub(crate) struct Server {
    /// The address that the client dialled.
    dialled: SocketAddr,
    /// Whether the application may also be found at other addresses of the namespace, on the same port: on loopback,
    /// and on the workload's addresses of the other family.
    elsewhere: bool,
    /// The address of the last successful connection.
    answers: Cell<SocketAddr>,
    /// Whether the application has sent HTTP/2 SETTINGS before its client had sent anything.
    http2_first: Cell<bool>,
    /// The connections to the application. Requests of HTTP/2 clients share them; a request of an HTTP/1 client has
    /// one for itself.
    pub(crate) pool: Pool<Counted, (), ConnectError>,
}

/// Why the application has no stream for a request. The application has received nothing of the request.
#[derive(Debug)]
pub(crate) enum NoStream {
    /// The application cannot be connected to.
    Unreachable(Rc<ConnectError>),
    /// All streams that the application allows are in use.
    Full,
    /// The client's deadline has passed.
    Deadline,
}

impl Server {
    pub(crate) fn new(dialled: SocketAddr, elsewhere: bool, limits: &Rc<leno_h2::Limits>) -> Self {
        Self {
            dialled,
            elsewhere,
            answers: Cell::new(dialled),
            http2_first: Cell::new(false),
            pool: Pool::new(Rc::clone(limits), CONN_IDLE),
        }
    }

    /// Whether the application may be found at other addresses than the one that the client dialled.
    pub(crate) fn is_looked_for(&self) -> bool {
        self.elsewhere
    }
}

impl Application {
    pub(crate) fn new(client: Option<(SocketAddr, Rc<ClientAddress>)>, server: Rc<Server>) -> Self {
        let path = client.map_or(Path::Configured, |(client, shown)| Path::For(client, shown));
        Self { path, server }
    }

    /// A service of which this proxy is the waypoint, in place of an application.
    pub(crate) fn service(passage: Rc<Passage>, server: Rc<Server>) -> Self {
        Self { path: Path::Service(passage), server }
    }

    /// The address that the client dialled, or the address that is configured.
    pub(crate) fn dialled(&self) -> SocketAddr {
        self.server.dialled
    }

    /// Whether the application is known to send HTTP/2 SETTINGS first.
    pub(crate) fn speaks_http2_first(&self) -> bool {
        self.server.http2_first.get()
    }

    /// Records that the application sends HTTP/2 SETTINGS first, so that no more connections to it are opened for
    /// silent clients.
    pub(crate) fn note_http2_first(&self) {
        self.server.http2_first.set(true);
    }

    /// A shared HTTP/2 connection that has room for another stream. HTTP/2 is used with prior knowledge.
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

    /// Connects to the address of the last successful connection, which at first is the address that the client
    /// dialled. If that is refused and `elsewhere` is set, tries the dialled address, loopback of both families, and
    /// the workload's addresses of the other family, because the application may listen on only one of these.
    pub(crate) async fn connect(&self) -> Result<TcpStream, ConnectError> {
        let server = &*self.server;
        if let Path::Service(passage) = &self.path {
            return passage.connect(server.dialled).await;
        }
        let last = server.answers.get();
        let refused = match self.connect_to(last).await {
            Err(ConnectError::Refused(address)) if server.elsewhere => {
                ConnectError::Refused(address)
            }
            other => return other,
        };
        let others = || {
            let own = interface_addresses().inspect_err(|error| {
                tracing::debug!(%error, "the application is not looked for in the other address family");
            });
            of_other_family(own.unwrap_or_default(), server.dialled)
        };
        // The addresses of the interfaces are read only if nothing else has answered.
        let others = once_with(others).flatten();
        for candidate in own_addresses(server.dialled).into_iter().chain(others) {
            if candidate == last {
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

/// Those addresses of the workload that are of the other family than `dialled`, with the port of `dialled`. Leaves
/// out addresses of loopback and link-local IPv6 addresses.
fn of_other_family(own: Vec<IpAddr>, dialled: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    let is_other = move |ip: &IpAddr| {
        // A link-local address cannot be dialled without naming its interface.
        let of_one_link = matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local());
        ip.is_ipv4() != dialled.is_ipv4() && !ip.is_loopback() && !of_one_link
    };
    own.into_iter().filter(is_other).map(move |ip| SocketAddr::new(ip, dialled.port()))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn application(dialled: SocketAddr, elsewhere: bool) -> Application {
        Application::new(None, Rc::new(Server::new(dialled, elsewhere, &Rc::default())))
    }

    #[tokio::test]
    async fn an_application_on_loopback_only_is_found_and_remembered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // Nothing listens on this address, which stands for the workload's own.
        let application = application(SocketAddr::from(([127, 0, 0, 77], port)), true);
        application.connect().await.unwrap();
        assert_eq!(application.server.answers.get(), listener.local_addr().unwrap());
        application.connect().await.unwrap();
    }

    #[test]
    fn an_application_is_looked_for_on_addresses_of_the_family_that_was_not_dialled() {
        let own = ["127.0.0.1", "10.0.0.7", "::1", "fd00::7", "fe80::1"];
        let own = own.map(|ip| ip.parse().unwrap());
        let others = |dialled: &str| {
            let found = of_other_family(own.to_vec(), dialled.parse().unwrap());
            found.map(|at| at.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(others("[fd00::7]:8080"), ["10.0.0.7:8080"]);
        assert_eq!(others("10.0.0.7:8080"), ["[fd00::7]:8080"]);
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
