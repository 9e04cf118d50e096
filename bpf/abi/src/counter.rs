//! The indexes of the kernel programs' arrays, with names.

/// Declares an enum whose values are consecutive indexes of an array, each with its name.
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
        /// Connections that pass because no proxy listens (fail open).
        OutboundPassedOpen = "outbound_passed_open",
        /// Connections that are refused: no proxy listens (fail closed), the original destination could not be stored,
        /// or the socket is bound to a device and cannot be unbound.
        OutboundRefused = "outbound_refused",
        /// Original destinations (the addresses that applications dialled) that were stored for the proxy before the
        /// SYN was sent.
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
        /// Connections that pass because no proxy listens (fail open).
        InboundPassedOpen = "inbound_passed_open",
        /// Connections from outside to the proxy's own inbound or outbound port, which are dropped.
        InboundDroppedMeshPort = "inbound_dropped_mesh_port",
        /// Connections that are refused because no proxy listens (fail closed).
        InboundRefused = "inbound_refused",
        /// Connections that the kernel refused to assign to the inbound listener.
        InboundFailed = "inbound_failed",
        /// Listening sockets of the proxy that were registered, so that the programs can tell that it listens.
        ListenerRegistered = "listener_registered",
        /// Listening sockets of the proxy that were not registered, because all places for their port and family were
        /// taken. The kernel still gives them a share of the connections.
        ListenerUnkept = "listener_unkept",
        /// Listening sockets of the proxy that the kernel refused to register.
        ListenerFailed = "listener_failed",
        /// MPTCP sockets refused, so that the application uses TCP.
        MptcpRefused = "mptcp_refused",
        /// TCP connections and UDP datagrams of the workload to link-local IPv6 addresses, which are refused.
        OutboundDroppedLinkLocal = "outbound_dropped_link_local",
        /// TCP connections and UDP datagrams from other hosts to the workload's link-local IPv6 address, which are
        /// dropped.
        InboundDroppedLinkLocal = "inbound_dropped_link_local",
        /// Connections of the proxy to the application for which the client's address was stored before the SYN was
        /// sent.
        ClientAnnounced = "client_announced",
        /// Connections on which the application sees the address of its client, and not the proxy's.
        ClientShown = "client_shown",
        /// The client's address could not be stored; the application sees the stand-in address, from which the proxy
        /// connects.
        ClientFailed = "client_failed",
        /// Destinations of datagrams that got a placeholder: an address of loopback that represents the destination.
        DatagramTargets = "datagram_targets",
        /// Datagrams and UDP sockets of the workload that were refused: no placeholder was free, the kernel had no
        /// memory, or the socket is bound to a device.
        DatagramRefused = "datagram_refused",
        /// Answers whose source could not be shown, because the destination of their placeholder was evicted.
        DatagramUnknown = "datagram_unknown",
        /// Datagrams from other hosts that bypass the mesh, which are dropped if the proxy carries datagrams.
        InboundDroppedDatagram = "inbound_dropped_datagram",
        /// Packets from the network with a source address that only this network namespace has, which are dropped if
        /// the proxy carries datagrams.
        InboundDroppedForged = "inbound_dropped_forged",
    }
}

indexes! {
    /// The proxy's listeners, by direction and address family.
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
