//! The bounds of datagrams, for each worker.

use std::time::Duration;

/// Flows of the workload. As many sockets and servers as a busy client has; a flow takes some 2 KiB. Beyond it the flow
/// that was used least recently ends.
pub const CLIENT_FLOWS: usize = 4096;
/// Flows to the workload, half of them of one identity. Each has a socket to the application. Beyond it the oldest flow of
/// the identity with the most ends.
pub const SERVER_FLOWS: usize = 1024;
/// Flows that leave the mesh, each of which has a socket. Beyond it a new one is refused.
pub const OUTSIDE_FLOWS: usize = 1024;
/// Flows of one connection, which the server's end of QUIC enforces; the client waits for its turn then.
pub const FLOWS_OF_CONNECTION: u32 = 1024;
/// How long a flow may be without a datagram in either direction: the least that RFC 4787, REQ-5, allows a translator of
/// addresses.
pub const FLOW_IDLE: Duration = Duration::from_secs(120);
/// How long the datagrams of a flow that was refused are dropped before it is asked for again.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Datagrams of a flow that wait until it is open: what an application sends before its first answer comes.
pub const WAITING_DATAGRAMS: usize = 16;
/// Their payload together, so that the bound above is one of memory: as many of the size that the mesh carries.
pub const WAITING_BYTES: usize = 24 * 1024;
/// How long it may take to open a flow: a handshake, a round trip, and the wait for discovery.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to proxies of servers. Beyond it a new one is refused.
pub const CLIENT_CONNECTIONS: usize = 1024;
/// Connections of proxies of clients, half of them of one identity. Beyond it a new one is refused, unless it takes the place
/// of an identity with more.
pub const SERVER_CONNECTIONS: usize = 1024;
/// Handshakes under way with clients. Beyond half of it a client shows its address first, which costs it a round trip;
/// beyond it a new one is refused, unless it takes the place of an address with more.
pub const HANDSHAKES: usize = 64;
/// Those of one address, so that a client that goes on with none of them keeps no other client from the workload. Those that
/// have shown their address are counted apart: a client that claims the address of another keeps that one from nothing.
pub const HANDSHAKES_OF_ADDRESS: usize = HANDSHAKES / 4;
/// How long a connection may be silent. Short, since nothing else says that a proxy was killed.
pub const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// How often a client's proxy sends something, so that the connection is not silent.
pub const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// How long a proxy that ends waits until other proxies have heard of it: longer than three times the time that an answer takes,
/// which is when QUIC takes a connection for ended (RFC 9000, 10.2).
pub const CLOSING: Duration = Duration::from_secs(1);
/// Bytes that wait in a connection, in each direction: some 50 datagrams. Beyond it datagrams are dropped.
pub const QUEUED_BYTES: usize = 64 * 1024;
/// What the memory budget of the worker is charged for a connection: what waits to be sent, and its state. What was received
/// is passed on at once. No connection is made while memory is short.
pub const CONNECTION_BYTES: usize = QUEUED_BYTES + 16 * 1024;
