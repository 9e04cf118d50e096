//! Sends invalid HTTP/2 frames, malformed heads, and floods, to HTTP/2 applications and, behind mTLS, to HTTP/1
//! applications.
//!
//! A case consists of words. A word is `TYPE[@LENGTH]/FLAGS/STREAM/PAYLOAD`, with all numbers in hexadecimal. The
//! type is a letter of [`TYPES`], or `#` and a number; `HR` is HEADERS and a RST_STREAM. The stream `+` is the
//! next one. A payload consists of `x(hexadecimal)`, `t(text)` and `h(name=value;...)`, a block of literals,
//! joined by `&`. `*9:` repeats a word. `raw(text)` is sent without a frame.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::requests::{quoted, shown};
use crate::table::{Case, Verdict, cases, unescape};
use crate::worlds::ProxyWorld;

pub(crate) const TABLE: &str = include_str!("cases/frames.txt");

const TYPES: &str = "DHYRSUPGWC";
const CLIENTS: usize = 8;
const PING: &[u8] = b"adversry";
/// A field that makes the proxy behind mTLS use HTTP/1 to its application.
pub(crate) const OF_HTTP1: &str = ";leno-h1=1.1\\sl";

#[test]
fn frames_do_not_harm_the_outbound_side() {
    run(&ProxyWorld::outbound(""), "");
}

#[test]
fn frames_do_not_harm_the_inbound_side() {
    run(&ProxyWorld::inbound(), "");
}

#[test]
fn frames_do_not_harm_a_proxy_behind_mtls() {
    let world = ProxyWorld::mesh("strict");
    run(&world, "");
    run(&world, OF_HTTP1);
}

fn run(world: &ProxyWorld, field: &str) {
    let cases = cases(TABLE);
    let next = AtomicUsize::new(0);
    let first = if field.is_empty() { 0 } else { 100_000 };
    let client = || {
        let mut faults = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(case) = cases.get(number) else { return faults };
            let marker = format!("c{}z", first + number);
            let outcome = talk(world, case, (&marker, field));
            faults
                .extend(outcome.err().map(|why| format!("{number} {}: {why}", shown(&case.text))));
        }
    };
    let faults: Vec<String> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    });
    world.assert_idle();
    let mut faults = faults;
    for (number, case) in cases.iter().enumerate() {
        let seen = world.application.seen(&format!("c{}z", first + number));
        for seen in seen.iter().filter(|seen| seen.message.is_whole) {
            let message = &seen.message;
            let own =
                message.fields.iter().any(|(name, _)| name.replace('_', "-").starts_with("leno-"));
            if case.verdict == Verdict::Refused || message.target() == "/smuggled" || own {
                faults.push(format!("{number} {}: it saw {message:?}", shown(&case.text)));
            }
        }
    }
    for (marker, fault, raw) in world.application.faults() {
        faults.push(format!("{marker}: the application reads {fault}: {}", quoted(&raw)));
    }
    let (count, faults) = (faults.len(), faults.join("\n"));
    assert!(count == 0, "{}: {count} faults\n{faults}\n{}", world.name, world.errors());
}

fn talk(world: &ProxyWorld, case: &Case, (marker, field): (&str, &str)) -> Result<(), String> {
    let text = case.text.replace("{id}", marker);
    let expected = if case.verdict == Verdict::Served { text.matches("H/").count() } else { 0 };
    let expected = expected - text.matches(" H/5/1/h(x=y)").count().min(expected);
    let bodies = exchange(world, &text, (field, expected))?;
    for (stream, body) in &bodies {
        let body = String::from_utf8_lossy(body);
        if body.contains("served") && !body.starts_with(&format!("served {marker} ")) {
            return Err(format!("stream {stream} has {body}"));
        }
    }
    let served = bodies.values().filter(|body| body.starts_with(b"served")).count();
    if served < expected {
        return Err(format!("{served} of {expected} were served"));
    }
    Ok(())
}

/// Sends these frames, waits until this many streams have ended and a PING was answered, and closes the
/// connection. Returns the content of each stream.
pub(crate) fn exchange(
    world: &ProxyWorld,
    text: &str,
    (field, ends): (&str, usize),
) -> Result<BTreeMap<u32, Vec<u8>>, String> {
    let mut stream = world.connect();
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, 4, (0, 0), &[]);
    let mut streams = 1;
    words(text, field, &mut streams, &mut bytes);
    frame(&mut bytes, 6, (0, 0), PING);
    // Fails if the proxy refuses what it has read and closes the connection.
    let _ = stream.write_all(&bytes);
    let mut reader = Reader::default();
    let read = reader.read(&mut stream, |reader| reader.is_pinged && reader.ended >= ends);
    read.map_err(|why| format!("{why} after {} ends", reader.ended))?;
    let _ = stream.shutdown(Shutdown::Write);
    reader.read(&mut stream, |_| false)?;
    Ok(reader.bodies)
}

fn words(text: &str, field: &str, streams: &mut u32, bytes: &mut Vec<u8>) {
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let (times, word) = match word.strip_prefix('*').and_then(|word| word.split_once(':')) {
            Some((times, word)) => (times.parse().expect("a number"), word),
            None => (1, word),
        };
        for _ in 0..times {
            one(word, field, streams, bytes);
        }
    }
}

