//! Tests native histograms, with a real Prometheus that scrapes protobuf.

use super::server::Prometheus;
use super::{MESH, configuration, program};
use crate::mesh::{Mesh, root, said, with_server};

#[test]
fn prometheus_has_native_histograms_of_edges() {
    let (Some(prometheus), Some(promtool)) = (program("prometheus"), program("promtool")) else {
        return;
    };
    let Some(mesh) = root(|| Mesh::start(&with_server(MESH))) else { return };
    // With this feature Prometheus requests protobuf. It then stores no classic buckets of a histogram that has
    // native ones.
    let more = ["--enable-feature=native-histograms"];
    let server = Prometheus::start((&prometheus, promtool), &mesh, &configuration(&mesh), &more);
    let of_web = "leno_request_duration_seconds{service=\"web\"}";
    let queries = [
        format!("histogram_quantile(0.99, sum(rate({of_web}[10s])))"),
        format!("histogram_fraction(0, 0.1, sum(rate({of_web}[10s]))) > 0"),
        // The histogram counts as many requests as the counter, even though some take longer than the largest
        // classic bucket.
        format!("sum(histogram_count({of_web})) == sum(leno_requests_total{{service=\"web\"}})"),
        // The counters and gauges of the page are present as well.
        "sum(rate(leno_tls_handshakes_total[10s]))".to_owned(),
        "leno_discovery_connected == 1".to_owned(),
    ];
    let queries = queries.map(|query| ("native histograms".to_owned(), query));
    server.until_all_have_series(queries.into());
    let classic = server.answer("leno_request_duration_seconds_bucket");
    assert_eq!(said(&classic).trim(), "[]");
}
