//! The structures of the flow programs: `bpf/lib/flow_abi.h` in Rust.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::layout::{Field, Layout, size_of_field};

/// The version of the layout of the pinned maps. Increment it with every change of a pinned structure: pinned maps with
/// another version are not reused.
pub const FLOW_LAYOUT: u32 = 4;

/// Most workloads that are accounted for on one machine (`MAX_FLOW_WORKLOADS`).
pub const MAX_FLOW_WORKLOADS: u32 = 8192;

/// Most entries of the map that assigns addresses to workloads (`MAX_FLOW_ADDRESSES`).
pub const MAX_FLOW_ADDRESSES: u32 = 16384;

/// Most pairs of workload and peer that have sums of their own (`MAX_FLOW_PAIRS`).
pub const MAX_FLOW_PAIRS: u32 = 16384;

/// Most rows of requests that proxies count (`MAX_FLOW_REQUESTS`).
pub const MAX_FLOW_REQUESTS: u32 = 16384;

/// Most rows of requests that were read from samples (`MAX_FLOW_WIRE_REQUESTS`).
pub const MAX_FLOW_WIRE_REQUESTS: u32 = 4096;

/// Most bytes of a sample (`FLOW_SAMPLE_BYTES`).
pub const FLOW_SAMPLE_BYTES: usize = 512;

/// One more than the largest possible id of a workload (`MAX_FLOW_IDS`).
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

/// A number, or an array of numbers, that a kernel map stores in the machine's byte order.
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

