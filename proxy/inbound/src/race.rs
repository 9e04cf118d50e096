//! A client that is silent, and an application that may be the one to speak.

use std::io;

use leno_transport::{ConnectError, RELAY_IDLE, Stream, is_server_preface, read_first};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Shared;
use crate::application::Application;

/// Who has spoken, or ended, first.
#[derive(Debug)]
pub(crate) enum First {
    /// The client. The application was connected to meanwhile, and was silent.
    Client { first: Vec<u8>, server: Option<TcpStream> },
    /// The application, so that the connection carries bytes.
    Server { server: TcpStream, said: Vec<u8> },
    /// The application cannot be connected to, and the client was silent until then.
    Unreachable(ConnectError),
    /// Neither side, for as long as an idle connection is kept.
    Nobody,
}

/// Connects to the application and waits for either side. Neither holds memory meanwhile.
///
/// # Errors
/// Either side broke.
pub(crate) async fn race(
    shared: &Shared,
    application: &Application,
    client: &mut TcpStream,
) -> io::Result<First> {
    let mut first = Vec::new();
    if !application.speaks_http2_first() {
        let mut server = match application.connect().await {
            Ok(server) => server,
            Err(error) => return Ok(First::Unreachable(error)),
        };
        let mut said = Vec::new();
        let spoken = timeout(RELAY_IDLE, async {
            tokio::select! {
                biased;
                read = read_first(client, &mut first) => read.map(|_| true),
                read = read_first(&mut server, &mut said) => read.map(|_| false),
            }
        });
        // Both are as silent as on an idle relay.
        let Ok(by_client) = spoken.await else { return Ok(First::Nobody) };
        if by_client? {
            return Ok(First::Client { first, server: Some(server) });
        }
        if !is_server_preface(&said) {
            return Ok(First::Server { server, said });
        }
        // An HTTP/2 client gets a connection of its own.
        application.note_http2_first();
        server.abort();
    }
    match timeout(shared.parts.limits.idle, read_first(client, &mut first)).await {
        Ok(read) => read.map(|_| First::Client { first, server: None }),
        Err(_silent) => Ok(First::Nobody),
    }
}
