//! A process in a chosen cgroup and with a chosen user, which makes the socket calls that it is ordered to make,
//! one command per line.
#![expect(unsafe_code, reason = "no crate in use sets a socket option of a level of our own")]

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::net::{
    IpAddr, Ipv4Addr, Shutdown, SocketAddr, SocketAddrV6, TcpListener, TcpStream, UdpSocket,
};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use leno_capture::{Preflight, ProbeReport};
use leno_types::source::{CLIENT_LEVEL, CLIENT_OPTION, stand_in};
use nix::unistd::{Gid, Uid, setresgid, setresuid};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use crate::forged;

/// Longer than any connection inside this machine takes. The bound is only reached if packets are dropped.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Longest wait for an answer that is already being sent.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// How many threads a `storm` uses.
const STORM_THREADS: usize = 16;

/// The prefix of answers, which distinguishes them from the test runner's output.
pub const ANSWER: &str = "> ";

/// Reads commands until standard input ends.
pub fn serve() {
    let Ok(place) = std::env::var("LENO_TEST_WORKER") else { return };
    take_place(&place);
    let mut listeners = HashMap::new();
    for line in io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = obey(&words, &mut listeners).unwrap_or_else(|error| format!("error {error}"));
        println!("{ANSWER}{answer}");
    }
    // Exits here, because the test runner would write to a pipe that no process reads any more.
    std::process::exit(0);
}

/// Parses `CGROUP USER`, each of which may be `-`, and joins the cgroup before any socket is created.
fn take_place(place: &str) {
    let (cgroup, uid) = place.split_once(' ').unwrap();
    if cgroup != "-" {
        std::fs::write(format!("{cgroup}/cgroup.procs"), "0").unwrap();
    }
    if let Ok(uid) = uid.parse() {
        let gid = Gid::from_raw(uid);
        setresgid(gid, gid, gid).unwrap();
        let uid = Uid::from_raw(uid);
        setresuid(uid, uid, uid).unwrap();
    }
    println!("{ANSWER}ready");
}

thread_local! {
    /// Connections that stay open. They belong to the thread that executes commands.
    static HELD: RefCell<Vec<TcpStream>> = const { RefCell::new(Vec::new()) };
}

/// Listeners by address. Several may have the same address.
type Listeners = HashMap<SocketAddr, Vec<(Arc<TcpListener>, JoinHandle<()>)>>;

fn obey(words: &[&str], listeners: &mut Listeners) -> io::Result<String> {
    let address = |text: &str| text.parse::<SocketAddr>().map_err(io::Error::other);
    match words {
        ["listen", who, at] => {
            let listener = Arc::new(listen(address(at)?)?);
            let at = listener.local_addr()?;
            let (accepting, who) = (Arc::clone(&listener), (*who).to_owned());
            let thread = thread::spawn(move || accept(&accepting, &who));
            listeners.entry(at).or_default().push((listener, thread));
            Ok(format!("{at}"))
        }
        ["close", at] => {
            for (listener, thread) in listeners.remove(&address(at)?).unwrap_or_default() {
                SockRef::from(&*listener).shutdown(Shutdown::Both)?;
                thread.join().unwrap();
            }
            Ok("closed".to_owned())
        }
        // The sockets stay open, as if another process still had them.
        ["shut", at] => {
            for (listener, _) in listeners.get(&address(at)?).into_iter().flatten() {
                SockRef::from(&**listener).shutdown(Shutdown::Both)?;
            }
            Ok("shut".to_owned())
        }
        ["echo", at] => echo(address(at)?),
        ["hold", to] => hold(address(to)?),
        ["say"] => say(),
        ["dial", to] => dial(address(to)?),
        ["dial-device", device, to] => {
            let to = address(to)?;
            let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
            socket.bind_device(Some(device.as_bytes()))?;
            socket
                .connect_timeout(&to.into(), CONNECT_TIMEOUT)
                .map_err(|error| io::Error::other(name_of(&error)))?;
            hear(socket.into())
        }
        ["dial-fast", to] => dial_fast(address(to)?),
        ["dial-routed", router, to] => {
            let router = router.parse().map_err(io::Error::other)?;
            dial_routed(router, address(to)?)
        }
        ["dial-for", client, to] => dial_for(address(client)?, address(to)?),
        ["dial-from", from, to] => dial_from(address(from)?, address(to)?, |_| Ok(())),
        ["dial-forged", from, to] => {
            let to = address(to)?;
            dial_from(address(from)?, to, |from| forged::acknowledge(from, to))
        }
        ["probe"] => serde_json::to_string(&ProbeReport::probe()).map_err(io::Error::other),
        ["preflight"] => serde_json::to_string(&Preflight::run()).map_err(io::Error::other),
        ["storm", count, ip, first] => {
            let first: u16 = first.parse().map_err(io::Error::other)?;
            storm(count.parse().map_err(io::Error::other)?, address(&format!("{ip}:{first}"))?)
        }
        ["socket", domain, protocol] => socket(domain, protocol),
        ["raw"] => {
            let made = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP));
            made.map(|_| "made".to_owned()).map_err(|error| io::Error::other(name_of(&error)))
        }
        ["mptcp"] => {
            let protocol = Some(Protocol::from(262));
            Socket::new(Domain::IPV4, Type::STREAM, protocol).map(|_| "made".to_owned())
        }
        ["udp-listen", at] => udp_listen(address(at)?),
        ["udp-send", to] => {
            // Sends on a socket that is not connected.
            let sent = UdpSocket::bind("[::]:0")?.send_to(b"echo", address(to)?);
            sent.map(|_| "sent".to_owned()).map_err(|error| io::Error::other(name_of(&error)))
        }
        ["udp-dial", from, to] => udp_dial(address(from)?, address(to)?),
        _ => Err(io::Error::other(format!("what is {words:?}"))),
    }
}

