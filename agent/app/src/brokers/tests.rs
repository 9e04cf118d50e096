//! The tests act as the supervisor, and check the orders that it gets.

use leno_handover::KubeletProbes;

use super::*;

fn brokers() -> Arc<Brokers> {
    brokers_of("/nonexistent".into(), Path::new("/nonexistent"))
}

/// Creates brokers of a node whose control groups and processes are below this folder.
fn brokers_of(program: PathBuf, node: &Path) -> Arc<Brokers> {
    let host =
        Host { cgroups: node.join("cgroup"), proc: node.join("proc"), netns: node.join("netns") };
    Brokers::new(program, host, Handle::current()).0
}

/// Creates brokers whose tasks run on this runtime. No broker can be started.
pub(crate) fn of_runtime(runtime: &Handle) -> Arc<Brokers> {
    let _context = runtime.enter();
    brokers()
}

/// Connects a supervisor that serves a pod. The pod is served until the supervisor, or the broker's end of the channel, is
/// dropped.
pub(crate) async fn serving_supervisor(
    brokers: &Arc<Brokers>,
    uid: &str,
) -> (AsyncChannel, Channel) {
    let (held, broker) = Channel::pair().unwrap();
    (connect(brokers, 0, &[(uid, true, &held)]).await, broker)
}

pub(crate) fn pod(uid: &str) -> PlacedPod {
    PlacedPod {
        namespace: "shop".to_owned(),
        name: format!("web-{uid}"),
        workload: None,
        uid: uid.to_owned(),
        group: "web".to_owned(),
        kubelet: KubeletProbes::default(),
        datagrams: false,
        promote_after_ms: None,
        namespace_promote_after_ms: None,
    }
}

/// Gives a pod a broker that this agent has started; returns the broker's end of the channel.
fn start(brokers: &Arc<Brokers>, pod: PlacedPod, is_new: bool) -> Channel {
    let (orders, far) = Channel::pair().unwrap();
    brokers.insert(&mut lock(&brokers.state), pod, orders, is_new).unwrap();
    far
}

/// Connects a supervisor that holds no pods.
async fn supervisor(brokers: &Arc<Brokers>) -> AsyncChannel {
    supervisor_since(brokers, 0).await
}

async fn supervisor_since(brokers: &Arc<Brokers>, began_ms: u64) -> AsyncChannel {
    connect(brokers, began_ms, &[]).await
}

/// Connects a supervisor that has pods. Each pod is given with whether it is served, and the channel to its
/// broker.
async fn connect(
    brokers: &Arc<Brokers>,
    began_ms: u64,
    holds: &[(&str, bool, &Channel)],
) -> AsyncChannel {
    let (near, far) = Channel::pair().unwrap();
    for (uid, serving, orders) in holds {
        held(&far, uid, *serving, orders);
    }
    far.send(&PlacementReport::Complete { began_ms }, &[]).unwrap();
    let before = lock(&brokers.state).supervisors.len();
    tokio::spawn(Arc::clone(brokers).meet(near));
    until(brokers, |state| state.supervisors.len() > before).await;
    AsyncChannel::new(far).unwrap()
}

fn held(supervisor: &Channel, uid: &str, serving: bool, orders: &Channel) {
    let report = PlacementReport::Held { pod: pod(uid), serving };
    supervisor.send(&report, &[orders.as_fd()]).unwrap();
}

/// Another handle of the channel to a pod's broker.
fn orders(brokers: &Brokers, uid: &str) -> Channel {
    lock(&brokers.state).brokers[uid].orders.try_clone().unwrap()
}

fn report(supervisor: &AsyncChannel, report: &PlacementReport) {
    supervisor.send(report, &[]).unwrap();
}

fn served(uid: &str) -> PlacementReport {
    PlacementReport::Served { uid: uid.to_owned() }
}

fn serving(uid: &str) -> PlacementReport {
    PlacementReport::Serving { uid: uid.to_owned() }
}

fn succeeded(uid: &str) -> Placement {
    Placement::Release { uid: uid.to_owned(), succeeded: true }
}

/// Asserts that a supervisor has got no order, after all of its reports were handled.
async fn is_told_nothing(brokers: &Brokers, supervisor: &AsyncChannel, number: u64) {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    lock(&brokers.state).supervisors.release(number, "marker", false);
    assert_eq!(told(supervisor).await, release("marker"));
}

async fn until(brokers: &Brokers, holds: impl Fn(&State) -> bool) {
    while !holds(&lock(&brokers.state)) {
        tokio::task::yield_now().await;
    }
}

