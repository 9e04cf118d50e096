//! Answers HTTP probes that a kubelet sends to the workload itself. It does so in node mode, where a pod's probes are
//! not rewritten.
//!
//! If a connection from the node begins with the request of a probe, it ends here: the application is probed as for
//! `/probe/...`, and no byte of the client reaches it. Other clients may have the address of the node, too, so the
//! `User-Agent` must also be that of a kubelet.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;

use hyper::header::USER_AGENT;
use leno_inbound::{ProbeAnswers, ProbeMatch};
use leno_transport::Peeked;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{KUBELET, Probes};

/// The probes of a workload, and the addresses from which its kubelet sends them.
#[derive(Clone, Debug)]
pub(crate) struct KubeletCalls {
    probes: Probes,
    addresses: Vec<IpAddr>,
}

impl KubeletCalls {
    /// `None` if there are no probes to answer.
    pub(crate) fn new(probes: Probes, addresses: Vec<IpAddr>) -> Option<Self> {
        (!addresses.is_empty() && !probes.is_empty()).then_some(Self { probes, addresses })
    }
}

impl ProbeAnswers for KubeletCalls {
    fn find(&self, client: IpAddr, port: u16, bytes: &[u8]) -> ProbeMatch {
        if !self.addresses.contains(&client) || self.probes.http(port).next().is_none() {
            return ProbeMatch::Other;
        }
        let (target, head) = match target(bytes) {
            Target::Begun => return ProbeMatch::Begun,
            Target::Other => return ProbeMatch::Other,
            Target::Of(target, head) => (target, head),
        };
        let mut probes = self.probes.http(port).filter(|(_, path, _)| *path == target).peekable();
        if probes.peek().is_none() {
            return ProbeMatch::Other;
        }
        let Some(agent) = agent(head) else { return ProbeMatch::Begun };
        match probes.find(|(_, _, headers)| is_kubelet(agent, headers)) {
            Some((name, ..)) => ProbeMatch::Probe(name.to_owned()),
            None => ProbeMatch::Other,
        }
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
            // An error means that the kubelet has left; it will probe again.
            let _left = stream.write_all(answer.as_bytes()).await;
            let _left = stream.shutdown().await;
        })
    }
}

/// The target in a request line.
enum Target<'b> {
    /// The path of a GET, and the bytes after the path.
    Of(&'b str, &'b [u8]),
    /// The bytes are the beginning of a GET, and more may follow: the target is not complete yet.
    Begun,
    /// The request is no GET, its target is not UTF-8, or there are no bytes.
    Other,
}

fn target(bytes: &[u8]) -> Target<'_> {
    const GET: &[u8] = b"GET ";
    let Some(rest) = bytes.strip_prefix(GET) else {
        let begun = !bytes.is_empty() && GET.starts_with(bytes);
        return if begun { Target::Begun } else { Target::Other };
    };
    let is_end = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n');
    let Some(end) = rest.iter().position(is_end) else { return Target::Begun };
    let (target, head) = rest.split_at(end);
    std::str::from_utf8(target).map_or(Target::Other, |target| Target::Of(target, head))
}

/// The `User-Agent` in a head; empty if it has none; `None` if the head is not complete.
fn agent(head: &[u8]) -> Option<&[u8]> {
    let end = head.windows(4).position(|four| four == b"\r\n\r\n")?;
    let lines = head.get(..end)?.split(|byte| *byte == b'\n');
    let mut values = lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        let is_agent = name.eq_ignore_ascii_case(USER_AGENT.as_str().as_bytes());
        is_agent.then(|| value.strip_prefix(b":").unwrap_or(value).trim_ascii())
    });
    Some(values.next().unwrap_or_default())
}