/// Whether the kernel creates a socket of this domain and protocol, which are given by their numbers.
fn socket(domain: &str, protocol: &str) -> io::Result<String> {
    let number = |text: &str| text.parse::<i32>().map_err(io::Error::other);
    let (domain, protocol) = (Domain::from(number(domain)?), number(protocol)?);
    // Each protocol has at least one of these types.
    let types = [Type::STREAM, Type::from(6)];
    let made = types.map(|kind| Socket::new(domain, kind, Some(Protocol::from(protocol))));
    Ok(if made.iter().any(|one| one.is_ok()) { "made" } else { "none" }.to_owned())
}

/// Sends a message on a connected socket, and waits for the echo.
fn udp_dial(from: SocketAddr, to: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(from)?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    socket.send(b"echo")?;
    let length = socket.recv(&mut [0; 64])?;
    Ok(format!("peer={} bytes={length}", socket.peer_addr()?))
}

/// Sends back each datagram that it receives, until the process ends.
fn udp_listen(at: SocketAddr) -> io::Result<String> {
    let socket = UdpSocket::bind(at)?;
    let at = socket.local_addr()?;
    thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from).unwrap();
        }
    });
    Ok(format!("{at}"))
}

/// Listens as the proxy's workers do: IPv6 listeners accept only IPv6, and several may share a port.
fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&at.into())?;
    socket.listen(4096)?;
    Ok(socket.into())
}

/// Sends to every client what the server observes of the connection.
fn accept(listener: &TcpListener, who: &str) {
    let own_port = listener.local_addr().unwrap().port();
    while let Ok((mut stream, peer)) = listener.accept() {
        let local = stream.local_addr().unwrap();
        let original = original_destination(&stream, own_port)
            .map_or_else(|error| format!("error:{}", name_of(&error)), |o| o.to_string());
        let line = format!("who={who} original={original} local={local} client={peer}");
        // The client may be gone, for example if a storm was stopped.
        let _ = stream.write_all(line.as_bytes());
    }
}

/// The original destination, determined as the proxy does: the local address if its port is not the listener's,
/// else the kernel's `SO_ORIGINAL_DST`.
fn original_destination(stream: &TcpStream, own_port: u16) -> io::Result<SocketAddr> {
    let local = stream.local_addr()?;
    if local.port() != own_port {
        return Ok(local);
    }
    let socket = SockRef::from(stream);
    let answer =
        if local.is_ipv4() { socket.original_dst_v4()? } else { socket.original_dst_v6()? };
    answer.as_socket().ok_or_else(|| io::Error::other("not an internet address"))
}

fn dial(to: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)
        .map_err(|error| io::Error::other(name_of(&error)))?;
    hear(stream)
}

/// Connects as the proxy connects to an application for a client: from the stand-in address, and with the client's
/// address passed to the kernel programs, if there are any.
fn dial_for(client: SocketAddr, to: SocketAddr) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if to.is_ipv6() {
        socket.set_freebind_v6(true)?;
    }
    socket.bind(&SocketAddr::new(stand_in(&to), 0).into())?;
    let named = name_client(&socket, client);
    socket
        .connect_timeout(&to.into(), CONNECT_TIMEOUT)
        .map_err(|error| io::Error::other(name_of(&error)))?;
    Ok(format!("named={named} {}", hear(socket.into())?))
}

/// Connects with TCP Fast Open (RFC 7413), in which `sendto` makes the connection without a call of `connect`.
fn dial_fast(to: SocketAddr) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    socket
        .send_to_with_flags(b"x", &to.into(), nix::libc::MSG_FASTOPEN)
        .map_err(|error| io::Error::other(name_of(&error)))?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut said = [0; 1024];
    // `hear` would fail here: the server has not read the byte and so resets the connection, and then the socket
    // has no peer address.
    let length = stream.read(&mut said)?;
    let early = has_sent_in_syn(&stream)?;
    Ok(format!("early={early} {}", String::from_utf8_lossy(&said[..length])))
}

