//! Tests the peers by letting them talk to each other directly.

use super::*;
use crate::peer::{Event, checksum, talk};

fn dialogue(behaviour: impl Into<Behaviour>, steps: &[Step]) -> Vec<Event> {
    let server = Server::start(behaviour).unwrap();
    talk(&server.address().to_string(), steps).unwrap().events
}

fn get(target: &str) -> Step {
    Step::Send(format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n"))
}

#[test]
fn the_backend_answers_as_the_request_switches_it() {
    let events = dialogue(
        Backend { name: "b1".into() },
        &[
            get("/?size=30&chunked=4&trailers=1"),
            Step::Response(false),
            get("/?status=304"),
            Step::Response(false),
            Step::Send("HEAD /?size=9 HTTP/1.1\r\n\r\n".into()),
            Step::Response(true),
            Step::Send(
                "POST /seen HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
                    .into(),
            ),
            Step::Response(false),
            get("/?close=1"),
            Step::Response(false),
            Step::ReadToEnd,
        ],
    );
    let [
        Event::Response { status: 200, body_len: 30, trailers, body_sum, headers, .. },
        Event::Response { status: 304, body_len: 0, .. },
        Event::Response { status: 200, body_len: 0, .. },
        Event::Response { status: 200, interim, body, .. },
        Event::Response { status: 200, keep_alive: false, .. },
        Event::Bytes { len: 0, .. },
    ] = events.as_slice()
    else {
        panic!("{events:#?}");
    };
    assert_eq!(trailers, &[("x-checksum".to_string(), body_sum.to_string())]);
    assert!(headers.contains(&("x-served-by".into(), "b1".into())));
    assert_eq!(interim, &[100]);
    assert!(body.contains("\"body_len\":3") && body.contains("\"remote\":\"127.0.0.1:"), "{body}");
}

#[test]
fn large_bodies_and_chunked_uploads_come_back_whole() {
    let size = 1 << 20;
    let events = dialogue(
        Backend::default(),
        &[
            Step::Send(format!("POST /echo HTTP/1.1\r\nContent-Length: {size}\r\n\r\n")),
            Step::SendTimes("abcd".into(), size / 4),
            Step::Response(false),
            Step::Send("POST /seen HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;e\r\nc\r\n0\r\nX-T: v\r\n\r\n".into()),
            Step::Response(false),
        ],
    );
    let sum = checksum("abcd".repeat(size / 4).as_bytes());
    assert!(matches!(&events[0], Event::Response { body_len, body_sum, .. }
        if *body_len == size as u64 && *body_sum == sum));
    assert!(matches!(&events[1], Event::Response { body, .. }
        if body.contains("[\"x-t\",\"v\"]") && body.contains(&checksum(b"abc").to_string())));
}

#[test]
fn raw_servers_speak_first_echo_half_close_and_reset() {
    let banner = dialogue(
        Behaviour::Banner("220 ready\r\n".into()),
        &[
            Step::Expect("220 ready\r\n".into()),
            Step::Send("QUIT".into()),
            Step::ShutdownWrite,
            Step::ReadToEnd,
        ],
    );
    assert!(matches!(&banner[..], [Event::Bytes { text, .. }] if text == "QUIT"), "{banner:?}");
    let script = vec![Step::Expect("hi".into()), Step::Reset];
    let reset = dialogue(Behaviour::Script(script), &[Step::Send("hi".into()), Step::ReadToEnd]);
    assert!(matches!(&reset[..], [Event::Failed(_)]), "{reset:?}");
}

#[test]
fn an_upgraded_connection_carries_bytes() {
    let events = dialogue(
        Backend::default(),
        &[
            Step::Send(
                "GET /upgrade HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n".into(),
            ),
            Step::Response(false),
            Step::Send("ping".into()),
            Step::Expect("ping".into()),
            Step::ShutdownWrite,
            Step::ReadToEnd,
        ],
    );
    assert!(
        matches!(&events[..], [Event::Response { status: 101, .. }, Event::Bytes { len: 0, .. }]),
        "{events:?}"
    );
}
