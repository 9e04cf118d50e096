//! Limits the connections of an interface's readers, and counts those that are rejected.

use std::net::IpAddr;

use leno_program::{Family, ShareCounts, Shares};

use crate::grpc::{ConnectionSlotCounts, ConnectionSlots};

/// The limits of one listener.
#[derive(Debug)]
pub struct ReaderLimits {
    /// The connections by the address of their client. An HTTP/2 connection leaves this when it has a proven place
    /// in [`ConnectionSlots`].
    pub(crate) connections: Shares<IpAddr>,
    /// The limits of gRPC connections.
    pub(crate) places: ConnectionSlots,
}

impl ReaderLimits {
    /// Limits for these simultaneous connections and, in addition, for `most_http2` over HTTP/2 whose callers have
    /// proved that they may read something.
    #[must_use]
    pub fn new(connections: Shares<IpAddr>, most_http2: usize) -> Self {
        Self { connections, places: ConnectionSlots::new(most_http2) }
    }

    /// Appends the numbers of open and rejected connections as metrics whose names begin with `prefix`.
    pub fn render(&self, text: &mut String, prefix: &str) {
        render_connections(text, prefix, self.connections.counts());
        render_places(text, prefix, self.places.counts());
    }
}

fn render_connections(text: &mut String, prefix: &str, counts: ShareCounts) {
    let name = format!("{prefix}_connections");
    let help = "Open connections of readers, without those over HTTP/2 that are proven.";
    Family::gauge(text, &name, help).sample(&[], counts.held);
    let name = format!("{prefix}_connections_refused_total");
    let help = "Connections of readers that were closed because their address has as many as it may have, or because a newer \
                one needed the place.";
    let mut family = Family::counter(text, &name, help);
    family.sample(&[("reason", "address")], counts.refused);
    family.sample(&[("reason", "newer")], counts.lost);
}

fn render_places(text: &mut String, prefix: &str, counts: ConnectionSlotCounts) {
    let name = format!("{prefix}_http2_connections");
    let help = "Open connections of readers over HTTP/2, by whether a call was answered with what was asked for.";
    let mut family = Family::gauge(text, &name, help);
    family.sample(&[("state", "proven")], counts.proven);
    family.sample(&[("state", "unproven")], counts.unproven);
    let name = format!("{prefix}_http2_connections_ended_total");
    let help = "Connections of readers over HTTP/2 that were ended for others: there are as many as may be, a newer one needed the \
                place of one that had shown nothing, or no call was answered with what was asked for in time.";
    let mut family = Family::counter(text, &name, help);
    family.sample(&[("reason", "limit")], counts.full);
    family.sample(&[("reason", "newer")], counts.evicted);
    family.sample(&[("reason", "unproven")], counts.late);
    let name = format!("{prefix}_watches");
    Family::gauge(text, &name, "Open Watches of readers.").sample(&[], counts.watches);
    let name = format!("{prefix}_watches_refused_total");
    let help = "Watches that were refused because there are as many as may be.";
    Family::counter(text, &name, help).sample(&[], counts.watches_refused);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_metrics_of_the_dashboard() {
        let mut page = String::new();
        ReaderLimits::new(leno_program::connections(), 1).render(&mut page, "leno_dashboard");
        let guide = include_str!("../../../docs/guide/dashboard.md");
        leno_testkit::reference::check_metrics(guide, "leno_dashboard_", &page, &[]);
    }
}
