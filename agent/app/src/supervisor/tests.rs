//! The tests act as the agent. No process can be started here, so a pod that leaves has no streams to finish.

use futures_util::FutureExt as _;
use leno_handover::ChannelListener;

use super::page::not_ready;
use super::*;
use crate::brokers::tests::pod;

const RULES: PromotionRules =
    PromotionRules { after: Some(Duration::from_secs(4)), above_percent: 50 };

fn shared() -> SharedPods {
    let handover = Duration::from_secs(86_400);
    let served =
        ServedPodTable::new("/nonexistent/proxy".into(), "/nonexistent".into(), (handover, RULES));
    Rc::new(RefCell::new(served))
}

fn serve_pod(served: &SharedPods, uid: &str) -> Channel {
    let (orders, broker) = Channel::pair().unwrap();
    serve(served, pod(uid), orders, false);
    broker
}

/// Adds a pod without a process.
fn hold(served: &SharedPods, uid: &str, serving: bool) {
    let held = ServedPod {
        pod: pod(uid),
        name: InstanceName::new("shop", uid).unwrap(),
        group: "none".to_owned(),
        orders: Rc::new(Channel::pair().unwrap().0),
        number: 0,
        joined: Instant::now(),
        serving,
        promotion: Promotion::new(RULES),
        next: None,
    };
    served.borrow_mut().pods.insert(uid.to_owned(), held);
}

/// Adds a pod for which an earlier process of this supervisor still finishes streams.
fn leaving(served: &SharedPods, uid: &str) -> Rc<Notify> {
    let mut served = served.borrow_mut();
    served.joined += 1;
    let number = served.joined;
    served.begin_to_leave(uid, number).hurry
}

fn has_to_hurry(hurry: &Notify) -> bool {
    hurry.notified().now_or_never().is_some()
}

/// Asks the supervisor to end.
fn ending(served: &SharedPods) -> tokio::task::JoinHandle<()> {
    let served = Rc::clone(served);
    tokio::task::spawn_local(async move { finish(&served).await })
}

/// Connects the supervisor to an agent.
async fn meet_agent(served: &SharedPods) -> AsyncChannel {
    let (near, far) = Channel::pair().unwrap();
    let agent = AsyncChannel::new(far).unwrap();
    let of_task = Rc::clone(served);
    tokio::task::spawn_local(async move { meet(&of_task, near, 7).await });
    agent
}

async fn reported(agent: &AsyncChannel) -> PlacementReport {
    agent.receive().await.unwrap().unwrap().0
}

