//! The services that this proxy is the waypoint of: what their own proxies would enforce is enforced here.
//!
//! ```text
//!  CONNECT 10.96.0.7:80 ─► discovery: a service of this waypoint? ─► its Front: policies, limits, counts ─► Passage ─► outbound
//! ```
//! Discovery says for which services a proxy is the waypoint, with what it enforces for each
//! ([`Service::waypoint`](leno_types::mesh::Service::waypoint)). A tunnel to any other address is refused, so that no client
//! uses a waypoint as its way to elsewhere.

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

/// Longest wait for discovery to say whose an address is.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// Most services that are kept with their pools and limits. One more takes the place of one that no client uses.
const MAX_FRONTS: usize = 4096;
/// How long a service is kept that no client uses.
const FRONT_IDLE: Duration = Duration::from_secs(300);
/// Why the clients of a service are denied that is another waypoint's now.
const NO_LONGER: &str = "this proxy is the waypoint of the service no longer";

/// Why a tunnel leads to no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoFront {
    /// The address is of no service that this proxy is the waypoint of, or of none of its ports.
    NotOfService,
    /// Discovery does not answer.
    Unresolved,
    /// Clients use too many other services.
    Limit,
}

/// The services of a waypoint.
#[derive(Debug)]
pub(crate) struct Waypoint {
    passage: Rc<Passage>,
    fronts: RefCell<HashMap<ServiceName, Rc<Front>>>,
}

/// One service: a side of its own, as its workloads would have it.
#[derive(Debug)]
pub(crate) struct Front {
    inbound: Rc<Inbound>,
    used_at: Cell<Instant>,
    /// Ends the task that follows the policies.
    follows: AbortHandle,
}

impl Drop for Front {
    fn drop(&mut self) {
        self.follows.abort();
    }
}

impl Front {
    /// What stands for the application of a workload.
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
            workers: parts.workers,
            limit_table: parts.limit_table.clone(),
            max_tunnels: 0,
            own_ports: Vec::new(),
        }));
        let _set = inbound.shared.passage.set(Rc::clone(&self.passage));
        let resolution = parts.directory.watch_service(&service.name);
        // Ends with the front.
        let follows = spawn_contained(follow(resolution, told, Rc::clone(&inbound))).abort_handle();
        Front { inbound, used_at: Cell::new(Instant::now()), follows }
    }

    /// Forgets services that no client uses. To be called every few seconds.
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

/// Has the policies of a service enforced as discovery says them. Where this proxy is its waypoint no longer, all clients are
/// denied, those that it serves too.
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

fn denied(told: &watch::Sender<Option<Arc<ServerPolicy>>>) -> Option<Arc<ServerPolicy>> {
    let before = told.borrow().clone()?;
    let authorization = Arc::new(Authorization::unusable(NO_LONGER));
    Some(Arc::new(ServerPolicy { authorization, ..ServerPolicy::clone(&before) }))
}
