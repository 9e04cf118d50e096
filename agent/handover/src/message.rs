//! What supervisor, broker and node proxy say to each other.

use std::net::IpAddr;
use std::ops::Not;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Supervisor to node proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum ProxyOrder {
    /// Serve a workload. Comes with one descriptor: the channel to its broker.
    Join {
        /// Names the membership in later messages; no other one of the process has or had it.
        number: u64,
        /// Another process serves the workload until this one does.
        succeeds: bool,
        /// The workload.
        member: Member,
        /// The supervisor knows [`MemberState::Stalled`] and [`MemberState::Used`]. One of an earlier version does not.
        #[serde(default)]
        reports: bool,
    },
    /// Finish what is under way for a workload, then serve it no more.
    Leave {
        /// Of the membership.
        number: u64,
        /// Another process takes the workload's new connections, of the same listeners. Long streams may then go on
        /// for as long as the process permits.
        succeeded: bool,
    },
}

/// A workload that a node proxy serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its namespace.
    pub namespace: String,
    /// The name of the instance.
    pub name: String,
    /// The workload that the instance belongs to. Without it the instance is one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The file with the token for its certificate.
    pub token: PathBuf,
    /// The uid of its pod, where the token is that of the node's proxies. Without it the token is the workload's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// What a kubelet asks the workload, for which it has no certificate.
    #[serde(default)]
    pub kubelet: KubeletProbes,
    /// Its datagrams of UDP are carried. The sockets for them come from its broker.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub datagrams: bool,
}

/// The HTTP probes of a pod, which the kubelet sends to the pod itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletProbes {
    /// As JSON, in the form of the proxy's option `--probes`; empty without probes.
    pub probes: String,
    /// The addresses of the node, by which the kubelet's connections are recognised.
    pub addresses: Vec<IpAddr>,
}

/// Node proxy to supervisor: what has become of a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// As the order to join has it.
    pub number: u64,
    /// What it has become.
    pub state: MemberState,
}

impl MemberReport {
    /// That the process goes on: no membership has this number.
    pub const ALIVE: Self = Self { number: 0, state: MemberState::Alive };
}

/// What a membership can become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The workload has its identity, and its connections are accepted.
    Serving,
    /// It is served no more, because it was to leave, or because its broker has ended.
    Released,
    /// It was to leave, as another process serves the workload, and has closed the listeners, which are its own. It finishes what
    /// it has. Only a proxy of one workload reports it: others have no listeners of their own.
    Closed,
    /// The thread of its connections does not come round, so that it serves no new ones. The membership goes on with what it
    /// has, should that thread go on. Another one of the same workload may join at once.
    Stalled,
    /// What its threads have used of the CPU. Sent every few seconds, but not while it is next to nothing.
    Used(CpuUse),
    /// The process goes on. Sent each second, of no membership. A process of an earlier version does not send it, and a
    /// supervisor of an earlier version passes it over.
    Alive,
}

/// The CPU time that was used within a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The CPU time.
    pub cpu_ms: u32,
    /// The time in which it was used.
    pub of_ms: u32,
}

impl CpuUse {
    /// Of one CPU.
    #[must_use]
    pub fn percent(self) -> u32 {
        let percent = u64::from(self.cpu_ms).saturating_mul(100).checked_div(self.of_ms.into());
        percent.and_then(|percent| percent.try_into().ok()).unwrap_or_default()
    }
}

/// Supervisor to broker: serve the node proxy at the other end of the channel that comes with this, too. An earlier one
/// still gets sockets until it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeOrder {
    /// Comes without a channel: another process listens, so the listeners are to be closed, which [`ListenersClosed`] answers.
    /// Node proxies still get sockets.
    #[serde(default)]
    pub closes: bool,
}

/// Broker to supervisor: the listeners are closed, for all processes that had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenersClosed {}

