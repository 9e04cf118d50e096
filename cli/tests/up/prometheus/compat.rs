//! Tests metrics under the names of other meshes, by running queries of those meshes' dashboards, and exemplars,
//! which lead to traces in a real collector.

use std::fs;

use leno_testkit::tools;

use super::server::Prometheus;
use super::{MESH, configuration, program};
use crate::mesh::{Mesh, root, said, with_server};

const COLLECTOR: &str = "---
apiVersion: leno.dev/v1alpha1
kind: Workload
metadata: {name: collector, namespace: shop, labels: {app: collector}}
spec:
  serviceAccount: collector
  command: ['@COLLECTOR@', '0.0.0.0:4317', '0.0.0.0:4318', '@FILE@']
  ports: [{name: grpc, port: 4317, appProtocol: grpc}]
---
apiVersion: v1
kind: Service
metadata: {name: collector, namespace: shop}
spec: {selector: {app: collector}, ports: [{name: grpc, port: 4317, appProtocol: grpc}]}
";

/// Queries of public dashboards. The variables of each are set to values that a user would choose in this mesh:
/// the namespace `shop`, the workload `web` or `bytes`, and an interval of 30 s.
#[rustfmt::skip]
const QUERIES: &[(&str, &[&str])] = &[
    // linkerd/linkerd2, grafana/dashboards/deployment.json.
    ("Linkerd Deployment", &[
        r#"sum(irate(response_total{classification="success", namespace="shop", deployment="web", direction="inbound"}[30s])) / sum(irate(response_total{namespace="shop", deployment="web", direction="inbound"}[30s]))"#,
        r#"sum(irate(request_total{namespace="shop", deployment="web", direction="inbound"}[30s]))"#,
        r#"count(count(request_total{dst_namespace="shop", deployment!="", dst_deployment!="", dst_deployment="web", direction="outbound"}) by (namespace, deployment))"#,
        r#"count(count(request_total{namespace="shop", deployment="client", direction="outbound"}) by (namespace, dst_deployment))"#,
        r#"sum(irate(request_total{namespace="shop", deployment="web", direction="inbound", tls="true"}[30s])) by (deployment)"#,
        r#"histogram_quantile(0.5, sum(irate(response_latency_ms_bucket{namespace="shop", deployment="web", direction="inbound"}[30s])) by (le, deployment))"#,
        r#"histogram_quantile(0.99, sum(irate(response_latency_ms_bucket{namespace="shop", deployment="web", direction="inbound"}[30s])) by (le, deployment))"#,
        r#"tcp_open_connections{namespace="shop", deployment="bytes", direction="inbound"}"#,
        r#"sum(irate(response_total{classification="success", deployment!="", deployment="client", dst_namespace="shop", dst_deployment="web", direction="outbound"}[30s])) by (deployment, pod) / sum(irate(response_total{deployment!="", deployment="client", dst_namespace="shop", dst_deployment="web", direction="outbound"}[30s])) by (deployment, pod)"#,
        r#"sum(irate(request_total{deployment!="", deployment="client", dst_namespace="shop", dst_deployment="web", direction="outbound", tls="true"}[30s])) by (deployment, pod)"#,
    ]),
    // linkerd/linkerd2, grafana/dashboards/top-line.json.
    ("Linkerd Top Line", &[
        r#"sum(irate(response_total{classification="success", deployment=~".*"}[30s])) / sum(irate(response_total{deployment=~".*"}[30s]))"#,
        r#"sum(irate(request_total{deployment=~".*"}[30s]))"#,
        r#"count(count(request_total{namespace=~".*"}) by (namespace))"#,
        r#"count(count(request_total{namespace=~".*"}) by (namespace, deployment))"#,
        r#"sum(irate(response_total{classification="success", namespace=~".*", direction="inbound"}[30s])) by (namespace) / sum(irate(response_total{namespace=~".*", direction="inbound"}[30s])) by (namespace)"#,
        r#"sum(irate(request_total{namespace=~".*", direction="inbound", tls="true"}[30s])) by (namespace)"#,
        r#"histogram_quantile(0.95, sum(irate(response_latency_ms_bucket{namespace=~".*", direction="inbound"}[30s])) by (le, namespace))"#,
    ]),
    // istio/istio, manifests/addons/dashboards/istio-mesh-dashboard.gen.json.
    ("Istio Mesh", &[
        r#"round(sum (rate(istio_requests_total{reporter=~"source|waypoint"}[30s])), 0.01)"#,
        r#"sum (rate(istio_requests_total{reporter=~"source|waypoint",response_code!~"5.."}[30s])) / sum (rate(istio_requests_total{reporter=~"source|waypoint"}[30s]))"#,
        r#"sum (rate(istio_requests_total{reporter=~"source|waypoint",response_code=~"4.."}[30s]))"#,
        r#"sum (rate(istio_requests_total{reporter=~"source|waypoint",response_code=~"5.."}[30s]))"#,
        r#"label_join(sum by (destination_workload,destination_workload_namespace,destination_service) (rate(istio_requests_total{reporter=~"source|waypoint"}[30s])), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"label_join(histogram_quantile(0.5, sum by (le,destination_workload,destination_workload_namespace) (rate(istio_request_duration_milliseconds_bucket{reporter=~"source|waypoint"}[30s]))), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"label_join(histogram_quantile(0.99, sum by (le,destination_workload,destination_workload_namespace) (rate(istio_request_duration_milliseconds_bucket{reporter=~"source|waypoint"}[30s]))), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"label_join(sum by (destination_workload,destination_workload_namespace) (rate(istio_requests_total{reporter=~"source|waypoint",response_code!~"5.."}[30s]))/sum by (destination_workload,destination_workload_namespace) (rate(istio_requests_total{reporter=~"source|waypoint"}[30s])), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"label_join(sum by (destination_workload,destination_workload_namespace,destination_service) (rate(istio_tcp_received_bytes_total{reporter=~"source|waypoint"}[30s])), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"label_join(sum by (destination_workload,destination_workload_namespace,destination_service) (rate(istio_tcp_sent_bytes_total{reporter=~"source|waypoint"}[30s])), "destination_workload_var", ".", "destination_workload", "destination_workload_namespace")"#,
        r#"sum by (component, tag) (istio_build)"#,
    ]),
    // istio/istio, manifests/addons/dashboards/istio-workload-dashboard.json, for both reporters.
    ("Istio Workload", &[
        r#"round(sum(irate(istio_requests_total{reporter="destination",destination_workload_namespace=~"shop",destination_workload=~"web"}[5m])), 0.001)"#,
        r#"sum(irate(istio_requests_total{reporter="source",destination_workload_namespace=~"shop",destination_workload=~"web",response_code!~"5.*"}[5m])) / sum(irate(istio_requests_total{reporter="source",destination_workload_namespace=~"shop",destination_workload=~"web"}[5m]))"#,
        r#"(histogram_quantile(0.90, sum(irate(istio_request_duration_milliseconds_bucket{reporter="destination",destination_workload=~"web", destination_workload_namespace=~"shop"}[1m])) by (le)) / 1000) or histogram_quantile(0.90, sum(irate(istio_request_duration_seconds_bucket{reporter="destination",destination_workload=~"web", destination_workload_namespace=~"shop"}[1m])) by (le))"#,
        r#"sum(irate(istio_tcp_sent_bytes_total{reporter="destination", destination_workload_namespace=~"shop", destination_workload=~"bytes"}[1m])) + sum(irate(istio_tcp_received_bytes_total{reporter="destination", destination_workload_namespace=~"shop", destination_workload=~"bytes"}[1m]))"#,
        r#"sum(irate(istio_tcp_sent_bytes_total{reporter="source", source_workload_namespace=~"shop", source_workload=~"client"}[1m])) + sum(irate(istio_tcp_received_bytes_total{reporter="source", source_workload_namespace=~"shop", source_workload=~"client"}[1m]))"#,
    ]),
    // istio/istio, manifests/addons/dashboards/lib/queries.libsonnet, as in the ztunnel dashboard.
    ("Istio connections", &[
        r#"sum (rate(istio_tcp_connections_opened_total[30s]))"#,
        r#"sum (rate(istio_tcp_connections_closed_total[30s]))"#,
    ]),
    // The compatible metrics have the same counts as Leno's own metrics.
    ("the same counts", &[
        r#"sum(request_total{direction="inbound",deployment="web"}) == sum(leno_requests_total{direction="inbound",server="web-0"})"#,
        r#"sum(response_total{direction="outbound",deployment="client"}) == sum(leno_requests_total{direction="outbound",client="client-0"})"#,
        r#"sum(istio_requests_total{reporter="destination",destination_workload="web"}) == sum(leno_requests_total{direction="inbound",server="web-0"})"#,
        r#"sum(istio_requests_total{reporter="destination",source_principal=~"spiffe://.+/ns/shop/sa/.+",connection_security_policy="mutual_tls"}) > 0"#,
        r#"sum(istio_request_duration_milliseconds_count{reporter="source"}) == sum(leno_request_duration_seconds_count{direction="outbound"})"#,
        r#"identity_cert_expiration_timestamp_seconds == on (instance) leno_identity_expiration_timestamp_seconds"#,
    ]),
];

