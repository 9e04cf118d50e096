//! Tests CONNECT with all four pairs of versions (RFC 9110 section 9.3.6, RFC 9113 section 8.5).

use leno_http::Party;

use crate::h2::support::{Settings, head, run};
use crate::pairs::{App, Bed, Ending, Message, PAIRS, Pair, Side};

const ASKS: Message = Message {
    h1: "CONNECT far.example:443 HTTP/1.1\r\nHost: far.example:443\r\n\r\n",
    h2: &[&[(":method", "CONNECT"), (":authority", "far.example:443")]],
    data: "",
    trailers: &[],
};

fn relaying(connect: bool) -> Settings {
    Settings { connect, tries: 1, ..Settings::default() }
}

fn in_all_pairs(connect: bool, scenario: impl AsyncFn(Pair, Bed)) {
    for pair in PAIRS {
        run(async { scenario(pair, Bed::new(pair, relaying(connect))).await });
    }
}

#[test]
fn a_connect_is_refused_unless_it_is_enabled() {
    in_all_pairs(false, async |pair, mut bed| {
        bed.user.upgrade(&ASKS).await;
        let seen = bed.user.response().await;
        assert!(seen.heads[0].starts_with("501\nleno-error: connect\n"), "{pair:?}: {seen:?}");
        if pair.0 == Side::H1 {
            // Bytes for the tunnel may follow, so the connection ends.
            assert_eq!(bed.user.rest().await, (vec![], Ending::Short), "{pair:?}");
        }
        let failure = bed.done().await.failure.unwrap();
        assert_eq!((failure.place, failure.cause.label()), (Party::Client, "connect"), "{pair:?}");
        assert!(!failure.retryable, "{pair:?}");
    });
}

#[test]
fn a_tunnel_carries_bytes_both_ways_until_both_sides_end_it() {
    in_all_pairs(true, async |pair, mut bed| {
        bed.user.upgrade(&ASKS).await;
        let mut app = bed.app().await;
        let asked = app.head().await;
        if let App::H2(head, _) = &app {
            assert_eq!(head.get(b":authority"), Some(&b"far.example:443"[..]), "{pair:?}");
            assert_eq!((head.get(b":path"), head.get(b":scheme")), (None, None), "{pair:?}");
        } else {
            assert_eq!(asked, "CONNECT far.example:443\n", "{pair:?}");
        }
        open(&mut app).await;
        let opened = bed.user.head().await;
        assert_eq!(opened, "200\n", "{pair:?}");
        // Bytes that look like another request belong to the tunnel, too.
        let bytes = "GET / HTTP/1.1\r\n\r\n";
        bed.user.raw(bytes).await;
        assert_eq!(app.take(bytes.len()).await, bytes.as_bytes(), "{pair:?}");
        app.raw("there").await;
        assert_eq!(bed.user.take(5).await, b"there", "{pair:?}");
        bed.user.finish().await;
        assert_eq!(app.rest().await, (vec![], app.ends_in_order()), "{pair:?}");
        app.raw("more").await;
        app.finish().await;
        assert_eq!(bed.user.rest().await, (b"more".to_vec(), bed.user.ends_in_order()), "{pair:?}");
        let done = bed.done().await;
        assert!(done.upgraded && done.failure.is_none(), "{pair:?}: {:?}", done.failure);
        assert_eq!(done.status, Some(200), "{pair:?}");
        assert!(!done.server_reusable || pair.1 == Side::H2, "{pair:?}");
    });
}

/// Opens the tunnel.
async fn open(app: &mut App) {
    match app {
        App::H1(_) => app.raw("HTTP/1.1 200 OK\r\n\r\n").await,
        App::H2(_, stream) => {
            stream.send_head(&head([(":status", "200")]), false);
        }
    }
}

/// Fields that would frame the response are not forwarded (RFC 9110 section 9.3.6).
#[test]
fn framing_fields_of_a_tunnels_response_are_not_forwarded() {
    for pair in PAIRS.into_iter().filter(|pair| pair.1 == Side::H1) {
        run(async {
            let mut bed = Bed::new(pair, relaying(true));
            bed.user.upgrade(&ASKS).await;
            let mut app = bed.app().await;
            app.head().await;
            app.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n")
                .await;
            assert_eq!(bed.user.head().await, "200\n", "{pair:?}");
            app.raw("0\r\n\r\nbytes").await;
            assert_eq!(bed.user.take(10).await, b"0\r\n\r\nbytes", "{pair:?}");
        });
    }
}

/// If the tunnel is refused, there is an ordinary response, and the client may send another request, for example with
/// credentials.
#[test]
fn a_refusal_of_the_server_is_an_ordinary_response() {
    in_all_pairs(true, async |pair, mut bed| {
        bed.user.upgrade(&ASKS).await;
        let mut app = bed.app().await;
        app.head().await;
        app.answer(407, Some(2), "no").await;
        let seen = bed.user.response().await;
        assert!(seen.heads[0].starts_with("407"), "{pair:?}: {seen:?}");
        assert_eq!((&seen.body[..], seen.ending), (&b"no"[..], Ending::Whole), "{pair:?}");
        if pair.0 == Side::H2 {
            // There is no tunnel, so the request ends here, and an HTTP/1 connection can be used for another request.
            bed.user.finish().await;
        }
        let done = bed.done().await;
        assert!(!done.upgraded && done.failure.is_none(), "{pair:?}: {:?}", done.failure);
        assert!(done.client_reusable, "{pair:?}");
    });
}
