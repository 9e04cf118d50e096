//! Tests how flows are opened, authorized, kept apart and ended.

use super::*;

#[test]
fn datagrams_of_a_connected_and_of_an_unconnected_socket_come_back() {
    run(async {
        let pair = Pair::start().await;
        let unconnected = socket().await;
        pair.reaches(&unconnected, b"one").await;
        let connected = socket().await;
        connected.connect(pair.placeholder()).await.unwrap();
        let mut buffer = [0; 16];
        connected.send(b"two").await.unwrap();
        let length = timeout(SOON, connected.recv(&mut buffer)).await.unwrap().unwrap();
        assert_eq!(&buffer[..length], b"two");
        // An empty datagram is forwarded, too.
        unconnected.send_to(b"", pair.placeholder()).await.unwrap();
        assert_eq!(hears(&unconnected).await, (Vec::new(), pair.placeholder()));
        let asked = pair.server.gate.asked.borrow().clone();
        let ports: Vec<u16> = asked.iter().map(|one| one.client.port()).collect();
        let own = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        assert_eq!(ports, [own(&unconnected), own(&connected)]);
        assert_eq!(asked[0].identity, identity(WEB));
        assert_eq!(asked[0].server, pair.application);
        assert_eq!(asked[0].client.ip(), ip("127.0.0.1"));
        let open = pair.client.datagrams.open();
        assert_eq!((open.flows[0], open.connections[0]), (2, 1), "flows share a connection");
        let open = pair.server.datagrams.open();
        assert_eq!((open.flows[1], open.connections[1]), (2, 1));
    });
}

#[test]
fn the_application_sees_a_port_for_each_flow() {
    run(async {
        let pair = Pair::start().await;
        let application = UdpSocket::bind((ip(SERVER), 0)).await.unwrap();
        pair.server.gate.application.replace(vec![application.local_addr().unwrap()]);
        let (a, b) = (socket().await, socket().await);
        a.send_to(b"a", pair.placeholder()).await.unwrap();
        let (heard, from_a) = hears(&application).await;
        assert_eq!((heard.as_slice(), from_a.ip()), (&b"a"[..], ip(STAND_IN)));
        b.send_to(b"b", pair.placeholder()).await.unwrap();
        let (_, from_b) = hears(&application).await;
        assert_ne!(from_a, from_b);
        application.send_to(b"to b", from_b).await.unwrap();
        application.send_to(b"to a", from_a).await.unwrap();
        assert_eq!(hears(&a).await.0, b"to a");
        assert_eq!(hears(&b).await.0, b"to b");
    });
}

#[test]
fn one_socket_reaches_two_destinations_that_are_not_mixed() {
    run(async {
        let pair = Pair::start().await;
        let outside = echo("127.0.0.9").await;
        pair.client.leads("127.64.0.2", outside, Route::Outside(outside));
        let other = SocketAddr::new(ip("127.64.0.2"), pair.client.captured_at);
        let socket = socket().await;
        pair.reaches(&socket, b"mesh").await;
        for round in 0..50_u8 {
            let (to, payload) = match round % 2 {
                0 => (pair.placeholder(), [b'm', round]),
                _ => (other, [b'o', round]),
            };
            socket.send_to(&payload, to).await.unwrap();
            assert_eq!(hears(&socket).await, (payload.to_vec(), to));
        }
        assert_eq!(pair.client.count(Count::OutboundOutside), 1);
        assert!(pair.server.count(Count::InboundReceived) >= 26);
    });
}

#[test]
fn an_application_on_another_address_is_found() {
    run(async {
        let pair = Pair::start().await;
        let nowhere = UdpSocket::bind((ip(SERVER), 0)).await.unwrap().local_addr().unwrap();
        pair.server.gate.application.replace(vec![nowhere, pair.application]);
        pair.reaches(&socket().await, b"found").await;
    });
}

#[test]
fn a_flow_that_is_denied_carries_nothing_until_it_is_permitted() {
    run(async {
        let pair = Pair::start().await;
        pair.server.gate.refusal.send_replace(Some(Refusal::Denied));
        let socket = socket().await;
        for _ in 0..20 {
            socket.send_to(b"denied", pair.placeholder()).await.unwrap();
        }
        hears_nothing(&socket).await;
        assert_eq!(pair.server.count(Count::InboundReceived), 0);
        assert_eq!(pair.server.count(Count::InboundDenied), 1, "it is not asked for again at once");
        pair.client.counted(Count::OutboundRefused, 1).await;
        pair.server.gate.refusal.send_replace(None);
        pair.reaches(&socket, b"permitted").await;
    });
}

#[test]
fn a_flow_ends_when_it_is_permitted_no_more() {
    run(async {
        let pair = Pair::start().await;
        let socket = socket().await;
        pair.reaches(&socket, b"permitted").await;
        pair.server.gate.refusal.send_replace(Some(Refusal::Denied));
        pair.server.counted(Count::InboundRevoked, 1).await;
        let before = pair.server.count(Count::InboundReceived);
        for _ in 0..20 {
            socket.send_to(b"late", pair.placeholder()).await.unwrap();
        }
        hears_nothing(&socket).await;
        assert_eq!(pair.server.count(Count::InboundReceived), before);
        assert_eq!(pair.server.datagrams.open().flows[1], 0);
    });
}

