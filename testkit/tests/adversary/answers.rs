//! Sends responses of a hostile application through the proxy. A client must receive what a strict parser finds in
//! them, or an error of the proxy. Bytes after a response must never reach another client.

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use leno_testkit::wait;

use crate::application::End;
use crate::frames::{OF_HTTP1, exchange as exchange_streams};
use crate::requests::{exchange, quoted, shown};
use crate::strict::{self, Message};
use crate::table::{Case, Verdict, cases};
use crate::worlds::{LIMIT, ProxyWorld};

pub(crate) const TABLE: &str = include_str!("cases/answers.txt");

const CLIENTS: usize = 12;

/// What a client does with a case.
type ClientScript = fn(&ProxyWorld, &Case, usize) -> Result<(), String>;

#[test]
fn answers_do_not_harm_clients_of_the_outbound_side() {
    run(&ProxyWorld::outbound(""), [hostile, victim]);
}

#[test]
fn answers_do_not_harm_clients_of_the_inbound_side() {
    run(&ProxyWorld::inbound(), [hostile, victim]);
}

#[test]
fn answers_do_not_harm_streams_behind_mtls() {
    run(&ProxyWorld::mesh("strict"), [stream, stream_of_another]);
}

fn run(world: &ProxyWorld, [hostile, victim]: [ClientScript; 2]) {
    let cases = cases(TABLE);
    let next = AtomicUsize::new(0);
    let client = || {
        let mut faults = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(number) else { return faults };
            for outcome in [hostile(world, case, number), victim(world, case, number)] {
                faults.extend(
                    outcome.err().map(|why| format!("{number} {}: {why}", shown(&case.text))),
                );
            }
        }
    };
    let faults: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    });
    world.assert_idle();
    assert!(faults.is_empty(), "{}: {} faults\n{}", world.name, faults.len(), faults.join("\n"));
}

fn hostile(world: &ProxyWorld, case: &Case, number: usize) -> Result<(), String> {
    let marker = format!("c{number}z");
    let (leaves, method, answer) = prepare(world, case, &marker);
    let content = if method == "POST" { "Content-Length: 5\r\n\r\nhello" } else { "\r\n" };
    let request = format!("{method} /answer HTTP/1.1\r\nHost: {marker}\r\n{content}");
    let after = format!("GET /after HTTP/1.1\r\nHost: {marker}\r\n\r\n");
    if leaves {
        let mut client = world.connect();
        client.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let arrived = || Ok((!world.application.seen(&marker).is_empty()).then_some(()));
        return wait::until("the request", LIMIT, arrived).map_err(|error| error.to_string());
    }
    let received = exchange(world.connect(), &[(request + &after).as_bytes()])?;
    judge((world, &marker), case.verdict, (&method, &answer), &received)
}

/// Sets the application's response. Returns whether the client leaves, the method, and the response.
fn prepare(world: &ProxyWorld, case: &Case, marker: &str) -> (bool, String, Vec<u8>) {
    let bytes = case.bytes(marker);
    let mut words = bytes.splitn(3, |byte| *byte == b' ');
    let mut word = || words.next().unwrap_or_default().to_vec();
    let (end, method, answer) = (word(), String::from_utf8(word()).expect("a method"), word());
    let leaves = end == b"w";
    let end = match end[0] {
        b'c' => End::Close,
        b'r' => End::Reset,
        b'h' => End::Half,
        _ => End::KeepAlive,
    };
    world.application.answer(marker, answer.clone(), end);
    (leaves, method, answer)
}

/// Runs a case as HTTP/2 streams that another proxy sends on behalf of HTTP/1 clients.
fn stream(world: &ProxyWorld, case: &Case, number: usize) -> Result<(), String> {
    let marker = format!("c{number}z");
    let (leaves, method, answer) = prepare(world, case, &marker);
    let head = |method: &str, path: &str| {
        format!(":method={method};:scheme=http;:path={path};:authority={marker}")
    };
    let ask = match method.as_str() {
        "POST" => format!("H/4/1/h({}) D/1/1/t(hello)", head("POST", "/answer")),
        _ => format!("H/5/1/h({})", head(&method, "/answer")),
    };
    let after = format!("H/5/3/h({})", head("GET", "/after"));
    let ends = if leaves { 1 } else { 2 };
    let bodies = exchange_streams(world, &format!("{ask} {after}"), (OF_HTTP1, ends))?;
    let body = bodies.get(&1).map(Vec::as_slice).unwrap_or_default();
    let strictly = last(&answer, &method).ok().flatten().map(|(message, _)| message.body);
    // If a strict parser refuses the response, the only allowed bodies are those that result from the repairs that
    // RFC 9112 permits to a recipient.
    let allowed = strictly.map_or(vec![b"hello".to_vec(), b"poison".to_vec()], |body| vec![body]);
    let is_refused = body.starts_with(b"leno: ");
    if !is_refused && !allowed.iter().any(|allowed| allowed.starts_with(body)) {
        return Err(format!("the client reads {} of {}", quoted(body), quoted(&answer)));
    }
    if case.verdict == Verdict::Served && !allowed.iter().any(|allowed| allowed == body) {
        return Err(format!("it was not served: {}", quoted(body)));
    }
    let next = bodies.get(&3).map(Vec::as_slice).unwrap_or_default();
    let is_own = next.starts_with(format!("served {marker} ").as_bytes());
    if is_own || leaves { Ok(()) } else { Err(format!("the next stream has {}", quoted(next))) }
}

