//! How the bytes of a port are to be handled.

/// What a port carries, as declared by `appProtocol` or left to detection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Nothing declared: decided on the first bytes of a connection.
    #[default]
    Detect,
    /// HTTP/1.0 or HTTP/1.1.
    Http1,
    /// HTTP/2 with prior knowledge, gRPC included.
    Http2,
    /// Anything else: relayed as bytes.
    Opaque,
}

impl Protocol {
    /// Reads a Kubernetes `appProtocol` (KEP-1422 and KEP-3726). What is not known, and TLS that the
    /// application does itself, is relayed as bytes.
    #[must_use]
    pub fn from_app_protocol(declared: Option<&str>) -> Self {
        match declared {
            None | Some("") => Self::Detect,
            Some("http" | "kubernetes.io/ws") => Self::Http1,
            Some("http2" | "grpc" | "kubernetes.io/h2c") => Self::Http2,
            Some(_) => Self::Opaque,
        }
    }

    /// The name used in metrics and in `/config`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Detect => "detect",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Opaque => "opaque",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_protocol_decides() {
        assert_eq!(Protocol::from_app_protocol(None), Protocol::Detect);
        assert_eq!(Protocol::from_app_protocol(Some("http")), Protocol::Http1);
        assert_eq!(Protocol::from_app_protocol(Some("grpc")), Protocol::Http2);
        assert_eq!(Protocol::from_app_protocol(Some("mysql")), Protocol::Opaque);
        assert_eq!(Protocol::from_app_protocol(Some("https")), Protocol::Opaque);
    }
}
