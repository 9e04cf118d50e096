//! A stand-in for Linkerd's identity, destination and policy services, with the API of linkerd2-proxy-api. It does the
//! minimum that a proxy needs.
//!
//! ```text
//! Certify                      ─► a certificate
//! GetProfile(10.89.0.3:8080)   ─► that endpoint, its identity, HTTP/2
//! WatchPort(8080)              ─► its protocol; every client with an identity of the mesh is authorized
//! ```

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context, Result};
use futures_util::{Stream, StreamExt, stream};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use leno_measure::load::Protocol;
use linkerd2_proxy_api::destination::destination_server::{self, Destination, DestinationServer};
use linkerd2_proxy_api::destination::{
    DestinationProfile, GetDestination, ProtocolHint, TlsIdentity, Update, WeightedAddr,
    protocol_hint, tls_identity,
};
use linkerd2_proxy_api::identity::identity_server::{self, Identity, IdentityServer};
use linkerd2_proxy_api::identity::{CertifyRequest, CertifyResponse};
use linkerd2_proxy_api::inbound::inbound_server_policies_server::{
    self, InboundServerPolicies, InboundServerPoliciesServer,
};
use linkerd2_proxy_api::inbound::{
    Authn, Authz, HttpRoute, IdentitySuffix, Network, PortSpec, ProxyProtocol, Server, authn,
    http_route, proxy_protocol,
};
use linkerd2_proxy_api::{http_route as matching, meta};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, async_trait};
use tower_service::Service;

use super::certificates::Authority;
use super::hop::{CONTROL, Hop};

pub(crate) fn identity(workload: &str) -> String {
    format!("{workload}.bench.serviceaccount.identity.linkerd.cluster.local")
}

const POLICY: &str = "all-authenticated";
/// The weight of the only endpoint of an address.
const WEIGHT: u32 = 10_000;

/// The state of the stand-in.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    authority: Arc<Authority>,
    workloads: Vec<(String, Ipv4Addr)>,
    protocol: Protocol,
    /// Addresses whose traffic is opaque, even if `protocol` is another one.
    opaque: Vec<SocketAddr>,
}

/// A running stand-in. Dropping this value stops it.
#[derive(Debug)]
pub(crate) struct RunningControl(Option<Runtime>);

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Sends one item and keeps the stream open, because a proxy repeats its request when the stream ends.
fn once_and_stay<T: Send + 'static>(item: T) -> Response<Streamed<T>> {
    Response::new(Box::pin(stream::once(async { Ok(item) }).chain(stream::pending())))
}

impl Control {
    pub(super) fn new(hop: &Hop, authority: Arc<Authority>) -> Self {
        let opaque = hop.opaque.iter().map(|one| SocketAddr::V4(*one)).collect();
        Self { authority, workloads: hop.workloads.clone(), protocol: hop.protocol, opaque }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, CONTROL).into()
    }

    pub(crate) fn serve(self, listener: TcpListener) -> Result<RunningControl> {
        listener.set_nonblocking(true)?;
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let runtime = threads.worker_threads(1).enable_all().build()?;
        let entered = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.context("cannot serve Linkerd's proxies")?;
        drop(entered);
        runtime.spawn(self.accept(listener));
        Ok(RunningControl(Some(runtime)))
    }

    async fn accept(self, listener: tokio::net::TcpListener) {
        let identity = IdentityServer::new(self.clone());
        let destination = DestinationServer::new(self.clone());
        let inbound = InboundServerPoliciesServer::new(self);
        while let Ok((stream, _)) = listener.accept().await {
            let services = (identity.clone(), destination.clone(), inbound.clone());
            let answer = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let (mut identity, mut destination, mut inbound) = services.clone();
                async move {
                    let path = request.uri().path();
                    let service = path.strip_prefix('/').and_then(|path| path.split('/').next());
                    match service.unwrap_or_default() {
                        identity_server::SERVICE_NAME => identity.call(request).await,
                        destination_server::SERVICE_NAME => destination.call(request).await,
                        inbound_server_policies_server::SERVICE_NAME => inbound.call(request).await,
                        // Without a client policy, a proxy uses the profile.
                        _ => Ok::<_, Infallible>(Status::not_found("no policy").into_http()),
                    }
                }
            });
            tokio::spawn(async move {
                let server = auto::Builder::new(TokioExecutor::new());
                // A failure is not reported here, because the proxy reports how its connection ended.
                drop(server.serve_connection(TokioIo::new(stream), answer).await);
            });
        }
    }

    /// The endpoint at an address, with the identity of its workload; `None` if no workload has the
    /// address.
    fn endpoint(&self, path: &str) -> Option<WeightedAddr> {
        let address: SocketAddr = path.parse().ok()?;
        let (workload, _) = self.workloads.iter().find(|(_, ip)| address.ip() == *ip)?;
        let name = || tls_identity::DnsLikeIdentity { name: identity(workload) };
        let hint = match self.is_opaque(path) {
            true => protocol_hint::Protocol::Opaque(protocol_hint::Opaque {}),
            false => protocol_hint::Protocol::H2(protocol_hint::H2 {}),
        };
        Some(WeightedAddr {
            addr: Some(address.into()),
            weight: WEIGHT,
            tls_identity: Some(TlsIdentity {
                strategy: Some(tls_identity::Strategy::DnsLikeIdentity(name())),
                server_name: Some(name()),
            }),
            protocol_hint: Some(ProtocolHint { protocol: Some(hint), ..ProtocolHint::default() }),
            ..WeightedAddr::default()
        })
    }

    /// Whether proxies must forward traffic to an address as opaque bytes.
    fn is_opaque(&self, path: &str) -> bool {
        let is_other = |address| self.opaque.contains(&address);
        self.protocol == Protocol::Tcp || path.parse().is_ok_and(is_other)
    }

    /// The protocol of a port. Every client with an identity of the mesh is authorized.
    fn server(&self) -> Server {
        use proxy_protocol::{Http1, Http2, Kind, Tls};
        let kind = match self.protocol {
            // On an opaque port, the proxy does not accept mTLS: in a cluster, clients of the mesh connect to the
            // proxy's own port instead. That does not work in the lab, because Leno's capture does not answer
            // SO_ORIGINAL_DST for connections to that port. On a port of kind TLS, the proxy terminates the mesh's mTLS
            // and forwards the bytes inside without detection.
            Protocol::Tcp => Kind::Tls(Tls {}),
            Protocol::Http1 => Kind::Http1(Http1 { routes: vec![route()], ..Http1::default() }),
            _ => Kind::Http2(Http2 { routes: vec![route()], ..Http2::default() }),
        };
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = [label("group", ""), label("kind", "default"), label("name", POLICY)];
        Server {
            protocol: Some(ProxyProtocol { kind: Some(kind) }),
            authorizations: vec![authorization()],
            labels: labels.into(),
            ..Server::default()
        }
    }
}

