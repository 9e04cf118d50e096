//! Encodes endpoints of services: all of them, or the changes since the version that a proxy holds.
#![expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "positions within two lists of this process, not bytes of the network"
)]

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use bytes::{BufMut, Bytes};
use leno_types::Identity;
use leno_types::ServiceName;
use leno_types::mesh::{Endpoint, Service, ServicePort, Topology, WireForm};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use super::ips;
use crate::{ADDRESS_TYPE, proto};

/// The endpoints of a service in a response, already encoded.
#[derive(Clone, Copy, Debug)]
pub enum EndpointsUpdate<'a> {
    /// None, because the proxy holds the current ones.
    None,
    /// All endpoints, from [`endpoints`].
    All(&'a [u8]),
    /// The version that the proxy holds, and the steps from there to the current version, each from [`endpoints_step`].
    Delta(&'a str, &'a [Bytes]),
}

/// The parts of a service that a proxy does not hold, as the value of a resource. `front` comes
/// from [`super::front`]. Encoded parts are copied unchanged, so that each is encoded only once.
#[must_use]
pub fn service_update(front: Option<&[u8]>, endpoints: EndpointsUpdate<'_>) -> proto::Any {
    let mut update = Vec::new();
    if let Some(front) = front {
        field(1, front, &mut update);
    }
    match endpoints {
        EndpointsUpdate::None => {}
        EndpointsUpdate::All(all) => field(2, all, &mut update),
        EndpointsUpdate::Delta(from, steps) => {
            let mut delta = Vec::new();
            field(1, from.as_bytes(), &mut delta);
            steps.iter().for_each(|step| field(2, step, &mut delta));
            field(3, &delta, &mut update);
        }
    }
    let mut address = Vec::with_capacity(update.len() + 8);
    field(1, &update, &mut address);
    proto::Any { type_url: ADDRESS_TYPE.to_owned(), value: address.into() }
}

/// Encodes the endpoints of a service, for [`service_update`].
#[must_use]
pub fn endpoints(service: &Service) -> Bytes {
    let mut texts = SharedTexts::default();
    let port = |port: &ServicePort| proto::PortEndpoints {
        port: port.port.into(),
        endpoints: port.endpoints.iter().map(|one| texts.endpoint(one, &service.name)).collect(),
    };
    let ports = service.ports.iter().map(port).collect();
    let SharedTexts { identities, places } = texts;
    proto::Endpoints { identities: identities.texts, places: places.texts, ports }
        .encode_to_vec()
        .into()
}

/// Encodes the change from the endpoints of `old` to those of `new`, for [`service_update`]. `None` if their ports
/// differ; then all endpoints must be sent.
#[must_use]
pub fn endpoints_step(old: &Service, new: &Service) -> Option<Bytes> {
    let numbers = |service: &Service| service.ports.iter().map(|p| p.port).collect::<Vec<_>>();
    if numbers(old) != numbers(new) {
        return None;
    }
    let mut texts = SharedTexts::default();
    let mut splices = Vec::new();
    for (old, port) in old.ports.iter().zip(&new.ports) {
        if !Arc::ptr_eq(&old.endpoints, &port.endpoints) {
            let lists = (&*old.endpoints, &*port.endpoints);
            splices.extend(changes(lists, port.port, (&mut texts, &new.name)));
        }
    }
    let SharedTexts { identities, places } = texts;
    let step = proto::EndpointsStep { splices, identities: identities.texts, places: places.texts };
    Some(step.encode_to_vec().into())
}

