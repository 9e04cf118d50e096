//! External authorizers: services of the mesh that decide about requests that the other policies permit.
//!
//! A request waits for the answers of its authorizers, as it would wait for a connection, and nothing of it is sent to
//! the application before. The question is built from the head first, so that the client's connection can be watched
//! during the wait: if the client leaves, the question is cancelled.
//!
//! ```text
//! permitted ─► Question ─► Authorizer::ask ─┬─ permitted ─► Grants ─► the application
//!              of its head   pipe to the    ├─ denied ────► Denied: the authorizer's answer
//!                            outbound side  └─ no answer ─► Denied: 503, or permitted if the policy says so
//! ```

mod ask;
mod headers;

use std::cell::Cell;
use std::fmt;
use std::future::{Future, ready};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use leno_http::{HeaderLine, HeldBody, Order, RequestView, TraceLine};
use leno_policy::authorization::is_spelling;
use leno_program::Shares;
use leno_telemetry::{Begun, Registry};
use leno_types::ServiceName;
use leno_types::authorizer::ExternalAuthorizer;
use tokio::io::{DuplexStream, duplex};

use crate::Worker;
use crate::authorize::{Access, Denied};
use crate::calls::GrpcConnection;
pub(crate) use ask::Question;
use ask::{About, AskError, Decided};

/// The value of `leno-error` if an authorizer does not decide about a request.
const AUTHORIZER_FAILED: &str = "authorizer-failed";

/// How many requests of one worker may wait for authorizers at a time, and how many may wait until their bodies are
/// read for authorizers. With heads, answers and two copies of the longest bodies this takes about 64 MiB. Further
/// requests fail, so that a slow authorizer does not get more of them at a time.
const MAX_ASKED: usize = 256;
/// How many bodies of one client are read at a time. The limit exists because a client may send its bodies slowly.
const MAX_HELD_OF_CLIENT: usize = 192;

/// The services of the mesh, which the workload reaches through the outbound side.
pub trait MeshServices: fmt::Debug {
    /// A port of a service.
    fn port(&self, service: &ServiceName, port: u16) -> Rc<dyn MeshPort>;
}

/// A port of a service of the mesh.
pub trait MeshPort: fmt::Debug {
    /// A connection in memory, and the future that serves it: requests that are written to the connection are sent to
    /// the service. If the connection is closed the future ends, and if the future ends or is dropped the connection
    /// is closed.
    fn connect(&self, http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>);

    /// Closes idle connections that are too old. To be called every few seconds.
    fn sweep(&self);
}

/// Does not reach any service, so that every authorizer fails.
#[derive(Clone, Copy, Debug)]
pub struct NoServices;

impl MeshServices for NoServices {
    fn port(&self, _service: &ServiceName, _port: u16) -> Rc<dyn MeshPort> {
        Rc::new(Self)
    }
}

impl MeshPort for NoServices {
    fn connect(&self, _http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>) {
        // The other end is dropped at once, so the connection is closed.
        (duplex(1).0, Box::pin(ready(())))
    }

    fn sweep(&self) {}
}

/// The authorizer of a policy, in one worker.
#[derive(Debug)]
pub(crate) struct Authorizer {
    of: Arc<ExternalAuthorizer>,
    /// `<namespace>/<name>` of the policy.
    policy: String,
    service: Rc<dyn MeshPort>,
    grpc: GrpcConnection,
    permitted: Rc<Cell<u64>>,
    denied: Rc<Cell<u64>>,
    failed: Rc<Cell<u64>>,
}

/// The changes that policies and authorizers make to a permitted request and its response. Tokens set headers with
/// their claims, and authorizers set headers from their answers.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// The names of headers that clients may not set, in the client's spelling.
    removed: Vec<String>,
    /// The headers that are set on the request for the application.
    set: Vec<HeaderLine>,
    /// The headers that are added to the response for the client.
    on_response: Vec<HeaderLine>,
}

