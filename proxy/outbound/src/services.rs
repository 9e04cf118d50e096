//! Requests that the proxy itself sends to services of the mesh, such as questions to external authorizers. They are
//! treated like requests of the workload to the same service, except that routes do not apply to them.

use std::future::pending;
use std::rc::Rc;

use leno_http::{Conn, RequestHead, serve_begun, serve_streams};
use leno_types::ServiceName;
use tokio::io::DuplexStream;

use crate::Worker;
use crate::destination::Destination;
use crate::forward::{Forwarded, forward};
use crate::http::serve_call;
use crate::request::OfHttp1;

/// The services of the mesh, as the workload of one worker reaches them.
#[derive(Clone, Debug)]
pub struct Services {
    shared: Rc<Worker>,
}

/// A port of a service, with its destination.
#[derive(Clone, Debug)]
pub struct ServicePort {
    shared: Rc<Worker>,
    destination: Rc<Destination>,
}

impl Services {
    pub(crate) fn new(shared: &Rc<Worker>) -> Self {
        Self { shared: Rc::clone(shared) }
    }

    /// A port of a service. The first use starts a watch in discovery.
    #[must_use]
    pub fn port(&self, service: &ServiceName, port: u16) -> ServicePort {
        let destination = self.shared.targets.get(&self.shared, service, port);
        ServicePort { shared: Rc::clone(&self.shared), destination }
    }
}

impl ServicePort {
    /// Serves HTTP/1 or HTTP/2 requests on a connection in memory, until the client closes it. A proxy that drains
    /// continues to serve it, because requests in progress need the answers.
    pub async fn serve(self, client: DuplexStream, http2: bool) {
        let Self { shared, destination } = self;
        // Wait for discovery, because the proxy knows no endpoints of the service before discovery has answered.
        destination.route().await;
        if http2 {
            let begin = |request| {
                let job = (Rc::clone(&shared), Rc::clone(&destination), request);
                shared.tasks.run(job, serve_call);
            };
            let served = serve_streams(client, b"", &shared.h2_limits, begin, pending()).await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection of the proxy's own ended");
            }
            return;
        }
        let request = async |mut client: Box<Conn<DuplexStream>>| {
            let forward = async |client: &mut Conn<DuplexStream>, head: &RequestHead| {
                let mut request = OfHttp1 { client, head, of_http2: false };
                match forward(&shared, &destination, &mut request).await {
                    Forwarded::Done(done) => client.conclude(head, &done).await,
                    Forwarded::Failed(status, cause) => client.fail(head, status, cause).await,
                    Forwarded::Answered(answer) => client.answer(head, &answer.answer()).await,
                }
            };
            // The proxy itself writes these requests, so they can always be parsed.
            let refused =
                |status, cause| tracing::debug!(status, cause, "an own request is refused");
            let after = serve_begun(&mut client, &shared.limits, forward, refused).await;
            (client, after)
        };
        leno_http::serve(Box::new(Conn::new(client)), (&shared.limits, pending()), request).await;
    }

    /// Closes connections that have been idle for too long. To be called every few seconds.
    pub fn sweep(&self) {
        self.destination.sweep();
    }
}
