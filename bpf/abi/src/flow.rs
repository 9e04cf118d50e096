//! The structures of the flow programs: `bpf/lib/flow_abi.h` in Rust.

use std::mem::{offset_of, size_of};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::layout::{Field, Layout, size_of_field};

/// The layout of the pinned maps. Raised with every change of a pinned structure: maps of another layout are not used
/// again.
pub const FLOW_LAYOUT: u32 = 4;

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
        /// The tracepoint of drops names the socket that a packet was for (since 6.11).
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
    /// A connection, seen from the socket of a workload, or from its interface; times are of `CLOCK_MONOTONIC`. Its parts
    /// are read by functions: the kernel may keep a million of them.
    Flow as "flow" {
        /// The address that it is connected to.
        remote_ip: [u32; 4],
        /// When it was begun, or accepted.
        opened_ns: u64,
        /// When it changed state last, or was last seen to have moved bytes.
        last_ns: u64,
        /// Payload that was sent, each byte once; above it the socket's own port.
        sent: u64,
        /// Payload that was received, each byte once; above it the port that it is connected to.
        received: u64,
        /// The socket's own address: of IPv4 as it is, of IPv6 its key in `locals`.
        local: u32,
        /// Segments that were sent, with retransmissions and those without payload.
        segments_sent: u32,
        /// Segments that were received.
        segments_received: u32,
        /// The last pass of the iterator that found the socket. Of [`FlowOwner::Wire`]: a sequence number.
        pass: u32,
        /// The id of the workload.
        workload: u16,
        /// The id of the workload at the other end, [`PEER_OUTSIDE`], [`PEER_SELF`]
        /// or [`PEER_CONTROL_PLANE`].
        peer: u16,
        /// Segments that were sent again; programs that ran at once may pass [`MOST_RETRANSMITS`], which is shown then.
        retransmits: u16,
        /// Smoothed round-trip time.
        rtt: u16,
        /// Least round-trip time in the kernel's window; 0 if there is none.
        min_rtt: u16,
        /// Client: from `connect` to established; server: from SYN-ACK to ACK.
        handshake: u16,
        /// A [`FlowState`], a [`FlowEnd`], a [`FlowRole`] and a [`FlowOwner`].
        phase: u8,
        /// The number of the protocol; 0 in what an earlier version wrote, and in frames that are not IP.
        protocol: u8,
        /// Of [`FlowOwner::Wire`]: what its frames have had.
        marks: u8,
        /// `AF_INET` or `AF_INET6`, and of samples which side's payload came last.
        family: u8,
    }
    /// Value of `locals`: an IPv6 address of a workload.
    FlowLocal as "flow_local" {
        /// 16 bytes in network order.
        ip: [u32; 4],
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

/// Most retransmissions that a flow counts (`FLOW_MOST_RETRANSMITS`).
pub const MOST_RETRANSMITS: u16 = 0xe000;
/// Bits below the port in `sent` and `received` (`FLOW_PORT_SHIFT`).
const PORT_SHIFT: u32 = 48;
/// Most bytes that a flow counts in a direction (`FLOW_MOST_BYTES`).
const MOST_BYTES: u64 = (1 << PORT_SHIFT) - 1 - (1 << 40);
// Ids of workloads have 16 bits in a flow.
const _: () = assert!(MAX_FLOW_IDS <= 1 << 16);
/// Where the parts of `phase` begin (`FLOW_END_SHIFT` and others), and the mask of `family` (`FLOW_FAMILY_MASK`).
const END_SHIFT: u32 = 2;
const ROLE_SHIFT: u32 = 5;
const OWNER_SHIFT: u32 = 6;
const FAMILY_MASK: u8 = 63;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The least time in 16 bits that is not in microseconds (`FLOW_LONG_TIME`).
const LONG_TIME: u16 = 0x8000;

/// What a flow has beside its numbers, as [`Flow::new`] takes it.
#[derive(Clone, Copy, Debug)]
pub struct FlowParts {
    /// The socket's own address.
    pub local: SocketAddr,
    /// What it is connected to.
    pub remote: SocketAddr,
    /// Its state.
    pub state: FlowState,
    /// How it ended.
    pub end: FlowEnd,
    /// Which side it is.
    pub role: FlowRole,
    /// Which program has it.
    pub owner: FlowOwner,
}

impl Flow {
    /// A flow that has counted nothing.
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

    /// The same flow with these bytes, as many as it can count.
    #[must_use]
    pub fn with_bytes(self, sent: u64, received: u64) -> Self {
        let with = |before: u64, bytes: u64| {
            ((before >> PORT_SHIFT) << PORT_SHIFT) | bytes.min(MOST_BYTES)
        };
        Self { sent: with(self.sent, sent), received: with(self.received, received), ..self }
    }

    /// The socket's own address and port. `locals` finds an IPv6 address by its number; the unspecified address stands in for one
    /// that is not known any more.
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

    /// The key of the socket's own address in `locals`; `None` if it is of IPv4.
    #[must_use]
    pub fn local_number(&self) -> Option<u32> {
        (self.family & FAMILY_MASK == AF_INET6).then_some(self.local)
    }

    /// The address and port that it is connected to.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(ip(self.remote_ip), (self.received >> PORT_SHIFT) as u16)
    }

    /// Payload that was sent, each byte once.
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.sent & ((1 << PORT_SHIFT) - 1)
    }

    /// Payload that was received, each byte once.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.received & ((1 << PORT_SHIFT) - 1)
    }

    /// Smoothed round-trip time, in microseconds; as the two that follow above 32.8 ms in steps of 1.024 ms, 33 s at most.
    #[must_use]
    pub fn rtt_us(&self) -> u32 {
        time_us(self.rtt)
    }

    /// Least round-trip time in the kernel's window; 0 if there is none.
    #[must_use]
    pub fn min_rtt_us(&self) -> u32 {
        time_us(self.min_rtt)
    }

    /// How long the handshake took; 0 if it is not done.
    #[must_use]
    pub fn handshake_us(&self) -> u32 {
        time_us(self.handshake)
    }

    /// The state, if this version has it.
    #[must_use]
    pub fn state(&self) -> Option<FlowState> {
        FlowState::of(self.phase & 3)
    }

    /// How it ended, if this version has it.
    #[must_use]
    pub fn end(&self) -> Option<FlowEnd> {
        FlowEnd::of((self.phase >> END_SHIFT) & 7)
    }

    /// Which side it is.
    #[must_use]
    pub fn role(&self) -> Option<FlowRole> {
        FlowRole::of((self.phase >> ROLE_SHIFT) & 1)
    }

    /// Which program has it, if this version has that.
    #[must_use]
    pub fn owner(&self) -> Option<FlowOwner> {
        FlowOwner::of(self.phase >> OWNER_SHIFT)
    }
}

