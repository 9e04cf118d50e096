//! Tests watches of a scripted server. Each request arrives on a separate connection.

use k8s_openapi::api::core::v1::ConfigMap;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::connect_to;

/// The event that ends a streamed list.
const LISTED: &str = r#"{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{
    "resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
const ADDED: &str = r#"{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{
    "name":"one","namespace":"n","resourceVersion":"6"}}}"#;
const EXPIRED: &str = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1",
    "status":"Failure","message":"too old resource version","reason":"Expired","code":410}}"#;
const LIST: &str = r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},
    "items":[{"metadata":{"name":"one","namespace":"n","resourceVersion":"6"}}]}"#;

struct Server(TcpListener);

impl Server {
    async fn start(
        selection: WatchSelection,
    ) -> (Self, BoxStream<'static, WatchReport<ConfigMap>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let client = connect_to(address.parse().unwrap()).unwrap();
        (Self(listener), watch(Api::all(client), selection).boxed())
    }

    /// Answers the next request with these documents, one per line. Returns the target of the request.
    async fn answer(&self, status: &str, documents: &[&str]) -> String {
        let (mut stream, _) = self.0.accept().await.unwrap();
        let target = target(&mut stream).await;
        let lines: String = documents.iter().map(|one| one.replace('\n', "") + "\n").collect();
        let head = "content-type: application/json\r\nconnection: close";
        let answer = format!("HTTP/1.1 {status}\r\n{head}\r\n\r\n{lines}");
        stream.write_all(answer.as_bytes()).await.unwrap();
        target
    }

    async fn refuse(&self, code: u16) -> String {
        let status = format!(
            r#"{{"kind":"Status","apiVersion":"v1","status":"Failure","message":"no","code":{code}}}"#
        );
        self.answer(&format!("{code} No"), &[&status]).await
    }
}

async fn target(stream: &mut TcpStream) -> String {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next_line().await.unwrap().unwrap();
    while lines.next_line().await.unwrap().is_some_and(|line| !line.is_empty()) {}
    first.split(' ').nth(1).unwrap().to_owned()
}

