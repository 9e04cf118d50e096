//! Counters of a worker as a whole, for events that belong to no edge.

use std::cell::Cell;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal $labels:literal,)+) => {
        /// A counter of a worker as a whole.
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

            /// The labels, in the form between the braces.
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
    /// Connections by what their first bytes were taken for.
    OutboundDetectedHttp1 = "leno_detect" r#"direction="outbound",result="http1""#,
    /// Connections by what their first bytes were taken for.
    OutboundDetectedHttp2 = "leno_detect" r#"direction="outbound",result="http2""#,
    /// Connections by what their first bytes were taken for.
    OutboundDetectedTls = "leno_detect" r#"direction="outbound",result="tls""#,
    /// Connections by what their first bytes were taken for.
    OutboundDetectedOpaque = "leno_detect" r#"direction="outbound",result="opaque""#,
    /// Connections by what their first bytes were taken for.
    OutboundDetectedServerFirst = "leno_detect" r#"direction="outbound",result="server_first""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedHttp1 = "leno_detect" r#"direction="inbound",result="http1""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedHttp2 = "leno_detect" r#"direction="inbound",result="http2""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedTls = "leno_detect" r#"direction="inbound",result="tls""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedOpaque = "leno_detect" r#"direction="inbound",result="opaque""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedServerFirst = "leno_detect" r#"direction="inbound",result="server_first""#,
    /// Connections by what their first bytes were taken for.
    InboundDetectedMesh = "leno_detect" r#"direction="inbound",result="mesh""#,
    /// Connections refused because the control plane did not say whose their address is.
    OutboundUnresolved = "leno_unresolved_refused" r#"direction="outbound""#,
    /// Connections whose original destination could not be found.
    OutboundDestinationMissing = "leno_original_destination_missing" r#"direction="outbound""#,
    /// Connections whose original destination could not be found.
    InboundDestinationMissing = "leno_original_destination_missing" r#"direction="inbound""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    OutboundConnectionLimit = "leno_connections_refused" r#"direction="outbound",reason="limit""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    InboundConnectionLimit = "leno_connections_refused" r#"direction="inbound",reason="limit""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    InboundSilentEvicted = "leno_connections_refused" r#"direction="inbound",reason="silent""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    InboundUnprovenLimit = "leno_connections_refused" r#"direction="inbound",reason="unproven""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    InboundSourceLimit = "leno_connections_refused" r#"direction="inbound",reason="source""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    OutboundMemoryBudget = "leno_connections_refused" r#"direction="outbound",reason="memory-budget""#,
    /// Connections refused because a bound was reached: on connections, or on memory.
    InboundMemoryBudget = "leno_connections_refused" r#"direction="inbound",reason="memory-budget""#,
    /// Connections that carry no mesh identity, refused under strict mTLS.
    InboundPlaintextRefused = "leno_plaintext_refused" r#"direction="inbound""#,
    /// TLS handshakes between proxies that failed.
    OutboundHandshakeFailed = "leno_tls_handshake_failures" r#"direction="outbound""#,
    /// TLS handshakes between proxies that failed.
    InboundHandshakeFailed = "leno_tls_handshake_failures" r#"direction="inbound""#,
    /// TLS handshakes between proxies that succeeded.
    OutboundHandshake = "leno_tls_handshakes" r#"direction="outbound""#,
    /// TLS handshakes between proxies that succeeded.
    InboundHandshake = "leno_tls_handshakes" r#"direction="inbound""#,
    /// TLS handshakes with servers outside of the mesh that failed.
    ExternalHandshakeFailed = "leno_external_tls_handshake_failures" "",
    /// TLS handshakes with servers outside of the mesh that succeeded.
    ExternalHandshake = "leno_external_tls_handshakes" "",
    /// Requests by whether their connection to the server had been used before.
    OutboundPoolReused = "leno_pool_requests" r#"direction="outbound",connection="reused""#,
    /// Requests by whether their connection to the server had been used before.
    OutboundPoolOpened = "leno_pool_requests" r#"direction="outbound",connection="new""#,
    /// Requests by whether their connection to the server had been used before.
    InboundPoolReused = "leno_pool_requests" r#"direction="inbound",connection="reused""#,
    /// Requests by whether their connection to the server had been used before.
    InboundPoolOpened = "leno_pool_requests" r#"direction="inbound",connection="new""#,
    /// Requests that waited for a stream because all connections to their server were in full use.
    OutboundStreamWaited = "leno_http2_stream_waits" r#"direction="outbound""#,
    /// Requests that waited for a stream because all connections to their server were in full use.
    InboundStreamWaited = "leno_http2_stream_waits" r#"direction="inbound""#,
    /// Copies of requests that routes asked for, by what became of them.
    OutboundMirrorSent = "leno_mirrored_requests" r#"direction="outbound",result="sent""#,
    /// Copies of requests that routes asked for, by what became of them.
    OutboundMirrorFailed = "leno_mirrored_requests" r#"direction="outbound",result="failed""#,
    /// Copies of requests that routes asked for, by what became of them.
    OutboundMirrorTooLarge = "leno_mirrored_requests" r#"direction="outbound",result="too_large""#,
    /// Copies of requests that routes asked for, by what became of them.
    OutboundMirrorTooMany = "leno_mirrored_requests" r#"direction="outbound",result="too_many""#,
    /// Requests that policy would have tried again, by why they were not.
    RetriesOverAttempts = "leno_retries_denied" r#"reason="attempts""#,
    /// Requests that policy would have tried again, by why they were not.
    RetriesOfMethod = "leno_retries_denied" r#"reason="method""#,
    /// Requests that policy would have tried again, by why they were not.
    RetriesWithoutBody = "leno_retries_denied" r#"reason="body""#,
    /// Requests that policy would have tried again, by why they were not.
    RetriesWithoutTime = "leno_retries_denied" r#"reason="time""#,
    /// Requests that policy would have tried again, by why they were not.
    RetriesOverBudget = "leno_retries_denied" r#"reason="budget""#,
    /// Further copies of requests whose response was late, by what became of them.
    HedgesWon = "leno_hedges" r#"result="won""#,
    /// Further copies of requests whose response was late, by what became of them.
    HedgesLost = "leno_hedges" r#"result="lost""#,
    /// Requests that policy would have sent a further copy of, by why it was not sent.
    HedgesOverBudget = "leno_hedges_denied" r#"reason="budget""#,
    /// Requests that policy would have sent a further copy of, by why it was not sent.
    HedgesWithoutBody = "leno_hedges_denied" r#"reason="body""#,
    /// Requests that policy would have sent a further copy of, by why it was not sent.
    HedgesWithoutEndpoint = "leno_hedges_denied" r#"reason="endpoints""#,
    /// Requests that policy made to fail on purpose, by how.
    FaultsDelayed = "leno_faults" r#"kind="delay""#,
    /// Requests that policy made to fail on purpose, by how.
    FaultsAborted = "leno_faults" r#"kind="abort""#,
    /// Endpoints left out because their requests failed.
    Ejections = "leno_ejections" "",
    /// Requests refused by a rate limit.
    RateLimited = "leno_rate_limited" "",
    /// Requests counted by the proxy's own share of a shared rate limit, since the control plane is away.
    RateLimitAlone = "leno_rate_limit_alone" "",
    /// Keys of a rate limit that were forgotten because its bound on keys was reached.
    RateLimitKeysEvicted = "leno_rate_limit_keys_evicted" "",
    /// Answers of the proxy's own that clients of HTTP/1 did not read within 30 s; their connections were reset.
    AnswersUnread = "leno_answers_unread" "",
    /// Tasks of one connection or request that panicked and ended alone: a fault of the proxy's.
    Panics = "leno_panics" "",
    /// Edges counted as `other` because the bound on edges was reached.
    EdgesOverBudget = "leno_series_over_budget" "",
    /// Lines of the access log that were dropped because it could not be written fast enough.
    AccessLogDropped = "leno_access_log_dropped" "",
}

/// One cell for each [`Counter`].
#[derive(Debug)]
pub(crate) struct Counters(Box<[Cell<u64>]>);

impl Counters {
    pub(crate) fn new() -> Self {
        Self(Counter::ALL.iter().map(|_| Cell::new(0)).collect())
    }

    pub(crate) fn add(&self, counter: Counter, count: u64) {
        let cell = &self.0[counter as usize];
        cell.set(cell.get() + count);
    }

    pub(crate) fn values(&self) -> Vec<u64> {
        self.0.iter().map(Cell::get).collect()
    }
}
