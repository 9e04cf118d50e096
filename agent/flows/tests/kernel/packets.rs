//! Tests the counts of frames against the interface's own counters and what the applications have sent.

use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use leno_bpf::{PinRoot, RunTime, RunTimeCounting, run_time};
use leno_flows::{FlowMetricsSource, FlowSizes};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::{
    CLIENT, Ending, Lab, PrometheusRows, SERVER, has_root, ip, read, run_again, talk, write,
};

const BYTES: &str = "leno_flow_bytes_total";
const FRAMES: &str = "leno_flow_segments_total";
const OPENED: &str = "leno_flow_connections_opened_total";
const CLOSED: &str = "leno_flow_connections_closed_total";
const SENT: (&str, &str) = ("direction", "sent");
const RECEIVED: (&str, &str) = ("direction", "received");
const WIRE: (&str, &str) = ("socket", "wire");
/// Longest wait for frames that were sent.
const LIMIT: Duration = Duration::from_secs(20);
/// The bytes of the headers of a frame: Ethernet, IPv4, and TCP with timestamps.
const HEADERS: u64 = 14 + 20 + 32;
/// How many bytes longer the options of a SYN are.
const SYN_OPTIONS: u64 = 8;

/// Bytes and frames that were sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts([u64; 4]);

impl Counts {
    /// The counters of the client's interface in the kernel.
    fn of_interface(lab: &Lab) -> Self {
        let text =
            lab.within("client", || fs::read_to_string("/proc/thread-self/net/dev").unwrap());
        let line = text.lines().find_map(|line| line.trim().strip_prefix("eth0:")).unwrap();
        let all: Vec<u64> = line.split_whitespace().map(|one| one.parse().unwrap()).collect();
        Self([all[8], all[9], all[0], all[1]])
    }

    /// The published counters, for all protocols together.
    fn of_rows(rows: &PrometheusRows) -> Self {
        let sum = |name, direction| rows.sum(name, &[WIRE, direction]);
        Self([sum(BYTES, SENT), sum(FRAMES, SENT), sum(BYTES, RECEIVED), sum(FRAMES, RECEIVED)])
    }

    fn since(self, before: Self) -> Self {
        Self(std::array::from_fn(|one| self.0[one] - before.0[one]))
    }
}

/// Both counts at a moment at which the interface was quiet. The kernel may send packets at any time, for example
/// to resolve neighbours or to join multicast groups.
fn counts(lab: &mut Lab) -> (Counts, Counts) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let before = Counts::of_interface(lab);
        let rows = lab.metrics();
        if Counts::of_interface(lab) == before {
            return (before, Counts::of_rows(&rows));
        }
        assert!(Instant::now() < deadline, "the interface is never quiet");
    }
}

/// Sends an echo request, and waits for the reply.
fn ping(lab: &Lab, to: &str) {
    let to: IpAddr = to.parse().unwrap();
    let (domain, protocol, request, reply) = match to {
        IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4, 8, 0),
        IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6, 128, 129),
    };
    let socket = lab.within("client", || Socket::new(domain, Type::RAW, Some(protocol)).unwrap());
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    // The checksum (RFC 1071) of a request without number and payload. For ICMPv6 the kernel computes it.
    let sum: [u8; 2] = if to.is_ipv4() { [!request, 0xff] } else { [0, 0] };
    let message = [request, 0, sum[0], sum[1], 0, 0, 0, 0];
    socket.send_to(&message, &SocketAddr::new(to, 0).into()).unwrap();
    let mut answer = [0; 100];
    // A raw IPv4 socket also receives the IP header.
    let at = if to.is_ipv4() { 20 } else { 0 };
    while answer[at] != reply {
        assert!((&socket).read(&mut answer).unwrap() >= at + 8);
    }
}

/// Runs the tests of frames again as on a kernel without tcx, by setting LENO_TCX=off.
#[test]
fn frames_are_counted_by_filters_where_the_kernel_has_no_tcx() {
    let tests = ["packets::", "life::the_end", "life::no_connection", "life::pins_of"];
    run_again(("LENO_TCX", "off"), &tests);
}

