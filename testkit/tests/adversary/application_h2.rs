//! The application's HTTP/2 server, which uses the `h2` crate.

use std::net::TcpStream;
use std::time::Duration;

use http::Response;

use crate::application::Application;
use crate::strict::Message;

/// How long the rest of a request may take.
const BODY_LIMIT: Duration = Duration::from_secs(30);

/// Serves a connection until it ends.
pub(crate) fn serve(application: &Application, stream: TcpStream) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        stream.set_nonblocking(true).expect("a socket");
        let stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
        // Streams of many clients share the connection, and some are reset before this thread has accepted them.
        // So the limits on such streams are lifted.
        let mut server = h2::server::Builder::new();
        server.max_pending_accept_reset_streams(usize::MAX).max_local_error_reset_streams(None);
        let Ok(mut connection) = server.handshake(stream).await else { return };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let application = application.clone();
            tokio::task::spawn_local(async move {
                let read = respond_to(&application, request, respond);
                let _ = tokio::time::timeout(BODY_LIMIT, read).await;
            });
        }
    });
}

async fn respond_to(
    application: &Application,
    request: http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<bytes::Bytes>,
) {
    let (head, mut body) = request.into_parts();
    let text = |value: &[u8]| value.iter().map(|byte| char::from(*byte)).collect::<String>();
    let fields = head.headers.iter().map(|(k, v)| (k.as_str().to_owned(), text(v.as_bytes())));
    let mut message = Message {
        line: [head.method.to_string(), head.uri.path().to_owned(), "HTTP/2".to_owned()],
        fields: fields.collect(),
        ..Message::default()
    };
    message.is_whole = loop {
        match body.data().await {
            Some(Ok(part)) => {
                // Fails if the connection has ended.
                let _ = body.flow_control().release_capacity(part.len());
                message.body.extend(part);
            }
            Some(Err(_)) => break false,
            None => break body.trailers().await.is_ok(),
        }
    };
    let is_whole = message.is_whole;
    let raw = format!("{} {:?}", head.uri, message.fields);
    let answer = application.take(message, raw.as_bytes());
    if is_whole && let Ok(mut stream) = respond.send_response(Response::new(()), false) {
        let _ = stream.send_data(answer, true);
    }
}