async fn told(supervisor: &AsyncChannel) -> Placement {
    supervisor.receive().await.unwrap().unwrap().0
}

fn release(uid: &str) -> Placement {
    Placement::Release { uid: uid.to_owned(), succeeded: false }
}

fn successor(is_there: bool) -> Placement {
    Placement::Successor { is_there }
}

fn serve(uid: &str, succeeds: bool) -> Placement {
    Placement::Serve { pod: pod(uid), succeeds }
}

#[tokio::test]
async fn a_supervisor_releases_a_pod_that_is_deleted_after_its_broker_ended() {
    let brokers = brokers();
    drop(start(&brokers, pod("a"), true));
    until(&brokers, |state| !state.brokers.contains_key("a")).await;
    assert_eq!(brokers.uids(), ["a"], "the keeper checks whether it is there");
    let supervisor = supervisor(&brokers).await;
    brokers.release("a");
    assert_eq!(told(&supervisor).await, release("a"));
    assert!(brokers.uids().is_empty());
}

#[tokio::test]
async fn a_pod_whose_order_is_too_long_does_not_keep_other_pods_from_being_served() {
    let brokers = brokers();
    let mut long = pod("a");
    long.kubelet.probes = "x".repeat(20_000);
    let _brokers = [start(&brokers, long, true), start(&brokers, pod("b"), true)];
    let supervisor = supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, serve("b", false));
}

#[tokio::test]
async fn the_streams_of_a_pod_that_leaves_node_mode_are_finished_and_its_listeners_closed() {
    let brokers = brokers();
    let broker = start(&brokers, pod("a"), true);
    let supervisor = supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, serve("a", false));
    report(&supervisor, &serving("a"));
    until(&brokers, |state| state.supervisors.is_serving("a")).await;
    brokers.leave("a");
    assert_eq!(told(&supervisor).await, succeeded("a"));
    let (order, _) = broker.receive::<ServeOrder>().unwrap().unwrap();
    assert_eq!(order, ServeOrder { closes: true });
    assert!(brokers.uids().is_empty());
    // The pod has ended.
    brokers.release("a");
    assert_eq!(told(&supervisor).await, release("a"));
}

#[tokio::test]
async fn a_pod_is_serving_once_a_process_accepts_its_connections() {
    let brokers = brokers();
    let _broker = start(&brokers, pod("a"), false);
    let supervisor = supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, serve("a", false));
    report(&supervisor, &served("a"));
    brokers.until_served("a").await.unwrap();
    assert!(!brokers.is_serving("a"));
    report(&supervisor, &serving("a"));
    until(&brokers, |state| state.supervisors.is_serving("a")).await;
    assert!(brokers.is_serving("a") && !brokers.is_serving("b"));
}

#[tokio::test]
async fn a_supervisor_that_reads_too_slowly_is_disconnected() {
    let brokers = brokers();
    let supervisor = supervisor(&brokers).await;
    for _ in 0..=2 * MAX_TOLD {
        brokers.release("a");
    }
    while supervisor.receive::<Placement>().await.unwrap().is_some() {}
    until(&brokers, |state| state.supervisors.is_empty()).await;
}

#[tokio::test]
async fn a_broker_that_a_supervisor_holds_replaces_that_of_the_agent_except_in_a_new_sandbox() {
    for (is_new, own_ends) in [(false, true), (true, false)] {
        let brokers = brokers();
        let own = start(&brokers, pod("a"), is_new);
        let (held, _broker) = Channel::pair().unwrap();
        let supervisor = connect(&brokers, 0, &[("a", true, &held)]).await;
        assert_eq!(brokers.check_served("a").is_ok(), own_ends);
        if own_ends {
            let own = AsyncChannel::new(own).unwrap();
            assert!(own.receive::<()>().await.unwrap().is_none());
        } else {
            assert_eq!(told(&supervisor).await, release("a"));
            assert_eq!(told(&supervisor).await, serve("a", false));
        }
    }
}

