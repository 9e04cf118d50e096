//! The admin server over TCP. If a request panics, its connection ends; the proxy continues.

use std::rc::Rc;

use hyper::Request;
use hyper::body::Incoming;
use leno_program::{SocketPair, connections, serve_stream};
use leno_transport::spawn_contained;
use tokio::net::TcpListener;

use super::caller::Caller;
use crate::state::State;

/// Serves until the future is dropped, each connection in a task of its own.
pub(crate) async fn serve(listener: TcpListener, state: Rc<State>) {
    let shares = connections();
    loop {
        let (stream, client, share) = shares.accept(&listener).await;
        let Ok(called) = stream.local_addr() else { continue };
        let caller = Caller::of(&SocketPair { client, called });
        let state = Rc::clone(&state);
        spawn_contained(async move {
            let answer = |request: Request<Incoming>| {
                let state = Rc::clone(&state);
                async move { super::answer(&request, caller, &state).await }
            };
            // `None` means that the connection was closed before its end, to make room for one of another client.
            let _ = share.hold(serve_stream(stream, client, answer)).await;
        });
    }
}
