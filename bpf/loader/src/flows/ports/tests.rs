//! Runs generated frames through the loaded programs (`BPF_PROG_TEST_RUN`): complete ones, truncated ones and mutated
//! ones.

use std::collections::BTreeMap;

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use leno_bpf_abi::flow::{
    FIRST_WORKLOAD, FLOW_SAMPLE_BYTES, Flow, FlowCap, FlowLocal, FlowPair, FlowRole, FlowSample,
    FlowSums, MOST_RETRANSMITS, PEER_OUTSIDE, local_of,
};
use libbpf_rs::{Map, MapCore as _, MapFlags, ProgramInput, RingBufferBuilder};

use super::*;
use crate::flows;
use crate::object;
use crate::tests::has_root;

/// What a program returns so that the next one runs (`TC_ACT_UNSPEC`).
const NEXT: u32 = u32::MAX;
/// The loopback interface. The kernel runs tests as if frames had come from it.
const LOOPBACK: u32 = 1;
const CLIENT: [u8; 4] = [10, 9, 0, 1];
const SERVER: [u8; 4] = [10, 9, 0, 2];
const ETHERNET: usize = 14;
/// The offset of `gso_segs` in the kernel's `struct __sk_buff`.
const GSO_SEGS: usize = 164;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The programs with one workload behind the loopback interface.
struct Programs(Object);

impl Programs {
    fn load() -> Self {
        let object = object::verify(flows::open_programs(false, 0).unwrap()).unwrap();
        let programs = Self(object);
        let workload = FIRST_WORKLOAD.to_ne_bytes();
        programs.map("ports").update(&LOOPBACK.to_ne_bytes(), &workload, MapFlags::ANY).unwrap();
        programs
    }

    /// As `load`, and payload of the workload is sampled.
    fn that_sample() -> Self {
        let programs = Self::load();
        let cap = FlowCap { level: 0, budget: 0, cost: 0, samples: 1 };
        let caps = programs.map("caps");
        caps.update(&FIRST_WORKLOAD.to_ne_bytes(), &cap.to_bytes(), MapFlags::ANY).unwrap();
        programs
    }

    /// The samples since the last call.
    fn samples(&self) -> Vec<FlowSample> {
        let all = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&all);
        let mut builder = RingBufferBuilder::new();
        let take = move |bytes: &[u8]| {
            into.borrow_mut().push(FlowSample::from_bytes(bytes).unwrap());
            0
        };
        let samples = self.map("samples");
        builder.add(&samples, take).unwrap();
        builder.build().unwrap().consume().unwrap();
        all.take()
    }

    /// How many samples were written, and how many were lost.
    fn sample_counts(&self) -> [u64; 2] {
        [0u32, 1].map(|index| {
            let counts = self.map("sample_counts");
            let value = counts.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
            u64::from_ne_bytes(value.try_into().unwrap())
        })
    }

    fn map(&self, name: &str) -> Map<'_> {
        self.0.maps().find(|map| map.name() == name).unwrap()
    }

    /// Replaces the only flow of the table by `change` of it; returns the new flow.
    fn change_flow(&self, change: impl FnOnce(Flow) -> Flow) -> Flow {
        let table = self.map("flows");
        let key = table.keys().next().unwrap();
        let flow = change(self.flows()[0]);
        table.update(&key, &flow.to_bytes(), MapFlags::ANY).unwrap();
        flow
    }

    /// Runs one program for a frame, which the program must pass on unchanged.
    fn run(&self, program: (&str, Direction), frame: &[u8]) {
        self.run_with(program, frame, None);
    }

    /// The same for a frame that stands for this many segments (`gso_segs`).
    fn run_as(&self, program: (&str, Direction), frame: &[u8], segments: u32) {
        let mut context = [0; GSO_SEGS + 4];
        context[GSO_SEGS..].copy_from_slice(&segments.to_ne_bytes());
        self.run_with(program, frame, Some(&mut context));
    }

    fn run_with(&self, (name, _): (&str, Direction), frame: &[u8], context_in: Option<&mut [u8]>) {
        let mut after = vec![0; frame.len() + 64];
        let program = self.0.progs_mut().find(|one| one.name() == name).unwrap();
        let input = ProgramInput {
            context_in,
            data_in: Some(frame),
            data_out: Some(&mut after),
            ..ProgramInput::default()
        };
        let output = program.test_run(input);
        let output =
            output.unwrap_or_else(|error| panic!("{} bytes {frame:?}: {error}", frame.len()));
        assert_eq!(output.return_value, NEXT, "{frame:?}");
        assert_eq!(output.data.unwrap(), frame, "it is not changed");
    }

    fn sums(&self) -> BTreeMap<(u32, u32, u8, u8), FlowSums> {
        let pairs = self.map("pairs");
        let all = pairs.keys().map(|key| {
            let value = pairs.lookup(&key, MapFlags::ANY).unwrap().unwrap();
            let pair = FlowPair::from_bytes(&key).unwrap();
            (
                (pair.workload, pair.peer, pair.role, pair.protocol),
                FlowSums::from_bytes(&value).unwrap(),
            )
        });
        all.collect()
    }

    fn flows(&self) -> Vec<Flow> {
        let table = self.map("flows");
        let keys: Vec<_> = table.keys().collect();
        let of = |key: &Vec<u8>| table.lookup(key, MapFlags::ANY).unwrap();
        keys.iter().filter_map(of).map(|value| Flow::from_bytes(&value).unwrap()).collect()
    }
}

