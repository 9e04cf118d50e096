//! Watchers behind an API server that nobody reaches.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;

use super::*;
use crate::cluster::meter::Role;

/// Refuses every port-forward, and counts them.
#[derive(Clone, Default)]
struct Refusing(Arc<AtomicUsize>);

impl tower_service::Service<Request<Body>> for Refusing {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.0.fetch_add(1, Ordering::Relaxed);
        let status = r#"{"kind": "Status", "status": "Failure", "code": 503, "message": "away"}"#;
        let body = Body::from(status.as_bytes().to_vec());
        ready(Ok(Response::builder().status(503).body(body).unwrap()))
    }
}

impl Refusing {
    fn watchers(&self) -> Watchers {
        let pods = ["n1", "n2"].map(|node| (node.to_owned(), format!("watch-{node}")));
        Watchers {
            reach: Reach::new(Client::new(self.clone(), "default")),
            namespace: "leno-bench-1".into(),
            pods: pods.into(),
        }
    }
}

fn nodes() -> BTreeSet<String> {
    BTreeSet::from(["n1", "n2"].map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn watchers_that_say_nothing_under_load_or_after_it_are_said_and_are_no_error() {
    let refusing = Refusing::default();
    let (watchers, asked) = (refusing.watchers(), refusing.0);
    let answers = watchers.under_load(&[]).await;
    assert_eq!(answers.silent.keys().collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!((answers.reading, asked.load(Ordering::Relaxed)), (Reading::default(), 2));
    let what = What { watched: &[], whole: &nodes() };
    let answers = watchers.after(what, &Interrupt::default()).await.unwrap();
    assert_eq!((answers.silent.len(), answers.came.len()), (2, 0), "{answers:?}");
    assert!(asked.load(Ordering::Relaxed) > 4, "they are asked again");
}

#[tokio::test]
async fn an_interrupt_ends_the_wait_for_a_look() {
    let interrupt = Interrupt::default();
    interrupt.raise();
    let watchers = Refusing::default().watchers();
    let after =
        watchers.after(What { watched: &[], whole: &nodes() }, &interrupt).await.unwrap_err();
    assert!(after.is::<crate::interrupt::Interrupted>(), "{after}");
    let nobody = async || Ok(Vec::new());
    let before = watchers.before((nobody, &nodes()), &interrupt, &mut |_| {}).await.unwrap_err();
    assert!(before.is::<crate::interrupt::Interrupted>(), "{before}");
}

#[tokio::test(start_paused = true)]
async fn who_has_nothing_to_look_at_is_not_asked_after_the_load() {
    let refusing = Refusing::default();
    let what = What { watched: &[container("n2", Role::Control)], whole: &BTreeSet::new() };
    let answers = refusing.watchers().after(what, &Interrupt::default()).await.unwrap();
    assert_eq!(answers.silent.keys().collect::<Vec<_>>(), ["n2"]);
}

#[test]
fn each_node_is_asked_for_its_own_and_for_its_kernel_where_that_is_measured() {
    let watched = [container("n1", Role::Generator), container("n2", Role::Control)];
    let whole = BTreeSet::from(["n1".to_owned()]);
    let what = What { watched: &watched, whole: &whole };
    let (ids, client) = (vec![watched[0].id.clone()], Some(watched[0].id.clone()));
    let wanted = Question { containers: ids, connections_of: client, whole: true };
    assert_eq!(what.question("n1"), wanted);
    let containers = vec![watched[1].id.clone()];
    assert_eq!(what.question("n2"), Question { containers, ..Question::default() });
}

fn container(node: &str, role: Role) -> Watched {
    let (name, node, id) = (format!("{node}/{role:?}"), node.to_owned(), format!("id-{node}"));
    Watched { role, name, node, id }
}