#[test]
fn dashboards_of_other_meshes_have_series_and_buckets_lead_to_traces() {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else {
        return;
    };
    let Some(collector) = tools::install_or_skip("collector").unwrap() else { return };
    let mesh = root(|| {
        let mesh = Mesh::draft("");
        let spans = mesh.directory().join("spans");
        let documents =
            with_server(&format!("{}{COLLECTOR}", MESH.trim_end_matches('\n').to_owned() + "\n"))
                .replace("@COLLECTOR@", &collector.join("collector").display().to_string())
                .replace("@FILE@", &spans.display().to_string());
        mesh.edit(&documents);
        let up = mesh.detached(&[
            "--wait",
            "--wait-timeout=120s",
            "--metrics-compat=linkerd,istio",
            "--traces=shop/collector:4317,sampling=100%",
        ]);
        assert!(up.status.success(), "{}", said(&up));
        mesh
    });
    let Some(mesh) = mesh else { return };
    let more = ["--enable-feature=exemplar-storage"];
    let server = Prometheus::start((&prometheus, promtool), &mesh, &configuration(&mesh), &more);
    let queries = QUERIES.iter().flat_map(|(board, queries)| {
        queries.iter().map(|query| ((*board).to_owned(), (*query).to_owned()))
    });
    server.until_all_have_series(queries.collect());

    // An exemplar in the client's histogram names a trace that the collector has.
    let spans = mesh.directory().join("spans");
    mesh.wait_for("an exemplar whose trace is in the collector", || {
        let query = "leno_request_duration_seconds_bucket{direction=\"outbound\",service=\"web\"}";
        let exported = fs::read_to_string(&spans).unwrap_or_default();
        let is_exported = |trace: &String| exported.contains(&format!("\"traceId\":\"{trace}\""));
        server.exemplars(query).iter().any(is_exported)
    });
}
