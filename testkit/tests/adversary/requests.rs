//! Sends HTTP/1 requests. The application must receive what a strict parser finds in the bytes, or less. The
//! client's answers must belong to its own requests, in order.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::application::ReceivedRequest;
use crate::strict::{self, Message};
use crate::table::{Case, Verdict, cases};
use crate::worlds::ProxyWorld;

pub(crate) const TABLE: &str = include_str!("cases/requests.txt");

/// The number of clients that send at the same time.
const CLIENTS: usize = 12;
/// Fields that the proxy may add to a request.
const ADDED: [&str; 8] = [
    "connection",
    "content-length",
    "transfer-encoding",
    "te",
    "host",
    "upgrade",
    "via",
    "traceparent",
];
/// The type of an HTTP/2 server's first frame.
const SETTINGS: u8 = 4;
const VICTIM: &str = "GET /victim HTTP/1.1\r\nHost: {id}\r\n\r\n";

/// What a client has sent and received.
pub(crate) struct ClientRecord {
    pub(crate) marker: String,
    pub(crate) sent: Vec<u8>,
    pub(crate) received: Vec<u8>,
}

#[test]
fn no_request_is_smuggled_at_the_outbound_side() {
    run(&ProxyWorld::outbound(""));
}

#[test]
fn no_request_is_smuggled_at_the_inbound_side() {
    run(&ProxyWorld::inbound());
}

#[test]
fn no_request_is_smuggled_where_nothing_is_declared() {
    run(&ProxyWorld::bare());
}

/// Sends every case, split in several ways, each followed by a request of another client.
fn run(world: &ProxyWorld) {
    let cases = cases(TABLE);
    let next = AtomicUsize::new(0);
    let client = || {
        let mut faults = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(number) else { return faults };
            let talks = [talk(world, case, number), victim(world, number)];
            for (talk, verdict) in talks.into_iter().zip([case.verdict, Verdict::Served]) {
                let outcome = talk.and_then(|talk| judge(world, &talk, verdict));
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
    let mut faults = faults;
    faults.extend(late(world, &cases));
    assert!(faults.is_empty(), "{}: {} faults\n{}", world.name, faults.len(), faults.join("\n"));
}

/// Requests that arrived after their case had been checked, and bytes that were not requests.
fn late(world: &ProxyWorld, cases: &[Case]) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let marker = format!("c{number}z");
        let sent = case.bytes(&marker);
        faults.extend(
            compare(&sent, &world.application.seen(&marker))
                .err()
                .map(|why| format!("{number} {}: later: {why}", shown(&case.text))),
        );
    }
    for (marker, fault, raw) in world.application.faults() {
        let number = marker.trim_matches(['c', 'z']).parse::<usize>().ok();
        let case = number.and_then(|number| cases.get(number));
        let is_relayed = |case: &Case| case.bytes(&marker).starts_with(&raw);
        if !(world.is_transparent && case.is_none_or(is_relayed)) {
            let text = case.map(|case| shown(&case.text)).unwrap_or_default();
            faults
                .push(format!("{marker} {text}: the application reads {fault}: {}", quoted(&raw)));
        }
    }
    faults
}

fn talk(world: &ProxyWorld, case: &Case, number: usize) -> Result<ClientRecord, String> {
    let marker = format!("c{number}z");
    let sent = case.bytes(&marker);
    // The bytes are sent whole, in halves, byte by byte, or split near the end.
    let pieces: Vec<&[u8]> = match number % 4 {
        1 => sent.chunks(sent.len().div_ceil(2)).collect(),
        2 if sent.len() < 400 => sent.chunks(1).collect(),
        3 => {
            let (most, rest) = sent.split_at(sent.len().saturating_sub(7));
            vec![most, rest]
        }
        _ => vec![&sent[..]],
    };
    let received = exchange(world.connect(), &pieces)?;
    Ok(ClientRecord { marker, sent, received })
}

fn victim(world: &ProxyWorld, number: usize) -> Result<ClientRecord, String> {
    let marker = format!("c{}z", 1_000_000 + number);
    let sent = VICTIM.replace("{id}", &marker).into_bytes();
    let received = exchange(world.connect(), &[&sent])?;
    Ok(ClientRecord { marker, sent, received })
}

