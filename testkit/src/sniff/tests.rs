//! Tests with packets written by hand and, as root, with a real tcpdump.

use nix::sched::{CloneFlags, unshare};

use super::*;

/// A little-endian pcap file with one packet.
fn file(link: u32, packet: &[u8], original: usize) -> Vec<u8> {
    let mut out = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    out.extend([0; 8]);
    out.extend(65535_u32.to_le_bytes());
    out.extend(link.to_le_bytes());
    out.extend([0; 8]);
    out.extend(u32::try_from(packet.len()).unwrap().to_le_bytes());
    out.extend(u32::try_from(original).unwrap().to_le_bytes());
    out.extend(packet);
    out
}

fn tcp_bytes(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x90, 0, 80, 0, 0, 0, 7, 0, 0, 0, 0, 5 << 4, 2, 0, 0, 0, 0, 0, 0];
    out.extend(payload);
    out
}

fn ipv4(payload: &[u8]) -> Vec<u8> {
    let tcp = tcp_bytes(payload);
    let mut out = vec![0x45, 0, 0, u8::try_from(20 + tcp.len()).unwrap(), 0, 0, 0, 0, 64, 6, 0, 0];
    out.extend([10, 0, 0, 1, 10, 0, 0, 2]);
    out.extend(tcp);
    out
}

#[test]
fn segments_are_read_under_every_link_type() {
    for (link, header) in [(101, 0), (1, 14), (113, 16), (276, 20)] {
        let mut packet = vec![0; header];
        packet.extend(ipv4(b"GET / HTTP/1.1"));
        // Ethernet pads short frames. The length in the IP header decides.
        packet.extend([0; 6]);
        let found = segments(&file(link, &packet, packet.len())).unwrap();
        assert_eq!(found.len(), 1, "link {link}");
        assert_eq!(found[0].from, "10.0.0.1:8080".parse().unwrap());
        assert_eq!(found[0].to, "10.0.0.2:80".parse().unwrap());
        assert_eq!((found[0].sequence, found[0].syn, found[0].reset), (7, true, false));
        assert_eq!(classify(&found[0].payload), PayloadKind::Http);
        assert!(found[0].contains(b"HTTP/1.1") && !found[0].contains(b"secret"));
    }
}

#[test]
fn ipv6_is_read_too() {
    let tcp = tcp_bytes(&[22, 3, 1, 0, 1]);
    let mut packet = vec![0x60, 0, 0, 0, 0, u8::try_from(tcp.len()).unwrap(), 6, 64];
    packet.extend([0xfd; 16]);
    packet.extend([0xfe; 16]);
    packet.extend(tcp);
    let found = segments(&file(101, &packet, packet.len())).unwrap();
    assert!(found[0].from.is_ipv6());
    assert_eq!(classify(&found[0].payload), PayloadKind::Tls);
}

#[test]
fn incomplete_captures_are_errors() {
    let packet = ipv4(b"x");
    assert!(segments(&file(101, &packet, packet.len() + 1)).is_err(), "cut short");
    let whole = file(101, &packet, packet.len());
    assert!(segments(&whole[..whole.len() - 1]).is_err(), "truncated file");
    assert!(segments(b"no pcap").is_err());
    assert!(segments(&file(9999, &packet, packet.len())).is_err(), "unknown link");
}

#[test]
fn the_kinds_of_payload_are_distinguished() {
    assert_eq!(classify(b""), PayloadKind::Empty);
    assert_eq!(classify(b"HTTP/1.1 200 OK"), PayloadKind::Http);
    assert_eq!(classify(&[23, 3, 3, 0, 20]), PayloadKind::Tls);
    assert_eq!(classify(b"*1\r\n$4\r\nPING\r\n"), PayloadKind::Other);
}

#[test]
fn a_real_capture_shows_what_a_connection_carried() {
    if !nix::unistd::geteuid().is_root() {
        let required = std::env::var("LENO_REQUIRE").unwrap_or_default();
        assert!(!required.contains("root"), "this test needs root");
        println!("skipped: needs root");
        return;
    }
    // The capture runs in a new namespace, so that packets of other tests on loopback are not captured.
    let capture = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let namespace = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
        let sniffer = Sniffer::start(Path::new(&namespace)).unwrap();
        let server = crate::peer::Server::start(crate::peer::Behaviour::Echo).unwrap();
        let port = server.address().port();
        let steps = [
            crate::peer::Step::Send("marker-4711".into()),
            crate::peer::Step::Expect("marker-4711".into()),
        ];
        let transcript = crate::peer::talk(&server.address().to_string(), &steps).unwrap();
        assert_eq!(transcript.failure(), None);
        (port, sniffer.stop().unwrap())
    };
    let (port, found) = std::thread::scope(|scope| scope.spawn(capture).join().unwrap());
    assert!(found.iter().any(|s| s.to.port() == port && s.contains(b"marker-4711")));
    assert!(found.iter().any(|s| s.from.port() == port && s.contains(b"marker-4711")));
}