/// The right to ask an authorizer about one request. A worker has [`MAX_ASKED`] of them; dropping this returns it.
struct AskPermit<'s>(&'s Cell<usize>);

/// Bounds how many request bodies are being read for authorizers at a time: [`MAX_ASKED`] in all,
/// [`MAX_HELD_OF_CLIENT`] for one client address.
pub(crate) fn held() -> Shares<IpAddr> {
    Shares::new(MAX_ASKED, MAX_HELD_OF_CLIENT)
}

/// Takes the right to ask, if one is left.
fn place(taken: &Cell<usize>) -> Option<AskPermit<'_>> {
    let is_free = taken.get() < MAX_ASKED;
    is_free.then(|| {
        taken.set(taken.get().saturating_add(1));
        AskPermit(taken)
    })
}

impl Drop for AskPermit<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

impl Authorizer {
    pub(crate) fn new(
        of: &Arc<ExternalAuthorizer>,
        policy: String,
        (services, registry): (&dyn MeshServices, &Registry),
    ) -> Self {
        let counter = |decision| registry.authorization(decision, &policy);
        Self {
            of: Arc::clone(of),
            service: services.port(&of.service, of.port),
            grpc: GrpcConnection::default(),
            permitted: counter("external-allow"),
            denied: counter("external-deny"),
            failed: counter("external-failure"),
            policy,
        }
    }

    pub(crate) fn sweep(&self) {
        self.service.sweep();
    }
}

impl Grants {
    /// The names to remove from the request.
    pub(crate) fn removed(&self) -> Vec<&str> {
        self.removed.iter().map(String::as_str).collect()
    }

    /// Applies the changes to the request for the application and to the response for the client.
    pub(crate) fn apply<'a, J>(&'a self, removed: &'a [&'a str], order: &mut Order<'a, J>) {
        order.request.remove = removed;
        order.request.set = &self.set;
        order.response.add = &self.on_response;
    }

    /// The `traceparent` header for the application, unless an authorizer sets this header.
    pub(crate) fn traceparent(&self, begun: &Begun) -> Option<TraceLine> {
        let parent = begun.traceparent().filter(|_| !self.sets("traceparent"))?;
        Some(TraceLine::new(parent.as_bytes()))
    }

    /// Adds the headers of other trace formats than `traceparent`, if the request had such headers.
    #[must_use]
    pub(crate) fn with_trace(mut self, begun: &Begun) -> Self {
        for line in HeaderLine::all(begun.trace_lines()) {
            self.set(line);
        }
        self
    }

    /// Removes a header that the client has sent, in every spelling.
    pub(crate) fn remove(&mut self, request: RequestView<'_>, own: &str) {
        for (name, _) in request.headers() {
            if is_spelling(name, own) && !self.removes(name) {
                self.removed.push(name.to_owned());
            }
        }
    }

    /// Sets a header, unless it is already set.
    pub(crate) fn set(&mut self, line: HeaderLine) {
        if !self.sets(line.name()) {
            self.set.push(line);
        }
    }

    fn removes(&self, name: &str) -> bool {
        self.removed.iter().any(|known| known == name)
    }

    fn sets(&self, name: &str) -> bool {
        self.set.iter().any(|line| line.name().eq_ignore_ascii_case(name))
    }

    /// The headers that are set, in the form in which a question contains them.
    fn lines(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.set.iter().map(|line| (line.name(), line.value()))
    }
}

/// The questions to authorizers about one request.
pub(crate) struct Questions {
    asked: Vec<(Rc<Authorizer>, Result<Question, AskError>)>,
    grants: Grants,
    /// The request, described for the log.
    what: String,
}

