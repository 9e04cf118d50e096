//! The bounds of datagrams, for each worker.

use std::time::Duration;

/// Flows from the workload: as many as a busy client has pairs of socket and server. A flow takes some 2 KiB. Beyond
/// the bound, the least recently used flow ends.
pub const CLIENT_FLOWS: usize = 4096;
/// Flows to the workload; one identity may have half of them. Each has a socket to the application. Beyond the bound,
/// the oldest flow of the identity with the most ends.
pub const SERVER_FLOWS: usize = 1024;
/// Flows that leave the mesh, each of which has a socket. Beyond the bound, new ones are refused.
pub const OUTSIDE_FLOWS: usize = 1024;
/// Flows on one connection. The server's QUIC endpoint enforces it, and the client waits.
pub const FLOWS_OF_CONNECTION: u32 = 1024;
/// How long a flow may be without a datagram in either direction: the minimum that RFC 4787, REQ-5, requires of a NAT.
pub const FLOW_IDLE: Duration = Duration::from_secs(120);
/// How long the datagrams of a refused flow are dropped before it is requested again.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);
/// Datagrams of a flow that wait until it is open: what an application sends before it gets its first answer.
pub const WAITING_DATAGRAMS: usize = 16;
/// The bytes of these datagrams, which bounds the memory: room for [`WAITING_DATAGRAMS`] of the largest size that the
/// mesh carries.
pub const WAITING_BYTES: usize = 24 * 1024;
/// Longest time to open a flow: a handshake, a round trip, and the wait for discovery.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to proxies of servers. Beyond the bound, new ones are refused.
pub const CLIENT_CONNECTIONS: usize = 1024;
/// Connections from proxies of clients; one identity may have half of them. Beyond the bound, a new one is refused,
/// unless it displaces one of an identity with more.
pub const SERVER_CONNECTIONS: usize = 1024;
/// Handshakes with clients in progress. Beyond half of the bound, a client must validate its address first, which costs
/// a round trip. Beyond the bound, a new handshake is refused, unless it displaces one of an address with more.
pub const HANDSHAKES: usize = 64;
/// Handshakes of one address, so that a client that never completes them does not exclude others. Handshakes with a
/// validated address are counted apart, so a client with a spoofed address does not exclude the owner of that address.
pub const HANDSHAKES_OF_ADDRESS: usize = HANDSHAKES / 4;
/// How long a connection may be silent. It is short, because nothing else shows that a proxy was killed.
pub const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// How often a client's proxy sends a keep-alive packet.
pub const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// How long a proxy that ends waits for other proxies to be informed: more than three times the round-trip time, which
/// is when QUIC forgets a closing connection (RFC 9000, 10.2).
pub const CLOSING: Duration = Duration::from_secs(1);
/// Bytes queued in a connection, in each direction: some 50 datagrams. Beyond the bound, datagrams are dropped.
pub const QUEUED_BYTES: usize = 64 * 1024;
/// The memory that is charged to the worker's budget for a connection: its send queue and its state. Received datagrams
/// are passed on at once. No connection is made while memory is short.
pub const CONNECTION_BYTES: usize = QUEUED_BYTES + 16 * 1024;