/// Sends the pieces, ends the client's sending direction, and reads until the proxy has ended its own.
pub(crate) fn exchange(mut stream: TcpStream, pieces: &[&[u8]]) -> Result<Vec<u8>, String> {
    stream.set_nodelay(true).expect("a socket");
    // Fails if the proxy refuses what it has read and closes the connection.
    let _ = pieces.iter().try_for_each(|piece| stream.write_all(piece));
    let _ = stream.shutdown(Shutdown::Write);
    let mut received = Vec::new();
    match stream.read_to_end(&mut received) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            Err(format!("it neither answers nor ends: {}", quoted(&received)))
        }
        _ => Ok(received),
    }
}

/// Compares what the application and the client received with the result of a strict parser.
pub(crate) fn judge(
    world: &ProxyWorld,
    talk: &ClientRecord,
    verdict: Verdict,
) -> Result<(), String> {
    let seen = world.application.seen(&talk.marker);
    let asked = strict::requests(&talk.sent);
    compare(&talk.sent, &seen)?;
    if world.denies && seen.iter().any(|seen| seen.message.target().starts_with("/denied")) {
        return Err("the application saw a request that policy denies".to_owned());
    }
    if verdict == Verdict::Refused && !world.is_transparent && asked.is_empty() && !seen.is_empty()
    {
        return Err(format!("the application saw {:?}", seen[0].message));
    }
    let answers = answers(&talk.received, &asked)?;
    let mut serials = seen.iter().map(|seen| seen.serial.to_string());
    for serial in answers.iter().filter_map(|answer| answer.field("x-serial")) {
        // The proxy itself may have answered the client's other requests.
        if !serials.any(|own| own == serial) {
            return Err(format!("an answer is of request {serial}, which is not the client's"));
        }
    }
    let served = answers.iter().filter(|answer| answer.status() == 200 && answer.is_whole).count();
    if verdict == Verdict::Served && (served < asked.len() || served == 0) {
        return Err(format!("{served} of {} were served: {}", asked.len(), quoted(&talk.received)));
    }
    Ok(())
}

/// Compares the requests. The application must have received the client's requests in order, or fewer, because
/// those that a policy denies are missing.
fn compare(sent: &[u8], seen: &[ReceivedRequest]) -> Result<(), String> {
    let all = strict::requests(sent);
    let mut rest = all.iter();
    for ReceivedRequest { message, .. } in seen {
        let is_it = |asked: &&Message| {
            asked.method() == message.method()
                && asked.target() == message.target()
                && (!message.is_whole || (asked.is_whole && asked.body == message.body))
        };
        match rest.find(is_it) {
            Some(asked) => fields(asked, message)?,
            // The beginning of a message that is refused later.
            None if !message.is_whole && message.target() != "/smuggled" => {}
            None => return Err(format!("the application saw {message:?} for {all:?}")),
        }
    }
    Ok(())
}

/// Compares the fields. The application must not have received a field that was not sent, nor one that only the
/// mesh sets.
fn fields(asked: &Message, seen: &Message) -> Result<(), String> {
    for (name, value) in &seen.fields {
        let is_own = name.replace('_', "-").starts_with("leno-");
        let was_sent = asked.fields.iter().any(|(key, sent)| key == name && sent == value);
        if is_own || !(was_sent || ADDED.contains(&name.as_str())) {
            return Err(format!("the application saw the field {name}: {value:?}"));
        }
    }
    Ok(())
}

/// The final responses that a client received.
fn answers(mut received: &[u8], asked: &[Message]) -> Result<Vec<Message>, String> {
    let mut answers: Vec<Message> = Vec::new();
    if received.get(3) == Some(&SETTINGS) && asked.is_empty() {
        // The bytes begin like the HTTP/2 preface, so the proxy answered in HTTP/2.
        return Ok(answers);
    }
    while !received.is_empty() {
        let method = asked.get(answers.len()).map_or("GET", Message::method);
        let read = strict::response(received, method);
        let read =
            read.map_err(|fault| format!("the client reads {fault}: {}", quoted(received)))?;
        let Some((answer, used)) = read else { break };
        let is_tunnel = answer.status() == 101 || (method == "CONNECT" && answer.status() == 200);
        received = &received[used..];
        if answer.status() >= 200 || is_tunnel {
            answers.push(answer);
        }
        if is_tunnel {
            break;
        }
    }
    if answers.len() > asked.len() + 1 {
        return Err(format!("{} answers to {} requests", answers.len(), asked.len()));
    }
    Ok(answers)
}

/// The text of a case, shortened.
pub(crate) fn shown(text: &str) -> String {
    text.chars().take(200).collect()
}

/// Bytes as readable text, shortened.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}
