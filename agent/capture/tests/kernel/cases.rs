//! The tests that are run with every backend.

use std::net::SocketAddr;

use leno_capture::{Backend, Way, capture};

use crate::lab::{self, DialReport, Lab, OUTSIDE, POD, TestSettings, VIP, Worker};

/// How many connections are made at once. It is enough to hit a race that occurs once in some hundred.
const STORM: usize = 2000;

fn default() -> TestSettings {
    TestSettings::default()
}

fn closed() -> TestSettings {
    TestSettings { fail_closed: true, ..TestSettings::default() }
}

fn outbound(backend: Backend, to: &str, original: &str) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let seen = lab.app().dial(to);
    seen.assert_captured(original);
    assert_eq!(seen.get("peer"), to, "the application sees the address it dialled");
    assert_eq!(lab.count("outbound_captured"), 1);
}

pub fn outbound_ipv4_keeps_the_original_destination(backend: Backend) {
    outbound(backend, &format!("{}:8080", VIP[0]), "10.96.0.10:8080");
}

/// The agent's image contains programs and their libraries, but not these files.
pub fn no_file_of_the_machine_is_needed_for_names(backend: Backend) {
    std::thread::scope(|scope| {
        // The thread has its own mounts, which processes that it starts inherit.
        let hidden = scope.spawn(|| {
            lab::hide(&["/etc/protocols", "/etc/services"]);
            outbound(backend, &format!("{}:8080", VIP[0]), "10.96.0.10:8080");
        });
        hidden.join().unwrap();
    });
}

pub fn outbound_ipv6_keeps_the_original_destination(backend: Backend) {
    outbound(backend, &format!("{}:8080", VIP[1]), "[fd96::10]:8080");
}

pub fn outbound_ipv4_mapped_keeps_the_original_destination(backend: Backend) {
    outbound(backend, "[::ffff:10.96.0.10]:8080", "10.96.0.10:8080");
}

pub fn a_workload_of_one_family_alone_is_captured(backend: Backend) {
    for (number, family) in [(1, "-4"), (0, "-6")] {
        let (lab, _proxy) = Lab::with_proxy(backend, default());
        let of_family = |what: &str| {
            lab::inside(&lab.workload.netns, &format!("ip -o {family} address {what} dev eth0"))
        };
        of_family("flush");
        assert_eq!(of_family("show"), "");
        let (out, inbound) = (format!("{}:8080", VIP[number]), format!("{}:8080", POD[number]));
        lab.app().dial(&out).assert_captured(&out);
        lab.outside().dial(&inbound).assert_captured(&inbound);
    }
}

pub fn a_source_address_that_the_application_chose_is_kept(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut app = lab.app();
    for (pod, vip) in POD.into_iter().zip(VIP) {
        let to = format!("{vip}:80");
        let seen = DialReport(app.ask(&format!("dial-from {pod}:0 {to}")));
        seen.assert_captured(&to);
        assert_eq!((seen.get("peer"), seen.get("client")), (to.as_str(), seen.get("own")));
        assert!(seen.get("own").starts_with(pod), "{seen:?}");
    }
}

pub fn a_connection_straight_to_a_listener_has_no_original_destination(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut app = lab.app();
    for to in ["127.0.0.1:15001", "[::1]:15001", "127.0.0.1:15006", "[::1]:15006"] {
        let seen = app.dial(to);
        // With connection tracking the result is the address itself, and with the kernel programs it is an error.
        let original = seen.get("original");
        assert!(original == to || original.starts_with("error:"), "{seen:?}");
    }
}

pub fn listeners_that_share_a_port_share_the_connections(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, default());
    proxy.listen_as("second");
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for i in [0, 1] {
        let (outbound, inbound) = (format!("{}:80", VIP[i]), format!("{}:80", POD[i]));
        for (client, to) in [(&mut app, &outbound), (&mut outside, &inbound)] {
            let seen: Vec<DialReport> = (0..64).map(|_| client.dial(to)).collect();
            assert!(seen.iter().all(|seen| seen.get("original") == to), "{seen:?}");
            for who in ["proxy", "second"] {
                assert!(seen.iter().any(|seen| seen.get("who") == who), "{who} got none of {to}");
            }
        }
    }
}

