//! The standard metrics of Istio.

use super::{OwnWorkload, Responses, grouped_by_workload, histogram_ms, is_outbound, write_labels};
use crate::edge::EdgeLabels;
use crate::render::Page;
use crate::snapshot::{EdgeCounts, Snapshot};

/// Reads one count of an edge.
type Read = fn(&EdgeCounts) -> u64;

/// Istio's value for unknown labels.
const UNKNOWN: &str = "unknown";

pub(super) fn render(page: &mut Page, own: &OwnWorkload, snapshot: &Snapshot) {
    let groups = grouped_by_workload(snapshot, |edge, server| labels(own, edge, server));
    page.counter("istio_requests", "Requests, as Istio counts them.");
    for (labels, counts) in &groups {
        for Responses { status, grpc, count } in Responses::of(counts) {
            let (protocol, grpc) = match grpc {
                Some(grpc) => ("grpc", grpc.to_string()),
                None => ("http", String::new()),
            };
            page.line(format_args!(
                "istio_requests_total{{{labels},request_protocol=\"{protocol}\",response_code=\"{status}\",\
                 grpc_response_status=\"{grpc}\",response_flags=\"-\"}} {count}"
            ));
        }
    }
    let with = |more: &str| {
        let labels =
            |edge: &EdgeLabels, server: &str| format!("{},{more}", labels(own, edge, server));
        grouped_by_workload(snapshot, labels)
    };
    let name = "istio_request_duration_milliseconds";
    let help = "Time to the end of the response, as Istio names it.";
    histogram_ms(page, (name, help), &with("request_protocol=\"http\""));
    let families: [(&str, &str, Read); 4] = [
        ("istio_tcp_connections_opened", "Opaque connections opened, as Istio names it.", |edge| {
            edge.tcp_opened
        }),
        ("istio_tcp_connections_closed", "Opaque connections ended, as Istio names it.", |edge| {
            edge.tcp_closed
        }),
        ("istio_tcp_sent_bytes", "Bytes to the client, as Istio names it.", |edge| {
            edge.written_bytes
        }),
        ("istio_tcp_received_bytes", "Bytes from the client, as Istio names it.", |edge| {
            edge.read_bytes
        }),
    ];
    let groups = with("request_protocol=\"tcp\",response_flags=\"-\"");
    for (name, help, read) in families {
        super::counter(page, (name, help), &groups, read);
    }
    page.family("istio_build", "gauge", "The version of the proxy, as Istio names it.");
    let tag = env!("CARGO_PKG_VERSION");
    page.line(format_args!("istio_build{{component=\"proxy\",tag=\"{tag}\"}} 1"));
}

/// One end of an edge, with the prefix `source` or `destination` of its labels.
struct End<'a> {
    prefix: &'a str,
    workload: &'a str,
    namespace: &'a str,
    principal: &'a str,
}

impl End<'_> {
    fn write(&self, to: &mut String) {
        let known = |text: &str| if text.is_empty() { UNKNOWN.to_owned() } else { text.to_owned() };
        let workload = known(self.workload);
        for (key, value) in [
            ("workload", &workload),
            ("workload_namespace", &known(self.namespace)),
            ("principal", &known(self.principal)),
            ("app", &workload),
            ("canonical_service", &workload),
            ("canonical_revision", &"latest".to_owned()),
        ] {
            write_labels(to, &[(&format!("{}_{key}", self.prefix), value)]);
        }
    }
}

/// The labels of an edge. `server` is the workload to which the server belongs.
fn labels(own: &OwnWorkload, edge: &EdgeLabels, server: &str) -> String {
    let here = own.identity.as_deref().filter(|_| edge.mtls).unwrap_or_default();
    let (workload, namespace) = (&*own.workload, &*own.namespace);
    let client_identity = if edge.mtls { own.identity_of(edge) } else { String::new() };
    let (reporter, source, destination, service) = if is_outbound(edge) {
        let source = End { prefix: "source", workload, namespace, principal: here };
        let destination = End {
            prefix: "destination",
            workload: server,
            namespace: &edge.server_namespace,
            principal: "",
        };
        ("source", source, destination, &*edge.service)
    } else {
        let source = End {
            prefix: "source",
            workload: &edge.client,
            namespace: &edge.client_namespace,
            principal: &client_identity,
        };
        let destination = End { prefix: "destination", workload, namespace, principal: here };
        // The server's proxy does not know which service the client called.
        ("destination", source, destination, workload)
    };
    let mut labels = String::new();
    write_labels(&mut labels, &[("reporter", reporter)]);
    source.write(&mut labels);
    destination.write(&mut labels);
    let of_service = destination.namespace;
    let host = match service {
        "" => UNKNOWN.to_owned(),
        service => format!("{service}.{of_service}.svc.cluster.local"),
    };
    let security = match (reporter, edge.mtls) {
        // In Istio only the server's proxy reports this label.
        ("source", _) => UNKNOWN,
        (_, true) => "mutual_tls",
        (_, false) => "none",
    };
    let more = [
        ("destination_service", &*host),
        ("destination_service_name", if service.is_empty() { UNKNOWN } else { service }),
        ("destination_service_namespace", of_service),
        ("connection_security_policy", security),
    ];
    write_labels(&mut labels, &more);
    labels
}
