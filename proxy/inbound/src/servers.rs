//! The pools of connections to the application, one for each port that clients have dialled.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use crate::application::Server;

/// The largest number of pools that are kept. There is one for each port of the application, or, if the application
/// sees the client's address, for each port and client. Beyond this, a client gets a pool that is not kept.
const MAX_SERVERS: usize = 4096;

/// The original destination and, if the application sees the client's address, the client.
type ServerKey = (SocketAddr, Option<IpAddr>);

/// The pools that have connections, and those for which a client waits.
#[derive(Debug, Default)]
pub(crate) struct Servers(RefCell<HashMap<ServerKey, Rc<Server>>>);

impl Servers {
    /// The pool of `key`. If `elsewhere`, the application may also be found at other addresses of the workload.
    pub(crate) fn get(
        &self,
        key: ServerKey,
        elsewhere: bool,
        limits: &Rc<leno_h2::Limits>,
    ) -> Rc<Server> {
        let mut servers = self.0.borrow_mut();
        if let Some(known) = servers.get(&key)
            && known.is_looked_for() == elsewhere
        {
            return Rc::clone(known);
        }
        if servers.len() >= MAX_SERVERS {
            // A client that dials port after port leaves many pools without a connection.
            servers.retain(|_, server| is_in_use(server));
        }
        if servers.len() >= MAX_SERVERS {
            servers.retain(|_, server| Rc::strong_count(server) > 1);
        }
        let server = Rc::new(Server::new(key.0, elsewhere, limits));
        if servers.len() < MAX_SERVERS {
            // This replaces a pool with another value of `elsewhere`, whose connections must not be reused.
            servers.insert(key, Rc::clone(&server));
        }
        server
    }

    /// Closes idle connections that are too old, and forgets pools that have no connection.
    pub(crate) fn sweep(&self) {
        self.0.borrow_mut().retain(|_, server| {
            server.pool.sweep();
            is_in_use(server)
        });
    }
}

/// Whether a client waits for the pool, or the pool has a connection.
fn is_in_use(server: &Rc<Server>) -> bool {
    Rc::strong_count(server) > 1 || !server.pool.is_empty()
}

#[cfg(test)]
mod tests {
    use leno_transport::Counted;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn key(port: u16) -> ServerKey {
        (SocketAddr::from(([127, 0, 0, 1], port)), None)
    }

    #[tokio::test]
    async fn who_dials_every_port_closes_no_idle_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (servers, limits) = (Servers::default(), Rc::default());
        let used = (address, None);
        let stream = TcpStream::connect(address).await.unwrap();
        let conn = leno_http::Conn::new(Counted::new(stream));
        servers.get(used, false, &limits).pool.put(conn, None);
        for port in 1..=u16::MAX {
            servers.get(key(port), false, &limits);
            assert!(servers.0.borrow().len() <= MAX_SERVERS);
        }
        assert!(servers.get(used, false, &limits).pool.take().is_some(), "it is idle as before");
    }

    #[tokio::test]
    async fn no_more_pools_are_kept_than_allowed() {
        let (servers, limits) = (Servers::default(), Rc::default());
        let held: Vec<_> = (1..=5000).map(|port| servers.get(key(port), false, &limits)).collect();
        assert_eq!((held.len(), servers.0.borrow().len()), (5000, MAX_SERVERS));
        drop(held);
        servers.sweep();
        assert!(servers.0.borrow().is_empty());
    }
}