fn ethernet(kind: u16, payload: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2][..], &kind.to_be_bytes(), payload].concat()
}

fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(20 + payload.len()).unwrap().to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let start = [0x45, 0, length[0], length[1], 0, 1, fragment[0], fragment[1], 64, protocol, 0, 0];
    ethernet(0x0800, &[&start, &CLIENT[..], &SERVER, payload].concat())
}

fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let start = [0x60, 0, 0, 0, length[0], length[1], next, 64];
    let address = |last| [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    ethernet(0x86dd, &[&start[..], &address(1), &address(2), payload].concat())
}

fn tcp(flags: u8, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let start = [0x9c, 0x40, 0, 80];
    let rest = [0x50, flags, 1, 0, 0, 0, 0, 0];
    [&start[..], &sequence.to_be_bytes(), &[0; 4], &rest, payload].concat()
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(8 + payload.len()).unwrap().to_be_bytes();
    [&[0x9c, 0x40, 0, 53, length[0], length[1], 0, 0][..], payload].concat()
}

/// One frame of each kind.
fn frames() -> Vec<Vec<u8>> {
    let datagram = udp(b"question");
    let extended: Vec<u8> = [
        &[43, 0, 0, 0, 0, 0, 0, 0][..], // hop-by-hop options, then a routing header
        &[60, 1][..],
        &[0; 14],
        &[44, 0, 0, 0, 0, 0, 0, 0], // destination options
        &[17, 0, 0, 1, 0, 0, 0, 7], // the first fragment
        &datagram,
    ]
    .concat();
    vec![
        ipv4(6, 0, &tcp(SYN, 7, b"")),
        ipv4(6, 0, &tcp(ACK, 8, b"bytes")),
        ipv4(17, 0, &datagram),
        ipv4(17, 3, &datagram), // not the first fragment: no ports
        ipv4(1, 0, &[8, 0, 0, 0, 0, 1, 0, 1]),
        ipv6(6, &tcp(SYN, 7, b"")),
        ipv6(17, &datagram),
        ipv6(0, &extended),
        ethernet(0x0806, &[0; 28]),
        ethernet(0x8100, &[0, 5, 8, 0, 0x45]),
    ]
}

/// The shortest frame of this type that the kernel accepts for a test: IP's header must be complete.
fn least(frame: &[u8]) -> usize {
    match frame[12..ETHERNET] {
        [8, 0] => ETHERNET + 20,
        [0x86, 0xdd] => ETHERNET + 40,
        _ => ETHERNET + 1,
    }
}

