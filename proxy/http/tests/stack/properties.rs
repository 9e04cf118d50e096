//! Checks that both sides see the same, however the bytes are split on the way.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use crate::support::{Lab, Settings};

#[derive(Debug, Clone)]
struct Message {
    head: String,
    body: Vec<u8>,
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        [self.head.as_bytes(), &self.body].concat()
    }
}

fn body() -> impl Strategy<Value = (String, Vec<u8>)> {
    let content = || prop::collection::vec(any::<u8>(), 0..6000);
    prop_oneof![
        content().prop_map(|bytes| (format!("Content-Length: {}\r\n", bytes.len()), bytes)),
        (prop::collection::vec(prop::collection::vec(any::<u8>(), 1..900), 0..6), any::<bool>())
            .prop_map(|(chunks, trailers)| {
                let mut bytes = vec![];
                for chunk in chunks {
                    bytes.extend(format!("{:X}\r\n", chunk.len()).bytes());
                    bytes.extend(chunk);
                    bytes.extend(b"\r\n");
                }
                bytes.extend(if trailers { &b"0\r\nSum: 1\r\n\r\n"[..] } else { b"0\r\n\r\n" });
                ("Transfer-Encoding: chunked\r\n".to_owned(), bytes)
            }),
    ]
}

fn exchange() -> impl Strategy<Value = (Message, Message)> {
    let filler = prop_oneof![3 => 0usize..50, 1 => 3000usize..9000];
    let request = (body(), filler.clone()).prop_map(|((framing, body), filler)| Message {
        head: format!("POST /{} HTTP/1.1\r\nhost: a\r\n{framing}X: y\r\n\r\n", "p".repeat(filler)),
        body,
    });
    let response = (body(), filler).prop_map(|((framing, body), filler)| Message {
        head: format!("HTTP/1.1 200 OK\r\nF: {}\r\n{framing}\r\n", "f".repeat(filler)),
        body,
    });
    (request, response)
}

/// Sends `bytes` in pieces that end at the cuts, and lets other tasks run in between.
async fn send(writer: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8], cuts: &[usize]) {
    let mut at = 0;
    for cut in cuts.iter().copied().cycle().take(bytes.len()) {
        let end = bytes.len().min(at + cut);
        writer.write_all(&bytes[at..end]).await.unwrap();
        tokio::task::yield_now().await;
        at = end;
    }
    writer.write_all(&bytes[at..]).await.unwrap();
}

async fn run(exchanges: Vec<(Message, Message)>, up: Vec<usize>, down: Vec<usize>, pipe: usize) {
    let mut lab = Lab::new(Settings { pipe, ..Settings::default() });
    let requests: Vec<u8> = exchanges.iter().flat_map(|(request, _)| request.bytes()).collect();
    let responses: Vec<u8> = exchanges.iter().flat_map(|(_, response)| response.bytes()).collect();
    let Lab { client, servers, done } = &mut lab;
    let (mut from_proxy, mut to_proxy) = split(&mut client.0);
    let client = async {
        let sending = send(&mut to_proxy, &requests, &up);
        let mut got = vec![0; responses.len()];
        let receiving = from_proxy.read_exact(&mut got);
        let ((), received) = tokio::join!(sending, receiving);
        received.unwrap();
        assert!(got == responses, "responses changed on the way");
    };
    let server = async {
        let mut server = servers.recv().await.unwrap();
        for (request, response) in &exchanges {
            let mut got = vec![0; request.bytes().len()];
            server.read_exact(&mut got).await.unwrap();
            assert!(got == request.bytes(), "a request changed on the way");
            send(&mut server, &response.bytes(), &down).await;
        }
        server
    };
    let ((), _server) = tokio::join!(client, server);
    for (request, response) in &exchanges {
        let done = done.recv().await.unwrap();
        assert!(done.failure.is_none() && done.client_reusable && done.server_reusable);
        assert_eq!(done.request_bytes, request.bytes().len() as u64);
        assert_eq!(done.response_bytes, response.bytes().len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_way_the_bytes_are_split_makes_no_difference(
        exchanges in prop::collection::vec(exchange(), 1..4),
        up in prop::collection::vec(prop_oneof![1usize..4, 1usize..2000], 1..6),
        down in prop::collection::vec(prop_oneof![1usize..4, 1usize..2000], 1..6),
        pipe in prop_oneof![1usize..20, 500usize..5000, Just(1 << 20)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(exchanges, up, down, pipe));
    }
}
