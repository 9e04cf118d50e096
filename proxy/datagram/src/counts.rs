//! The counters for metrics.

use std::cell::Cell;

use quinn::ConnectionError;

macro_rules! counts {
    ($($name:literal $help:literal { $($(#[doc = $doc:literal])+ $variant:ident = $labels:literal,)+ })+) => {
        /// One counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Count {
            $($($(#[doc = $doc])+ $variant,)+)+
        }

        impl Count {
            /// All counters. The counters of one metric are adjacent.
            pub const ALL: &'static [Self] = &[$($(Self::$variant),+),+];

            /// The metric's name without the suffix `_total`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$variant)|+ => $name),+ }
            }

            /// A description of the metric.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $($(Self::$variant)|+ => $help),+ }
            }

            /// The labels, in the form that they have between the braces of the text format.
            #[must_use]
            pub const fn labels(self) -> &'static str {
                match self { $($(Self::$variant => $labels),+),+ }
            }
        }
    };
}

counts! {
    "leno_datagrams" "Datagrams of applications that proxies carried, by where they went." {
        /// Datagrams from the workload to a server.
        OutboundSent = r#"direction="outbound",to="server""#,
        /// Datagrams from a server to the workload.
        OutboundReceived = r#"direction="outbound",to="client""#,
        /// Datagrams from a client to the workload.
        InboundReceived = r#"direction="inbound",to="server""#,
        /// Datagrams from the workload to a client.
        InboundSent = r#"direction="inbound",to="client""#,
    }
    "leno_datagram_bytes" "Payload of the datagrams that proxies carried." {
        /// Bytes from the workload to a server.
        OutboundSentBytes = r#"direction="outbound",to="server""#,
        /// Bytes from a server to the workload.
        OutboundReceivedBytes = r#"direction="outbound",to="client""#,
        /// Bytes from a client to the workload.
        InboundReceivedBytes = r#"direction="inbound",to="server""#,
        /// Bytes from the workload to a client.
        InboundSentBytes = r#"direction="inbound",to="client""#,
    }
    "leno_datagrams_dropped" "Datagrams of applications that proxies dropped, by reason." {
        /// The datagram is larger than the path allows.
        OutboundTooLarge = r#"direction="outbound",reason="too-large""#,
        /// The connection's queue was full.
        OutboundCongested = r#"direction="outbound",reason="congested""#,
        /// The flow was not open yet, and its queue was full.
        OutboundWaiting = r#"direction="outbound",reason="not-open""#,
        /// The flow was refused.
        OutboundRefused = r#"direction="outbound",reason="refused""#,
        /// The datagram belongs to a flow that has ended.
        OutboundUnknown = r#"direction="outbound",reason="no-flow""#,
        /// The destination is not known: the datagram was sent to the proxy itself, or the kernel's table is full.
        OutboundNoDestination = r#"direction="outbound",reason="no-destination""#,
        /// The kernel did not accept the datagram.
        OutboundUnsent = r#"direction="outbound",reason="unsent""#,
        /// The datagram is larger than the path allows.
        InboundTooLarge = r#"direction="inbound",reason="too-large""#,
        /// The connection's queue was full.
        InboundCongested = r#"direction="inbound",reason="congested""#,
        /// The datagram belongs to a flow that has ended.
        InboundUnknown = r#"direction="inbound",reason="no-flow""#,
        /// The application's socket did not accept the datagram.
        InboundUnsent = r#"direction="inbound",reason="unsent""#,
    }
    "leno_datagram_flows" "Flows of datagrams, by what became of them." {
        /// A flow was opened to a server of the mesh.
        OutboundOpened = r#"direction="outbound",result="opened""#,
        /// A flow was opened to an address outside of the mesh, in plaintext.
        OutboundOutside = r#"direction="outbound",result="outside""#,
        /// A flow was refused by this proxy or the server's.
        OutboundFlowRefused = r#"direction="outbound",result="refused""#,
        /// The server's proxy could not be reached, or did not answer in time.
        OutboundFlowFailed = r#"direction="outbound",result="failed""#,
        /// A flow was removed to make room for a new flow, because there were too many flows.
        OutboundEvicted = r#"direction="outbound",result="evicted""#,
        /// A flow ended because there was no datagram for too long.
        OutboundIdle = r#"direction="outbound",result="idle""#,
        /// A flow ended because the route of its destination has changed or no longer exists.
        OutboundMoved = r#"direction="outbound",result="moved""#,
        /// A flow was refused because too many flows leave the mesh.
        OutboundOutsideLimit = r#"direction="outbound",result="limit""#,
        /// A client opened a flow.
        InboundOpened = r#"direction="inbound",result="opened""#,
        /// A flow was denied by a policy, or because its port is not declared.
        InboundDenied = r#"direction="inbound",result="denied""#,
        /// A flow ended because policies no longer permit it.
        InboundRevoked = r#"direction="inbound",result="revoked""#,
        /// A flow was refused or ended because there were too many flows.
        InboundLimit = r#"direction="inbound",result="limit""#,
        /// A flow ended because there was no datagram for too long.
        InboundIdle = r#"direction="inbound",result="idle""#,
        /// The client's proxy has sent an invalid request for a flow.
        InboundMalformed = r#"direction="inbound",result="malformed""#,
        /// There is no socket to the application.
        InboundFlowFailed = r#"direction="inbound",result="failed""#,
    }
    "leno_datagram_connections" "Connections of QUIC between proxies, by result." {
        /// A connection was opened to the proxy of a server.
        OutboundConnected = r#"direction="outbound",result="opened""#,
        /// The handshake failed.
        OutboundConnectFailed = r#"direction="outbound",result="failed""#,
        /// A connection was refused because there were too many connections.
        OutboundConnectLimit = r#"direction="outbound",result="limit""#,
        /// A connection ended because the certificate of the peer has expired or was revoked.
        OutboundUnproven = r#"direction="outbound",result="certificate""#,
        /// A connection ended because nothing was received for too long.
        OutboundSilent = r#"direction="outbound",result="silent""#,
        /// A connection was accepted from the proxy of a client.
        InboundConnected = r#"direction="inbound",result="opened""#,
        /// The handshake failed.
        InboundConnectFailed = r#"direction="inbound",result="failed""#,
        /// A connection was refused or ended because there were too many connections in all, or of one address or
        /// identity.
        InboundConnectLimit = r#"direction="inbound",result="limit""#,
        /// A connection ended because the certificate of the peer has expired or was revoked.
        InboundUnproven = r#"direction="inbound",result="certificate""#,
        /// A connection ended because nothing was received for too long.
        InboundSilent = r#"direction="inbound",result="silent""#,
    }
}

/// The number of counters.
pub const COUNTS: usize = Count::ALL.len();

/// The values of all counters. There is one for each [`Count`].
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

    /// Counts a connection that has ended because of its idle timeout.
    pub(crate) fn ended(&self, how: &ConnectionError, silent: Count) {
        if *how == ConnectionError::TimedOut {
            self.count(silent);
        }
    }

    /// All values, in the order of [`Count::ALL`].
    pub(crate) fn all(&self) -> [u64; COUNTS] {
        self.0.each_ref().map(Cell::get)
    }
}