pub fn the_end_of_one_listener_leaves_the_others_at_work(backend: Backend) {
    for newest_ends in [true, false] {
        let (lab, older) = Lab::with_proxy(backend, closed());
        let mut newer = lab.proxy();
        newer.listen_as("proxy");
        let (mut app, mut outside) = (lab.app(), lab.outside());
        let stays = if newest_ends {
            drop(newer);
            older
        } else {
            drop(older);
            newer
        };
        for i in [0, 1] {
            let (outbound, inbound) = (format!("{}:80", VIP[i]), format!("{}:80", POD[i]));
            app.dial(&outbound).assert_captured(&outbound);
            outside.dial(&inbound).assert_captured(&inbound);
        }
        drop(stays);
        for i in [0, 1] {
            app.dial(&format!("{}:80", VIP[i])).assert_refused();
            outside.dial(&format!("{}:80", POD[i])).assert_refused();
        }
    }
}

/// Regression: every connection was refused, because the kernel programs chose the first listener in their map.
pub fn listeners_that_are_shut_down_but_held_leave_the_others_at_work(backend: Backend) {
    let (lab, mut older) = Lab::with_proxy(backend, closed());
    let mut newer = lab.proxy();
    newer.listen_as("newer");
    older.shut_proxy();
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for i in [0, 1] {
        let (outbound, inbound) = (format!("{}:80", VIP[i]), format!("{}:80", POD[i]));
        for (client, to) in [(&mut app, &outbound), (&mut outside, &inbound)] {
            let seen: Vec<DialReport> = (0..16).map(|_| client.dial(to)).collect();
            let is_served = |seen: &DialReport| seen.get("who") == "newer";
            assert!(seen.iter().all(is_served), "{seen:?}");
        }
    }
    newer.shut_proxy();
    for i in [0, 1] {
        app.dial(&format!("{}:80", VIP[i])).assert_refused();
        outside.dial(&format!("{}:80", POD[i])).assert_refused();
    }
}

pub fn more_listeners_than_are_kept_share_the_connections(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, closed());
    for _ in 0..leno_bpf::abi::LISTENERS_PER_SLOT {
        proxy.listen_as_proxy();
    }
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for i in [0, 1] {
        let (outbound, inbound) = (format!("{}:80", VIP[i]), format!("{}:80", POD[i]));
        app.dial(&outbound).assert_captured(&outbound);
        outside.dial(&inbound).assert_captured(&inbound);
    }
    if backend == Backend::Ebpf {
        assert_eq!(lab.count("listener_unkept"), 4, "one over in each slot");
    }
}

pub fn the_proxys_own_connections_pass(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, default());
    let mut outside = lab.outside();
    for ip in OUTSIDE {
        let server = outside.serve_at(ip);
        proxy.dial(&server).assert_direct();
    }
    assert_eq!(lab.count("outbound_captured"), 0);
    assert_eq!(lab.count("outbound_passed_proxy"), 2);
}

pub fn loopback_is_left_alone(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut app = lab.app();
    for ip in ["127.0.0.1", "127.8.8.8", "[::1]"] {
        let server = app.serve_at(ip);
        app.dial(&server).assert_direct();
    }
    let server: SocketAddr = app.serve_at("0.0.0.0").parse().unwrap();
    app.dial(&format!("0.0.0.0:{}", server.port())).assert_direct();
    app.dial(&format!("[::ffff:127.0.0.1]:{}", server.port())).assert_direct();
    let server: SocketAddr = app.serve_at("[::]").parse().unwrap();
    app.dial(&format!("[::]:{}", server.port())).assert_direct();
    assert_eq!(lab.count("outbound_captured"), 0);
}

pub fn udp_is_left_alone(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, closed());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for ip in OUTSIDE {
        let any = if ip.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
        let server = outside.ask(&format!("udp-listen {ip}:0"));
        assert_eq!(app.ask(&format!("udp-dial {any} {server}")), format!("peer={server} bytes=4"));
    }
}

