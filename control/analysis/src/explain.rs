//! Explains what happens to one request.

mod answer;
mod host;
mod policies;
mod question;
mod routed;
mod streams;

pub use answer::{
    BackendAnswer, ClientAnswer, ConsideredMatch, DestinationAnswer, EndpointAnswer, Explanation,
    HeaderEdits, MirrorAnswer, OutcomeAnswer, RuleAnswer, TimeoutsAnswer,
};
pub use policies::PolicyAnswer;
pub(crate) use policies::time;
pub use question::{ExplainQuestion, QuestionError};

use leno_policy::{RouteTable, StreamTable};
use leno_resources::Object;
use leno_types::mesh::{Endpoint, Service, Workload, declared};
use leno_types::{Egress, InstanceName, MtlsMode, Protocol};

use crate::authz::AskedServer;
use crate::mesh::MeshModel;
use crate::sender::{Sender, Unanswerable};
use host::HostMeaning;
use question::ClientProtocol;

impl MeshModel {
    /// Explains what happens to a request.
    ///
    /// # Errors
    /// [`Unanswerable`] if the client of the question is not known.
    pub fn explain(&self, question: &ExplainQuestion) -> Result<Explanation, Unanswerable> {
        let sender = self.sender(question.namespace.as_deref(), &question.client)?;
        let mut answer = Explanation::new(&sender, question);
        let Some(host) = self.real_name(&question.host, &sender.namespace, &mut answer.notes)
        else {
            answer.outcome = OutcomeAnswer::closed(
                "the name refers to itself in a circle, so it has no address",
            );
            return Ok(answer);
        };
        // If the question's host is an alias, `host` differs from it. Services that represent names outside of the mesh
        // are then not considered, because the alias leads to the name's real addresses.
        let found = match self.dns_of_leno_up && host == question.host && sender.meshed {
            true => self.host_or_outside(&host, &sender.namespace, &mut answer.notes),
            false => self.host(&host, &sender.namespace),
        };
        if let HostMeaning::Unknown { meant } = &found {
            let meant = meant.as_ref().map(|meant| format!(": did you mean {meant}?"));
            let meant = meant.unwrap_or_default();
            answer.notes.push(format!("nothing in the mesh has the name {host}{meant}"));
        }
        self.note_awaited(&mut answer, &sender, &instances_behind(&found, question.port));
        match found {
            host if !sender.meshed => self.without_proxy(&mut answer, &sender, &host, question),
            HostMeaning::Service(service) => {
                self.at_service(&mut answer, &sender, &service, question)
            }
            HostMeaning::Workload(workload) => {
                at_workload(&mut answer, &sender, &workload, question)
            }
            HostMeaning::Unknown { .. } => {
                let bytes = question.wanted == ClientProtocol::Bytes;
                answer.outcome = match self.egress(&sender) {
                    Egress::Allow => OutcomeAnswer::outside(self.way_out),
                    Egress::Deny => OutcomeAnswer::egress_denied(bytes),
                };
            }
        }
        if sender.meshed {
            self.authorize(&mut answer, &sender, question);
        }
        Ok(answer)
    }

    /// Notes that the sender, or instances of the destination, are in node mode and not served by a node proxy yet.
    fn note_awaited(&self, answer: &mut Explanation, sender: &Sender, behind: &[InstanceName]) {
        let awaits = |name: &&InstanceName| self.index.awaits_node_proxy(name);
        if sender.instance.as_ref().filter(awaits).is_some() {
            let note = "the client is in node mode, and no proxy of its node serves it yet: leno check has more";
            answer.notes.push(note.to_owned());
        }
        let mut awaited = behind.iter().filter(awaits).peekable();
        let Some(first) = awaited.peek() else { return };
        let refuses = self.index.workload(first).is_some_and(|one| one.identity.is_some());
        let meanwhile = match refuses {
            true => "connections to them fail until then, since mTLS is strict",
            false => "proxies send them plaintext until then",
        };
        answer.notes.push(format!(
            "{} of {} instances are in node mode and no proxy of their node serves them yet: {meanwhile}",
            awaited.count(),
            behind.len()
        ));
    }

    /// The result for a request of a client without a proxy. Only the servers' proxies make decisions.
    fn without_proxy(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        host: &HostMeaning,
        question: &ExplainQuestion,
    ) {
        let instances: Vec<(InstanceName, u16)> = match host {
            HostMeaning::Workload(workload) => {
                let protocol = declared(&workload.ports, question.port);
                answer.destination = DestinationAnswer::workload(workload, question.port, protocol);
                vec![(workload.name.clone(), question.port)]
            }
            HostMeaning::Service(service) => {
                answer.destination = DestinationAnswer::service(service, question.port);
                // In `leno up`, a client without a proxy gets the addresses of endpoints for the service's name.
                if self.dns_of_leno_up {
                    answer.destination.addresses.clear();
                }
                let port = service.port(question.port).into_iter();
                let endpoints = port.flat_map(|port| port.endpoints.iter());
                let own = |endpoint: &Endpoint| endpoint.workload.clone().zip(Some(endpoint.port));
                endpoints.filter_map(own).collect()
            }
            HostMeaning::Unknown { .. } => Vec::new(),
        };
        let is_strict = |(name, _): &&(InstanceName, u16)| {
            self.index.server_policy(name).is_some_and(|policy| policy.mtls == MtlsMode::Strict)
        };
        let strict = instances.iter().filter(is_strict).count();
        let is_empty = match host {
            HostMeaning::Service(service) => service
                .port(question.port)
                .is_some_and(|port| port.endpoints.is_empty() && port.external.is_none()),
            _ => false,
        };
        answer.outcome = match strict {
            0 if is_empty => OutcomeAnswer::closed(
                "the connection fails, because no endpoint of the Service is ready",
            ),
            0 => OutcomeAnswer::unmeshed(),
            _ if strict == instances.len() => OutcomeAnswer::closed(
                "the connection is reset, because the client has no proxy and the server's proxy \
                 accepts only mTLS (leno.dev/mtls: strict)",
            ),
            _ => {
                answer.notes.push(format!(
                    "{strict} of {} instances accept only mTLS (leno.dev/mtls: strict), and reset \
                     the connections of this client",
                    instances.len()
                ));
                OutcomeAnswer::unmeshed()
            }
        };
        if strict < instances.len() {
            let server = |at| AskedServer { at: Some(at), backend: None };
            let targets = instances.into_iter().map(server).collect();
            self.authorize_at(answer, sender, question, targets);
        }
    }

