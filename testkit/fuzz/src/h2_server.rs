//! Sends raw frames of a client both to Leno's HTTP/2 server and to that of the `h2` crate. Both must see the same
//! requests.
//!
//! If only one of them accepts a request, the other must have refused it with RST_STREAM or GOAWAY.
//! If both accept it, its heads, bodies and trailers are equal.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use leno_h2::Head;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::{spawn_local, yield_now};

use crate::quiet::{self, PIPE};

/// The preface (RFC 9113 section 3.4), and an empty SETTINGS frame.
const OPENING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The limits that both servers have.
const MAX_STREAMS: u32 = 100;
const MAX_LIST: u32 = 16 * 1024;

/// A request, as far as it was received.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReceivedRequest {
    head: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Vec<(Vec<u8>, Vec<u8>)>,
    ended: bool,
}

type Requests = Rc<RefCell<BTreeMap<u32, ReceivedRequest>>>;

/// The streams that one side has refused or cancelled.
#[derive(Debug, Default)]
struct CancelledStreams {
    streams: BTreeSet<u32>,
    goaway: bool,
}

/// Runs the target. The first byte selects the size of the pieces in which Leno's server gets the rest.
pub(crate) fn run(bytes: &[u8]) {
    let Some((&first, frames)) = bytes.split_first() else { return };
    let wire = [OPENING, frames].concat();
    let (ours, our_refused) = quiet::run(ours(&wire, usize::from(first) * 8 + 1));
    let (theirs, their_refused) = quiet::run(theirs(&wire));
    // Neither server needs to see a request that the client itself has cancelled.
    let given_up = refusals(frames);
    for (id, request) in ours.iter().filter(|(id, _)| !refused(&given_up, **id)) {
        match theirs.get(id) {
            Some(other) => same(*id, request, other),
            None => assert!(refused(&their_refused, *id), "only ours has {id}: {request:?}"),
        }
    }
    for (id, request) in theirs.iter().filter(|(id, _)| !refused(&given_up, **id)) {
        let known = ours.contains_key(id) || refused(&our_refused, *id);
        assert!(known, "only theirs has {id}: {request:?}");
    }
}

fn refused(refused: &CancelledStreams, id: u32) -> bool {
    refused.goaway || refused.streams.contains(&id)
}

fn same(id: u32, ours: &ReceivedRequest, theirs: &ReceivedRequest) {
    assert_eq!(told(&ours.head), told(&theirs.head), "stream {id}");
    let common = ours.body.len().min(theirs.body.len());
    assert_eq!(ours.body[..common], theirs.body[..common], "stream {id}");
    if ours.ended && theirs.ended {
        assert_eq!(ours.body.len(), theirs.body.len(), "stream {id}");
        assert_eq!(ours.trailers, theirs.trailers, "stream {id}");
    }
}

/// The fields of a head that both servers report: the `http` crate drops the scheme if there is no
/// authority.
fn told(head: &[(Vec<u8>, Vec<u8>)]) -> Vec<&(Vec<u8>, Vec<u8>)> {
    let has_authority = head.iter().any(|(name, _)| name == b":authority");
    head.iter().filter(|(name, _)| has_authority || name != b":scheme").collect()
}

async fn ours(wire: &[u8], step: usize) -> (BTreeMap<u32, ReceivedRequest>, CancelledStreams) {
    let limits = leno_h2::Limits {
        concurrent_streams: MAX_STREAMS,
        header_list_bytes: MAX_LIST,
        ..leno_h2::Limits::default()
    };
    let (near, far) = duplex(PIPE);
    let (mut accept, driver) = leno_h2::server(near, &[], &Rc::new(limits));
    spawn_local(driver.run());
    let requests = Requests::default();
    let seen = Rc::clone(&requests);
    spawn_local(async move {
        while let Some(request) = accept.accept().await {
            let id = request.stream.id();
            let head = sorted(&request.head);
            seen.borrow_mut().insert(id, ReceivedRequest { head, ..ReceivedRequest::default() });
            spawn_local(read_ours(request.stream, Rc::clone(&seen)));
        }
    });
    let said = talk(far, wire, step).await;
    (requests.take(), said)
}

async fn read_ours(mut stream: leno_h2::Stream, requests: Requests) {
    let id = stream.id();
    loop {
        match stream.data().await {
            Ok(Some(piece)) => {
                stream.release(piece.len());
                with(&requests, id, |seen| seen.body.extend_from_slice(&piece));
            }
            Ok(None) => break,
            Err(_) => return,
        }
    }
    let trailers = stream.trailers().map(|trailers| sorted(&trailers)).unwrap_or_default();
    with(&requests, id, |seen| (seen.trailers, seen.ended) = (trailers, true));
    // Dropping the stream now would reset it, so this waits.
    stream.closed().await;
}