/// Whether a client with this `User-Agent` is a kubelet that sends a probe with these headers. The pod may set the
/// `User-Agent` in these headers.
fn is_kubelet(agent: &[u8], headers: &[(String, String)]) -> bool {
    let is_agent = |name: &str| name.eq_ignore_ascii_case(USER_AGENT.as_str());
    match headers.iter().find(|(name, _)| is_agent(name)) {
        Some((_, value)) => agent == value.trim().as_bytes(),
        None => agent.starts_with(KUBELET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(probes: &str, node: IpAddr) -> KubeletCalls {
        KubeletCalls::new(probes.parse().unwrap(), vec![node]).unwrap()
    }

    fn get(target: &str, agent: &str) -> String {
        format!("GET {target} HTTP/1.1\r\nHost: a\r\n{agent}Connection: close\r\n\r\n")
    }

    const AGENT: &str = "User-Agent: kube-probe/1.36\r\n";

    #[test]
    fn only_the_probe_of_a_port_is_answered_and_only_for_the_node() {
        let node: IpAddr = "10.244.1.1".parse().unwrap();
        let probes = r#"{"web/readiness": {"httpGet": {"path": "/healthz?full"}, "port": 8080},
            "web/liveness": {"tcpSocket": {}, "port": 9090},
            "tls/liveness": {"httpGet": {"path": "/healthz", "scheme": "HTTPS"}, "port": 8443}}"#;
        let calls = calls(probes, node);
        let find =
            |client: IpAddr, port: u16, bytes: &str| calls.find(client, port, bytes.as_bytes());
        let request = get("/healthz?full", AGENT);
        let found = ProbeMatch::Probe("web/readiness".to_owned());
        assert_eq!(find(node, 8080, &request), found);
        let other: IpAddr = "10.244.1.9".parse().unwrap();
        assert_eq!(find(other, 8080, &request), ProbeMatch::Other, "another client");
        assert_eq!(find(node, 8081, &request), ProbeMatch::Other, "another port");
        for bytes in [
            &get("/healthz", AGENT),
            &get("/healthz?full/admin", AGENT),
            &request.replacen("GET", "POST", 1),
            "GETS",
            "",
        ] {
            assert_eq!(find(node, 8080, bytes), ProbeMatch::Other, "{bytes}");
        }
        let tls = find(node, 8443, &get("/healthz", AGENT));
        assert_eq!(tls, ProbeMatch::Other, "it speaks TLS");
        assert!(KubeletCalls::new(Probes::default(), vec![node]).is_none());
        assert!(KubeletCalls::new(probes.parse().unwrap(), Vec::new()).is_none());
        for length in 1..request.len() {
            let part = &request[..length];
            assert_eq!(find(node, 8080, part), ProbeMatch::Begun, "{part}");
        }
    }

    #[test]
    fn a_client_behind_the_address_of_the_node_that_is_no_kubelet_is_not_answered() {
        let node: IpAddr = "10.244.1.1".parse().unwrap();
        let probes = r#"{"web/liveness": {"httpGet": {"path": "/"}, "port": 80},
            "named/liveness": {"httpGet": {"path": "/", "httpHeaders":
                [{"name": "user-agent", "value": "check 1"}]}, "port": 81},
            "silent/liveness": {"httpGet": {"path": "/", "httpHeaders":
                [{"name": "User-Agent", "value": ""}]}, "port": 82}}"#;
        let calls = calls(probes, node);
        let browser = "User-Agent: Mozilla/5.0 kube-probe/1.36\r\n";
        let (check, none) = ("USER-AGENT:check 1\r\n", "X-User-Agent: kube-probe/1.36\r\n");
        for (agent, expected) in [
            (AGENT, [true, false, false]),
            (browser, [false, false, false]),
            (check, [false, true, false]),
            (none, [false, false, true]),
        ] {
            for (port, expected) in (80..).zip(expected) {
                let found = calls.find(node, port, get("/", agent).as_bytes());
                assert_eq!(found != ProbeMatch::Other, expected, "{port} {agent}");
            }
        }
        let body = format!("{}{AGENT}\r\n", get("/", ""));
        assert_eq!(calls.find(node, 80, body.as_bytes()), ProbeMatch::Other, "not of the head");
    }
}
