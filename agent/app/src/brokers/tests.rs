//! What is said to a supervisor, which is the test.

use leno_handover::KubeletProbes;

use super::*;

fn brokers() -> Arc<Brokers> {
    let (brokers, _ended) = Brokers::new("/nonexistent".into(), String::new(), Handle::current());
    brokers
}

fn pod(uid: &str) -> PlacedPod {
    PlacedPod {
        namespace: "shop".to_owned(),
        name: format!("web-{uid}"),
        workload: None,
        uid: uid.to_owned(),
        group: "web".to_owned(),
        kubelet: KubeletProbes::default(),
    }
}

/// Gives a pod a broker of this agent; returns the broker's end.
fn start(brokers: &Arc<Brokers>, pod: PlacedPod, is_new: bool) -> Channel {
    let (orders, far) = Channel::pair().unwrap();
    brokers.insert(&mut lock(&brokers.state), pod, orders, (false, is_new)).unwrap();
    far
}

/// A supervisor that is connected and has held no pod.
async fn supervisor(brokers: &Arc<Brokers>) -> AsyncChannel {
    let (near, far) = Channel::pair().unwrap();
    tokio::spawn(Arc::clone(brokers).meet(near));
    let supervisor = AsyncChannel::new(far).unwrap();
    supervisor.send(&PlacementReport::Complete, &[]).unwrap();
    until(brokers, |state| state.supervisor.is_some()).await;
    supervisor
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
    Placement::Release { uid: uid.to_owned() }
}

#[tokio::test]
async fn a_supervisor_is_told_of_a_pod_that_is_gone_after_its_broker() {
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
async fn a_pod_that_is_too_long_keeps_no_other_from_being_served() {
    let brokers = brokers();
    let mut long = pod("a");
    long.kubelet.probes = "x".repeat(20_000);
    let _brokers = [start(&brokers, long, true), start(&brokers, pod("b"), true)];
    let supervisor = supervisor(&brokers).await;
    assert_eq!([told(&supervisor).await, told(&supervisor).await], ["a", "b"].map(release));
    assert_eq!(told(&supervisor).await, Placement::Serve(pod("b")));
}

#[tokio::test]
async fn a_supervisor_that_falls_behind_is_to_connect_again() {
    let brokers = brokers();
    let supervisor = supervisor(&brokers).await;
    for _ in 0..=2 * MAX_TOLD {
        brokers.release("a");
    }
    while supervisor.receive::<Placement>().await.unwrap().is_some() {}
    until(&brokers, |state| state.supervisor.is_none()).await;
}

#[tokio::test]
async fn the_broker_that_serves_a_pod_ends_another_one_but_not_that_of_a_new_sandbox() {
    for (is_new, own_ends) in [(false, true), (true, false)] {
        let brokers = brokers();
        let own = start(&brokers, pod("a"), is_new);
        let (near, far) = Channel::pair().unwrap();
        let (held, _broker) = Channel::pair().unwrap();
        far.send(&PlacementReport::Held(pod("a")), &[held.as_fd()]).unwrap();
        far.send(&PlacementReport::Complete, &[]).unwrap();
        tokio::spawn(Arc::clone(&brokers).meet(near));
        until(&brokers, |state| state.met).await;
        assert_eq!(brokers.check_served("a").is_ok(), own_ends);
        if own_ends {
            let own = AsyncChannel::new(own).unwrap();
            assert!(own.receive::<()>().await.unwrap().is_none());
        } else {
            let supervisor = AsyncChannel::new(far).unwrap();
            assert_eq!(told(&supervisor).await, release("a"));
            assert_eq!(told(&supervisor).await, Placement::Serve(pod("a")));
        }
    }
}

#[tokio::test]
async fn a_supervisor_whose_broker_is_lost_on_the_way_connects_again_and_keeps_its_pod() {
    let brokers = brokers();
    let (near, far) = Channel::pair().unwrap();
    let (held, _broker) = Channel::pair().unwrap();
    let report = PlacementReport::Held(pod("a"));
    far.send(&report, &[]).unwrap();
    far.send(&PlacementReport::Complete, &[]).unwrap();
    Arc::clone(&brokers).meet(near).await;
    // Its end, or that it has sent what was not read.
    assert!(!matches!(far.receive::<Placement>(), Ok(Some(_))), "it is told something");
    assert!(!lock(&brokers.state).met);
    let (near, far) = Channel::pair().unwrap();
    far.send(&report, &[held.as_fd()]).unwrap();
    far.send(&PlacementReport::Complete, &[]).unwrap();
    tokio::spawn(Arc::clone(&brokers).meet(near));
    until(&brokers, |state| state.met).await;
    brokers.check_served("a").unwrap();
    brokers.release("a");
    let supervisor = AsyncChannel::new(far).unwrap();
    assert_eq!(told(&supervisor).await, release("a"), "this is the first that it is told");
}

#[tokio::test]
async fn a_running_pod_waits_for_the_broker_that_a_supervisor_may_hold() {
    let mut brokers = brokers();
    let netns = Path::new("/nonexistent");
    let serve = |brokers: &Arc<Brokers>, is_new: bool| {
        let place = PodPlace { netns, cgroup: None, others: Vec::new(), is_new };
        brokers.serve(pod("a"), &place)
    };
    // As if no time passed. That a broker is started is seen by its failure.
    Arc::get_mut(&mut brokers).unwrap().started = Instant::now() + Duration::from_secs(3600);
    serve(&brokers, true).unwrap_err();
    serve(&brokers, false).unwrap();
    let _supervisor = supervisor(&brokers).await;
    serve(&brokers, false).unwrap_err();
}
