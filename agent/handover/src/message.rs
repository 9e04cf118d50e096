//! The messages between supervisor, broker and node proxy.

use std::net::IpAddr;
use std::ops::Not;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// An order of the supervisor to the node proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "lowercase")]
pub enum ProxyOrder {
    /// Serve a workload. The message has one descriptor: the channel to the workload's broker.
    Join {
        /// Identifies this membership in later messages: the time from this order until the process has released the
        /// workload. Each membership of a process has its own number.
        number: u64,
        /// Whether another process serves the workload until this one does.
        succeeds: bool,
        /// The workload.
        member: Member,
        /// Whether the supervisor supports [`MemberState::Stalled`] and [`MemberState::Used`]. A supervisor of an
        /// earlier version does not.
        #[serde(default)]
        reports: bool,
    },
    /// Finish the open streams of a workload, and stop serving it.
    Leave {
        /// The number of the membership that ends.
        number: u64,
        /// Whether another process accepts the workload's new connections from the same listeners. If so, long
        /// streams may continue for as long as the process permits.
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
    /// The workload to which the instance belongs. If there is none, the instance counts as a workload of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The file with the token for requesting its certificate.
    pub token: PathBuf,
    /// The uid of its pod, if the token is that of the node's proxies. `None` if the token is the workload's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// The HTTP probes that the kubelet, which has no certificate, sends to the workload.
    #[serde(default)]
    pub kubelet: KubeletProbes,
    /// Whether the proxy carries its UDP datagrams. The sockets for these come from its broker.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub datagrams: bool,
}

/// The HTTP probes of a pod, which the kubelet sends to the pod itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KubeletProbes {
    /// The probes as JSON, in the form of the proxy's option `--probes`; empty if there are none.
    pub probes: String,
    /// The addresses of the node, by which the kubelet's connections are recognised.
    pub addresses: Vec<IpAddr>,
}

/// A report of the node proxy to the supervisor about a membership.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberReport {
    /// The number of the membership, which [`ProxyOrder::Join`] has set.
    pub number: u64,
    /// The new state.
    pub state: MemberState,
}

impl MemberReport {
    /// The report that the process is alive. No membership has this number.
    pub const ALIVE: Self = Self { number: 0, state: MemberState::Alive };
}

/// The states of a membership, and other reports about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// The workload has its identity, and its connections are accepted.
    Serving,
    /// The process no longer serves the workload: it was ordered to leave, or its broker has ended.
    Released,
    /// The process was ordered to leave and has cut open streams of the workload, which did not end within the bound.
    /// Sent before [`Self::Released`], and before a proxy of a single workload ends. A supervisor of an earlier version
    /// ignores it.
    Cut,
    /// The process was ordered to leave because another process serves the workload, and has closed its own listeners.
    /// It still finishes its open streams. Only a proxy of a single workload reports this; other proxies have the
    /// listeners of brokers.
    Closed,
    /// The thread that handles the workload's connections has stalled, so the process accepts no new ones. Its
    /// open streams are kept, in case the thread recovers. The same workload may join again at once.
    Stalled,
    /// The CPU time that the workload's threads have used. This is sent every few seconds, unless they were idle.
    Used(CpuUse),
    /// The process is alive. This is sent each second, and does not concern a membership. A process of an earlier
    /// version does not send it, and a supervisor of an earlier version ignores it.
    Alive,
}

/// CPU time used during a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuUse {
    /// The CPU time.
    pub cpu_ms: u32,
    /// The length of the period.
    pub of_ms: u32,
}

impl CpuUse {
    /// The share of one CPU, in percent.
    #[must_use]
    pub fn percent(self) -> u32 {
        let percent = u64::from(self.cpu_ms).saturating_mul(100).checked_div(self.of_ms.into());
        percent.and_then(|percent| percent.try_into().ok()).unwrap_or_default()
    }
}

/// An order of the supervisor to the broker: serve another node proxy, to which the channel in the message leads. Node
/// proxies of earlier orders still get sockets until they end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServeOrder {
    /// Whether the broker must instead close its listeners, because another process listens. Such an order has no
    /// channel, and the broker answers it with [`ListenersClosed`]. Node proxies still get sockets.
    #[serde(default)]
    pub closes: bool,
}

/// The broker's answer to the supervisor: the listeners are closed in all processes that have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListenersClosed {}

/// A message of the broker to a node proxy. The descriptors are in the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "offer", rename_all = "lowercase")]
pub enum BrokerOffer {
    /// The first message, which contains everything that a proxy needs only once.
    Namespace {
        /// The purpose of each descriptor, in their order.
        roles: Vec<SocketRole>,
        /// The addresses of the namespace's interfaces.
        addresses: Vec<IpAddr>,
        /// Whether the broker can also create UDP sockets. A broker of an earlier version cannot.
        #[serde(default)]
        makes_udp: bool,
    },
    /// Unconnected sockets of one family.
    Sockets {
        /// Whether they are IPv6 sockets; otherwise they are IPv4 sockets.
        ipv6: bool,
        /// Whether they are UDP sockets; otherwise they are TCP sockets.
        #[serde(default, skip_serializing_if = "Not::not")]
        udp: bool,
        /// Why there are fewer sockets than requested, as the kernel's error number.
        errno: Option<i32>,
    },
}

/// The purpose of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SocketRole {
    /// A listener for the application's connections.
    Outbound,
    /// A listener for connections to the application.
    Inbound,
    /// The listener of the admin server.
    Admin,
    /// A socket for queries to the kernel about sockets of the namespace (sock_diag(7)).
    Diagnosis,
    /// A socket on which the kernel announces that it destroys sockets of the namespace.
    Announcements,
    /// An unconnected socket for finding out which options the namespace supports.
    Probe,
}

/// A request of the node proxy to the broker for more sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketRequest {
    /// Whether IPv6 sockets are requested; otherwise IPv4 sockets.
    pub ipv6: bool,
    /// Whether UDP sockets are requested; otherwise TCP sockets. A broker of an earlier version ignores this; see
    /// [`BrokerOffer::Namespace`].
    #[serde(default, skip_serializing_if = "Not::not")]
    pub udp: bool,
    /// How many sockets are requested.
    pub count: usize,
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::de::DeserializeOwned;

    use super::*;

    /// A broker runs for as long as its workload, while the supervisor and the node proxies are updated.
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
        // The first order is of an earlier supervisor, the second of a later one.
        for order in ["{}", r#"{"closes":false,"later":1}"#] {
            assert_eq!(
                serde_json::from_str::<ServeOrder>(order).unwrap(),
                ServeOrder::default(),
                "{order}"
            );
        }
    }
}