#[tokio::test]
async fn a_supervisor_whose_broker_is_lost_on_the_way_connects_again_and_keeps_its_pod() {
    let brokers = brokers();
    let (near, far) = Channel::pair().unwrap();
    let (held, _broker) = Channel::pair().unwrap();
    far.send(&PlacementReport::Held { pod: pod("a"), serving: true }, &[]).unwrap();
    far.send(&PlacementReport::Complete { began_ms: 0 }, &[]).unwrap();
    Arc::clone(&brokers).meet(near).await;
    // The agent has closed the channel. The test reads either its end, or an error because the agent had not read
    // all messages.
    assert!(!matches!(far.receive::<Placement>(), Ok(Some(_))), "it is told something");
    assert!(lock(&brokers.state).supervisors.is_empty());
    let supervisor = connect(&brokers, 0, &[("a", true, &held)]).await;
    brokers.check_served("a").unwrap();
    brokers.release("a");
    assert_eq!(told(&supervisor).await, release("a"), "this is the first that it is told");
}

#[tokio::test]
async fn a_running_pod_waits_for_the_broker_that_a_supervisor_may_hold() {
    let serve = |brokers: &Arc<Brokers>, is_new: bool| {
        let netns = Path::new("/nonexistent");
        let place = PodSandbox { netns, cgroup: None, others: Vec::new(), is_new, enters: false };
        brokers.serve(pod("a"), &place)
    };
    let started = |at: Instant| {
        let mut brokers = brokers();
        Arc::get_mut(&mut brokers).unwrap().started = at;
        brokers
    };
    // The test has no program for a broker. So an error shows that the agent has tried to start one.
    let brokers = started(Instant::now() + Duration::from_secs(3600));
    serve(&brokers, true).unwrap_err();
    serve(&brokers, false).unwrap();
    // The agent still waits although a supervisor is connected, because a second supervisor may have the broker.
    let _supervisor = supervisor(&brokers).await;
    serve(&brokers, false).unwrap();
    let brokers = started(Instant::now().checked_sub(HELD_LIMIT).unwrap());
    serve(&brokers, false).unwrap_err();
}

#[tokio::test]
async fn a_later_supervisor_takes_the_pods_over_and_an_earlier_one_gets_them_back_if_it_ends() {
    let brokers = brokers();
    let _broker = start(&brokers, pod("a"), true);
    let first = supervisor_since(&brokers, 1).await;
    assert_eq!(told(&first).await, serve("a", false));
    report(&first, &served("a"));
    brokers.until_served("a").await.unwrap();

    let second = supervisor_since(&brokers, 2).await;
    assert_eq!(told(&second).await, serve("a", true));
    report(&second, &served("a"));
    is_told_nothing(&brokers, &first, 1).await;
    assert_eq!(brokers.check_served("a"), Ok(()), "the first one serves it still");
    report(&second, &serving("a"));
    assert_eq!(told(&first).await, succeeded("a"));

    drop(second);
    // The earlier supervisor is not ordered to release the pod, because it still finishes the pod's streams.
    assert_eq!(told(&first).await, serve("a", false));
    report(&first, &served("a"));
    brokers.until_served("a").await.unwrap();
    drop(first);
    until(&brokers, |state| state.supervisors.is_empty()).await;
    brokers.check_served("a").unwrap_err();
}

#[tokio::test]
async fn the_earlier_supervisor_serves_until_the_later_one_does_in_whatever_order_they_connect() {
    for earlier_first in [true, false] {
        let brokers = brokers();
        let (orders, _broker) = Channel::pair().unwrap();
        let [early, late] = [(1, [("a", true, &orders)]), (2, [("a", false, &orders)])];
        let (earlier, later) = if earlier_first {
            let earlier = connect(&brokers, early.0, &early.1).await;
            (earlier, connect(&brokers, late.0, &late.1).await)
        } else {
            let later = connect(&brokers, late.0, &late.1).await;
            (connect(&brokers, early.0, &early.1).await, later)
        };
        let [of_earlier, of_later] = if earlier_first { [1, 2] } else { [2, 1] };
        is_told_nothing(&brokers, &earlier, of_earlier).await;
        is_told_nothing(&brokers, &later, of_later).await;
        report(&later, &serving("a"));
        assert_eq!(told(&earlier).await, succeeded("a"));
        is_told_nothing(&brokers, &later, of_later).await;
    }
}

#[tokio::test]
async fn an_earlier_supervisor_that_connects_late_releases_pods_that_the_later_one_serves() {
    let brokers = brokers();
    let (orders, _broker) = Channel::pair().unwrap();
    let _later = connect(&brokers, 2, &[("a", true, &orders)]).await;
    let earlier = connect(&brokers, 1, &[("a", true, &orders), ("b", true, &orders)]).await;
    assert_eq!(told(&earlier).await, succeeded("a"));
}

