//! Watchers that answer from a script, or not at all.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::*;
use crate::kernel_counters::Process;
use crate::measurement::usage::Role;

fn nodes() -> BTreeSet<String> {
    BTreeSet::from(["n1", "n2"].map(str::to_owned))
}

#[tokio::test(start_paused = true)]
async fn silent_watchers_are_reported_and_no_error() {
    let watchers = script([]);
    let asked = || watchers.reach.asked.borrow().len();
    let answers = watchers.under_load(&[]).await;
    assert_eq!(answers.silent.keys().collect::<Vec<_>>(), ["n1", "n2"]);
    assert_eq!((answers.reading, asked()), (Reading::default(), 2));
    let what = CounterQuery { watched: &[], whole: &nodes() };
    let answers = watchers.after(what, &Interrupt::default()).await.unwrap();
    assert_eq!((answers.silent.len(), answers.came.len()), (2, 0), "{answers:?}");
    assert!(asked() > 4, "they are asked again");
}

#[tokio::test]
async fn an_interrupt_ends_the_wait_for_a_reading() {
    let interrupt = Interrupt::default();
    interrupt.raise();
    let watchers = script([]);
    let after = watchers
        .after(CounterQuery { watched: &[], whole: &nodes() }, &interrupt)
        .await
        .unwrap_err();
    assert!(after.is::<crate::interrupt::Interrupted>(), "{after}");
    let none = async || Ok(Vec::new());
    let before = watchers.before((none, &nodes()), &interrupt).await.unwrap_err();
    assert!(before.is::<crate::interrupt::Interrupted>(), "{before}");
}

#[tokio::test(start_paused = true)]
async fn watchers_with_nothing_to_read_are_not_queried_after_the_load() {
    let watchers = script([]);
    let what = CounterQuery { watched: &[container("n2", Role::Control)], whole: &BTreeSet::new() };
    let answers = watchers.after(what, &Interrupt::default()).await.unwrap();
    assert_eq!(answers.silent.keys().collect::<Vec<_>>(), ["n2"]);
}

#[test]
fn each_node_is_queried_for_its_own_containers_and_kernel() {
    let watched = [container("n1", Role::Generator), container("n2", Role::Control)];
    let whole = BTreeSet::from(["n1".to_owned()]);
    let what = CounterQuery { watched: &watched, whole: &whole };
    let (ids, client) = (vec![watched[0].id.clone()], Some(watched[0].id.clone()));
    let wanted = Question { containers: ids, connections_of: client, whole: true };
    assert_eq!(what.question("n1"), wanted);
    let containers = vec![watched[1].id.clone()];
    assert_eq!(what.question("n2"), Question { containers, ..Question::default() });
}

fn container(node: &str, role: Role) -> Component {
    let (name, node, id) = (format!("{node}/{role:?}"), node.to_owned(), format!("id-{node}"));
    Component { role, name, node, id }
}

type Answer = Result<(u16, String), String>;

/// Returns scripted answers for each node, and records the requests.
#[derive(Default)]
struct Script {
    answers: RefCell<BTreeMap<String, VecDeque<Answer>>>,
    asked: RefCell<Vec<(String, String, String)>>,
}

impl WatcherTransport for Script {
    async fn ask(&self, pod: &PodName, (method, path): (&str, &str), body: &str) -> Answer {
        let asked = (pod.name.clone(), format!("{method} {path}"), body.to_owned());
        self.asked.borrow_mut().push(asked);
        let mut answers = self.answers.borrow_mut();
        let next = answers.get_mut(&pod.name).and_then(VecDeque::pop_front);
        next.unwrap_or_else(|| Err("it says no more".to_owned()))
    }
}

fn said(status: u16, body: &str) -> Answer {
    Ok((status, body.to_owned()))
}

fn script<const N: usize>(answers: [(&str, Vec<Answer>); N]) -> Watchers<Script> {
    let answers = answers.map(|(node, all)| (format!("watch-{node}"), all.into()));
    let pods = ["n1", "n2"].map(|node| (node.to_owned(), format!("watch-{node}")));
    Watchers {
        reach: Script { answers: RefCell::new(answers.into()), ..Script::default() },
        namespace: "leno-bench-1".into(),
        pods: pods.into(),
    }
}

impl Watchers<Script> {
    /// The requests to one node, without the parts that all requests share.
    fn asked(&self, node: &str) -> Vec<(String, String)> {
        let all = self.reach.asked.borrow();
        let of = all.iter().filter(|(pod, ..)| *pod == format!("watch-{node}"));
        of.map(|(_, what, body)| (what.clone(), body.clone())).collect()
    }
}

fn proxy(node: &str, id: &str) -> Component {
    let name = format!("leno-bench-1/{node}/leno-proxy");
    Component { role: Role::Proxy, name, node: node.to_owned(), id: id.to_owned() }
}

/// A report of a node on which one container has a process, or none has.
fn look(id: Option<&str>) -> Answer {
    let process = Process { pid: 7, ..Default::default() };
    let containers = id.map(|id| (id.to_owned(), vec![process]));
    let look = NodeCounters {
        boot_id: "k".into(),
        containers: containers.into_iter().collect(),
        ..Default::default()
    };
    said(200, &serde_json::to_string(&look).unwrap())
}