pub fn link_local_ipv6_has_no_way_past_the_proxy(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, default());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let port_of = |listening: String| listening.parse::<SocketAddr>().unwrap().port();
    let [inner, outer] = lab.link_local();
    let (inner_tcp, outer_tcp) = (port_of(app.serve_at("[::]")), port_of(outside.serve_at("[::]")));
    for seen in [
        outside.dial(&format!("{inner}:{inner_tcp}")),
        outside.dial(&format!("{inner}:15020")),
        app.dial(&format!("{outer}:{outer_tcp}")),
    ] {
        assert!(seen.0.starts_with("error "), "{seen:?}");
    }
    let inner_udp = port_of(app.ask("udp-listen [::]:0"));
    let outer_udp = port_of(outside.ask("udp-listen [::]:0"));
    for command in ["udp-send", "udp-dial [::]:0"] {
        let answer = app.ask(&format!("{command} {outer}:{outer_udp}"));
        assert!(answer.starts_with("error "), "{command}: {answer}");
    }
    let dropped = lab.count("inbound_dropped_link_local");
    assert_eq!(outside.ask(&format!("udp-send {inner}:{inner_udp}")), "sent");
    lab.wait_for_count("inbound_dropped_link_local", dropped + 1);
    assert!(lab.count("outbound_dropped_link_local") >= 3);
    // Neighbour discovery still works. It uses ICMPv6, also between link-local addresses.
    lab::inside(&lab.workload.netns, "ip -6 neigh flush dev eth0");
    let server = outside.serve_at(OUTSIDE[1]);
    proxy.dial(&server).assert_direct();
}

pub fn an_excluded_link_local_prefix_passes(backend: Backend) {
    let excluded = vec![("fe80::".parse().unwrap(), 10)];
    let (lab, _proxy) =
        Lab::with_proxy(backend, TestSettings { excluded, fail_closed: true, ..default() });
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let [_, outer] = lab.link_local();
    let server: SocketAddr = outside.serve_at("[::]").parse().unwrap();
    app.dial(&format!("{outer}:{}", server.port())).assert_direct();
    let server: SocketAddr = outside.ask("udp-listen [::]:0").parse().unwrap();
    let answer = app.ask(&format!("udp-dial [::]:0 {outer}:{}", server.port()));
    assert!(answer.ends_with("bytes=4"), "{answer}");
}

pub fn excluded_prefixes_pass(backend: Backend) {
    let excluded = vec![("10.77.0.1".parse().unwrap(), 32), ("fd77::".parse().unwrap(), 64)];
    let (lab, _proxy) =
        Lab::with_proxy(backend, TestSettings { excluded, fail_closed: true, ..default() });
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for ip in OUTSIDE {
        let server = outside.serve_at(ip);
        app.dial(&server).assert_direct();
    }
    let server: SocketAddr = outside.serve_at("0.0.0.0").parse().unwrap();
    app.dial(&format!("[::ffff:10.77.0.1]:{}", server.port())).assert_direct();
    assert_eq!(lab.count("outbound_passed_excluded"), 3);
    for vip in VIP {
        app.dial(&format!("{vip}:80")).assert_captured(&format!("{vip}:80"));
    }
}

pub fn inbound_keeps_port_and_client_address(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut outside = lab.outside();
    for (pod, client) in POD.into_iter().zip(OUTSIDE) {
        let to = format!("{pod}:8080");
        let seen = outside.dial(&to);
        seen.assert_captured(&to);
        assert_eq!(seen.get("client"), seen.get("own"));
        assert!(seen.get("client").starts_with(client), "{seen:?}");
        if backend == Backend::Ebpf {
            assert_eq!(seen.get("local"), to, "the local address is the original destination");
        }
    }
    assert_eq!(lab.count("inbound_captured"), 2);
}

pub fn an_application_on_loopback_is_reached(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, default());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for (loopback, pod) in ["127.0.0.1", "[::1]"].into_iter().zip(POD) {
        let server: SocketAddr = app.serve_at(loopback).parse().unwrap();
        let to = format!("{pod}:{}", server.port());
        outside.dial(&to).assert_captured(&to);
        proxy.dial(&server.to_string()).assert_direct();
    }
}

