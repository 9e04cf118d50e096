//! The workload: its application, and the inbound side in front of it.

use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;

use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use leno_telemetry::{Registry, render};
use leno_tls::Keyring;
use leno_transport::{Admission, Directions};
use leno_types::authorization::{
    Action, Authorization, AuthorizationPolicy, ClientMatch, PermissionRule,
};
use leno_types::mesh::{PortProtocol, ServerPolicy, Topology};
use leno_types::traffic::PolicySource;
use leno_types::{InstanceName, MtlsMode, Protocol, TrustDomain};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::clients::{PING, PONG, Tasks};
use super::tokens::Tokens;
use crate::support;

/// The single policy of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    Allow,
    Deny,
    Audit,
    Tokens,
}

/// A workload that serves until the test ends.
pub(crate) struct Workload {
    pub(crate) proxy: SocketAddr,
    registry: Rc<Registry>,
    /// The number of connections on which the application received bytes.
    reached: Rc<Cell<u64>>,
}

impl Workload {
    pub(crate) async fn serve(
        (mtls, protocol): (MtlsMode, Protocol),
        rules: Rules,
        tokens: &Tokens,
        keyring: &Keyring,
    ) -> Self {
        let application = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = application.local_addr().unwrap();
        let reached: Rc<Cell<u64>> = Rc::default();
        spawn_local(serve(application, protocol, Rc::clone(&reached)));
        let policy = ServerPolicy {
            workload: InstanceName::new("shop", "orders-0").unwrap(),
            mtls,
            ports: vec![PortProtocol { port: address.port(), protocol }],
            limits: [].into(),
            egress: leno_types::Egress::Allow,
            place: Topology::default(),
            ending: false,
            removal: leno_types::Removal::None,
            authorization: Authorization {
                policies: [policy(rules, tokens)].into(),
                ..Authorization::default()
            }
            .into(),
        };
        let (inbound, registry) = support::inbound(policy, keyring.acceptor(), address);
        let inbound = Rc::new(inbound);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        spawn_local(async move {
            let admission = Admission::new(1024, Directions::Inbound);
            while let Ok((accepted, from)) = listener.accept().await {
                let (admitted, _) = admission.inbound(from.ip());
                let inbound = Rc::clone(&inbound);
                spawn_local(async move { inbound.serve(accepted, (from, proxy), admitted).await });
            }
        });
        Self { proxy, registry, reached }
    }

    /// How many requests or connections the policy has audited.
    pub(crate) fn audited(&self) -> u64 {
        let text = render(&self.registry.snapshot(), &[], false);
        let mut counts = text.lines().filter(|line| line.contains(r#"decision="audit""#));
        let count = counts.next().and_then(|line| line.rsplit_once(' '));
        count.map_or(0, |(_, count)| count.parse().unwrap())
    }

    /// The number of connections on which the application received bytes.
    pub(crate) fn reached(&self) -> u64 {
        self.reached.get()
    }
}

fn policy(rules: Rules, tokens: &Tokens) -> AuthorizationPolicy {
    let of = |namespace: &str| {
        let client = ClientMatch {
            trust_domains: vec![TrustDomain::default()],
            namespaces: vec![namespace.into()],
            ..ClientMatch::default()
        };
        PermissionRule { from: vec![client], ..PermissionRule::default() }
    };
    let (action, rule) = match rules {
        Rules::Allow => (Action::Allow, of("shop")),
        Rules::Deny => (Action::Deny, of("bank")),
        Rules::Audit => (Action::Audit, of("shop")),
        Rules::Tokens => (Action::Allow, PermissionRule::default()),
    };
    let tokens = (rules == Rules::Tokens).then(|| tokens.issuer());
    AuthorizationPolicy {
        source: PolicySource { created: 0, namespace: "shop".into(), name: "policy".into() },
        action,
        ports: None,
        rules: [rule].into(),
        tokens: tokens.into_iter().collect(),
        external: None,
    }
}

async fn serve(listener: TcpListener, protocol: Protocol, reached: Rc<Cell<u64>>) {
    while let Ok((stream, _)) = listener.accept().await {
        spawn_local(connection(stream, protocol, Rc::clone(&reached)));
    }
}

async fn connection(mut stream: TcpStream, protocol: Protocol, reached: Rc<Cell<u64>>) {
    let counted = Rc::clone(&reached);
    let answer = service_fn(move |_: Request<hyper::body::Incoming>| {
        counted.set(counted.get() + 1);
        async { Ok::<_, Infallible>(Response::new(String::from("hi"))) }
    });
    match protocol {
        Protocol::Http1 => {
            let serves = hyper::server::conn::http1::Builder::new();
            // The connection ends with the test.
            let _ = serves.serve_connection(TokioIo::new(stream), answer).await;
        }
        Protocol::Http2 => {
            let serves = hyper::server::conn::http2::Builder::new(Tasks);
            let _ = serves.serve_connection(TokioIo::new(stream), answer).await;
        }
        _ => {
            let mut first = [0; PING.len()];
            if stream.read_exact(&mut first).await.is_ok() {
                reached.set(reached.get() + 1);
                // A client that expects TLS does not recognise this answer as a TLS record.
                let _ = stream.write_all(PONG).await;
            }
        }
    }
}
