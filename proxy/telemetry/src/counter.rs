//! Counters of a whole worker, for events that do not belong to an [`Edge`](crate::Edge).

use std::cell::Cell;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $labels:literal,)+) => {
        /// A counter of a whole worker.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// All counters. Those of one metric are adjacent.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The metric's name without the suffix `_total`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The labels, as between the braces of the text format.
            #[must_use]
            pub const fn labels(self) -> &'static str {
                match self { $(Self::$variant => $labels),+ }
            }

            /// The text of the `# HELP` line: the doc comments below, joined.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+)),+ }
            }
        }
    };
}

counters! {
    /// Connections by the protocol that was detected from their first bytes.
    OutboundDetectedHttp1 = "leno_detect" r#"direction="outbound",result="http1""#,
    /// Connections by the protocol that was detected from their first bytes.
    OutboundDetectedHttp2 = "leno_detect" r#"direction="outbound",result="http2""#,
    /// Connections by the protocol that was detected from their first bytes.
    OutboundDetectedTls = "leno_detect" r#"direction="outbound",result="tls""#,
    /// Connections by the protocol that was detected from their first bytes.
    OutboundDetectedOpaque = "leno_detect" r#"direction="outbound",result="opaque""#,
    /// Connections by the protocol that was detected from their first bytes.
    OutboundDetectedServerFirst = "leno_detect" r#"direction="outbound",result="server_first""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedHttp1 = "leno_detect" r#"direction="inbound",result="http1""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedHttp2 = "leno_detect" r#"direction="inbound",result="http2""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedTls = "leno_detect" r#"direction="inbound",result="tls""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedOpaque = "leno_detect" r#"direction="inbound",result="opaque""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedServerFirst = "leno_detect" r#"direction="inbound",result="server_first""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedMesh = "leno_detect" r#"direction="inbound",result="mesh""#,
    /// Connections by the protocol that was detected from their first bytes.
    InboundDetectedHbone = "leno_detect" r#"direction="inbound",result="hbone""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    OutboundTunnelOpened = "leno_hbone_tunnels" r#"direction="outbound",result="opened""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    OutboundTunnelRefused = "leno_hbone_tunnels" r#"direction="outbound",result="refused""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    OutboundTunnelFailed = "leno_hbone_tunnels" r#"direction="outbound",result="failed""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    InboundTunnelOpened = "leno_hbone_tunnels" r#"direction="inbound",result="opened""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    InboundTunnelRefused = "leno_hbone_tunnels" r#"direction="inbound",result="refused""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    InboundTunnelLimit = "leno_hbone_tunnels" r#"direction="inbound",result="limit""#,
    /// Tunnels of HBONE, one for each connection of a client, by result.
    InboundTunnelEvicted = "leno_hbone_tunnels" r#"direction="inbound",result="evicted""#,
    /// Connections refused because discovery did not resolve their address.
    OutboundUnresolved = "leno_unresolved_refused" r#"direction="outbound""#,
    /// Connections closed because their original destination is unknown.
    OutboundDestinationMissing = "leno_original_destination_missing" r#"direction="outbound""#,
    /// Connections closed because their original destination is unknown.
    InboundDestinationMissing = "leno_original_destination_missing" r#"direction="inbound""#,
    /// Connections refused because a limit on connections or on memory was reached.
    OutboundConnectionLimit = "leno_connections_refused" r#"direction="outbound",reason="limit""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundConnectionLimit = "leno_connections_refused" r#"direction="inbound",reason="limit""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundSilentEvicted = "leno_connections_refused" r#"direction="inbound",reason="silent""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundUnprovenLimit = "leno_connections_refused" r#"direction="inbound",reason="unproven""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundSourceLimit = "leno_connections_refused" r#"direction="inbound",reason="source""#,
    /// Connections refused because a limit on connections or on memory was reached.
    OutboundRate = "leno_connections_refused" r#"direction="outbound",reason="rate""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundRate = "leno_connections_refused" r#"direction="inbound",reason="rate""#,
    /// Connections refused because a limit on connections or on memory was reached.
    OutboundMemoryBudget = "leno_connections_refused" r#"direction="outbound",reason="memory-budget""#,
    /// Connections refused because a limit on connections or on memory was reached.
    InboundMemoryBudget = "leno_connections_refused" r#"direction="inbound",reason="memory-budget""#,
    /// Connections refused because a limit on connections or on memory was reached.
    OutboundPassages = "leno_connections_refused" r#"direction="outbound",reason="waypoint""#,
    /// Connections that waited up to a second, because more came than the workload, or one client of it, may open in a second.
    OutboundSlowed = "leno_connections_slowed" r#"direction="outbound""#,
    /// Connections that waited up to a second, because more came than the workload, or one client of it, may open in a second.
    InboundSlowed = "leno_connections_slowed" r#"direction="inbound""#,
    /// Audited requests that the page /audited does not have, since there are too many distinct ones or their path is too long.
    AuditedNotKept = "leno_audited_requests_not_kept" "",
    /// Connections without a mesh identity that strict mTLS refused.
    InboundPlaintextRefused = "leno_plaintext_refused" r#"direction="inbound""#,
    /// TLS handshakes between proxies that failed.
    OutboundHandshakeFailed = "leno_tls_handshake_failures" r#"direction="outbound""#,
    /// TLS handshakes between proxies that failed.
    InboundHandshakeFailed = "leno_tls_handshake_failures" r#"direction="inbound""#,
    /// TLS handshakes between proxies that succeeded.
    OutboundHandshake = "leno_tls_handshakes" r#"direction="outbound""#,
    /// TLS handshakes between proxies that succeeded.
    InboundHandshake = "leno_tls_handshakes" r#"direction="inbound""#,
    /// Connections between workloads of one process that went on in memory after the handshake; node mode only.
    OutboundInProcess = "leno_connections_in_process" r#"direction="outbound""#,
    /// Connections between workloads of one process that went on in memory after the handshake; node mode only.
    InboundInProcess = "leno_connections_in_process" r#"direction="inbound""#,
    /// Connections between proxies that were closed because the certificate of the other side was revoked.
    Revoked = "leno_tls_revoked" "",
    /// Connections between proxies that were closed because the certificate of the other side had ended and was not renewed.
    Expired = "leno_tls_expired" "",
    /// Connections between proxies that go on with the next certificate of the other side.
    OutboundRenewed = "leno_tls_renewed" r#"direction="outbound""#,
    /// Connections between proxies that go on with the next certificate of the other side.
    InboundRenewed = "leno_tls_renewed" r#"direction="inbound""#,
    /// Renewals of connections to one server, or from one client, that failed. Clients try again until the certificates end.
    OutboundRenewalFailed = "leno_tls_renewal_failures" r#"direction="outbound""#,
    /// Renewals of connections to one server, or from one client, that failed. Clients try again until the certificates end.
    InboundRenewalFailed = "leno_tls_renewal_failures" r#"direction="inbound""#,
    /// TLS handshakes with servers outside of the mesh that failed.
    ExternalHandshakeFailed = "leno_external_tls_handshake_failures" "",
    /// TLS handshakes with servers outside of the mesh that succeeded.
    ExternalHandshake = "leno_external_tls_handshakes" "",
    /// Requests by whether they reused a connection to the server or opened one.
    OutboundPoolReused = "leno_pool_requests" r#"direction="outbound",connection="reused""#,
    /// Requests by whether they reused a connection to the server or opened one.
    OutboundPoolOpened = "leno_pool_requests" r#"direction="outbound",connection="new""#,
    /// Requests by whether they reused a connection to the server or opened one.
    InboundPoolReused = "leno_pool_requests" r#"direction="inbound",connection="reused""#,
    /// Requests by whether they reused a connection to the server or opened one.
    InboundPoolOpened = "leno_pool_requests" r#"direction="inbound",connection="new""#,
    /// Requests that waited because all HTTP/2 connections to their server had as many streams as allowed.
    OutboundStreamWaited = "leno_http2_stream_waits" r#"direction="outbound""#,
    /// Requests that waited because all HTTP/2 connections to their server had as many streams as allowed.
    InboundStreamWaited = "leno_http2_stream_waits" r#"direction="inbound""#,
    /// Connections to servers that were made after the request that they were for had ended; they are for the next one.
    ConnectionsOutlived = "leno_connections_outlived" "",
    /// Copies of requests for the mirrors of routes, by result.
    OutboundMirrorSent = "leno_mirrored_requests" r#"direction="outbound",result="sent""#,
    /// Copies of requests for the mirrors of routes, by result.
    OutboundMirrorFailed = "leno_mirrored_requests" r#"direction="outbound",result="failed""#,
    /// Copies of requests for the mirrors of routes, by result.
    OutboundMirrorLeft = "leno_mirrored_requests" r#"direction="outbound",result="client_left""#,
    /// Copies of requests for the mirrors of routes, by result.
    OutboundMirrorTooLarge = "leno_mirrored_requests" r#"direction="outbound",result="too_large""#,
    /// Copies of requests for the mirrors of routes, by result.
    OutboundMirrorTooMany = "leno_mirrored_requests" r#"direction="outbound",result="too_many""#,
    /// Failed requests that the policy says to retry but that were not retried, by reason.
    RetriesOverAttempts = "leno_retries_denied" r#"reason="attempts""#,
    /// Failed requests that the policy says to retry but that were not retried, by reason.
    RetriesOfMethod = "leno_retries_denied" r#"reason="method""#,
    /// Failed requests that the policy says to retry but that were not retried, by reason.
    RetriesWithoutBody = "leno_retries_denied" r#"reason="body""#,
    /// Failed requests that the policy says to retry but that were not retried, by reason.
    RetriesWithoutTime = "leno_retries_denied" r#"reason="time""#,
    /// Failed requests that the policy says to retry but that were not retried, by reason.
    RetriesOverBudget = "leno_retries_denied" r#"reason="budget""#,
    /// Additional copies of requests whose response was late (hedging), by result.
    HedgesWon = "leno_hedges" r#"result="won""#,
    /// Additional copies of requests whose response was late (hedging), by result.
    HedgesLost = "leno_hedges" r#"result="lost""#,
    /// Additional copies of late requests that were not sent, by reason.
    HedgesOverBudget = "leno_hedges_denied" r#"reason="budget""#,
    /// Additional copies of late requests that were not sent, by reason.
    HedgesWithoutBody = "leno_hedges_denied" r#"reason="body""#,
    /// Additional copies of late requests that were not sent, by reason.
    HedgesWithoutEndpoint = "leno_hedges_denied" r#"reason="endpoints""#,
    /// Faults that a policy injected into requests, by kind.
    FaultsDelayed = "leno_faults" r#"kind="delay""#,
    /// Faults that a policy injected into requests, by kind.
    FaultsAborted = "leno_faults" r#"kind="abort""#,
    /// Endpoints ejected from load balancing because their requests failed.
    Ejections = "leno_ejections" "",
    /// Requests refused by a rate limit.
    RateLimited = "leno_rate_limited" "",
    /// Requests counted against the proxy's own part of a shared rate limit because the control plane is not reachable.
    RateLimitAlone = "leno_rate_limit_alone" "",
    /// Keys of a rate limit that were evicted because the limit on their number was reached.
    RateLimitKeysEvicted = "leno_rate_limit_keys_evicted" "",
    /// Answers of the proxy's own that clients of HTTP/1 did not read within 30 s; their connections were reset.
    AnswersUnread = "leno_answers_unread" "",
    /// Requests that were sent to the application again because it had closed the connection without reading any of them.
    RequestsUnread = "leno_requests_unread" "",
    /// Workers of the proxy that the kernel does not announce destroyed sockets to. Requests that an application closes its connection without reading fail there unless their method is idempotent.
    AnnouncementsMissing = "leno_socket_announcements_missing" "",
    /// Announcements of destroyed sockets that were lost because more came at once than there is room for.
    AnnouncementsLost = "leno_socket_announcements_lost" "",
    /// Tasks of one connection or request that panicked, a bug of the proxy; the other tasks go on.
    Panics = "leno_panics" "",
    /// Times that an edge or a rule of a route was counted as `other` because the limit on their number was reached.
    EdgesOverBudget = "leno_series_over_budget" "",
    /// Lines of the access log that were dropped because they could not be written fast enough.
    AccessLogDropped = "leno_access_log_dropped" "",
    /// Records of the access log, by what became of them.
    AccessRecordsExported = "leno_access_log_records" r#"result="exported""#,
    /// Records of the access log, by what became of them.
    AccessRecordsFailed = "leno_access_log_records" r#"result="failed""#,
    /// Records of the access log, by what became of them.
    AccessRecordsDropped = "leno_access_log_records" r#"result="dropped""#,
    /// Spans of traces, by what became of them.
    SpansExported = "leno_trace_spans" r#"result="exported""#,
    /// Spans of traces, by what became of them.
    SpansFailed = "leno_trace_spans" r#"result="failed""#,
    /// Spans of traces, by what became of them.
    SpansDropped = "leno_trace_spans" r#"result="dropped""#,
    /// Spans of traces, by what became of them.
    SpansBeyondRate = "leno_trace_spans" r#"result="beyond-rate""#,
}

/// A cell for each [`Counter`].
#[derive(Debug)]
pub(crate) struct Counters(Box<[Cell<u64>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Counter::ALL.iter().map(|_| Cell::new(0)).collect())
    }

    pub(crate) fn add(&self, counter: Counter, count: u64) {
        if let Some(cell) = self.0.get(counter as usize) {
            cell.set(cell.get().wrapping_add(count));
        }
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.iter().map(Cell::get).collect()
    }
}