fn one(word: &str, field: &str, streams: &mut u32, bytes: &mut Vec<u8>) {
    if let Some(raw) = word.strip_prefix("raw(") {
        bytes.extend(unescape(raw.trim_end_matches(')')));
        return;
    }
    let parts: Vec<&str> = word.splitn(4, '/').collect();
    let [kind, flags, stream, payload] = parts[..] else { panic!("no frame: {word}") };
    let (kind, length) = kind.split_once('@').map_or((kind, None), |(kind, l)| (kind, Some(l)));
    let hex = |text: &str| u32::from_str_radix(text, 16).expect("hexadecimal");
    let number = match kind.strip_prefix('#') {
        Some(number) => hex(number) as u8,
        None => TYPES.find(&kind[..1]).expect("a type") as u8,
    };
    let id = if stream == "+" { *streams } else { hex(stream) };
    *streams += if stream == "+" { 2 } else { 0 };
    let at = bytes.len();
    frame(bytes, number, (hex(flags) as u8, id), &self::payload(payload, field));
    if let Some(length) = length {
        bytes[at..at + 3].copy_from_slice(&hex(length).to_be_bytes()[1..]);
    }
    if kind == "HR" {
        frame(bytes, 3, (0, id), &[0, 0, 0, 8]);
    }
}

fn payload(text: &str, field: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in text.split('&').filter(|part| !part.is_empty()) {
        let inner = part[2..].strip_suffix(')').unwrap_or_else(|| panic!("no end: {part}"));
        match &part[..2] {
            "t(" => bytes.extend(unescape(inner)),
            "x(" => bytes.extend(from_hex(&unescape(inner))),
            "h(" => bytes.extend(block(inner, field)),
            _ => panic!("no payload: {part}"),
        }
    }
    bytes
}

fn from_hex(digits: &[u8]) -> Vec<u8> {
    let pair = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).expect("text"), 16);
    digits.chunks(2).map(|two| pair(two).expect("hexadecimal")).collect()
}

/// A field block of literals that are not indexed. If the fields are those of a request, `field` is appended to
/// them.
fn block(list: &str, field: &str) -> Vec<u8> {
    let is_request = list.contains(":method") && !list.contains("leno-h1");
    let list = if is_request { format!("{list}{field}") } else { list.to_owned() };
    // Repetitions are expanded first, because they contain the separators.
    let list = repeated(&list);
    let mut bytes = Vec::new();
    for field in list.split(';') {
        let at = field.get(1..).and_then(|rest| rest.find('=')).map_or(0, |at| at + 1);
        bytes.push(0);
        for part in [&field[..at], &field[at + 1..]].map(unescape) {
            integer(part.len(), &mut bytes);
            bytes.extend(part);
        }
    }
    bytes
}

/// Expands repetitions of the form `{a;*9}`, and keeps other repetitions.
fn repeated(list: &str) -> String {
    let mut out = String::new();
    let mut rest = list;
    while let Some(at) = rest.find('{') {
        let end = at + rest[at..].find('}').expect("an end");
        let (body, times) = rest[at + 1..end].rsplit_once('*').expect("a repetition");
        out += &rest[..at];
        out += &body.repeat(times.parse().expect("a number"));
        rest = &rest[end + 1..];
    }
    out + rest
}

/// Appends a length with a prefix of seven bits.
fn integer(value: usize, bytes: &mut Vec<u8>) {
    if value < 127 {
        bytes.push(value as u8);
        return;
    }
    bytes.push(127);
    let mut rest = value - 127;
    while rest >= 128 {
        bytes.push((rest % 128) as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
}

fn frame(bytes: &mut Vec<u8>, kind: u8, (flags, stream): (u8, u32), payload: &[u8]) {
    bytes.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

/// The frames that a client reads.
#[derive(Default)]
struct Reader {
    held: Vec<u8>,
    bodies: BTreeMap<u32, Vec<u8>>,
    is_pinged: bool,
    /// The number of streams that have ended, in whatever way.
    ended: usize,
}

impl Reader {
    /// Reads until the condition holds, or until the proxy has closed the connection.
    fn read(
        &mut self,
        stream: &mut TcpStream,
        is_done: impl Fn(&Self) -> bool,
    ) -> Result<(), String> {
        let mut part = [0; 16 * 1024];
        while !is_done(self) {
            match stream.read(&mut part) {
                Ok(0) => break,
                Ok(read) => self.held.extend(&part[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Err("it neither answers nor ends".to_owned());
                }
                Err(_) => break,
            }
            self.take();
        }
        Ok(())
    }

    fn take(&mut self) {
        while let Some(head) = self.held.first_chunk::<9>() {
            let length =
                usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            if self.held.len() < 9 + length {
                return;
            }
            let payload: Vec<u8> = self.held.drain(..9 + length).skip(9).collect();
            self.is_pinged |= kind == 6 && flags & 1 == 1 && payload == PING;
            self.ended += usize::from((kind <= 1 && flags & 1 == 1) || kind == 3);
            if kind == 0 {
                self.bodies.entry(stream).or_default().extend(payload);
            }
        }
    }
}
