//! Services as a proxy receives them: complete, or as changes of a service that it already holds.

use std::sync::Arc;

use leno_types::mesh::{Endpoint, Service, Topology, WireForm};
use leno_types::{Identity, InstanceName, ServiceName};

use super::{DecodeError, MAX_ENDPOINTS, bounded, ips, port, wire};
use crate::proto;

/// The largest number of steps of one change; the control plane sends all endpoints instead of a longer change.
const MAX_STEPS: usize = 1_024;

/// A service, or those parts of it that differ from the service that the proxy holds.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceUpdate(proto::ServiceUpdate);

/// The endpoints of each port.
type EndpointLists = Vec<(u16, Vec<Endpoint>)>;

/// Texts that endpoints refer to by position.
struct SharedTexts {
    identities: Vec<Identity>,
    places: Vec<Arc<str>>,
}

impl From<proto::ServiceUpdate> for ServiceUpdate {
    fn from(message: proto::ServiceUpdate) -> Self {
        Self(message)
    }
}

impl ServiceUpdate {
    /// Whether the update contains all fields except the endpoints. The addresses of the service are among these
    /// fields.
    #[must_use]
    pub fn has_front(&self) -> bool {
        self.0.service.is_some()
    }

    /// Applies the update to the service that the proxy holds, given with its version `<front>.<endpoints>`: two texts,
    /// of which the second stands for the version of the endpoints.
    ///
    /// # Errors
    /// [`DecodeError::NotHeld`] if the update has only some parts and the proxy holds no service;
    /// [`DecodeError::Version`] if it changes endpoints of another version than the one held; otherwise an error that
    /// names the invalid field.
    pub fn apply(self, held: Option<(&str, &Service)>) -> Result<Service, DecodeError> {
        use proto::service_update::Endpoints;
        let proto::ServiceUpdate { service, endpoints } = self.0;
        let mut service = match (service, held) {
            (Some(service), _) => Service::try_from(service)?,
            (None, Some((_, held))) => held.clone(),
            (None, None) => return Err(DecodeError::NotHeld),
        };
        let Some(endpoints) = endpoints else {
            let (_, held) = held.ok_or(DecodeError::NotHeld)?;
            for port in &mut service.ports {
                port.endpoints =
                    held.port(port.port).map(|p| p.endpoints.clone()).unwrap_or_default();
            }
            return Ok(service);
        };
        let lists = match endpoints {
            Endpoints::All(all) => all_of(all, &service.name)?,
            Endpoints::Delta(delta) => {
                let (version, held) = held.ok_or(DecodeError::NotHeld)?;
                changed(delta, version, held)?
            }
        };
        for (number, list) in lists {
            let port = service.ports.iter_mut().find(|port| port.port == number);
            let port = port.ok_or(DecodeError::Missing("port of endpoints"))?;
            if *port.endpoints != *list {
                port.endpoints = list.into();
            }
        }
        Ok(service)
    }
}

fn all_of(message: proto::Endpoints, service: &ServiceName) -> Result<EndpointLists, DecodeError> {
    bounded(
        "endpoints",
        message.ports.iter().map(|port| port.endpoints.len()).sum(),
        MAX_ENDPOINTS,
    )?;
    let texts = SharedTexts::new(message.identities, message.places)?;
    let list = |message: proto::PortEndpoints| -> Result<_, DecodeError> {
        let endpoints = message.endpoints.into_iter().map(|one| texts.endpoint(one, service));
        Ok((port(message.port)?, endpoints.collect::<Result<Vec<_>, _>>()?))
    };
    message.ports.into_iter().map(list).collect()
}

fn changed(
    message: proto::EndpointsDelta,
    version: &str,
    held: &Service,
) -> Result<EndpointLists, DecodeError> {
    let of_endpoints = version.split_once('.').map_or("", |(_, endpoints)| endpoints);
    if message.from != of_endpoints {
        return Err(DecodeError::Version { from: message.from, held: of_endpoints.to_owned() });
    }
    bounded("steps", message.steps.len(), MAX_STEPS)?;
    let mut lists: EndpointLists =
        held.ports.iter().map(|port| (port.port, port.endpoints.to_vec())).collect();
    for step in message.steps {
        take_step(step, &held.name, &mut lists)?;
        bounded("endpoints", lists.iter().map(|(_, list)| list.len()).sum(), MAX_ENDPOINTS)?;
    }
    Ok(lists)
}

