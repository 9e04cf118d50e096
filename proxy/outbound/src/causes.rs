//! Checks that the guide explains every cause that this crate defines.

use leno_balance::NoPick;

use crate::{backends, connect, egress, external, forward, opaque, server, streams};

/// The page that explains the causes.
const PAGE: &str = include_str!("../../../docs/guide/metrics.md");

#[test]
fn every_cause_is_explained() {
    let reasons = [NoPick::Empty, NoPick::Excluded, NoPick::Failfast, NoPick::Full];
    let named = [
        connect::CONNECT_FAILED,
        connect::REFUSED_BY_SERVER,
        egress::DENIED,
        external::UNREACHABLE,
        external::UNRESOLVED,
        forward::DESTINATION_GONE,
        forward::FAULT_ABORT,
        forward::OVERLOADED,
        forward::RESPONSE_TIMEOUT,
        opaque::SERVER_SILENT,
        leno_transport::Ended::Idle.reason(),
        opaque::STREAM_TIMEOUT,
        server::STREAMS_IN_USE,
        streams::BACKEND_GONE,
        streams::CLIENT_SILENT,
    ];
    for cause in reasons.map(backends::cause).into_iter().chain(named) {
        assert!(PAGE.contains(&format!("`{cause}`")), "{cause} is not in docs/guide/metrics.md");
    }
}