#[tokio::test]
async fn a_pod_that_only_the_earlier_supervisor_holds_moves_to_the_later_one() {
    let brokers = brokers();
    let later = supervisor_since(&brokers, 2).await;
    let (orders, _broker) = Channel::pair().unwrap();
    let earlier = connect(&brokers, 1, &[("a", true, &orders)]).await;
    assert_eq!(told(&later).await, serve("a", true));
    report(&later, &serving("a"));
    assert_eq!(told(&earlier).await, succeeded("a"));
}

#[tokio::test]
async fn the_broker_that_a_supervisor_holds_replaces_another_one_for_all_supervisors() {
    let brokers = brokers();
    // The agent has waited for supervisors, and has then started a broker itself.
    let _own = start(&brokers, pod("a"), false);
    let later = supervisor_since(&brokers, 2).await;
    assert_eq!(told(&later).await, serve("a", false));
    report(&later, &served("a"));
    let (held, _broker) = Channel::pair().unwrap();
    let earlier = connect(&brokers, 1, &[("a", true, &held)]).await;
    assert_eq!([told(&later).await, told(&later).await], [release("a"), serve("a", true)]);
    assert!(orders(&brokers, "a").is_same(&held).unwrap());
    is_told_nothing(&brokers, &earlier, 2).await;
    report(&later, &serving("a"));
    assert_eq!(told(&earlier).await, succeeded("a"));
}

#[tokio::test]
async fn a_pod_with_another_broker_is_served_by_the_current_supervisor_alone() {
    let brokers = brokers();
    let (orders, _broker) = Channel::pair().unwrap();
    let earlier = connect(&brokers, 1, &[("a", true, &orders)]).await;
    let later = connect(&brokers, 2, &[("a", false, &orders)]).await;
    // The pod's broker ends, and another one is started.
    let _other = start(&brokers, pod("a"), false);
    {
        let mut state = lock(&brokers.state);
        state.supervisors.lose("a");
        state.supervisors.settle("a");
    }
    assert_eq!(told(&earlier).await, release("a"));
    assert_eq!(told(&later).await, serve("a", false));
}

#[tokio::test]
async fn a_supervisor_whose_broker_is_useless_gets_the_one_that_another_supervisor_holds() {
    let brokers = brokers();
    // This broker could not create the listeners, because the other supervisor's broker has them.
    let own = start(&brokers, pod("a"), false);
    let later = supervisor_since(&brokers, 2).await;
    assert_eq!(told(&later).await, serve("a", false));
    report(&later, &served("a"));
    until(&brokers, |state| state.is_served("a")).await;
    drop(own);
    until(&brokers, |state| !state.brokers.contains_key("a")).await;
    brokers.check_served("a").unwrap_err();
    let (held, _broker) = Channel::pair().unwrap();
    let earlier = connect(&brokers, 1, &[("a", true, &held)]).await;
    assert_eq!(told(&later).await, serve("a", true));
    is_told_nothing(&brokers, &earlier, 2).await;
    report(&later, &serving("a"));
    assert_eq!(told(&earlier).await, succeeded("a"));
}

#[tokio::test]
async fn pods_of_a_supervisor_that_disconnects_during_its_introduction_go_to_the_current_one() {
    let brokers = brokers();
    let later = supervisor_since(&brokers, 2).await;
    let (orders, _broker) = Channel::pair().unwrap();
    let (near, far) = Channel::pair().unwrap();
    held(&far, "a", true, &orders);
    drop(far);
    Arc::clone(&brokers).meet(near).await;
    assert_eq!(told(&later).await, serve("a", false));
}

#[tokio::test]
async fn a_supervisor_that_ends_serves_until_another_one_does_even_if_that_one_is_older() {
    let brokers = brokers();
    let _broker = start(&brokers, pod("a"), true);
    let before = supervisor_since(&brokers, 1).await;
    assert_eq!(told(&before).await, serve("a", false));
    let ends = connect(&brokers, 2, &[("a", true, &orders(&brokers, "a"))]).await;
    assert_eq!(told(&before).await, succeeded("a"));
    report(&ends, &PlacementReport::Ending { serves: true });
    assert_eq!(told(&before).await, serve("a", true));
    assert_eq!(told(&ends).await, successor(true));
    brokers.check_served("a").unwrap();
    report(&before, &serving("a"));
    assert_eq!(told(&ends).await, succeeded("a"));

    // The older supervisor was also asked to end, and disconnects. Then a supervisor that is ending still serves,
    // because otherwise no supervisor would.
    drop(before);
    assert_eq!([told(&ends).await, told(&ends).await], [successor(false), serve("a", false)]);
    report(&ends, &served("a"));
    brokers.until_served("a").await.unwrap();
    report(&ends, &PlacementReport::Ending { serves: false });
    until(&brokers, |state| !state.is_served("a")).await;
    is_told_nothing(&brokers, &ends, 2).await;
    // The pod was deleted. The supervisor must release it, because it may still finish streams of it.
    brokers.release("a");
    assert_eq!(told(&ends).await, release("a"));
}

