//! Names for the indexes of the kernel programs' arrays.

/// Declares an enum whose values are consecutive indexes, with its names.
macro_rules! indexes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// All values, in index order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable name, in lower case; `bpf/lib/abi.h` has it in upper case.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The index in the kernel programs' array.
            #[must_use]
            pub fn index(self) -> u32 {
                self as u32
            }
        }
    };
}

indexes! {
    /// The counters of one workload's kernel programs.
    Counter {
        /// Connections steered to the proxy.
        OutboundCaptured = "outbound_captured",
        /// Connections of the proxy itself, which pass.
        OutboundPassedProxy = "outbound_passed_proxy",
        /// Connections to loopback addresses, or from another namespace, which pass.
        OutboundPassedLocal = "outbound_passed_local",
        /// Connections to an excluded prefix, which pass.
        OutboundPassedExcluded = "outbound_passed_excluded",
        /// Passed because no proxy listens (fail open).
        OutboundPassedOpen = "outbound_passed_open",
        /// Refused because no proxy listens (fail closed), or the original destination could not
        /// be stored.
        OutboundRefused = "outbound_refused",
        /// Original destinations that were put into `inflight` before the SYN was sent.
        OriginalAnnounced = "original_announced",
        /// Original destinations that were moved to the socket that the proxy accepts.
        OriginalAccepted = "original_accepted",
        /// Connections to the outbound listener without an original destination: it was evicted, or
        /// the client dialled the listener directly.
        OriginalMissed = "original_missed",
        /// Calls of `getsockopt(SO_ORIGINAL_DST)` that were answered.
        OriginalAnswered = "original_answered",
        /// The kernel had no memory to store an original destination.
        OriginalFailed = "original_failed",
        /// Connections handed to the inbound listener.
        InboundCaptured = "inbound_captured",
        /// Connections from this workload to itself, which pass.
        InboundPassedLocal = "inbound_passed_local",
        /// Connections to the admin port, which pass.
        InboundPassedAdmin = "inbound_passed_admin",
        /// Passed because no proxy listens (fail open).
        InboundPassedOpen = "inbound_passed_open",
        /// Connections from outside to a port of the mesh, which are dropped.
        InboundDroppedMeshPort = "inbound_dropped_mesh_port",
        /// Refused because no proxy listens (fail closed).
        InboundRefused = "inbound_refused",
        /// Connections that the kernel refused to assign to the inbound listener.
        InboundFailed = "inbound_failed",
        /// Listeners of the proxy that were put into a free place of their slot.
        ListenerRegistered = "listener_registered",
        /// Listeners of the proxy that found every place of their slot taken. The kernel still
        /// gives them a share of the connections.
        ListenerUnkept = "listener_unkept",
        /// Listeners of the proxy that the kernel refused to put into the map.
        ListenerFailed = "listener_failed",
        /// MPTCP sockets refused, so that the application uses TCP.
        MptcpRefused = "mptcp_refused",
        /// TCP connections and UDP datagrams that the workload addressed to link-local IPv6.
        OutboundDroppedLinkLocal = "outbound_dropped_link_local",
        /// TCP connections and UDP datagrams from elsewhere to the workload's link-local IPv6 address.
        InboundDroppedLinkLocal = "inbound_dropped_link_local",
        /// Connections of the proxy to the application whose client's address was put into
        /// `arriving`.
        ClientAnnounced = "client_announced",
        /// Connections on which the application sees its client's address.
        ClientShown = "client_shown",
        /// The kernel had no memory for a client's address; the application sees the stand-in address.
        ClientFailed = "client_failed",
        /// Destinations of datagrams that got a placeholder.
        DatagramTargets = "datagram_targets",
        /// Datagrams and UDP sockets of the workload that were refused: there was no placeholder, or the socket is bound to
        /// a device.
        DatagramRefused = "datagram_refused",
        /// Answers whose source could not be shown, since their placeholder stands for nothing any more.
        DatagramUnknown = "datagram_unknown",
        /// Datagrams from elsewhere that are not of the mesh, which are dropped where the proxy carries datagrams.
        InboundDroppedDatagram = "inbound_dropped_datagram",
        /// Packets from elsewhere that claim an address of this namespace's own, which are dropped where the proxy carries
        /// datagrams.
        InboundDroppedForged = "inbound_dropped_forged",
    }
}

indexes! {
    /// The proxy's listeners.
    Slot {
        /// `0.0.0.0:15006`
        InboundIpv4 = "slot_inbound_ipv4",
        /// `[::]:15006`
        InboundIpv6 = "slot_inbound_ipv6",
        /// `127.0.0.1:15001`
        OutboundIpv4 = "slot_outbound_ipv4",
        /// `[::1]:15001`
        OutboundIpv6 = "slot_outbound_ipv6",
    }
}