/// Declares structures that kernel and user space share, each with its layout and its conversion from and to bytes.
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
                /// Reads the bytes of a kernel map; `None` if their number is not that of the structure.
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
    /// Configuration of the programs, fixed when they are loaded.
    FlowConfig as "flow_config" {
        /// Not 0 if the table is being resized: `flows_before` still has entries.
        carries_over: u8,
        /// Not 0 if the kernel has no cookies of network namespaces (before 5.14).
        netns_by_inode: u8,
        /// The tracepoint of drops names the socket that a packet was for (since 6.11).
        drop_names_socket: u8,
        /// Padding.
        reserved: u8,
        /// The program counts drops only while `drop_turn` has this number.
        turn: u32,
    }
    /// Value of `workloads`. The key is the cookie of the workload's network namespace, or its inode number if the
    /// kernel has no cookies.
    FlowWorkload as "flow_workload" {
        /// The workload's id.
        id: u32,
        /// Sockets of this user are the proxy's.
        proxy_uid: u32,
    }
    /// Value of `runs`, whose index is the workload's id.
    FlowRuns as "flow_runs" {
        /// How often each [`FlowProgram`] has accounted for something of this workload.
        of: [u64; 4],
    }
    /// Value of `caps`, whose index is the workload's id: the limits of one workload. All fields are zero if it has
    /// none.
    FlowCap as "flow_cap" {
        /// A [`FlowLevel`]. Of this and the machine's level, the one that accounts for less applies.
        level: u32,
        /// Most CPU time of the programs for this workload, in millionths of the machine's.
        budget: u32,
        /// This workload's part of the programs' CPU time when it was last measured, in the same unit.
        cost: u32,
        /// 1 if payload of its frames is sampled at the level [`FlowLevel::Full`], else 0.
        samples: u32,
    }
    /// Key of `drops`. All fields are zero for the packets for which the map had no room.
    FlowDrop as "flow_drop" {
        /// The id of the workload.
        workload: u32,
        /// The number of the reason in the running kernel.
        reason: u32,
    }
    /// Key of `addresses`, which finds the workload that has an address.
    FlowAddress as "flow_address" {
        /// The address, 16 bytes in network order; IPv4 in IPv4-mapped form.
        ip: [u32; 4],
        /// A port. 0 stands for all ports of the address that have no entry of their own.
        port: u32,
    }
    /// Value of `names`: the name of a workload; unused bytes are zero.
    FlowName as "flow_name" {
        /// The namespace.
        namespace: [u8; 64],
        /// The workload.
        workload: [u8; 64],
    }
    /// A connection of a workload, counted at its socket or at the workload's interface. Times are of
    /// `CLOCK_MONOTONIC`. Several values share a field, because the kernel may keep a million flows; use the methods to
    /// read them.
    Flow as "flow" {
        /// The address of the other side.
        remote_ip: [u32; 4],
        /// When it was begun or accepted; without a SYN, when its first frame was seen.
        opened_ns: u64,
        /// When its state changed, or when more bytes were first seen.
        last_ns: u64,
        /// Bytes that were sent, see [`bytes_sent`](Self::bytes_sent); in the upper 16 bits the workload's port.
        sent: u64,
        /// Bytes that were received; in the upper 16 bits the other side's port.
        received: u64,
        /// The workload's address: IPv4 as it is, for IPv6 its key in `locals`.
        local: u32,
        /// Segments that were sent, including retransmissions and those without payload; of [`FlowOwner::Wire`] frames.
        segments_sent: u32,
        /// Segments that were received, or frames.
        segments_received: u32,
        /// The last pass of the iterator that found the socket. Of [`FlowOwner::Wire`]: the sequence number that
        /// follows the last byte that was sent.
        pass: u32,
        /// The id of the workload.
        workload: u16,
        /// The id of the workload at the other end, [`PEER_OUTSIDE`], [`PEER_SELF`] or [`PEER_CONTROL_PLANE`].
        peer: u16,
        /// Segments that were retransmitted. Concurrent additions may exceed [`MOST_RETRANSMITS`]; readers show no more
        /// than that.
        retransmits: u16,
        /// Smoothed round-trip time, in the format of [`short_time`].
        rtt: u16,
        /// Least round-trip time in the kernel's window, in the same format; 0 if there is none.
        min_rtt: u16,
        /// Duration of the handshake, in the same format. Client: from `connect` to established; server: from SYN-ACK
        /// to ACK.
        handshake: u16,
        /// From the lowest bit: a [`FlowState`], a [`FlowEnd`], a [`FlowRole`] and a [`FlowOwner`].
        phase: u8,
        /// The IP protocol number; 0 in entries of an earlier version, and for frames that are not IP.
        protocol: u8,
        /// Of [`FlowOwner::Wire`]: flags (`MARK_*`) for the frames that were seen, such as a FIN.
        marks: u8,
        /// `AF_INET` or `AF_INET6`; in the upper two bits, if the flow is sampled, which side sent the last payload.
        family: u8,
    }
    /// Value of `locals`: an IPv6 address of a workload.
    FlowLocal as "flow_local" {
        /// 16 bytes in network order.
        ip: [u32; 4],
    }
    /// Key of `pairs`: a workload, its peer, and how they communicate.
    FlowPair as "flow_pair" {
        /// The id of the workload.
        workload: u32,
        /// The other end, as in [`Flow`].
        peer: u32,
        /// A [`FlowRole`].
        role: u8,
        /// A [`FlowOwner`].
        owner: u8,
        /// Of [`FlowOwner::Wire`]: the IP protocol number; else 0, which means TCP.
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
        /// Sum of their durations, over `established`.
        handshake_us: u64,
        /// Sum of the smoothed round-trip times at the end of connections.
        rtt_us: u64,
        /// How many connections `rtt_us` is the sum of.
        rtt_samples: u64,
        /// Sum of the durations of the connections that have ended.
        duration_us: u64,
        /// Connections that have ended, by [`FlowEnd`].
        ended: [u64; 8],
    }
    /// Key of `requests`: identifies one row in which a proxy counts requests with the same labels.
    FlowRequestKey as "flow_request_key" {
        /// The shared memory of one worker of a proxy; 0 for the sums of proxies that have ended.
        memory: u64,
        /// The use of a row in that memory: each use has its own number. For memory 0 a hash of the labels.
        claim: u64,
    }
    /// Value of `requests`: the requests with the same labels, so between one client and one server.
    FlowRequests as "flow_requests" {
        /// The labels as the proxy has them in its shared memory, each with a zero byte at its end; unused bytes are
        /// zero.
        labels: [u8; 512],
        /// Requests by the first digit of their status; 0 for statuses without a class.
        classes: [u64; 6],
        /// Calls by their grpc-status; the last one for all others.
        grpc: [u64; 18],
        /// Sum of the durations of all requests.
        duration_us: u64,
        /// Requests by duration.
        durations: [u64; 32],
        /// For memory 0: the worker's memory of the row that was added last, so that it is not added twice.
        folded_memory: u64,
        /// For memory 0: that row in that memory.
        folded_claim: u64,
    }
    /// Entry of `samples`: the first bytes of the payload of one frame.
    FlowSample as "flow_sample" {
        /// The key of the frame's flow in `flows`.
        key: u64,
        /// When, by `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// When its flow was begun; this distinguishes flows that have the same key one after another.
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
        /// How many of `bytes` are payload; the rest is undefined.
        length: u16,
        /// A [`FlowRole`].
        role: u8,
        /// The number of the protocol.
        protocol: u8,
        /// 1 if the workload sent the frame, else 0.
        sent: u8,
        /// 1 if the other side sent the payload before this one, else 0.
        turns: u8,
        /// Padding.
        reserved: [u8; 6],
        /// The first bytes of the payload.
        bytes: [u8; FLOW_SAMPLE_BYTES],
    }
    /// Key of `wire_requests`: requests of the same kind and result that were read from samples.
    FlowWireKey as "flow_wire_key" {
        /// The id of the workload; 0 for the sums of keys for which the map had no room.
        workload: u32,
        /// The other end, as in [`Flow`].
        peer: u32,
        /// A [`FlowRole`].
        role: u8,
        /// The number of the application protocol.
        protocol: u8,
        /// Padding.
        reserved: [u8; 6],
        /// The kind of request, for example `GET`; unused bytes are zero.
        kind: [u8; 16],
        /// The result, for example `2xx`; unused bytes are zero.
        result: [u8; 16],
    }
    /// Value of `wire_requests`, which user space alone writes.
    FlowWireRequests as "flow_wire_requests" {
        /// All requests, including those without a known duration.
        requests: u64,
        /// Sum of the known durations.
        duration_us: u64,
        /// The requests with a known duration, by duration.
        durations: [u64; 32],
    }
    /// Entry of `events`: a flow that is new or has changed its state.
    FlowEvent as "flow_event" {
        /// The key of the flow in `flows`.
        cookie: u64,
        /// When, by `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// The flow after the change.
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

/// Declares enums of consecutive numbers that the kernel programs store, each value with its name.
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

            /// The value with this number; `None` if this version has none.
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
        /// A SYN was sent, or a handshake with a client is being completed. Other protocols: only the client has sent.
        New = "new",
        /// Both sides may send. Other protocols: the server has answered.
        Established = "established",
        /// One side has closed.
        Closing = "closing",
        /// It has ended.
        Closed = "closed",
    }
    /// How a flow ended, and which side ended it.
    FlowEnd {
        /// It has not ended.
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
    /// How much is accounted for. User space chooses a lower level when the programs cost more than their budget.
    FlowLevel {
        /// Each connection, and the sums of pairs.
        Full = "full",
        /// Only sums of pairs: connections that begin are not listed.
        Aggregated = "aggregated",
        /// Connections that begin are not accounted for.
        Off = "off",
        /// As `Full`, but TCP sockets are counted instead of frames.
        Sockets = "sockets",
        /// As `Full`, but payload of frames is not sampled.
        Packets = "packets",
    }
    /// A BPF program whose runs are counted by workload.
    FlowProgram {
        /// Runs when a connection begins, changes its state or ends.
        Sockops = "leno_flow_sockops",
        /// Runs for each frame that a workload sends.
        Sent = "leno_flow_sent",
        /// Runs for each frame that arrives for a workload.
        Received = "leno_flow_received",
        /// Runs for each packet that the kernel drops.
        Drop = "leno_flow_drop",
    }
    /// Which side opened a flow.
    FlowRole {
        /// The workload.
        Client = "client",
        /// The other side.
        Server = "server",
    }
    /// Who owns the socket of a flow.
    FlowOwner {
        /// The application.
        Application = "application",
        /// The proxy.
        Proxy = "proxy",
        /// Not known: the flow is of frames at the workload's interface, and not of a socket.
        Wire = "wire",
    }
}

