//! One discovery stream: subscriptions out, deltas in.
//!
//! ```text
//!   first request: "*", every watched address, versions held --> deltas --> ack or nack
//!   later requests: addresses newly watched, addresses no longer watched
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use leno_types::mesh::Subject;
use leno_wire::proto::discovery_client::DiscoveryClient;
use leno_wire::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, Status};
use leno_wire::{ADDRESS_TYPE, MAX_MESSAGE, SERVER_POLICY_TYPE, decode, names};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;

use crate::connection::Connection;
use crate::directory::Live;
use crate::table::{Address, Resource};

/// Requests that may wait to be sent; the control plane reads them as they come.
const MAX_REQUESTS: usize = 16;
/// Longest wait for the control plane to take a request or to accept the stream.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How often addresses that nobody watches are looked for.
const SWEEP: Duration = Duration::from_secs(30);
/// `google.rpc.Code.INVALID_ARGUMENT`, in a refused response.
const INVALID_ARGUMENT: i32 = 3;
/// Most bytes of the reason in a refused response.
const MAX_REASON: usize = 1024;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("the control plane ended the stream: {} ({})", .0.message(), .0.code())]
    Status(tonic::Status),
    #[error("the control plane ended the stream")]
    Closed,
    #[error("the control plane did not take a request within {SEND_TIMEOUT:?}")]
    Stalled,
}

impl StreamError {
    /// Whether the control plane does not know this instance by its certificate.
    pub(crate) fn is_unauthenticated(&self) -> bool {
        matches!(self, Self::Status(status) if status.code() == tonic::Code::Unauthenticated)
    }

    /// Whether the connection broke, other than by a word of the control plane.
    pub(crate) fn is_broken_off(&self) -> bool {
        matches!(self, Self::Status(status) if status.source().is_some())
    }
}

/// Opens the stream and keeps the directory up to date until the stream ends. `heard` is called
/// with the first response: the control plane works.
pub(crate) async fn run(
    live: &Live,
    connection: Connection,
    mut heard: impl FnMut(),
) -> Result<Infallible, StreamError> {
    let (requests, outgoing) = mpsc::channel(MAX_REQUESTS);
    let requests = Requests(requests);
    requests.start(live).await?;
    let mut client = DiscoveryClient::with_origin(connection, Connection::origin())
        .max_decoding_message_size(MAX_MESSAGE);
    let answer = client.delta_aggregated_resources(ReceiverStream::new(outgoing));
    let answer = timeout(SEND_TIMEOUT, answer).await.map_err(|_| StreamError::Stalled)?;
    let mut responses = answer.map_err(StreamError::Status)?.into_inner();
    let _connected = Connected::new(live);
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            response = responses.message() => {
                let response = response.map_err(StreamError::Status)?.ok_or(StreamError::Closed)?;
                heard();
                requests.send(take(live, response)).await?;
            }
            () = live.wanted() => {
                requests.change(live.take_changes()).await?;
            }
            _ = sweep.tick() => {
                live.sweep();
                requests.change(live.take_changes()).await?;
            }
        }
    }
}

/// Marks the directory as connected for as long as it lives.
struct Connected<'a>(&'a Live);

impl<'a> Connected<'a> {
    fn new(live: &'a Live) -> Self {
        live.connected();
        Self(live)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.disconnected();
    }
}

struct Requests(mpsc::Sender<DeltaDiscoveryRequest>);

impl Requests {
    async fn send(&self, request: DeltaDiscoveryRequest) -> Result<(), StreamError> {
        match self.0.send_timeout(request, SEND_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(StreamError::Stalled),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(StreamError::Closed),
        }
    }