    fn at_service(
        &self,
        answer: &mut Explanation,
        sender: &Sender,
        service: &Service,
        question: &ExplainQuestion,
    ) {
        answer.destination = DestinationAnswer::service(service, question.port);
        if service.vips.is_empty() {
            answer.notes.push(
                "the Service is headless: its name has the addresses of its instances, to which \
                 clients connect without routes"
                    .to_owned(),
            );
        }
        let Some(port) = service.port(question.port) else {
            answer.outcome = OutcomeAnswer::no_such_port();
            let ports = service.ports.iter().map(|port| port.port.to_string());
            let ports = ports.collect::<Vec<_>>().join(", ");
            answer.notes.push(format!("{} has the ports {ports}", service.name));
            return;
        };
        self.note_displaced(answer, sender, service);
        let routed = !service.vips.is_empty();
        let table = routed.then(|| RouteTable::compile(&service.routes, port.port)).flatten();
        let streams = routed.then(|| StreamTable::compile(&service.routes, port.port)).flatten();
        let bytes = port.protocol == Protocol::Opaque || question.wanted == ClientProtocol::Bytes;
        if let Some(streams) = &streams
            && (bytes || table.is_none())
        {
            return self.by_streams(answer, sender, streams, question);
        }
        if bytes {
            answer.outcome = OutcomeAnswer::relayed(question.wanted == ClientProtocol::Bytes);
            answer.backends = vec![BackendAnswer::of_port(service, port, 1.0)];
            return;
        }
        let Some(table) = table else {
            let backend = BackendAnswer::of_port(service, port, 1.0);
            answer.outcome = OutcomeAnswer::forwarded(std::slice::from_ref(&backend));
            answer.backends = vec![backend];
            answer.policies = self.of_requests(service, port.port, None);
            answer.policies.extend(self.of_endpoints(sender, &service.name, port.port));
            return;
        };
        self.by_routes(answer, sender, (&table, service), question);
    }

    /// Adds the routes that name the service but do not apply to this client.
    fn note_displaced(&self, answer: &mut Explanation, sender: &Sender, service: &Service) {
        for object in &self.objects {
            let key = object.key();
            let parents = match object {
                Object::HttpRoute(route) => route.spec.parent_refs.as_deref(),
                Object::GrpcRoute(route) => route.spec.parent_refs.as_deref(),
                Object::TlsRoute(route) => route.spec.parent_refs.as_deref(),
                Object::TcpRoute(route) => route.spec.parent_refs.as_deref(),
                _ => None,
            };
            let names = parents.unwrap_or_default().iter().any(|parent| {
                let namespace = parent.namespace.as_deref().unwrap_or(&key.namespace);
                parent.is_service()
                    && *parent.name == *service.name.name
                    && *namespace == *service.name.namespace
            });
            let holds = service.routes.iter().any(|route| {
                route.kind.as_str() == key.kind.as_str()
                    && *route.namespace == *key.namespace
                    && *route.name == *key.name
            });
            if !names || holds {
                continue;
            }
            let reason = if *key.namespace == *service.name.namespace {
                match service.routes.is_empty() {
                    true => "attaches to no port that the Service has".to_owned(),
                    false => format!(
                        "is displaced by the routes of the namespace {} for its own clients",
                        sender.namespace
                    ),
                }
            } else if key.namespace == sender.namespace {
                "attaches to no port that the Service has".to_owned()
            } else {
                format!("applies only to clients in {}", key.namespace)
            };
            answer.ignored.push(format!("{key} {reason}"));
        }
    }
}

/// The instances that a port of a host leads to.
fn instances_behind(host: &HostMeaning, port: u16) -> Vec<InstanceName> {
    match host {
        HostMeaning::Workload(workload) => vec![workload.name.clone()],
        HostMeaning::Service(service) => {
            let endpoints = service.port(port).into_iter().flat_map(|port| port.endpoints.iter());
            endpoints.filter_map(|endpoint| endpoint.workload.clone()).collect()
        }
        HostMeaning::Unknown { .. } => Vec::new(),
    }
}

fn at_workload(
    answer: &mut Explanation,
    sender: &Sender,
    workload: &Workload,
    question: &ExplainQuestion,
) {
    let protocol = declared(&workload.ports, question.port);
    answer.destination = DestinationAnswer::workload(workload, question.port, protocol);
    if sender.instance.as_ref() == Some(&workload.name) {
        answer.notes.push(
            "the workload connects to itself, which bypasses its proxy's policies".to_owned(),
        );
    }
    answer.notes.push(
        "the request goes to the address of an instance, and routes apply only to Services"
            .to_owned(),
    );
    let backend = BackendAnswer::of_workload(workload, question.port);
    answer.outcome = match protocol == Protocol::Opaque || question.wanted == ClientProtocol::Bytes
    {
        true => OutcomeAnswer::relayed(question.wanted == ClientProtocol::Bytes),
        false => OutcomeAnswer::forwarded(std::slice::from_ref(&backend)),
    };
    answer.backends = vec![backend];
}