/// The names of the counters that belong to no pair, in the order of their indexes. `enum flow_total` has them in upper
/// case, and says what they count.
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

/// The names of the indexes of `sample_counts`; `enum flow_sample_count` has them in upper case.
pub const FLOW_SAMPLE_COUNTS: &[&str] = &["flow_samples_written", "flow_samples_lost"];

/// The names of the indexes of `control`; `enum flow_setting` has them in upper case.
pub const FLOW_SETTINGS: &[&str] =
    &["flow_followed", "flow_pass", "flow_level", "flow_budget", "flow_cost"];

impl FlowAddress {
    /// The entry for all ports of an address.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self { ip: crate::SocketAddress::new(ip, 0).ip, port: 0 }
    }

    /// The entry for one port of an address.
    #[must_use]
    pub fn of_port(at: SocketAddr) -> Self {
        Self { port: at.port().into(), ..Self::new(at.ip()) }
    }
}

impl FlowName {
    /// A name for `names`; each part is cut after 63 bytes, the length of a DNS label.
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

/// Most retransmissions that a flow counts (`FLOW_MOST_RETRANSMITS`).
pub const MOST_RETRANSMITS: u16 = 0xe000;
/// Bits below the port in `sent` and `received` (`FLOW_PORT_SHIFT`).
const PORT_SHIFT: u32 = 48;
/// Most bytes that a flow counts in a direction (`FLOW_MOST_BYTES`).
const MOST_BYTES: u64 = (1 << PORT_SHIFT) - 1 - (1 << 40);
// Ids of workloads have 16 bits in a flow.
const _: () = assert!(MAX_FLOW_IDS <= 1 << 16);
/// The lowest bits of the parts of `phase` (`FLOW_END_SHIFT` and others), and the bits of `family` that are the address
/// family (`FLOW_FAMILY_MASK`).
const END_SHIFT: u32 = 2;
const ROLE_SHIFT: u32 = 5;
const OWNER_SHIFT: u32 = 6;
const FAMILY_MASK: u8 = 63;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// From this number on, a time of 16 bits is in units of 1,024 us (`FLOW_LONG_TIME`).
const LONG_TIME: u16 = 0x8000;

/// The parts of a flow from which [`Flow::new`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct FlowParts {
    /// The workload's address.
    pub local: SocketAddr,
    /// The other side's address.
    pub remote: SocketAddr,
    /// Its state.
    pub state: FlowState,
    /// How it ended.
    pub end: FlowEnd,
    /// The workload's side of it.
    pub role: FlowRole,
    /// Who owns its socket.
    pub owner: FlowOwner,
}

