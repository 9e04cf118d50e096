//! gRPC streams against a server that responds late.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{Request, Response};
use leno_measure::load::{Plan, Protocol, run};
use tokio::net::{TcpListener, TcpStream};

/// A server that sends nothing on a stream, not even the head, before it has received a message.
fn late() -> SocketAddr {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a thread may have a runtime");
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            sender.send(address).expect("the test waits for it");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream));
            }
        });
    });
    receiver.recv().expect("it listens")
}

async fn connection(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.expect("the client speaks HTTP/2");
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(echo(request, respond));
    }
}

async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let mut body = request.into_body();
    let mut send = None;
    while let Some(Ok(bytes)) = body.data().await {
        let _ = body.flow_control().release_capacity(bytes.len());
        let send = send.get_or_insert_with(|| {
            respond.send_response(Response::new(()), false).expect("the client is there")
        });
        // Fails when the client has ended the stream.
        let _ = send.send_data(bytes, false);
    }
}

#[test]
fn the_first_message_does_not_wait_for_the_head_of_the_response() {
    let address = late();
    let mut plan = Plan::new(format!("http://{address}/"), 100.0, Duration::from_millis(200));
    plan.protocol = Protocol::GrpcStream;
    (plan.connections, plan.streams, plan.body_size) = (2, 2, 100);
    plan.timeout = Duration::from_secs(2);
    let report = run(&plan).unwrap();
    assert_eq!((report.requests, report.errors), (20, 0), "{report:?}");
}
