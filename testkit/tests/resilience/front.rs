//! A proxy with a policy, for clients of both HTTP versions.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_testkit::proxy::Proxy;

/// How long a client waits for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// A proxy in front of servers.
pub(crate) struct FrontProxy {
    proxy: Proxy,
}

/// Settings of the proxy, its service and its endpoints.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrontOptions<'a> {
    /// The name of the proxy; `test-0` if this is empty.
    pub(crate) name: &'a str,
    /// Labels of the proxy.
    pub(crate) own: &'a str,
    /// Further fields of the endpoints, in the order of the servers.
    pub(crate) servers: &'a [&'a str],
    /// The service's `trafficDistribution`.
    pub(crate) distribution: &'a str,
    /// The service's `appProtocol`; `http` if this is empty.
    pub(crate) protocol: &'a str,
    /// More documents.
    pub(crate) more: &'a str,
    /// The panic that the proxy causes on purpose.
    pub(crate) panic: &'a str,
    /// Further arguments of the proxy.
    pub(crate) arguments: &'a [&'a str],
}

impl From<Proxy> for FrontProxy {
    fn from(proxy: Proxy) -> Self {
        Self { proxy }
    }
}

impl FrontProxy {
    /// The outbound side. `spec` is the spec of a TrafficPolicy without its targets.
    pub(crate) fn outbound(spec: &str, servers: &[SocketAddr], around: &FrontOptions<'_>) -> Self {
        let proxy = Proxy::start_panicking(
            &[&["--access-log", "text"], around.arguments].concat(),
            around.panic,
            |address, admin| {
                let side = format!("outbound: {{listen: \"{address}\", service: \"t/web:80\"}}");
                let protocol = if around.protocol.is_empty() { "http" } else { around.protocol };
                let mut documents = proxy_document((admin, around.name, around.own), &side);
                documents += &service(protocol);
                if !around.distribution.is_empty() {
                    documents += &format!("  trafficDistribution: {}\n", around.distribution);
                }
                for (number, server) in servers.iter().enumerate() {
                    let place = around.servers.get(number);
                    let place = place.map(|place| format!(", {place}")).unwrap_or_default();
                    documents += &slice(number, *server, (protocol, &place));
                }
                documents += "---\napiVersion: leno.dev/v1alpha1\nkind: TrafficPolicy\n\
                metadata: {name: p, namespace: t}\nspec:\n  \
                targetRefs: [{group: \"\", kind: Service, name: web}]\n";
                documents += spec;
                documents += around.more;
                documents
            },
        );
        Self { proxy: proxy.expect("leno-proxy starts") }
    }

    /// The inbound side in front of an application. `limits` are those of a RateLimitPolicy; if empty, there is
    /// none.
    pub(crate) fn inbound(limits: &str, application: SocketAddr) -> Self {
        Self::inbound_under("RateLimitPolicy", limits, application)
    }

    /// Like [`Self::inbound`], with this many workers.
    pub(crate) fn inbound_of(workers: u16, limits: &str, application: SocketAddr) -> Self {
        Self::inbound_by((workers, "RateLimitPolicy"), limits, application)
    }

    /// The inbound side in front of an application, with a policy of this kind for its workload.
    pub(crate) fn inbound_under(kind: &str, spec: &str, application: SocketAddr) -> Self {
        Self::inbound_by((1, kind), spec, application)
    }

    fn inbound_by((workers, kind): (u16, &str), spec: &str, application: SocketAddr) -> Self {
        let proxy = Proxy::start_logging("text", |address, admin| {
            let mut documents = proxy_document(
                (admin, "", ""),
                &format!("inbound: {{listen: \"{address}\", application: \"{application}\"}}"),
            );
            documents = documents.replace("workers: 1", &format!("workers: {workers}"));
            if spec.is_empty() {
                return documents;
            }
            documents += &format!(
                "---\napiVersion: leno.dev/v1alpha1\nkind: {kind}\n\
                metadata: {{name: p, namespace: t}}\nspec:\n  \
                targetRefs: [{{group: leno.dev, kind: Workload, name: test}}]\n"
            );
            documents += spec;
            documents
        });
        Self { proxy: proxy.expect("leno-proxy starts") }
    }

    /// Everything that the proxy has printed so far.
    pub(crate) fn log(&self) -> String {
        self.proxy.log().expect("its log")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.proxy.pid()
    }

    /// The address at which the proxy accepts connections.
    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// The address of its admin server.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.proxy.admin()
    }

    /// Opens a connection to the proxy.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.proxy.address()).expect("the proxy listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a socket");
        stream
    }

    /// The sum of the samples whose lines contain all of these parts.
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
}

fn proxy_document((admin, name, labels): (SocketAddr, &str, &str), side: &str) -> String {
    let name = if name.is_empty() { "test-0" } else { name };
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\n\
         metadata: {{name: {name}, namespace: t, labels: {{{labels}}}}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  {side}\n  mtls: disabled\n"
    )
}

fn service(protocol: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: t}}\n\
         spec:\n  clusterIP: 10.96.0.10\n  \
         ports: [{{name: x, port: 80, targetPort: 80, appProtocol: {protocol}}}]\n"
    )
}

fn slice(number: usize, server: SocketAddr, (protocol, more): (&str, &str)) -> String {
    let (ip, port) = (server.ip(), server.port());
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: web-{number}, namespace: t, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: {protocol}}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}{more}}}]\n"
    )
}