impl Flow {
    /// A flow whose counters are 0.
    #[must_use]
    pub fn new(parts: &FlowParts) -> Self {
        let FlowParts { local, remote, state, end, role, owner } = *parts;
        let zero = Self::from_bytes(&[0; size_of::<Self>()]).expect("as many bytes as it has");
        Self {
            remote_ip: FlowAddress::new(remote.ip()).ip,
            sent: u64::from(local.port()) << PORT_SHIFT,
            received: u64::from(remote.port()) << PORT_SHIFT,
            local: local_of(local.ip()),
            phase: (state as u8)
                | ((end as u8) << END_SHIFT)
                | ((role as u8) << ROLE_SHIFT)
                | ((owner as u8) << OWNER_SHIFT),
            family: if local.ip().to_canonical().is_ipv4() { AF_INET } else { AF_INET6 },
            ..zero
        }
    }

    /// The same flow with these numbers of bytes, or the most that it can count.
    #[must_use]
    pub fn with_bytes(self, sent: u64, received: u64) -> Self {
        let with = |before: u64, bytes: u64| {
            ((before >> PORT_SHIFT) << PORT_SHIFT) | bytes.min(MOST_BYTES)
        };
        Self { sent: with(self.sent, sent), received: with(self.received, received), ..self }
    }