pub fn the_application_sees_its_client_or_the_stand_in_address(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, closed());
    let mut app = lab.app();
    let (v4, v6) = ("10.77.0.1:4321", "[fd77::1]:4321");
    let (stand_in_v4, stand_in_v6) = ("192.0.0.8", "[100:0:0:1::8]");
    for (listens, dialled, client, stand_in) in [
        ("0.0.0.0", "10.77.0.2", v4, stand_in_v4),
        ("0.0.0.0", "127.0.0.1", v4, stand_in_v4),
        ("127.0.0.1", "127.0.0.1", v4, stand_in_v4),
        ("[::]", "[fd77::2]", v6, stand_in_v6),
        ("[::]", "[::1]", v6, stand_in_v6),
        ("[::1]", "[::1]", v6, stand_in_v6),
        // An IPv6 socket can present an IPv4 client, but an IPv4 socket cannot present an IPv6 client.
        ("[::1]", "[::1]", "[::ffff:10.77.0.1]:4321", stand_in_v6),
        ("0.0.0.0", "127.0.0.1", v6, stand_in_v4),
    ] {
        let server: SocketAddr = app.serve_at(listens).parse().unwrap();
        let to = format!("{dialled}:{}", server.port());
        let seen = DialReport(proxy.ask(&format!("dial-for {client} {to}")));
        seen.assert_direct();
        assert_eq!(seen.get("peer"), to, "the proxy sees what it dialled");
        assert_eq!(seen.get("named"), (backend == Backend::Ebpf).to_string());
        let can_be_named = client.starts_with('[') == listens.starts_with('[');
        if backend == Backend::Ebpf && can_be_named {
            assert_eq!(seen.get("client"), client, "{to}: {seen:?}");
        } else {
            let (shown, _port) = seen.get("client").rsplit_once(':').unwrap();
            assert_eq!(shown, stand_in, "{to}: {seen:?}");
        }
        // A connection that the application itself makes is not presented as a client's.
        app.dial(&format!("127.0.0.1:{}", server.port()));
    }
    if backend == Backend::Ebpf {
        assert_eq!(lab.count("client_shown"), 8);
    }
}

pub fn only_the_proxy_names_clients(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, closed());
    let mut app = lab.app();
    let server = app.serve_at("127.0.0.1");
    let seen = DialReport(app.ask(&format!("dial-for 10.77.0.1:4321 {server}")));
    assert_eq!(seen.get("named"), "false");
    assert!(seen.get("client").starts_with("192.0.0.8:"), "{seen:?}");
}

pub fn a_stand_in_address_from_outside_is_dropped(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, closed());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for (number, stand_in) in ["192.0.0.8", "100:0:0:1::8"].into_iter().enumerate() {
        let at_once = if number == 0 { "" } else { " nodad" };
        let add = format!("ip address add {stand_in} dev lo{at_once}");
        lab::inside(lab.outside_netns(), &add);
        let server = app.serve_at(POD[number]);
        let from = if number == 0 { stand_in.to_owned() } else { format!("[{stand_in}]") };
        let seen = DialReport(outside.ask(&format!("dial-from {from}:0 {server}")));
        assert!(seen.0.starts_with("error "), "{seen:?}");
    }
}

pub fn a_workload_that_calls_itself_does_not_loop(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, default());
    let mut app = lab.app();
    for pod in POD {
        let server = app.serve_at(pod);
        app.dial(&server).assert_captured(&server);
        proxy.dial(&server).assert_direct();
    }
    assert_eq!(lab.count("inbound_captured"), 0);
}

pub fn mesh_ports_cannot_be_reached_from_outside(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut outside = lab.outside();
    for pod in POD {
        for port in [15001, 15006] {
            let seen = outside.dial(&format!("{pod}:{port}"));
            assert!(seen.0.starts_with("error "), "{seen:?}");
        }
    }
    assert_eq!(lab.count("inbound_captured"), 0);
    assert!(lab.count("inbound_dropped_mesh_port") >= 4);
}

pub fn the_admin_port_passes_inbound(backend: Backend) {
    let (lab, mut proxy) = Lab::with_proxy(backend, closed());
    let mut outside = lab.outside();
    for (any, pod) in ["0.0.0.0", "[::]"].into_iter().zip(POD) {
        proxy.ask(&format!("listen server {any}:15020"));
        outside.dial(&format!("{pod}:15020")).assert_direct();
    }
    assert_eq!(lab.count("inbound_passed_admin"), 2);
}