fn stream_of_another(world: &ProxyWorld, _: &Case, number: usize) -> Result<(), String> {
    let marker = format!("c{}z", 1_000_000 + number);
    let ask = format!("H/5/1/h(:method=GET;:scheme=http;:path=/victim;:authority={marker})");
    let bodies = exchange_streams(world, &ask, (OF_HTTP1, 1))?;
    let body = bodies.get(&1).map(Vec::as_slice).unwrap_or_default();
    let is_own = body.starts_with(format!("served {marker} ").as_bytes());
    if is_own { Ok(()) } else { Err(format!("another client's stream has {}", quoted(body))) }
}

fn judge(
    (world, marker): (&ProxyWorld, &str),
    verdict: Verdict,
    (method, sent): (&str, &[u8]),
    received: &[u8],
) -> Result<(), String> {
    let seen = world.application.seen(marker);
    let times = seen.iter().filter(|seen| seen.message.target() == "/answer").count();
    if method == "POST" && times > 1 {
        return Err(format!("it was sent {times} times"));
    }
    if received.windows(6).any(|six| six == b"forged") {
        return Err(format!(
            "the application's word of the mesh was passed on: {}",
            quoted(received)
        ));
    }
    let strictly = last(sent, method);
    let (first, rest) = match last(received, method) {
        Err(fault) => return Err(format!("the client reads {fault}: {}", quoted(received))),
        Ok(None) => (None, &[][..]),
        Ok(Some((message, rest))) => (Some(message), rest),
    };
    let own = first.as_ref().is_some_and(|message| message.field("leno-error").is_some());
    if let Some(message) = first.as_ref().filter(|message| message.is_whole && !own) {
        let same = match &strictly {
            Ok(Some((sent, _))) => sent.status() == message.status() && sent.body == message.body,
            // Only the repairs that RFC 9112 permits to a recipient are allowed.
            _ => message.body == b"hello" || message.body == b"poison" || message.body.is_empty(),
        };
        if !same {
            return Err(format!("the client reads {message:?} of {}", quoted(sent)));
        }
    }
    if verdict == Verdict::Served && (own || first.is_none_or(|message| !message.is_whole)) {
        return Err(format!("it was not served: {}", quoted(received)));
    }
    match last(rest, "GET") {
        Err(fault) => Err(format!("after the answer the client reads {fault}: {}", quoted(rest))),
        Ok(Some((message, []))) if is_own(&message, marker) => Ok(()),
        Ok(None) if rest.is_empty() => Ok(()),
        _ => Err(format!("the next answer is {}", quoted(rest))),
    }
}

fn is_own(message: &Message, marker: &str) -> bool {
    let served = format!("served {marker} ");
    message.body.starts_with(served.as_bytes()) || message.field("leno-error").is_some()
}

/// The final response in these bytes, and the bytes after it.
fn last<'b>(
    mut bytes: &'b [u8],
    method: &str,
) -> Result<Option<(Message, &'b [u8])>, strict::Fault> {
    while let Some((message, used)) = strict::response(bytes, method)? {
        bytes = &bytes[used..];
        if message.status() >= 200 || message.status() == 101 {
            return Ok(Some((message, bytes)));
        }
    }
    Ok(None)
}

fn victim(world: &ProxyWorld, _: &Case, number: usize) -> Result<(), String> {
    let marker = format!("c{}z", 1_000_000 + number);
    let request = format!("GET /victim HTTP/1.1\r\nHost: {marker}\r\n\r\n");
    let received = exchange(world.connect(), &[request.as_bytes()])?;
    match last(&received, "GET") {
        Ok(Some((message, []))) if is_own(&message, &marker) && message.status() == 200 => Ok(()),
        _ => Err(format!("another client reads {}", quoted(&received))),
    }
}
