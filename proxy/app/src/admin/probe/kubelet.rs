//! Probes that a kubelet sends to the workload itself, because its pod is in node mode and was not changed.
//!
//! A connection from the node whose first bytes are the request of a probe ends here: the application is asked as for
//! `/probe/...`, and nothing of what the client has sent reaches it.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use leno_inbound::ProbeAnswers;
use leno_transport::Peeked;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::Probes;

/// What a kubelet asks, and where it asks from.
#[derive(Clone, Debug)]
pub(crate) struct KubeletCalls {
    probes: Probes,
    addresses: Vec<IpAddr>,
}

impl KubeletCalls {
    /// `None` if there is nothing to answer.
    pub(crate) fn new(probes: Probes, addresses: Vec<IpAddr>) -> Option<Self> {
        (!addresses.is_empty() && !probes.is_empty()).then_some(Self { probes, addresses })
    }
}

impl ProbeAnswers for KubeletCalls {
    fn find(&self, client: IpAddr, port: u16, bytes: &[u8]) -> Option<String> {
        if !self.addresses.contains(&client) {
            return None;
        }
        self.probes.http(port, target(bytes)?).map(str::to_owned)
    }

    fn answer(
        &self,
        probe: String,
        dialled: SocketAddr,
        client: Peeked<TcpStream>,
    ) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(async move {
            let (status, reason) = self.probes.ask(&probe, dialled.ip(), None).await;
            let (_request, mut stream) = client.into_parts();
            let length = reason.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}"
            );
            let answer = format!("{head}\r\nConnection: close\r\n\r\n{reason}");
            // A kubelet that has left asks again.
            let _left = stream.write_all(answer.as_bytes()).await;
            let _left = stream.shutdown().await;
        })
    }
}

/// The target of a GET. The kubelet sends its request at once.
fn target(bytes: &[u8]) -> Option<&str> {
    let rest = bytes.strip_prefix(b"GET ")?;
    let end = rest.iter().position(|byte| *byte == b' ')?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_probe_of_a_port_is_answered_and_only_for_the_node() {
        let node: IpAddr = "10.244.1.1".parse().unwrap();
        let probes = r#"{"web/readiness": {"httpGet": {"path": "/healthz?full"}, "port": 8080},
            "web/liveness": {"tcpSocket": {}, "port": 9090},
            "tls/liveness": {"httpGet": {"path": "/healthz", "scheme": "HTTPS"}, "port": 8443}}"#;
        let calls = KubeletCalls::new(probes.parse().unwrap(), vec![node]).unwrap();
        let find =
            |client: IpAddr, port: u16, bytes: &str| calls.find(client, port, bytes.as_bytes());
        let request = "GET /healthz?full HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(find(node, 8080, request).as_deref(), Some("web/readiness"));
        assert_eq!(find("10.244.1.9".parse().unwrap(), 8080, request), None, "another client");
        assert_eq!(find(node, 8081, request), None, "another port");
        for bytes in [
            "GET /healthz HTTP/1.1\r\n\r\n",
            "GET /healthz?full/admin HTTP/1.1\r\n\r\n",
            "POST /healthz?full HTTP/1.1\r\n\r\n",
            "GET /healthz?full",
            "",
        ] {
            assert_eq!(find(node, 8080, bytes), None, "{bytes}");
        }
        assert_eq!(find(node, 8443, "GET /healthz HTTP/1.1\r\n\r\n"), None, "it speaks TLS");
        assert!(KubeletCalls::new(Probes::default(), vec![node]).is_none());
        assert!(KubeletCalls::new(probes.parse().unwrap(), Vec::new()).is_none());
    }
}