#[test]
fn frames_equal_those_of_the_interface() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    for side in ["client", "server"] {
        // Disables large frames (GSO), which an interface counts once before it splits them.
        let netns = lab.netns(side);
        let netns = netns.file_name().unwrap().to_str().unwrap();
        ip(&["-n", netns, "link", "set", "eth0", "gso_max_segs", "1"]);
    }
    let (interface, counted) = counts(&mut lab);
    for address in SERVER {
        let listener = lab.listen(address);
        let (client, server) = lab.connect(&listener);
        talk(client, server, [300_000, 200_000], Ending::ClientCloses);
        let at = SocketAddr::new(address.parse().unwrap(), 0);
        let answers = lab.within("server", || UdpSocket::bind(at).unwrap());
        let asks = lab.within("client", || {
            UdpSocket::bind(SocketAddr::new(CLIENT[usize::from(at.is_ipv6())].parse().unwrap(), 0))
                .unwrap()
        });
        for size in [0, 1, 17, 18, 19, 1_000, 1_400, 8_000] {
            asks.send_to(&vec![7; size], answers.local_addr().unwrap()).unwrap();
            let (length, from) = answers.recv_from(&mut [0; 9_000]).unwrap();
            assert_eq!((length, from), (size, asks.local_addr().unwrap()));
            answers.send_to(&[8; 100], from).unwrap();
            asks.recv_from(&mut [0; 200]).unwrap();
        }
        ping(&lab, address);
    }
    let deadline = Instant::now() + LIMIT;
    loop {
        let (interface_now, counted_now) = counts(&mut lab);
        let (moved, seen) = (interface_now.since(interface), counted_now.since(counted));
        if moved == seen {
            assert!(moved.0[0] > 600_000 && moved.0[2] > 400_000, "{moved:?}");
            break;
        }
        assert!(Instant::now() < deadline, "moved {moved:?}, counted {seen:?}");
    }
    let rows = lab.metrics();
    for protocol in ["tcp", "udp", "icmp", "icmpv6", "other"] {
        // ARP is counted as `other`.
        assert!(
            rows.sum(BYTES, &[WIRE, ("protocol", protocol), SENT]) > 0,
            "{protocol}: {rows:#?}"
        );
    }
    assert_eq!(rows.of_side("client", OPENED, &[("socket", "application")]), 0, "once");
    let flows = lab.flows("client", |flows| flows.iter().any(|one| one.protocol == "udp"));
    let udp = flows.iter().find(|one| one.protocol == "udp" && one.local.port() != 0).unwrap();
    assert_eq!((udp.state, udp.role, udp.socket), ("established", "client", "wire"));
}

#[test]
fn a_large_frame_counts_as_the_frames_that_it_becomes() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let (client, server) = lab.connect(&listener);
    let bytes = 10_000_000;
    std::thread::scope(|scope| {
        scope.spawn(|| write(&client, bytes).unwrap());
        read(&server, bytes).unwrap();
    });
    let labels = [WIRE, ("protocol", "tcp"), ("peer_workload", "server"), SENT];
    let rows = lab.metrics();
    let (sent, frames) = (rows.sum(BYTES, &labels), rows.sum(FRAMES, &labels));
    assert!(frames > bytes as u64 / 1_460, "{frames} frames");
    let payload = bytes as u64 + sent_again(&lab, to);
    assert_eq!(sent, payload + HEADERS * frames + SYN_OPTIONS, "{frames} frames");
    let flows = lab.flows("client", |flows| flows.iter().any(|one| one.remote == to));
    let flow = flows.iter().find(|one| one.remote == to).unwrap();
    assert_eq!(flow.bytes_sent, sent);
    assert!(flow.handshake_us > 0, "{flow:?}");
}

/// How much payload the client's socket has retransmitted, according to the kernel.
fn sent_again(lab: &Lab, to: SocketAddr) -> u64 {
    let output = lab.within("client", || {
        Command::new("ss").args(["-Htin", "dst"]).arg(to.to_string()).output()
    });
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("bytes_sent:"), "{text}");
    let count = text.split_whitespace().find_map(|word| word.strip_prefix("bytes_retrans:"));
    count.map_or(0, |count| count.parse().unwrap())
}