    /// Says who is asking, what for, and what is held already.
    async fn start(&self, live: &Live) -> Result<(), StreamError> {
        let id = live.instance().to_string();
        let (watched, versions) = live.resume();
        let mut subscribe = vec![names::WILDCARD.to_owned()];
        subscribe.extend(watched.iter().map(names::of_subject));
        self.send(DeltaDiscoveryRequest {
            node: Some(Node { id: id.clone() }),
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: subscribe,
            initial_resource_versions: versions,
            ..Default::default()
        })
        .await?;
        self.send(DeltaDiscoveryRequest {
            type_url: SERVER_POLICY_TYPE.to_owned(),
            resource_names_subscribe: vec![id],
            ..Default::default()
        })
        .await
    }

    /// A subject that is in both was dropped and is asked for anew: ends are read first.
    async fn change(&self, (add, remove): (Vec<Subject>, Vec<Subject>)) -> Result<(), StreamError> {
        if add.is_empty() && remove.is_empty() {
            return Ok(());
        }
        let names = |subjects: Vec<Subject>| subjects.iter().map(names::of_subject).collect();
        self.send(DeltaDiscoveryRequest {
            type_url: ADDRESS_TYPE.to_owned(),
            resource_names_subscribe: names(add),
            resource_names_unsubscribe: names(remove),
            ..Default::default()
        })
        .await
    }
}

/// Takes what is good of a response; the answer acknowledges it, or says what was not.
fn take(live: &Live, response: DeltaDiscoveryResponse) -> DeltaDiscoveryRequest {
    let mut answer = DeltaDiscoveryRequest {
        type_url: response.type_url.clone(),
        response_nonce: response.nonce.clone(),
        ..Default::default()
    };
    let problems = match response.type_url.as_str() {
        ADDRESS_TYPE => addresses(live, response),
        SERVER_POLICY_TYPE => policies(live, response),
        other => vec![format!("{other:?} was not asked for")],
    };
    if !problems.is_empty() {
        let mut message = problems.join("; ");
        tracing::warn!(problems = message, "refused a part of what the control plane sent");
        live.count_nack();
        message.truncate(message.floor_char_boundary(MAX_REASON));
        answer.error_detail = Some(Status { code: INVALID_ARGUMENT, message });
    }
    answer
}

fn addresses(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let mut problems = Vec::new();
    let mut resources = Vec::with_capacity(response.resources.len());
    for resource in response.resources {
        let decoded = match &resource.resource {
            Some(any) => decode::address(any),
            None => Err(decode::DecodeError::Missing("resource")),
        };
        match decoded {
            Ok(address) => {
                let address = match address {
                    decode::Address::Service(service) => Address::Service(Arc::new(service)),
                    decode::Address::Workload(workload) => Address::Workload(Arc::new(workload)),
                };
                let aliases = resource.aliases.iter().filter_map(|name| names::address(name));
                let aliases = aliases.collect();
                let taken = Resource { version: resource.version, address, aliases };
                resources.push((resource.name, taken));
            }
            Err(error) => problems.push(format!("{}: {}", resource.name, crate::chain(&error))),
        }
    }
    let (mut removed, mut absent) = (Vec::new(), Vec::new());
    for name in response.removed_resources {
        if let Some(subject) = names::subject(&name) {
            absent.push(subject);
        }
        // A service is gone by the name that it is asked about.
        if names::address(&name).is_none() {
            removed.push(name);
        }
    }
    live.apply(resources, &removed, &absent);
    problems
}

/// A policy that is removed stays in use: its workload still runs, and nothing is no policy.
fn policies(live: &Live, response: DeltaDiscoveryResponse) -> Vec<String> {
    let mut problems = Vec::new();
    for resource in response.resources {
        let decoded = match &resource.resource {
            Some(any) => decode::server_policy(any),
            None => Err(decode::DecodeError::Missing("resource")),
        };
        match decoded {
            Ok(policy) if policy.workload == *live.instance() => {
                live.set_policy(Some(Arc::new(policy)));
            }
            Ok(policy) => problems.push(format!("{}: is for {}", resource.name, policy.workload)),
            Err(error) => problems.push(format!("{}: {}", resource.name, crate::chain(&error))),
        }
    }
    problems
}

#[cfg(test)]
mod tests;