#[tokio::test]
async fn a_supervisor_that_reports_its_end_when_it_connects_gets_no_pod_of_another_one() {
    let brokers = brokers();
    let _broker = start(&brokers, pod("a"), true);
    let (near, far) = Channel::pair().unwrap();
    far.send(&PlacementReport::Ending { serves: false }, &[]).unwrap();
    far.send(&PlacementReport::Complete { began_ms: 9 }, &[]).unwrap();
    tokio::spawn(Arc::clone(&brokers).meet(near));
    until(&brokers, |state| !state.supervisors.is_empty()).await;
    let ends = AsyncChannel::new(far).unwrap();
    assert_eq!(told(&ends).await, successor(false));
    is_told_nothing(&brokers, &ends, 1).await;
    let other = supervisor_since(&brokers, 1).await;
    assert_eq!(told(&other).await, serve("a", false));
    assert_eq!(told(&ends).await, successor(true));
}

/// Regression: the pod's new connections waited for the broker without end.
#[tokio::test]
async fn a_broker_that_hangs_is_killed_once_its_supervisor_reports_it() {
    use std::os::unix::process::ExitStatusExt as _;

    let node = tempfile::tempdir().unwrap();
    let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = process.id();
    let write = |file: String, text: String| {
        let file = node.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    };
    write("cgroup/cgroup.controllers".to_owned(), String::new());
    write("cgroup/kubepods/poda/leno-broker/cgroup.procs".to_owned(), pid.to_string());
    let status = |tracer: &str| {
        let text = format!("Name:\tleno-broker\nTracerPid:\t{tracer}\nUid:\t2102\t2102\n");
        write(format!("proc/{pid}/status"), text);
    };
    status("0");
    let brokers = brokers_of("/opt/leno-broker".into(), node.path());
    let _broker = start(&brokers, pod("a"), true);
    let supervisor = supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, serve("a", false));
    // A broker that a debugger has stopped is not killed.
    status("7");
    brokers.kill_hung("a");
    assert_eq!((lock(&brokers.state).hung, process.try_wait().unwrap()), (0, None));
    status("0");
    // The first report is ignored, because the supervisor does not serve pod b.
    for uid in ["b", "a"] {
        report(&supervisor, &PlacementReport::BrokerHangs { uid: uid.to_owned() });
    }
    until(&brokers, |state| state.hung > 0).await;
    let ended = tokio::task::spawn_blocking(move || process.wait()).await.unwrap().unwrap();
    assert_eq!(ended.signal(), Some(Signal::SIGKILL as i32));
    assert_eq!(lock(&brokers.state).hung, 1);
}

#[tokio::test]
async fn supervisors_are_told_of_changed_settings_even_if_they_were_disconnected_meanwhile() {
    let brokers = brokers();
    let far = start(&brokers, pod("a"), false);
    let supervisor = supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, serve("a", false));
    report(&supervisor, &serving("a"));
    assert!(brokers.follow(&pod("a")) && !brokers.follow(&pod("b")), "it has no broker");
    let now = PlacedPod { group: "shop".to_owned(), ..pod("a") };
    let change = Placement::Change { pod: now.clone() };
    assert!(brokers.follow(&now) && brokers.follow(&now));
    assert_eq!(told(&supervisor).await, change);
    is_told_nothing(&brokers, &supervisor, 1).await;
    // The supervisor connects again, and does not know the changed settings.
    let orders = orders(&brokers, "a");
    drop(supervisor);
    until(&brokers, |state| state.supervisors.is_empty()).await;
    let supervisor = connect(&brokers, 0, &[("a", true, &orders)]).await;
    assert_eq!(told(&supervisor).await, change);
    is_told_nothing(&brokers, &supervisor, 2).await;
    // The next supervisor is ordered to serve the pod with its present settings.
    drop(supervisor);
    until(&brokers, |state| state.supervisors.is_empty()).await;
    let supervisor = self::supervisor(&brokers).await;
    assert_eq!(told(&supervisor).await, Placement::Serve { pod: now, succeeds: false });
    drop(far);
}
