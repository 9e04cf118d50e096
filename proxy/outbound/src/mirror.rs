//! Mirrors, which are copies of requests that are also sent to another backend. No client waits for their responses,
//! which are read and discarded. If the client leaves, a copy ends with its request; otherwise it may take longer than
//! the request, up to [`MIRROR_LIMIT`].

use std::rc::Rc;
use std::time::Duration;

use leno_http::{Conn, Order};
use leno_policy::sampled;
use leno_telemetry::Counter;
use leno_transport::spawn_contained;
use smallvec::SmallVec;
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::Worker;
use crate::destination::{Destination, Route};
use crate::request::{OfHttp1, Request};
use crate::routes::Applied;
use crate::server;

/// The largest request in bytes that is copied. It is enough for most calls, and no more than a connection reads at
/// once.
const MAX_COPY: usize = 16 << 10;
/// How long to wait for the rest of a request that should be copied. A client that sends slowly, or waits for an answer
/// before it continues, must not be delayed.
const COPY_WAIT: Duration = Duration::from_millis(50);
/// How many copies may be in progress in one worker. With their buffers they take about 2 MiB.
const MAX_MIRRORS: usize = 64;
/// How long a copy may take, including its response.
const MIRROR_LIMIT: Duration = Duration::from_secs(10);
/// How many bytes of a response are buffered before they are discarded.
const ANSWER_BUFFER: usize = 4 << 10;

/// The copies of one request that were sent.
#[derive(Debug, Default)]
pub(crate) struct Mirrors(Vec<AbortHandle>);

impl Mirrors {
    /// Ends the copies that are still in progress, because the client has left.
    pub(crate) fn end(&self, shared: &Worker) {
        for copy in self.0.iter().filter(|copy| !copy.is_finished()) {
            copy.abort();
            shared.registry.count(Counter::OutboundMirrorLeft);
        }
    }
}

/// Sends copies of a request if its rule has mirrors.
pub(crate) async fn send<R: Request>(
    shared: &Rc<Worker>,
    applied: &Rc<Applied>,
    request: &mut R,
) -> Mirrors {
    let mut mirrors = Mirrors::default();
    let chosen = applied
        .mirrors()
        .iter()
        .filter(|(mirror, _)| sampled(shared.random(), mirror.numerator, mirror.denominator));
    let targets: SmallVec<[&Rc<Destination>; 2]> = chosen.map(|(_, target)| target).collect();
    if targets.is_empty() {
        return mirrors;
    }
    let of_http2 = request.is_http2();
    let copy = timeout(COPY_WAIT, request.copy(MAX_COPY)).await.ok().flatten();
    for target in targets {
        match &copy {
            None => shared.registry.count(Counter::OutboundMirrorTooLarge),
            Some(_) if shared.mirrors.get() >= MAX_MIRRORS => {
                shared.registry.count(Counter::OutboundMirrorTooMany);
            }
            Some(bytes) => {
                let copy = Copy {
                    shared: Rc::clone(shared),
                    target: Rc::clone(target),
                    applied: Rc::clone(applied),
                    bytes: bytes.clone(),
                    of_http2,
                };
                shared.mirrors.set(shared.mirrors.get().saturating_add(1));
                mirrors.0.push(spawn_contained(copy.run()).abort_handle());
            }
        }
    }
    mirrors
}

/// One copy that is in progress.
struct Copy {
    shared: Rc<Worker>,
    target: Rc<Destination>,
    applied: Rc<Applied>,
    /// The request as HTTP/1.
    bytes: Vec<u8>,
    of_http2: bool,
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.shared.mirrors.set(self.shared.mirrors.get().saturating_sub(1));
    }
}

impl Copy {
    async fn run(self) {
        let sent = timeout(MIRROR_LIMIT, self.relay()).await;
        let counter = match sent {
            Ok(Some(())) => Counter::OutboundMirrorSent,
            _ => Counter::OutboundMirrorFailed,
        };
        self.shared.registry.count(counter);
    }

    /// Sends the copy to one endpoint, once, and reads the response. `None` if that fails.
    async fn relay(&self) -> Option<()> {
        let Route::Backends(backends) = self.target.route().await else { return None };
        let (client, mut answer) = duplex(ANSWER_BUFFER);
        let mut client = Conn::with_received(client, &self.bytes);
        let head = client.read_request(&self.shared.limits).await.ok()??;
        let read = async {
            let mut buffer = [0; 1024];
            while matches!(answer.read(&mut buffer).await, Ok(1..)) {}
        };
        let sent = async {
            let client = &mut client;
            let mut request =
                OfHttp1::<DuplexStream> { client, head: &head, of_http2: self.of_http2 };
            let pick = backends.pick(&[]).ok()?;
            let found = server::get(&self.shared, pick.shared_endpoint(), &mut request, None).await;
            let mut server = found.ok()?;
            let mut order = Order::new(&self.shared.limits);
            order.mesh = server.is_mesh && !self.of_http2;
            let (of_request, _) = self.applied.removed();
            order.request = self.applied.request(&of_request);
            let done = server.exchange(&mut request, &mut order).await;
            let latency = done.first_byte.map(|at| at.saturating_duration_since(done.started));
            if let Some(latency) = latency {
                pick.observe(latency, Instant::now().into_std());
            }
            let whole = done.failure.is_none();
            server.give_back(pick.endpoint(), &done);
            whole.then_some(())
        };
        // The response must be read meanwhile, because the exchange would otherwise wait for room in the pipe.
        tokio::select! {
            sent = sent => sent,
            () = read => None,
        }
    }
}
