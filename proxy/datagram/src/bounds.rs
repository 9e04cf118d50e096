//! The limits for datagrams, for each worker.

use std::time::Duration;

/// How many flows from the workload there may be: as many as a busy client has pairs of socket and server. A flow takes
/// some 2 KiB. If there are more, the least recently used flow ends.
pub const CLIENT_FLOWS: usize = 4096;
/// How many flows to the workload there may be, of which one identity may have half: streams of clients, from the moment
/// in which they are opened. Each has a socket to the application. If there are more, the oldest flow of the identity with the most flows ends.
pub const SERVER_FLOWS: usize = 1024;
/// How many flows may leave the mesh. Each has a socket. Further ones are refused.
pub const OUTSIDE_FLOWS: usize = 1024;
/// How many flows one connection may have. The server's QUIC endpoint enforces it, and the client waits.
pub const FLOWS_OF_CONNECTION: u32 = 1024;
/// How long a flow may be without a datagram in either direction: the minimum that RFC 4787, REQ-5, requires of a NAT.
pub const FLOW_IDLE: Duration = Duration::from_secs(120);
/// How long the datagrams of a refused flow are dropped before it is requested again.
pub const REFUSED_FOR: Duration = Duration::from_secs(1);
/// How many datagrams of a flow wait until it is open: as many as an application sends before it gets its first answer.
pub const WAITING_DATAGRAMS: usize = 16;
/// How many bytes these datagrams may have, which limits the memory: room for [`WAITING_DATAGRAMS`] of the largest size
/// that the mesh carries.
pub const WAITING_BYTES: usize = 24 * 1024;
/// The longest time to open a flow. It includes a handshake, a round trip, and the wait for discovery.
pub const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// How many connections to proxies of servers there may be. Further ones are refused.
pub const CLIENT_CONNECTIONS: usize = 1024;
/// How many connections from proxies of clients there may be, of which one identity may have half. A further connection
/// is refused, unless it displaces a connection of an identity that has more.
pub const SERVER_CONNECTIONS: usize = 1024;
/// How many handshakes with clients may be in progress. From half of this number on, a client must validate its address
/// first, which costs a round trip. A further handshake is refused, unless it displaces a handshake of an address that
/// has more.
pub const HANDSHAKES: usize = 64;
/// How many handshakes one address may have, so that a client that never completes them does not exclude others.
/// Handshakes with a validated address are counted separately, so a client with a spoofed address does not exclude the
/// owner of that address.
pub const HANDSHAKES_OF_ADDRESS: usize = HANDSHAKES / 4;
/// After how much time without a packet a connection ends. It is short, because nothing else shows that a proxy was
/// killed.
pub const CONNECTION_IDLE: Duration = Duration::from_secs(10);
/// How often a client's proxy sends a keep-alive packet.
pub const KEEP_ALIVE: Duration = Duration::from_secs(3);
/// How long a proxy that ends waits until other proxies know. It is meant to be longer than QUIC keeps a closing
/// connection: three times its probe timeout, which is some round-trip times (RFC 9000, 10.2).
pub const CLOSING: Duration = Duration::from_secs(1);
/// How many bytes are queued in a connection, in each direction: some 50 datagrams. Further datagrams are dropped.
pub const QUEUED_BYTES: usize = 64 * 1024;
/// How many bytes a connection takes from the worker's memory budget, for its send queue and its state. Received
/// datagrams are passed on at once. No connection is made while memory is short.
pub const CONNECTION_BYTES: usize = QUEUED_BYTES + 16 * 1024;