/// Broker to node proxy. The descriptors come with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "offer", rename_all = "lowercase")]
pub enum BrokerOffer {
    /// The first message: what a proxy needs once.
    Namespace {
        /// What each descriptor is for, in their order.
        roles: Vec<SocketRole>,
        /// The addresses of the namespace's interfaces.
        addresses: Vec<IpAddr>,
        /// It makes sockets of UDP, too. One of an earlier version does not.
        #[serde(default)]
        makes_udp: bool,
    },
    /// Unconnected sockets of one family.
    Sockets {
        /// Of IPv6, else of IPv4.
        ipv6: bool,
        /// Of UDP, else of TCP.
        #[serde(default, skip_serializing_if = "Not::not")]
        udp: bool,
        /// Why there are fewer than were wanted: the kernel's number of the error.
        errno: Option<i32>,
    },
}

/// What a descriptor is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRole {
    /// A listener for the application's connections.
    Outbound,
    /// A listener for connections to the application.
    Inbound,
    /// The listener of the admin server.
    Admin,
    /// A socket that asks the kernel about sockets of the namespace (sock_diag(7)).
    Diagnosis,
    /// A socket on which the kernel announces sockets of the namespace that it destroys.
    Announcements,
    /// An unconnected socket to find out what the namespace offers.
    Probe,
}

/// Node proxy to broker: more sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRequest {
    /// Of IPv6, else of IPv4.
    pub ipv6: bool,
    /// Of UDP, else of TCP. An earlier broker passes it over: see [`BrokerOffer::Namespace`].
    #[serde(default, skip_serializing_if = "Not::not")]
    pub udp: bool,
    /// How many.
    pub count: usize,
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;

    /// A broker runs for as long as its workload does, while its supervisor and the node proxies are updated.
    #[test]
    fn a_broker_and_programs_of_other_versions_understand_each_other() {
        fn is_text<T: Serialize + DeserializeOwned + PartialEq + Debug>(message: &T, text: &str) {
            assert_eq!(serde_json::to_string(message).unwrap(), text);
            assert_eq!(&serde_json::from_str::<T>(text).unwrap(), message);
        }
        is_text(&ServeOrder::default(), r#"{"closes":false}"#);
        is_text(&ServeOrder { closes: true }, r#"{"closes":true}"#);
        is_text(&ListenersClosed {}, "{}");
        is_text(&SocketRequest { ipv6: true, udp: false, count: 3 }, r#"{"ipv6":true,"count":3}"#);
        is_text(
            &SocketRequest { ipv6: true, udp: true, count: 3 },
            r#"{"ipv6":true,"udp":true,"count":3}"#,
        );
        is_text(
            &BrokerOffer::Sockets { ipv6: false, udp: false, errno: Some(24) },
            r#"{"offer":"sockets","ipv6":false,"errno":24}"#,
        );
        is_text(
            &BrokerOffer::Sockets { ipv6: false, udp: true, errno: None },
            r#"{"offer":"sockets","ipv6":false,"udp":true,"errno":null}"#,
        );
        let roles = vec![
            SocketRole::Admin,
            SocketRole::Outbound,
            SocketRole::Inbound,
            SocketRole::Diagnosis,
        ];
        let roles = [roles, vec![SocketRole::Announcements, SocketRole::Probe]].concat();
        let addresses = vec![IpAddr::from([192, 0, 2, 1])];
        is_text(
            &BrokerOffer::Namespace { roles, addresses, makes_udp: true },
            concat!(
                r#"{"offer":"namespace","roles":["admin","outbound","inbound","diagnosis","announcements","#,
                r#""probe"],"addresses":["192.0.2.1"],"makes_udp":true}"#
            ),
        );
        let earlier = r#"{"offer":"namespace","roles":[],"addresses":[]}"#;
        assert_eq!(
            serde_json::from_str::<BrokerOffer>(earlier).unwrap(),
            BrokerOffer::Namespace { roles: vec![], addresses: vec![], makes_udp: false }
        );
        // Of an earlier supervisor, and of a later one.
        for order in ["{}", r#"{"closes":false,"later":1}"#] {
            assert_eq!(
                serde_json::from_str::<ServeOrder>(order).unwrap(),
                ServeOrder::default(),
                "{order}"
            );
        }
    }
}
