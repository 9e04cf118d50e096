//! The bounds of a webhook, by raw requests, in the runtime's own time.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

/// Bytes on their way between the two ends.
const BUFFER: usize = 64 << 10;

fn webhook() -> Arc<Webhook> {
    Arc::new(Webhook::new(Settings::default(), Arc::default()))
}

/// A connection on which this was sent.
async fn sent(webhook: &Arc<Webhook>, text: &str) -> DuplexStream {
    let (mut client, server) = duplex(BUFFER);
    tokio::spawn(exchange(server, Arc::clone(webhook)));
    client.write_all(text.as_bytes()).await.unwrap();
    client
}

fn head(length: usize) -> String {
    format!(
        "POST /validate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}

async fn answer(mut client: DuplexStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The answer to a review that is whole.
async fn reviewed(webhook: &Arc<Webhook>) -> String {
    let review = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": {
        "apiVersion": "leno.dev/v1alpha1", "kind": "TrafficPolicy", "metadata": {"name": "p"}}}}"#;
    answer(sent(webhook, &(head(review.len()) + review)).await).await
}

#[tokio::test(start_paused = true)]
async fn a_body_has_a_size_and_a_time() {
    let webhook = webhook();
    let large = answer(sent(&webhook, &head(MAX_BODY + 1)).await).await;
    assert!(large.starts_with("HTTP/1.1 413"), "{large}");
    for length in [10, MAX_BODY] {
        let begin = tokio::time::Instant::now();
        let slow = answer(sent(&webhook, &head(length)).await).await;
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        assert!(begin.elapsed() >= BODY_TIMEOUT && begin.elapsed() < REVIEW_TIMEOUT);
    }
    let begin = tokio::time::Instant::now();
    assert_eq!(answer(sent(&webhook, "POST /validate HTTP/1.1\r\n").await).await, "");
    assert!(begin.elapsed() < HEAD_TIMEOUT, "a first head has less time than an idle connection");
}

#[tokio::test(start_paused = true)]
async fn a_connection_to_a_replica_that_ends_is_not_kept() {
    let webhook = webhook();
    let kept = "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let mut client = sent(&webhook, kept).await;
    let mut first = Vec::new();
    while !first.ends_with(b"use /inject or /validate\n") {
        assert!(client.read_buf(&mut first).await.unwrap() > 0, "it ends");
    }
    let first = String::from_utf8_lossy(&first);
    assert!(first.starts_with("HTTP/1.1 404") && !first.contains("connection: close"), "{first}");
    webhook.end();
    client.write_all(kept.as_bytes()).await.unwrap();
    let last = answer(client).await;
    assert!(last.starts_with("HTTP/1.1 404") && last.contains("connection: close"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn bodies_that_do_not_come_keep_no_review_waiting() {
    let webhook = webhook();
    let mut stalled = Vec::new();
    for length in [10, MAX_BODY] {
        for _ in 0..4 * MAX_REVIEWS {
            stalled.push(sent(&webhook, &head(length)).await);
        }
    }
    let begin = tokio::time::Instant::now();
    let answered = reviewed(&webhook).await;
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    assert!(begin.elapsed() < BODY_TIMEOUT, "it waited for {:?}", begin.elapsed());
    drop(stalled);
}
