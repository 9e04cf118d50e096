//! A relayed exchange in steady state allocates nothing.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::pin::pin;
use std::rc::Rc;

use leno_h2::{Accept, Client, Limits, forward, link};
use leno_hpack::{Block, Encoder};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../../../testkit/counting.rs"]
mod counting;

use counting::ALLOCATIONS;

const ROUNDS: u32 = 40;
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 0, 0, 0, 0];

fn frame(kind: u8, flags: u8, id: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend([kind, flags]);
    out.extend(id.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The frames of each round: HEADERS, DATA of this length, trailers. If `is_traced`, each head ends with a
/// `traceparent` of its own.
fn messages((head, is_traced): (&[(&str, &str)], bool), body: usize) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(4096);
    let mut section = |fields: &[(&str, &str)]| {
        let mut out = vec![];
        encoder.encode(&fields.iter().copied().collect::<Block>(), &mut out);
        out
    };
    (0..ROUNDS)
        .map(|round| {
            let id = round * 2 + 1;
            let mut bytes = vec![];
            let trace = format!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{round:02}");
            let head = [head, &[("traceparent", &trace)]].concat();
            frame(1, 4, id, &section(&head[..head.len() - usize::from(!is_traced)]), &mut bytes);
            for part in vec![b'x'; body].chunks(16_384) {
                frame(0, 0, id, part, &mut bytes);
            }
            frame(1, 5, id, &section(&[("grpc-status", "0")]), &mut bytes);
            bytes
        })
        .collect()
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    far.set_nodelay(true).unwrap();
    near.set_nodelay(true).unwrap();
    (far, near)
}

async fn relay_one(accept: &mut Accept, client: &Client) {
    let request = accept.accept().await.unwrap();
    let mut near = request.stream;
    let mut far = client.open(&request.head, request.ended).unwrap();
    drop(request.head);
    forward(&near, &far);
    let head = far.head().await.unwrap();
    assert!(near.send_head(&head, far.is_ended_without_rest()));
    drop(head);
    let linked = link(near, far).await;
    assert!(linked.client.is_none() && linked.server.is_none());
}

/// Reads until the trailers arrive, which are HEADERS with the flags END_HEADERS and END_STREAM.
async fn read_message(io: &mut TcpStream, space: &mut [u8]) {
    loop {
        io.read_exact(&mut space[..9]).await.unwrap();
        let len = u32::from_be_bytes([0, space[0], space[1], space[2]]) as usize;
        let last = space[3] == 1 && space[4] == 5;
        io.read_exact(&mut space[..len]).await.unwrap();
        if last {
            return;
        }
    }
}

/// The number of allocations in each round.
async fn rounds(body: usize, is_traced: bool) -> Vec<u64> {
    let limits = Rc::new(Limits::default());
    let (mut user, near) = pair().await;
    let (mut application, far) = pair().await;
    let (mut accept, server_driver) = leno_h2::server(near, &[], &limits);
    let (client, client_driver) = leno_h2::client(far, &limits);
    let mut drivers = pin!(async { tokio::join!(server_driver, client_driver) });
    let post = [(":method", "POST"), (":scheme", "http"), (":path", "/a.b/C"), (":authority", "a")];
    let requests = messages((&post, is_traced), body);
    let responses =
        messages((&[(":status", "200"), ("content-type", "application/grpc")], false), body);
    let mut counts = Vec::with_capacity(ROUNDS as usize);
    let (mut theirs, mut ours) = (vec![0; 1 << 17], vec![0; 1 << 17]);
    let exchanges = async {
        user.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        user.write_all(SETTINGS).await.unwrap();
        application.write_all(SETTINGS).await.unwrap();
        application.read_exact(&mut theirs[..24]).await.unwrap();
        for (request, response) in requests.iter().zip(&responses) {
            let before = ALLOCATIONS.get();
            let peers = async {
                user.write_all(request).await.unwrap();
                read_message(&mut application, &mut theirs).await;
                application.write_all(response).await.unwrap();
                read_message(&mut user, &mut ours).await;
            };
            tokio::join!(relay_one(&mut accept, &client), peers);
            counts.push(ALLOCATIONS.get() - before);
            // Gives back the credit for everything that was read, so that the windows never close.
            let mut credit = vec![];
            frame(8, 0, 0, &(body as u32).max(1).to_be_bytes(), &mut credit);
            user.write_all(&credit).await.unwrap();
            application.write_all(&credit).await.unwrap();
        }
    };
    tokio::select! {
        () = exchanges => {}
        ended = &mut drivers => panic!("{ended:?}"),
    }
    counts
}

#[test]
fn a_steady_relay_allocates_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bodies = [0, 100, 1024, 10_000, 60_000].map(|body| (body, false));
    for (body, is_traced) in bodies.into_iter().chain([(100, true)]) {
        let counts = runtime.block_on(rounds(body, is_traced));
        // The first rounds allocate the buffers, the slots and the timer.
        assert_eq!(counts[20..], vec![0; counts.len() - 20], "{body}: {counts:?}");
    }
}
