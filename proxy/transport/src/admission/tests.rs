use super::*;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// Admits `count` undecided connections of one address.
fn knock(admission: &Arc<Admission>, source: u8, count: usize) -> Vec<Admitted> {
    (0..count).map(|_| admission.inbound(address(source)).0).collect()
}

fn is_undecided(admission: &Admission, admitted: &Admitted) -> bool {
    let number = admitted.number().expect("it was not decided");
    admission.open().undecided.contains_key(&number)
}

#[test]
fn silent_clients_of_one_address_displace_each_other_only() {
    let admission = Admission::new(80, Directions::Both);
    let peer = admission.inbound(address(1)).0;
    let strangers = knock(&admission, 9, 100);
    // Ten may be undecided: the peer, which connected first, and the last nine strangers.
    assert_eq!(admission.connections(), 10);
    assert!(is_undecided(&admission, &peer));
    let left = strangers.iter().map(|stranger| is_undecided(&admission, stranger));
    assert_eq!(left.collect::<Vec<_>>(), [vec![false; 91], vec![true; 9]].concat());
    peer.prove(None).unwrap();
    assert_eq!(admission.connections(), 10);
    drop((peer, strangers));
    assert_eq!(admission.connections(), 0);
    let open = admission.open();
    assert!(open.undecided_of.is_empty() && open.unproven_of.is_empty());
}

#[test]
fn an_evicted_task_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let admission = Admission::new(64, Directions::Inbound);
        let serve = |admitted: Admitted| {
            let number = admitted.number().unwrap();
            let task = tokio::task::spawn_local(async move {
                let _admitted = admitted;
                std::future::pending::<()>().await;
            });
            admission.attach(number, task.abort_handle());
            task
        };
        let first = serve(admission.inbound(address(1)).0);
        let others: Vec<_> = (0..7).map(|_| serve(admission.inbound(address(1)).0)).collect();
        let (ninth, evicted) = admission.inbound(address(1));
        assert!(evicted);
        let _ninth = serve(ninth);
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(others.iter().all(|task| !task.is_finished()));
        assert_eq!(admission.connections(), 8);
    });
}

#[test]
fn the_unproven_leave_room_for_the_proven_and_for_the_workload() {
    let admission = Admission::new(80, Directions::Both);
    let mut held = Vec::new();
    let mut serve = |source: u8| {
        let admitted = admission.inbound(address(source)).0;
        let served = admitted.serve_unproven();
        held.extend(served.is_ok().then_some(admitted));
        served
    };
    for _ in 0..30 {
        serve(9).unwrap();
    }
    assert_eq!(serve(9), Err(Refusal::Source));
    for _ in 0..10 {
        serve(8).unwrap();
    }
    assert_eq!(serve(7), Err(Refusal::Unproven));
    let outbound: Vec<_> = (0..20).map(|_| admission.outbound().unwrap()).collect();
    assert_eq!(admission.outbound().unwrap_err(), Refusal::Limit);
    let prove = |source| {
        let admitted = admission.inbound(address(source)).0;
        admitted.prove(None).map(|()| admitted)
    };
    let mut proven: Vec<_> = (0..5).map(|_| prove(1).unwrap()).collect();
    assert_eq!(prove(1).unwrap_err(), Refusal::Source);
    proven.extend((0..5).map(|_| prove(2).unwrap()));
    assert_eq!(prove(3).unwrap_err(), Refusal::Limit);
    assert_eq!(admission.connections(), 70);
    drop((held, proven));
    assert_eq!(admission.connections(), outbound.len());
}

#[test]
fn no_places_are_reserved_for_a_direction_that_is_not_served() {
    let outbound = Admission::new(80, Directions::Outbound);
    let held: Vec<_> = (0..80).map(|_| outbound.outbound().unwrap()).collect();
    assert!(outbound.outbound().is_err());
    drop(held);
    let inbound = Admission::new(80, Directions::Inbound);
    let prove = |source| {
        let admitted = inbound.inbound(address(source)).0;
        admitted.prove(None).map(|()| admitted)
    };
    let held: Vec<_> = (0..70).map(|number| prove(number).unwrap()).collect();
    assert_eq!(prove(0).unwrap_err(), Refusal::Limit);
    drop(held);
}

