//! A flow with names and wall-clock times, for people and programs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leno_bpf::flows::{WorkloadAddresses, monotonic};
use leno_bpf_abi::flow::{
    FIRST_WORKLOAD, Flow, FlowEnd, FlowEvent, FlowOwner, FlowRole, FlowState, MOST_RETRANSMITS,
    PEER_CONTROL_PLANE, PEER_SELF,
};
use serde::{Deserialize, Deserializer, Serialize};

/// Stands for the name of a workload that is not in the maps, because another version has written them.
const UNNAMED: &str = "?";

/// The names of workloads by their IDs: namespace and workload.
pub(crate) type WorkloadNames = BTreeMap<u32, (String, String)>;

/// The difference between the kernel's clock and the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct ClockOffset {
    /// The Unix time at which the kernel's clock was zero.
    began: Duration,
    now: Duration,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowPeer {
    /// A workload, by namespace and name.
    Workload {
        /// The namespace.
        namespace: String,
        /// The workload.
        workload: String,
    },
    /// The same instance: loopback, as between an application and its proxy.
    Itself,
    /// The control plane.
    ControlPlane,
    /// Any other address.
    Outside,
}

/// An IP protocol by its number, as in flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IpProtocol(u8);

impl IpProtocol {
    pub(crate) const TCP: Self = Self(6);
    const NAMES: [&str; 6] = ["tcp", "icmp", "udp", "icmpv6", "sctp", "other"];

    /// Flows of sockets are TCP. Flows of frames have a protocol number, or none if they are not IP.
    pub(crate) fn new(owner: FlowOwner, number: u8) -> Self {
        match owner {
            FlowOwner::Wire => Self(number),
            FlowOwner::Application | FlowOwner::Proxy => Self::TCP,
        }
    }

    /// The name in output and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self.0 {
            6 => "tcp",
            1 => "icmp",
            17 => "udp",
            58 => "icmpv6",
            132 => "sctp",
            _ => "other",
        }
    }
}

/// A fixed word as the value of a field. An alias is used because Serde would borrow a field whose type is written
/// as a reference.
pub type FieldWord = &'static str;

/// Parses a word that another process has written.
fn word<'de, D: Deserializer<'de>>(from: D) -> Result<FieldWord, D::Error> {
    let text = String::deserialize(from)?;
    let all = FlowState::ALL.iter().map(|one| one.name());
    let all = all.chain(FlowEnd::ALL.iter().map(|one| one.name()));
    let all = all.chain(FlowRole::ALL.iter().map(|one| one.name()));
    let all = all.chain(FlowOwner::ALL.iter().map(|one| one.name()));
    let mut all = all.chain(IpProtocol::NAMES);
    Ok(all.find(|word| *word == text).unwrap_or(UNNAMED))
}

/// A connection of a workload, as `leno flows` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowConnection {
    /// The kernel's unique number for the socket; for frames, a number that is computed from the addresses.
    pub cookie: u64,
    /// The workload's namespace.
    pub namespace: String,
    /// The workload.
    pub workload: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, or `other`.
    #[serde(deserialize_with = "word")]
    pub protocol: FieldWord,
    /// Which program owns the socket, `application` or `proxy`; `wire` if frames are counted.
    #[serde(deserialize_with = "word")]
    pub socket: FieldWord,
    /// `client` if the workload has opened the connection, `server` if it has accepted it.
    #[serde(deserialize_with = "word")]
    pub role: FieldWord,
    /// The workload's address.
    pub local: SocketAddr,
    /// The address to which it is connected.
    pub remote: SocketAddr,
    /// The owner of that address.
    pub peer: FlowPeer,
    /// `new`, `established`, `closing` or `closed`.
    #[serde(deserialize_with = "word")]
    pub state: FieldWord,
    /// How the connection has ended, and which side has ended it; `open` if it has not ended.
    #[serde(deserialize_with = "word")]
    pub end: FieldWord,
    /// Payload that was sent, without retransmissions. For frames, all bytes on the wire.
    pub bytes_sent: u64,
    /// Payload that was received, without retransmissions. For frames, all bytes on the wire.
    pub bytes_received: u64,
    /// Segments that were sent.
    pub segments_sent: u32,
    /// Segments that were received.
    pub segments_received: u32,
    /// Retransmitted segments; at most 57,344.
    pub retransmits: u32,
    /// Smoothed round-trip time. As for the other times, the resolution above 32.8 ms is 1.024 ms, and the largest
    /// value is 33 s.
    pub rtt_us: u32,
    /// Lowest round-trip time of the last five minutes.
    pub min_rtt_us: u32,
    /// How long the handshake took; 0 if it is not complete.
    pub handshake_us: u32,
    /// When it began, in milliseconds since 1970.
    pub first_seen_unix_ms: u64,
    /// When the connection last changed its state or was seen to transfer bytes.
    pub last_seen_unix_ms: u64,
    /// The time from its beginning to its end, or until now.
    pub duration_ms: u64,
}

