//! Reads pcap files: Ethernet, Linux cooked and raw IP, IPv4 and IPv6, TCP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, bail};

const LINK_ETHERNET: u32 = 1;
const LINK_RAW: u32 = 101;
const LINK_COOKED: u32 = 113;
const LINK_COOKED_2: u32 = 276;
const TCP: u8 = 6;

/// A TCP segment with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The sequence number of the payload's first byte.
    pub sequence: u32,
    /// Whether SYN is set.
    pub syn: bool,
    /// Whether RST is set.
    pub reset: bool,
    /// The payload.
    pub payload: Vec<u8>,
}

impl Segment {
    /// Whether the payload contains `marker`.
    #[must_use]
    pub fn contains(&self, marker: &[u8]) -> bool {
        self.payload.windows(marker.len().max(1)).any(|w| w == marker)
    }
}

/// What the first bytes of a stream look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PayloadKind {
    /// There is no payload.
    Empty,
    /// The beginning of a TLS record.
    Tls,
    /// The beginning of an HTTP/1 request or response.
    Http,
    /// Anything else: plaintext of another protocol, or the middle of a record.
    Other,
}

/// Classifies the first bytes of a direction or a segment.
#[must_use]
pub fn classify(bytes: &[u8]) -> PayloadKind {
    const METHODS: [&[u8]; 10] = [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PUT ",
        b"DELETE ",
        b"CONNECT ",
        b"OPTIONS ",
        b"TRACE ",
        b"PATCH ",
        b"HTTP/1.",
    ];
    match bytes {
        [] => PayloadKind::Empty,
        [20..=23, 3, 0..=4, ..] => PayloadKind::Tls,
        _ if METHODS.iter().any(|m| bytes.starts_with(m)) => PayloadKind::Http,
        _ => PayloadKind::Other,
    }
}

/// The TCP segments of a pcap file, in the order of capture. A truncated packet is an error.
pub fn segments(file: &[u8]) -> Result<Vec<Segment>> {
    let order = match file.get(..4) {
        Some([0xd4, 0xc3, 0xb2, 0xa1] | [0x4d, 0x3c, 0xb2, 0xa1]) => Order::Little,
        Some([0xa1, 0xb2, 0xc3, 0xd4] | [0xa1, 0xb2, 0x3c, 0x4d]) => Order::Big,
        _ => bail!("not a pcap file"),
    };
    let link = order.u32(file, 20)? & 0xffff;
    let (mut at, mut out) = (24, Vec::new());
    while at < file.len() {
        let kept = order.u32(file, at + 8)? as usize;
        let packet = file.get(at + 16..at + 16 + kept).context("the file ends inside a packet")?;
        if kept < order.u32(file, at + 12)? as usize {
            bail!("a packet was cut short by the capture");
        }
        out.extend(network(packet, link)?.and_then(ip));
        at += 16 + kept;
    }
    Ok(out)
}

#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn u32(self, bytes: &[u8], at: usize) -> Result<u32> {
        let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).context("short file")?;
        Ok(match self {
            Order::Little => u32::from_le_bytes(four),
            Order::Big => u32::from_be_bytes(four),
        })
    }
}

/// The IP packet in a frame.
fn network(frame: &[u8], link: u32) -> Result<Option<&[u8]>> {
    let header = match link {
        LINK_ETHERNET => 14,
        LINK_RAW => 0,
        LINK_COOKED => 16,
        LINK_COOKED_2 => 20,
        other => bail!("link type {other} is not known here"),
    };
    Ok(frame.get(header..))
}

fn ip(packet: &[u8]) -> Option<Segment> {
    match packet.first()? >> 4 {
        4 => {
            let header = usize::from(packet[0] & 15) * 4;
            let total = usize::from(u16_at(packet, 2)?);
            // Only the first fragment of a packet has a TCP header.
            if *packet.get(9)? != TCP || u16_at(packet, 6)? & 0x1fff != 0 {
                return None;
            }
            let address = |at: usize| -> Option<IpAddr> {
                let four: [u8; 4] = packet.get(at..at + 4)?.try_into().ok()?;
                Some(Ipv4Addr::from(four).into())
            };
            tcp(packet.get(header..total.min(packet.len()))?, address(12)?, address(16)?)
        }
        6 => {
            let total = 40 + usize::from(u16_at(packet, 4)?);
            if *packet.get(6)? != TCP {
                return None;
            }
            let address = |at: usize| -> Option<IpAddr> {
                let sixteen: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
                Some(Ipv6Addr::from(sixteen).into())
            };
            tcp(packet.get(40..total.min(packet.len()))?, address(8)?, address(24)?)
        }
        _ => None,
    }
}

fn tcp(segment: &[u8], from: IpAddr, to: IpAddr) -> Option<Segment> {
    let header = usize::from(segment.get(12)? >> 4) * 4;
    let flags = *segment.get(13)?;
    Some(Segment {
        from: SocketAddr::new(from, u16_at(segment, 0)?),
        to: SocketAddr::new(to, u16_at(segment, 2)?),
        sequence: u32::from_be_bytes(segment.get(4..8)?.try_into().ok()?),
        syn: flags & 2 != 0,
        reset: flags & 4 != 0,
        payload: segment.get(header..)?.to_vec(),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}