#[test]
fn one_proven_client_leaves_room_for_others() {
    for (directions, most, in_all) in [(Directions::Both, 40, 50), (Directions::Inbound, 60, 70)] {
        let admission = Admission::new(80, directions);
        let prove = |source, account: &str| {
            let admitted = admission.inbound(address(source)).0;
            let identity = format!("spiffe://cluster.local/ns/shop/sa/{account}").parse().unwrap();
            admitted.prove(Some(&identity)).map(|()| admitted)
        };
        let serve_unproven = || admission.inbound(address(9)).0.serve_unproven();
        // One identity, from many addresses.
        let of_one: Vec<_> = (0..).take(most).map(|from| prove(from, "a").unwrap()).collect();
        assert_eq!(prove(100, "a").unwrap_err(), Refusal::Source);
        assert_eq!(serve_unproven().unwrap_err(), Refusal::Unproven, "the rest is for others");
        // Other identities, from the addresses of the first one.
        let of_others: Vec<_> = (most..in_all).map(|_| prove(0, "b").unwrap()).collect();
        assert_eq!(prove(0, "c").unwrap_err(), Refusal::Limit);
        assert_eq!(admission.connections(), in_all);
        drop((of_one, of_others));
        serve_unproven().unwrap();
        assert!(admission.open().proven_of.is_empty());
    }
}

#[test]
fn one_proven_client_leaves_room_for_others_when_all_other_places_are_taken() {
    let admission = Admission::new(80, Directions::Both);
    let own: Vec<_> = (0..60).map(|_| admission.outbound().unwrap()).collect();
    let prove = |source| {
        let admitted = admission.inbound(address(source)).0;
        admitted.prove(None).map(|()| admitted)
    };
    let of_one: Vec<_> = (0..5).map(|_| prove(1).unwrap()).collect();
    assert_eq!(prove(1).unwrap_err(), Refusal::Source);
    let other = prove(2).unwrap();
    drop((own, of_one, other));
}

/// The thread of another workload may serve this workload's connections, too. Both threads share the limits.
#[test]
fn threads_that_share_an_admission_have_its_bounds_together() {
    let admission = Admission::new(80, Directions::Inbound);
    let prove = |admission: &Arc<Admission>, source| {
        let admitted = admission.inbound(address(source)).0;
        admitted.prove(None).map(|()| admitted)
    };
    let held: Vec<_> = (0..40).map(|source| prove(&admission, source).unwrap()).collect();
    let (of_guest, full) = (Arc::clone(&admission), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        let guest = scope.spawn(|| {
            let held: Vec<_> = (0..30).map(|from| prove(&of_guest, 100 + from).unwrap()).collect();
            assert_eq!(prove(&of_guest, 99).unwrap_err(), Refusal::Limit);
            full.wait();
            full.wait();
            drop(held);
        });
        full.wait();
        assert_eq!(prove(&admission, 99).unwrap_err(), Refusal::Limit);
        assert_eq!(admission.connections(), 70);
        full.wait();
        guest.join().unwrap();
    });
    assert_eq!(admission.connections(), held.len());
}

#[test]
fn a_connection_that_another_thread_evicts_before_its_task_is_attached_ends() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        let admission = Admission::new(64, Directions::Inbound);
        let (admitted, _) = admission.inbound(address(1));
        let number = admitted.number().unwrap();
        let others = knock(&admission, 1, 8);
        assert!(!is_undecided(&admission, &admitted));
        let task = tokio::task::spawn_local(async move {
            let _admitted = admitted;
            std::future::pending::<()>().await;
        });
        admission.attach(number, task.abort_handle());
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(admission.connections(), others.len());
    });
}
