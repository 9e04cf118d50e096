//! Tests with watchers that answer as a script says.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::super::pod_stream::tests::{Script, Scripted, scripted};
use super::*;
use crate::kernel_counters::Process;
use crate::measurement::usage::Role;

/// The watchers of two nodes.
struct Pair {
    watchers: Watchers,
    scripts: [Arc<Mutex<Script>>; 2],
}

fn pair(one: Vec<Scripted>, two: Vec<Scripted>) -> Pair {
    let ((one, first), (two, second)) = (scripted("watch-0", one), scripted("watch-1", two));
    let streams = [("n1".to_owned(), one), ("n2".to_owned(), two)];
    Pair { watchers: Watchers(streams.into()), scripts: [first, second] }
}

impl Pair {
    fn asked(&self, nth: usize) -> Vec<PodTask> {
        self.scripts[nth].lock().unwrap().asked.clone()
    }
}

fn component(node: &str, role: Role, id: &str) -> Component {
    let name = format!("leno-bench-1/{node}/leno-proxy");
    Component { role, name, node: node.to_owned(), id: id.to_owned() }
}

fn proxy(node: &str, id: &str) -> Component {
    component(node, Role::Proxy, id)
}

/// A reading of a node on which one container has a process, or no container has one.
fn look(id: Option<&str>) -> Scripted {
    let process = Process { pid: 7, ..Default::default() };
    let containers = id.map(|id| (id.to_owned(), vec![process])).into_iter().collect();
    let look = NodeCounters { boot_id: "k".into(), containers, ..Default::default() };
    Scripted::Answers(serde_json::to_value(&look).unwrap())
}

#[tokio::test(start_paused = true)]
async fn each_node_is_asked_for_its_own_and_a_silent_watcher_is_no_error() {
    let watched = [component("n1", Role::Generator, "a"), component("n2", Role::Control, "b")];
    let whole = BTreeSet::from(["n1".to_owned()]);
    let pair = pair(vec![look(Some("a"))], vec![Scripted::Refuses("away"); 2]);
    let answers = pair.watchers.read(CounterQuery { watched: &watched, whole: &whole }).await;
    assert_eq!(answers.silent, BTreeMap::from([("n2".to_owned(), "pod watch-1: away".to_owned())]));
    assert_eq!(answers.reading.lacks(&watched).unwrap().id, "b");
    let (containers, client) = (vec!["a".to_owned()], Some("a".to_owned()));
    let of_client = CounterQuestion { containers, connections_of: client, whole: true };
    assert_eq!(pair.asked(0), [PodTask::Look(of_client)]);
    let containers = vec!["b".to_owned()];
    let other = PodTask::Look(CounterQuestion { containers, ..CounterQuestion::default() });
    assert_eq!(pair.asked(1), [other.clone(), other], "it is asked again");
    let nothing = CounterQuery { watched: &watched[1..], whole: &BTreeSet::new() };
    pair.watchers.read(nothing).await;
    assert_eq!(pair.asked(0).len(), 1, "nothing is to be read there");
}

#[tokio::test(start_paused = true)]
async fn before_the_load_containers_are_listed_until_each_has_a_process() {
    let never = || (0..200).map(|_| look(None)).collect();
    let pair = pair(
        vec![look(Some("a")), look(Some("a")), look(Some("a"))],
        vec![Scripted::Breaks, Scripted::Breaks, look(None), look(Some("c"))],
    );
    let lists = RefCell::new(0);
    let listed = async || {
        *lists.borrow_mut() += 1;
        // The second container was restarted before the third listing.
        let id = if *lists.borrow() == 3 { "c" } else { "b" };
        Ok(vec![proxy("n1", "a"), proxy("n2", id)])
    };
    let none = BTreeSet::new();
    let (watched, reading) = pair.watchers.before(listed, &none).await.unwrap();
    assert_eq!((watched[1].id.as_str(), reading.proxies(), *lists.borrow()), ("c", 2, 3));

    let never = super::tests::pair(never(), never()).watchers;
    let listed = async || Ok(vec![proxy("n1", "a")]);
    let why = never.before(listed, &none).await.unwrap_err().to_string();
    let words = "60 s: no process of leno-bench-1/n1/leno-proxy is visible on node n1";
    assert!(why.contains(words) && why.contains("Kata"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn after_a_missing_container_the_new_list_is_killed() {
    let missing = Scripted::Answers(json!("no process of container b is here"));
    let killed = || Scripted::Answers(Value::Null);
    let pair = pair(vec![killed()], vec![missing, killed()]);
    let again = async || Ok(vec![proxy("n1", "a2"), proxy("n2", "b2")]);
    let doomed = [proxy("n1", "a"), proxy("n2", "b")];
    pair.watchers.kill(&doomed, again).await.unwrap();
    let kill = |id: &str| PodTask::Kill(vec![id.to_owned()]);
    assert_eq!(pair.asked(0), [kill("a")], "a container that was killed and runs again lives");
    assert_eq!(pair.asked(1), [kill("b"), kill("b2")]);

    let error = pair.watchers.kill(&doomed[1..], again).await.unwrap_err();
    assert_eq!(format!("{error:#}"), "node n2: pod watch-1: it says no more");
    let unwatched = pair.watchers.kill(&[proxy("n3", "a")], again).await.unwrap_err();
    assert_eq!(format!("{unwatched:#}"), "node n3: the node has no watcher");
}

#[tokio::test(start_paused = true)]
async fn a_restart_waits_for_the_program() {
    let started = Scripted::Takes(RUNS_AGAIN, json!(7));
    let watchers = pair(vec![started, Scripted::Answers(Value::Null)], Vec::new()).watchers;
    let one = proxy("n1", "a");
    assert_eq!(watchers.restart(&one).await.unwrap(), Some(7));
    assert_eq!(watchers.restart(&one).await.unwrap(), None);
    let error = watchers.restart(&one).await.unwrap_err().to_string();
    assert_eq!(error, "leno-bench-1/n1/leno-proxy on node n1 cannot be restarted");
}
