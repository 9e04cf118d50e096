//! Runs each scenario with all four pairs of versions. The client and the server must see the same, and the exchange
//! must report the same.

use std::time::Duration;

use leno_h2::Code;
use leno_http::{Cause, Limits, Party};
use leno_tap::BodyCopies;
use tokio::time::{Instant, sleep, timeout};

use crate::h2::support::{Settings, run};
use crate::pairs::{App, Bed, Ending, Message, PAIRS, Pair, Side, User};

const SECOND: Duration = Duration::from_secs(1);

/// How long the server's work may continue after the client has left.
const AT_ONCE: Duration = Duration::from_millis(100);

fn settings() -> Settings {
    Settings { tries: 1, ..Settings::default() }
}

/// Runs `scenario` with every pair.
fn in_all_pairs(settings: impl Fn() -> Settings, scenario: impl AsyncFn(Pair, Bed)) {
    for pair in PAIRS {
        run(async { scenario(pair, Bed::new(pair, settings())).await });
    }
}

/// Whether the other end can distinguish this ending from the end of a complete message.
fn is_cut(ending: Ending) -> bool {
    match ending {
        Ending::Cut => true,
        Ending::Reset(code) => code != Code::NO_ERROR,
        Ending::Whole | Ending::Short => false,
    }
}

/// Whether the server learns that the proxy has cancelled the request, as far as the version of HTTP permits that.
fn is_called_off(pair: Pair, ending: Ending) -> bool {
    match pair.1 {
        // The connection has ended.
        Side::H1 => matches!(ending, Ending::Cut | Ending::Short),
        Side::H2 => ending == Ending::Reset(Code::CANCEL),
    }
}

async fn called_off_at_once(pair: Pair, app: &mut App, since: Instant) {
    let ending = timeout(SECOND, app.called_off()).await;
    let ending = ending.unwrap_or_else(|_| panic!("{pair:?}: the server works on"));
    assert!(is_called_off(pair, ending), "{pair:?}: {ending:?}");
    assert!(since.elapsed() <= AT_ONCE, "{pair:?}: {:?}", since.elapsed());
}

#[test]
fn the_beginnings_of_bodies_are_copied_unless_streams_are_linked() {
    let copies = BodyCopies::default();
    let settings = || Settings {
        copies: Some(copies.clone()),
        tries: 2,
        retry_on: Some(503),
        ..Settings::default()
    };
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(Some(6), "abc").await;
        bed.user.body("def", true).await;
        let mut first = bed.app().await;
        first.answer(503, Some(5), "later").await;
        bed.done().await;
        let mut app = bed.app().await;
        app.answer(200, Some(8192), &"x".repeat(4096)).await;
        app.body(&"y".repeat(4096), true).await;
        let seen = bed.user.response().await;
        assert_eq!((seen.body.len(), seen.ending), (8192, Ending::Whole), "{pair:?}");
        bed.done().await;
        let (request, response) = (copies.request.shown(), copies.response.shown());
        if (pair.0, pair.1) == (Side::H2, Side::H2) {
            assert_eq!((request, response), (None, None), "{pair:?}");
            return;
        }
        // The request is sent twice, but copied once.
        let (request, response) = (request.unwrap(), response.unwrap());
        assert_eq!((&*request.text, request.bytes), ("abcdef", 6), "{pair:?}");
        assert_eq!(*response.text, *"x".repeat(4096), "{pair:?}");
        assert_eq!((response.bytes, response.is_cut), (8192, true), "{pair:?}");
        copies.request.begin();
        copies.response.begin();
    });
}

#[test]
fn a_deadline_before_the_response_is_answered_with_504() {
    let settings = || Settings { deadline: Some(SECOND), ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        let begun = Instant::now();
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        let seen = bed.user.response().await;
        assert!(seen.heads[0].starts_with("504\nleno-error: deadline\n"), "{pair:?}: {seen:?}");
        assert_eq!(seen.ending, Ending::Whole, "{pair:?}");
        called_off_at_once(pair, &mut app, begun + SECOND).await;
        let failure = bed.done().await.failure.unwrap();
        assert!(matches!(failure.cause, Cause::Deadline), "{pair:?}");
        assert!(failure.place == Party::Server && !failure.retryable, "{pair:?}");
    });
}

