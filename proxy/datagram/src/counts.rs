//! What is counted, for metrics.

use std::cell::Cell;

use quinn::ConnectionError;

macro_rules! counts {
    ($($name:literal $help:literal { $($(#[doc = $doc:literal])+ $variant:ident = $labels:literal,)+ })+) => {
        /// Something that is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($($(#[doc = $doc])+ $variant,)+)+
        }

        impl Count {
            /// All of them. Those of one metric are adjacent.
            pub const ALL: &'static [Self] = &[$($(Self::$variant),+),+];

            /// The metric's name without the suffix `_total`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant)|+ => $name),+ }
            }

            /// What the metric is.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $($(Self::$variant)|+ => $help),+ }
            }

            /// The labels, in the form between the braces.
            #[must_use]
            pub const fn labels(self) -> &'static str {
                match self { $($(Self::$variant => $labels),+),+ }
            }
        }
    };
}

counts! {
    "leno_datagrams" "Datagrams of applications that proxies carried, by where they went." {
        /// From the workload towards a server.
        OutboundSent = r#"direction="outbound",to="server""#,
        /// From a server to the workload.
        OutboundReceived = r#"direction="outbound",to="client""#,
        /// From a client to the workload.
        InboundReceived = r#"direction="inbound",to="server""#,
        /// From the workload to a client.
        InboundSent = r#"direction="inbound",to="client""#,
    }
    "leno_datagram_bytes" "Payload of the datagrams that proxies carried." {
        /// From the workload towards a server.
        OutboundSentBytes = r#"direction="outbound",to="server""#,
        /// From a server to the workload.
        OutboundReceivedBytes = r#"direction="outbound",to="client""#,
        /// From a client to the workload.
        InboundReceivedBytes = r#"direction="inbound",to="server""#,
        /// From the workload to a client.
        InboundSentBytes = r#"direction="inbound",to="client""#,
    }
    "leno_datagrams_dropped" "Datagrams of applications that proxies dropped, by reason." {
        /// Larger than the path allows.
        OutboundTooLarge = r#"direction="outbound",reason="too-large""#,
        /// More waited in the connection than it has room for.
        OutboundCongested = r#"direction="outbound",reason="congested""#,
        /// More came before the flow was open than may wait.
        OutboundWaiting = r#"direction="outbound",reason="not-open""#,
        /// The flow was refused.
        OutboundRefused = r#"direction="outbound",reason="refused""#,
        /// Of a flow that has ended.
        OutboundUnknown = r#"direction="outbound",reason="no-flow""#,
        /// Where it goes is not known: it was sent to the proxy itself, or the kernel's table has no room.
        OutboundNoDestination = r#"direction="outbound",reason="no-destination""#,
        /// The kernel did not take it.
        OutboundUnsent = r#"direction="outbound",reason="unsent""#,
        /// Larger than the path allows.
        InboundTooLarge = r#"direction="inbound",reason="too-large""#,
        /// More waited in the connection than it has room for.
        InboundCongested = r#"direction="inbound",reason="congested""#,
        /// Of a flow that has ended.
        InboundUnknown = r#"direction="inbound",reason="no-flow""#,
        /// The application did not take it.
        InboundUnsent = r#"direction="inbound",reason="unsent""#,
    }
    "leno_datagram_flows" "Flows of datagrams, by what became of them." {
        /// Opened to a server of the mesh.
        OutboundOpened = r#"direction="outbound",result="opened""#,
        /// Opened to an address outside of the mesh, in plaintext.
        OutboundOutside = r#"direction="outbound",result="outside""#,
        /// Refused by this proxy or the server's.
        OutboundFlowRefused = r#"direction="outbound",result="refused""#,
        /// The server's proxy could not be reached, or did not answer in time.
        OutboundFlowFailed = r#"direction="outbound",result="failed""#,
        /// Ended for a new flow, since there were too many.
        OutboundEvicted = r#"direction="outbound",result="evicted""#,
        /// Ended because there was no datagram for too long.
        OutboundIdle = r#"direction="outbound",result="idle""#,
        /// Ended because datagrams for its destination go another way now, or nowhere.
        OutboundMoved = r#"direction="outbound",result="moved""#,
        /// Not begun, since there were too many that leave the mesh.
        OutboundOutsideLimit = r#"direction="outbound",result="limit""#,
        /// Opened by a client.
        InboundOpened = r#"direction="inbound",result="opened""#,
        /// Denied by a policy, or to a port that is not declared.
        InboundDenied = r#"direction="inbound",result="denied""#,
        /// Ended because policies permit it no more.
        InboundRevoked = r#"direction="inbound",result="revoked""#,
        /// Refused or ended because there were too many.
        InboundLimit = r#"direction="inbound",result="limit""#,
        /// Ended because there was no datagram for too long.
        InboundIdle = r#"direction="inbound",result="idle""#,
        /// The client's proxy said nothing that is a flow.
        InboundMalformed = r#"direction="inbound",result="malformed""#,
        /// There is no socket towards the application.
        InboundFlowFailed = r#"direction="inbound",result="failed""#,
    }
    "leno_datagram_connections" "Connections of QUIC between proxies, by result." {
        /// To the proxy of a server.
        OutboundConnected = r#"direction="outbound",result="opened""#,
        /// The handshake failed.
        OutboundConnectFailed = r#"direction="outbound",result="failed""#,
        /// Not begun, since there were too many.
        OutboundConnectLimit = r#"direction="outbound",result="limit""#,
        /// Ended because the certificate of the other side has ended or was revoked.
        OutboundUnproven = r#"direction="outbound",result="certificate""#,
        /// Ended because nothing came from the other side for too long.
        OutboundSilent = r#"direction="outbound",result="silent""#,
        /// Of the proxy of a client.
        InboundConnected = r#"direction="inbound",result="opened""#,
        /// The handshake failed.
        InboundConnectFailed = r#"direction="inbound",result="failed""#,
        /// Refused or ended, since there were too many, also of one address or identity.
        InboundConnectLimit = r#"direction="inbound",result="limit""#,
        /// Ended because the certificate of the other side has ended or was revoked.
        InboundUnproven = r#"direction="inbound",result="certificate""#,
        /// Ended because nothing came from the other side for too long.
        InboundSilent = r#"direction="inbound",result="silent""#,
    }
}

/// How many there are.
pub const COUNTS: usize = Count::ALL.len();

/// One number for each [`Count`].
#[derive(Debug)]
pub(crate) struct Counts([Cell<u64>; COUNTS]);

impl Default for Counts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cell::new(0)))
    }
}

impl Counts {
    pub(crate) fn count(&self, count: Count) {
        self.count_many(count, 1);
    }

    pub(crate) fn count_many(&self, count: Count, number: usize) {
        if let Some(cell) = self.0.get(count as usize) {
            cell.set(cell.get().wrapping_add(number as u64));
        }
    }

    /// Counts a connection that has ended because it was silent.
    pub(crate) fn ended(&self, how: &ConnectionError, silent: Count) {
        if *how == ConnectionError::TimedOut {
            self.count(silent);
        }
    }

    /// All numbers, in the order of [`Count::ALL`].
    pub(crate) fn all(&self) -> [u64; COUNTS] {
        self.0.each_ref().map(Cell::get)
    }
}
