//! Tests after which answers of a collector a batch is sent again, and how often.

use std::cell::Cell;
use std::pin::Pin;

use http::Response;
use tokio::io::{DuplexStream, duplex};
use tokio::task::LocalSet;

use super::*;

/// A status whose details say when to try again (`google.rpc.Status`, in base64 as gRPC sends it).
const RETRY_INFO: &str = "CAgaMAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIECgIIAQ";

/// A collector that answers each call with the next of these statuses, and further calls with the last.
#[derive(Clone, Debug)]
struct Collector {
    statuses: &'static [&'static str],
    details: Option<&'static str>,
    calls: Rc<Cell<usize>>,
}

impl Collector {
    async fn serve(self, pipe: DuplexStream) {
        let mut connection = h2::server::handshake(pipe).await.unwrap();
        while let Some(Ok((_, mut call))) = connection.accept().await {
            let nth = self.calls.replace(self.calls.get() + 1);
            let status = *self.statuses.get(nth).or(self.statuses.last()).unwrap();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            if let Some(details) = self.details {
                trailers.insert("grpc-status-details-bin", details.parse().unwrap());
            }
            if status == "0" {
                let mut body = call.send_response(Response::new(()), false).unwrap();
                body.send_data(Bytes::from_static(&[0; 5]), false).unwrap();
                body.send_trailers(trailers).unwrap();
            } else {
                let mut response = Response::new(());
                *response.headers_mut() = trailers;
                call.send_response(response, true).unwrap();
            }
        }
    }
}

impl MeshPort for Collector {
    fn connect(&self, _http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>) {
        let (own, far) = duplex(16 << 10);
        (own, Box::pin(self.clone().serve(far)))
    }

    fn sweep(&self) {}
}

/// Exports a batch to a collector with these answers. Returns how often the batch was sent, and whether the collector
/// has accepted it.
async fn tries(statuses: &'static [&'static str], details: Option<&'static str>) -> (usize, bool) {
    let calls = Rc::<Cell<usize>>::default();
    let collector = Rc::new(Collector { statuses, details, calls: Rc::clone(&calls) });
    let exporter = Exporter {
        signal: Signal::Spans(Rc::new(Traces::new("lab/collector:4317".parse().unwrap()))),
        protocol: TraceProtocol::Grpc,
        registry: Rc::new(Registry::new()),
        activity: Rc::default(),
        instance: InstanceName::new("lab", "web-0").unwrap(),
        workload: "web".to_owned(),
        collector,
        grpc: GrpcConnection::default(),
    };
    let local = LocalSet::new();
    let is_taken = local.run_until(exporter.export(Bytes::from_static(b"spans"))).await.is_some();
    (calls.get(), is_taken)
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_sent_again_after_what_otlp_calls_retryable_alone() {
    for status in ["1", "4", "10", "11", "14", "15"] {
        assert_eq!(tries(Vec::leak(vec![status]), None).await, (4, false), "{status}");
    }
    for status in ["2", "3", "5", "6", "7", "8", "9", "12", "13", "16", "x"] {
        assert_eq!(tries(Vec::leak(vec![status]), None).await, (1, false), "{status}");
    }
    assert_eq!(tries(&["8"], Some(RETRY_INFO)).await, (4, false), "it says when to try again");
    assert_eq!(tries(&["3"], Some(RETRY_INFO)).await, (1, false));
    assert_eq!(tries(&["14", "0"], None).await, (2, true));
}

#[test]
fn what_a_collector_refuses_over_http_is_not_sent_again() {
    let temporary = |status| is_temporary(StatusCode::from_u16(status).unwrap());
    assert_eq!([429, 502, 503, 504].map(temporary), [true; 4]);
    assert_eq!([400, 401, 404, 413, 500].map(temporary), [false; 5]);
}
