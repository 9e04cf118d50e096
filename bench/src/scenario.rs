//! The scenarios: the load on the proxies.

use std::fmt;

use clap::ValueEnum;

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Scenario {
    /// Kept connections, 1 KiB responses.
    #[value(name = "keepalive-1k")]
    Keepalive1k,
    /// Kept connections, 10 KiB responses.
    #[value(name = "keepalive-10k")]
    Keepalive10k,
    /// A new connection for each request, with 1 KiB responses.
    NewConnection,
    /// Responses of 1 MiB.
    #[value(name = "download-1m")]
    Download1m,
    /// Request bodies of 1 MiB.
    #[value(name = "upload-1m")]
    Upload1m,
    /// HTTP/2, 4 connections of 10 streams, 1 KiB responses.
    #[value(name = "h2-1k")]
    H2,
    /// gRPC unary calls of 128 bytes, 4 connections of 10 streams.
    GrpcUnary,
    /// Opaque TCP: 64 bytes in each direction.
    TcpRoundTrip,
    /// Opaque TCP: as many bytes as possible, there and back; a request is 1 MiB.
    TcpBulk,
}

/// The kind of traffic that a proxy is configured for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Work {
    /// HTTP/1.1 on both sides.
    Http1,
    /// HTTP/2 with prior knowledge on both sides.
    Http2,
    /// Bytes over TCP.
    Tcp,
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value();
        f.pad(value.as_ref().map_or("", |value| value.get_name()))
    }
}

impl Scenario {
    /// The kind of traffic that a proxy is configured for.
    pub(crate) fn work(self) -> Work {
        match self {
            Scenario::Keepalive1k
            | Scenario::Keepalive10k
            | Scenario::NewConnection
            | Scenario::Download1m
            | Scenario::Upload1m => Work::Http1,
            Scenario::H2 | Scenario::GrpcUnary => Work::Http2,
            Scenario::TcpRoundTrip | Scenario::TcpBulk => Work::Tcp,
        }
    }

    /// The path of the requests.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Scenario::Keepalive10k => "/10k",
            Scenario::Download1m => "/1m",
            Scenario::Upload1m => "/upload",
            Scenario::GrpcUnary => "/bench.Echo/Unary",
            _ => "/1k",
        }
    }

    /// Whether the scenario is also measured in an open loop at a fixed rate.
    pub(crate) fn is_paced(self) -> bool {
        use Scenario::{GrpcUnary, H2, Keepalive1k, Keepalive10k, NewConnection};
        matches!(self, Keepalive1k | Keepalive10k | NewConnection | H2 | GrpcUnary)
    }
}
