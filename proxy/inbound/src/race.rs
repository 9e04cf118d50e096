//! Finds out which side sends first if the client is silent: the client or the application.

use std::io;

use leno_transport::{
    ConnectError, Io, Opening, Peeked, RELAY_IDLE, Speaker, Verdict, Waits, first_to_speak, judge,
    unless_gone,
};
use leno_types::Protocol;
use tokio::net::TcpStream;

use crate::Worker;
use crate::application::Application;

/// The side that was first to send, or to close the connection.
#[derive(Debug)]
pub(crate) enum FirstSpeaker {
    /// The client. If a connection to the application was opened meanwhile and the application was silent, this has the
    /// connection.
    Client(Option<TcpStream>),
    /// The application. The connection is relayed as opaque bytes.
    Server(Peeked<TcpStream>),
    /// Neither: the proxy cannot connect to the application, and the client was silent until this was known.
    Unreachable(ConnectError),
    /// Neither: policies deny the client whatever it sends, so it must not receive what the application sends first.
    Denied,
    /// Neither side, until the idle timeout.
    Neither,
}

/// Connects to the application and waits until either side sends. Meanwhile neither connection needs a buffer.
///
/// # Errors
/// Reading from either side failed.
pub(crate) async fn race<S: Io>(
    shared: &Worker,
    application: &Application,
    client: &mut Peeked<S>,
) -> io::Result<FirstSpeaker> {
    if !application.speaks_http2_first() {
        let connected = unless_gone(application.connect(), |cx| client.poll_gone(cx)).await;
        let mut server = match connected? {
            Ok(server) => Peeked::from(server),
            Err(error) => return Ok(FirstSpeaker::Unreachable(error)),
        };
        // Both sides may be silent for as long as on an idle relay.
        let Some((speaker, read)) = first_to_speak(client, &mut server, RELAY_IDLE).await else {
            return Ok(FirstSpeaker::Neither);
        };
        let ended = read? == 0;
        if speaker == Speaker::Client {
            return Ok(FirstSpeaker::Client(Some(server.into_parts().1)));
        }
        let (bytes, elapsed) = (server.bytes(), Waits::INBOUND.first_byte);
        let opening = Opening { speaker, bytes, ended, elapsed };
        if judge(Protocol::Detect, &Waits::INBOUND, opening) != Verdict::Http2 {
            return Ok(FirstSpeaker::Server(server));
        }
        // The client of an application that sends HTTP/2 first gets another connection, from the HTTP/2 pool.
        application.note_http2_first();
        server.reset();
    }
    let spoke = client.speaks(shared.parts.limits.idle).await?;
    Ok(if spoke { FirstSpeaker::Client(None) } else { FirstSpeaker::Neither })
}
