//! Serves connections that carry HTTP/1 or HTTP/2. Each request is forwarded separately.

use std::rc::Rc;

use leno_http::{After, Call, Conn, RequestHead, serve_begun, serve_streams};
use leno_transport::Peeked;
use tokio::net::TcpStream;

use crate::Worker;
use crate::destination::{Destination, Route};
use crate::external::with_remedy;
use crate::forward::{Forwarded, forward};
use crate::request::OfHttp1;

/// A connection on which an HTTP/1 request has begun, and its destination.
pub(crate) type Begun = (Rc<Worker>, Rc<Destination>, Box<Conn<TcpStream>>);

/// Serves the requests of an HTTP/1 client until its connection ends.
pub(crate) async fn serve_http1(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    client: Peeked<TcpStream>,
) {
    let (first, client) = client.into_parts();
    let client = Box::new(Conn::with_received(client, &first));
    drop(first);
    let request =
        |client| shared.handlers.serve((Rc::clone(shared), Rc::clone(destination), client));
    let leave = shared.activity.idle_left();
    leno_http::serve(client, (&shared.limits, leave), request).await;
}

/// Serves one request of an HTTP/1 client.
pub(crate) async fn serve_request(
    (shared, destination, mut client): Begun,
) -> (Box<Conn<TcpStream>>, After) {
    let (shared, destination) = (&shared, &*destination);
    let forward = async |client: &mut Conn<TcpStream>, head: &RequestHead| {
        let _busy = shared.activity.enter();
        match forward(shared, destination, &mut OfHttp1 { client, head, of_http2: false }).await {
            Forwarded::Done(done) => client.conclude(head, &done).await,
            Forwarded::Failed(status, cause) => client.fail(head, status, with_remedy(cause)).await,
            Forwarded::Answered(answer) if answer.last => {
                client.answer_last(head, &answer.answer()).await
            }
            Forwarded::Answered(answer) => client.answer(head, &answer.answer()).await,
        }
    };
    let refused = |status, cause| match destination.route_now() {
        Route::Backends(backends) => {
            shared.registry.unreadable(backends.nobody(), status, cause);
        }
        // Egress policy refuses the destination, or what is at the address has changed meanwhile.
        _ => {
            let edge = shared.registry.edge(&shared.outside());
            shared.registry.unreadable(&edge, status, cause);
        }
    };
    let after = serve_begun(&mut client, &shared.limits, forward, refused).await;
    (client, after)
}

/// A request of an HTTP/2 client, and its destination.
pub(crate) type Job = (Rc<Worker>, Rc<Destination>, leno_h2::Request);

pub(crate) async fn serve_call((shared, destination, request): Job) {
    let _busy = shared.activity.enter();
    let mut call = Call::new(request);
    match forward(&shared, &destination, &mut call).await {
        Forwarded::Done(done) => call.conclude(&done),
        Forwarded::Failed(status, cause) => call.fail(status, with_remedy(cause)),
        Forwarded::Answered(answer) => call.respond(&answer.answer()),
    }
}

/// Serves the requests of an HTTP/2 client, all at the same time.
pub(crate) async fn serve_http2(
    shared: &Rc<Worker>,
    destination: &Rc<Destination>,
    client: Peeked<TcpStream>,
) {
    let (first, client) = client.into_parts();
    let begin = |request| {
        let job = (Rc::clone(shared), Rc::clone(destination), request);
        shared.tasks.run(job, serve_call);
    };
    let leave = async {
        tokio::select! {
            () = shared.activity.drained() => {}
            () = destination.gone() => {}
        }
    };
    let served = serve_streams(client, &first, &shared.h2_limits, begin, leave).await;
    if let Err(error) = served {
        if let Route::Backends(backends) = destination.route_now() {
            backends.nobody().error(error.label());
        }
        tracing::debug!(%error, "a client's connection ended");
    }
}