#[test]
fn a_deadline_during_an_upload_is_answered_with_504() {
    let settings = || Settings { deadline: Some(SECOND), ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        let begun = Instant::now();
        bed.user.ask(Some(10), "abc").await;
        let mut app = bed.app().await;
        let head = bed.user.head().await;
        assert!(head.starts_with("504\nleno-error: deadline\n"), "{pair:?}: {head:?}");
        called_off_at_once(pair, &mut app, begun + SECOND).await;
        assert!(matches!(bed.done().await.failure.unwrap().cause, Cause::Deadline), "{pair:?}");
    });
}

#[test]
fn an_attempt_that_takes_too_long_is_retryable() {
    let settings = || Settings { response_within: Some(SECOND), ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        let begun = Instant::now();
        bed.user.ask(Some(3), "abc").await;
        let mut app = bed.app().await;
        let failure = bed.done().await.failure.unwrap();
        assert!(matches!(failure.cause, Cause::Late) && failure.retryable, "{pair:?}");
        assert_eq!(failure.place, Party::Server, "{pair:?}");
        called_off_at_once(pair, &mut app, begun + SECOND).await;
    });
    // Interim responses, such as the 100 that many servers send at once, do not extend the time limit.
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.head().await;
        for status in [100, 103] {
            app.interim(status).await;
            assert_eq!(bed.user.head().await, format!("{status}\n"), "{pair:?}");
        }
        let head = bed.user.head().await;
        assert!(head.starts_with("504\nleno-error: response-timeout\n"), "{pair:?}: {head:?}");
        assert!(matches!(bed.done().await.failure.unwrap().cause, Cause::Late), "{pair:?}");
    });
    // A response that has begun may take longer.
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.answer(200, Some(4), "ab").await;
        sleep(10 * SECOND).await;
        app.body("cd", true).await;
        let seen = bed.user.response().await;
        assert_eq!((&seen.body[..], seen.ending), (&b"abcd"[..], Ending::Whole), "{pair:?}");
        assert!(bed.done().await.failure.is_none(), "{pair:?}");
    });
}

#[test]
fn the_wait_for_a_server_that_reports_progress_continues() {
    let settings = || {
        let limits = Limits { response_wait: 5 * SECOND, ..Limits::default() };
        Settings { limits, ..settings() }
    };
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.head().await;
        for _ in 0..4 {
            sleep(4 * SECOND).await;
            app.interim(102).await;
            assert_eq!(bed.user.head().await, "102\n", "{pair:?}");
        }
        let head = bed.user.head().await;
        assert!(head.starts_with("504\nleno-error: stalled\n"), "{pair:?}: {head:?}");
        assert!(matches!(bed.done().await.failure.unwrap().cause, Cause::Stalled), "{pair:?}");
    });
}

/// A part of a response cannot be mistaken for the whole, neither if its length is known nor if it ends with the last
/// chunk or END_STREAM.
#[test]
fn a_deadline_during_a_response_truncates_it_visibly() {
    let settings = || Settings { deadline: Some(SECOND), ..settings() };
    for length in [Some(10), None] {
        in_all_pairs(settings, async |pair, mut bed| {
            let begun = Instant::now();
            bed.user.ask(None, "").await;
            let mut app = bed.app().await;
            app.answer(200, length, "abc").await;
            let seen = bed.user.response().await;
            assert_eq!((&seen.body[..], is_cut(seen.ending)), (&b"abc"[..], true), "{pair:?}");
            called_off_at_once(pair, &mut app, begun + SECOND).await;
            let done = bed.done().await;
            assert!(done.response_started && !done.client_reusable, "{pair:?}");
            assert!(matches!(done.failure.unwrap().cause, Cause::Deadline), "{pair:?}");
        });
    }
}