/// Runs a test with a paused clock, which advances when all tasks wait.
async fn run(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_was_ready_stays_so_until_it_ends() {
    run(async {
        let served = shared();
        assert!(not_ready(&mut served.borrow_mut()).is_some(), "without an agent");
        let agent = meet_agent(&served).await;
        assert_eq!(reported(&agent).await, PlacementReport::Complete { began_ms: 7 });
        let _broker = serve_pod(&served, "a");
        assert!(not_ready(&mut served.borrow_mut()).is_some(), "while a pod is not served");
        served.borrow_mut().pods.get_mut("a").unwrap().serving = true;
        assert_eq!(not_ready(&mut served.borrow_mut()), None);
        // A second pod is not served yet, and the agent is being replaced.
        let _broker = serve_pod(&served, "b");
        served.borrow_mut().agent = None;
        assert_eq!(not_ready(&mut served.borrow_mut()), None);
        served.borrow_mut().ending = OwnEnding::Serves;
        assert!(not_ready(&mut served.borrow_mut()).is_some());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_other_supervisor_serves_cuts_no_stream_of_another_pod() {
    run(async {
        let served = shared();
        hold(&served, "a", true);
        let of_other = leaving(&served, "b");
        let end = ending(&served);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(served.borrow().pods.contains_key("a"), "it waits for another supervisor");
        tokio::time::sleep(AGENT_WAIT + LEAVE_BOUND + Duration::from_secs(1)).await;
        assert!(served.borrow().pods.is_empty());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!has_to_hurry(&of_other), "its streams are cut");
        assert!(!end.is_finished());
        served.borrow_mut().leaving.clear();
        served.borrow().changed.notify_waiters();
        end.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_ends_tells_the_agent_and_goes_on_until_its_pods_are_taken() {
    run(async {
        let served = shared();
        let agent = meet_agent(&served).await;
        let PlacementReport::Complete { .. } = reported(&agent).await else { panic!() };
        hold(&served, "a", true);
        let end = ending(&served);
        assert_eq!(reported(&agent).await, PlacementReport::Ending { serves: true });
        let release = |uid: &str, succeeded| Placement::Release { uid: uid.to_owned(), succeeded };
        agent.send(&release("a", true), &[]).unwrap();
        assert_eq!(reported(&agent).await, PlacementReport::Ending { serves: false });
        let (orders, _broker) = Channel::pair().unwrap();
        let serve = Placement::Serve { pod: pod("b"), succeeds: false };
        agent.send(&serve, &[orders.as_fd()]).unwrap();
        agent.send(&release("b", false), &[]).unwrap();
        end.await.unwrap();
        assert!(served.borrow().pods.is_empty(), "it serves another pod");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn when_a_pod_ends_earlier_processes_soon_cut_its_streams() {
    run(async {
        let served = shared();
        let [of_it, again, of_other] = ["a", "a", "b"].map(|uid| leaving(&served, uid));
        release(&served, "a", true);
        assert!(![&of_it, &again, &of_other].into_iter().any(|hurry| has_to_hurry(hurry)));
        release(&served, "a", false);
        assert!(has_to_hurry(&of_it) && has_to_hurry(&again) && !has_to_hurry(&of_other));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_learns_which_pods_are_served_even_of_those_that_change_during_the_introduction() {
    run(async {
        let served = shared();
        hold(&served, "a", true);
        hold(&served, "b", false);
        let held = |uid: &str, serving| PlacementReport::Held { pod: pod(uid), serving };
        let before = served.borrow().held().unwrap();
        served.borrow_mut().pods.get_mut("b").unwrap().serving = true;
        let reports: Vec<_> = before.iter().map(|(report, _)| report.clone()).collect();
        assert_eq!(reports, [held("a", true), held("b", false)]);
        let changes = served.borrow().changes_since(&before, OwnEnding::No);
        assert_eq!(changes, [PlacementReport::Serving { uid: "b".to_owned() }]);
        served.borrow_mut().ending = OwnEnding::Serves;
        let changes = served.borrow().changes_since(&before, OwnEnding::No);
        assert_eq!(changes[0], PlacementReport::Ending { serves: true });

        let agent = meet_agent(&served).await;
        assert_eq!(reported(&agent).await, held("a", true));
        assert_eq!(reported(&agent).await, held("b", true));
        assert_eq!(reported(&agent).await, PlacementReport::Ending { serves: true });
        assert_eq!(reported(&agent).await, PlacementReport::Complete { began_ms: 7 });
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_ends_serves_for_as_long_as_another_one_is_there_to_take_over() {
    run(async {
        let served = shared();
        let agent = meet_agent(&served).await;
        let PlacementReport::Complete { .. } = reported(&agent).await else { panic!() };
        hold(&served, "a", true);
        let end = ending(&served);
        assert_eq!(reported(&agent).await, PlacementReport::Ending { serves: true });
        agent.send(&Placement::Successor { is_there: true }, &[]).unwrap();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(served.borrow().pods.contains_key("a"), "the other one may lack a certificate");
        agent.send(&Placement::Successor { is_there: false }, &[]).unwrap();
        tokio::time::sleep(SUCCESSOR_WAIT / 2).await;
        assert!(served.borrow().pods.contains_key("a"), "the next one may come");
        tokio::time::sleep(SUCCESSOR_WAIT).await;
        assert_eq!(reported(&agent).await, PlacementReport::Ending { serves: false });
        end.await.unwrap();
    })
    .await;
}

#[test]
fn a_supervisor_that_ends_serves_no_longer_than_its_grace_permits() {
    let served = |seconds| {
        let handover = Duration::from_secs(seconds);
        ServedPodTable::new(PathBuf::new(), PathBuf::new(), (handover, RULES))
    };
    for seconds in [0, 5, 10, 86_400] {
        let longest = served(seconds).longest_handover();
        assert!(longest + LEAVE_BOUND <= Duration::from_secs(seconds).max(LEAVE_BOUND));
        let waits = [Successor::Awaited, Successor::Unknown, Successor::Impossible];
        assert!(waits.iter().all(|of| served(seconds).patience(*of).unwrap() <= longest));
    }
    assert_eq!(served(86_400).patience(Successor::Awaited), Some(SUCCESSOR_WAIT));
    assert_eq!(served(86_400).patience(Successor::Connected), None);
}

/// The folder of an agent, and its socket there. Connects the supervisor to it.
async fn follow_agent(served: &SharedPods) -> (tempfile::TempDir, ChannelListener, AsyncChannel) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("supervisor.sock");
    let listener = ChannelListener::bind(&socket).unwrap();
    let of_task = Rc::clone(served);
    tokio::task::spawn_local(async move { follow(&of_task, &socket, 7).await });
    tokio::task::yield_now().await;
    let agent = AsyncChannel::new(listener.accept().unwrap()).unwrap();
    assert_eq!(reported(&agent).await, PlacementReport::Complete { began_ms: 7 });
    (folder, listener, agent)
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_ends_waits_for_an_agent_unless_the_mesh_was_removed_from_the_node() {
    run(async {
        for is_removed in [false, true] {
            let served = shared();
            let (folder, listener, agent) = follow_agent(&served).await;
            hold(&served, "a", true);
            drop((listener, agent));
            if is_removed {
                // As `leno-agent cleanup` does.
                std::fs::remove_dir_all(folder.path()).unwrap();
            }
            tokio::time::sleep(PAUSE * 2).await;
            let begin = tokio::time::Instant::now();
            tokio::time::timeout(AGENT_WAIT * 2, finish(&served)).await.unwrap();
            let took = begin.elapsed();
            assert_eq!(took < REMOVED_WAIT * 2, is_removed, "{took:?}");
            assert_eq!(took >= AGENT_WAIT, !is_removed, "{took:?}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_was_replaced_is_not_taken_for_a_removal() {
    run(async {
        let served = shared();
        let (folder, listener, agent) = follow_agent(&served).await;
        hold(&served, "a", true);
        drop((listener, agent));
        let socket = folder.path().join("supervisor.sock");
        std::fs::remove_file(&socket).unwrap();
        let end = ending(&served);
        tokio::time::sleep(PAUSE * 2).await;
        assert_eq!(served.borrow().successor(), Successor::Impossible);
        let listener = ChannelListener::bind(&socket).unwrap();
        tokio::time::sleep(PAUSE * 2).await;
        let agent = AsyncChannel::new(listener.accept().unwrap()).unwrap();
        let PlacementReport::Held { .. } = reported(&agent).await else { panic!() };
        tokio::time::sleep(REMOVED_WAIT * 2).await;
        assert!(served.borrow().pods.contains_key("a"), "the next supervisor may come");
        assert_eq!(served.borrow().successor(), Successor::Awaited);
        end.abort();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_open_when_the_mesh_is_removed_have_a_bound() {
    run(async {
        let served = shared();
        // Streams of an earlier process, which could otherwise continue for a day.
        let of_it = leaving(&served, "a");
        let end = ending(&served);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!has_to_hurry(&of_it), "they are cut");
        served.borrow_mut().is_removed = true;
        served.borrow().changed.notify_waiters();
        tokio::time::sleep(REMOVED_BOUND).await;
        assert!(!has_to_hurry(&of_it), "they are cut at once");
        tokio::time::sleep(REMOVED_WAIT * 2).await;
        assert!(has_to_hurry(&of_it), "they are never cut");
        served.borrow_mut().leaving.clear();
        served.borrow().changed.notify_waiters();
        end.await.unwrap();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_supervisor_that_ends_does_not_wait_for_a_pod_that_it_does_not_serve() {
    run(async {
        let served = shared();
        hold(&served, "a", false);
        tokio::time::timeout(Duration::from_secs(1), finish(&served)).await.unwrap();
        assert!(served.borrow().pods.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_pod_gets_a_process_of_its_own_and_goes_back_when_it_is_quiet() {
    run(async {
        let served = shared();
        let (_broker, _other) = (serve_pod(&served, "a"), serve_pod(&served, "b"));
        let number = |uid: &str| served.borrow().pods[uid].number;
        let busy = leno_handover::CpuUse { cpu_ms: 5000, of_ms: 5000 };
        // The measurement of an earlier process is ignored.
        promotion::has_used(&served, ("a", 0), busy);
        assert!(served.borrow().pods["a"].next.is_none());
        promotion::has_used(&served, ("a", number("a")), busy);
        assert_eq!(served.borrow().pods["a"].group, "web", "until it is served elsewhere");
        let next = number("b") + 1;
        assert!(!promotion::arrives(&served, "a", number("a")), "the group that it is in");
        assert!(promotion::arrives(&served, "a", next));
        assert_eq!(served.borrow().pods["a"].group, "workload.shop.web-a");
        assert!(served.borrow().pods["a"].serving);
        // A pod whose process serves no other pod is not promoted, however busy it is.
        promotion::has_used(&served, ("b", number("b")), busy);
        assert!(served.borrow().pods["b"].next.is_none());
        // A timer that fires too early is ignored, and so is a timer of an earlier process.
        promotion::goes_back(&served, ("a", next));
        promotion::goes_back(&served, ("a", number("b")));
        assert!(served.borrow().pods["a"].next.is_none(), "it was not quiet for long enough");
        tokio::time::sleep(RULES.after.unwrap() * 6).await;
        assert!(served.borrow().pods["a"].next.is_some(), "it is quiet");
        assert!(promotion::arrives(&served, "a", next + 1));
        assert_eq!(served.borrow().pods["a"].group, "web");
        until(&served, |served| served.leaving.is_empty()).await;
        let groups: Vec<String> = served.borrow().groups.keys().cloned().collect();
        assert_eq!(groups, ["web"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ends_or_gets_another_broker_is_not_moved() {
    run(async {
        let served = shared();
        let (_broker, _other) = (serve_pod(&served, "a"), serve_pod(&served, "b"));
        let busy = leno_handover::CpuUse { cpu_ms: 5000, of_ms: 5000 };
        let number = served.borrow().pods["a"].number;
        promotion::has_used(&served, ("a", number), busy);
        assert!(served.borrow().groups.contains_key("workload.shop.web-a"));
        let _next_broker = serve_pod(&served, "a");
        assert!(served.borrow().pods["a"].next.is_none());
        assert!(!served.borrow().groups.contains_key("workload.shop.web-a"));
        // A pod that was not promoted stays in its group, however quiet it is.
        assert!(!served.borrow().pods["a"].promotion.is_promoted());
        tokio::time::sleep(RULES.after.unwrap() * 12).await;
        served.borrow_mut().pods.get_mut("a").unwrap().promotion.is_in(true, Instant::now());
        let number = served.borrow().pods["a"].number;
        tokio::time::sleep(RULES.after.unwrap() * 12).await;
        promotion::goes_back(&served, ("a", number));
        assert_eq!(served.borrow().pods["a"].number, number);
        assert!(served.borrow().pods["a"].next.is_none(), "it is served by no process");
        assert!(!served.borrow().pods["a"].promotion.is_promoted());
        assert_eq!(served.borrow().groups["web"].1, 2);
        release(&served, "a", false);
        release(&served, "b", false);
        until(&served, |served| served.leaving.is_empty()).await;
        assert!(served.borrow().groups.is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_thread_stalls_twice_gets_a_process_of_its_own() {
    run(async {
        let served = shared();
        let (_broker, _other) = (serve_pod(&served, "a"), serve_pod(&served, "b"));
        let number = served.borrow().pods["a"].number;
        promotion::has_stalled(&served, ("a", number));
        assert!(served.borrow().pods["a"].next.is_none(), "a single stall does not move the pod");
        promotion::has_stalled(&served, ("a", number));
        assert!(served.borrow().pods["a"].next.is_some());
    })
    .await;
}

/// Without this rule, a pod could keep the process that it shares with others busy. Users who may edit the
/// namespace decide for its pods.
#[test]
fn a_pod_may_be_promoted_sooner_than_its_namespace_or_its_supervisor_says_but_not_later() {
    let after = |all: Option<u64>, namespace: Option<u64>, own: Option<u64>| {
        let all = PromotionRules { after: all.map(Duration::from_secs), ..RULES };
        let mut pod = pod("a");
        pod.namespace_promote_after_ms = namespace.map(|seconds| seconds * 1000);
        pod.promote_after_ms = own.map(|seconds| seconds * 1000);
        promotion::rules(all, &pod).after.map(|after| after.as_secs())
    };
    for all in [Some(60), None] {
        for (own, sooner) in [(None, 60), (Some(5), 5), (Some(3600), 60), (Some(0), 60)] {
            assert_eq!(after(all, None, own), all.map(|_| sooner), "{own:?}");
            assert_eq!(after(all, Some(0), own), None, "off, {own:?}");
            assert_eq!(after(all, Some(60), own), Some(sooner), "{own:?}");
        }
        assert_eq!(after(all, Some(3600), None), Some(3600));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_and_each_namespace_has_no_more_than_a_bound_of_processes_for_busy_pods() {
    run(async {
        let served = shared();
        let pods: Vec<PlacedPod> = (0..16)
            .map(|number| {
                let namespace = ["shop", "bank", "users"][number / 6].to_owned();
                PlacedPod { namespace, ..pod(&format!("p{number:02}")) }
            })
            .collect();
        let mut brokers = Vec::new();
        for pod in &pods {
            let (orders, broker) = Channel::pair().unwrap();
            serve(&served, pod.clone(), orders, false);
            brokers.push(broker);
        }
        let busy = leno_handover::CpuUse { cpu_ms: 5000, of_ms: 5000 };
        for pod in &pods {
            let number = served.borrow().pods[&pod.uid].number;
            promotion::has_used(&served, (&pod.uid, number), busy);
        }
        let of = |namespace: &str| {
            let served = served.borrow();
            let pods = served.pods.values().filter(|pod| pod.pod.namespace == namespace);
            pods.filter(|pod| pod.next.is_some()).count()
        };
        let half = promotion::MAX_PROMOTED_OF_NAMESPACE;
        assert_eq!(["shop", "bank", "users"].map(of), [half, half, 0]);
        let metrics = page::metrics(&served.borrow());
        for (of, count) in [("namespace", 2), ("node", 6)] {
            let line =
                format!("leno_supervisor_promotions_held_back_total{{of=\"{of}\"}} {count}\n");
            assert!(metrics.contains(&line), "{metrics}");
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_group_changes_is_served_by_the_process_before_until_the_next_one_serves_it() {
    run(async {
        let served = shared();
        let agent = meet_agent(&served).await;
        let PlacementReport::Complete { .. } = reported(&agent).await else { panic!() };
        let (_broker, _other) = (serve_pod(&served, "a"), serve_pod(&served, "b"));
        let group = |uid: &str| served.borrow().pods[uid].group.clone();
        let change = |group: &str| PlacedPod { group: group.to_owned(), ..pod("a") };
        let moves = async |now: PlacedPod| {
            agent.send(&Placement::Change { pod: now }, &[]).unwrap();
            // The order for an unknown pod is ignored. Once it was read, the order before it has been carried out.
            agent.send(&Placement::Change { pod: pod("unknown") }, &[]).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        moves(change("shop")).await;
        assert_eq!(group("a"), "web", "until it is served elsewhere");
        // The pod's group changes again before the new group serves it.
        moves(change("all")).await;
        let groups: Vec<String> = served.borrow().groups.keys().cloned().collect();
        assert_eq!(groups, ["all", "web"]);
        let next = served.borrow().joined;
        assert!(promotion::arrives(&served, "a", next));
        assert_eq!((group("a"), group("b")), ("all".to_owned(), "web".to_owned()));
        assert!(!served.borrow().pods["a"].promotion.is_promoted());
        // A change of another setting moves no pod.
        moves(PlacedPod { promote_after_ms: Some(1000), ..change("all") }).await;
        assert!(served.borrow().pods["a"].next.is_none());
        // A promoted pod moves to its new group only once it is quiet.
        let busy = leno_handover::CpuUse { cpu_ms: 5000, of_ms: 5000 };
        serve(
            &served,
            PlacedPod { group: "all".to_owned(), ..pod("c") },
            Channel::pair().unwrap().0,
            false,
        );
        promotion::has_used(&served, ("a", next), busy);
        let own = served.borrow().joined;
        assert!(promotion::arrives(&served, "a", own));
        moves(change("web")).await;
        assert_eq!(group("a"), "workload.shop.web-a");
        assert!(served.borrow().pods["a"].next.is_none());
        // A pod with a new broker joins the group to which it belongs now.
        serve(&served, change("web"), Channel::pair().unwrap().0, false);
        serve(
            &served,
            PlacedPod { group: "web".to_owned(), ..pod("c") },
            Channel::pair().unwrap().0,
            false,
        );
        let last = served.borrow().joined;
        assert!(promotion::arrives(&served, "c", last));
        assert_eq!(group("c"), "web");
    })
    .await;
}

/// Regression: a pod whose share was changed again and again left a process behind with each change, for as long as a stream
/// was open in it.
#[tokio::test(start_paused = true)]
async fn no_more_than_a_bound_of_processes_finish_streams_of_a_pod() {
    run(async {
        let served = shared();
        let name = InstanceName::new("shop", "web-a").unwrap();
        // Makes a process finish a stream that does not end.
        let leave = |uid: &str| {
            served.borrow_mut().joined += 1;
            let number = served.borrow().joined;
            let (name, bound) = (name.clone(), served.borrow().handover);
            let leaving = served.borrow_mut().begin_to_leave(uid, number);
            let served = Rc::clone(&served);
            tokio::task::spawn_local(async move {
                assert!(!leaving.finish(&name, number, (std::future::pending(), bound)).await);
                served.borrow_mut().leaving.remove(&number);
            });
        };
        leave("other");
        for _ in 0..10 {
            leave("a");
            tokio::time::sleep(Duration::from_secs(90)).await;
        }
        let of = |uid: &str| {
            let served = served.borrow();
            let all = served.leaving.iter().filter(|(_, leaving)| leaving.uid == uid);
            all.map(|(number, _)| *number).collect::<Vec<u64>>()
        };
        assert_eq!(of("a"), [6, 7, 8, 9, 10, 11], "the latest ones");
        assert_eq!(of("other"), [1], "of another pod");
    })
    .await;
}

/// Regression: the second group of the service account `web` had the key of the group of the account `web.1`.
#[tokio::test(start_paused = true)]
async fn pods_of_two_service_accounts_share_no_process() {
    run(async {
        let served = shared();
        let mut served = served.borrow_mut();
        let of = |account| format!("service-account.shop.{account}");
        let first: Vec<String> = (0..=MAX_MEMBERS).map(|_| served.enter(&of("web"))).collect();
        let other = served.enter(&of("web.1"));
        assert!(!first.contains(&other), "{other}");
        assert_ne!(first[0], first[usize::from(MAX_MEMBERS)]);
    })
    .await;
}
