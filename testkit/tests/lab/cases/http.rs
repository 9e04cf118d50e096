//! Tests HTTP/1 according to RFC 9112 through two proxies. No message may be desynchronised, and no other client
//! may be affected.
//!
//! Each case runs against a service that declares HTTP and one whose protocol is detected.

use anyhow::{Context, Result, bail, ensure};
use leno_testkit::lab::Lab;
use leno_testkit::peer::{Event, Step, Transcript, checksum};

use super::{Case, shared};

const MIB: usize = 1 << 20;
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyz";

pub(super) fn cases() -> Vec<Case> {
    vec![
        shared!(uploads_and_downloads_of_10_mib),
        shared!(chunked_both_ways_with_trailers),
        shared!(expect_100_continue),
        shared!(a_refused_expectation),
        shared!(pipelined_requests_are_answered_in_order),
        shared!(head_and_responses_without_body),
        shared!(keep_alive_and_close),
        shared!(http_1_0),
        shared!(heads_arrive_unchanged),
        shared!(early_hints_come_before_their_response),
        shared!(an_upgrade_carries_bytes),
        shared!(headers_of_64_kib_are_431),
        shared!(conflicting_lengths_are_400),
        shared!(malformed_requests_are_400),
        shared!(a_response_cut_short_is_cut_short_for_the_client),
        shared!(a_bad_client_harms_no_other),
    ]
}

/// Follows `steps` against both services; `check` examines the transcript.
fn both(lab: &Lab, steps: &[Step], check: impl Fn(&Transcript) -> Result<()>) -> Result<()> {
    for service in ["web:80", "detect:80"] {
        let transcript = lab.talk("client", service, steps)?;
        check(&transcript).with_context(|| format!("{service}: {transcript:#?}"))?;
    }
    Ok(())
}

fn send(text: &str) -> Step {
    Step::Send(text.into())
}

fn get(target: &str) -> Step {
    send(&format!("GET {target} HTTP/1.1\r\nHost: lab\r\n\r\n"))
}

/// Checks that the script was followed to its end, and that the responses had these statuses.
fn statuses(transcript: &Transcript, wanted: &[u16]) -> Result<()> {
    ensure!(transcript.failure().is_none(), "the script was not followed to its end");
    ensure!(transcript.statuses() == wanted, "statuses are not {wanted:?}");
    Ok(())
}

/// The length and checksum of the body of response `nth`.
fn body(transcript: &Transcript, nth: usize) -> Result<(u64, u64)> {
    match transcript.events.get(nth) {
        Some(Event::Response { body_len, body_sum, .. }) => Ok((*body_len, *body_sum)),
        other => bail!("event {nth} is {other:?}"),
    }
}

fn uploads_and_downloads_of_10_mib(lab: &Lab) -> Result<()> {
    let size = 10 * MIB;
    let upload = format!("POST /seen HTTP/1.1\r\nHost: lab\r\nContent-Length: {size}\r\n\r\n");
    let steps = [
        send(&upload),
        Step::SendTimes("0123456789abcdef".into(), size / 16),
        Step::Response(false),
        get(&format!("/?size={size}")),
        Step::Response(false),
        get("/after"),
        Step::Response(false),
    ];
    let sent = checksum("0123456789abcdef".repeat(size / 16).as_bytes());
    let letters: Vec<u8> = LETTERS.bytes().cycle().take(size).collect();
    both(lab, &steps, |t| {
        statuses(t, &[200, 200, 200])?;
        let seen = format!("\"body_sum\":{sent}");
        let arrived = matches!(&t.events[0], Event::Response { body, .. } if body.contains(&seen));
        ensure!(arrived, "the upload arrived changed");
        ensure!(body(t, 1)? == (size as u64, checksum(&letters)), "the download arrived changed");
        Ok(())
    })
}

