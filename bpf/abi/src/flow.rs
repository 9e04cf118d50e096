//! The structures of the flow programs: `bpf/lib/flow_abi.h` in Rust.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::layout::{Field, Layout, size_of_field};

/// The layout of the pinned maps. Raised with every change of a pinned structure: maps of another layout are not used
/// again.
pub const FLOW_LAYOUT: u32 = 3;

/// Most workloads that are accounted for on one machine (`MAX_FLOW_WORKLOADS`).
pub const MAX_FLOW_WORKLOADS: u32 = 8192;

/// Most addresses of workloads (`MAX_FLOW_ADDRESSES`).
pub const MAX_FLOW_ADDRESSES: u32 = 16384;

/// Most pairs that are added up each by itself (`MAX_FLOW_PAIRS`).
pub const MAX_FLOW_PAIRS: u32 = 16384;

/// Most rows of requests (`MAX_FLOW_REQUESTS`).
pub const MAX_FLOW_REQUESTS: u32 = 16384;

/// Most rows of requests that were read from samples (`MAX_FLOW_WIRE_REQUESTS`).
pub const MAX_FLOW_WIRE_REQUESTS: u32 = 4096;

/// Most bytes of a sample (`FLOW_SAMPLE_BYTES`).
pub const FLOW_SAMPLE_BYTES: usize = 512;

/// One more than the largest id of a workload (`MAX_FLOW_IDS`).
pub const MAX_FLOW_IDS: u32 = MAX_FLOW_WORKLOADS + FIRST_WORKLOAD;

/// Most pairs of a workload and a reason for which packets were dropped (`MAX_FLOW_DROPS`).
pub const MAX_FLOW_DROPS: u32 = 4096;

/// The peer of a flow to an address that belongs to no workload (`PEER_OUTSIDE`).
pub const PEER_OUTSIDE: u32 = 0;

/// The peer of a flow over loopback, or to an address of the workload itself (`PEER_SELF`).
pub const PEER_SELF: u32 = 1;

/// The peer of a flow with the control plane (`PEER_CONTROL_PLANE`).
pub const PEER_CONTROL_PLANE: u32 = 2;

/// The first id of a workload (`FLOW_PEERS`).
pub const FIRST_WORKLOAD: u32 = 3;

