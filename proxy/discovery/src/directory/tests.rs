//! Tests the directory without a connection: what is applied to it must reach the receivers.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use leno_types::InstanceName;
use leno_types::mesh::{Distribution, Resolution, Service, Subject, Workload};
use tokio::sync::watch;

use super::{Directory, Live, MAX_UNKNOWN_KEYS};
use crate::table::{Address, Resource};
use crate::watches::{IDLE, MAX_LOGGED, MAX_LOOKED_UP, MAX_WATCHED};

fn live() -> (Directory, Arc<Live>) {
    Directory::live("shop/web-0".parse().unwrap(), crate::leases::Leases::none())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(name: &str, vips: &[&str]) -> (String, Resource) {
    let vips: Vec<_> = vips.iter().map(|text| ip(text)).collect();
    let service = Service {
        name: name.parse().unwrap(),
        vips: vips.clone(),
        distribution: Distribution::Any,
        waypoint: None,
        ports: Vec::new(),
        routes: [].into(),
        traffic: [].into(),
    };
    resource(format!("service/{name}"), Address::Service(Arc::new(service)), vips)
}

fn workload(name: &str, address: &str) -> (String, Resource) {
    let workload = Workload {
        name: name.parse().unwrap(),
        addresses: vec![ip(address)],
        identity: None,
        ports: Vec::new(),
        wire: Default::default(),
    };
    let aliases = workload.addresses.clone();
    resource(format!("workload/{name}"), Address::Workload(Arc::new(workload)), aliases)
}

fn resource(name: String, address: Address, aliases: Vec<IpAddr>) -> (String, Resource) {
    (name, Resource { version: "1".to_owned(), address, aliases })
}

fn name(resolution: &Resolution) -> String {
    match resolution {
        Resolution::Pending => "pending".to_owned(),
        Resolution::Service(service) => format!("service {}", service.name),
        Resolution::Workload(workload) => format!("workload {}", workload.name),
        Resolution::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn a_watch_is_pending_until_the_control_plane_answers() {
    let (directory, live) = live();
    let watched = directory.watch(ip("10.96.0.1"));
    let other = directory.watch(ip("10.96.0.2"));
    assert_eq!(name(&watched.borrow()), "pending");
    assert_eq!(live.take_changes().0.len(), 2);

    live.apply(vec![service("shop/db", &["10.96.0.1"])], &[], &[ip("10.96.0.2").into()]);
    assert_eq!(name(&watched.borrow()), "service shop/db");
    assert_eq!(name(&other.borrow()), "unknown");

    live.apply(vec![], &["service/shop/db".to_owned()], &[]);
    assert_eq!(name(&watched.borrow()), "unknown");
}

#[test]
fn a_service_is_watched_by_its_name() {
    let (directory, live) = live();
    let watched = directory.watch_service(&"books/api".parse().unwrap());
    assert_eq!(name(&watched.borrow()), "pending");
    assert_eq!(live.take_changes().0, [Subject::Service("books/api".parse().unwrap())]);
    live.apply(vec![service("books/api", &[])], &[], &[]);
    assert_eq!(name(&watched.borrow()), "service books/api");
    let gone = "service/books/api".to_owned();
    live.apply(vec![], &[gone], &[Subject::Service("books/api".parse().unwrap())]);
    assert_eq!(name(&watched.borrow()), "unknown");
    live.apply(vec![service("books/api", &[])], &[], &[]);
    assert_eq!(name(&watched.borrow()), "service books/api");
}

#[test]
fn what_was_prefetched_is_known_at_once() {
    let (directory, live) = live();
    live.apply(vec![service("shop/db", &["10.96.0.1", "fd00::1"])], &[], &[]);
    assert_eq!(name(&directory.watch(ip("fd00::1")).borrow()), "service shop/db");
    // IPv6 sockets report the same address in this form. Both forms share the watch.
    assert_eq!(name(&directory.watch(ip("::ffff:10.96.0.1")).borrow()), "service shop/db");
    assert_eq!(name(&directory.watch(ip("10.96.0.1")).borrow()), "service shop/db");
    assert_eq!(live.take_changes().0.len(), 2);
}

#[tokio::test]
async fn what_like_workloads_use_is_awaited_and_counted_as_used_only_when_it_is() {
    let (directory, live) = live();
    let own: leno_types::ServiceName = "shop/db".parse().unwrap();
    live.prefetch(vec![own.clone(), "shop/late".parse().unwrap()]);
    assert_eq!(live.take_changes().0, [], "the workload uses nothing yet");
    assert_eq!(live.take_prefetch().len(), 2);
    let mut prefetched = std::pin::pin!(directory.prefetched());
    assert!(is_pending(prefetched.as_mut()).await);
    live.apply(vec![service("shop/db", &["10.96.0.1"])], &[], &[]);
    assert!(is_pending(prefetched.as_mut()).await, "one of two is known");
    live.apply(vec![], &[], &[Subject::Service("shop/late".parse().unwrap())]);
    prefetched.await;

    let watched = directory.watch_service(&own);
    assert_eq!(name(&watched.borrow()), "service shop/db");
    assert_eq!(live.take_changes().0, [Subject::Service(own)]);
    let (used, _) = live.resume();
    assert_eq!((used.len(), live.take_prefetch().len()), (1, 1));
}

/// Whether a future is pending.
async fn is_pending(mut future: Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}

#[test]
fn an_address_may_move_to_another_resource() {
    let (directory, live) = live();
    let watched = directory.watch(ip("10.0.0.5"));
    live.apply(vec![workload("shop/a-0", "10.0.0.5")], &[], &[]);
    // The new owner arrives before the old one is removed, so the address always has an owner.
    live.apply(vec![workload("shop/b-0", "10.0.0.5")], &[], &[]);
    assert_eq!(name(&watched.borrow()), "workload shop/a-0");
    live.apply(vec![], &["workload/shop/a-0".to_owned()], &[]);
    assert_eq!(name(&watched.borrow()), "workload shop/b-0");
    // A service takes precedence over a workload, in whatever order they arrive.
    live.apply(vec![service("shop/z", &["10.0.0.5"])], &[], &[]);
    live.apply(vec![workload("shop/b-0", "10.0.0.5")], &[], &[]);
    assert_eq!(name(&watched.borrow()), "service shop/z");
    live.apply(vec![], &["service/shop/z".to_owned()], &[]);
    // The workload has another address now, so no resource has this address.
    live.apply(vec![workload("shop/b-0", "10.0.0.6")], &[], &[]);
    assert_eq!(name(&watched.borrow()), "unknown");
}

#[test]
fn an_equal_value_wakes_no_watcher() {
    let (directory, live) = live();
    let mut watched = directory.watch(ip("10.96.0.1"));
    live.apply(vec![service("shop/db", &["10.96.0.1"])], &[], &[]);
    assert!(watched.has_changed().unwrap());
    watched.mark_unchanged();
    live.apply(vec![service("shop/db", &["10.96.0.1"])], &[], &[]);
    assert!(!watched.has_changed().unwrap());
}

#[tokio::test(start_paused = true)]
async fn idle_addresses_are_dropped_and_used_ones_kept() {
    let (directory, live) = live();
    let kept = directory.watch(ip("10.96.1.1"));
    drop(directory.watch(ip("10.96.1.2")));
    drop(directory.watch(ip("10.96.1.3")));
    assert_eq!(live.take_changes().0.len(), 3);
    let ends = || {
        live.sweep();
        live.take_changes().1
    };
    let answer = vec![service("far/a", &["10.96.1.1"]), service("far/b", &["10.96.1.2"])];
    live.apply(answer, &[], &[ip("10.96.1.3").into()]);
    live.prefetch(vec!["shop/own".parse().unwrap()]);
    live.apply(vec![service("shop/own", &["10.96.0.9"])], &[], &[]);
    assert!(ends().is_empty());
    tokio::time::advance(IDLE - Duration::from_secs(1)).await;
    assert!(ends().is_empty());
    // Another watch restarts the time.
    drop(directory.watch(ip("10.96.1.3")));
    assert!(ends().is_empty());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(ends(), [Subject::Address(ip("10.96.1.2"))]);
    assert_eq!(name(&kept.borrow()), "service far/a");
    // Resources that are not watched are gone, except prefetched ones.
    let status = directory.status();
    assert_eq!((status.addresses, status.resources), (3, 2));
    let (watched, versions) = live.resume();
    assert_eq!(watched.len(), 2);
    assert_eq!(live.take_prefetch().len(), 1);
    assert!(versions.contains_key("service/far/a") && versions.contains_key("service/shop/own"));
}

fn scanned(number: usize) -> IpAddr {
    std::net::Ipv4Addr::from(0x0a00_0000 + u32::try_from(number).unwrap()).into()
}

/// As many watches as allowed, all with receivers.
fn fill(directory: &Directory) -> Vec<watch::Receiver<Resolution>> {
    (0..MAX_WATCHED).map(|number| directory.watch(scanned(number))).collect()
}

#[test]
fn a_scan_is_refused_beyond_the_bound() {
    let (directory, live) = live();
    let _held = fill(&directory);
    let refused = directory.watch(ip("192.168.0.1"));
    assert_eq!(name(&refused.borrow()), "unknown");
    assert_eq!(directory.status().refused, 1);
    assert_eq!(live.take_changes().0.len(), MAX_WATCHED);
}

#[test]
fn at_the_bound_what_is_meshed_is_not_taken_for_unknown() {
    let (directory, live) = live();
    live.apply(vec![workload("shop/db-0", "192.168.0.1")], &[], &[]);
    let _held = fill(&directory);
    let mut known = directory.watch(ip("192.168.0.1"));
    assert_eq!(name(&known.borrow_and_update()), "workload shop/db-0");
    // The watch also receives updates.
    live.apply(vec![service("shop/db", &["192.168.0.1"])], &[], &[]);
    assert_eq!(name(&known.borrow()), "service shop/db");
    assert_eq!(directory.status().refused, 0);
}

#[tokio::test(start_paused = true)]
async fn at_the_bound_the_oldest_unwatched_names_make_room() {
    let (directory, live) = live();
    let mut held = fill(&directory);
    assert_eq!(live.take_changes().0.len(), MAX_WATCHED);
    let back = ip("192.168.0.1");
    assert_eq!(name(&directory.watch(back).borrow()), "unknown");
    // A quarter of the addresses is dropped at a time, and those that were used recently are kept.
    held.truncate(MAX_WATCHED / 2);
    drop(directory.watch(scanned(MAX_WATCHED / 2)));
    // After a search that found no address to drop, some time must pass before the next search.
    assert_eq!(name(&directory.watch(back).borrow()), "unknown");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(name(&directory.watch(back).borrow()), "pending");
    let (added, dropped) = live.take_changes();
    assert_eq!((added.len(), dropped.len()), (1, MAX_WATCHED / 4));
    let expected = MAX_WATCHED / 2 + 1..=MAX_WATCHED / 2 + MAX_WATCHED / 4;
    assert!(dropped.into_iter().eq(expected.map(scanned).map(Subject::Address)));
    assert_eq!(
        (directory.status().addresses, directory.status().refused),
        (MAX_WATCHED * 3 / 4 + 1, 2)
    );
}

#[test]
fn strangers_take_no_room_from_what_is_dialled() {
    let (directory, live) = live();
    let strangers: Vec<_> =
        (0..MAX_LOOKED_UP).map(|number| directory.look_up(scanned(number))).collect();
    assert_eq!(name(&directory.look_up(ip("192.168.0.1")).borrow()), "pending");
    assert_eq!(name(&directory.watch(ip("192.168.0.2")).borrow()), "pending");
    drop(strangers);
    assert_eq!(directory.status().addresses, MAX_LOOKED_UP + 1);
    // Any number of clients may come. Addresses that were never subscribed to need no
    // unsubscription.
    for number in 0..MAX_WATCHED {
        drop(directory.look_up(scanned(number)));
    }
    assert!(directory.status().addresses <= MAX_LOOKED_UP + 1);
    let (added, dropped) = live.take_changes();
    assert_eq!((added.len(), dropped.len()), (directory.status().addresses, 0));
}

#[test]
fn clients_of_the_access_log_take_no_room_from_those_that_are_decided_about() {
    let (directory, live) = live();
    let logged: Vec<_> =
        (0..MAX_LOOKED_UP).map(|number| directory.look_up_for_log(scanned(number))).collect();
    assert_eq!(directory.status().addresses, MAX_LOGGED);
    let decides = directory.look_up(scanned(MAX_LOOKED_UP));
    // An address that the access log already watches is not requested twice, and is then no longer dropped with those
    // of the log.
    let both = directory.look_up(scanned(0));
    drop(logged);
    for number in 1..=MAX_LOGGED * 2 {
        drop(directory.look_up_for_log(scanned(MAX_LOOKED_UP + number)));
    }
    live.apply(
        vec![
            workload("far/db-0", &scanned(0).to_string()),
            workload("far/db-1", &scanned(MAX_LOOKED_UP).to_string()),
        ],
        &[],
        &[],
    );
    assert_eq!(name(&both.borrow()), "workload far/db-0");
    assert_eq!(name(&decides.borrow()), "workload far/db-1");
}

#[test]
fn a_client_that_is_also_dialled_is_kept() {
    let (directory, live) = live();
    drop(directory.look_up(scanned(0)));
    let dialled = directory.watch(scanned(0));
    drop(dialled.clone());
    for number in 1..=MAX_LOOKED_UP * 2 {
        drop(directory.look_up(scanned(number)));
    }
    live.apply(vec![workload("far/db-0", "10.0.0.0")], &[], &[]);
    assert_eq!(name(&dialled.borrow()), "workload far/db-0");
    let status = directory.status();
    assert!(status.addresses <= MAX_LOOKED_UP + 1);
    assert_eq!(status.refused, 0);
}

#[test]
fn what_is_dropped_and_watched_again_is_asked_for_again() {
    let (directory, live) = live();
    for number in 0..MAX_LOOKED_UP {
        drop(directory.look_up(scanned(number)));
    }
    live.take_changes();
    drop(directory.look_up(scanned(MAX_LOOKED_UP)));
    drop(directory.look_up(scanned(0)));
    let (added, dropped) = live.take_changes();
    assert_eq!(added, [scanned(MAX_LOOKED_UP), scanned(0)].map(Subject::Address));
    assert!(dropped.contains(&scanned(0).into()));
}

#[tokio::test(start_paused = true)]
async fn the_age_counts_from_the_loss() {
    let (directory, live) = live();
    assert!(!directory.status().connected);
    live.connected();
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(directory.status().age, Duration::ZERO);
    live.disconnected();
    tokio::time::advance(Duration::from_secs(5)).await;
    let status = directory.status();
    assert_eq!((status.connected, status.age), (false, Duration::from_secs(5)));
}

#[test]
fn a_fixed_directory_asks_its_resolver() {
    let name_of = "shop/web-0".parse::<InstanceName>().unwrap();
    let directory =
        Directory::fixed(move |subject| match &*leno_wire::names::of_subject(subject) {
            "ip/10.0.0.1" => Resolution::Workload(Arc::new(Workload {
                name: name_of.clone(),
                addresses: vec![ip("10.0.0.1")],
                identity: None,
                ports: Vec::new(),
                wire: Default::default(),
            })),
            _ => Resolution::Unknown,
        });
    let watched = directory.watch(ip("10.0.0.1"));
    assert_eq!(name(&watched.borrow()), "workload shop/web-0");
    assert_eq!(name(&directory.watch(ip("10.0.0.2")).borrow()), "unknown");
    assert!(directory.server_policy().borrow().is_none());
    assert!(directory.status().connected);
}

#[test]
fn an_unknown_key_is_reported_once_until_it_was_sent() {
    let (directory, live) = live();
    for issuer in ["b", "a", "b"] {
        directory.report_unknown_key(issuer);
    }
    assert_eq!(live.take_unknown_keys(), ["a", "b"]);
    assert!(live.take_unknown_keys().is_empty());
    (0..1_000).for_each(|nth| directory.report_unknown_key(&nth.to_string()));
    assert_eq!(live.take_unknown_keys().len(), MAX_UNKNOWN_KEYS);
}
