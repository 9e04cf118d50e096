//! A proxy with routes, in front of three servers.

use std::net::SocketAddr;

use anyhow::Result;
use leno_testkit::http1::Response;
use leno_testkit::proxy::Proxy;

use crate::client;
use crate::echo::Echo;

/// A proxy whose clients call `echo`. Routes send some of their requests to the other two servers.
pub(crate) struct RoutesFixture {
    pub(crate) proxy: Proxy,
    pub(crate) echo: Echo,
    pub(crate) v1: Echo,
    pub(crate) v2: Echo,
}

impl RoutesFixture {
    /// Starts a proxy with these documents in addition to the services.
    pub(crate) fn start(documents: &str) -> Result<Self> {
        Self::start_logging("off", documents)
    }

    /// Like [`Self::start`], with an access log with these settings, such as `json`.
    pub(crate) fn start_logging(form: &str, documents: &str) -> Result<Self> {
        let (echo, v1, v2) =
            (Echo::start("echo")?, Echo::start("echo-v1")?, Echo::start("echo-v2")?);
        let services = [
            ("echo", "10.96.0.10", &echo),
            ("echo-v1", "None", &v1),
            ("echo-v2", "10.96.0.12", &v2),
        ]
        .map(|(name, vip, server)| service((name, vip), server.address, "http"))
        .concat();
        let proxy = Proxy::start_logging(form, |address, admin| {
            format!(
                "apiVersion: leno.dev/v1alpha1\nkind: Proxy\nmetadata: {{name: test, namespace: t}}\n\
                 spec:\n  workers: 1\n  admin: \"{admin}\"\n  \
                 outbound: {{listen: \"{address}\", service: \"t/echo:80\"}}\n  mtls: disabled\n\
                 {services}---\n{documents}"
            )
        })?;
        Ok(Self { proxy, echo, v1, v2 })
    }

    /// Starts a proxy with one route, which has these rules.
    pub(crate) fn with_rules(rules: &str) -> Result<Self> {
        Self::start(&http_route("route", rules))
    }

    pub(crate) fn send(&self, request: &str) -> Result<Response> {
        client::send(self.proxy.address(), request)
    }

    /// The name of the server that responded with 200, or another status.
    pub(crate) fn outcome(&self, request: &str) -> Result<String> {
        let response = self.send(request)?;
        let text = response.text();
        Ok(match response.status {
            200 => text.lines().next().unwrap_or_default().to_owned(),
            status => status.to_string(),
        })
    }

    /// The proxy's metrics.
    pub(crate) fn metrics(&self) -> Result<String> {
        client::metrics(&self.proxy)
    }
}

/// A route for the service `echo`.
pub(crate) fn http_route(name: &str, rules: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\n\
         metadata: {{name: {name}, namespace: t}}\nspec:\n  \
         parentRefs: [{{group: \"\", kind: Service, name: echo, port: 80}}]\n  rules:\n{rules}"
    )
}

/// A service that has one server as its endpoint.
pub(crate) fn service((name, vip): (&str, &str), server: SocketAddr, protocol: &str) -> String {
    let (ip, port) = (server.ip(), server.port());
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: t}}\n\
         spec:\n  clusterIP: {vip}\n  \
         ports: [{{name: x, port: 80, targetPort: {port}, appProtocol: {protocol}}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}-1, namespace: t, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: x, port: {port}, appProtocol: {protocol}}}]\n\
         endpoints: [{{addresses: [{ip}], conditions: {{ready: true}}}}]\n"
    )
}
