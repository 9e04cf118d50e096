//! The services whose waypoint this proxy is. The proxy enforces the policies that the proxies of their workloads would
//! enforce.
//!
//! ```text
//!  CONNECT 10.96.0.7:80 ─► discovery: a service of this waypoint? ─► its Front: policies, limits, counts ─► Passage ─► outbound
//! ```
//! Discovery names the services of a waypoint, with the policies for each
//! ([`Service::waypoint`](leno_types::mesh::Service::waypoint)). A tunnel to any other address is refused, so that no
//! client can use a waypoint to reach other addresses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_transport::{Passage, spawn_contained};
use leno_types::authorization::Authorization;
use leno_types::mesh::{Resolution, ServerPolicy, Service};
use leno_types::{InstanceName, ServiceName};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::{Applications, Inbound, Parts};

/// How long to wait until discovery resolves an address.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// For how many services a worker keeps pools, limits and counts. At this number, services without open tunnels are
/// dropped to make room for another one.
const MAX_FRONTS: usize = 4096;
/// How long a service without open tunnels is kept.
const FRONT_IDLE: Duration = Duration::from_secs(300);
/// Why clients are denied if this proxy is no longer the waypoint of their service.
const NO_LONGER: &str = "this proxy is no longer the waypoint of the service";

/// Why a tunnel does not lead to a service of this waypoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFront {
    /// The address does not belong to a service of this waypoint, or the service does not have the port.
    NotOfService,
    /// Discovery did not answer.
    Unresolved,
    /// [`MAX_FRONTS`] other services have open tunnels.
    Limit,
}

/// The services of a waypoint that clients have used lately.
#[derive(Debug)]
pub(crate) struct Waypoint {
    /// The connections of the proxy from its inbound side to its own outbound side, which chooses endpoints of the
    /// service.
    passage: Rc<Passage>,
    fronts: RefCell<HashMap<ServiceName, Rc<Front>>>,
}

/// One service of a waypoint, with an inbound side of its own that enforces the same policies as the inbound side of
/// each of the service's workloads.
#[derive(Debug)]
pub(crate) struct Front {
    inbound: Rc<Inbound>,
    /// When a client last requested a tunnel to the service, or a sweep last found an open one.
    used_at: Cell<Instant>,
    /// The task that applies changes of the service's policies. It is aborted when this value is dropped.
    follows: AbortHandle,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.follows.abort();
    }
}

impl Front {
    /// Serves connections as an application of the service's inbound side. The application is the service itself.
    pub(crate) fn applications(&self) -> &Applications {
        &self.inbound.applications
    }
}

impl Waypoint {
    pub(crate) fn new(passage: Rc<Passage>) -> Self {
        Self { passage, fronts: RefCell::default() }
    }

    /// The service at an address, if this proxy is its waypoint.
    pub(crate) async fn front(
        &self,
        parts: &Parts,
        address: SocketAddr,
    ) -> Result<Rc<Front>, NoFront> {
        let mut resolution = parts.directory.look_up(address.ip());
        let answered = resolution.wait_for(|now| !matches!(now, Resolution::Pending));
        let service = match timeout(RESOLVE_TIMEOUT, answered).await {
            Ok(Ok(now)) => match &*now {
                Resolution::Service(service) => Arc::clone(service),
                _ => return Err(NoFront::NotOfService),
            },
            _ => return Err(NoFront::Unresolved),
        };
        let Some(policy) = &service.waypoint else { return Err(NoFront::NotOfService) };
        if service.port(address.port()).is_none() {
            return Err(NoFront::NotOfService);
        }
        self.of_service(parts, &service, policy)
    }

    fn of_service(
        &self,
        parts: &Parts,
        service: &Service,
        policy: &Arc<ServerPolicy>,
    ) -> Result<Rc<Front>, NoFront> {
        let mut fronts = self.fronts.borrow_mut();
        if let Some(front) = fronts.get(&service.name) {
            front.used_at.set(Instant::now());
            return Ok(Rc::clone(front));
        }
        if fronts.len() >= MAX_FRONTS {
            fronts.retain(|_, front| Rc::strong_count(front) > 1);
        }
        if fronts.len() >= MAX_FRONTS {
            return Err(NoFront::Limit);
        }
        let front = Rc::new(self.new_front(parts, service, policy));
        fronts.insert(service.name.clone(), Rc::clone(&front));
        Ok(front)
    }

    fn new_front(&self, parts: &Parts, service: &Service, policy: &Arc<ServerPolicy>) -> Front {
        let (told, policy) = watch::channel(Some(Arc::clone(policy)));
        let ServiceName { namespace, name } = service.name.clone();
        let inbound = Rc::new(Inbound::new(Parts {
            workload: InstanceName { namespace, name },
            directory: parts.directory.clone(),
            services: Rc::clone(&parts.services),
            policy,
            tls: parts.tls.clone(),
            registry: Rc::clone(&parts.registry),
            activity: Rc::clone(&parts.activity),
            limits: parts.limits.clone(),
            application: None,
            limit_table: parts.limit_table.clone(),
            max_tunnels: 0,
            own_ports: Vec::new(),
        }));
        let _set = inbound.shared.passage.set(Rc::clone(&self.passage));
        let resolution = parts.directory.watch_service(&service.name);
        // This task is aborted when the [`Front`] is dropped.
        let follows = spawn_contained(follow(resolution, told, Rc::clone(&inbound))).abort_handle();
        Front { inbound, used_at: Cell::new(Instant::now()), follows }
    }

    /// Drops services that no client has used for [`FRONT_IDLE`]. To be called every few seconds.
    pub(crate) fn sweep(&self) {
        self.fronts.borrow_mut().retain(|_, front| {
            front.inbound.sweep();
            let is_used = Rc::strong_count(front) > 1;
            if is_used {
                front.used_at.set(Instant::now());
            }
            is_used || front.used_at.get().elapsed() < FRONT_IDLE
        });
    }
}

/// Applies each change of a service's policies from discovery. If this proxy is no longer the service's waypoint, all
/// clients are denied, including those that are being served.
async fn follow(
    mut resolution: watch::Receiver<Resolution>,
    told: watch::Sender<Option<Arc<ServerPolicy>>>,
    inbound: Rc<Inbound>,
) {
    loop {
        let now = match &*resolution.borrow_and_update() {
            Resolution::Pending => None,
            Resolution::Service(service) => service.waypoint.clone().or_else(|| denied(&told)),
            _ => denied(&told),
        };
        if let Some(now) = now {
            let is_new = told.borrow().as_ref() != Some(&now);
            if is_new {
                told.send_replace(Some(now));
                inbound.follow();
            }
        }
        if resolution.changed().await.is_err() {
            // The directory has ended, and the proxy with it.
            return;
        }
    }
}

/// The service's policy so far, changed so that it denies all clients.
fn denied(told: &watch::Sender<Option<Arc<ServerPolicy>>>) -> Option<Arc<ServerPolicy>> {
    let before = told.borrow().clone()?;
    let authorization = Arc::new(Authorization::unusable(NO_LONGER));
    Some(Arc::new(ServerPolicy { authorization, ..ServerPolicy::clone(&before) }))
}