#[tokio::test(start_paused = true)]
async fn before_the_load_containers_are_listed_until_each_has_a_process() {
    let watchers = script([
        ("n1", vec![look(Some("a")), look(Some("a")), look(Some("a"))]),
        ("n2", vec![Err("away".to_owned()), look(None), look(Some("c"))]),
    ]);
    let lists = RefCell::new(0);
    let listed = async || {
        *lists.borrow_mut() += 1;
        // The second container was restarted before the third listing.
        let id = if *lists.borrow() == 3 { "c" } else { "b" };
        Ok(vec![proxy("n1", "a"), proxy("n2", id)])
    };
    let interrupt = Interrupt::default();
    let (watched, reading) = watchers.before((listed, &BTreeSet::new()), &interrupt).await.unwrap();
    assert_eq!((watched[1].id.as_str(), reading.proxies(), *lists.borrow()), ("c", 2, 3));
    let (what, body) = watchers.asked("n2")[2].clone();
    let question: Question = serde_json::from_str(&body).unwrap();
    assert_eq!((&*what, question.containers), ("POST /look", vec!["c".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_container_without_a_process_is_named_before_the_load() {
    let watchers = script([("n1", vec![look(None); 200]), ("n2", vec![look(None); 200])]);
    let listed = async || Ok(vec![proxy("n1", "a")]);
    let interrupt = Interrupt::default();
    let never = watchers.before((listed, &BTreeSet::new()), &interrupt).await;
    let why = never.unwrap_err().to_string();
    assert!(
        why.contains("60 s: no process of leno-bench-1/n1/leno-proxy is seen on node n1"),
        "{why}"
    );
    assert!(why.contains("Kata"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_kill_without_an_answer_is_repeated_under_its_id_on_its_node() {
    let watchers = script([
        ("n1", vec![said(200, "")]),
        ("n2", vec![Err("cut off".to_owned()), said(200, "")]),
    ]);
    let again = async || panic!("no container was missing");
    let doomed = [proxy("n1", "a"), proxy("n2", "b")];
    watchers.kill(&doomed, again, &Interrupt::default()).await.unwrap();
    assert_eq!(watchers.asked("n1").len(), 1);
    let asked = watchers.asked("n2");
    assert_eq!((asked.len(), &*asked[0].1), (2, r#"["b"]"#));
    assert!(asked[0] == asked[1] && asked[0].0.starts_with("POST /kill/"), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_missing_container_the_new_list_is_killed_under_another_id() {
    let watchers = script([
        ("n1", vec![said(200, "")]),
        ("n2", vec![said(404, "no process of container b is here"), said(200, "")]),
    ]);
    let again = async || Ok(vec![proxy("n1", "a2"), proxy("n2", "b2")]);
    let doomed = [proxy("n1", "a"), proxy("n2", "b")];
    watchers.kill(&doomed, again, &Interrupt::default()).await.unwrap();
    assert_eq!(watchers.asked("n1").len(), 1, "who was killed and runs again lives");
    let asked = watchers.asked("n2");
    assert_eq!((asked.len(), &*asked[1].1), (2, r#"["b2"]"#));
    assert_ne!(asked[0].0, asked[1].0);
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_kill_ends_with_an_error() {
    let watchers = script([("n1", vec![said(200, "")])]);
    let again = async || panic!("no container was missing");
    let doomed = [proxy("n1", "a"), proxy("n2", "b")];
    let error = watchers.kill(&doomed, again, &Interrupt::default()).await.unwrap_err().to_string();
    assert!(error.contains("node n2") && error.contains("it says no more"), "{error}");
    let unwatched = watchers.kill(&[proxy("n3", "a")], again, &Interrupt::default()).await;
    assert!(unwatched.unwrap_err().to_string().contains("the node has no watcher"));
}

#[tokio::test(start_paused = true)]
async fn a_start_is_queried_until_it_is_known() {
    let state = |start: &Start| said(200, &serde_json::to_string(start).unwrap());
    let watchers = script([(
        "n1",
        vec![
            Err("cut off".to_owned()),
            said(202, ""),
            state(&Start::Waiting),
            Err("cut off".to_owned()),
            state(&Start::Seen(7)),
        ],
    )]);
    let interrupt = Interrupt::default();
    let path = watchers.restart(&proxy("n1", "a"), &interrupt).await.unwrap();
    assert_eq!(watchers.started(("n1", &path), &interrupt).await.unwrap(), Start::Seen(7));
    let asked = watchers.asked("n1");
    assert!(asked[..2].iter().all(|one| *one == (format!("POST {path}"), r#""a""#.into())));
    assert!(asked[2..].iter().all(|one| one.0 == format!("GET {path}")), "{asked:?}");
    let error = watchers.started(("n1", &path), &interrupt).await.unwrap_err().to_string();
    assert!(error.contains("node n1") && error.contains("it says no more"), "{error}");
}
