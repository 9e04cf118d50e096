//! The proxies to which cases are sent, and the conditions that must hold for each of them afterwards.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use leno_testkit::proxy::Proxy;
use leno_testkit::tunnel::Tunnel;
use leno_testkit::wait;

use crate::application::Application;

/// How long anything may take that must end by itself.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// The policy of inbound sides, which denies requests for `/denied`.
const DENIED: &str = "---\napiVersion: leno.dev/v1alpha1\nkind: AuthorizationPolicy\n\
    metadata: {name: denied, namespace: t}\nspec:\n  \
    targetRefs: [{group: leno.dev, kind: Workload, name: test}]\n  action: Deny\n  \
    rules: [{to: [{paths: [{prefix: /denied}]}]}]\n";

/// A proxy in front of an application.
pub(crate) struct ProxyWorld {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) application: Application,
    /// Whether bytes that are clearly not HTTP are relayed unchanged.
    pub(crate) is_transparent: bool,
    /// Whether the policy denies requests for `/denied`.
    pub(crate) denies: bool,
    proxy: Running,
    /// The memory that the proxy had charged before the first case.
    idle_bytes: f64,
}

enum Running {
    Plain(Proxy),
    Tunnel(Tunnel),
}

impl ProxyWorld {
    /// The outbound side, for a service that is declared as HTTP, with these documents.
    pub(crate) fn outbound(routes: &str) -> Self {
        let application = Application::start();
        let server = application.address;
        let proxy = Proxy::start_with(|address, admin| {
            let side = format!("outbound: {{listen: \"{address}\", service: \"t/web:80\"}}");
            format!("{}{}{routes}", own(admin, &side), service("web", server))
        });
        let proxy = proxy.expect("leno-proxy starts");
        Self::of("outbound", proxy.address(), (application, Running::Plain(proxy)))
    }

    /// The inbound side, for a port without a declared protocol, with a policy for requests.
    pub(crate) fn inbound() -> Self {
        Self { denies: true, ..Self::inbound_with("inbound", DENIED) }
    }

    /// Like [`Self::inbound`], but without a policy.
    pub(crate) fn bare() -> Self {
        Self { is_transparent: true, ..Self::inbound_with("bare", "") }
    }

    fn inbound_with(name: &'static str, policy: &str) -> Self {
        let application = Application::start();
        let server = application.address;
        let proxy = Proxy::start_with(|address, admin| {
            let side = format!("inbound: {{listen: \"{address}\", application: \"{server}\"}}");
            own(admin, &side) + policy
        });
        let proxy = proxy.expect("leno-proxy starts");
        Self::of(name, proxy.address(), (application, Running::Plain(proxy)))
    }

    /// The inbound side with mTLS in this mode. Connections to [`Self::address`] reach it like those of a proxy of
    /// the mesh.
    pub(crate) fn mesh(mtls: &str) -> Self {
        let application = Application::start();
        let tunnel = Tunnel::start_given(application.address, mtls, &[]).expect("a tunnel");
        Self::of("mesh", tunnel.address(), (application, Running::Tunnel(tunnel)))
    }

    fn of(
        name: &'static str,
        address: SocketAddr,
        (application, proxy): (Application, Running),
    ) -> Self {
        let mut world = Self {
            name,
            address,
            application,
            is_transparent: false,
            denies: false,
            proxy,
            idle_bytes: 0.0,
        };
        world.idle_bytes = world.metric("leno_memory_charged_bytes");
        world
    }

    /// The proxy itself.
    pub(crate) fn proxy(&self) -> &Proxy {
        match &self.proxy {
            Running::Plain(proxy) => proxy,
            Running::Tunnel(tunnel) => tunnel.proxy(),
        }
    }

    /// A connection of a client.
    pub(crate) fn connect(&self) -> TcpStream {
        connect(self.address)
    }

    /// The sum of the samples whose lines begin with `name`.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.metrics();
        let lines = page.lines().filter(|line| line.starts_with(name));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The errors that the proxy has counted, one per line.
    pub(crate) fn errors(&self) -> String {
        let page = self.metrics();
        let lines = page.lines().filter(|line| line.starts_with("leno_errors_total{"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn metrics(&self) -> String {
        let mut stream = connect(self.proxy().admin());
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        page
    }

    /// Checks that everything that the cases occupied was released, and that nothing panicked.
    pub(crate) fn assert_idle(&self) {
        let is_idle = || {
            let none = ["leno_busy", "leno_http2_streams_open", "leno_tcp_open_connections"];
            let charged = self.metric("leno_memory_charged_bytes") - self.idle_bytes;
            let rest: Vec<_> = none.iter().map(|name| self.metric(name)).collect();
            let connections = self.metric("leno_connections_open");
            let is_idle = rest.iter().sum::<f64>() == 0.0
                && connections <= self.kept()
                && charged <= IDLE_CONNECTIONS_BYTES;
            is_idle.then_some(()).ok_or((rest, connections, charged))
        };
        let mut last = None;
        let waited = wait::until("everything to be given back", LIMIT, || match is_idle() {
            Ok(()) => Ok(Some(())),
            Err(state) => {
                last = Some(state);
                Ok(None)
            }
        });
        assert!(waited.is_ok(), "{}: {:?}, {last:?}", self.name, waited.err());
        assert_eq!(
            self.metric("leno_panics_total"),
            0.0,
            "{}: {:?}",
            self.name,
            self.proxy().log()
        );
    }

    /// How many connections may stay open at the proxy. In a [`Tunnel`], HAProxy keeps its connections with mTLS.
    fn kept(&self) -> f64 {
        if matches!(self.proxy, Running::Tunnel(_)) { 100.0 } else { 0.0 }
    }
}

/// How much memory idle connections to the application may use, in bytes.
const IDLE_CONNECTIONS_BYTES: f64 = 2.0 * 1024.0 * 1024.0;

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the proxy listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    stream.set_write_timeout(Some(LIMIT)).expect("a socket");
    stream
}

fn own(admin: SocketAddr, side: &str) -> String {
    format!(
        "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test-0, namespace: t}}\n\
         spec:\n  workers: 1\n  admin: \"{admin}\"\n  {side}\n  mtls: disabled\n"
    )
}

/// A service with one endpoint.
pub(crate) fn service(name: &str, server: SocketAddr) -> String {
    let (ip, port) = (server.ip(), server.port());
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: t}}\n\
         spec:\n  clusterIP: None\n  \
         ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: http}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: t, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: http}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
    )
}
