//! gRPC streams against a server that responds late.

use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::Response;
use leno_measure::load::{Plan, Protocol, run};
use tokio::net::{TcpListener, TcpStream};

/// Sends nothing on a stream, not even the head, before it has received a message.
async fn serve(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.expect("the client speaks HTTP/2");
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(echo(request.into_body(), respond));
    }
}

async fn echo(mut body: RecvStream, mut respond: SendResponse<Bytes>) {
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

#[tokio::test]
async fn the_first_message_does_not_wait_for_the_head_of_the_response() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    let mut plan = Plan::new(format!("http://{address}/"), 100.0, Duration::from_millis(200));
    plan.protocol = Protocol::GrpcStream;
    (plan.connections, plan.streams, plan.body_size) = (2, 2, 100);
    plan.timeout = Duration::from_secs(2);
    let report = tokio::task::spawn_blocking(move || run(&plan).unwrap()).await.unwrap();
    assert_eq!((report.requests, report.errors), (20, 0), "{report:?}");
}