#[test]
fn connections_and_endings_are_read_from_flags() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    let endings =
        [Ending::ClientCloses, Ending::ServerCloses, Ending::ClientResets, Ending::ServerResets];
    let rounds = 20;
    for address in SERVER {
        let listener = lab.listen(address);
        let to = listener.local_addr().unwrap();
        for ending in endings.iter().cycle().take(endings.len() * rounds) {
            let (client, server) = lab.connect(&listener);
            talk(client, server, [400, 500], *ending);
        }
        drop(listener);
        lab.within("client", || TcpStream::connect(to).unwrap_err());
    }
    let labels = [WIRE, ("workload", "client"), ("protocol", "tcp")];
    let each = 2 * rounds as u64;
    let all = 4 * each + 2;
    let rows = lab.metrics_when(|rows| rows.sum(CLOSED, &labels) >= all);
    assert_eq!(rows.sum(OPENED, &labels), all);
    assert_eq!(rows.sum("leno_flow_handshake_seconds_count", &labels), 4 * each);
    for end in ["closed_local", "closed_remote", "reset_local", "reset_remote"] {
        let labels = [&labels[..], &[("end", end)]].concat();
        assert_eq!(rows.sum(CLOSED, &labels), each, "{end}");
    }
    assert_eq!(rows.sum(CLOSED, &[WIRE, ("end", "refused")]), 2);
}

#[test]
fn frames_that_are_sent_again_are_counted() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let (client, server) = lab.connect(&listener);
    talk_once(&client, &server);
    // The server's interface loses its address, so packets of the client are not acknowledged.
    let netns = lab.netns("server");
    let netns = netns.file_name().unwrap().to_str().unwrap();
    ip(&["-n", netns, "address", "delete", &format!("{}/24", SERVER[0]), "dev", "eth0"]);
    write(&client, 100).unwrap();
    let labels = [WIRE, ("workload", "client")];
    lab.metrics_when(|rows| rows.sum("leno_flow_retransmits_total", &labels) >= 2);
    ip(&["-n", netns, "address", "add", &format!("{}/24", SERVER[0]), "dev", "eth0"]);
    read(&server, 100).unwrap();
    let info = lab.flows("client", |flows| flows.iter().any(|one| one.retransmits >= 2));
    assert!(info.iter().all(|one| one.state != "closed"), "{info:?}");
}

fn talk_once(client: &TcpStream, server: &TcpStream) {
    write(client, 10).unwrap();
    read(server, 10).unwrap();
}

#[test]
fn an_edit_changes_from_frames_to_sockets_and_back() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let connect = |lab: &Lab| {
        let (client, server) = lab.connect(&listener);
        talk(client, server, [400, 500], Ending::ClientCloses);
    };
    for (source, wire, application) in [
        (FlowMetricsSource::Packets, 1, 0),
        (FlowMetricsSource::Sockets, 1, 1),
        (FlowMetricsSource::Off, 1, 1),
        (FlowMetricsSource::Packets, 2, 1),
    ] {
        lab.accounts().set_source("client-0", source, None).unwrap();
        connect(&lab);
        let of =
            |rows: &PrometheusRows, socket| rows.of_side("client", CLOSED, &[("socket", socket)]);
        lab.metrics_when(|rows| (of(rows, "wire"), of(rows, "application")) == (wire, application));
    }
}

