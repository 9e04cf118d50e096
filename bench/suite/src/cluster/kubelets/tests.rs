//! Kubelets that answer, are late, or refuse, behind an API server that is made up here.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::client::Body;
use tokio::sync::Barrier;

use super::*;
use crate::cluster::mesh::Mesh;
use crate::cluster::meter::Carriers;

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// Answers for a node's kubelet: a status and a text; never where it is none.
#[derive(Clone)]
struct Server {
    answer: fn(&str) -> Option<(u16, String)>,
    /// Whom each waits for.
    together: Option<Arc<Barrier>>,
}

impl tower_service::Service<Request<Body>> for Server {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let Self { answer, together } = self.clone();
        Box::pin(async move {
            if let Some(together) = together {
                together.wait().await;
            }
            let node = request.uri().path().split('/').nth(4).unwrap_or_default().to_owned();
            let Some((status, text)) = answer(&node) else { return pending().await };
            Ok(Response::builder().status(status).body(Body::from(text.into_bytes())).unwrap())
        })
    }
}

fn roles(nodes: &[&str]) -> Roles {
    Roles {
        namespace: "leno-bench-1".into(),
        mesh: Mesh::None,
        system: None,
        beside: BTreeSet::new(),
        flooded: None,
        nodes: nodes.iter().map(|node| (*node).to_owned()).collect::<BTreeSet<_>>(),
        carriers: Carriers::default(),
        cpus: BTreeMap::new(),
    }
}

fn summary(node: &str) -> String {
    format!(
        r#"{{"node": {{"nodeName": "{node}", "cpu": {{"time": "2026-01-01T00:00:01Z",
        "usageCoreNanoSeconds": 1}}}}}}"#
    )
}

async fn under_load(server: Server) -> Result<Answers> {
    let client = Client::new(server, "default");
    Kubelets { client: &client, roles: roles(&["n1", "n2"]) }.under_load().await
}

#[tokio::test(start_paused = true)]
async fn one_kubelet_that_is_late_under_load_leaves_nothing_of_the_others_out() {
    let late = |node: &str| (node == "n1").then(|| (200, summary(node)));
    let answers = under_load(Server { answer: late, together: None }).await.unwrap();
    assert_ne!(answers.reading, Reading::default(), "what n1 says is kept");
    let why = &answers.silent["n2"];
    assert!(why.contains("the kubelet of node n2") && why.contains("5 s"), "{why}");
    let down = |node: &str| match node {
        "n1" => Some((200, summary(node))),
        _ => Some((503, r#"{"kind": "Status", "status": "Failure", "code": 503}"#.to_owned())),
    };
    let answers = under_load(Server { answer: down, together: None }).await.unwrap();
    assert_eq!(answers.silent.keys().collect::<Vec<_>>(), ["n2"]);
}

#[tokio::test(start_paused = true)]
async fn the_kubelets_are_asked_together() {
    // Nobody answers before both are asked.
    let together = Some(Arc::new(Barrier::new(2)));
    let answers = under_load(Server { answer: |node| Some((200, summary(node))), together }).await;
    assert_eq!(answers.unwrap().silent, BTreeMap::new());
}

#[tokio::test]
async fn whoever_may_not_ask_is_told_so_and_nothing_is_measured() {
    let refused = |_: &str| {
        let status = r#"{"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
            "message": "may not get nodes/proxy"}"#;
        Some((403, status.to_owned()))
    };
    let server = Server { answer: refused, together: None };
    let error = under_load(server).await.unwrap_err().to_string();
    assert!(error.contains("may not get nodes/proxy"), "{error}");
}