pub fn fail_open_passes_while_no_proxy_listens(backend: Backend) {
    let mut lab = Lab::new(backend, default());
    let (mut app, mut outside, mut proxy) = (lab.app(), lab.outside(), lab.proxy());
    let ends = [0, 1].map(|i| (app.serve_at(POD[i]), outside.serve_at(OUTSIDE[i])));
    for round in 0..2 {
        for (inner, outer) in &ends {
            app.dial(outer).assert_direct();
            outside.dial(inner).assert_direct();
        }
        proxy.listen_as_proxy();
        lab.captured.set_listening(true).unwrap();
        for (inner, outer) in &ends {
            app.dial(outer).assert_captured(outer);
            outside.dial(inner).assert_captured(inner);
        }
        proxy.close_proxy();
        lab.captured.set_listening(false).unwrap();
        if backend == Backend::Ebpf {
            assert_eq!(lab.count("outbound_passed_open"), 2 * (round + 1));
            assert_eq!(lab.count("inbound_passed_open"), 2 * (round + 1));
        }
    }
}

pub fn fail_closed_refuses_while_no_proxy_listens(backend: Backend) {
    let mut lab = Lab::new(backend, closed());
    let (mut app, mut outside, mut proxy) = (lab.app(), lab.outside(), lab.proxy());
    let ends = [0, 1].map(|i| (app.serve_at(POD[i]), outside.serve_at(OUTSIDE[i])));
    for _ in 0..2 {
        for (inner, outer) in &ends {
            app.dial(outer).assert_refused();
            outside.dial(inner).assert_refused();
        }
        proxy.listen_as_proxy();
        lab.captured.set_listening(true).unwrap();
        for (inner, outer) in &ends {
            app.dial(outer).assert_captured(outer);
            outside.dial(inner).assert_captured(inner);
        }
        proxy.close_proxy();
        lab.captured.set_listening(false).unwrap();
    }
}

pub fn a_killed_proxy_is_replaced(backend: Backend) {
    let (lab, proxy) = Lab::with_proxy(backend, closed());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let (outbound, inbound) = (format!("{}:80", VIP[0]), format!("{}:80", POD[0]));
    app.dial(&outbound).assert_captured(&outbound);
    drop(proxy);
    app.dial(&outbound).assert_refused();
    outside.dial(&inbound).assert_refused();
    let mut proxy = lab.proxy();
    proxy.listen_as_proxy();
    app.dial(&outbound).assert_captured(&outbound);
    outside.dial(&inbound).assert_captured(&inbound);
}

pub fn capturing_again_replaces_what_was_left(backend: Backend) {
    let (mut lab, proxy) = Lab::with_proxy(backend, default());
    drop(proxy);
    let mut outside = lab.outside();
    let server = outside.serve_at(OUTSIDE[0]);
    // The first capture was never released, as after a crash.
    lab.captured = capture(backend, &lab.workload).unwrap();
    lab.app().dial(&server).assert_direct();
    lab.captured = capture(backend, &lab.workload).unwrap();
    let mut proxy = lab.proxy();
    proxy.listen_as_proxy();
    lab.captured.set_listening(true).unwrap();
    lab.app().dial(&server).assert_captured(&server);
    lab.captured.release().unwrap();
    lab.app().dial(&server).assert_direct();
}

pub fn connections_that_are_open_stay_when_it_is_captured(backend: Backend) {
    let mut lab = Lab::new(backend, default());
    lab.captured.release().unwrap();
    let (mut app, mut outside, mut proxy) = (lab.app(), lab.outside(), lab.proxy());
    for i in [0, 1] {
        let inner = app.ask(&format!("echo {}:0", POD[i]));
        let outer = outside.ask(&format!("echo {}:0", OUTSIDE[i]));
        assert_eq!(app.ask(&format!("hold {outer}")), "held");
        assert_eq!(outside.ask(&format!("hold {inner}")), "held");
    }
    lab.captured = capture(backend, &lab.workload).unwrap();
    proxy.listen_as_proxy();
    lab.captured.set_listening(true).unwrap();
    for client in [&mut app, &mut outside] {
        assert_eq!(client.ask("say"), "echoed=2");
    }
    let server = outside.serve_at(OUTSIDE[0]);
    app.dial(&server).assert_captured(&server);
}

