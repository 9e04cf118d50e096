//! The protocols of ports, which decide how bytes are handled.

/// The protocol of a port, declared by `appProtocol` or left to detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// The port declares no protocol, so the first bytes of each connection decide.
    #[default]
    Detect,
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge, including gRPC.
    Http2,
    /// Any other protocol, which is relayed as bytes.
    Opaque,
    /// UDP datagrams that proxies carry. TCP ports never have this protocol.
    Udp,
}

/// The `appProtocol` of UDP ports whose datagrams proxies carry.
pub const UDP_APP_PROTOCOL: &str = "leno.dev/udp";

impl Protocol {
    /// Converts a Kubernetes `appProtocol` (KEP-1422 and KEP-3726). Case is ignored, as in service
    /// names (RFC 6335 section 5.1). Unknown protocols, `tcp`, and TLS that the application itself
    /// speaks (`https`, `kubernetes.io/wss`) are relayed as bytes.
    #[must_use]
    pub fn from_app_protocol(declared: Option<&str>) -> Self {
        const NAMES: [(&str, Protocol); 7] = [
            ("", Protocol::Detect),
            ("http", Protocol::Http1),
            ("kubernetes.io/ws", Protocol::Http1),
            ("http2", Protocol::Http2),
            ("grpc", Protocol::Http2),
            ("kubernetes.io/h2c", Protocol::Http2),
            (UDP_APP_PROTOCOL, Protocol::Udp),
        ];
        let Some(declared) = declared else { return Self::Detect };
        let found = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(declared));
        found.map_or(Self::Opaque, |(_, protocol)| *protocol)
    }

    /// The name used in metrics and in `/config`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Opaque => "opaque",
            Self::Udp => "udp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_protocol_decides() {
        use Protocol::{Detect, Http1, Http2, Opaque, Udp};
        assert_eq!(Protocol::from_app_protocol(None), Detect);
        for (declared, expected) in [
            ("", Detect),
            ("http", Http1),
            ("HTTP", Http1),
            ("kubernetes.io/ws", Http1),
            ("kubernetes.io/h2c", Http2),
            ("http2", Http2),
            ("grpc", Http2),
            ("gRPC", Http2),
            ("leno.dev/udp", Udp),
            ("udp", Opaque),
            ("tcp", Opaque),
            ("https", Opaque),
            ("tls", Opaque),
            ("kubernetes.io/wss", Opaque),
            ("mysql", Opaque),
            ("http ", Opaque),
        ] {
            assert_eq!(Protocol::from_app_protocol(Some(declared)), expected, "{declared:?}");
        }
    }
}
