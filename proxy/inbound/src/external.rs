//! External authorizers: services of the mesh that decide on requests which the other policies permit.
//!
//! A request is asked about while it waits, as it would wait for a connection, and before anything of it goes to the
//! application. What is asked is made of its head at once, so that the client's connection is free meanwhile: the client
//! may leave, which ends the question.
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
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use leno_http::{HeaderLine, Order, RequestView};
use leno_telemetry::Registry;
use leno_types::ServiceName;
use leno_types::authorizer::ExternalAuthorizer;
use tokio::io::{DuplexStream, duplex};

use crate::Shared;
use crate::authorize::{Access, Denied};
pub(crate) use ask::Question;
use ask::{AskError, Decided, GrpcConnection};

/// Said in `leno-error` when an authorizer does not decide on a request.
pub(crate) const AUTHORIZER_FAILED: &str = "authorizer-failed";

/// Most requests of one worker that authorizers are asked about at a time: with their heads and answers a few MiB.
/// An authorizer that is slower than its clients is not given more.
const MAX_ASKED: usize = 256;

/// Services of the mesh, as the workload reaches them: the other plane's.
pub trait MeshServices: fmt::Debug {
    /// A port of a service.
    fn port(&self, service: &ServiceName, port: u16) -> Rc<dyn MeshPort>;
}

/// A port of a service of the mesh.
pub trait MeshPort: fmt::Debug {
    /// A connection in memory, and what serves it: requests that are written to it go to the service. It ends with
    /// either of the two.
    fn connect(&self, http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>);

    /// Closes idle connections that are too old. To be called every few seconds.
    fn sweep(&self);
}

/// Reaches no service, so that authorizers fail.
#[derive(Clone, Copy, Debug)]
pub struct NoServices;

impl MeshServices for NoServices {
    fn port(&self, _service: &ServiceName, _port: u16) -> Rc<dyn MeshPort> {
        Rc::new(Self)
    }
}

impl MeshPort for NoServices {
    fn connect(&self, _http2: bool) -> (DuplexStream, Pin<Box<dyn Future<Output = ()>>>) {
        // The other end is closed.
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

/// What authorizers change about a permitted request and its response.
#[derive(Debug, Default)]
pub(crate) struct Grants {
    /// Names that clients may not set, as the client has spelt them.
    removed: Vec<String>,
    set: Vec<HeaderLine>,
    on_response: Vec<HeaderLine>,
}

/// A place among the questions of a worker.
struct Place<'s>(&'s Cell<usize>);

impl Drop for Place<'_> {
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

    /// Changes what the application and the client receive.
    pub(crate) fn apply<'a, J>(&'a self, removed: &'a [&'a str], order: &mut Order<'a, J>) {
        order.request.remove = removed;
        order.request.set = &self.set;
        order.response.add = &self.on_response;
    }

    fn forget_of_clients(&mut self, of: &ExternalAuthorizer, request: RequestView<'_>) {
        if of.on_request.is_empty() {
            return;
        }
        for (name, _) in request.headers() {
            let is_reserved = of.on_request.iter().any(|own| headers::is_same_variable(name, own));
            if is_reserved && !self.removed.iter().any(|known| known == name) {
                self.removed.push(name.to_owned());
            }
        }
    }
}

/// What the authorizers of these policies are asked about a request.
pub(crate) struct Questions {
    asked: Vec<(Rc<Authorizer>, Result<Question, AskError>)>,
    grants: Grants,
    /// For the log.
    what: String,
}

impl Questions {
    /// `None` if there is none, as for most requests.
    pub(crate) fn new(
        authorizers: Vec<Rc<Authorizer>>,
        (access, server): (&Access, SocketAddr),
        request: RequestView<'_>,
    ) -> Option<Self> {
        if authorizers.is_empty() {
            return None;
        }
        let what = format!("{} {}", request.method(), String::from_utf8_lossy(request.path()));
        let mut grants = Grants::default();
        let mut asked = Vec::with_capacity(authorizers.len());
        for authorizer in authorizers {
            grants.forget_of_clients(&authorizer.of, request);
            let question = Question::new(&authorizer.of, (access.client(), server), request);
            asked.push((authorizer, question));
        }
        Some(Self { asked, grants, what })
    }

    /// Asks all of them, one after the other: each has to permit the request.
    pub(crate) async fn ask(self, shared: &Shared, access: &Access) -> Result<Grants, Denied> {
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
            counter.set(counter.get() + 1);
            match decided {
                Ok(Decided::Permitted { set, on_response }) => {
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
                        let cause = format!("{AUTHORIZER_FAILED}; reason={}", error.label());
                        return Err(Denied::failed(503, AUTHORIZER_FAILED, cause));
                    }
                }
            }
        }
        Ok(grants)
    }
}

impl Authorizer {
    async fn decide(&self, shared: &Shared, question: Question) -> Result<Decided, AskError> {
        let asked = &shared.asked;
        if asked.get() >= MAX_ASKED {
            return Err(AskError::Overloaded);
        }
        asked.set(asked.get() + 1);
        let _place = Place(asked);
        let answered = tokio::time::timeout(self.of.timeout, self.ask(question));
        answered.await.unwrap_or(Err(AskError::Timeout))
    }

    async fn ask(&self, question: Question) -> Result<Decided, AskError> {
        let answer = match question {
            Question::Grpc(message) => {
                self.grpc.ask(&*self.service, message, self.of.timeout).await?
            }
            Question::Http(request) => ask::over_http(&*self.service, *request).await?,
        };
        Ok(Decided::new(answer, &self.of))
    }
}
