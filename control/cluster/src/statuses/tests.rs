//! Tests writes to an API server that misbehaves.

use leno_index::MeshSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A route that cannot be parsed. Its status has to be written whatever the index contains.
fn misread() -> (Object, String) {
    let route = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "r", "namespace": "shop", "resourceVersion": "7", "generation": 1},
        "spec": {"parentRefs": [{"group": "", "kind": "Service", "name": "web"}]},
    });
    (Object::HttpRoute(serde_json::from_value(route).unwrap()), "spec.rule is unknown".to_owned())
}

struct StatusesFixture {
    server: TcpListener,
    state: std::sync::Arc<PlaneState>,
    statuses: std::sync::Arc<StatusReconciler>,
}

impl StatusesFixture {
    async fn new() -> Self {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", server.local_addr().unwrap());
        let client = leno_kube::connect_to(address.parse().unwrap()).unwrap();
        let statuses = std::sync::Arc::new(StatusReconciler::new(client, "leno-system"));
        statuses.misread([misread()]);
        Self { server, state: PlaneState::new(Index::new(MeshSettings::default())), statuses }
    }

    /// Writes the statuses that are due. Returns the task and the connection, from which the request was read.
    async fn write(&self) -> (tokio::task::JoinHandle<bool>, TcpStream) {
        let (statuses, mut due) = (
            self.statuses.clone(),
            self.statuses.due(&self.state, JudgedKinds::All, &BTreeMap::new()),
        );
        assert_eq!(due.len(), 1);
        let due = due.remove(0);
        let write = tokio::spawn(async move { statuses.write_one(due).await });
        let (mut connection, _) = self.server.accept().await.unwrap();
        assert!(connection.read(&mut [0; 4096]).await.unwrap() > 0);
        (write, connection)
    }
}

#[tokio::test]
async fn a_write_without_an_answer_is_given_up_and_tried_again() {
    let bed = StatusesFixture::new().await;
    let (write, _silent) = bed.write().await;
    tokio::time::pause();
    let left = timeout(ANSWER * 2, write).await.expect("the write ends").unwrap();
    assert!(left, "it is tried again");
    assert_eq!(bed.statuses.counts.failed.load(Ordering::Relaxed), 1);
    assert_eq!(bed.statuses.due(&bed.state, JudgedKinds::All, &BTreeMap::new()).len(), 1);
}

#[tokio::test]
async fn a_status_that_is_refused_waits_for_another_version_of_its_route() {
    let bed = StatusesFixture::new().await;
    let (write, mut connection) = bed.write().await;
    let body = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too long",
        "reason":"Invalid","code":422}"#;
    let answer = format!(
        "HTTP/1.1 422 Unprocessable Entity\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(answer.as_bytes()).await.unwrap();
    assert!(!write.await.unwrap(), "it is not tried again");
    assert_eq!(bed.statuses.counts.failed.load(Ordering::Relaxed), 1);
    assert!(bed.statuses.due(&bed.state, JudgedKinds::All, &BTreeMap::new()).is_empty());
    bed.statuses.misread([misread()]);
    assert_eq!(
        bed.statuses.due(&bed.state, JudgedKinds::All, &BTreeMap::new()).len(),
        1,
        "the route is another"
    );
}

#[tokio::test(start_paused = true)]
async fn a_thousand_statuses_are_written_at_a_bounded_rate() {
    let begin = tokio::time::Instant::now();
    assert_eq!(paced((0..1_000).collect()).count().await, 1_000);
    assert!(begin.elapsed() >= PACE * 999, "{:?}", begin.elapsed());
}

#[test]
fn endpoints_concern_policies_alone_and_config_maps_all() {
    let state = PlaneState::new(Index::new(MeshSettings::default()));
    let nowhere = "http://127.0.0.1:1".parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let statuses = StatusReconciler::new(leno_kube::connect_to(nowhere).unwrap(), "leno-system");
    let gone = |kind: Kind| {
        let (namespace, name) = ("shop".to_owned(), "web".to_owned());
        [ObjectChange::Delete(ObjectKey { kind, namespace, name })]
    };
    let endpoints = statuses.note(&gone(Kind::EndpointSlice));
    assert_eq!(endpoints, AffectedStatuses { all: false, endpoints: true });
    assert!(statuses.note(&gone(Kind::ConfigMap)).all);
    statuses.misread([misread()]);
    assert_eq!(statuses.due(&state, JudgedKinds::All, &BTreeMap::new()).len(), 1);
    assert!(
        statuses.due(&state, JudgedKinds::Policies, &BTreeMap::new()).is_empty(),
        "a route depends on no endpoint"
    );
}

#[tokio::test]
async fn nothing_is_written_once_the_leader_is_unknown() {
    let bed = StatusesFixture::new().await;
    let (leads, receiver) = watch::channel(true);
    let gone = misread().0.key();
    let _ = bed.statuses.note(&[ObjectChange::Delete(gone)]);
    drop(leads);
    let run = bed.statuses.run(&bed.state, receiver);
    timeout(Duration::from_secs(20), run).await.expect("it ends with its sender");
}