/// A time of so many microseconds in 16 bits (`short_time`).
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

/// `local` of a flow with this address (`local_number`).
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
    /// One of IPv6.
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
        let mut parts = FlowParts {
            local: "10.89.0.2:40000".parse().unwrap(),
            remote: "[fd89::3]:80".parse().unwrap(),
            state: FlowState::Closed,
            end: FlowEnd::Refused,
            role: FlowRole::Server,
            owner: FlowOwner::Wire,
        };
        let flow = Flow::new(&parts).with_bytes(7, 1 << 40);
        assert_eq!(flow.local(|_| None), parts.local);
        assert_eq!((flow.remote(), flow.local_number()), (parts.remote, None));
        assert_eq!((flow.bytes_sent(), flow.bytes_received()), (7, 1 << 40));
        assert_eq!((flow.state(), flow.end()), (Some(parts.state), Some(parts.end)));
        assert_eq!((flow.role(), flow.owner()), (Some(parts.role), Some(parts.owner)));
        parts.local = "[fd89::2]:1".parse().unwrap();
        let flow = Flow::new(&parts);
        let number = flow.local_number().unwrap();
        assert_eq!(flow.local(|one| (one == number).then(|| parts.local.ip())), parts.local);
        assert_eq!(flow.local(|_| None).to_string(), "[::]:1");
        assert_eq!(FlowName::new("shop", "web").parts(), ("shop".into(), "web".into()));
    }

    #[test]
    fn long_times_are_in_coarse_steps_and_have_an_end() {
        for (us, read) in [
            (0, 0),
            (32_767, 32_767),
            (32_768, 32_768),
            (33_000, 32_768),
            (1_000_000, 999_424),
            (33_553_408, 33_553_408),
            (u32::MAX, 33_553_408),
        ] {
            assert_eq!(time_us(short_time(us)), read, "{us}");
        }
    }
}
