//! Regression tests, and tests that each property is really checked.

use std::future::pending;
use std::rc::Rc;

use leno_telemetry::tap::Taps;
use leno_types::routes::{Filter, Redirect, RouteRule};
use tokio::task::spawn_local;

use super::*;
use crate::proxy::fuzz_run::FuzzRun;

const ALL: [Planes; 5] =
    [Planes::Outbound, Planes::Inbound, Planes::Both, Planes::Mesh, Planes::Guest];

fn one(request: Request) -> Case {
    let connection = Connection { requests: vec![request], ..Connection::default() };
    Case { connections: vec![connection], ..Case::default() }
}

fn holds(case: &Case) {
    let violations = play(case);
    assert!(violations.is_empty(), "{}", violations.join("\n"));
}

/// Whether the application receives a request.
fn reaches(case: &Case) -> bool {
    let (received, _) = in_process(async || {
        let run = FuzzRun::new(case);
        let shared = Rc::clone(&run.shared);
        run.run().await;
        !shared.seen.borrow().is_empty()
    });
    received
}

#[test]
fn a_plain_request_is_answered_over_each_plane() {
    for planes in ALL {
        for http2 in [false, true] {
            let mut case = one(Request { body: 9000, path: 10, ..Request::default() });
            case.config.planes = planes;
            case.connections[0].http2 = http2;
            case.connections[0].requests[0].answer.body = 20_000;
            holds(&case);
            assert!(reaches(&case), "{planes:?}");
        }
    }
}

#[test]
fn a_redirect_of_a_long_path_is_answered() {
    let redirect = Filter::Redirect(Redirect { status: 302, ..Redirect::default() });
    let mut case = one(Request { path: 17_000, ..Request::default() });
    case.config.rules = vec![RouteRule { filters: vec![redirect], ..RouteRule::default() }];
    holds(&case);
}

#[test]
fn a_failed_head_request_gets_no_content_though_its_body_has_passed() {
    let mut case = one(Request { method: Method::Head, body: 9000, ..Request::default() });
    case.connections[0].requests[0].answer.cut = Some((0, Ending::Close));
    holds(&case);
}

#[test]
fn a_client_and_a_server_that_are_both_silent_are_not_kept_for_ever() {
    for planes in ALL {
        let mut case = one(Request::default());
        case.config.planes = planes;
        case.config.protocol = leno_types::Protocol::Detect;
        let cut = Mutation { at: 0, further: 0, change: Change::Delete(255) };
        case.connections[0].mutations = vec![cut];
        holds(&case);
    }
}

/// Whether clients of the case have made connections that went on in memory.
fn goes_through_memory(case: &Case) -> bool {
    let before = leno_tls::made_in_process();
    holds(case);
    leno_tls::made_in_process() > before
}

#[test]
fn only_workloads_of_one_process_talk_in_memory() {
    for planes in ALL {
        for http2 in [false, true] {
            let mut case = one(Request { body: 9000, ..Request::default() });
            case.config.planes = planes;
            case.connections[0].http2 = http2;
            let request = case.connections[0].requests[0].clone();
            case.connections[0].requests.push(request);
            assert_eq!(goes_through_memory(&case), planes == Planes::Guest, "{planes:?}");
        }
    }
}

#[test]
fn a_request_whose_network_or_server_is_gone_is_answered_or_its_connection_ends() {
    for planes in [Planes::Both, Planes::Mesh, Planes::Guest] {
        for http2 in [false, true] {
            for gone in [Step::Cut, Step::EndGuest] {
                for sent in [1, 60, 200, usize::MAX] {
                    let mut case = one(Request { body: 9000, ..Request::default() });
                    case.config.planes = planes;
                    case.connections[0].http2 = http2;
                    case.connections[0].requests[0].answer.body = 200_000;
                    let after = [Step::Send(0, usize::MAX), gone, Step::Wait(1000)];
                    case.steps = vec![Step::Deafen(0), Step::Send(0, sent), gone];
                    case.steps.extend(after);
                    holds(&case);
                }
            }
        }
    }
}