/// Applies the splices of one step to the endpoints of each port. A splice copies endpoints of the old list up to the
/// position `at` of the new list, skips `removed` endpoints of the old list, and appends `added`. `like` refers to an
/// endpoint of the old list by its position, from 1.
fn take_step(
    step: proto::EndpointsStep,
    service: &ServiceName,
    lists: &mut EndpointLists,
) -> Result<(), DecodeError> {
    let texts = SharedTexts::new(step.identities, step.places)?;
    let mut splices = step.splices.into_iter().peekable();
    while let Some(number) = splices.peek().map(|splice| splice.port) {
        let list = lists.iter_mut().find(|(port, _)| u32::from(*port) == number);
        let (_, list) = list.ok_or(DecodeError::Missing("port of a change"))?;
        let old = std::mem::take(list);
        let mut position = 0_usize;
        while let Some(splice) = splices.next_if(|splice| splice.port == number) {
            let error =
                || DecodeError::Number { field: "position of a change", number: splice.at.into() };
            let kept = index(splice.at).checked_sub(list.len()).ok_or_else(error)?;
            let end = position.checked_add(kept).ok_or_else(error)?;
            list.extend_from_slice(old.get(position..end).ok_or_else(error)?);
            position = end.checked_add(index(splice.removed)).ok_or_else(error)?;
            if position > old.len() {
                return Err(error());
            }
            bounded("endpoints", list.len().saturating_add(splice.added.len()), MAX_ENDPOINTS)?;
            for added in splice.added {
                list.push(match added.like {
                    0 => texts.endpoint(added, service)?,
                    like => alike(added, at("position of a like endpoint", &old, like)?, service)?,
                });
            }
        }
        list.extend_from_slice(old.get(position..).unwrap_or_default());
    }
    Ok(())
}

/// An endpoint with the workload and the addresses of `message`, and all other attributes of `like`.
fn alike(
    message: proto::Endpoint,
    like: Endpoint,
    service: &ServiceName,
) -> Result<Endpoint, DecodeError> {
    let (workload, addresses) = (workload(&message.workload, service)?, addresses(&message)?);
    Ok(Endpoint { workload, addresses, ..like })
}

impl SharedTexts {
    fn new(identities: Vec<String>, places: Vec<String>) -> Result<Self, DecodeError> {
        bounded("identities", identities.len(), MAX_ENDPOINTS)?;
        bounded("places", places.len(), MAX_ENDPOINTS)?;
        Ok(Self {
            identities: identities.iter().map(|text| text.parse()).collect::<Result<_, _>>()?,
            places: places.into_iter().map(Arc::from).collect(),
        })
    }

    fn endpoint(
        &self,
        message: proto::Endpoint,
        service: &ServiceName,
    ) -> Result<Endpoint, DecodeError> {
        let identity = match message.identity {
            0 => None,
            position => Some(at("place of an identity", &self.identities, position)?),
        };
        Ok(Endpoint {
            workload: workload(&message.workload, service)?,
            addresses: addresses(&message)?,
            port: port(message.port)?,
            identity,
            place: Topology { zone: self.place(message.zone)?, node: self.place(message.node)? },
            wire: if message.waypoint { WireForm::Waypoint } else { wire(message.hbone) },
        })
    }

    /// The text at a position. Position 0 is the empty text.
    fn place(&self, position: u32) -> Result<Arc<str>, DecodeError> {
        match position {
            0 => Ok(Arc::default()),
            position => at("place of a zone", &self.places, position),
        }
    }
}

fn workload(text: &str, service: &ServiceName) -> Result<Option<InstanceName>, DecodeError> {
    if text.is_empty() {
        return Ok(None);
    }
    let mut name: InstanceName = match text.contains('/') {
        true => text.parse()?,
        false => InstanceName::new(&service.namespace, text)?,
    };
    if name.namespace == service.namespace {
        // Thousands of endpoints can share the allocation of the namespace.
        name.namespace = service.namespace.clone();
    }
    Ok(Some(name))
}

fn addresses(message: &proto::Endpoint) -> Result<Vec<std::net::IpAddr>, DecodeError> {
    if message.addresses.is_empty() {
        return Err(DecodeError::Missing("address of an endpoint"));
    }
    ips(&message.addresses)
}

/// The value at a position; positions begin with 1.
fn at<T: Clone>(field: &'static str, all: &[T], position: u32) -> Result<T, DecodeError> {
    let value = all.get(index(position.wrapping_sub(1)));
    value.cloned().ok_or(DecodeError::Number { field, number: position.into() })
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