#[test]
fn datagrams_to_no_destination_are_dropped() {
    run(async {
        let pair = Pair::start().await;
        let socket = socket().await;
        let unknown = SocketAddr::new(ip("127.64.7.7"), pair.client.captured_at);
        socket.send_to(b"x", unknown).await.unwrap();
        pair.client.counted(Count::OutboundNoDestination, 1).await;
        assert_eq!(pair.client.datagrams.open().flows[0], 0);
        pair.reaches(&socket, b"known").await;
    });
}

#[test]
fn a_flood_takes_no_more_than_there_is_room_for_and_harms_no_other_flow() {
    run(async {
        let pair = Pair::start().await;
        let calm = socket().await;
        pair.reaches(&calm, b"before").await;
        let flood = socket().await;
        let payload = [7; 1000];
        for _ in 0..20_000 {
            flood.send_to(&payload, pair.placeholder()).await.unwrap();
            tokio::task::yield_now().await;
        }
        pair.reaches(&calm, b"after").await;
        let sent = pair.client.count(Count::OutboundSent);
        let dropped = pair.client.count(Count::OutboundCongested);
        assert!(sent > 100, "{sent} sent, {dropped} dropped");
        assert_eq!(pair.client.datagrams.open().flows[0], 2);
    });
}

/// The largest datagrams that the guide documents: at first, once the path's size is known, and for a flow whose number
/// takes one more byte.
#[test]
fn the_largest_datagrams_pass_in_both_directions_and_one_byte_more_is_dropped_and_counted() {
    const AT_FIRST: usize = 1161;
    const MOST: usize = 1413;
    const FLOWS_OF_ONE_BYTE: usize = 64;
    run(async {
        let pair = Pair::start().await;
        let first = socket().await;
        pair.reaches(&first, &[1; AT_FIRST]).await;
        let too_large = |pair: &Pair| {
            (pair.client.count(Count::OutboundTooLarge), pair.server.count(Count::InboundTooLarge))
        };
        assert_eq!(too_large(&pair), (0, 0));
        let drops_more = async |socket: &UdpSocket, most: usize| {
            pair.reaches(socket, &vec![2; most]).await;
            let before = too_large(&pair);
            socket.send_to(&vec![3; most + 1], pair.placeholder()).await.unwrap();
            pair.client.counted(Count::OutboundTooLarge, before.0 + 1).await;
            hears_nothing(socket).await;
            assert_eq!(too_large(&pair), (before.0 + 1, before.1));
        };
        drops_more(&first, MOST).await;
        let mut others = Vec::new();
        for _ in 0..FLOWS_OF_ONE_BYTE {
            let other = socket().await;
            pair.reaches(&other, b"another flow").await;
            others.push(other);
        }
        let last = others.pop().unwrap();
        drops_more(&last, MOST - 1).await;
        drops_more(&others.pop().unwrap(), MOST).await;

        // Now the server's application sends: the largest datagram passes, and one byte more is dropped.
        let application = UdpSocket::bind((ip(SERVER), 0)).await.unwrap();
        pair.server.gate.application.replace(vec![application.local_addr().unwrap()]);
        let client = socket().await;
        client.send_to(b"ask", pair.placeholder()).await.unwrap();
        let (_, stand_in) = hears(&application).await;
        application.send_to(&[4; MOST - 1], stand_in).await.unwrap();
        assert_eq!(hears(&client).await.0, [4; MOST - 1]);
        let before = too_large(&pair).1;
        application.send_to(&[5; MOST], stand_in).await.unwrap();
        pair.server.counted(Count::InboundTooLarge, before + 1).await;
        hears_nothing(&client).await;
    });
}

#[test]
fn a_flow_ends_when_its_route_is_another_one() {
    run(async {
        let pair = Pair::start().await;
        let socket = socket().await;
        let outside = echo("127.0.0.9").await;
        let to = pair.application;
        for (route, opened) in [
            (Route::Outside(outside), Count::OutboundOutside),
            (pair.route(CART), Count::OutboundOpened),
            (Route::Outside(outside), Count::OutboundOutside),
        ] {
            let before = pair.client.count(opened);
            pair.client.leads(PLACEHOLDER, to, route);
            pair.client.datagrams.sweep();
            pair.reaches(&socket, b"by this route").await;
            pair.client.datagrams.sweep();
            pair.reaches(&socket, b"by this route still").await;
            assert_eq!(pair.client.count(opened), before + 1);
        }
        assert_eq!(pair.client.count(Count::OutboundMoved), 2);
        assert_eq!(pair.server.datagrams.open().flows[1], 0, "its stream has ended");
    });
}