/// The same test for a body that ends with the connection. Only a reset shows that the body was truncated.
#[test]
fn a_deadline_during_a_body_without_framing_truncates_it_visibly() {
    let settings = || Settings { deadline: Some(SECOND), ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        let http10 = "GET / HTTP/1.0\r\n\r\n";
        match &mut bed.user {
            User::H1(far) => far.send(http10).await,
            user => user.ask(None, "").await,
        }
        let mut app = bed.app().await;
        match &mut app {
            App::H1(far) => far.send("HTTP/1.0 200 X\r\n\r\nabc").await,
            app => app.answer(200, None, "abc").await,
        }
        assert!(bed.user.head().await.starts_with("200\n"), "{pair:?}");
        let (body, ending) = bed.user.rest().await;
        assert_eq!((&body[..], is_cut(ending)), (&b"abc"[..], true), "{pair:?}: {ending:?}");
    });
}

const UPGRADE: Message = Message {
    h1: "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    h2: &[&[
        (":method", "CONNECT"),
        (":protocol", "x"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
    ]],
    data: "",
    trailers: &[],
};

/// Lets another protocol take over. An HTTP/2 server must have announced in its SETTINGS that it permits this, so an
/// ordinary request comes first.
async fn upgraded(bed: &mut Bed) -> App {
    bed.user.ask(None, "").await;
    let mut app = bed.app().await;
    app.answer(200, Some(2), "ok").await;
    assert_eq!(bed.user.response().await.body, b"ok");
    assert!(bed.done().await.failure.is_none());
    bed.user.upgrade(&UPGRADE).await;
    let mut app = bed.app().await;
    app.head().await;
    app.switch().await;
    let head = bed.user.head().await;
    assert!(head.starts_with("101\n") || head.starts_with("200\n"), "{head}");
    app
}

#[test]
fn an_upgraded_connection_passes_bytes_and_both_ends() {
    for client_first in [true, false] {
        in_all_pairs(settings, async |pair, mut bed| {
            let mut app = upgraded(&mut bed).await;
            bed.user.raw("ping").await;
            assert_eq!(app.take(4).await, b"ping", "{pair:?}");
            app.raw("pong").await;
            assert_eq!(bed.user.take(4).await, b"pong", "{pair:?}");
            if client_first {
                bed.user.finish().await;
                assert_eq!(app.rest().await, (vec![], app.ends_in_order()), "{pair:?}");
                app.raw("more").await;
                assert_eq!(bed.user.take(4).await, b"more", "{pair:?}");
                app.finish().await;
                assert_eq!(bed.user.rest().await, (vec![], bed.user.ends_in_order()), "{pair:?}");
            } else {
                app.finish().await;
                assert_eq!(bed.user.rest().await, (vec![], bed.user.ends_in_order()), "{pair:?}");
                bed.user.raw("more").await;
                assert_eq!(app.take(4).await, b"more", "{pair:?}");
                bed.user.finish().await;
                assert_eq!(app.rest().await, (vec![], app.ends_in_order()), "{pair:?}");
            }
            let done = bed.done().await;
            assert!(done.upgraded && done.failure.is_none(), "{pair:?}: {:?}", done.failure);
        });
    }
}

/// Both sides of an upgraded connection see a reset, and not a proper end.
#[test]
fn an_upgraded_connection_that_lasts_too_long_is_reset_on_both_sides() {
    let settings = || Settings { upgraded_for: Some(5 * SECOND), ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        let mut app = upgraded(&mut bed).await;
        let begun = Instant::now();
        app.raw("part").await;
        assert_eq!(bed.user.take(4).await, b"part", "{pair:?}");
        let (rest, ending) = bed.user.rest().await;
        assert!(rest.is_empty() && is_cut(ending), "{pair:?}, client: {ending:?}");
        assert_eq!(begun.elapsed().as_secs(), 5, "{pair:?}");
        let (rest, ending) = app.rest().await;
        assert!(rest.is_empty() && is_cut(ending), "{pair:?}, server: {ending:?}");
        let failure = bed.done().await.failure.unwrap();
        assert_eq!(failure.cause.label(), "stream-timeout", "{pair:?}");
    });
}

#[test]
fn an_upgraded_connection_that_the_server_resets_is_reset() {
    in_all_pairs(settings, async |pair, mut bed| {
        let app = upgraded(&mut bed).await;
        match app {
            App::H1(far) => far.break_off(),
            app => app.reset(),
        }
        let (_, ending) = bed.user.rest().await;
        assert!(is_cut(ending), "{pair:?}: {ending:?}");
        assert!(bed.done().await.failure.is_some(), "{pair:?}");
    });
}

