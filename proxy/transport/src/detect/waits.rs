//! The time limits for the beginning of a connection.

use std::time::Duration;

/// Time limits within which the protocol of a connection must become clear, for one kind of connection.
///
/// | constant | first byte | protocol | ClientHello | if no byte has come in time |
/// |---|---|---|---|---|
/// | [`OUTBOUND`](Self::OUTBOUND) | 5 ms | 500 ms | 500 ms | the proxy connects to the server |
/// | [`SERVER_FIRST`](Self::SERVER_FIRST) | 0 | 500 ms | 500 ms | the proxy connects to the server |
/// | [`ORIGINATED`](Self::ORIGINATED) | 1 s | 500 ms | 500 ms | the proxy connects to the server, with TLS |
/// | [`BY_ROUTE`](Self::BY_ROUTE) | 10 s | 500 ms | 500 ms | refused |
/// | [`DENIED`](Self::DENIED) | 1 s | 500 ms | 500 ms | refused |
/// | [`INBOUND`](Self::INBOUND) | 10 ms | 500 ms | 5 s | the proxy looks up whether the client is in the mesh |
/// | [`INBOUND_DISABLED`](Self::INBOUND_DISABLED) | 10 ms | 500 ms | 500 ms | the proxy connects to the application |
/// | [`MESHED`](Self::MESHED) | 5 s | 500 ms | 5 s | the proxy connects to the application; refused if mTLS is strict |
/// | [`declared_http`](Self::declared_http) | `idle` | `head` | `head` | closed |
///
/// "Protocol" and "ClientHello" are measured from the first byte. If the protocol is not clear by then, an outbound
/// connection is relayed without being parsed. An inbound one counts as HTTP, so that a client cannot evade policies
/// for requests by being slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// How long the client may be silent before its first byte.
    pub first_byte: Duration,
    /// How long after the first byte it may take until the protocol is clear.
    pub protocol: Duration,
    /// How long after the first byte it may take until a TLS ClientHello is complete.
    pub hello: Duration,
}

/// The time for the protocol to become clear. It is long enough for a lost segment to be sent again (after 200 ms at
/// least, which is the kernel's minimum), and short enough that a connection of an unknown protocol is delayed only for
/// a moment, once.
const RETRANSMISSION: Duration = Duration::from_millis(500);

impl Waits {
    /// For a service whose protocol is not declared. Most clients that send first do so together with the handshake or
    /// right after it. If the server sends first, its first bytes are delayed by this time, once.
    pub const OUTBOUND: Self = Self::after(Duration::from_millis(5));

    /// For a service whose protocol is not declared, and whose server was the first to send on an earlier connection.
    pub const SERVER_FIRST: Self = Self::after(Duration::ZERO);

    /// For connections to which the proxy adds TLS if the client does not use it. A client that uses TLS sends its
    /// ClientHello together with the handshake or right after it.
    pub const ORIGINATED: Self = Self::after(Duration::from_secs(1));

    /// For connections whose route depends on bytes that the client sends, so that the proxy cannot connect to a server
    /// before it has them. A client that sends nothing for so long is refused, for example because it waits for the
    /// server to send first.
    pub const BY_ROUTE: Self = Self::after(Duration::from_secs(10));

    /// For connections that policy refuses, where requests should be answered with the reason. HTTP clients send
    /// together with the handshake or right after it. Other clients wait for a server, to which the proxy never
    /// connects.
    pub const DENIED: Self = Self::after(Duration::from_secs(1));

    /// For connections to the workload. The client may be another proxy, which may be slow to send its ClientHello.
    pub const INBOUND: Self = Self { first_byte: Duration::from_millis(10), ..Self::MESHED };

    /// For connections to the workload with mTLS disabled, so that the client is not another proxy.
    pub const INBOUND_DISABLED: Self = Self::after(Duration::from_millis(10));

    /// For connections from another proxy, which always sends first.
    pub const MESHED: Self = Self {
        first_byte: Duration::from_secs(5),
        protocol: RETRANSMISSION,
        hello: Duration::from_secs(5),
    };

    /// For a port that is declared to carry HTTP. The limits are those of the HTTP engine for an idle connection and
    /// for a head.
    #[must_use]
    pub const fn declared_http(idle: Duration, head: Duration) -> Self {
        Self { first_byte: idle, protocol: head, hello: head }
    }

    const fn after(first_byte: Duration) -> Self {
        Self { first_byte, protocol: RETRANSMISSION, hello: RETRANSMISSION }
    }
}
