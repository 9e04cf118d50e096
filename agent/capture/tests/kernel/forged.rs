//! Sends a TCP packet that belongs to no connection and that its receiver does not answer.

use std::io;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};

/// Length of the packet: a header of five words, and five words with the MD5 option of RFC 2385. A
/// listener without a key drops a packet with that option and sends no reset; a reset would delete
/// the connection tracking entry.
const LENGTH: usize = 40;

/// Sends an ACK from and to these addresses and ports.
pub fn acknowledge(from: SocketAddr, to: SocketAddr) -> io::Result<()> {
    let mut packet = [0; LENGTH];
    packet[0..2].copy_from_slice(&from.port().to_be_bytes());
    packet[2..4].copy_from_slice(&to.port().to_be_bytes());
    packet[4..12].copy_from_slice(&[1; 8]);
    packet[12] = u8::try_from(LENGTH / 4).unwrap() << 4;
    packet[13] = 0x10;
    packet[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    packet[20..22].copy_from_slice(&[19, 18]);
    packet[38..40].copy_from_slice(&[1, 1]);
    let sum = checksum(from.ip(), to.ip(), &packet);
    packet[16..18].copy_from_slice(&sum.to_be_bytes());
    let socket = Socket::new(Domain::for_address(to), Type::RAW, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(from.ip(), 0).into())?;
    // The address that is passed to a raw socket must have port 0.
    let sent = socket.send_to(&packet, &SocketAddr::new(to.ip(), 0).into())?;
    assert_eq!(sent, LENGTH);
    Ok(())
}

/// The checksum of RFC 9293, section 3.1. The words of both families' pseudo-headers add up in the
/// same way.
fn checksum(from: IpAddr, to: IpAddr, packet: &[u8]) -> u16 {
    let octets = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let all = [octets(from), octets(to), packet.to_vec()].concat();
    let words = all.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum = words.sum::<u32>() + 6 + u32::try_from(packet.len()).unwrap();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}