fn metadata() -> meta::Metadata {
    meta::Metadata { kind: Some(meta::metadata::Kind::Default(POLICY.to_owned())) }
}

fn authorization() -> Authz {
    let any = |net: (std::net::IpAddr, u8)| Network { net: Some(net.into()), except: Vec::new() };
    // A suffix without parts matches every name.
    let suffixes = vec![IdentitySuffix { parts: Vec::new() }];
    let clients = authn::permit_mesh_tls::PermitClientIdentities {
        suffixes,
        ..authn::permit_mesh_tls::PermitClientIdentities::default()
    };
    let clients = authn::permit_mesh_tls::Clients::Identities(clients);
    let permit = authn::Permit::MeshTls(authn::PermitMeshTls { clients: Some(clients) });
    Authz {
        networks: vec![
            any((Ipv4Addr::UNSPECIFIED.into(), 0)),
            any((std::net::Ipv6Addr::UNSPECIFIED.into(), 0)),
        ],
        authentication: Some(Authn { permit: Some(permit) }),
        metadata: Some(metadata()),
        ..Authz::default()
    }
}

/// A route for every path.
fn route() -> HttpRoute {
    let path = matching::PathMatch { kind: Some(matching::path_match::Kind::Prefix("/".into())) };
    let all = matching::HttpRouteMatch { path: Some(path), ..matching::HttpRouteMatch::default() };
    HttpRoute {
        metadata: Some(metadata()),
        authorizations: vec![authorization()],
        rules: vec![http_route::Rule { matches: vec![all], filters: Vec::new() }],
        ..HttpRoute::default()
    }
}

#[async_trait]
impl Identity for Control {
    async fn certify(
        &self,
        request: Request<CertifyRequest>,
    ) -> Result<Response<CertifyResponse>, Status> {
        let request = request.into_inner();
        let signed = self
            .authority
            .certify(&request.certificate_signing_request, &request.identity)
            .map_err(|error| Status::invalid_argument(format!("{error:#}")))?;
        Ok(Response::new(CertifyResponse {
            leaf_certificate: signed.certificate,
            intermediate_certificates: Vec::new(),
            valid_until: Some(signed.until.into()),
        }))
    }
}

#[async_trait]
impl Destination for Control {
    type GetStream = Streamed<Update>;
    type GetProfileStream = Streamed<DestinationProfile>;

    async fn get(&self, _: Request<GetDestination>) -> Result<Response<Self::GetStream>, Status> {
        // A proxy that knows the endpoint from the profile does not need a list of endpoints.
        Ok(once_and_stay(Update::default()))
    }

    async fn get_profile(
        &self,
        request: Request<GetDestination>,
    ) -> Result<Response<Self::GetProfileStream>, Status> {
        let path = request.into_inner().path;
        Ok(once_and_stay(DestinationProfile {
            opaque_protocol: self.is_opaque(&path),
            endpoint: self.endpoint(&path),
            ..DestinationProfile::default()
        }))
    }
}

#[async_trait]
impl InboundServerPolicies for Control {
    type WatchPortStream = Streamed<Server>;

    async fn get_port(&self, _: Request<PortSpec>) -> Result<Response<Server>, Status> {
        Ok(Response::new(self.server()))
    }

    async fn watch_port(
        &self,
        _: Request<PortSpec>,
    ) -> Result<Response<Self::WatchPortStream>, Status> {
        Ok(once_and_stay(self.server()))
    }
}

impl Drop for RunningControl {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