/// The violations that are reported for a plain case in which `plant` does something wrong.
fn found(plant: impl FnOnce(&mut FuzzRun)) -> String {
    found_in(Planes::Outbound, plant)
}

fn found_in(planes: Planes, plant: impl FnOnce(&mut FuzzRun)) -> String {
    let mut case = one(Request { method: Method::Post, body: 10, ..Request::default() });
    case.config.planes = planes;
    let (violations, panicked) = in_process(async || {
        let mut world = FuzzRun::new(&case);
        plant(&mut world);
        world.run().await
    });
    violations.into_iter().chain(panicked).collect::<Vec<_>>().join("\n")
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(found(|_| ()), "");
}

#[test]
fn a_task_that_is_left_is_found() {
    let what = found(|_| drop(spawn_local(pending::<()>())));
    assert!(what.contains("left behind: 1 tasks"), "{what}");
}

#[test]
fn a_charge_that_is_left_is_found() {
    let what = found(|_| leno_transport::budget::charge(7));
    assert!(what.contains("7 bytes charged"), "{what}");
    leno_transport::budget::credit(7);
}

#[test]
fn a_place_that_is_left_is_found() {
    let what = found(|world| {
        std::mem::forget(world.admission.inbound([192, 0, 2, 1].into()));
    });
    assert!(what.contains("1 places"), "{what}");
}

#[test]
fn a_guest_that_connects_from_the_namespace_of_its_client_is_found() {
    assert_eq!(found_in(Planes::Guest, |_| ()), "");
    let what = found_in(Planes::Guest, |world| world.guest = None);
    assert!(what.contains("is dialled from another workload's namespace"), "{what}");
}

#[test]
fn a_panic_of_a_task_is_found() {
    let what = found(|_| drop(spawn_local(async { panic!("planted") })));
    assert!(what.contains("planted"), "{what}");
}

#[test]
fn a_request_that_is_sent_twice_is_found() {
    let what = found(|world| drop(world.shared.saw(0, b'a')));
    assert!(what.contains("'a' was sent 2 times, not 1"), "{what}");
}

#[test]
fn bytes_of_another_request_are_found() {
    let what = found(|world| world.shared.check(b'a', b"ab"));
    assert!(what.contains("a request of 'a' has bytes of \"ab\""), "{what}");
    let case = one(Request::default());
    let with = |inbox: &[u8]| {
        let (near, mut end) = end::pair();
        drop(near);
        end.inbox = inbox.to_vec();
        client::Client::new(end, &case.connections[0], b'a').check(true)
    };
    let own = "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nAAAAAAAA";
    let other = own.replace('A', "B");
    let more = format!("{own}{own}");
    let (checked, _) = in_process(async || [own, &other, &more].map(|text| with(text.as_bytes())));
    assert!(checked[0].is_ok(), "{checked:?}");
    assert!(checked[1].as_ref().is_err_and(|what| what.contains("bytes of 'b'")), "{checked:?}");
    assert!(
        checked[2].as_ref().is_err_and(|what| what.contains("no request asked")),
        "{checked:?}"
    );
}

#[test]
fn a_tap_shows_requests_and_bodies_that_are_mixed_are_found() {
    let mut taps = Taps::default();
    assert_eq!(found(|world| taps = world.taps.clone()), "");
    let (_, counted) = taps.poll(fuzz_run::TAP).expect("it is open");
    assert_eq!(counted.queued, 1);
    assert_eq!(fuzz_run::mixed(["bbbbbbbbb", "BBBBBBBBB0"].into_iter()), None);
    let mixed = fuzz_run::mixed(["bbbbbbbbb", "AAAAAAAAA"].into_iter());
    assert_eq!(mixed.as_deref(), Some("ab"));
}

#[test]
fn a_client_that_is_never_answered_is_found() {
    let case = one(Request::default());
    let mut kept = None;
    let what = found(|world| {
        let (near, end) = end::pair();
        kept = Some(near);
        world.clients.push(client::Client::new(end, &case.connections[0], b'b'));
    });
    assert!(what.contains("neither answered nor ended"), "{what}");
}