fn chunked_both_ways_with_trailers(lab: &Lab) -> Result<()> {
    let upload = "POST /seen HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\
                  Trailer: x-sum\r\n\r\n5;ext=\"1\"\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\n\r\n";
    let steps = [
        send(upload),
        Step::Response(false),
        get("/?size=300000&chunked=7&trailers=1"),
        Step::Response(false),
        get("/after"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| {
        statuses(t, &[200, 200, 200])?;
        let [Event::Response { body: seen, .. }, Event::Response { trailers, body_sum, .. }, _] =
            &t.events[..]
        else {
            bail!("unexpected events");
        };
        ensure!(seen.contains("\"body_len\":6"), "the chunked upload arrived changed");
        ensure!(seen.contains("[\"x-sum\",\"6\"]"), "the trailer of the request was lost");
        let wanted = [("x-checksum".to_string(), body_sum.to_string())];
        ensure!(trailers[..] == wanted, "the trailer of the response was lost");
        Ok(())
    })
}

fn expect_100_continue(lab: &Lab) -> Result<()> {
    let steps = [
        send(
            "POST /echo HTTP/1.1\r\nHost: lab\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        ),
        // Before the interim response, the client sends no byte of the body.
        Step::Expect("HTTP/1.1 100 Continue\r\n\r\n".into()),
        send("hello"),
        Step::Response(false),
        get("/after"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| {
        statuses(t, &[200, 200])?;
        ensure!(body(t, 0)? == (5, checksum(b"hello")), "the body came back changed");
        Ok(())
    })
}

fn a_refused_expectation(lab: &Lab) -> Result<()> {
    let steps = [
        send(
            "POST /?refuse=1 HTTP/1.1\r\nHost: lab\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        ),
        Step::Response(false),
    ];
    both(lab, &steps, |t| statuses(t, &[417]))
}

fn pipelined_requests_are_answered_in_order(lab: &Lab) -> Result<()> {
    let all: String = (1..=5)
        .map(|i| format!("GET /?size={i}&delay_ms={} HTTP/1.1\r\nHost: lab\r\n\r\n", (6 - i) * 10))
        .collect();
    let mut steps = vec![send(&all)];
    steps.extend((0..5).map(|_| Step::Response(false)));
    both(lab, &steps, |t| {
        statuses(t, &[200; 5])?;
        for nth in 0..5 {
            ensure!(body(t, nth)?.0 == nth as u64 + 1, "response {nth} is out of order");
        }
        Ok(())
    })
}

fn head_and_responses_without_body(lab: &Lab) -> Result<()> {
    let steps = [
        send("HEAD /?size=12345 HTTP/1.1\r\nHost: lab\r\n\r\n"),
        Step::Response(true),
        get("/?status=204"),
        Step::Response(false),
        get("/?status=304"),
        Step::Response(false),
        get("/?size=0"),
        Step::Response(false),
        get("/after"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| {
        statuses(t, &[200, 204, 304, 200, 200])?;
        let Event::Response { headers, .. } = &t.events[0] else { bail!("no response") };
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let kept = length.is_some_and(|(_, value)| value == "12345");
        ensure!(kept, "the length of a HEAD response was changed");
        Ok(())
    })
}

fn keep_alive_and_close(lab: &Lab) -> Result<()> {
    let steps = [
        get("/1"),
        Step::Response(false),
        get("/2"),
        Step::Response(false),
        send("GET /3 HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n"),
        Step::Response(false),
        Step::ReadToEnd,
    ];
    both(lab, &steps, |t| {
        statuses(t, &[200, 200, 200])?;
        ensure!(
            matches!(t.events[3], Event::Bytes { len: 0, .. }),
            "bytes after the last response"
        );
        Ok(())
    })?;
    // If the server closes its connection, the client's may stay open; the next request must be served.
    both(lab, &[get("/?close=1"), Step::Response(false)], |t| statuses(t, &[200]))
}

fn http_1_0(lab: &Lab) -> Result<()> {
    let steps = [send("GET /?size=7 HTTP/1.0\r\n\r\n"), Step::Response(false), Step::ReadToEnd];
    both(lab, &steps, |t| {
        statuses(t, &[200])?;
        ensure!(body(t, 0)?.0 == 7);
        Ok(())
    })?;
    // A chunked response must not reach an HTTP/1.0 client.
    let chunked = [send("GET /?size=9&chunked=3 HTTP/1.0\r\n\r\n"), Step::Response(false)];
    both(lab, &chunked, |t| {
        statuses(t, &[200])?;
        ensure!(body(t, 0)?.0 == 9);
        let Event::Response { headers, .. } = &t.events[0] else { bail!("no response") };
        let chunked = headers.iter().any(|(name, _)| name == "transfer-encoding");
        ensure!(!chunked, "a chunked response to HTTP/1.0");
        Ok(())
    })?;
    let keep = "GET /?size=3 HTTP/1.0\r\nHost: lab\r\nConnection: keep-alive\r\n\r\n";
    let steps = [send(keep), Step::Response(false)];
    both(lab, &steps, |t| statuses(t, &[200]))
}

/// These are details that HTTP/2 between the proxies would lose: the absolute form, the case and order of field
/// names, and a Host in capitals.
fn heads_arrive_unchanged(lab: &Lab) -> Result<()> {
    let heads = [
        "GET /?head=1 HTTP/1.1\r\nHost: lab\r\nX-API-Key: 1\r\nx-lower: 2\r\nX-Title: 3\r\n\r\n",
        "GET http://lab/a?head=1 HTTP/1.1\r\nHost: lab\r\nAccept: */*\r\n\r\n",
        "GET http://lab:80/a?head=1 HTTP/1.1\r\nHost: LAB\r\n\r\n",
        "get-it /?head=1 HTTP/1.1\r\nhost: Lab:80\r\nx-empty: \r\nx-twice: a\r\nx-twice: b\r\n\r\n",
        "GET /?head=1 HTTP/1.1\r\nHost: lab\r\nCookie: a=1; b=2\r\nAccept: a\r\n\r\n",
        "GET /?head=1 HTTP/1.1\r\nHost: \r\n\r\n",
        "GET /?head=1 HTTP/1.0\r\nHost: lab\r\nConnection: keep-alive\r\n\r\n",
        "GET /?head=1 HTTP/1.0\r\nX-No: host\r\nConnection: keep-alive\r\n\r\n",
    ];
    let steps: Vec<Step> =
        heads.iter().flat_map(|head| [send(head), Step::Response(false)]).collect();
    both(lab, &steps, |t| {
        statuses(t, &[200; 8])?;
        for (event, head) in t.events.iter().zip(&heads) {
            let Event::Response { body, .. } = event else { bail!("{event:?}") };
            ensure!(body == head, "{head:?} came out as {body:?}");
        }
        Ok(())
    })
}

fn early_hints_come_before_their_response(lab: &Lab) -> Result<()> {
    let steps = [
        get("/?hints=2&delay_ms=50"),
        Step::Expect("HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n".into()),
        Step::Response(false),
        get("/after"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| {
        statuses(t, &[200, 200])?;
        let second =
            matches!(&t.events[..], [Event::Response { interim, .. }, _] if interim == &[103]);
        ensure!(second, "the second of them did not come");
        Ok(())
    })
}

fn an_upgrade_carries_bytes(lab: &Lab) -> Result<()> {
    let steps = [
        send("GET /upgrade HTTP/1.1\r\nHost: lab\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"),
        Step::Response(false),
        send("\u{1}not http\n"),
        Step::Expect("\u{1}not http\n".into()),
        Step::ShutdownWrite,
        Step::ReadToEnd,
    ];
    both(lab, &steps, |t| statuses(t, &[101]))
}

fn headers_of_64_kib_are_431(lab: &Lab) -> Result<()> {
    let steps = [
        send("GET / HTTP/1.1\r\nHost: lab\r\nX-Large: "),
        Step::SendTimes("x".into(), 64 * 1024),
        send("\r\n\r\n"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| statuses(t, &[431]))?;
    let steps = [
        send("GET / HTTP/1.1\r\nHost: lab\r\n"),
        Step::SendTimes("X-Many: 1234567890\r\n".into(), 4096),
        send("\r\n"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| statuses(t, &[431]))?;
    // Applications with large cookies send 8 KiB of them.
    let steps = [
        send("GET /seen HTTP/1.1\r\nHost: lab\r\nCookie: "),
        Step::SendTimes("y".into(), 8 * 1024),
        send("\r\n\r\n"),
        Step::Response(false),
    ];
    both(lab, &steps, |t| statuses(t, &[200]))
}

/// Requests that another server could parse differently. Each must be refused, and the bytes after it must never
/// be parsed as a request.
const CONFLICTS: [&str; 8] = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 6",
    "Content-Length: 5, 6",
    "Content-Length: +5",
    "Content-Length: 5x",
    "Transfer-Encoding: gzip, chunked, gzip",
    "Transfer-Encoding : chunked",
];

fn conflicting_lengths_are_400(lab: &Lab) -> Result<()> {
    for fields in CONFLICTS {
        let steps = [
            send(&format!("POST /seen HTTP/1.1\r\nHost: lab\r\n{fields}\r\n\r\n")),
            send("0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: lab\r\n\r\n"),
            Step::Response(false),
        ];
        refused(lab, &steps).with_context(|| format!("{fields:?}"))?;
    }
    Ok(())
}

fn malformed_requests_are_400(lab: &Lab) -> Result<()> {
    let heads = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: lab\r\n folded: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: lab\r\nbad name: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: lab\r\nx: a\u{0}b\r\n\r\n",
    ];
    for head in heads {
        refused(lab, &[send(head), Step::Response(false)]).with_context(|| format!("{head:?}"))?;
    }
    Ok(())
}

/// Checks that the only response is 400 and that the connection is closed.
fn refused(lab: &Lab, steps: &[Step]) -> Result<()> {
    let mut steps = steps.to_vec();
    steps.push(Step::ReadToEnd);
    both(lab, &steps, |t| {
        ensure!(t.statuses() == [400], "not refused with 400");
        // A reset after the response is permitted, because the proxy has left bytes unread.
        let silent = match t.events.get(1) {
            Some(Event::Bytes { len, .. }) => *len == 0,
            _ => true,
        };
        ensure!(silent, "something followed the refusal");
        Ok(())
    })
}

fn a_response_cut_short_is_cut_short_for_the_client(lab: &Lab) -> Result<()> {
    // Half a body must not become a successful response. If the server closes the connection together with the
    // beginning of its response, the proxy may forward none of it.
    both(lab, &[get("/?size=100000&close=half"), Step::Response(false)], |t| {
        let told = t.was_cut() || t.statuses() == [502];
        ensure!(told, "half a response was passed off as whole");
        Ok(())
    })?;
    // If the server resets the connection before it responds, the mesh responds with an error.
    both(lab, &[get("/?reset=1"), Step::Response(false)], |t| {
        ensure!(t.was_cut() || t.statuses() == [502] || t.statuses() == [503]);
        Ok(())
    })
}

fn a_bad_client_harms_no_other(lab: &Lab) -> Result<()> {
    let load = lab.load(
        "client",
        &[
            "--url",
            "http://web/?size=2000",
            "--rate",
            "200",
            "--duration",
            "3s",
            "--connections",
            "8",
        ],
    )?;
    for steps in [
        vec![send("\u{16}\u{3}\u{1} nonsense\r\n\r\n"), Step::ReadToEnd],
        vec![send("GET / HTTP/1.1\r\nHost: lab\r\nX: "), Step::SendTimes("x".into(), 70_000)],
        vec![send("POST / HTTP/1.1\r\nHost: lab\r\nContent-Length: 99\r\n\r\nhalf"), Step::Reset],
        vec![get("/?size=10000000"), Step::Read(1000), Step::Reset],
        vec![
            send("POST /seen HTTP/1.1\r\nHost: lab\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
            Step::ReadToEnd,
        ],
    ] {
        // The outcome for the client that misbehaves does not matter here.
        let _ = lab.talk("client", "web:80", &steps);
    }
    let report = load.finish()?;
    ensure!(report.errors == 0 && report.requests == 600, "{report:?}");
    Ok(())
}