#[test]
fn the_servers_work_ends_if_the_client_leaves_while_it_waits() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.head().await;
        let left = Instant::now();
        bed.leave();
        called_off_at_once(pair, &mut app, left).await;
        let failure = bed.done().await.failure.unwrap();
        assert_eq!((failure.place, failure.retryable), (Party::Client, false), "{pair:?}");
    });
}

#[test]
fn the_servers_work_ends_if_the_client_leaves_during_its_upload() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(Some(10), "abc").await;
        let mut app = bed.app().await;
        app.head().await;
        let left = Instant::now();
        bed.leave();
        called_off_at_once(pair, &mut app, left).await;
        assert_eq!(bed.done().await.failure.unwrap().place, Party::Client, "{pair:?}");
    });
}

#[test]
fn the_servers_work_ends_if_the_client_leaves_during_a_response() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.answer(200, None, "abc").await;
        assert!(bed.user.head().await.starts_with("200\n"));
        let left = Instant::now();
        bed.leave();
        called_off_at_once(pair, &mut app, left).await;
        assert_eq!(bed.done().await.failure.unwrap().place, Party::Client, "{pair:?}");
    });
}

/// If a client leaves during the back-off between two attempts, nothing more is sent for it.
#[test]
fn there_is_no_retry_for_a_client_that_has_left() {
    let settings =
        || Settings { tries: 2, retry_on: Some(503), back_off: 5 * SECOND, ..settings() };
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        app.head().await;
        app.answer(503, Some(0), "").await;
        assert!(matches!(bed.done().await.failure.unwrap().cause, Cause::Refused), "{pair:?}");
        bed.leave();
        let failure = bed.done().await.failure.unwrap();
        assert_eq!(failure.place, Party::Client, "{pair:?}: {failure}");
        match timeout(SECOND, bed.next_app()).await {
            // A connection that was opened for the client carries no request.
            Ok(Some(App::H1(mut far))) => assert_eq!(far.rest().await.0, b"", "{pair:?}"),
            Ok(Some(App::H2(..))) => panic!("{pair:?}: a request for a client that has left"),
            Ok(None) | Err(_) => {}
        }
    });
}

#[test]
fn a_response_may_precede_the_end_of_the_upload() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(Some(6), "abc").await;
        let mut app = bed.app().await;
        app.head().await;
        app.answer(413, Some(2), "no").await;
        assert_eq!(bed.user.head().await, "413\ncontent-length: 2\n", "{pair:?}");
        assert_eq!(bed.user.take(2).await, b"no", "{pair:?}");
        bed.user.body("def", true).await;
        let done = bed.done().await;
        assert!(done.failure.is_none() && done.client_reusable, "{pair:?}: {:?}", done.failure);
        assert_eq!(done.status, Some(413), "{pair:?}");
    });
}

#[test]
fn a_body_is_sent_after_a_100() {
    const EXPECTS: Message = Message {
        h1: "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n",
        h2: &[&[
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/"),
            ("expect", "100-continue"),
            ("content-length", "3"),
        ]],
        data: "",
        trailers: &[],
    };
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.upgrade(&EXPECTS).await;
        let mut app = bed.app().await;
        let head = "POST /\nexpect: 100-continue\ncontent-length: 3\n";
        assert_eq!(app.head().await, head, "{pair:?}");
        app.interim(100).await;
        assert_eq!(bed.user.head().await, "100\n", "{pair:?}");
        bed.user.body("abc", true).await;
        assert_eq!(app.take(3).await, b"abc", "{pair:?}");
        app.answer(200, Some(2), "ok").await;
        assert_eq!(bed.user.response().await.body, b"ok", "{pair:?}");
        let done = bed.done().await;
        assert!(done.failure.is_none() && done.client_reusable && done.server_reusable, "{pair:?}");
    });
    // The server refuses. It is unknown whether the client still sends the body, so HTTP/1 connections end.
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.upgrade(&EXPECTS).await;
        let mut app = bed.app().await;
        app.head().await;
        app.answer(417, Some(0), "").await;
        assert_eq!(bed.user.head().await, "417\ncontent-length: 0\n", "{pair:?}");
        let done = bed.done().await;
        assert!(done.failure.is_none(), "{pair:?}");
        assert_eq!(done.client_reusable, pair.0 == Side::H2, "{pair:?}");
        assert_eq!(done.server_reusable, pair.1 == Side::H2, "{pair:?}");
    });
}

