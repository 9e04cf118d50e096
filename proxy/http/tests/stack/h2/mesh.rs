//! Tests HTTP/1 through two proxies with HTTP/2 between them: messages must arrive unchanged.

use leno_h2::Code;
use leno_http::Party;

use super::support::{
    Settings, gateway, h2_h2, head, lines, mesh, mesh_to_h2, next, pattern, request, run, server,
};

/// Sends a request and a response through two proxies. Returns both as they arrived.
async fn through(requested: &str, responded: &str) -> (String, String) {
    let (mut client, mut servers, ..) = mesh(Settings::default(), Settings::default());
    client.send(requested).await;
    let mut app = server(&mut servers).await;
    let asked = app.head().await;
    app.send(responded).await;
    let answered = client.head().await;
    (asked, answered)
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

#[test]
fn requests_arrive_unchanged() {
    let same = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /p?q HTTP/1.1\r\nHost: a:80\r\nUser-Agent: x\r\nAccept: */*\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nuser-agent: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX-API-Key: 1\r\nETag: 2\r\nwww-AUTH: 3\r\n\r\n",
        "GET / HTTP/1.1\r\nHOST: a\r\nX: 1\r\n\r\n",
        "GET http://a/p HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a:80/p HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a?q HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: \r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b; c=d\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nTe: trailers\r\nConnection: TE\r\n\r\n",
        "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "POST /tcp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
        "POST /tcp HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Length: 0\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        "OPTIONS http://a HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
    ];
    run(async {
        for request in same {
            assert_eq!(through(request, OK).await.0, request);
        }
        // The changes that HTTP requires of a hop are the same as they would be without HTTP/2 between the proxies.
        let changed = [
            (
                "GET / HTTP/1.0\r\nUser-Agent: x\r\n\r\n",
                "GET / HTTP/1.0\r\nUser-Agent: x\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                "GET / HTTP/1.0\r\nHost: a\r\nConnection: close\r\n\r\n",
                "GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: a\r\nConnection: close, x\r\nX: 1\r\nleno-h1: 1.0 T\r\n\r\n",
                "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            ),
        ];
        for (request, expected) in changed {
            assert_eq!(through(request, OK).await.0, expected);
        }
    });
}

#[test]
fn responses_arrive_unchanged() {
    let same = [
        OK,
        "HTTP/1.1 200 OK\r\nServer: x\r\nETag: y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 Gone Fishing\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 404 \r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nserver: x\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nServer: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
    ];
    run(async {
        for response in same {
            assert_eq!(through("GET / HTTP/1.1\r\nHost: a\r\n\r\n", response).await.1, response);
        }
        let old = "HTTP/1.0 200 Fine\r\nContent-Length: 0\r\n\r\n";
        let kept = "HTTP/1.0 200 Fine\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n";
        assert_eq!(through("GET / HTTP/1.1\r\nHost: a\r\n\r\n", old).await.1, kept);
        let closed = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        assert_eq!(through("GET / HTTP/1.0\r\n\r\n", OK).await.1, closed);
    });
}

#[test]
fn a_websocket_passes_through_two_proxies() {
    run(async {
        let (mut client, mut servers, mut first, mut second) =
            mesh(Settings::default(), Settings::default());
        let asked = "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                     Sec-WebSocket-Version: 13\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        client.send(asked).await;
        let mut app = server(&mut servers).await;
        app.expect(asked).await;
        let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
        let switch = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{accept}\r\n"
        );
        app.send(&switch).await;
        app.send("hello").await;
        client.expect(&switch).await;
        client.expect("hello").await;
        client.send("ping").await;
        app.expect("ping").await;
        app.finish().await;
        client.expect_end().await;
        client.send("still").await;
        client.finish().await;
        app.expect("still").await;
        app.expect_end().await;
        for done in [first.recv().await.unwrap(), second.recv().await.unwrap()] {
            assert!(done.upgraded && done.failure.is_none(), "{:?}", done.failure);
        }
    });
}

#[test]
fn an_upgrade_that_is_not_granted_is_an_ordinary_response() {
    run(async {
        let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: foo\r\n\r\n";
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        let (mut client, mut servers, mut first, mut second) =
            mesh(Settings::default(), Settings::default());
        client.send(asked).await;
        let mut app = server(&mut servers).await;
        for _ in 0..2 {
            app.expect(asked).await;
            app.send(answer).await;
            client.expect(answer).await;
            assert!(first.recv().await.unwrap().client_reusable);
            assert!(second.recv().await.unwrap().server_reusable);
            client.send(asked).await;
        }
    });
}

#[test]
fn chunks_trailers_and_truncated_bodies_arrive_as_such() {
    run(async {
        let (mut client, mut servers, mut first, _) =
            mesh(Settings::default(), Settings::default());
        let message = "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n";
        client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{message}")).await;
        let mut app = server(&mut servers).await;
        app.expect("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        app.expect("5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n").await;
        app.send(format!("HTTP/1.1 200 OK\r\n{message}")).await;
        client.expect(format!("HTTP/1.1 200 OK\r\n{message}")).await;
        assert!(first.recv().await.unwrap().client_reusable);
        client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
        app.head().await;
        app.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
        client.head().await;
        app.finish().await;
        assert!(!client.rest().await.contains("\r\n0\r\n"));
        assert!(first.recv().await.unwrap().failure.is_some());
    });
}

#[test]
fn large_bodies_pass_in_both_directions() {
    for settings in [Settings::default(), super::support::small_windows()] {
        run(async {
            let (mut client, mut servers, ..) = mesh(settings.clone(), settings);
            let content = pattern(10 << 20);
            let length = content.len();
            let head = format!("Content-Length: {length}\r\n\r\n");
            let user = async {
                client.send(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}")).await;
                client.send(&content).await;
                client.expect(format!("HTTP/1.1 200 OK\r\n{head}")).await;
                client.expect(&content).await;
            };
            let app = async {
                let mut app = server(&mut servers).await;
                app.expect(format!("POST / HTTP/1.1\r\nHost: a\r\n{head}")).await;
                app.expect(&content).await;
                app.send(format!("HTTP/1.1 200 OK\r\n{head}")).await;
                app.send(&content).await;
                app
            };
            tokio::join!(user, app);
        });
    }
}

const CHAT: &str = "GET /chat HTTP/1.1\r\nHost: a\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
    Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";

#[test]
fn a_proxy_between_two_others_changes_nothing() {
    run(async {
        let (mut client, mut servers) = gateway();
        let asked = "GET http://a:80/x HTTP/1.1\r\nHost: a\r\nX-ABC: 1\r\n\r\n";
        let answer = "HTTP/1.1 299 Fine\r\nx-ABC: 1\r\ncontent-length: 2\r\n\r\nok";
        client.send(asked).await;
        let mut app = server(&mut servers).await;
        app.expect(asked).await;
        app.send(answer).await;
        client.expect(answer).await;
        // At first the server refuses the upgrade, then it grants one.
        client.send(CHAT).await;
        app.expect(CHAT).await;
        app.send(answer).await;
        client.expect(answer).await;
        client.send(CHAT).await;
        app.expect(CHAT).await;
        let switch = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                      Connection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n";
        app.send(switch).await;
        client.expect(switch).await;
        client.send("ping").await;
        app.expect("ping").await;
        app.send("pong").await;
        client.expect("pong").await;
    });
}

#[test]
fn an_application_that_speaks_http2_serves_clients_that_do_not() {
    run(async {
        let (mut client, mut app, mut done) = mesh_to_h2();
        client.send("GET http://a/x HTTP/1.1\r\nHost: a\r\nX-ABC: 1\r\n\r\n").await;
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(
            lines(&asked),
            ":method: GET\n:scheme: http\n:authority: a\n:path: /x\nx-abc: 1\n"
        );
        answer.send_head(&head([(":status", "204"), ("leno-h1", "1.0 T")]), true);
        client.expect("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert!(done.recv().await.unwrap().client_reusable);
        client.send(CHAT).await;
        let (asked, mut answer) = next(&mut app).await;
        assert_eq!(asked.get(b":protocol"), Some(&b"websocket"[..]));
        answer.send_head(&head([(":status", "200")]), false);
        client
            .expect(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-Websocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            )
            .await;
        client.send("ping").await;
        assert_eq!(&*answer.data().await.unwrap().unwrap(), b"ping");
    });
}

/// The proxies of the server and of the client report the same cause.
#[test]
fn both_proxies_report_the_cause_of_a_truncated_response() {
    let many = format!("1;{}\r\na\r\n", "x".repeat(17_000));
    let faults = [
        (many.as_str(), "chunk-extensions"),
        ("xyz\r\n", "chunk-size"),
        ("1\r\nabc", "chunk-end"),
        ("1;a\nb", "chunk-line"),
        ("0\r\nX Y: z\r\n\r\n", "trailer"),
        ("0\r\nContent-Length: 1\r\n\r\n", "trailer-forbidden"),
        ("0\r\nleno-error: closed\r\n\r\n", "trailer-forbidden"),
        ("1\r\na", "closed"),
    ];
    for (fault, cause) in faults {
        run(async {
            let (mut client, mut servers, mut first, mut second) =
                mesh(Settings::default(), Settings::default());
            client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").await;
            let mut app = server(&mut servers).await;
            app.head().await;
            app.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n").await;
            client.head().await;
            app.send(fault).await;
            if cause == "closed" {
                app.finish().await;
            }
            assert!(!client.rest().await.contains("\r\n0\r\n"));
            for done in [&mut first, &mut second] {
                let failure = done.recv().await.unwrap().failure.unwrap();
                assert_eq!((failure.place, failure.cause.label()), (Party::Server, cause));
            }
        });
    }
}

/// An application that resets streams with the codes that proxies of the mesh use for reports is not trusted: its
/// client gets a code of RFC 9113.
#[test]
fn applications_cannot_report_causes() {
    let from_application = Settings { from_mesh: true, ..Settings::default() };
    // The same code from a proxy of the mesh is a report, which is not passed on to the client.
    let from_proxy = Settings { mesh: true, ..Settings::default() };
    for (settings, cause) in
        [(from_application, "protocol-error"), (from_proxy, "chunk-extensions")]
    {
        run(async {
            let (user, mut app, mut done) = h2_h2(settings);
            let mut up = user.open(&request("GET", "/"), true).unwrap();
            let (_, mut answer) = next(&mut app).await;
            answer.send_head(&head([(":status", "200")]), false);
            up.head().await.unwrap();
            answer.reset(Code::of_mesh(3));
            assert_eq!(up.closed().await.unwrap().code, Code::PROTOCOL_ERROR);
            assert_eq!(done.recv().await.unwrap().failure.unwrap().cause.label(), cause);
        });
    }
}

#[test]
fn a_tunnel_passes_through_two_proxies() {
    run(async {
        let relays = || Settings { connect: true, ..Settings::default() };
        let (mut client, mut servers, mut first, mut second) = mesh(relays(), relays());
        let asked = "CONNECT far:443 HTTP/1.1\r\nHost: far:443\r\nProxy-Auth: x\r\n\r\n";
        client.send(asked).await;
        let mut app = server(&mut servers).await;
        app.expect(asked).await;
        let opened = "HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n";
        app.send(opened).await;
        client.expect(opened).await;
        client.send("ping").await;
        app.expect("ping").await;
        app.send("pong").await;
        client.expect("pong").await;
        app.finish().await;
        client.expect_end().await;
        client.finish().await;
        app.expect_end().await;
        for done in [first.recv().await.unwrap(), second.recv().await.unwrap()] {
            assert!(done.upgraded && done.failure.is_none(), "{:?}", done.failure);
        }
    });
}