async fn theirs(wire: &[u8]) -> (BTreeMap<u32, ReceivedRequest>, CancelledStreams) {
    let (near, far) = duplex(PIPE);
    let requests = Requests::default();
    let seen = Rc::clone(&requests);
    spawn_local(async move {
        let mut builder = h2::server::Builder::new();
        builder.max_concurrent_streams(MAX_STREAMS).max_header_list_size(MAX_LIST);
        builder.initial_window_size(256 * 1024).initial_connection_window_size(1024 * 1024);
        let Ok(mut connection) =
            builder.enable_connect_protocol().handshake::<_, bytes::Bytes>(near).await
        else {
            return;
        };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let (parts, body) = request.into_parts();
            let id: u32 = body.stream_id().into();
            seen.borrow_mut()
                .insert(id, ReceivedRequest { head: fields(&parts), ..ReceivedRequest::default() });
            spawn_local(read_theirs(body, respond, Rc::clone(&seen)));
        }
    });
    let said = talk(far, wire, usize::MAX).await;
    (requests.take(), said)
}

async fn read_theirs(
    mut body: h2::RecvStream,
    mut respond: h2::server::SendResponse<bytes::Bytes>,
    requests: Requests,
) {
    let id: u32 = body.stream_id().into();
    while let Some(piece) = body.data().await {
        let Ok(piece) = piece else { return };
        // Fails only if the stream has ended.
        let _ended = body.flow_control().release_capacity(piece.len());
        with(&requests, id, |seen| seen.body.extend_from_slice(&piece));
    }
    let Ok(trailers) = body.trailers().await else { return };
    let trailers = trailers.map(|map| of_map(&map)).unwrap_or_default();
    with(&requests, id, |seen| (seen.trailers, seen.ended) = (trailers, true));
    // Dropping the stream now would reset it, so this waits.
    let _reset = std::future::poll_fn(|cx| respond.poll_reset(cx)).await;
}

fn with(requests: &Requests, id: u32, change: impl FnOnce(&mut ReceivedRequest)) {
    change(requests.borrow_mut().get_mut(&id).expect("put in before it is read"));
}

/// Sends `wire` in pieces, and reads the replies until nothing moves any more.
async fn talk(far: DuplexStream, wire: &[u8], step: usize) -> CancelledStreams {
    let (mut read, mut write) = tokio::io::split(far);
    for piece in wire.chunks(step) {
        if write.write_all(piece).await.is_err() {
            break;
        }
        yield_now().await;
        yield_now().await;
    }
    quiet::settle().await;
    // Reads what has arrived, without waiting for more.
    let mut said = Vec::new();
    let mut chunk = vec![0; PIPE];
    while let Some(Ok(count @ 1..)) = now_or_never(read.read(&mut chunk)).await {
        said.extend_from_slice(&chunk[..count]);
    }
    refusals(&said)
}

/// The future's output if it is ready at once.
async fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        std::task::Poll::Ready(outcome) => std::task::Poll::Ready(Some(outcome)),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

/// The RST_STREAM and GOAWAY frames in a sequence of frames (RFC 9113 section 4.1).
fn refusals(mut frames: &[u8]) -> CancelledStreams {
    let mut refused = CancelledStreams::default();
    while let Some((header, rest)) = frames.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let id = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
        match header[3] {
            3 => drop(refused.streams.insert(id)),
            7 => refused.goaway = true,
            _ => {}
        }
        frames = rest.get(length..).unwrap_or_default();
    }
    refused
}

/// The fields sorted, because the other implementation does not keep their order.
fn sorted(head: &Head) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields: Vec<_> =
        head.iter().map(|field| (field.name().to_vec(), field.value().to_vec())).collect();
    fields.sort();
    fields
}

fn of_map(map: &http::HeaderMap) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields: Vec<_> = map
        .iter()
        .map(|(name, value)| (name.as_str().as_bytes().to_vec(), value.as_bytes().to_vec()))
        .collect();
    fields.sort();
    fields
}

fn fields(parts: &http::request::Parts) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut fields = of_map(&parts.headers);
    let mut push = |name: &str, value: &str| fields.push((name.into(), value.into()));
    push(":method", parts.method.as_str());
    if let Some(scheme) = parts.uri.scheme_str() {
        push(":scheme", scheme);
    }
    if let Some(authority) = parts.uri.authority() {
        push(":authority", authority.as_str());
    }
    if let Some(path) = parts.uri.path_and_query() {
        push(":path", path.as_str());
    }
    if let Some(protocol) = parts.extensions.get::<h2::ext::Protocol>() {
        push(":protocol", protocol.as_str());
    }
    fields.sort();
    fields
}