#[test]
fn each_kind_of_frame_is_read() {
    if !has_root() {
        return;
    }
    for (frame, protocol, ports) in [
        (&frames()[0], 6, (40_000, 80)),
        (&frames()[2], 17, (40_000, 53)),
        (&frames()[3], 17, (0, 0)),
        (&frames()[4], 1, (0, 0)),
        (&frames()[5], 6, (40_000, 80)),
        (&frames()[6], 17, (40_000, 53)),
        (&frames()[7], 17, (40_000, 53)),
        (&frames()[8], 0, (0, 0)),
        (&frames()[9], 0, (0, 0)),
    ] {
        let programs = Programs::load();
        programs.run(PROGRAMS[0], frame);
        let flows = programs.flows();
        let [flow] = &flows[..] else { panic!("{flows:?}") };
        assert_eq!(flow.protocol, protocol, "{frame:?}");
        assert_eq!((flow.local(|_| None).port(), flow.remote().port()), ports, "{frame:?}");
        assert_eq!((flow.bytes_sent(), flow.segments_sent), (frame.len() as u64, 1));
        let role = flow.role().unwrap();
        assert_eq!((role, u32::from(flow.peer)), (FlowRole::Client, PEER_OUTSIDE), "{frame:?}");
        // The address of IPv6 is found by its number.
        let locals = programs.map("locals");
        let find = |number: u32| {
            let value = locals.lookup(&number.to_ne_bytes(), MapFlags::ANY).unwrap()?;
            Some(FlowLocal::from_bytes(&value).unwrap().ip())
        };
        let local = match frame[12..ETHERNET] {
            [8, 0] => IpAddr::from(CLIENT),
            [0x86, 0xdd] => "fd09::1".parse().unwrap(),
            _ => "::".parse().unwrap(),
        };
        assert_eq!(flow.local(find).ip(), local);
        assert_eq!(
            flow.local_number(),
            local.is_ipv6().then(|| local_of(local)).filter(|_| protocol > 0)
        );
    }
}

#[test]
fn a_flow_at_its_bounds_counts_no_further_and_keeps_its_ports() {
    if !has_root() {
        return;
    }
    let programs = Programs::load();
    let frame = ipv4(6, 0, &tcp(ACK, 8, b"bytes"));
    programs.run(PROGRAMS[0], &frame);
    let full = programs.change_flow(|flow| {
        Flow { retransmits: MOST_RETRANSMITS, ..flow }.with_bytes(u64::MAX, u64::MAX)
    });
    assert!(full.bytes_sent() > 280_000_000_000_000, "{full:?}");
    // It is the same frame again, so it also counts as retransmitted.
    programs.run(PROGRAMS[0], &frame);
    let flows = programs.flows();
    let [after] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(after.segments_sent, 2);
    assert_eq!((after.sent, after.received), (full.sent, full.received));
    assert_eq!((after.retransmits, after.rtt), (full.retransmits, full.rtt));
    let sums: Vec<_> = programs.sums().into_values().filter(|sums| sums.opened > 0).collect();
    assert_eq!(sums.iter().map(|sums| sums.retransmits).collect::<Vec<_>>(), [1]);
    assert_eq!(sums[0].bytes_sent, 2 * frame.len() as u64);
}

/// The count of retransmits and the round-trip time share a word: adding to the count must not change the time.
#[test]
fn retransmits_of_a_frame_of_many_segments_do_not_change_the_round_trip_time() {
    if !has_root() {
        return;
    }
    let programs = Programs::load();
    let frame = ipv4(6, 0, &tcp(ACK, 8, b"bytes"));
    programs.run(PROGRAMS[0], &frame);
    programs.change_flow(|flow| Flow { retransmits: MOST_RETRANSMITS - 1, rtt: 77, ..flow });
    programs.run_as(PROGRAMS[0], &frame, 8_000);
    let flows = programs.flows();
    let [after] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(after.segments_sent, 8_001);
    // One frame adds at most 64, so there is room for 126 more CPUs that read the same count before they add.
    assert_eq!(after.retransmits, MOST_RETRANSMITS - 1 + 64);
    assert_eq!(after.rtt, 77);
    let sums = programs.sums().into_values().map(|sums| sums.retransmits).max();
    assert_eq!(sums, Some(8_000));
}

#[test]
fn what_is_cut_or_mutated_is_never_dropped_and_counted_once() {
    if has_root() {
        run_mutated(&Programs::load());
    }
}