/// A connection that changed its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionChange {
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The connection after the change.
    #[serde(flatten)]
    pub connection: FlowConnection,
}

impl ClockOffset {
    /// Reads both clocks.
    #[must_use]
    pub fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = monotonic();
        Self { began: unix.saturating_sub(now), now }
    }

    fn unix_ms(self, ns: u64) -> u64 {
        whole_ms(self.began + Duration::from_nanos(ns))
    }
}

impl FlowConnection {
    pub(crate) fn new(
        (cookie, flow): (u64, &Flow),
        names: &WorkloadNames,
        locals: &WorkloadAddresses,
        clock: ClockOffset,
    ) -> Self {
        let (namespace, workload) = name_of(names, flow.workload.into());
        let state = flow.state();
        let end_ns = match state {
            Some(FlowState::Closed) => flow.last_ns,
            _ => u64::try_from(clock.now.as_nanos()).unwrap_or(u64::MAX),
        };
        let lasted = Duration::from_nanos(end_ns.saturating_sub(flow.opened_ns));
        Self {
            cookie,
            namespace,
            workload,
            protocol: flow
                .owner()
                .map_or(UNNAMED, |owner| IpProtocol::new(owner, flow.protocol).name()),
            socket: flow.owner().map_or(UNNAMED, FlowOwner::name),
            role: flow.role().map_or(UNNAMED, FlowRole::name),
            local: flow.local(|number| locals.get(number)),
            remote: flow.remote(),
            peer: peer_of(names, flow.peer.into()),
            state: state.map_or(UNNAMED, FlowState::name),
            end: flow.end().map_or(UNNAMED, FlowEnd::name),
            bytes_sent: flow.bytes_sent(),
            bytes_received: flow.bytes_received(),
            segments_sent: flow.segments_sent,
            segments_received: flow.segments_received,
            retransmits: flow.retransmits.min(MOST_RETRANSMITS).into(),
            rtt_us: flow.rtt_us(),
            min_rtt_us: flow.min_rtt_us(),
            handshake_us: flow.handshake_us(),
            first_seen_unix_ms: clock.unix_ms(flow.opened_ns),
            last_seen_unix_ms: clock.unix_ms(flow.last_ns),
            duration_ms: whole_ms(lasted),
        }
    }
}

impl ConnectionChange {
    pub(crate) fn new(
        event: &FlowEvent,
        names: &WorkloadNames,
        locals: &WorkloadAddresses,
        clock: ClockOffset,
    ) -> Self {
        Self {
            at_unix_ms: clock.unix_ms(event.at_ns),
            connection: FlowConnection::new((event.cookie, &event.flow), names, locals, clock),
        }
    }
}

/// The namespace and the name of a workload.
pub(crate) fn name_of(names: &WorkloadNames, id: u32) -> (String, String) {
    let unnamed = || (UNNAMED.to_owned(), UNNAMED.to_owned());
    names.get(&id).cloned().unwrap_or_else(unnamed)
}

pub(crate) fn peer_of(names: &WorkloadNames, id: u32) -> FlowPeer {
    match id {
        PEER_SELF => FlowPeer::Itself,
        PEER_CONTROL_PLANE => FlowPeer::ControlPlane,
        FIRST_WORKLOAD.. => {
            let (namespace, workload) = name_of(names, id);
            FlowPeer::Workload { namespace, workload }
        }
        _ => FlowPeer::Outside,
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
