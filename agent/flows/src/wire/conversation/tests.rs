use leno_bpf_abi::flow::FLOW_SAMPLE_BYTES;

use super::*;

/// One connection. What each side sends is turned into samples as the kernel programs take them.
struct Wire {
    talk: Option<Conversation>,
    sequences: [u32; 2],
    talker: u8,
    now_ns: u64,
    port: u16,
    found: Vec<(&'static str, &'static str, Option<u64>)>,
}

impl Wire {
    fn new() -> Self {
        // Sequence numbers that will soon wrap around.
        let sequences = [u32::MAX - 3, u32::MAX - 10];
        Self { talk: None, sequences, talker: 0, now_ns: 0, port: 80, found: Vec::new() }
    }

    /// A frame that one side sends, 1 ms after the one before.
    fn send(&mut self, side: Side, payload: &[u8]) {
        let sample = self.sample(side, payload);
        if let Some(sample) = sample {
            self.take(&sample);
        }
    }

    fn take(&mut self, sample: &FlowSample) {
        let talk = self.talk.get_or_insert_with(|| Conversation::new(sample));
        let each = &mut |one: Exchange| self.found.push((one.kind, one.result, one.took_ns));
        talk.take(sample, &TableSlots::default(), each);
    }

    fn sample(&mut self, side: Side, payload: &[u8]) -> Option<FlowSample> {
        self.now_ns += 1_000_000;
        let talker = if side == Side::Client { 1 } else { 2 };
        let turns = self.talker != talker;
        self.talker = talker;
        let sequence = self.sequences[usize::from(talker) - 1];
        let next = sequence.wrapping_add(u32::try_from(payload.len()).unwrap());
        self.sequences[usize::from(talker) - 1] = next;
        if !turns && payload.len() > FLOW_SAMPLE_BYTES {
            return None;
        }
        let length = payload.len().min(FLOW_SAMPLE_BYTES);
        let mut sample = FlowSample::from_bytes(&[0; size_of::<FlowSample>()]).unwrap();
        sample.bytes[..length].copy_from_slice(&payload[..length]);
        sample.length = u16::try_from(length).unwrap();
        sample.payload = u32::try_from(payload.len()).unwrap();
        sample.remote_port = self.port;
        (sample.sequence, sample.at_ns) = (sequence, self.now_ns);
        (sample.sent, sample.turns) = (u8::from(side == Side::Client), u8::from(turns));
        Some(sample)
    }
}

const MS: u64 = 1_000_000;

#[test]
fn requests_and_responses_of_http_belong_together_whatever_their_bodies() {
    let mut wire = Wire::new();
    let body = vec![b'x'; 1448];
    wire.send(Side::Client, b"GET / HTTP/1.1\r\n\r\n");
    wire.send(Side::Server, b"HTTP/1.1 200 OK\r\ncontent-length: 2000\r\n\r\n");
    wire.send(Side::Server, &body);
    wire.send(Side::Server, b"GET / HTTP/1.1\r\n\r\n, the end of a body");
    wire.send(Side::Client, b"POST / HTTP/1.1\r\nexpect: 100-continue\r\n\r\n");
    wire.send(Side::Server, b"HTTP/1.1 100 Continue\r\n\r\n");
    wire.send(Side::Client, &body);
    wire.send(Side::Server, b"HTTP/1.1 503 Busy\r\n\r\n");
    // No sample shows the status of this response.
    wire.send(Side::Client, b"PUT / HTTP/1.1\r\n\r\n");
    wire.send(Side::Server, b"what is it?");
    wire.send(Side::Client, b"GET / HTTP/1.1\r\nupgrade: websocket\r\n\r\n");
    wire.send(Side::Server, b"HTTP/1.1 101 Switching Protocols\r\n\r\n");
    wire.send(Side::Client, b"GET / HTTP/1.1\r\n\r\n");
    let expected = [
        ("GET", "2xx", Some(MS)),
        ("POST", "5xx", Some(3 * MS)),
        ("PUT", "unseen", None),
        ("GET", "1xx", None),
    ];
    assert_eq!(wire.found, expected);
}

