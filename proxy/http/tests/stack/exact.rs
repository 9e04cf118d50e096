//! Framing, trailers and upgrades exactly as RFC 9110 and 9112 define them, for all pairs of versions.

use crate::h2::support::{Settings, run};
use crate::pairs::{Bed, Ending, Message, PAIRS, Pair, Side};

const GET: Message = Message {
    h1: "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    h2: &[&[(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", "/")]],
    data: "",
    trailers: &[],
};

const NO_CONTENT: Message =
    Message { h1: "HTTP/1.1 204 X\r\n\r\n", h2: &[&[(":status", "204")]], data: "", trailers: &[] };

/// The sets of versions in which a server can send a message.
const BOTH: &[Side] = &[Side::H1, Side::H2];
const H1: &[Side] = &[Side::H1];

struct Response {
    what: &'static str,
    sides: &'static [Side],
    sent: Message,
    heads: &'static [&'static str],
    body: &'static str,
    trailers: &'static str,
    /// Whether an HTTP/1 connection to the server can be used for another request.
    reusable: bool,
}

const RESPONSES: &[Response] = &[
    Response {
        what: "204 with Content-Length",
        sides: BOTH,
        sent: Message {
            h1: "HTTP/1.1 204 X\r\nContent-Length: 5\r\nA: b\r\n\r\n",
            h2: &[&[(":status", "204"), ("content-length", "5"), ("a", "b")]],
            data: "",
            trailers: &[],
        },
        heads: &["204\na: b\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "204 with Transfer-Encoding",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\nA: b\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["204\na: b\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "204 with a coding that is not relayed",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.1 204 X\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["204\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "103 with framing and fields of the connection",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.1 103 X\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\nLink: c\r\n\
                 Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nUpgrade: x\r\n\r\n\
                 HTTP/1.1 204 X\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["103\nlink: c\n", "204\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "103 with Content-Length",
        sides: BOTH,
        sent: Message {
            h1: "HTTP/1.1 103 X\r\nContent-Length: 5\r\nLink: c\r\n\r\nHTTP/1.1 204 X\r\n\r\n",
            h2: &[
                &[(":status", "103"), ("content-length", "5"), ("link", "c")],
                &[(":status", "204")],
            ],
            data: "",
            trailers: &[],
        },
        heads: &["103\nlink: c\n", "204\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "HTTP/1.0 with Transfer-Encoding",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.0 200 X\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n\
                 2\r\nok\r\n0\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["200\n"],
        body: "ok",
        trailers: "",
        reusable: false,
    },
    Response {
        what: "equal lengths twice",
        sides: BOTH,
        sent: Message {
            h1: "HTTP/1.1 200 X\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
            h2: &[&[(":status", "200"), ("content-length", "2"), ("content-length", "2")]],
            data: "ok",
            trailers: &[],
        },
        heads: &["200\ncontent-length: 2\n"],
        body: "ok",
        trailers: "",
        reusable: true,
    },
    Response {
        what: "trailers that a receiver needs before the content",
        sides: BOTH,
        sent: Message {
            h1: "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\
                 Authorization: a\r\nX-Sum: 1\r\nSet-Cookie: b=c\r\nContent-Type: d\r\nX-End: 2\r\n\
                 WWW-Authenticate: e\r\nTrailer: f\r\n\r\n",
            h2: &[&[(":status", "200")]],
            data: "ok",
            trailers: &[
                ("authorization", "a"),
                ("x-sum", "1"),
                ("set-cookie", "b=c"),
                ("content-type", "d"),
                ("content-length", "3"),
                ("host", "b"),
                ("x-end", "2"),
                ("www-authenticate", "e"),
                ("trailer", "f"),
            ],
        },
        heads: &["200\n"],
        body: "ok",
        trailers: "x-sum: 1\nx-end: 2\n",
        reusable: true,
    },
    Response {
        what: "trailers of the connection, and those that Connection names",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\nConnection: x-hop, keep-alive\r\n\
                 X-Hop: 1\r\n\r\n2\r\nok\r\n0\r\nX-Hop: 2\r\nConnection: close\r\nKeep-Alive: 3\r\n\
                 TE: gzip\r\nUpgrade: x\r\nX-Sum: 1\r\nProxy-Connection: y\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["200\n"],
        body: "ok",
        trailers: "x-sum: 1\n",
        reusable: true,
    },
    Response {
        what: "an offer to upgrade that the client has not asked for",
        sides: H1,
        sent: Message {
            h1: "HTTP/1.1 200 X\r\nConnection: Upgrade\r\nUpgrade: h2,h2c\r\n\
                 Content-Length: 0\r\n\r\n",
            h2: &[],
            data: "",
            trailers: &[],
        },
        heads: &["200\ncontent-length: 0\n"],
        body: "",
        trailers: "",
        reusable: true,
    },
];

/// All pairs whose server has one of these versions.
fn pairs(sides: &[Side]) -> impl Iterator<Item = Pair> {
    PAIRS.into_iter().filter(|(_, server)| sides.contains(server))
}

#[test]
fn responses() {
    for case in RESPONSES {
        for pair in pairs(case.sides) {
            run(async {
                let what = format!("{}, {pair:?}", case.what);
                let mut bed = Bed::new(pair, Settings::default());
                bed.user.send(&GET).await;
                let mut app = bed.app().await;
                app.send(&case.sent).await;
                let seen = bed.user.response().await;
                assert_eq!(seen.heads, case.heads, "{what}");
                assert_eq!(seen.body, case.body.as_bytes(), "{what}");
                assert_eq!(seen.trailers, case.trailers, "{what}");
                assert_eq!(seen.ending, Ending::Whole, "{what}");
                let done = bed.done().await;
                assert!(done.failure.is_none(), "{what}: {:?}", done.failure);
                let h2 = pair.1 == Side::H2;
                assert_eq!(done.server_reusable, case.reusable || h2, "{what}");
                assert_eq!(done.client_reusable, case.reusable || pair.0 == Side::H2, "{what}");
            });
        }
    }
}

const TRAILERS: Message = Message {
    h1: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: x-hop\r\n\
         X-Hop: 1\r\n\r\n2\r\nok\r\n0\r\nAuthorization: a\r\nX-Sum: 1\r\nX-Hop: 2\r\nCookie: b=c\r\n\
         If-Match: d\r\nX-End: 2\r\nTE: trailers\r\nConnection: e\r\n\r\n",
    h2: &[&[(":method", "POST"), (":scheme", "http"), (":authority", "a"), (":path", "/")]],
    data: "ok",
    trailers: &[
        ("authorization", "a"),
        ("x-sum", "1"),
        ("cookie", "b=c"),
        ("if-match", "d"),
        ("host", "b"),
        ("content-length", "9"),
        ("x-end", "2"),
    ],
};

const LENGTH_TWICE: Message = Message {
    h1: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
    h2: &[&[
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
        ("content-length", "2"),
        ("content-length", "2"),
    ]],
    data: "ok",
    trailers: &[],
};

#[test]
fn requests() {
    for (message, head, trailers) in [
        (TRAILERS, "POST /\n", "x-sum: 1\nx-end: 2\n"),
        (LENGTH_TWICE, "POST /\ncontent-length: 2\n", ""),
    ] {
        for pair in PAIRS {
            run(async {
                let mut bed = Bed::new(pair, Settings::default());
                bed.user.send(&message).await;
                let mut app = bed.app().await;
                let seen = app.request().await;
                assert_eq!(seen.heads, [head], "{pair:?}");
                assert_eq!(seen.body, b"ok", "{pair:?}");
                assert_eq!(seen.trailers, trailers, "{pair:?}");
                app.send(&NO_CONTENT).await;
                assert_eq!(bed.user.response().await.heads, ["204\n"]);
                let done = bed.done().await;
                assert!(done.failure.is_none() && done.client_reusable, "{pair:?}");
            });
        }
    }
}

/// However the trailers are split, each is removed or forwarded as a whole.
#[test]
fn trailers_that_arrive_in_pieces_are_handled_as_a_whole() {
    for step in [1, 2, 3, 7, 31] {
        for pair in [PAIRS[0], PAIRS[1]] {
            run(async {
                let mut bed = Bed::new(pair, Settings::default());
                let crate::pairs::User::H1(far) = &mut bed.user else { unreachable!() };
                for piece in TRAILERS.h1.as_bytes().chunks(step) {
                    far.send(piece).await;
                    tokio::task::yield_now().await;
                }
                let seen = bed.app().await.request().await;
                assert_eq!(
                    (seen.body, &seen.trailers[..]),
                    (b"ok".to_vec(), "x-sum: 1\nx-end: 2\n")
                );
            });
        }
    }
}

#[test]
fn a_switch_to_a_protocol_that_the_client_did_not_ask_for_is_refused() {
    let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x, y\r\n\r\n";
    let asked = Message {
        h1: asked,
        h2: &[&[
            (":method", "CONNECT"),
            (":protocol", "x"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/"),
        ]],
        // The stream stays open.
        data: "",
        trailers: &[],
    };
    let switches: [(&'static str, bool); 4] = [
        ("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: z\r\n\r\n", false),
        ("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: x, z\r\n\r\n", false),
        ("HTTP/1.1 101 S\r\n\r\n", false),
        ("HTTP/1.1 101 S\r\nConnection: Upgrade\r\nUpgrade: X\r\n\r\n", true),
    ];
    for pair in pairs(H1) {
        for (switch, granted) in switches {
            run(async {
                let mut bed = Bed::new(pair, Settings::default());
                bed.user.upgrade(&asked).await;
                let mut app = bed.app().await;
                app.send(&Message { h1: switch, ..asked }).await;
                let head = bed.user.head().await;
                let status = if !granted {
                    "502"
                } else if pair.0 == Side::H1 {
                    "101"
                } else {
                    "200"
                };
                assert!(head.starts_with(status), "{pair:?}: {switch}: {head}");
                if !granted {
                    let failure = bed.done().await.failure.unwrap();
                    assert_eq!(failure.cause.label(), "unasked-upgrade");
                }
            });
        }
    }
}
