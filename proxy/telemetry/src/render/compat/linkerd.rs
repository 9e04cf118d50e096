//! The metrics of Linkerd's proxy.

use super::{
    Grouped, OwnWorkload, Responses, grouped, histogram_ms, is_outbound, workload_of, write_labels,
};
use crate::edge::EdgeLabels;
use crate::render::{Measured, Page};
use crate::snapshot::{EdgeCounts, Snapshot};

/// Leno's metric for the end of the certificate in use.
const EXPIRATION: &str = "leno_identity_expiration_timestamp_seconds";

pub(super) fn render(
    page: &mut Page,
    own: &OwnWorkload,
    snapshot: &Snapshot,
    measured: &[Measured],
) {
    let groups = grouped(snapshot, |edge| labels(own, edge));
    page.counter("request", "Requests, as Linkerd counts them.");
    for (labels, counts) in &groups {
        let count: u64 = counts.answers.statuses.values().sum();
        if count > 0 {
            page.line(format_args!("request_total{{{labels}}} {count}"));
        }
    }
    page.counter("response", "Responses, as Linkerd counts them.");
    for (labels, counts) in &groups {
        for response in Responses::of(counts) {
            let class = if response.is_failed() { "failure" } else { "success" };
            let Responses { status, grpc, count } = response;
            let grpc = grpc.map_or_else(String::new, |grpc| format!(",grpc_status=\"{grpc}\""));
            page.line(format_args!(
                "response_total{{{labels},classification=\"{class}\",status_code=\"{status}\"{grpc}}} {count}"
            ));
        }
    }
    let latency = ("response_latency_ms", "Time to the end of the response, as Linkerd names it.");
    histogram_ms(page, latency, &groups);
    connections(page, &grouped(snapshot, |edge| format!("{},peer=\"src\"", labels(own, edge))));
    errors(page, own, snapshot);
    if let Some(expiration) = measured.iter().find(|one| one.name == EXPIRATION) {
        let name = "identity_cert_expiration_timestamp_seconds";
        page.family(name, "gauge", "When the certificate in use ends, as Linkerd names it.");
        page.line(format_args!("{name} {}", expiration.value));
    }
}

fn connections(page: &mut Page, groups: &Grouped) {
    type Read = fn(&EdgeCounts) -> u64;
    let families: [(&str, &str, Read); 4] = [
        ("tcp_open", "Opaque connections opened, as Linkerd names it.", |edge| edge.tcp_opened),
        ("tcp_close", "Opaque connections ended, as Linkerd names it.", |edge| edge.tcp_closed),
        ("tcp_read_bytes", "Bytes from the client, as Linkerd names it.", |edge| edge.read_bytes),
        ("tcp_write_bytes", "Bytes to the client, as Linkerd names it.", |edge| edge.written_bytes),
    ];
    for (name, help, read) in families {
        super::counter(page, (name, help), groups, read);
    }
    let name = "tcp_open_connections";
    page.family(name, "gauge", "Opaque connections open now, as Linkerd names it.");
    for (labels, counts) in groups.iter().filter(|(_, counts)| counts.tcp_opened > 0) {
        let open = counts.tcp_opened.saturating_sub(counts.tcp_closed);
        page.line(format_args!("{name}{{{labels}}} {open}"));
    }
}

/// The requests and connections that the mesh has failed. Linkerd has a metric for each direction.
fn errors(page: &mut Page, own: &OwnWorkload, snapshot: &Snapshot) {
    for (name, outbound) in [("inbound_http_errors", false), ("outbound_http_errors", true)] {
        let mut causes = std::collections::BTreeMap::<&str, u64>::new();
        let all = snapshot.edges.iter().chain(&snapshot.forgotten);
        let of_direction = all.filter(|(edge, _)| is_outbound(edge) == outbound);
        for (cause, count) in of_direction.flat_map(|(_, counts)| &counts.answers.errors) {
            let sum = causes.entry(cause).or_default();
            *sum = sum.saturating_add(*count);
        }
        page.counter(
            name,
            "Requests and connections that the mesh has failed, as Linkerd names it.",
        );
        let mut labels = String::new();
        write_labels(&mut labels, &of_own(own));
        for (cause, count) in causes {
            page.line(format_args!("{name}_total{{{labels},error=\"{cause}\"}} {count}"));
        }
    }
}

fn of_own(own: &OwnWorkload) -> [(&str, &str); 3] {
    [("namespace", &own.namespace), ("deployment", &own.workload), ("pod", &own.instance)]
}

fn labels(own: &OwnWorkload, edge: &EdgeLabels) -> String {
    let mut labels = String::new();
    write_labels(&mut labels, &of_own(own));
    let tls = if edge.mtls { "true" } else { "no_identity" };
    write_labels(&mut labels, &[("direction", edge.direction.as_str()), ("tls", tls)]);
    if is_outbound(edge) {
        let EdgeLabels { server, server_namespace, service, .. } = edge;
        let authority = match service.is_empty() {
            true => String::new(),
            false => format!("{service}.{server_namespace}.svc.cluster.local"),
        };
        let more = [
            ("authority", &*authority),
            ("dst_namespace", server_namespace),
            ("dst_service", service),
            ("dst_deployment", workload_of(server)),
            ("dst_pod", server),
        ];
        write_labels(&mut labels, &more);
    } else if edge.mtls {
        write_labels(&mut labels, &[("client_id", &own.identity_of(edge))]);
    }
    labels
}
