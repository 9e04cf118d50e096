//! The planes of a run, and what they connect to.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_discovery::Directory;
use leno_inbound::Inbound;
use leno_names::{Names, Resolvers};
use leno_outbound::{Fixed, Outbound};
use leno_telemetry::Registry;
use leno_telemetry::tap::Taps;
use leno_tls::Keyring;
use leno_transport::{Activity, domain_number, scripted};
use leno_types::mesh::{PortProtocol, Resolution, ServerPolicy, Subject, Topology};
use leno_types::{Egress, InstanceName, MtlsMode, Removal};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::application::RunState;
use super::case::Case;
use super::config::{self, DeadEndpoint, ENDPOINTS, PORT, Planes, SERVICES};
use super::end::{ScriptedEnd, pair};
use super::identity;
use super::network::Network;

/// The address of the inbound plane's application.
const APPLICATION: ([u8; 4], u16) = ([203, 0, 113, 1], 9000);

/// Connections from the outbound plane that the inbound one has not accepted yet.
pub(super) type Dialled = Rc<RefCell<Vec<TcpStream>>>;
/// Connections that the planes opened, and that scripts serve.
pub(super) type Opened = Rc<RefCell<Vec<(usize, ScriptedEnd)>>>;

/// Has scripts serve the connections that the planes open.
pub(super) fn dial(
    case: &Case,
    (to_inbound, opened): (&Dialled, &Opened),
    network: &Rc<Network>,
    shared: &Rc<RunState>,
) {
    let (to_inbound, opened) = (Rc::clone(to_inbound), Rc::clone(opened));
    let (network, shared) = (Rc::clone(network), Rc::clone(shared));
    let (planes, dead) = (case.config.planes, case.config.dead);
    let dial = move |to: SocketAddr| -> io::Result<Option<TcpStream>> {
        let is_guests = planes == Planes::Guest && to == SocketAddr::from(APPLICATION);
        if domain_number().is_some() != is_guests {
            shared.violation(format!("{to} is dialled from another workload's namespace"));
        }
        if to == SocketAddr::from(APPLICATION) {
            let (near, far) = pair();
            opened.borrow_mut().push((0, far));
            return Ok(Some(near));
        }
        let endpoints = (0..SERVICES.len()).flat_map(|of| (0..ENDPOINTS).map(move |nth| (of, nth)));
        let Some((of, nth)) =
            endpoints.into_iter().find(|(of, nth)| config::address(*of, *nth) == to)
        else {
            return Err(io::ErrorKind::ConnectionRefused.into());
        };
        match dead.filter(|_| (of, nth) == (0, 0)) {
            Some(DeadEndpoint::Refuses) => return Err(io::ErrorKind::ConnectionRefused.into()),
            Some(DeadEndpoint::Silent) => return Ok(None),
            None => {}
        }
        if of == 0 && planes.are_both() {
            let (near, far) = network.connect(planes == Planes::Guest)?;
            to_inbound.borrow_mut().push(far);
            return Ok(Some(near));
        }
        let (near, far) = pair();
        opened.borrow_mut().push((of, far));
        Ok(Some(near))
    };
    scripted::dial_with(Some(Rc::new(dial)));
}

/// An outbound plane, and a function that makes inbound planes.
pub(super) fn planes(
    case: &Case,
    activity: &Rc<Activity>,
    taps: &Taps,
) -> (Outbound, Box<dyn Fn() -> Rc<Inbound>>) {
    let config = case.config.clone();
    let workload = InstanceName::new("shop", "web-0").expect("a valid name");
    let application = SocketAddr::from(APPLICATION);
    let is_meshed = config.planes.are_meshed();
    let policy = ServerPolicy {
        workload: workload.clone(),
        mtls: if is_meshed { MtlsMode::Strict } else { MtlsMode::Disabled },
        ports: vec![PortProtocol { port: application.port(), protocol: config.protocol }],
        limits: config.rate_limits.clone().into(),
        egress: Egress::Allow,
        place: Topology::default(),
        ending: false,
        removal: Removal::None,
        authorization: Default::default(),
    };
    let limits = config.limits.clone();
    let called = Arc::new(config.service(0));
    let resolver = move |subject: &Subject| match subject {
        Subject::Service(name) => (0..SERVICES.len())
            .find(|number| config::name(*number) == *name)
            .map_or(Resolution::Unknown, |number| {
                Resolution::Service(Arc::new(config.service(number)))
            }),
        Subject::Address(_) => Resolution::Unknown,
    };
    let directory = Directory::fixed(resolver).with_server_policy(policy);
    let registry = Rc::new(Registry::new().with_taps(taps.clone()));
    let keyring = Keyring::new();
    if is_meshed {
        identity::prove(&keyring);
    }
    let resolution = watch::Sender::new(Resolution::Service(called)).subscribe();
    let outbound = Outbound::new(leno_outbound::Parts {
        workload: workload.clone(),
        directory: directory.clone(),
        tls: keyring.connector(),
        registry: Rc::clone(&registry),
        activity: Rc::clone(activity),
        limits: limits.clone(),
        names: Names::new(Resolvers::new(Vec::new())),
        fixed: Some(Fixed { resolution, port: PORT }),
    });
    let activity = Rc::clone(activity);
    let parts = move || leno_inbound::Parts {
        workload: workload.clone(),
        policy: directory.server_policy(),
        directory: directory.clone(),
        services: Rc::new(leno_inbound::NoServices),
        tls: keyring.acceptor(),
        registry: Rc::clone(&registry),
        activity: Rc::clone(&activity),
        limits: limits.clone(),
        application: Some(application),
        limit_table: leno_inbound::LimitTable::default(),
        max_tunnels: 64,
        own_ports: Vec::new(),
    };
    (outbound, Box::new(move || Rc::new(Inbound::new(parts()))))
}
