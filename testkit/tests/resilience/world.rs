//! A proxy with a policy before several servers, and its client.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_testkit::peer::{Act, Faulty};
use leno_testkit::proxy::Proxy;

/// How long a client waits for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// What a server does with request number `n` of its own, from 0.
pub(crate) type Script = fn(u32) -> Act;

/// A proxy before servers.
pub(crate) struct World {
    pub(crate) backends: Vec<Faulty>,
    proxy: Proxy,
}

/// Where the proxy and the servers are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Places {
    /// Labels of the proxy.
    pub(crate) own: &'static str,
    /// What endpoints say, in the order of the servers.
    pub(crate) servers: &'static [&'static str],
}

/// A response; none of it where the connection ended without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// All of the body came.
    pub(crate) is_whole: bool,
}

impl World {
    /// The outbound side, with the `spec` of a TrafficPolicy but for its targets.
    pub(crate) fn outbound(spec: &str, scripts: &[Script]) -> Self {
        Self::placed(spec, scripts, (&Places::default(), ""))
    }

    /// The same with more documents.
    pub(crate) fn outbound_with(spec: &str, scripts: &[Script], more: &str) -> Self {
        Self::started(spec, scripts, (&Places::default(), ""), more)
    }

    /// The same with places, of which the Service's `trafficDistribution` makes something.
    pub(crate) fn placed(spec: &str, scripts: &[Script], places: (&Places, &str)) -> Self {
        Self::started(spec, scripts, places, "")
    }

    fn started(
        spec: &str,
        scripts: &[Script],
        (places, distribution): (&Places, &str),
        more: &str,
    ) -> Self {
        let backends: Vec<Faulty> = scripts.iter().map(|script| server(*script)).collect();
        let proxy = Proxy::start_with(|address, admin| {
            let mut documents = proxy_document(
                (admin, places.own),
                &format!("outbound: {{listen: \"{address}\", service: \"t/web:80\"}}"),
            );
            documents += SERVICE;
            if !distribution.is_empty() {
                documents += &format!("  trafficDistribution: {distribution}\n");
            }
            for (number, backend) in backends.iter().enumerate() {
                let place = places.servers.get(number);
                let place = place.map(|place| format!(", {place}")).unwrap_or_default();
                documents += &slice(number, backend.address(), &place);
            }
            documents += "---\napiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
                metadata: {name: p, namespace: t}\nspec:\n  \
                targetRefs: [{group: \"\", kind: Service, name: web}]\n";
            documents += spec;
            documents += more;
            documents
        });
        Self { backends, proxy: proxy.expect("leno-proxy starts") }
    }

    /// The inbound side before one server, with the `limits` of a RateLimitPolicy.
    pub(crate) fn inbound(limits: &str, script: Script) -> Self {
        let backend = server(script);
        let application = backend.address();
        let proxy = Proxy::start_with(|address, admin| {
            let mut documents = proxy_document(
                (admin, ""),
                &format!("inbound: {{listen: \"{address}\", application: \"{application}\"}}"),
            );
            documents += "---\napiVersion: leno.dev/v1alpha1\nkind: RateLimitPolicy\n\
                metadata: {name: p, namespace: t}\nspec:\n  \
                targetRefs: [{group: leno.dev, kind: Workload, name: test}]\n";
            documents += limits;
            documents
        });
        Self { backends: vec![backend], proxy: proxy.expect("leno-proxy starts") }
    }

    /// Sends a request with this `x-id` on a connection of its own and reads the response.
    pub(crate) fn ask(&self, method: &str, id: &str, headers: &str, body: &str) -> Answer {
        let mut stream = self.send(method, id, headers, body);
        let mut bytes = Vec::new();
        // A response that was cut ends in an error, or without all of its body.
        let read = stream.read_to_end(&mut bytes);
        Answer::parse(&bytes, read.is_ok())
    }

    /// A connection to the proxy.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy.address()).expect("the proxy listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    /// The same without reading.
    pub(crate) fn send(&self, method: &str, id: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let mut request = format!("{method} /it HTTP/1.1\r\nHost: web\r\nConnection: close\r\n");
        write!(request, "x-id: {id}\r\n{headers}").expect("memory");
        if !body.is_empty() {
            write!(request, "Content-Length: {}\r\n", body.len()).expect("memory");
        }
        request += "\r\n";
        request += body;
        stream.write_all(request.as_bytes()).expect("the proxy reads");
        stream
    }

    pub(crate) fn get(&self, id: &str) -> Answer {
        self.ask("GET", id, "", "")
    }

    /// The sum of the series whose lines hold all of these parts.
    pub(crate) fn metric(&self, parts: &[&str]) -> f64 {
        let mut stream = TcpStream::connect(self.proxy.admin()).expect("the admin server listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        let wanted = |line: &&str| !line.starts_with('#') && parts.iter().all(|p| line.contains(p));
        let value =
            |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok());
        page.lines().filter(wanted).filter_map(value).sum()
    }

    /// The ids of the requests that reached any server.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.backends.iter().flat_map(Faulty::seen).collect()
    }
}

impl Answer {
    fn parse(bytes: &[u8], ended_well: bool) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return Self::default() };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
        let length: usize = length.and_then(|value| value.trim().parse().ok()).unwrap_or(0);
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, is_whole: ended_well && body.len() == length, head }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.status == 200 && self.is_whole
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find_map(|(key, value)| (key == name).then_some(value))
    }
}

fn server(script: Script) -> Faulty {
    Faulty::start("127.0.0.1:0".parse().expect("an address"), script).expect("loopback")
}

fn proxy_document((admin, labels): (SocketAddr, &str), side: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\n\
         metadata: {{name: test-0, namespace: t, labels: {{{labels}}}}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  {side}\n  mtls: disabled\n"
    )
}

const SERVICE: &str = "---\napiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: t}\n\
    spec:\n  clusterIP: 10.96.0.10\n  \
    ports: [{name: x, port: 80, targetPort: 80, appProtocol: http}]\n";

fn slice(number: usize, server: SocketAddr, more: &str) -> String {
    let (ip, port) = (server.ip(), server.port());
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-{number}, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: http}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}{more}}}]\n"
    )
}