/// The events up to the end of a list, as their kind and the object's name.
async fn listed(reports: &mut BoxStream<'static, WatchReport<ConfigMap>>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match reports.next().await.unwrap() {
            WatchReport::Event(Event::Init) => all.clear(),
            WatchReport::Event(Event::InitApply(map)) => all.push(map.metadata.name.unwrap()),
            WatchReport::Event(Event::InitDone) => return all,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_version_that_has_expired_is_listed_again_without_a_failure() {
    let (server, mut reports) = Server::start(WatchSelection::default()).await;
    let first = server.answer("200 OK", &[ADDED, LISTED, EXPIRED]);
    let (first, all) = tokio::join!(first, listed(&mut reports));
    assert!(first.contains("sendInitialEvents=true") && !first.contains("limit"), "{first}");
    assert_eq!(all, ["one"]);
    let (second, all) = tokio::join!(server.answer("200 OK", &[LISTED]), listed(&mut reports));
    assert!(second.contains("sendInitialEvents=true"), "{second}");
    assert_eq!(all, [""; 0]);
}

#[tokio::test]
async fn a_watch_that_is_cut_goes_on_from_its_last_version() {
    let (server, mut reports) = Server::start(WatchSelection::default()).await;
    let (_, all) = tokio::join!(server.answer("200 OK", &[ADDED, LISTED]), listed(&mut reports));
    assert_eq!(all, ["one"]);
    let next = async { reports.next().await.unwrap() };
    let (second, report) = tokio::join!(server.refuse(503), next);
    assert!(second.contains("resourceVersion=7") && !second.contains("sendInitial"), "{second}");
    assert!(matches!(report, WatchReport::Failed(_)), "{report:?}");
    let next = async { reports.next().await.unwrap() };
    let (third, report) = tokio::join!(server.answer("200 OK", &[ADDED]), next);
    assert!(third.contains("resourceVersion=7") && !third.contains("sendInitial"), "{third}");
    assert!(matches!(report, WatchReport::Event(Event::Apply(_))), "{report:?}");
}

#[tokio::test]
async fn a_server_that_cannot_stream_lists_is_asked_for_pages_or_for_the_list_of_its_cache() {
    let few = WatchSelection { fields: "spec.nodeName=n1".to_owned(), ..WatchSelection::default() };
    for (selection, expected) in
        [(WatchSelection::default(), "limit=500"), (few, "resourceVersion=0")]
    {
        let (server, mut reports) = Server::start(selection).await;
        let requests = async {
            server.refuse(422).await;
            server.answer("200 OK", &[LIST]).await
        };
        let (second, all) = tokio::join!(requests, listed(&mut reports));
        assert!(second.contains(expected) && !second.contains("watch"), "{second}");
        assert_eq!(all, ["one"]);
    }
}

#[tokio::test]
async fn a_server_that_fails_every_stream_of_a_kind_is_asked_why_by_a_list() {
    let (server, mut reports) = Server::start(WatchSelection::default()).await;
    loop {
        let next = async {
            loop {
                // `Init` is reported before the first page is requested.
                match reports.next().await.unwrap() {
                    WatchReport::Event(Event::Init) => {}
                    other => return other,
                }
            }
        };
        let (request, report) = tokio::join!(server.refuse(429), next);
        assert!(matches!(report, WatchReport::Failed(_)), "{report:?}");
        if !request.contains("sendInitialEvents=true") {
            break;
        }
    }
    let (request, all) = tokio::join!(server.answer("200 OK", &[LIST]), listed(&mut reports));
    assert!(request.contains("limit=500"), "{request}");
    assert_eq!(all, ["one"]);
}

/// A watch that has not sent a request yet.
fn idle() -> Watch<ConfigMap> {
    let client = connect_to("http://127.0.0.1:1".parse().unwrap()).unwrap();
    Watch::new(Api::all(client), WatchSelection::default())
}

/// The server's answer to a request. 0 seconds means that it does not name a time for the next request.
fn answer(code: u16, seconds: u32) -> WatchError {
    let text = format!(
        r#"{{"status":"Failure","code":{code},"details":{{"retryAfterSeconds":{seconds}}}}}"#
    );
    let status: kube::core::Status = serde_json::from_str(&text).unwrap();
    WatchError::WatchStartFailed(kube::Error::Api(Box::new(status)))
}

/// Refuses streamed lists until the watch requests pages. Returns how long that took.
async fn refused(watch: &mut Watch<ConfigMap>, seconds: u32) -> Duration {
    let begin = Instant::now();
    while watch.streams {
        assert!(matches!(watch.failed(answer(429, seconds)), Some(WatchReport::Failed(_))));
        tokio::time::advance(watch.wait.take().unwrap()).await;
    }
    begin.elapsed()
}

/// A controller that starts waits only 15 s for the list of a kind, so pages must be requested long before.
#[tokio::test(start_paused = true)]
async fn a_first_list_is_no_stream_any_more_long_before_a_controller_serves_without_it() {
    for seconds in [0, 1, 60] {
        let waited = refused(&mut idle(), seconds).await;
        assert!(waited >= FIRST_PATIENCE, "with {seconds} s: {waited:?}");
        assert!(waited < Duration::from_secs(8), "with {seconds} s: {waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_later_list_is_a_stream_again_and_for_longer() {
    let mut watch = idle();
    refused(&mut watch, 1).await;
    watch.event(Event::InitDone);
    for _ in 0..3 {
        assert!(watch.failed(answer(410, 0)).is_none());
        assert!(watch.streams && watch.listing, "streams have ended for good");
        let waited = refused(&mut watch, 1).await;
        assert!(waited >= PATIENCE, "refusals of before the version expired count: {waited:?}");
        watch.event(Event::InitDone);
    }
    assert!(watch.failed(answer(410, 0)).is_none());
    watch.failed(answer(422, 0));
    watch.event(Event::InitDone);
    assert!(watch.failed(answer(410, 0)).is_none());
    assert!(!watch.streams, "the server has no streams");
}

#[tokio::test(start_paused = true)]
async fn an_outage_between_two_refusals_is_no_refusal() {
    let mut watch = idle();
    let unreachable = || kube::Error::Service("connection refused".into());
    for _ in 0..5 {
        watch.failed(answer(429, 1));
        tokio::time::advance(FIRST_PATIENCE).await;
        watch.failed(WatchError::WatchStartFailed(unreachable()));
        tokio::time::advance(FIRST_PATIENCE).await;
    }
    assert!(watch.streams);
}

#[test]
fn a_server_says_when_to_ask_again() {
    assert_eq!(retry_after(&answer(429, 1)), Some(Duration::from_secs(1)));
    assert_eq!(retry_after(&answer(429, 0)), None);
    assert_eq!(retry_after(&answer(500, 1)), None);
    let waits: Vec<Duration> = (0..40).map(|_| jittered(Duration::from_secs(1))).collect();
    let bounds = Duration::from_secs(1)..=Duration::from_millis(1_500);
    assert!(waits.iter().all(|wait| bounds.contains(wait)), "{waits:?}");
    assert!(waits.iter().any(|wait| *wait != waits[0]), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_without_news_after_a_failure_is_resumed_and_a_list_is_not() {
    let mut watch = idle();
    watch.events = stream::pending().boxed();
    watch.failing = true;
    let long = WatchSelection::default().settled() * 10;
    assert!(timeout(long, watch.next()).await.is_err(), "the list is not complete");
    watch.listing = false;
    assert!(matches!(timeout(long, watch.next()).await, Ok(WatchReport::Resumed)));
    assert!(timeout(long, watch.next()).await.is_err(), "that is reported once");
}

#[test]
fn waits_grow_to_a_bound_and_are_never_the_same_for_all() {
    let longest = WatchSelection::default().longest_wait;
    let waits: Vec<Duration> = WatchSelection::default().waits().take(40).collect();
    assert!((FIRST_WAIT..=FIRST_WAIT * 2).contains(&waits[0]), "{waits:?}");
    assert!(waits[8..].iter().all(|wait| (longest..=longest * 2).contains(wait)), "{waits:?}");
    assert!(waits[8..].iter().any(|wait| *wait != waits[8]), "{waits:?}");
}
