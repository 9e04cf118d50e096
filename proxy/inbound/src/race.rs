//! A client that is silent, and an application that may be the one to speak.

use std::io;

use leno_transport::{
    ConnectError, Io, Opening, Peeked, RELAY_IDLE, Speaker, Verdict, Waits, first_to_speak, judge,
    unless_gone,
};
use leno_types::Protocol;
use tokio::net::TcpStream;

use crate::Worker;
use crate::application::Application;

/// Which side has spoken, or ended, first.
#[derive(Debug)]
pub(crate) enum FirstSpeaker {
    /// The client, and the application where it was connected to meanwhile and was silent.
    Client(Option<TcpStream>),
    /// The application, so that the connection carries bytes.
    Server(Peeked<TcpStream>),
    /// The application cannot be connected to, and the client was silent until then.
    Unreachable(ConnectError),
    /// The client may not learn what the application says first.
    Denied,
    /// Neither side, for as long as an idle connection is kept.
    Neither,
}

/// Connects to the application and waits for either side. Neither holds memory meanwhile.
///
/// # Errors
/// Either side broke.
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
        // Both may be as silent as on an idle relay.
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
        // An HTTP/2 client gets a connection of its own.
        application.note_http2_first();
        server.reset();
    }
    let spoke = client.speaks(shared.parts.limits.idle).await?;
    Ok(if spoke { FirstSpeaker::Client(None) } else { FirstSpeaker::Neither })
}