/// A value that a kernel map stores in the machine's byte order.
trait Native: Sized {
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! native {
    ($($number:ty),*) => {$(
        impl Native for $number {
            fn read(bytes: &[u8]) -> Self {
                let mut number = [0; size_of::<$number>()];
                number.copy_from_slice(bytes);
                <$number>::from_ne_bytes(number)
            }
            fn write(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

native!(u8, u16, u32, u64);

impl<T: Native + Copy + Default, const N: usize> Native for [T; N] {
    fn read(bytes: &[u8]) -> Self {
        let mut all = [T::default(); N];
        for (place, part) in all.iter_mut().zip(bytes.chunks_exact(size_of::<T>())) {
            *place = T::read(part);
        }
        all
    }

    fn write(&self, bytes: &mut [u8]) {
        for (value, part) in self.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
            value.write(part);
        }
    }
}

/// Declares a structure that crosses between kernel and user space, with its layout and its bytes.
macro_rules! shared {
    ($($(#[$meta:meta])* $name:ident as $c:literal {
        $($(#[$doc:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub struct $name {
                $($(#[$doc])* pub $field: $type,)*
            }

            impl $name {
                /// Reads it as the kernel has it; `None` if the length is another one.
                #[must_use]
                pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                    if bytes.len() != size_of::<Self>() {
                        return None;
                    }
                    Some(Self {
                        $($field: <$type>::read(
                            &bytes[offset_of!(Self, $field)..][..size_of::<$type>()],
                        ),)*
                    })
                }

                /// The bytes as the kernel reads them.
                #[must_use]
                pub fn to_bytes(&self) -> Vec<u8> {
                    let mut bytes = vec![0; size_of::<Self>()];
                    $(self.$field.write(
                        &mut bytes[offset_of!(Self, $field)..][..size_of::<$type>()],
                    );)*
                    bytes
                }
            }
        )*

        /// Every structure of the flow programs.
        pub const FLOW_LAYOUTS: &[Layout] = &[$(Layout {
            name: $c,
            size: size_of::<$name>(),
            fields: &[$(Field {
                name: stringify!($field),
                offset: offset_of!($name, $field),
                size: size_of_field(|value: &$name| &value.$field),
            }),*],
        }),*];
    };
}

shared! {
    /// Fixed when the programs are loaded.
    FlowConfig as "flow_config" {
        /// The table is being resized: `flows_before` has entries.
        carries_over: u8,
        /// The kernel has no cookies of network namespaces (before 5.14).
        netns_by_inode: u8,
        /// The tracepoint of drops names the socket that a packet was for (since 6.10).
        drop_names_socket: u8,
        /// Padding.
        reserved: u8,
        /// Drops are counted while `drop_turn` has this number.
        turn: u32,
    }
    /// Value of `workloads`, whose key is the cookie of a network namespace, or its inode if the kernel has no cookies.
    FlowWorkload as "flow_workload" {
        /// The workload's id.
        id: u32,
        /// Sockets of this user are the proxy's.
        proxy_uid: u32,
    }
    /// Value of `runs`, whose index is the workload's id.
    FlowRuns as "flow_runs" {
        /// How often each [`FlowProgram`] has accounted for something of it.
        of: [u64; 4],
    }
    /// Value of `caps`, whose index is the workload's id; all zero without a bound of its own.
    FlowCap as "flow_cap" {
        /// A [`FlowLevel`]: it has the lesser one of this and the machine's.
        level: u32,
        /// Most CPU that the programs may take for it, in millionths of the machine's.
        budget: u32,
        /// Its part of what they took when it was measured last, in the same unit.
        cost: u32,
        /// Whether payload of its frames is sampled at the level [`FlowLevel::Full`]: 1 or 0.
        samples: u32,
    }
    /// Key of `drops`; all zero for packets that found no room.
    FlowDrop as "flow_drop" {
        /// The id of the workload.
        workload: u32,
        /// The number of the reason, as the kernel that runs has it.
        reason: u32,
    }
    /// Key of `addresses`.
    FlowAddress as "flow_address" {
        /// The address, 16 bytes in network order; IPv4 in IPv4-mapped form.
        ip: [u32; 4],
        /// A port, or 0 for all others of the address.
        port: u32,
    }
    /// Value of `names`: the name of a workload; unused bytes are zero.
    FlowName as "flow_name" {
        /// The namespace.
        namespace: [u8; 64],
        /// The workload.
        workload: [u8; 64],
    }
    /// A connection, seen from the socket of a workload, or from its interface; times are of `CLOCK_MONOTONIC`.
    Flow as "flow" {
        /// The socket's own address.
        local_ip: [u32; 4],
        /// The address that it is connected to.
        remote_ip: [u32; 4],
        /// When it was begun, or accepted.
        opened_ns: u64,
        /// When it changed state last, or was last seen to have moved bytes.
        last_ns: u64,
        /// Payload that was sent, each byte once.
        bytes_sent: u64,
        /// Payload that was received, each byte once.
        bytes_received: u64,
        /// The id of the workload.
        workload: u32,
        /// The id of the workload at the other end, [`PEER_OUTSIDE`], [`PEER_SELF`]
        /// or [`PEER_CONTROL_PLANE`].
        peer: u32,
        /// Segments that were sent, with retransmissions and those without payload.
        segments_sent: u32,
        /// Segments that were received.
        segments_received: u32,
        /// Segments that were sent again.
        retransmits: u32,
        /// Smoothed round-trip time.
        rtt_us: u32,
        /// Least round-trip time in the kernel's window; 0 if there is none.
        min_rtt_us: u32,
        /// Client: from `connect` to established; server: from SYN-ACK to ACK.
        handshake_us: u32,
        /// The socket's own port.
        local_port: u16,
        /// The port that it is connected to.
        remote_port: u16,
        /// `AF_INET` or `AF_INET6`.
        family: u8,
        /// A [`FlowState`].
        state: u8,
        /// A [`FlowEnd`].
        end: u8,
        /// A [`FlowRole`].
        role: u8,
        /// A [`FlowOwner`].
        owner: u8,
        /// The number of the protocol; 0 in what an earlier version wrote, and in frames that are not IP.
        protocol: u8,
        /// Of [`FlowOwner::Wire`]: what its frames have had.
        marks: u8,
        /// Of samples: which side's payload came last.
        talker: u8,
        /// The last pass of the iterator that found the socket. Of [`FlowOwner::Wire`]: a sequence number.
        pass: u32,
    }
    /// Key of `pairs`.
    FlowPair as "flow_pair" {
        /// The id of the workload.
        workload: u32,
        /// The other end, as in [`Flow`].
        peer: u32,
        /// A [`FlowRole`].
        role: u8,
        /// A [`FlowOwner`].
        owner: u8,
        /// Of [`FlowOwner::Wire`]: the number of the protocol; else 0, which is TCP.
        protocol: u8,
        /// Padding.
        reserved: u8,
    }
    /// Value of `pairs`: sums over all flows of a pair.
    FlowSums as "flow_sums" {
        /// As in [`Flow`].
        bytes_sent: u64,
        /// As in [`Flow`].
        bytes_received: u64,
        /// As in [`Flow`].
        segments_sent: u64,
        /// As in [`Flow`].
        segments_received: u64,
        /// As in [`Flow`].
        retransmits: u64,
        /// Connections that were begun or accepted.
        opened: u64,
        /// Of those, the ones that were established.
        established: u64,
        /// Over `established`.
        handshake_us: u64,
        /// Smoothed round-trip times at the end of connections.
        rtt_us: u64,
        /// How many of them.
        rtt_samples: u64,
        /// Of connections that have ended.
        duration_us: u64,
        /// Connections that have ended, by [`FlowEnd`].
        ended: [u64; 8],
    }
    /// Key of `requests`: a row of what a proxy counts.
    FlowRequestKey as "flow_request_key" {
        /// Of which worker of which proxy; 0: of proxies that have ended.
        memory: u64,
        /// Which row of it; of memory 0 a number made of the labels.
        claim: u64,
    }
    /// Value of `requests`: the requests between a client and a server.
    FlowRequests as "flow_requests" {
        /// As the proxy has them in its memory; unused bytes are zero.
        labels: [u8; 512],
        /// By the class of the status; 0 for those of no class.
        classes: [u64; 6],
        /// Calls by their grpc-status; the last one for all others.
        grpc: [u64; 18],
        /// Over all requests.
        duration_us: u64,
        /// By duration.
        durations: [u64; 32],
        /// Of memory 0: the row that was added to it last.
        folded_memory: u64,
        /// As above.
        folded_claim: u64,
    }
    /// The begin of the payload of a frame, in `samples`.
    FlowSample as "flow_sample" {
        /// The key of its flow.
        key: u64,
        /// When, by `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// When its flow was begun.
        opened_ns: u64,
        /// The id of the workload.
        workload: u32,
        /// The other end, as in [`Flow`].
        peer: u32,
        /// TCP: the sequence number of the first byte.
        sequence: u32,
        /// How many bytes of payload the frame has.
        payload: u32,
        /// The workload's port.
        local_port: u16,
        /// The other side's port.
        remote_port: u16,
        /// How many of `bytes` are the frame's.
        length: u16,
        /// A [`FlowRole`].
        role: u8,
        /// The number of the protocol.
        protocol: u8,
        /// 1 if the workload sent it.
        sent: u8,
        /// 1 if payload of the other side came before it.
        turns: u8,
        /// Padding.
        reserved: [u8; 6],
        /// The first bytes.
        bytes: [u8; FLOW_SAMPLE_BYTES],
    }
    /// Key of `wire_requests`: requests that were read from samples.
    FlowWireKey as "flow_wire_key" {
        /// The id of the workload; 0 for rows that found no room.
        workload: u32,
        /// The other end, as in [`Flow`].
        peer: u32,
        /// A [`FlowRole`].
        role: u8,
        /// Of the protocol that was read.
        protocol: u8,
        /// Padding.
        reserved: [u8; 6],
        /// The kind of request; unused bytes are zero.
        kind: [u8; 16],
        /// What came of it; unused bytes are zero.
        result: [u8; 16],
    }
    /// Value of `wire_requests`.
    FlowWireRequests as "flow_wire_requests" {
        /// All requests.
        requests: u64,
        /// Over those that were answered.
        duration_us: u64,
        /// Those by duration.
        durations: [u64; 32],
    }
    /// A change of a flow, in `events`.
    FlowEvent as "flow_event" {
        /// The cookie of the socket.
        cookie: u64,
        /// When.
        at_ns: u64,
        /// The flow after it.
        flow: Flow,
    }
}

impl Native for Flow {
    fn read(bytes: &[u8]) -> Self {
        Self::from_bytes(bytes).expect("the caller passes as many bytes as a flow has")
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_bytes());
    }
}

/// Declares an enum of consecutive numbers that the kernel programs store, with names.
macro_rules! stored {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All values, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The value with this number.
            #[must_use]
            pub fn of(number: u8) -> Option<Self> {
                Self::ALL.get(usize::from(number)).copied()
            }

            /// The stable name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    )*};
}

stored! {
    /// The state of a flow.
    FlowState {
        /// A SYN was sent, or a handshake with a client is being completed.
        New = "new",
        /// Both sides may send.
        Established = "established",
        /// One side has closed.
        Closing = "closing",
        /// It has ended.
        Closed = "closed",
    }
    /// How a flow ended, and which side ended it.
    FlowEnd {
        /// It has not.
        Open = "open",
        /// The workload closed first.
        ClosedLocal = "closed_local",
        /// The other side closed first.
        ClosedRemote = "closed_remote",
        /// The workload reset it.
        ResetLocal = "reset_local",
        /// The other side reset it.
        ResetRemote = "reset_remote",
        /// The other side did not answer in time, or could not be reached.
        TimedOut = "timed_out",
        /// The other side refused it.
        Refused = "refused",
    }
    /// How much is accounted for: less where that costs more than its budget.
    FlowLevel {
        /// Each connection, and the sums of pairs.
        Full = "full",
        /// Sums of pairs alone: connections that begin are not listed.
        Aggregated = "aggregated",
        /// Connections that begin are not accounted for.
        Off = "off",
        /// Everything, but sockets stand in for frames.
        Sockets = "sockets",
        /// Everything, but payload of frames is not sampled.
        Packets = "packets",
    }
    /// A program that runs for a workload.
    FlowProgram {
        /// When a connection begins, changes state or ends.
        Sockops = "leno_flow_sockops",
        /// For each frame that a workload sends.
        Sent = "leno_flow_sent",
        /// For each frame that arrives for it.
        Received = "leno_flow_received",
        /// For each packet that the kernel drops.
        Drop = "leno_flow_drop",
    }
    /// Which side opened a flow.
    FlowRole {
        /// The workload.
        Client = "client",
        /// The other side.
        Server = "server",
    }
    /// Which program of the workload has the socket, or that frames are counted instead of a socket.
    FlowOwner {
        /// The application.
        Application = "application",
        /// The proxy.
        Proxy = "proxy",
        /// Frames of the workload's interface, whichever program sends or receives them.
        Wire = "wire",
    }
}

/// The counters that are not of a pair, in the order of their indexes; `enum flow_total` has them in
/// upper case.
pub const FLOW_TOTALS: &[&str] = &[
    "flow_added",
    "flow_unlisted",
    "flow_untracked",
    "flow_folded",
    "flow_events_written",
    "flow_events_dropped",
    "flow_aggregated",
    "flow_left_out",
    "flow_removed",
];

/// The indexes of `sample_counts`; `enum flow_sample_count` has them in upper case.
pub const FLOW_SAMPLE_COUNTS: &[&str] = &["flow_samples_written", "flow_samples_lost"];

/// The indexes of `control`; `enum flow_setting` has them in upper case.
pub const FLOW_SETTINGS: &[&str] =
    &["flow_followed", "flow_pass", "flow_level", "flow_budget", "flow_cost"];

impl FlowAddress {
    /// An IPv4 address in IPv4-mapped form, or an IPv6 address.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self { ip: crate::SocketAddress::new(ip, 0).ip, port: 0 }
    }

    /// One port of an address.
    #[must_use]
    pub fn of_port(at: SocketAddr) -> Self {
        Self { port: at.port().into(), ..Self::new(at.ip()) }
    }
}

impl FlowName {
    /// Longer names than the 63 bytes of a DNS label are cut.
    #[must_use]
    pub fn new(namespace: &str, workload: &str) -> Self {
        let fixed = |text: &str| {
            let mut bytes = [0; 64];
            let length = text.len().min(63);
            bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
            bytes
        };
        Self { namespace: fixed(namespace), workload: fixed(workload) }
    }

    /// The namespace and the workload.
    #[must_use]
    pub fn parts(&self) -> (String, String) {
        let text = |bytes: &[u8; 64]| {
            let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        (text(&self.namespace), text(&self.workload))
    }
}

impl Flow {
    /// The socket's own address and port.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(ip(self.local_ip), self.local_port)
    }

    /// The address and port that it is connected to.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(ip(self.remote_ip), self.remote_port)
    }

    /// The state, if this version has it.
    #[must_use]
    pub fn state(&self) -> Option<FlowState> {
        FlowState::of(self.state)
    }
}

/// An address in network order; an IPv4-mapped one is IPv4.
fn ip(words: [u32; 4]) -> IpAddr {
    let mut octets = [0; 16];
    for (place, word) in octets.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_survives_its_bytes() {
        let bytes: Vec<u8> = (0..size_of::<Flow>()).map(|byte| byte as u8).collect();
        let flow = Flow::from_bytes(&bytes).unwrap();
        assert_eq!(flow.to_bytes(), bytes);
        assert_eq!(Flow::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn addresses_and_names_are_read_back() {
        let mut flow = Flow::from_bytes(&vec![0; size_of::<Flow>()]).unwrap();
        flow.local_ip = FlowAddress::new("10.89.0.2".parse().unwrap()).ip;
        flow.remote_ip = FlowAddress::new("fd89::3".parse().unwrap()).ip;
        flow.remote_port = 80;
        assert_eq!(flow.local().to_string(), "10.89.0.2:0");
        assert_eq!(flow.remote().to_string(), "[fd89::3]:80");
        assert_eq!(FlowName::new("shop", "web").parts(), ("shop".into(), "web".into()));
    }
}
