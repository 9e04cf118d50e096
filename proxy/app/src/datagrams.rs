//! Connects the crate `leno-datagram` with a worker: with its sockets, and with its inbound and outbound sides.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use anyhow::Context;
use leno_datagram::{
    Asked, COUNTS, Captured, Count, Datagrams, Destinations, Gate, LocalFuture, Open, Parts,
    Permitted, ProcessMark, Refusal, Route, Routes, bind_captured, bind_quic,
};
use leno_inbound::{DatagramFlow, DatagramPermit, DatagramRefusal};
use leno_outbound::DatagramRoute;
use leno_sockets::is_no_family;
use leno_telemetry::{Kind, Measured};
use leno_tls::TlsConfigs;
use leno_transport::PlaceholderDestinations;
use leno_types::ports;
use tokio::sync::watch;

use crate::worker::Planes;

/// The reason for which routes are refused while the worker is ending.
const ENDING: &str = "ending";

/// The counts and gauges of a worker that carries datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DatagramLoad {
    counts: [u64; COUNTS],
    open: Open,
}

impl DatagramLoad {
    pub(crate) fn of(datagrams: &Datagrams) -> Self {
        Self { counts: datagrams.counts(), open: datagrams.open() }
    }

    /// The values for the page with metrics.
    pub(crate) fn measured(&self) -> Vec<Measured> {
        let counted = |(count, value): (&Count, u64)| Measured {
            kind: Kind::Counter,
            name: count.name(),
            labels: count.labels().into(),
            help: count.help(),
            value: value as f64,
        };
        let mut measured: Vec<_> = Count::ALL.iter().zip(self.counts).map(counted).collect();
        let Open { flows, connections } = self.open;
        for (name, help, values) in [
            ("leno_datagram_flows_open", "Flows of datagrams that are open.", flows),
            (
                "leno_datagram_connections_open",
                "Connections of QUIC between proxies that are open.",
                connections,
            ),
        ] {
            let labels = [r#"direction="outbound""#, r#"direction="inbound""#];
            measured.extend(labels.into_iter().zip(values).map(|(labels, value)| Measured {
                kind: Kind::Gauge,
                name,
                labels: labels.into(),
                help,
                value: value as f64,
            }));
        }
        measured
    }
}

/// The sockets for datagrams. They are bound before the worker reports that it listens, so that it fails to start if
/// a port is in use.
#[derive(Debug)]
pub(crate) struct DatagramSockets {
    /// Receive the application's datagrams, one socket per address family.
    captured: Vec<Captured>,
    /// Exchange QUIC packets with other proxies, one socket per address family.
    quic: Vec<std::net::UdpSocket>,
    /// Begins the QUIC connection IDs of this process, so that packets of an earlier process' connections still reach
    /// that process.
    mark: ProcessMark,
}

impl DatagramSockets {
    /// Binds the sockets in the network namespace of the calling thread.
    pub(crate) async fn bind() -> anyhow::Result<Self> {
        let destinations = PlaceholderDestinations::new().await;
        let destinations: Rc<dyn Destinations> =
            Rc::new(OfKernel(destinations.context("querying the kernel programs of the capture")?));
        let mark = ProcessMark::random();
        let captured =
            both_families(ports::OUTBOUND, async |v6, port| bind_captured(v6, port).await).await?;
        let adopt = |socket| Captured::new(socket, Rc::clone(&destinations));
        let captured = captured.into_iter().map(adopt).collect::<io::Result<_>>()?;
        let quic =
            both_families(ports::DATAGRAMS, async |v6, port| bind_quic(v6, port, mark).await);
        Ok(Self { captured, quic: quic.await?, mark })
    }

    /// Starts to carry datagrams until the returned value is closed or dropped. `planes` are the worker's inbound and
    /// outbound sides.
    pub(crate) fn carry(
        self,
        planes: &Rc<Planes>,
        credentials: watch::Receiver<Option<Arc<TlsConfigs>>>,
    ) -> anyhow::Result<Datagrams> {
        let of_planes = OfPlanes(Rc::downgrade(planes));
        Datagrams::start(Parts {
            captured: self.captured,
            sockets: self.quic,
            mark: self.mark,
            credentials,
            routes: Rc::new(of_planes.clone()),
            gate: Rc::new(of_planes),
            port: ports::DATAGRAMS,
        })
        .context("carrying datagrams")
    }
}

async fn both_families(
    port: u16,
    bind: impl AsyncFn(bool, u16) -> io::Result<std::net::UdpSocket>,
) -> anyhow::Result<Vec<std::net::UdpSocket>> {
    let mut sockets = Vec::new();
    for is_ipv6 in [false, true] {
        match bind(is_ipv6, port).await {
            Ok(socket) => sockets.push(socket),
            // A machine without IPv6 only has the IPv4 socket.
            Err(error) if is_ipv6 && is_no_family(&error) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("a socket of UDP at port {port}"));
            }
        }
    }
    Ok(sockets)
}

/// Looks up destinations in the maps of the capture's kernel programs. These programs redirect each captured datagram
/// to a placeholder, a loopback address that stands for the destination.
#[derive(Debug)]
struct OfKernel(PlaceholderDestinations);

impl Destinations for OfKernel {
    fn of(&self, placeholder: IpAddr) -> io::Result<SocketAddr> {
        self.0.of(placeholder)
    }
}

/// Answers the questions of `leno-datagram` by the worker's inbound and outbound sides. Once the worker has ended,
/// all flows are refused.
#[derive(Clone, Debug)]
struct OfPlanes(Weak<Planes>);

impl Routes for OfPlanes {
    fn route(&self, to: SocketAddr) -> LocalFuture<'_, Route> {
        Box::pin(async move {
            let Some(planes) = self.0.upgrade() else { return Route::Refused(ENDING) };
            match planes.outbound().route_datagrams(to).await {
                DatagramRoute::Mesh { server, identity } => Route::Mesh { server, identity },
                DatagramRoute::Outside(to) => Route::Outside(to),
                DatagramRoute::Refused(reason) => Route::Refused(reason),
            }
        })
    }

    fn still(&self, to: SocketAddr, route: &Route) -> bool {
        let Some(planes) = self.0.upgrade() else { return false };
        let route = match route.clone() {
            Route::Mesh { server, identity } => DatagramRoute::Mesh { server, identity },
            Route::Outside(to) => DatagramRoute::Outside(to),
            // A refused flow has no route that could have become wrong.
            Route::Refused(_) => return true,
        };
        planes.outbound().still_routes_datagrams(to, &route)
    }
}

impl Gate for OfPlanes {
    fn judge(&self, asked: Asked) -> LocalFuture<'_, Result<Permitted, Refusal>> {
        Box::pin(async move {
            let planes = self.0.upgrade().ok_or(Refusal::Unreachable)?;
            let Asked { identity, certificate, client, server } = asked;
            let flow = DatagramFlow { identity, certificate, client, server };
            match planes.inbound().judge_datagrams(flow).await {
                Ok(DatagramPermit { source, application, revoked }) => {
                    Ok(Permitted { source, application, revoked })
                }
                Err(DatagramRefusal::Denied) => Err(Refusal::Denied),
                Err(DatagramRefusal::Undeclared) => Err(Refusal::Undeclared),
                Err(DatagramRefusal::NoSource) => Err(Refusal::Unreachable),
            }
        })
    }
}
