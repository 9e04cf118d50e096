//! One discovery stream: the proxy sends subscriptions and receives deltas.
//!
//! ```text
//!   first requests: the services that workloads of the same identity use,
//!                   every watched subject, with the versions held,
//!                   the proxy's own policy,
//!                   the trust bundle                --> responses --> ack or nack
//!   later requests: subjects newly watched, subjects no longer watched, the trust bundle in use,
//!                   issuers of tokens whose keys are unknown
//! ```

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leno_types::mesh::Subject;
use leno_wire::proto::discovery_client::DiscoveryClient;
use leno_wire::proto::{
    Any, DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Resource, Status,
};
use leno_wire::{
    ADDRESS_TYPE, Bytes, ClientConnection, MAX_MESSAGE, RECONNECT_TYPE, SERVER_POLICY_TYPE,
    TRUST_BUNDLE_TYPE, USED_SERVICES_TYPE, decode, names,
};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::connection::{self, ConnectError};
use crate::directory::Live;
use crate::table::{self, Address};

/// How many requests may wait to be sent. The control plane reads them as they arrive.
const MAX_REQUESTS: usize = 16;
/// How long to wait until the control plane reads a request or accepts the stream.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often to search for addresses that are no longer watched.
const SWEEP: Duration = Duration::from_secs(30);
/// The code `google.rpc.Code.INVALID_ARGUMENT`, with which a response is rejected.
const INVALID_ARGUMENT: i32 = 3;
/// The longest reason in a nack, in bytes.
const MAX_REASON: usize = 1024;

/// A connection that is being opened.
pub(crate) type Opening<'a> =
    Pin<Box<dyn Future<Output = Result<ClientConnection, ConnectError>> + Send + 'a>>;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("the control plane ended the stream: {} ({})", .0.message(), .0.code())]
    Status(tonic::Status),
    #[error("the control plane ended the stream")]
    Closed,
    #[error("the control plane did not accept a request within {SEND_TIMEOUT:?}")]
    Stalled,
}

impl StreamError {
    /// Whether the control plane does not accept this instance's certificate.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == tonic::Code::Unauthenticated)
    }

    /// Whether the connection broke. If not, the control plane has ended the stream.
    pub(crate) fn is_broken_off(&self) -> bool {
        matches!(self, Self::Status(status) if status.source().is_some())
    }
}

/// A connection for a stream. `after` keeps the directory connected until this stream is open; it belongs to the stream
/// that this one replaces, if there is one.
pub(crate) struct Opened<'a> {
    connection: ClientConnection,
    after: Option<Connected<'a>>,
}

impl From<ClientConnection> for Opened<'_> {
    fn from(connection: ClientConnection) -> Self {
        Self { connection, after: None }
    }
}

/// Opens the stream and keeps the directory up to date until the stream ends. Calls `heard` with
/// the first response, which shows that the control plane works. If the control plane requests
/// another stream, `reconnect` opens a connection for it while this stream continues, and that
/// connection is returned; the directory stays connected until its stream is open.
pub(crate) async fn run<'a>(
    live: &'a Live,
    opened: Opened<'a>,
    mut heard: impl FnMut(),
    reconnect: impl Fn() -> Opening<'a>,
) -> Result<Opened<'a>, StreamError> {
    let Opened { connection, after } = opened;
    let (requests, outgoing) = mpsc::channel(MAX_REQUESTS);
    let requests = Requests(requests);
    requests.start(live).await?;
    let mut client = DiscoveryClient::with_origin(connection, connection::origin())
        .max_decoding_message_size(MAX_MESSAGE);
    let outgoing = ReceiverStream::new(outgoing).map(|request| *request);
    // In a box, which only exists until the stream is open.
    let answer = Box::pin(client.delta_aggregated_resources(outgoing));
    let answer = timeout(SEND_TIMEOUT, answer).await.map_err(|_| StreamError::Stalled)?;
    let mut responses = answer.map_err(StreamError::Status)?.into_inner();
    let this = Connected::new(live, after);
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next: Option<Opening<'a>> = None;
    loop {
        tokio::select! {
            response = responses.message() => {
                let response = response.map_err(StreamError::Status)?.ok_or(StreamError::Closed)?;
                heard();
                if response.type_url == RECONNECT_TYPE && next.is_none() {
                    next = Some(reconnect());
                }
                requests.send(take(live, response)).await?;
            }
            connection = connected(&mut next), if next.is_some() => match connection {
                Ok(connection) => return Ok(Opened { connection, after: Some(this) }),
                Err(error) => {
                    let reason = crate::chain(&error);
                    tracing::warn!(reason, "no second connection; this stream continues until its end");
                    next = None;
                }
            },
            () = live.wanted() => {
                requests.change(live).await?;
            }
            _ = sweep.tick() => {
                live.sweep();
                requests.change(live).await?;
            }
        }
    }
}

