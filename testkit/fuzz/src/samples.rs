//! Fuzzes the readers of payload samples, which the kernel takes of several connections. Each protocol has a reader;
//! messages may continue in the next sample.

use std::collections::BTreeMap;

use leno_bpf_abi::flow::{FLOW_SAMPLE_BYTES, FlowSample};
use leno_flows::{SampledRequest, read_samples};

/// The server ports of the connections. DNS is recognised by its port.
const PORTS: [u16; 4] = [80, 53, 6379, 3306];
const TCP: u8 = 6;
const UDP: u8 = 17;
/// The most bytes of a kind or a result. A row of the kernel's table has the same limit.
const LONGEST_WORD: usize = 15;

/// The flags in the first octet of a sample.
const OF_CLIENT: u8 = 1;
const LOST_BEFORE: u8 = 2;
const IS_LONGER: u8 = 4;
const IS_UDP: u8 = 8;
const OTHER_CONNECTION: u8 = 16;

/// Reads the samples in the input, and checks the results. Each sample starts with an octet that contains flags,
/// such as [`OF_CLIENT`], and the number of its connection. The next octet is half of its length. The payload
/// follows.
pub(crate) fn run(input: &[u8]) {
    let samples = decode(input);
    let found = read_samples(&samples);
    let words = found.iter().flat_map(|one| [one.protocol, one.kind, one.result]);
    for word in words {
        assert!(!word.is_empty() && word.len() <= LONGEST_WORD && word.is_ascii(), "{word:?}");
    }
    let payload: u64 = samples.iter().map(|one| u64::from(one.length)).sum();
    assert!(found.len() as u64 <= payload, "{} requests in {payload} bytes", found.len());
    let last_ns = samples.last().map_or(0, |sample| sample.at_ns);
    assert!(found.iter().all(|one| one.took_ns.is_none_or(|took| took <= last_ns)), "{found:?}");
    // A TCP retransmission changes nothing.
    let again = samples.iter().flat_map(|sample| {
        let copies = if sample.protocol == TCP { 2 } else { 1 };
        std::iter::repeat_n(*sample, copies)
    });
    assert_eq!(counts(&read_samples(&again.collect::<Vec<_>>())), counts(&found));
}

fn counts(found: &[SampledRequest]) -> BTreeMap<(&str, &str, &str), usize> {
    let mut counts = BTreeMap::new();
    for one in found {
        *counts.entry((one.protocol, one.kind, one.result)).or_default() += 1;
    }
    counts
}

/// The state of a connection.
#[derive(Clone, Copy, Default)]
struct Connection {
    opened_ns: u64,
    /// The sequence numbers of both sides, and the side that sent last.
    next: [u32; 2],
    talker: Option<bool>,
}

fn decode(mut input: &[u8]) -> Vec<FlowSample> {
    let mut connections = [[Connection::default(); 2]; PORTS.len()];
    let mut samples = Vec::new();
    while let [flags, length, rest @ ..] = input {
        let length = (usize::from(*length) * 2 + 1).min(FLOW_SAMPLE_BYTES).min(rest.len());
        let (bytes, rest) = rest.split_at(length);
        input = rest;
        let port = usize::from(flags >> 5) % PORTS.len();
        let is_udp = flags & IS_UDP != 0;
        let connection = &mut connections[port][usize::from(is_udp)];
        let at_ns = samples.len() as u64 + 1;
        if flags & OTHER_CONNECTION != 0 {
            *connection = Connection { opened_ns: at_ns, ..Connection::default() };
        }
        let by_client = flags & OF_CLIENT != 0;
        let next = &mut connection.next[usize::from(by_client)];
        if flags & LOST_BEFORE != 0 {
            *next = next.wrapping_add(700);
        }
        let longer = if flags & IS_LONGER != 0 { 1_000 } else { 0 };
        let payload = u32::try_from(bytes.len()).expect("within a sample") + longer;
        let zero = [0; size_of::<FlowSample>()];
        let mut sample = FlowSample::from_bytes(&zero).expect("as many bytes as a sample has");
        sample.bytes[..bytes.len()].copy_from_slice(bytes);
        sample.length = u16::try_from(bytes.len()).expect("within a sample");
        (sample.payload, sample.sequence) = (payload, *next);
        (sample.at_ns, sample.opened_ns) = (at_ns, connection.opened_ns);
        sample.key = (port * 2 + usize::from(is_udp)) as u64;
        sample.remote_port = PORTS[port];
        sample.protocol = if is_udp { UDP } else { TCP };
        sample.sent = u8::from(by_client);
        sample.turns = u8::from(connection.talker != Some(by_client));
        *next = next.wrapping_add(payload);
        connection.talker = Some(by_client);
        // The kernel takes no sample of a frame without payload.
        samples.extend((!bytes.is_empty()).then_some(sample));
    }
    samples
}