#[test]
fn payload_of_what_is_cut_or_mutated_is_sampled_within_the_frame() {
    if !has_root() {
        return;
    }
    let programs = Programs::that_sample();
    run_mutated(&programs);
    let samples = programs.samples();
    let [written, lost] = programs.sample_counts();
    // The ring has its small default size, so it was full for some samples.
    assert_eq!(written, samples.len() as u64);
    assert!(written > 50 && lost > 100, "{written} written, {lost} lost");
    let longest = frames().iter().map(Vec::len).max().unwrap();
    for one in samples {
        assert!(one.length > 0 && usize::from(one.length) < longest, "{one:?}");
        assert!(u32::from(one.length) <= one.payload, "{one:?}");
    }
}

#[test]
fn the_first_frame_of_a_turn_and_each_small_one_have_a_sample() {
    if !has_root() {
        return;
    }
    let programs = Programs::that_sample();
    let large = vec![b'x'; FLOW_SAMPLE_BYTES + 1];
    let run = |side: usize, sequence: u32, payload: &[u8]| {
        let mut frame = ipv4(6, 0, &tcp(ACK, sequence, payload));
        if side == 1 {
            // From the server to the client.
            frame[26..34].rotate_left(4);
            frame[34..38].rotate_left(2);
        }
        programs.run(PROGRAMS[side], &frame);
    };
    run(0, 1, b"");
    run(0, 1, &large);
    run(0, 514, &large);
    run(0, 1_027, b"end");
    run(1, 7, b"answer");
    run(1, 13, &large);
    run(0, 1_030, b"more");
    programs.run(PROGRAMS[0], &ipv4(17, 0, &udp(b"question")));
    let samples = programs.samples();
    let found: Vec<_> = samples
        .iter()
        .map(|one| {
            let bytes = &one.bytes[..usize::from(one.length)];
            (one.sent, one.turns, one.sequence, one.payload, bytes)
        })
        .collect();
    let expected: [(u8, u8, u32, u32, &[u8]); 5] = [
        (1, 1, 1, 513, &large[..FLOW_SAMPLE_BYTES]),
        (1, 0, 1_027, 3, b"end"),
        (0, 1, 7, 6, b"answer"),
        (1, 1, 1_030, 4, b"more"),
        (1, 1, 0, 8, b"question"),
    ];
    assert_eq!(found, expected);
    assert_eq!(programs.sample_counts(), [5, 0]);
    let first = &samples[0];
    assert_eq!((first.workload, first.peer, first.role), (FIRST_WORKLOAD, PEER_OUTSIDE, 0));
    assert_eq!((first.local_port, first.remote_port, first.protocol), (40_000, 80, 6));
    assert_eq!(samples[0].key, samples[2].key);
}

fn run_mutated(programs: &Programs) {
    let (mut bytes, mut count) = ([0, 0], [0, 0]);
    let mut run = |side: usize, frame: &[u8]| {
        programs.run(PROGRAMS[side], frame);
        bytes[side] += frame.len() as u64;
        count[side] += 1;
    };
    for frame in frames() {
        for length in least(&frame)..=frame.len() {
            run(0, &frame[..length]);
            run(1, &frame[..length]);
        }
    }
    // Numbers that are the same in each run (xorshift).
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut number = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let all = frames();
    for round in 0..20_000 {
        let mut frame = all[number(all.len())].clone();
        for _ in 0..=number(8) {
            let at = number(frame.len());
            frame[at] = u8::try_from(number(256)).unwrap();
        }
        let least = least(&frame);
        if frame.len() < least {
            continue;
        }
        frame.truncate(least + number(frame.len() - least + 1));
        run(round % 2, &frame);
    }
    let sums = programs.sums();
    let sum = |of: fn(&FlowSums) -> u64| sums.values().map(of).sum::<u64>();
    assert_eq!([sum(|one| one.bytes_sent), sum(|one| one.bytes_received)], bytes);
    assert_eq!([sum(|one| one.segments_sent), sum(|one| one.segments_received)], count);
    assert!(sums.len() > 10, "{sums:?}");
}

#[test]
fn frames_of_other_interfaces_cost_a_lookup_and_count_nothing() {
    if !has_root() {
        return;
    }
    let programs = Programs::load();
    programs.map("ports").delete(&LOOPBACK.to_ne_bytes()).unwrap();
    programs.run(PROGRAMS[0], &frames()[0]);
    assert!(programs.flows().is_empty());
    assert!(programs.sums().is_empty());
}