/// Denies a request whose body authorizers need but do not get. This counts as a failure of each of these authorizers.
pub(crate) fn without_body(
    (shared, access): (&Worker, &Access),
    authorizers: &[Rc<Authorizer>],
    (status, reason): (u16, &'static str),
    what: &str,
) -> Denied {
    for authorizer in authorizers.iter().filter(|authorizer| authorizer.of.body.is_some()) {
        authorizer.failed.set(authorizer.failed.get().wrapping_add(1));
        access.log_external(shared, (&authorizer.policy, reason), what);
    }
    failed(status, reason)
}

/// The denial of a request because an authorizer did not decide.
fn failed(status: u16, reason: &str) -> Denied {
    let cause = format!("{AUTHORIZER_FAILED}; reason={reason}");
    Denied::failed(status, AUTHORIZER_FAILED, cause)
}

/// The largest number of bytes of a body that one of these authorizers gets; `None` if none of them gets a body.
pub(crate) fn body_limit(authorizers: &[Rc<Authorizer>]) -> Option<usize> {
    let bodies = authorizers.iter().filter_map(|authorizer| authorizer.of.body);
    bodies.map(|body| usize::try_from(body.max_bytes).unwrap_or(usize::MAX)).max()
}

impl Questions {
    /// The questions about one request. `what` describes the request for the log. `grants` are the changes that
    /// policies make to the request. `body` is the whole body, or its first [`body_limit`] bytes or more.
    pub(crate) fn new(
        authorizers: Vec<Rc<Authorizer>>,
        (access, server): (&Access, SocketAddr),
        (request, what): (RequestView<'_>, String),
        grants: Grants,
        body: Option<&HeldBody>,
    ) -> Self {
        let mut asked = Vec::with_capacity(authorizers.len());
        for authorizer in authorizers {
            let about = About { request, grants: &grants, body };
            let question = Question::new(&authorizer.of, (access.client(), server), about);
            asked.push((authorizer, question));
        }
        Self { asked, grants, what }
    }

    pub(crate) const fn are_any(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns the changes that policies make to the request, if it has no authorizer. Most requests have none.
    pub(crate) fn without_any(self) -> Result<Grants, Self> {
        if self.asked.is_empty() { Ok(self.grants) } else { Err(self) }
    }

    /// Asks the authorizers one after the other. Each has to permit the request.
    pub(crate) async fn ask(self, shared: &Worker, access: &Access) -> Result<Grants, Denied> {
        let mut grants = self.grants;
        for (authorizer, question) in self.asked {
            let decided = match question {
                Ok(question) => authorizer.decide(shared, question).await,
                Err(error) => Err(error),
            };
            let counter = match &decided {
                Ok(Decided::Permitted { .. }) => &authorizer.permitted,
                Ok(Decided::Denied(_)) => &authorizer.denied,
                Err(_) => &authorizer.failed,
            };
            counter.set(counter.get().wrapping_add(1));
            match decided {
                Ok(Decided::Permitted { set, on_response }) => {
                    grants.set.retain(|line| {
                        set.iter().all(|one| !one.name().eq_ignore_ascii_case(line.name()))
                    });
                    grants.set.extend(set);
                    grants.on_response.extend(on_response);
                }
                Ok(Decided::Denied(denied)) => {
                    access.log_external(shared, (&authorizer.policy, "denied"), &self.what);
                    return Err(denied);
                }
                Err(error) => {
                    access.log_external(shared, (&authorizer.policy, error.label()), &self.what);
                    if !(authorizer.of.permits_on_failure && error.may_be_permitted()) {
                        return Err(failed(error.status(), error.label()));
                    }
                }
            }
        }
        Ok(grants)
    }
}

impl Authorizer {
    async fn decide(&self, shared: &Worker, question: Question) -> Result<Decided, AskError> {
        let _place = place(&shared.asked).ok_or(AskError::Overloaded)?;
        let answered = tokio::time::timeout(self.of.timeout, self.ask(question));
        answered.await.unwrap_or(Err(AskError::Timeout))
    }

    async fn ask(&self, question: Question) -> Result<Decided, AskError> {
        let answer = match question {
            Question::Grpc(message) => {
                ask::over_grpc(&self.grpc, &*self.service, message, self.of.timeout).await?
            }
            Question::Http(request) => ask::over_http(&*self.service, *request).await?,
        };
        Ok(Decided::new(answer, &self.of))
    }
}
