//! How long each part of a connection's beginning may take: the only table of these times.

use std::time::Duration;

/// Times within which a client shows what it speaks, for one kind of connection.
///
/// | constant | first byte | protocol | ClientHello | once no byte has come in time |
/// |---|---|---|---|---|
/// | [`OUTBOUND`](Self::OUTBOUND) | 5 ms | 500 ms | 500 ms | the server is connected to |
/// | [`SERVER_FIRST`](Self::SERVER_FIRST) | 0 | 500 ms | 500 ms | the server is connected to |
/// | [`ORIGINATED`](Self::ORIGINATED) | 1 s | 500 ms | 500 ms | the server is connected to, inside TLS |
/// | [`BY_ROUTE`](Self::BY_ROUTE) | 10 s | 500 ms | 500 ms | refused |
/// | [`DENIED`](Self::DENIED) | 1 s | 500 ms | 500 ms | refused |
/// | [`INBOUND`](Self::INBOUND) | 10 ms | 500 ms | 5 s | the client's address is looked up |
/// | [`INBOUND_DISABLED`](Self::INBOUND_DISABLED) | 10 ms | 500 ms | 500 ms | the application is connected to |
/// | [`MESHED`](Self::MESHED) | 5 s | 500 ms | 5 s | the application is connected to; strict: refused |
/// | [`declared_http`](Self::declared_http) | as an idle connection | as a head | as a head | closed |
///
/// "Protocol" and "ClientHello" are measured from the first byte on. What is unclear then is passed on
/// as bytes, except inbound, where it counts as HTTP so that no policy of requests is evaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Longest silence before the client's first byte.
    pub first_byte: Duration,
    /// Longest time from the first byte until the protocol is clear.
    pub protocol: Duration,
    /// Longest time from the first byte until a TLS ClientHello is whole.
    pub hello: Duration,
}

/// Long enough for a lost segment to be sent again (the kernel's minimum is 200 ms), short enough that
/// an unknown protocol only loses a moment once.
const RETRANSMISSION: Duration = Duration::from_millis(500);

impl Waits {
    /// A service of undeclared protocol. A client that speaks first mostly sends with or right after
    /// the handshake; a server that speaks first waits for this long, once.
    pub const OUTBOUND: Self = Self::after(Duration::from_millis(5));

    /// The same where the server of an earlier connection was the first to speak.
    pub const SERVER_FIRST: Self = Self::after(Duration::ZERO);

    /// The proxy begins TLS for clients that do not: one that does sends its ClientHello with or right
    /// after the handshake.
    pub const ORIGINATED: Self = Self::after(Duration::from_secs(1));

    /// The route depends on what the client sends, so that no server can be connected to before: as
    /// long as a handshake may take.
    pub const BY_ROUTE: Self = Self::after(Duration::from_secs(10));

    /// Policy refuses the connection, and requests are to be answered with the reason. Clients of HTTP
    /// send with or right after the handshake; any other waits for a server that is never connected to.
    pub const DENIED: Self = Self::after(Duration::from_secs(1));

    /// A connection to the workload, perhaps from another proxy, which may be busy.
    pub const INBOUND: Self = Self { first_byte: Duration::from_millis(10), ..Self::MESHED };

    /// The same where mTLS is disabled, so that no client is another proxy.
    pub const INBOUND_DISABLED: Self = Self::after(Duration::from_millis(10));

    /// From a client that is another proxy, which speaks first.
    pub const MESHED: Self = Self {
        first_byte: Duration::from_secs(5),
        protocol: RETRANSMISSION,
        hello: Duration::from_secs(5),
    };

    /// A port that is declared to carry HTTP, by the bounds of the HTTP engine for an idle connection
    /// and for a head.
    #[must_use]
    pub const fn declared_http(idle: Duration, head: Duration) -> Self {
        Self { first_byte: idle, protocol: head, hello: head }
    }

    const fn after(first_byte: Duration) -> Self {
        Self { first_byte, protocol: RETRANSMISSION, hello: RETRANSMISSION }
    }
}