#[test]
fn counters_of_frames_go_on_through_a_resize_an_upgrade_and_a_restart() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let (client, server) = lab.connect(&listener);
    let labels = [WIRE, ("workload", "client"), ("protocol", "tcp"), SENT];
    let mut last = 0;
    for step in 0..4 {
        match step {
            1 => lab.view().resize(Some(2_048), None).unwrap(),
            2 => lab.view().upgrade(|| Ok(())).unwrap(),
            3 => drop(lab.restart(FlowSizes::default())),
            _ => {}
        }
        talk_once(&client, &server);
        let rows = lab.metrics_when(|rows| rows.sum(BYTES, &labels) >= last + 10 + HEADERS);
        last = rows.sum(BYTES, &labels);
        let flows = lab.flows("client", |flows| flows.iter().any(|one| one.remote == to));
        let flow = flows.iter().find(|one| one.remote == to).unwrap();
        assert_eq!((flow.bytes_sent, flow.socket), (last, "wire"), "step {step}");
        assert_eq!(rows.of_side("client", OPENED, &[]), 1, "step {step}");
    }
}

/// Not a test: prints what a frame costs, according to the kernel's clock. `cargo test -p leno-flows --test kernel
/// -- --ignored --nocapture prints_the_cost_of_a_frame`
#[test]
#[ignore = "measures, and asserts nothing"]
fn prints_the_cost_of_a_frame() {
    let lab = Lab::of_frames(FlowSizes::default());
    let listener = lab.listen(SERVER[0]);
    let (client, server) = lab.connect(&listener);
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let root = PinRoot::find().unwrap();
    let owners = [lab.owner.clone()];
    let _counting = RunTimeCounting::start().unwrap();
    println!("{:12}{:>12}{:>12}", "exchanges", "runs", "ns a run");
    for _ in 0..5 {
        let before = run_time(&root, &owners).unwrap();
        let exchanges = 50_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..exchanges {
                    read(&server, 100).unwrap();
                    write(&server, 100).unwrap();
                }
            });
            for _ in 0..exchanges {
                write(&client, 100).unwrap();
                read(&client, 100).unwrap();
            }
        });
        let after = run_time(&root, &owners).unwrap();
        let RunTime { runs, took } =
            RunTime { runs: after.runs - before.runs, took: after.took - before.took };
        println!("{exchanges:12}{runs:12}{:12}", took.as_nanos() / u128::from(runs.max(1)));
    }
}

/// The peak memory of this process since the last call, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Also prints the measurements: `cargo test -p leno-flows --test kernel -- --ignored --nocapture
/// a_million_flows`.
#[test]
#[ignore = "takes 160 MB of kernel memory and up to a minute"]
fn a_million_flows_are_read_in_little_memory() {
    if !has_root() {
        return;
    }
    let mut lab = Lab::of_frames(FlowSizes::new(leno_flows::MAX_FLOWS, 64).unwrap());
    let to: IpAddr = SERVER[0].parse().unwrap();
    lab.metrics();
    peak_memory();
    let before = peak_memory();
    // From each of sixteen ports, a datagram is sent to every port of the server.
    lab.within("client", || {
        for _ in 0..16 {
            let from = UdpSocket::bind((CLIENT[0], 0)).unwrap();
            for port in 1..=u16::MAX {
                // A refusal of an earlier datagram may be reported to a later one, which is then sent again.
                while from.send_to(&[7], (to, port)).is_err() {}
            }
        }
    });
    let rows = lab.metrics();
    let entries = rows.sum("leno_flow_map_entries", &[]);
    assert!(entries > 1_040_000, "{entries}");
    let read = peak_memory().saturating_sub(before);
    let (listed, _, left_out) = lab.view().list_latest(10_000).unwrap();
    assert_eq!(listed.len() + left_out, entries as usize);
    let shown = peak_memory().saturating_sub(before);
    let root = leno_bpf::PinRoot::find().unwrap();
    let maps = leno_bpf::inspect::maps(&root).unwrap();
    let kernel: u64 =
        maps.iter().filter(|map| map.owner == lab.owner).map(|map| map.memory_bytes).sum();
    println!(
        "{entries} flows: {kernel} bytes of kernel memory, {read} to read them, {shown} to show 10,000"
    );
    assert!(read < 30_000_000 && shown < 30_000_000, "{read} {shown}");
    let table = maps.iter().find(|map| map.owner == lab.owner && map.name == "flows").unwrap();
    assert!(table.memory_bytes < 160_000_000, "{} bytes", table.memory_bytes);
}
