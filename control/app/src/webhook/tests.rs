//! Tests the bounds of a webhook with raw requests. The runtime's clock is paused.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

/// Most reviews of objects that wait in the queue.
const QUEUED: u64 = 256;
const SECRET: &str = "0123";
/// How many bytes can be in flight between the two ends.
const BUFFER: usize = 64 << 10;

fn webhook() -> Arc<Webhook> {
    Arc::new(Webhook::new(InjectionSettings::default(), Arc::default(), SECRET))
}

/// Opens a connection and sends this text.
async fn sent(webhook: &Arc<Webhook>, text: &str) -> DuplexStream {
    let (mut client, server) = duplex(BUFFER);
    tokio::spawn(exchange(server, Arc::clone(webhook)));
    client.write_all(text.as_bytes()).await.unwrap();
    client
}

fn head(length: usize) -> String {
    head_of(VALIDATE, length)
}

fn head_of(path: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    )
}

async fn answer(mut client: DuplexStream) -> String {
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    answer
}

/// The response to a complete review.
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
        for _ in 0..64 {
            stalled.push(sent(&webhook, &head(length)).await);
        }
    }
    let begin = tokio::time::Instant::now();
    let answered = reviewed(&webhook).await;
    assert!(answered.starts_with("HTTP/1.1 200"), "{answered}");
    assert!(begin.elapsed() < BODY_TIMEOUT, "it waited for {:?}", begin.elapsed());
    drop(stalled);
}

/// Many clients may have objects validated at once, and validation takes time. Pods must be created nevertheless.
#[tokio::test(start_paused = true)]
async fn validation_that_takes_its_time_keeps_no_pod_waiting() {
    let webhook = webhook();
    let namespace =
        leno_resources::parse("", "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    let namespace = namespace.unwrap().objects.remove(0).value;
    webhook.stored.note(&[leno_index::ObjectChange::Upsert(namespace)]);
    // Holds all permits for validation, so that no validation proceeds.
    let lane = &webhook.lanes[ReviewKind::Validate as usize];
    let mut turns = Vec::new();
    while let Ok(turn) = Arc::clone(&lane.turns).try_acquire_owned() {
        turns.push(turn);
    }
    let policy = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "shop",
        "object": {"apiVersion": "leno.dev/v1alpha1", "kind": "TrafficPolicy", "metadata": {"name": "p"}}}}"#;
    let path = format!("{VALIDATE}/{SECRET}");
    let mut asked = Vec::new();
    for _ in 0..300 {
        asked.push(sent(&webhook, &(head_of(&path, policy.len()) + policy)).await);
    }
    let pod = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "shop",
        "object": {"spec": {"containers": [{"name": "web"}]}}}}"#;
    let begin = tokio::time::Instant::now();
    let path = format!("{INJECT}/{SECRET}");
    let injected = answer(sent(&webhook, &(head_of(&path, pod.len()) + pod)).await).await;
    assert!(injected.contains("JSONPatch"), "{injected}");
    assert!(begin.elapsed() < Duration::from_secs(1), "it waited for {:?}", begin.elapsed());
    // The queue is bounded, and a review that finds it full is rejected at once.
    let busy = webhook.counts[ReviewKind::Validate as usize].busy.load(Ordering::Relaxed);
    assert_eq!(busy, 300 - QUEUED);
    drop(turns);
    let first = answer(asked.remove(0)).await;
    assert!(first.starts_with("HTTP/1.1 200"), "{first}");
}

/// A pod connects and requests injections all the time: for pods in namespaces that do not exist, and with large
/// bodies that it does not send.
#[tokio::test(start_paused = true)]
async fn a_stranger_that_asks_for_injection_keeps_no_pod_of_the_api_server_waiting() {
    let webhook = webhook();
    let namespace =
        leno_resources::parse("", "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}");
    let namespace = namespace.unwrap().objects.remove(0).value;
    webhook.stored.note(&[leno_index::ObjectChange::Upsert(namespace)]);
    let lane = &webhook.lanes[ReviewKind::UnprovenInject as usize];
    let mut turns = Vec::new();
    while let Ok(turn) = Arc::clone(&lane.turns).try_acquire_owned() {
        turns.push(turn);
    }
    let pod = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "shop",
        "object": {"spec": {"containers": [{"name": "web"}]}}}}"#;
    let mut stranger = Vec::new();
    for _ in 0..400 {
        stranger.push(sent(&webhook, &(head_of(INJECT, pod.len()) + pod)).await);
        stranger.push(sent(&webhook, &head_of(INJECT, MAX_BODY)).await);
    }
    let begin = tokio::time::Instant::now();
    let path = format!("{INJECT}/{SECRET}");
    let injected = answer(sent(&webhook, &(head_of(&path, pod.len()) + pod)).await).await;
    assert!(injected.contains("JSONPatch"), "{injected}");
    assert!(begin.elapsed() < Duration::from_secs(1), "it waited for {:?}", begin.elapsed());
    assert!(webhook.counts[ReviewKind::UnprovenInject as usize].busy.load(Ordering::Relaxed) > 0);
    assert_eq!(webhook.counts[ReviewKind::Inject as usize].busy.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn no_work_goes_on_for_a_review_that_is_not_waited_for() {
    let webhook = webhook();
    let lane = &webhook.lanes[ReviewKind::Validate as usize];
    let turns = lane.turns.available_permits() as u32;
    let all = Arc::clone(&lane.turns).acquire_many_owned(turns).await.unwrap();
    let policy = br#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "object": {}}}"#;
    let path = format!("{VALIDATE}/{SECRET}");
    let head = head_of(&path, policy.len()) + std::str::from_utf8(policy).unwrap();
    let late = answer(sent(&webhook, &head).await).await;
    assert!(late.starts_with("HTTP/1.1 503"), "{late}");
    drop(all);
    assert_eq!(lane.turns.available_permits() as u32, turns, "it left the queue");
    let cancel = Cancel::default();
    let flag = Arc::clone(&cancel.0);
    drop(cancel);
    assert!(flag.load(Ordering::Relaxed), "a thread that works for it is told to stop");
}

/// The caller may name any namespace, so the answer must depend only on the object itself.
#[tokio::test(start_paused = true)]
async fn a_caller_that_is_not_the_api_server_learns_nothing_of_the_cluster() {
    let webhook = webhook();
    let policy = r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "bank",
        "object": {"apiVersion": "leno.dev/v1alpha1", "kind": "TrafficPolicy",
        "metadata": {"name": "p", "namespace": "bank"}, "spec": {"timeouts": {"request": "1s"},
        "targetRefs": [{"group": "", "kind": "Service", "name": "vault"}]}}}}"#;
    let told = async |path: &str| {
        answer(sent(&webhook, &(head_of(path, policy.len()) + policy)).await).await
    };
    let unproven = told(VALIDATE).await;
    assert!(unproven.contains("\"allowed\":true") && !unproven.contains("warnings"), "{unproven}");
    let proven = told(&format!("{VALIDATE}/{SECRET}")).await;
    assert!(proven.contains("target-not-found"), "{proven}");
    let guessed = told(&format!("{VALIDATE}/0124")).await;
    assert!(guessed.starts_with("HTTP/1.1 404"), "{guessed}");
}
