//! A scripted DNS server over UDP and TCP (RFC 1035), for A records.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// The answer for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsAnswer {
    /// These addresses, with a TTL in seconds.
    Addresses(Vec<Ipv4Addr>, u32),
    /// The error SERVFAIL.
    Failure,
}

/// A server. Its threads end with the process. Names for which no answer is set do not exist (NXDOMAIN).
#[derive(Clone, Debug)]
pub struct Resolver {
    address: SocketAddr,
    names: Arc<Mutex<HashMap<String, DnsAnswer>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

const NO_ERROR: u8 = 0;
const FAILURE: u8 = 2;
const NO_NAME: u8 = 3;
const TYPE_A: u16 = 1;
/// The number of bytes before the question (RFC 1035 section 4.1.1).
const HEADER: usize = 12;

/// Sockets on a port of 127.0.0.1 that is free for both protocols. A port that is free for UDP may be used by a
/// TCP connection.
fn sockets() -> Result<(SocketAddr, UdpSocket, TcpListener)> {
    loop {
        let udp = UdpSocket::bind("127.0.0.1:0").context("cannot bind")?;
        let address = udp.local_addr()?;
        match TcpListener::bind(address) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            tcp => return Ok((address, udp, tcp.context("cannot listen on the same port")?)),
        }
    }
}

impl Resolver {
    /// Serves on a free port of 127.0.0.1.
    pub fn start() -> Result<Self> {
        let (address, udp, tcp) = sockets()?;
        let resolver = Self { address, names: Arc::default(), asked: Arc::default() };
        let serving = resolver.clone();
        thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = udp.recv_from(&mut question) {
                if let Some(answer) = serving.answer(&question[..length]) {
                    let _gone = udp.send_to(&answer, client);
                }
            }
        });
        let serving = resolver.clone();
        thread::spawn(move || {
            for stream in tcp.incoming().flatten() {
                let serving = serving.clone();
                // An error means that the client has closed the connection.
                thread::spawn(move || serving.converse(stream).unwrap_or_default());
            }
        });
        Ok(resolver)
    }

    /// The address on which it serves.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the answer for a name from now on.
    pub fn set(&self, name: &str, says: DnsAnswer) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name.to_owned(), says);
    }

    /// How many times a name was queried.
    #[must_use]
    pub fn asked(&self, name: &str) -> usize {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().filter(|one| *one == name).count()
    }

    fn converse(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let mut question = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut question)?;
        let Some(answer) = self.answer(&question) else { return Ok(()) };
        let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
        stream.write_all(&[&length.to_be_bytes()[..], &answer].concat())
    }

    /// The response; `None` if the message is not a valid query.
    fn answer(&self, question: &[u8]) -> Option<Vec<u8>> {
        let (name, end) = name(question)?;
        let kind = u16::from_be_bytes([*question.get(end)?, *question.get(end + 1)?]);
        let asked = question.get(HEADER..end + 4)?;
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(name.clone());
        let says = self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&name).cloned();
        let (code, addresses, ttl) = match says {
            Some(DnsAnswer::Addresses(addresses, ttl)) if kind == TYPE_A => {
                (NO_ERROR, addresses, ttl)
            }
            Some(DnsAnswer::Addresses(..)) => (NO_ERROR, Vec::new(), 0),
            Some(DnsAnswer::Failure) => (FAILURE, Vec::new(), 0),
            None => (NO_NAME, Vec::new(), 0),
        };
        let mut answer = question[..2].to_vec();
        // The flags: response, recursion desired and available. The counts: one question, and the answers.
        answer.extend([
            0x81,
            0x80 | code,
            0,
            1,
            0,
            u8::try_from(addresses.len()).ok()?,
            0,
            0,
            0,
            0,
        ]);
        answer.extend(asked);
        for address in addresses {
            // A pointer to the name in the question, the type A, and the class IN.
            answer.extend([0xc0, 0x0c, 0, 1, 0, 1]);
            answer.extend(ttl.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(address.octets());
        }
        Some(answer)
    }
}

/// The name in the question, in lower case, and the offset at which it ends.
fn name(question: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), HEADER);
    loop {
        let length = usize::from(*question.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        let label = question.get(at..at + length)?;
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
        at += length;
    }
}