/// Waits for the connection that is being opened. If there is none, waits forever.
async fn connected(next: &mut Option<Opening<'_>>) -> Result<ClientConnection, ConnectError> {
    match next {
        Some(next) => next.await,
        None => std::future::pending().await,
    }
}

/// While this value exists, the directory counts as connected.
pub(crate) struct Connected<'a>(&'a Live);

impl<'a> Connected<'a> {
    fn new(live: &'a Live, after: Option<Self>) -> Self {
        live.connected();
        after.unwrap_or_else(|| Self(live))
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

struct Requests(mpsc::Sender<Box<DeltaDiscoveryRequest>>);

impl Requests {
    async fn send(&self, request: DeltaDiscoveryRequest) -> Result<(), StreamError> {
        match self.0.send_timeout(Box::new(request), SEND_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StreamError::Stalled),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StreamError::Closed),
        }
    }

    /// Sends the first requests: the proxy's instance, its subscriptions, and the versions of the resources that it
    /// has.
    async fn start(&self, live: &Live) -> Result<(), StreamError> {
        let id = live.instance().to_string();
        self.send(DeltaDiscoveryRequest {
            node: Some(Node::of(id.clone())),
            type_url: USED_SERVICES_TYPE.to_owned(),
            resource_names_subscribe: vec![id.clone()],
            ..Default::default()
        })
        .await?;
        let (watched, versions) = live.resume();
        self.send(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: names_of(&watched),
            resource_names_prefetch: names_of(&live.take_prefetch()),
            initial_resource_versions: versions,
            ..Default::default()
        })
        .await?;
        self.send(DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec![id.clone()],
            ..Default::default()
        })
        .await?;
        self.send(DeltaDiscoveryRequest {
            type_url: TRUST_BUNDLE_TYPE.to_owned(),
            // The control plane sends exactly one bundle, whatever name is subscribed to.
            resource_names_subscribe: vec![id],
            trust: live.in_use(),
            ..Default::default()
        })
        .await
    }

    /// Sends changed subscriptions. A subject that is in both lists was dropped and is watched again. The control plane
    /// reads the unsubscriptions first.
    async fn change(&self, live: &Live) -> Result<(), StreamError> {
        if let Some(in_use) = live.take_in_use() {
            self.send(DeltaDiscoveryRequest {
                type_url: TRUST_BUNDLE_TYPE.to_owned(),
                trust: Some(in_use),
                ..Default::default()
            })
            .await?;
        }
        let unknown_key_issuers = live.take_unknown_keys();
        if !unknown_key_issuers.is_empty() {
            self.send(DeltaDiscoveryRequest {
                type_url: SERVER_POLICY_TYPE.to_owned(),
                unknown_key_issuers,
                ..Default::default()
            })
            .await?;
        }
        let ((add, remove), prefetch) = (live.take_changes(), live.take_prefetch());
        if add.is_empty() && remove.is_empty() && prefetch.is_empty() {
            return Ok(());
        }
        self.send(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: names_of(&add),
            resource_names_unsubscribe: names_of(&remove),
            resource_names_prefetch: names_of(&prefetch),
            ..Default::default()
        })
        .await
    }
}

fn names_of(subjects: &[Subject]) -> Vec<String> {
    subjects.iter().map(names::of_subject).collect()
}

/// Applies the valid resources of a response. Returns the ack, or a nack with the problems of the invalid resources.
fn take(live: &Live, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    let mut answer = DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    };
    let problems = match response.type_url.as_str() {
        ADDRESS_TYPE => addresses(live, response),
        SERVER_POLICY_TYPE => policies(live, response),
        USED_SERVICES_TYPE => uses(live, response),
        TRUST_BUNDLE_TYPE => trust(live, response),
        RECONNECT_TYPE => Vec::new(),
        other => vec![format!("{other:?} was not requested")],
    };
    if !problems.is_empty() {
        let mut message = problems.join("; ");
        tracing::warn!(problems = message, "rejected a part of a response of the control plane");
        live.count_nack();
        message.truncate(message.floor_char_boundary(MAX_REASON));
        answer.error_detail = Some(Status { code: INVALID_ARGUMENT, message });
    }
    answer
}