pub fn connections_older_than_the_capture_are_listed_and_no_others(backend: Backend) {
    let mut lab = Lab::new(backend, default());
    lab.captured.release().unwrap();
    let (mut app, mut outside, mut proxy) = (lab.app(), lab.outside(), lab.proxy());
    let ends = [0, 1].map(|i| {
        let at = |ip: &str| format!("echo {ip}:0");
        (app.ask(&at(POD[i])), outside.ask(&at(OUTSIDE[i])))
    });
    let older = |lab: &Lab, app: &Worker| lab.open_way(Way::OlderConnections, &[app]);
    for (inner, outer) in &ends {
        assert_eq!(app.ask(&format!("hold {outer}")), "held");
        assert_eq!(outside.ask(&format!("hold {inner}")), "held");
    }
    lab.captured = capture(backend, &lab.workload).unwrap();
    for at in lab::PROXY {
        assert_eq!(proxy.ask(&format!("echo {at}")), at);
    }
    lab.captured.set_listening(true).unwrap();
    for (inner, outer) in &ends {
        // These connections go through the proxy in both directions, and from the proxy to the application.
        assert_eq!(app.ask(&format!("hold {outer}")), "held");
        assert_eq!(outside.ask(&format!("hold {inner}")), "held");
        assert_eq!(proxy.ask(&format!("hold {inner}")), "held");
    }
    for client in [&mut app, &mut outside] {
        assert_eq!(client.ask("say"), "echoed=4");
    }
    let open = older(&lab, &app).unwrap();
    assert_eq!(open.count, 4, "{open:?}");
    for (inner, outer) in &ends {
        let named = |start: &str, end: &str| {
            open.by.iter().any(|one| one.starts_with(start) && one.ends_with(end))
        };
        assert!(named("", &format!(" with {outer}")), "{open:?}");
        assert!(named(&format!("{inner} with "), ""), "{open:?}");
    }
    drop(app);
    let app = lab.app();
    assert_eq!(older(&lab, &app), None, "it was started again");
}

pub fn ways_are_open_to_processes_that_may_take_them(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, closed());
    let mut outside = lab.outside();
    let server = outside.serve_at(OUTSIDE[0]);
    let (mut root, mut plain, mut same) = (lab.app(), lab.app_as(1000), lab.app_as(2102));
    let of = |way: Way, process: &Worker| lab.open_way(way, &[process]).map(|open| open.count);
    for way in [Way::RawSockets, Way::NetworkSettings] {
        assert_eq!([of(way, &root), of(way, &plain)], [Some(1), None], "{way:?}");
    }
    assert_eq!([root.ask("raw"), plain.ask("raw")], ["made", "error PermissionDenied"]);
    let is_ebpf = backend == Backend::Ebpf;
    let groups = [of(Way::ControlGroups, &root), of(Way::ControlGroups, &plain)];
    assert_eq!(groups, [is_ebpf.then_some(1), None]);
    // A process with the proxy's user can bypass the capture if the proxy is recognised by its user.
    let is_by_user = !is_ebpf || lab::BY_USER.get();
    let users = [&root, &plain, &same].map(|process| of(Way::ProxyUser, process));
    assert_eq!(users, [is_by_user.then_some(1), None, is_by_user.then_some(1)]);
    plain.dial(&server).assert_captured(&server);
    let seen = same.dial(&server);
    if is_by_user {
        seen.assert_direct();
    } else {
        seen.assert_captured(&server);
    }
    let all = lab.open_way(Way::Datagrams, &[&plain]).unwrap();
    assert_eq!((all.by.len(), all.count), (0, 0), "it is open to every process");
}

pub fn a_forged_packet_opens_no_way_past_the_proxy(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let dropped =
        || ["inbound", "outbound"].map(|way| lab.count(&format!("{way}_dropped_uncaptured")));
    for i in [0, 1] {
        let (inner, outer) = (app.serve_at(POD[i]), outside.serve_at(OUTSIDE[i]));
        let before = dropped();
        let entered = DialReport(outside.ask(&format!("dial-forged {}:0 {inner}", OUTSIDE[i])));
        let left = DialReport(app.ask(&format!("dial-forged {}:0 {outer}", POD[i])));
        if backend == Backend::Ebpf {
            entered.assert_captured(&inner);
            left.assert_captured(&outer);
        } else {
            assert_eq!([entered.0, left.0], ["error TimedOut"; 2]);
            assert!(dropped().iter().zip(before).all(|(now, before)| *now > before), "of {inner}");
        }
        outside.dial(&inner).assert_captured(&inner);
        app.dial(&outer).assert_captured(&outer);
    }
}