    /// The workload's address and port. `locals` returns the IPv6 address that has a number in the map `locals`. The
    /// address is unspecified if that returns `None` because the entry was evicted.
    #[must_use]
    pub fn local(&self, locals: impl Fn(u32) -> Option<IpAddr>) -> SocketAddr {
        let ip = match self.local_number() {
            Some(number) => locals(number),
            None if self.family & FAMILY_MASK == AF_INET => Some(self.local.to_ne_bytes().into()),
            None => None,
        };
        let ip = ip.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        SocketAddr::new(ip, (self.sent >> PORT_SHIFT) as u16)
    }

    /// The key in `locals` of the workload's address; `None` if it is an IPv4 address.
    #[must_use]
    pub fn local_number(&self) -> Option<u32> {
        (self.family & FAMILY_MASK == AF_INET6).then_some(self.local)
    }

    /// The other side's address and port.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(ip(self.remote_ip), (self.received >> PORT_SHIFT) as u16)
    }

    /// Payload that was sent, each byte once. Of [`FlowOwner::Wire`]: the bytes of all frames that were sent, with
    /// their headers.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.sent & ((1 << PORT_SHIFT) - 1)
    }

    /// Payload that was received, each byte once. Of [`FlowOwner::Wire`]: the bytes of all frames that were received.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.received & ((1 << PORT_SHIFT) - 1)
    }

    /// Smoothed round-trip time in microseconds. This and the next two are in steps of 1,024 us above 32.8 ms, and at
    /// most 33 s.
    #[must_use]
    pub fn rtt_us(&self) -> u32 {
        time_us(self.rtt)
    }

    /// Least round-trip time in the kernel's window, in microseconds; 0 if there is none.
    #[must_use]
    pub fn min_rtt_us(&self) -> u32 {
        time_us(self.min_rtt)
    }

    /// How long the handshake took, in microseconds; 0 if it is not done, or if its begin was not seen.
    #[must_use]
    pub fn handshake_us(&self) -> u32 {
        time_us(self.handshake)
    }

    /// The state; `None` if this version has none with that number.
    #[must_use]
    pub fn state(&self) -> Option<FlowState> {
        FlowState::of(self.phase & 3)
    }

    /// How it ended; `None` if this version has none with that number.
    #[must_use]
    pub fn end(&self) -> Option<FlowEnd> {
        FlowEnd::of((self.phase >> END_SHIFT) & 7)
    }

    /// Which side it is.
    #[must_use]
    pub fn role(&self) -> Option<FlowRole> {
        FlowRole::of((self.phase >> ROLE_SHIFT) & 1)
    }

    /// Who owns its socket; `None` if this version has no owner with that number.
    #[must_use]
    pub fn owner(&self) -> Option<FlowOwner> {
        FlowOwner::of(self.phase >> OWNER_SHIFT)
    }
}

/// Microseconds in the 16-bit format of flows: exact up to 32.8 ms, then rounded down to 1,024 us, at most 33 s. As
/// `short_time` in C.
#[must_use]
pub fn short_time(us: u32) -> u16 {
    match u16::try_from(us) {
        Ok(short) if short < LONG_TIME => short,
        _ => LONG_TIME | u16::try_from(us >> 10).unwrap_or(u16::MAX).min(LONG_TIME - 1),
    }
}

fn time_us(short: u16) -> u32 {
    if short < LONG_TIME { short.into() } else { u32::from(short - LONG_TIME) << 10 }
}

/// The value of [`Flow::local`](Flow) for this address: IPv4 as it is, for IPv6 a hash. As `local_number` in C.
#[must_use]
pub fn local_of(ip: IpAddr) -> u32 {
    let words = FlowAddress::new(ip).ip;
    if ip.to_canonical().is_ipv4() {
        return words[3];
    }
    let mix = |sum: u64, part: u64| {
        let sum = (sum ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        sum ^ (sum >> 29)
    };
    let pair = |at: usize| (u64::from(words[at]) << 32) | u64::from(words[at + 1]);
    (mix(mix(0, pair(0)), pair(2)) >> 32) as u32
}

impl FlowLocal {
    /// The entry for an IPv6 address.
    #[must_use]
    pub fn new(ip: IpAddr) -> Self {
        Self { ip: FlowAddress::new(ip).ip }
    }

    /// The address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        ip(self.ip)
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
mod tests;