/// Whether the peer has acknowledged data that the first packet carried.
fn has_sent_in_syn(stream: &TcpStream) -> io::Result<bool> {
    /// `TCPI_OPT_SYN_DATA` of linux/tcp.h.
    const SYN_DATA: u8 = 32;
    // SAFETY: all fields are integers, for which zero is valid.
    let mut info: nix::libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes to `info`, which has that size.
    let result = unsafe {
        nix::libc::getsockopt(
            stream.as_raw_fd(),
            nix::libc::IPPROTO_TCP,
            nix::libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(info.tcpi_options & SYN_DATA != 0)
}

/// Connects with a loose source route (RFC 791), so that packets go to the router first.
fn dial_routed(router: Ipv4Addr, to: SocketAddr) -> io::Result<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    let [a, b, c, d] = router.octets();
    // A NOP, then LSRR with one address that was not used yet.
    let option = [1, 131, 7, 4, a, b, c, d];
    // SAFETY: the kernel reads `option.len()` bytes from the pointer, which is valid for the call.
    let result = unsafe {
        nix::libc::setsockopt(
            socket.as_raw_fd(),
            nix::libc::IPPROTO_IP,
            nix::libc::IP_OPTIONS,
            option.as_ptr().cast(),
            option.len() as u32,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    socket
        .connect_timeout(&to.into(), CONNECT_TIMEOUT)
        .map_err(|error| io::Error::other(name_of(&error)))?;
    hear(socket.into())
}

/// Passes the client's address to the kernel program. Returns false if there is none.
fn name_client(socket: &Socket, client: SocketAddr) -> bool {
    let ip = match client.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    let named = SockAddr::from(SocketAddrV6::new(ip, client.port(), 0, 0));
    // SAFETY: the kernel reads `len` bytes from the pointer, which is valid for the call.
    let result = unsafe {
        nix::libc::setsockopt(
            socket.as_raw_fd(),
            CLIENT_LEVEL,
            CLIENT_OPTION,
            named.as_ptr().cast(),
            named.len(),
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(nix::libc::ENOPROTOOPT), "{error}");
    }
    result == 0
}

/// Connects from a chosen address. `before` is called with it before the connection is made. The port is free
/// again at once.
fn dial_from(
    from: SocketAddr,
    to: SocketAddr,
    before: impl FnOnce(SocketAddr) -> io::Result<()>,
) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_linger(Some(Duration::ZERO))?;
    socket.bind(&from.into())?;
    let own = socket.local_addr()?.as_socket();
    before(own.ok_or_else(|| io::Error::other("not an internet address"))?)?;
    socket
        .connect_timeout(&to.into(), CONNECT_TIMEOUT)
        .map_err(|error| io::Error::other(name_of(&error)))?;
    hear(socket.into())
}

/// Starts a server that echoes what clients send. Returns its address.
fn echo(at: SocketAddr) -> io::Result<String> {
    let listener = listen(at)?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || io::copy(&mut &stream, &mut &stream));
        }
    });
    Ok(format!("{at}"))
}

/// Connects, and keeps the connection open.
fn hold(to: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&to, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    HELD.with_borrow_mut(|held| held.push(stream));
    Ok("held".to_owned())
}

/// Sends a few bytes over all held connections, and reads the echo.
fn say() -> io::Result<String> {
    HELD.with_borrow(|held| {
        for mut stream in held {
            stream.write_all(b"echo")?;
            stream.read_exact(&mut [0; 4])?;
        }
        Ok(format!("echoed={}", held.len()))
    })
}

/// What the server has sent, and what this side observes of the connection.
fn hear(mut stream: TcpStream) -> io::Result<String> {
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let (peer, local) = (stream.peer_addr()?, stream.local_addr()?);
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(format!("peer={peer} own={local} {said}"))
}

/// Makes many connections at once, each to another port. Returns how many servers have reported the right original
/// destination, and the first wrong answer.
fn storm(count: usize, first: SocketAddr) -> io::Result<String> {
    let next = AtomicUsize::new(0);
    let attempt = |index: usize| {
        let mut to = first;
        to.set_port(first.port() + u16::try_from(index).map_err(io::Error::other)?);
        let answer = dial(to)?;
        match answer.contains(&format!(" who=proxy original={to} ")) {
            true => Ok(()),
            false => Err(io::Error::other(format!("{to}: {answer}"))),
        }
    };
    let work = || {
        let mut good = 0usize;
        let mut complaint = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                return (good, complaint);
            }
            match attempt(index) {
                Ok(()) => good += 1,
                Err(error) => complaint = Some(error.to_string()),
            }
        }
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..STORM_THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let good: usize = results.iter().map(|(good, _)| good).sum();
    let complaint = results.into_iter().find_map(|(_, complaint)| complaint).unwrap_or_default();
    Ok(format!("good={good} {complaint}"))
}

/// The kind of an error as one word.
fn name_of(error: &io::Error) -> String {
    format!("{:?}", error.kind())
}