#[test]
fn commands_that_follow_each_other_have_their_replies_in_order() {
    let mut wire = Wire::new();
    let set =
        [b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2000\r\n".as_slice(), &[b'v'; 2000], b"\r\n"].concat();
    let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    // The second part of this message has no sample. The next message begins in the third part.
    wire.send(Side::Client, &set[..1000]);
    wire.send(Side::Client, &set[1000..1900]);
    wire.send(Side::Client, &[&set[1900..], get].concat());
    wire.send(Side::Client, get);
    wire.send(Side::Server, b"+OK\r\n$3\r\nabc\r\n-ERR no\r\n");
    wire.send(Side::Client, &[get.as_slice(), b"*1\r\n$4\r\nPI"].concat());
    wire.send(Side::Client, b"NG\r\n");
    wire.send(Side::Server, b"$3\r\nab");
    wire.send(Side::Server, b"c\r\n+PONG\r\n");
    let expected = [
        ("SET", "ok", Some(4 * MS)),
        ("GET", "ok", Some(2 * MS)),
        ("GET", "error", Some(MS)),
        ("GET", "ok", Some(2 * MS)),
        ("PING", "ok", Some(3 * MS)),
    ];
    assert_eq!(wire.found, expected);
}

#[test]
fn frames_that_are_sent_again_count_once() {
    let mut wire = Wire::new();
    let request = wire.sample(Side::Client, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wire.take(&request);
    wire.take(&request);
    wire.send(Side::Server, b"HTTP/1.1 204 No Content\r\n\r\n");
    wire.take(&request);
    wire.send(Side::Client, b"GET / HTTP/1.1\r\n\r\n");
    wire.send(Side::Server, b"HTTP/1.1 200 OK\r\n\r\n");
    assert_eq!(wire.found, [("GET", "2xx", Some(MS)), ("GET", "2xx", Some(MS))]);
}

#[test]
fn after_a_loss_replies_do_not_go_to_other_requests_for_long() {
    let mut wire = Wire::new();
    let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    wire.send(Side::Client, get);
    let _lost = wire.sample(Side::Server, b"-ERR no\r\n");
    wire.talk.as_mut().unwrap().doubt();
    wire.send(Side::Client, get);
    wire.send(Side::Server, b"+OK\r\n");
    assert_eq!(wire.found, [("GET", "unseen", None), ("GET", "ok", Some(MS))]);
    wire.send(Side::Client, get);
    let each = &mut |one: Exchange| wire.found.push((one.kind, one.result, one.took_ns));
    wire.talk.as_mut().unwrap().expire(wire.now_ns, each);
    assert_eq!(wire.found.len(), 2, "it may be answered still");
    let each = &mut |one: Exchange| wire.found.push((one.kind, one.result, one.took_ns));
    wire.talk.as_mut().unwrap().expire(wire.now_ns + 1, each);
    assert_eq!(wire.found[2..], [("GET", "unanswered", None)]);
}

#[test]
fn replies_to_requests_that_were_too_many_go_to_no_later_one() {
    let mut wire = Wire::new();
    let (get, many) = (b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", 20);
    let (set, dropped) = (b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n", 2 * many);
    for _ in 0..2 {
        wire.send(Side::Client, &set[..].repeat(10));
        wire.send(Side::Client, &set[..].repeat(10));
    }
    let mut sent = 0;
    while sent < MAX_PENDING {
        let next = many.min(MAX_PENDING - sent);
        wire.send(Side::Client, &get[..].repeat(next));
        sent += next;
    }
    assert_eq!(wire.found, vec![("SET", "unseen", None); dropped]);
    wire.found.clear();
    assert_eq!(wire.talk.as_mut().unwrap().take_given_up(), dropped as u64);
    wire.send(Side::Server, &b"-ERR no\r\n".repeat(dropped));
    assert_eq!(wire.found, []);
    for _ in 0..MAX_PENDING / 64 {
        wire.send(Side::Server, &b"+OK\r\n".repeat(64));
    }
    let found: Vec<_> = wire.found.drain(..).map(|(kind, result, _)| (kind, result)).collect();
    assert_eq!(found, [("GET", "ok"); MAX_PENDING]);
    wire.send(Side::Client, get);
    wire.send(Side::Server, b"-ERR no\r\n");
    assert_eq!(wire.found, [("GET", "error", Some(MS))]);
}

#[test]
fn replies_that_have_not_come_in_time_are_not_waited_for() {
    let mut wire = Wire::new();
    let get = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    wire.send(Side::Client, &get[..].repeat(3));
    let each = &mut |one: Exchange| wire.found.push((one.kind, one.result, one.took_ns));
    let talk = wire.talk.as_mut().unwrap();
    talk.relieve(1, each);
    talk.expire(wire.now_ns + 1, each);
    let [unseen, unanswered] = ["unseen", "unanswered"].map(|result| ("GET", result, None));
    assert_eq!(wire.found, [unseen, unseen, unanswered]);
    wire.send(Side::Client, get);
    wire.send(Side::Server, b"+OK\r\n");
    assert_eq!(wire.found[3..], [("GET", "ok", Some(MS))]);
}

/// Conversations of each supported protocol. Each part is what one side sends in a frame.
fn conversations() -> Vec<Vec<(Side, Vec<u8>)>> {
    let part = |side, bytes: &[u8]| (side, bytes.to_vec());
    vec![
        vec![
            part(Side::Client, b"GET / HTTP/1.1\r\nhost: web\r\n\r\n"),
            part(Side::Server, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"),
        ],
        vec![
            part(Side::Client, b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1\r\nv\r\n*1\r\n$4\r\nPING\r\n"),
            part(Side::Server, b"+OK\r\n+PONG\r\n*2\r\n%1\r\n+a\r\n:1\r\n$-1\r\n"),
        ],
        vec![
            part(Side::Client, b"\0\0\0\x11\0\x03\0\0user\0me\0\0"),
            part(Side::Server, b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I"),
            part(Side::Client, b"Q\0\0\0\x0dselect 1\0"),
            part(Side::Server, b"E\0\0\0\x05\0Z\0\0\0\x05I"),
        ],
        vec![
            part(Side::Server, b"\x10\0\0\0\x0a10.11-MariaDB\0\0"),
            part(Side::Client, b"\x05\0\0\x01\0\0\0\0\0\x09\0\0\0\x03select 1"),
            part(Side::Server, b"\x01\0\0\x02\0\x01\0\0\x01\x01"),
        ],
        vec![
            part(Side::Client, b"\0\0\0\x0f\0\x12\0\x03\0\0\0\x07\0\x05admin"),
            part(Side::Server, b"\0\0\0\x06\0\0\0\x07\0\0"),
        ],
        vec![
            part(Side::Client, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x03\x01\x05\0\0\0\x01\x83\x86\x84"),
            part(Side::Server, b"\0\0\0\x04\x01\0\0\0\0\0\0\x01\x01\x05\0\0\0\x01\x8e"),
        ],
        vec![
            part(Side::Client, b"\0\x17\x01\x02\x01\0\0\x01\0\0\0\0\0\0\x01a\x03org\0\0\x1c\0\x01"),
            part(Side::Server, b"\0\x0c\x01\x02\x81\x83\0\0\0\0\0\0\0\0"),
        ],
    ]
}

#[test]
fn the_conversations_that_are_mutated_are_read() {
    let expected = [
        vec![("GET", "2xx")],
        vec![("SET", "ok"), ("PING", "ok")],
        vec![("SELECT", "error")],
        vec![("SELECT", "ok")],
        vec![("ApiVersions", "answered")],
        vec![("POST", "5xx")],
        vec![("AAAA", "NXDOMAIN")],
    ];
    for (conversation, expected) in conversations().into_iter().zip(expected) {
        let mut wire = Wire::new();
        wire.port = if expected[0].0 == "AAAA" { 53 } else { 80 };
        conversation.iter().for_each(|(side, bytes)| wire.send(*side, bytes));
        let found: Vec<_> = wire.found.iter().map(|(kind, result, _)| (*kind, *result)).collect();
        assert_eq!(found, expected);
        assert!(wire.found.iter().all(|(_, _, took)| *took == Some(MS)), "{:?}", wire.found);
    }
}

#[test]
fn mutated_bytes_of_any_protocol_end_no_reader_and_never_count_twice() {
    // Pseudo-random numbers that are the same in each run (xorshift).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below.max(1) as u64).unwrap()
    };
    let all = conversations();
    for _ in 0..50_000 {
        let mut wire = Wire::new();
        wire.port = if number(6) == 0 { 53 } else { 80 };
        let mut sent = 0;
        for _ in 0..3 {
            // The client and the server may speak different protocols.
            let conversation = &all[number(all.len())];
            for (side, bytes) in conversation {
                let mut bytes = bytes.clone();
                for _ in 0..number(4) {
                    let at = number(bytes.len());
                    bytes[at] = u8::try_from(number(256)).unwrap();
                }
                let most = number(bytes.len());
                bytes.truncate(bytes.len() - number(most));
                let cut = number(bytes.len());
                for part in [&bytes[..cut], &bytes[cut..]] {
                    if !part.is_empty() {
                        wire.send(*side, part);
                        sent += part.len();
                    }
                }
            }
        }
        if let Some(mut talk) = wire.talk.take() {
            talk.end(&mut |one| wire.found.push((one.kind, one.result, one.took_ns)));
        }
        // A request has at least a few bytes.
        assert!(wire.found.len() <= sent / 4, "{:?} of {sent} bytes", wire.found);
    }
}
