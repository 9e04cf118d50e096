//! The real broker in a network namespace of its own, which needs root. Without root, the tests are skipped with a
//! message, or fail if `LENO_REQUIRE` names root.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};

use leno_handover::{BrokerOffer, Channel, ServeOrder, SocketRequest, SocketRole};
use leno_types::ports;
use socket2::{SockRef, Socket, Type};

const PROGRAM: &str = env!("CARGO_BIN_EXE_leno-broker");

/// The largest amount of memory that a broker may have to itself. It needs about 110 KiB, and 180 in a development build;
/// an async runtime and a logger would raise that above 500.
const MOST_MEMORY_KIB: u32 = 256;
/// The largest heap of a broker that serves. Its start needs more, which is returned: without that it is 32 KiB.
const MOST_HEAP_KIB: u32 = 28;

/// A running broker; killed when this is dropped.
struct Broker {
    child: Child,
    /// The channel for its orders.
    orders: Channel,
}

impl Broker {
    /// Starts a broker in a new network namespace, or in that of `beside`.
    fn start(beside: Option<&Self>, arguments: &[&str]) -> Self {
        let (near, far) = Channel::pair().unwrap();
        let mut command = match beside {
            None => Command::new("unshare"),
            Some(_) => Command::new("nsenter"),
        };
        match beside {
            None => command.arg("--net"),
            Some(other) => command.arg(format!("--net=/proc/{}/ns/net", other.child.id())),
        };
        let child = command
            .arg(PROGRAM)
            .args(arguments)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, orders: near }
    }

    /// Orders the broker to serve a node proxy. Returns the proxy's end of the channel and the sockets that the broker
    /// hands over first.
    fn serve(&self) -> (Channel, Vec<(SocketRole, Socket)>) {
        let (near, far) = Channel::pair().unwrap();
        self.orders.send(&ServeOrder::default(), &[near.as_fd()]).unwrap();
        drop(near);
        let (offer, descriptors) = far.receive::<BrokerOffer>().unwrap().unwrap();
        let BrokerOffer::Namespace { roles, .. } = offer else { panic!("{offer:?}") };
        let handed = roles.into_iter().zip(descriptors.into_iter().map(Socket::from));
        (far, handed.collect())
    }

    /// Waits until the broker ends by itself; returns its exit status and its output.
    fn ended(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status, said)
    }

    /// The memory that the broker shares with no other process, without the pages of the program's file.
    fn memory_kib(&self) -> u32 {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap();
        anonymous_kib(&rollup)
    }

    /// The part of that which is the heap.
    fn heap_kib(&self) -> u32 {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.child.id())).unwrap();
        let (_, heap) = maps.split_once("[heap]").unwrap();
        anonymous_kib(heap)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The first count of anonymous memory in a text of the kernel about mappings.
fn anonymous_kib(maps: &str) -> u32 {
    let row = maps.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    row.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Whether this process may create network namespaces.
fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        let required = std::env::var("LENO_REQUIRE").is_ok_and(|all| all.contains("root"));
        assert!(!required, "LENO_REQUIRE has root");
        eprintln!("skipped: needs root");
    }
    is_root
}

/// The role and port of each listener, and whether it listens.
fn listeners(handed: &[(SocketRole, Socket)]) -> Vec<(SocketRole, u16, bool)> {
    let of = |role| matches!(role, SocketRole::Admin | SocketRole::Outbound | SocketRole::Inbound);
    let listeners = handed.iter().filter(|(role, _)| of(*role)).map(|(role, socket)| {
        let port = socket.local_addr().unwrap().as_socket().unwrap().port();
        (*role, port, socket.is_listener().unwrap())
    });
    listeners.collect()
}

#[test]
fn a_broker_hands_listeners_and_sockets_over_is_small_and_ends_with_its_orders() {
    if !is_root() {
        return;
    }
    let broker = Broker::start(None, &[]);
    let (proxy, handed) = broker.serve();
    let listeners = listeners(&handed);
    for (role, port) in [
        (SocketRole::Admin, ports::ADMIN),
        (SocketRole::Outbound, ports::OUTBOUND),
        (SocketRole::Inbound, ports::INBOUND),
    ] {
        assert!(listeners.contains(&(role, port, true)), "{role:?}: {listeners:?}");
    }
    for role in [SocketRole::Probe, SocketRole::Diagnosis] {
        assert!(handed.iter().any(|(handed, _)| *handed == role), "{role:?}");
    }
    for (ipv6, udp) in [(false, false), (true, false), (false, true), (true, true)] {
        proxy.send(&SocketRequest { ipv6, udp, count: 16 }, &[]).unwrap();
        let (offer, sockets) = proxy.receive::<BrokerOffer>().unwrap().unwrap();
        let BrokerOffer::Sockets { udp: of_udp, .. } = offer else { panic!("{offer:?}") };
        assert_eq!(of_udp, udp);
        let kind = if udp { Type::DGRAM } else { Type::STREAM };
        assert!(sockets.iter().all(|socket| SockRef::from(socket).r#type().unwrap() == kind));
        assert!(sockets.len() == 16 || ipv6, "a machine may have no IPv6: {offer:?}");
    }
    let memory = broker.memory_kib();
    assert!(memory < MOST_MEMORY_KIB, "{memory} KiB");
    let heap = broker.heap_kib();
    assert!(heap <= MOST_HEAP_KIB, "{heap} KiB of heap");
    broker.orders.shut_down();
    let (status, said) = broker.ended();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(said, "");
}

#[test]
fn one_that_succeeds_binds_beside_another_proxy_and_one_that_is_not_supervised_does_not() {
    if !is_root() {
        return;
    }
    let before = Broker::start(None, &["--supervised"]);
    let (_of_before, handed) = before.serve();
    assert!(listeners(&handed).iter().all(|(_, _, listens)| *listens));
    let after = Broker::start(Some(&before), &["--supervised", "--succeeds"]);
    let (_of_after, handed) = after.serve();
    let bound = listeners(&handed);
    assert!(bound.iter().all(|(_, _, listens)| !listens), "{bound:?}");
    assert!(bound.len() > 2, "{bound:?}");

    let (status, said) = Broker::start(Some(&before), &[]).ended();
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.starts_with("leno-broker: listening on [::]:15020"), "{said}");
}

#[test]
fn a_broker_goes_on_when_the_program_that_reads_its_lines_is_gone() {
    if !is_root() {
        return;
    }
    let mut broker = Broker::start(None, &[]);
    drop(broker.serve());
    drop(broker.child.stderr.take());
    // The broker reports an order that comes without its channel.
    broker.orders.send(&ServeOrder::default(), &[]).unwrap();
    let (_proxy, handed) = broker.serve();
    assert!(!handed.is_empty());
}

#[test]
fn an_argument_that_is_not_known_is_an_error_of_usage() {
    let output = Command::new(PROGRAM).arg("--broker").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(r#"unexpected argument "--broker""#), "{said}");
    assert!(said.contains("--supervised"), "{said}");
}