#[test]
fn a_server_that_resets_is_blamed() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(None, "").await;
        bed.app().await.reset();
        let seen = bed.user.response().await;
        assert!(seen.heads[0].starts_with("502\n"), "{pair:?}: {seen:?}");
        let failure = bed.done().await.failure.unwrap();
        assert!(failure.retryable && failure.place == Party::Server, "{pair:?}");
    });
    for length in [Some(10), None] {
        in_all_pairs(settings, async |pair, mut bed| {
            bed.user.ask(None, "").await;
            let mut app = bed.app().await;
            app.answer(200, length, "abc").await;
            assert!(bed.user.head().await.starts_with("200\n"), "{pair:?}");
            app.reset();
            let (_, ending) = bed.user.rest().await;
            assert!(is_cut(ending), "{pair:?}: {ending:?}");
            let failure = bed.done().await.failure.unwrap();
            assert!(!failure.retryable && failure.place == Party::Server, "{pair:?}");
        });
    }
}

#[test]
fn a_reset_after_interim_responses_is_answered_by_the_proxy() {
    for status in [100, 103] {
        in_all_pairs(settings, async |pair, mut bed| {
            bed.user.ask(None, "").await;
            let mut app = bed.app().await;
            app.head().await;
            app.interim(status).await;
            assert_eq!(bed.user.head().await, format!("{status}\n"), "{pair:?}");
            app.reset();
            assert!(bed.user.head().await.starts_with("502\n"), "{pair:?}");
            let done = bed.done().await;
            assert!(!done.response_started, "{pair:?}");
            assert_eq!(done.failure.map(|failure| failure.place), Some(Party::Server), "{pair:?}");
        });
    }
}

/// Another server may send a better response, and the policy decides whether the request is retried.
#[test]
fn a_response_that_is_not_http_is_retryable() {
    in_all_pairs(settings, async |pair, mut bed| {
        bed.user.ask(Some(3), "abc").await;
        let mut app = bed.app().await;
        app.request().await;
        match &mut app {
            App::H1(far) => far.send("+OK POP3 ready\r\n").await,
            App::H2(_, stream) => {
                let malformed: leno_h2::Head = [(":status", "20x")].into_iter().collect();
                stream.send_head(&malformed, true);
            }
        }
        assert!(bed.user.response().await.heads[0].starts_with("502\n"), "{pair:?}");
        let failure = bed.done().await.failure.unwrap();
        assert!(failure.retryable && failure.place == Party::Server, "{pair:?}: {failure}");
    });
}

/// If the client reads nothing of a response, the proxy waits only for a limited time, and the client can see that the
/// response is incomplete.
#[test]
fn a_response_that_its_client_does_not_read_ends() {
    let settings = || {
        let stall = Limits { write_stall: 5 * SECOND, ..Limits::default() };
        let h2 = leno_h2::Limits { write_stall: 5 * SECOND, ..leno_h2::Limits::default() };
        Settings { limits: stall, h2, pipe: 4096, ..settings() }
    };
    in_all_pairs(settings, async |pair, mut bed| {
        let begun = Instant::now();
        bed.user.ask(None, "").await;
        let mut app = bed.app().await;
        let whole = "x".repeat(1 << 20);
        let send = async {
            app.answer(200, Some(whole.len()), &whole).await;
            app.called_off().await
        };
        let (_, done) = tokio::join!(timeout(60 * SECOND, send), bed.done.recv());
        let failure = done.unwrap().failure.unwrap();
        assert!(matches!(failure.cause, Cause::Stalled | Cause::Reset(_)), "{pair:?}: {failure}");
        assert!(begun.elapsed() <= 12 * SECOND, "{pair:?}: {:?}", begun.elapsed());
        let (_, ending) = bed.user.rest().await;
        assert!(is_cut(ending), "{pair:?}: {ending:?}");
    });
}