pub fn a_connection_by_fast_open_is_captured(backend: Backend) {
    let mut lab = Lab::new(backend, default());
    // The bits of 0x607 mean that clients send data in the first packet, and that all listeners accept such data
    // without a cookie.
    lab.set_on_both("tcp_fastopen", "1543");
    let mut proxy = lab.proxy();
    proxy.listen_as_proxy();
    lab.captured.set_listening(true).unwrap();
    let (mut app, mut outside) = (lab.app(), lab.outside());
    for i in [0, 1] {
        let (inner, outer) = (app.serve_at(POD[i]), outside.serve_at(OUTSIDE[i]));
        for (client, server) in [(&mut app, outer), (&mut outside, inner)] {
            let dialled = DialReport(client.ask(&format!("dial-fast {server}")));
            dialled.assert_captured(&server);
            assert_eq!(dialled.get("early"), "true", "{dialled:?}");
        }
    }
}

pub fn a_source_route_leads_around_no_proxy(backend: Backend) {
    let mut lab = Lab::new(backend, default());
    for device in ["all", "default", "eth0"] {
        lab.set_on_both(&format!("conf/{device}/accept_source_route"), "1");
    }
    let (mut app, mut outside, mut proxy) = (lab.app(), lab.outside(), lab.proxy());
    let (inner, outer) = (app.serve_at(POD[0]), outside.serve_at(OUTSIDE[0]));
    let mut routed = || {
        let left = app.ask(&format!("dial-routed {} {outer}", OUTSIDE[0]));
        let entered = outside.ask(&format!("dial-routed {} {inner}", POD[0]));
        [(left, &outer), (entered, &inner)].map(|(said, server)| (DialReport(said), server))
    };
    lab.captured.release().unwrap();
    for (without, _) in routed() {
        without.assert_direct();
    }
    lab.captured = capture(backend, &lab.workload).unwrap();
    proxy.listen_as_proxy();
    lab.captured.set_listening(true).unwrap();
    for (with, server) in routed() {
        if with.0 != "error TimedOut" {
            with.assert_captured(server);
        }
    }
    app.dial(&outer).assert_captured(&outer);
    outside.dial(&inner).assert_captured(&inner);
}

pub fn release_leaves_nothing(backend: Backend) {
    let (mut lab, _proxy) = Lab::with_proxy(backend, closed());
    let (mut app, mut outside) = (lab.app(), lab.outside());
    let (inner, outer) = (app.serve_at(POD[0]), outside.serve_at(OUTSIDE[0]));
    app.dial(&outer).assert_captured(&outer);
    lab.captured.release().unwrap();
    lab.captured.release().unwrap();
    app.dial(&outer).assert_direct();
    outside.dial(&inner).assert_direct();
    let pins = leno_bpf::list(&leno_bpf::PinRoot::find().unwrap()).unwrap();
    assert!(pins.iter().all(|pin| pin.owner != lab.workload.name));
    for command in ["nft list ruleset", "iptables-save", "ip6tables-save"] {
        let rules = lab::inside(&lab.workload.netns, command).to_lowercase();
        assert!(!rules.contains("leno"), "{command}: {rules}");
    }
}

pub fn no_original_destination_is_lost_in_a_race(backend: Backend) {
    let (lab, _proxy) = Lab::with_proxy(backend, default());
    let mut app = lab.app();
    for vip in VIP {
        let result = app.ask(&format!("storm {STORM} {vip} 1000"));
        assert_eq!(result, format!("good={STORM} "));
    }
    // With netfilter some connections were counted more than once, but none less than once. The cause was not
    // investigated.
    assert!(lab.count("outbound_captured") >= 2 * STORM as u64);
    if backend == Backend::Ebpf {
        assert_eq!(lab.count("outbound_captured"), 2 * STORM as u64);
        assert_eq!(lab.count("original_accepted"), 2 * STORM as u64);
        assert_eq!(lab.count("original_missed"), 0);
    }
}

pub fn an_upgrade_under_traffic_loses_nothing(backend: Backend) {
    let (mut lab, _proxy) = Lab::with_proxy(backend, closed());
    let mut app = lab.app();
    app.send(&format!("storm {STORM} {} 1000", VIP[0]));
    let mut wanted = lab.workload.clone();
    for round in 0..5 {
        wanted.excluded = vec![("192.0.2.0".parse().unwrap(), 24 + round)];
        lab.captured.upgrade(&wanted).unwrap();
    }
    assert_eq!(app.answer(), format!("good={STORM} "));
}
