//! Failures of exchanges: which side is blamed, for which cause, and whether a retry is possible.

use std::io;
use std::task::{Context, Poll};

use leno_h2::{Code, Linked, OpenError, Reset, ResetBy};
use leno_transport::budget;

use crate::call::Call;
use crate::failure::{Cause, Failure, Party, Report};

/// Refuses a request that begins while the memory budget of this thread is used up.
pub(super) fn admit() -> Result<(), Failure> {
    if budget::admits() { Ok(()) } else { Err(Failure::new(Party::Us, Cause::MemoryBudget)) }
}

/// Fails if the client has reset its stream between two attempts.
pub(super) fn check_not_reset(call: &Call) -> Result<(), Failure> {
    call.reset_reason().map_or(Ok(()), |reset| Err(client_reset(reset)))
}

/// Fails if the client has reset its stream. If not, the task is woken when the client resets it.
pub(super) fn check_client(call: &mut Call, cx: &mut Context<'_>) -> Result<(), Failure> {
    match call.stream().map(|stream| stream.poll_closed(cx)) {
        Some(Poll::Ready(Some(reset))) => Err(client_reset(reset)),
        _ => Ok(()),
    }
}

/// The failure of an exchange whose client's stream ended early.
pub(super) fn client_reset(reset: Reset) -> Failure {
    // The proxy has reset the stream, because the server did not read the bytes of the request for too long.
    if reset.is_stall() {
        return Failure::new(Party::Server, Cause::Stalled);
    }
    Failure::new(Party::Client, Cause::Reset(reset))
}

/// The failure of an exchange whose client sent an incomplete request or does not read the response.
pub(super) fn client_failure(cause: Cause) -> Failure {
    match cause {
        Cause::Reset(reset) => client_reset(reset),
        _ => Failure::new(Party::Client, cause),
    }
}

/// The failure of an exchange whose server's stream ended early. `replayable` says that no part of a response was
/// received and that the request is still held. `is_mesh` says that the server is a proxy of the mesh, whose reports
/// are trusted.
pub(super) fn server_reset(reset: Reset, replayable: bool, is_mesh: bool) -> Failure {
    // The proxy has reset the stream, because the client did not read the bytes of the response for too long.
    if reset.is_stall() {
        return Failure::new(Party::Client, Cause::Stalled);
    }
    let report = Report::of_code(reset.code).filter(|_| is_mesh && reset.by == ResetBy::Peer);
    let code = reset.code.without_mesh();
    let cause = report.map_or(Cause::Reset(Reset { code, ..reset }), Cause::Reported);
    Failure {
        retryable: replayable,
        unprocessed: reset.unprocessed,
        ..Failure::new(Party::Server, cause)
    }
}

/// The failure of an exchange for which no stream could be opened, so that nothing was sent.
pub(super) fn not_opened(error: OpenError, replayable: bool) -> Failure {
    Failure {
        retryable: replayable && error != OpenError::TooLarge,
        unprocessed: true,
        ..Failure::new(Party::Server, Cause::Open(error))
    }
}

/// Which side is blamed for a stall. `blocked` is the side that does not read the bytes that are ready for it. `waits`
/// says that the server has received all of the request and has not begun to respond. As long as the request is
/// incomplete, the server may be waiting for the client and is not blamed.
pub(super) fn stall_blame(blocked: Option<Party>, waits: bool) -> Party {
    blocked.unwrap_or(if waits { Party::Server } else { Party::Us })
}

/// The failure of an exchange that has taken too long. If `is_late` is true, its response did not begin in time;
/// otherwise its deadline has passed. `of_server` says that the server is blamed, because it has not begun to respond
/// or because it reads no bytes. The server is blamed even if the request is incomplete: it can respond to a stream of
/// messages, or to a body that waits for a 100, before the request ends. `replayable` says that the request is still
/// held.
pub(super) fn timed_out(is_late: bool, of_server: bool, replayable: bool) -> Failure {
    let place = if of_server { Party::Server } else { Party::Us };
    let cause = if is_late { Cause::Late } else { Cause::Deadline };
    Failure { retryable: is_late && replayable, ..Failure::new(place, cause) }
}

/// Fails if the connection to the client or to the server seems to be lost, for example because the other machine is
/// down. `replayable` says that no part of a response was received and that the request is still held.
pub(super) fn lost(client: bool, server: bool, replayable: bool) -> Result<(), Failure> {
    let place = match (client, server) {
        (false, false) => return Ok(()),
        (true, _) => Party::Client,
        (_, true) => Party::Server,
    };
    let failure = Failure::new(place, Cause::Broken(io::ErrorKind::TimedOut.into()));
    Err(Failure { retryable: replayable && place == Party::Server, ..failure })
}

/// The failure of an upgraded connection that has lasted as long as it may.
pub(super) fn outlasted() -> Failure {
    Failure::new(Party::Us, Cause::Outlasted)
}

/// Fails if one of two linked streams ended early. Streams are linked if the connections pass the frames of each
/// directly to the other.
pub(super) fn linked(linked: &Linked, is_mesh: bool) -> Result<(), Failure> {
    match (linked.client, linked.server) {
        // If one stream is reset, the proxy resets the other. So the stream that the proxy did not reset shows the
        // reason.
        (Some(client), _) if client.by != ResetBy::Us => Err(client_reset(client)),
        // A stall of the server's stream resets the client's stream with the same code, so both look like stalls. The
        // server's stream is therefore checked first.
        (_, Some(server)) if server.is_stall() => Err(server_reset(server, false, is_mesh)),
        (Some(client), _) if client.is_stall() => Err(client_reset(client)),
        (_, Some(server)) if server.code != Code::NO_ERROR => {
            Err(server_reset(server, false, is_mesh))
        }
        (Some(client), _) if client.code != Code::NO_ERROR => Err(client_reset(client)),
        _ => Ok(()),
    }
}