/// The splices that turn the old list into the new one; `at` of a splice is a position in the new list. Endpoints that
/// are in both lists in the same order are not mentioned; the result is correct for any two lists.
fn changes(
    (old, new): (&[Endpoint], &[Endpoint]),
    port: u16,
    (texts, service): (&mut SharedTexts, &ServiceName),
) -> Vec<proto::Splice> {
    let same = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = (&old[same..], &new[same..]);
    let tail = rest.0.iter().rev().zip(rest.1.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_end, new_end) = (old.len() - tail, new.len() - tail);
    let old_set: HashSet<&Endpoint> = old[same..old_end].iter().collect();
    let new_set: HashSet<&Endpoint> = new[same..new_end].iter().collect();
    let like = likes(old, new_end > same);
    let (mut splices, mut from, mut to) = (Vec::new(), same, same);
    while from < old_end || to < new_end {
        if from < old_end && to < new_end && old[from] == new[to] {
            (from, to) = (from + 1, to + 1);
            continue;
        }
        let (first_from, first_to) = (from, to);
        while from < old_end && !new_set.contains(&old[from]) {
            from += 1;
        }
        while to < new_end && !old_set.contains(&new[to]) {
            to += 1;
        }
        if (from, to) == (first_from, first_to) {
            // Both endpoints are in both lists, in a different order.
            from += usize::from(from < old_end);
            to += usize::from(to < new_end);
        }
        let added = new[first_to..to].iter().map(|one| match like.get(&attributes(one)) {
            Some(position) => proto::Endpoint {
                workload: workload(one, service),
                addresses: ips(&one.addresses),
                like: *position,
                ..Default::default()
            },
            None => texts.endpoint(one, service),
        });
        splices.push(proto::Splice {
            port: port.into(),
            at: number(first_to),
            removed: number(from - first_from),
            added: added.collect(),
        });
    }
    splices
}

/// The attributes that many endpoints share.
type Attributes<'a> = (u16, Option<&'a Identity>, &'a Topology, WireForm);

fn attributes(endpoint: &Endpoint) -> Attributes<'_> {
    (endpoint.port, endpoint.identity.as_ref(), &endpoint.place, endpoint.wire)
}

/// For each combination of attributes, the position of the first endpoint of the old list that has it, from 1. Empty
/// unless `needed`.
fn likes(old: &[Endpoint], needed: bool) -> HashMap<Attributes<'_>, u32> {
    let mut likes = HashMap::new();
    for (nth, endpoint) in old.iter().enumerate().take_while(|_| needed) {
        likes.entry(attributes(endpoint)).or_insert(number(nth + 1));
    }
    likes
}

/// Texts that several endpoints use; each is sent once.
#[derive(Default)]
struct SharedTexts {
    identities: Texts<Identity>,
    places: Texts<Arc<str>>,
}

/// Texts in the order of their first use. Endpoints refer to them by position, from 1.
struct Texts<T> {
    positions: HashMap<T, u32>,
    texts: Vec<String>,
}

impl<T> Default for Texts<T> {
    fn default() -> Self {
        Self { positions: HashMap::new(), texts: Vec::new() }
    }
}

impl<T: Eq + Hash + Clone + ToString> Texts<T> {
    fn position(&mut self, of: &T) -> u32 {
        if let Some(position) = self.positions.get(of) {
            return *position;
        }
        self.texts.push(of.to_string());
        let position = number(self.texts.len());
        self.positions.insert(of.clone(), position);
        position
    }
}

impl SharedTexts {
    fn endpoint(&mut self, endpoint: &Endpoint, service: &ServiceName) -> proto::Endpoint {
        proto::Endpoint {
            workload: workload(endpoint, service),
            addresses: ips(&endpoint.addresses),
            port: endpoint.port.into(),
            identity: endpoint.identity.as_ref().map_or(0, |id| self.identities.position(id)),
            zone: self.place(&endpoint.place.zone),
            node: self.place(&endpoint.place.node),
            like: 0,
            hbone: endpoint.wire == WireForm::Hbone,
            waypoint: endpoint.wire == WireForm::Waypoint,
        }
    }

    /// The position of a text; 0 for the empty text.
    fn place(&mut self, text: &Arc<str>) -> u32 {
        if text.is_empty() { 0 } else { self.places.position(text) }
    }
}

/// The workload's name, without the namespace if it is that of the service.
fn workload(endpoint: &Endpoint, service: &ServiceName) -> String {
    match &endpoint.workload {
        None => String::new(),
        Some(workload) if workload.namespace == service.namespace => workload.name.to_string(),
        Some(workload) => workload.to_string(),
    }
}

fn number(number: usize) -> u32 {
    u32::try_from(number).expect("endpoints are fewer than 2^32")
}

/// Appends one field of a message, with its key and length.
fn field(tag: u32, bytes: &[u8], into: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, into);
    encode_varint(bytes.len() as u64, into);
    into.put_slice(bytes);
}
