//! Opens connections to other programs, within a time limit.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

use crate::sockets;
use leno_sockets::PROBING;

/// How long it may take to open a connection. If a SYN is lost, it is sent again after one second. If it is lost a
/// second time, it is better to try another endpoint.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why no connection was made. No byte of a request has been sent, so another endpoint can be tried.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No socket listens on the address, or a firewall resets connections to it.
    #[error("connection to {0} refused")]
    Refused(SocketAddr),
    /// There was no answer in time.
    #[error("no answer from {0} within {1:?}")]
    Timeout(SocketAddr, Duration),
    /// There is no route, or a router reports that there is none.
    #[error("{0} cannot be reached")]
    Unreachable(SocketAddr, #[source] io::Error),
    /// Another error, for example that there is no free descriptor.
    #[error("connecting to {0}")]
    Other(SocketAddr, #[source] io::Error),
}

impl ConnectError {
    /// The label for metrics and logs.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "refused",
            Self::Timeout(..) => "timeout",
            Self::Unreachable(..) => "unreachable",
            Self::Other(..) => "other",
        }
    }

    pub(crate) fn of(address: SocketAddr, timeout: Duration, error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => {
                Self::Refused(address)
            }
            io::ErrorKind::TimedOut => Self::Timeout(address, timeout),
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
                Self::Unreachable(address, error)
            }
            _ => Self::Other(address, error),
        }
    }
}

/// Connects with `TCP_NODELAY` and keep-alive probes, within `timeout`.
///
/// # Errors
/// [`ConnectError`]: nothing has reached an application.
pub async fn connect(address: SocketAddr, timeout: Duration) -> Result<TcpStream, ConnectError> {
    let connecting = async { sockets::tcp(address.is_ipv6()).await?.connect(address).await };
    within(address, timeout, connecting).await
}

/// Like [`connect`], but waits for `connecting`, any future that opens a connection to `address`.
pub(crate) async fn within(
    address: SocketAddr,
    timeout: Duration,
    connecting: impl Future<Output = io::Result<TcpStream>>,
) -> Result<TcpStream, ConnectError> {
    #[cfg(feature = "scripted")]
    if let Some(dial) = crate::scripted::dial() {
        return crate::scripted::connect(dial, address, timeout).await;
    }
    match tokio::time::timeout(timeout, connecting).await {
        Ok(Ok(tcp)) => match prepare(&tcp, address) {
            Ok(()) => Ok(tcp),
            Err(error) => Err(ConnectError::Other(address, error)),
        },
        Ok(Err(error)) => Err(ConnectError::of(address, timeout, error)),
        Err(_) => Err(ConnectError::Timeout(address, timeout)),
    }
}

/// Sets the options of a connection. To a loopback address no keep-alive probes are needed: the kernel itself closes
/// the other end when its process ends.
fn prepare(tcp: &TcpStream, address: SocketAddr) -> io::Result<()> {
    tcp.set_nodelay(true)?;
    if address.ip().is_loopback() {
        return Ok(());
    }
    SockRef::from(tcp).set_tcp_keepalive(&PROBING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Listener;

    #[tokio::test]
    async fn a_listener_is_reached_and_a_missing_one_is_reported_as_refused() {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        let tcp = connect(address, CONNECT_TIMEOUT).await.unwrap();
        assert!(tcp.nodelay().unwrap());
        drop((tcp, listener));
        let error = connect(address, CONNECT_TIMEOUT).await.unwrap_err();
        assert_eq!(error.reason(), "refused", "{error}");
    }

    #[test]
    fn kernel_errors_have_a_reason() {
        use nix::libc;
        let address = "192.0.2.1:80".parse().unwrap();
        for (errno, reason) in [
            (libc::ECONNREFUSED, "refused"),
            (libc::ETIMEDOUT, "timeout"),
            (libc::EHOSTUNREACH, "unreachable"),
            (libc::ENETUNREACH, "unreachable"),
            (libc::EADDRNOTAVAIL, "other"),
        ] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(ConnectError::of(address, CONNECT_TIMEOUT, error).reason(), reason);
        }
    }
}