fn addresses(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let (received, mut problems) = received(response.resources);
    let mut resources = Vec::with_capacity(received.len());
    for (resource, any) in received {
        let name = resource.name.clone();
        match taken(live, resource, &any) {
            Ok(taken) => resources.extend(taken.map(|taken| (name, taken))),
            Err(error) => {
                if matches!(error, decode::DecodeError::Version { .. }) {
                    live.refetch(&name);
                }
                problems.push(format!("{name}: {}", crate::chain(&error)));
            }
        }
    }
    let (mut removed, mut absent) = (Vec::new(), Vec::new());
    for name in response.removed_resources {
        if let Some(subject) = names::subject(&name) {
            absent.push(subject);
        }
        // A removal names a service by its resource name.
        if names::address(&name).is_none() {
            removed.push(name);
        }
    }
    live.apply(resources, &removed, &absent);
    problems
}

/// A resource in the form in which the table stores it. `None` for an update of a service that the table no longer
/// holds: the control plane sent it before it received the unsubscription.
fn taken(
    live: &Live,
    resource: Resource,
    any: &Any,
) -> Result<Option<table::Resource>, decode::DecodeError> {
    let own = resource.aliases.iter().filter_map(|name| names::address(name));
    let mut aliases: Vec<_> = own.collect();
    let address = match decode::address(any)? {
        decode::AddressResource::Workload(workload) => Address::Workload(Arc::new(workload)),
        decode::AddressResource::Service(update) => {
            let held = live.service(&resource.name);
            if let (Some(held), false) = (&held, update.has_front()) {
                aliases.clone_from(&held.aliases);
            }
            let base = held.as_ref().map(|held| (held.version.as_str(), &*held.service));
            match update.apply(base) {
                Ok(service) => Address::Service(Arc::new(service)),
                Err(decode::DecodeError::NotHeld) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    };
    Ok(Some(table::Resource { version: resource.version, address, aliases }))
}

/// Applies the policy in a response. A policy that is removed stays in use: its workload still runs, and without a
/// policy nothing would be enforced.
fn policies(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let (received, mut problems) = received(response.resources);
    for (resource, any) in received {
        match decode::server_policy(&any) {
            Ok(policy) if policy.workload == *live.instance() => {
                live.set_policy(Some(Arc::new(policy)));
            }
            Ok(policy) => problems.push(format!("{}: is for {}", resource.name, policy.workload)),
            Err(error) => problems.push(format!("{}: {}", resource.name, crate::chain(&error))),
        }
    }
    problems
}

/// Watches the services in a response, which workloads of the same identity use.
fn uses(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let (received, mut problems) = received(response.resources);
    for (resource, any) in received {
        match decode::used_services(&any) {
            Ok(services) => live.prefetch(services),
            Err(error) => problems.push(format!("{}: {}", resource.name, crate::chain(&error))),
        }
    }
    problems
}

/// Applies the trust bundle in a response. A bundle that is removed stays in use, because without it no peer could be
/// verified.
fn trust(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let (received, mut problems) = received(response.resources);
    for (resource, any) in received {
        match decode::trust_bundle(&any) {
            Ok(bundle) => live.set_trust(bundle),
            Err(error) => problems.push(format!("{}: {}", resource.name, crate::chain(&error))),
        }
    }
    problems
}

/// The resources of a response with their values, and the problems of the invalid resources.
fn received(resources: Vec<Bytes>) -> (Vec<(Resource, Any)>, Vec<String>) {
    let (mut received, mut problems) = (Vec::with_capacity(resources.len()), Vec::new());
    for bytes in resources {
        match decode::resource(bytes) {
            Ok(mut resource) => match resource.resource.take() {
                Some(any) => received.push((resource, any)),
                None => problems.push(format!("{}: resource is missing", resource.name)),
            },
            Err(error) => problems.push(crate::chain(&error)),
        }
    }
    (received, problems)
}

#[cfg(test)]
mod tests;
