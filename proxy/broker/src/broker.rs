//! Hands listeners and sockets to node proxies.
//!
//! ```text
//! supervisor (leno up, agent) ── ServeOrder with a channel, over standard input ──► broker
//! node proxy ◄── Namespace: the listeners and some sockets ── that channel ──────── broker
//! node proxy ── SocketRequest ──► broker ── Sockets ──► node proxy
//! ```
//! The broker is started inside the workload's network namespace. It runs as the proxies' user without capabilities, is
//! confined like a proxy, and handles no traffic. Its listeners outlive the node proxy: connections wait in them while
//! the node proxy is restarted.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use anyhow::Context;
use leno_confine::{Unenforced, confine};
use leno_handover::{
    BrokerOffer, Channel, ListenersClosed, MAX_DESCRIPTORS, ServeOrder, SocketRequest, SocketRole,
};
use leno_sockets::{
    ADMIN_BACKLOG, LAST_HANDSHAKES, announcements, diagnosis, interface_addresses, is_no_family,
    steer, tcp, udp,
};
use leno_types::ports;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use socket2::{Domain, Protocol, Socket, Type};

use crate::flags::Flags;
use crate::report;

const UNSPECIFIED_V6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

/// The addresses of the proxy's listeners, to which rules in the workload's namespace redirect its connections.
const LISTENERS: [(SocketRole, IpAddr, u16); 4] = [
    (SocketRole::Outbound, IpAddr::V4(Ipv4Addr::LOCALHOST), ports::OUTBOUND),
    (SocketRole::Outbound, IpAddr::V6(Ipv6Addr::LOCALHOST), ports::OUTBOUND),
    (SocketRole::Inbound, IpAddr::V4(Ipv4Addr::UNSPECIFIED), ports::INBOUND),
    (SocketRole::Inbound, UNSPECIFIED_V6, ports::INBOUND),
];
const ADMIN: (IpAddr, u16) = (UNSPECIFIED_V6, ports::ADMIN);

/// What every node proxy is offered: the listeners, and the addresses of the workload's network namespace.
struct Namespace {
    /// The listeners with their roles. Empty once they were closed.
    listeners: Vec<(SocketRole, OwnedFd)>,
    addresses: Vec<IpAddr>,
    /// When the listeners are closed; `None` unless the supervisor has ordered it, because another process has
    /// listeners of its own.
    closes_at: Option<Instant>,
}

/// How many node proxies are served at once: the newest one, and earlier ones that finish open streams. If there are
/// more, the oldest is disconnected. It then stops serving the workload, which cuts these streams.
const MAX_PROXIES: usize = 32;

/// Runs until the supervisor closes its end of standard input. No node proxy can end the broker or keep it from serving
/// others: a node proxy that does not read, or that sends invalid messages, is disconnected.
pub(crate) fn run(flags: Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let orders = Channel::from(orders);
    // The confined process could not read /proc, in which the C library finds the stack.
    if let Err(error) = leno_reclaim::find_stack() {
        report(format_args!("it keeps some memory, because its stack cannot be found: {error}"));
    }
    let mut namespace = Namespace::prepare(flags)?;
    for unenforced in confine(&[])? {
        match unenforced {
            // This is so with most kernels, and the log of each proxy reports it.
            Unenforced::PartOfLandlock => {}
            Unenforced::Landlock | Unenforced::Seccomp => report(format_args!("{unenforced}")),
        }
    }
    // The rules and filters above took most of the memory that a broker ever uses, and it needs none of that any more.
    leno_reclaim::trim_heap();
    if let Err(error) = leno_reclaim::release_stack() {
        report(format_args!("it keeps a part of its stack: {error}"));
    }
    let mut proxies = VecDeque::new();
    while namespace.turn(&orders, &mut proxies)? {}
    Ok(())
}

/// Waits for orders and messages, until `until` at most. Returns whether there are orders, and which node proxies have
/// sent a message or have ended.
fn wait(
    orders: &Channel,
    proxies: &VecDeque<Channel>,
    until: Option<Instant>,
) -> anyhow::Result<(bool, Vec<bool>)> {
    let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_millis();
    // The time is rounded up by a millisecond. Otherwise the loop would spin during the last fraction of a millisecond.
    let left = until.map_or(PollTimeout::NONE, |until| {
        PollTimeout::try_from(left(until).saturating_add(1)).unwrap_or(PollTimeout::MAX)
    });
    let of = |channel| PollFd::new(channel, PollFlags::POLLIN);
    let mut waiting = vec![of(orders.as_fd())];
    waiting.extend(proxies.iter().map(|proxy| of(proxy.as_fd())));
    match poll(&mut waiting, left) {
        Ok(_) => {}
        // The results of `poll` are undefined in this case.
        Err(Errno::EINTR) => return Ok((false, Vec::new())),
        Err(error) => return Err(error).context("waiting for orders"),
    }
    let mut ready = waiting.iter().map(|one| one.any().unwrap_or(false));
    Ok((ready.next().unwrap_or(false), ready.collect()))
}

/// Answers a request of a node proxy. Returns false if the proxy must be disconnected.
fn bring(proxy: &Channel) -> bool {
    is_served(answer(proxy), "bringing sockets")
}

/// Whether the broker keeps serving a node proxy after a request with this result.
fn is_served(brought: io::Result<bool>, what: &str) -> bool {
    match brought {
        Ok(is_there) => is_there,
        // The node proxy has ended.
        Err(error)
            if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
        {
            false
        }
        Err(error) => {
            report(format_args!("a node proxy gets no more sockets: {what}: {error}"));
            false
        }
    }
}

/// Answers the next message of a node proxy. Returns false if the node proxy has ended.
fn answer(proxy: &Channel) -> io::Result<bool> {
    let want = match proxy.receive::<SocketRequest>() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
        received => received?,
    };
    let Some((SocketRequest { ipv6, udp: of_udp, count }, _)) = want else { return Ok(false) };
    let mut sockets = Vec::new();
    let mut errno = None;
    for _ in 0..count.min(MAX_DESCRIPTORS) {
        let made = if of_udp { udp(ipv6) } else { tcp(ipv6) };
        match made {
            Ok(socket) => sockets.push(socket),
            Err(error) => {
                errno = Some(error.raw_os_error().unwrap_or(libc::EIO));
                break;
            }
        }
    }
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    match proxy.send(&BrokerOffer::Sockets { ipv6, udp: of_udp, errno }, &sockets) {
        // The kernel limits the descriptors that processes of this user have sent and that were not received yet
        // (unix(7)).
        Err(error) if error.raw_os_error() == Some(libc::ETOOMANYREFS) => {
            let errno = error.raw_os_error();
            proxy.send(&BrokerOffer::Sockets { ipv6, udp: of_udp, errno }, &[])?;
        }
        sent => sent?,
    }
    Ok(true)
}

impl Namespace {
    fn prepare(flags: Flags) -> anyhow::Result<Self> {
        let address = SocketAddr::from(ADMIN);
        let admin = admin(address, flags)
            .with_context(|| format!("listening on {address} for /metrics and so on"))?;
        let mut listeners = vec![(SocketRole::Admin, admin)];
        for (role, ip, port) in LISTENERS {
            let address = SocketAddr::new(ip, port);
            // While another proxy serves the workload, the port is only bound; the process that takes over starts to
            // listen on it.
            let made = match flags.succeeds {
                true => leno_sockets::bound(address),
                false => leno_sockets::listener(address),
            };
            match made {
                Ok(socket) => listeners.push((role, socket)),
                Err(error) if address.is_ipv6() && is_no_family(&error) => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("listening on {address}"));
                }
            }
        }
        Ok(Self { listeners, addresses: interface_addresses()?, closes_at: None })
    }

    /// Waits once for orders and requests, and handles them. Also closes the listeners when it is time. Returns false
    /// once the supervisor has closed its end.
    fn turn(&mut self, orders: &Channel, proxies: &mut VecDeque<Channel>) -> anyhow::Result<bool> {
        if self.closes_at.is_some_and(|at| at <= Instant::now()) {
            self.closes_at = None;
            self.close();
            orders
                .send(&ListenersClosed {}, &[])
                .context("reporting that the listeners are closed")?;
            return Ok(true);
        }
        let (ordered, wanting) = wait(orders, proxies, self.closes_at)?;
        let mut wanting = wanting.into_iter();
        proxies.retain(|proxy| !wanting.next().unwrap_or(false) || bring(proxy));
        if !ordered {
            return Ok(true);
        }
        let order = orders.receive::<ServeOrder>().context("reading orders")?;
        let Some((ServeOrder { closes }, descriptors)) = order else { return Ok(false) };
        if closes {
            self.pass_on();
            return Ok(true);
        }
        let Ok([channel]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            // That node proxy notices that its channel is closed, and the supervisor tries again.
            report(format_args!(
                "the channel of a node proxy has not arrived: raise the limit of open files of brokers"
            ));
            return Ok(true);
        };
        let channel = Channel::from(channel);
        if is_served(self.offer(&channel), "handing listeners over") {
            proxies.push_back(channel);
        }
        if proxies.len() > MAX_PROXIES {
            report(format_args!(
                "the earliest of more than {MAX_PROXIES} node proxies gets no more sockets"
            ));
            proxies.pop_front();
        }
        Ok(true)
    }

    /// Steers new connections to the listeners of another process. The listeners of this process are closed
    /// [`LAST_HANDSHAKES`] later, once pending handshakes have completed, because the kernel resets a handshake that
    /// completes at the moment in which a listener is closed.
    fn pass_on(&mut self) {
        for (role, listener) in &self.listeners {
            // The kernel numbers the listeners of a port in the order in which they began to listen: this process'
            // listener has number 0, the other process' one number 1.
            if let Err(error) = steer(listener, 1) {
                report(format_args!(
                    "connections that arrive while a listener is closed may be lost ({role:?}): {error}"
                ));
            }
        }
        self.closes_at = Instant::now().checked_add(LAST_HANDSHAKES);
    }

    /// Closes the listeners for all processes that have them. After `shutdown`, a listener gets no connections from the
    /// kernel even if a stalled thread of a proxy still holds its descriptor.
    fn close(&mut self) {
        for (role, listener) in self.listeners.drain(..) {
            match shutdown(listener.as_raw_fd(), Shutdown::Both) {
                // The listener may be bound and not listening yet.
                Ok(()) | Err(Errno::ENOTCONN) => {}
                Err(error) => {
                    report(format_args!("a listener is not closed ({role:?}): {error}"));
                }
            }
        }
    }

    /// Sends the listeners and sockets to a node proxy.
    fn offer(&self, proxy: &Channel) -> io::Result<bool> {
        proxy.set_nonblocking()?;
        // Each node proxy gets sockets of its own for these roles. A second node proxy may come while the first still
        // finishes streams, and if they shared a socket, each would read answers that the kernel has sent to the other.
        let mut own =
            vec![(SocketRole::Probe, tcp(false)?), (SocketRole::Diagnosis, diagnosis()?.into())];
        // The kernel may not offer announcements. The node proxy then works without them and reports this.
        own.extend(announcements().ok().map(|socket| (SocketRole::Announcements, socket.into())));
        let all = || self.listeners.iter().chain(&own);
        let roles = all().map(|(role, _)| *role).collect();
        let sockets: Vec<BorrowedFd<'_>> = all().map(|(_, socket)| socket.as_fd()).collect();
        let addresses = self.addresses.clone();
        let offer = BrokerOffer::Namespace { roles, addresses, makes_udp: true };
        proxy.send(&offer, &sockets).map(|()| true)
    }
}

/// The listener of the admin server, for IPv4 and IPv6 if the machine has both. Only this port can be bound just once,
/// unless another proxy of the workload may share it. So a second broker for the same workload fails here, and takes no
/// connection from this one.
fn admin(address: SocketAddr, flags: Flags) -> io::Result<OwnedFd> {
    let bind = |address: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(flags.supervised)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        Ok(socket)
    };
    let socket = match bind(address) {
        Err(error) if address.is_ipv6() && is_no_family(&error) => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        bound => bound,
    }?;
    if !flags.succeeds {
        leno_sockets::listen(&socket, ADMIN_BACKLOG)?;
    }
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn node_proxies_share_the_listeners_but_no_socket_that_they_read_from() {
        let namespace = namespace();
        let offered = || {
            let (near, far) = Channel::pair().unwrap();
            assert!(namespace.offer(&near).unwrap());
            let (offer, descriptors) = far.receive::<BrokerOffer>().unwrap().unwrap();
            let BrokerOffer::Namespace { roles, .. } = offer else { panic!("{offer:?}") };
            let of = |wanted: SocketRole| {
                let at = roles.iter().position(|role| *role == wanted)?;
                Some(fstat(&descriptors[at]).unwrap().st_ino)
            };
            [SocketRole::Admin, SocketRole::Probe, SocketRole::Diagnosis, SocketRole::Announcements]
                .map(of)
        };
        let (first, second) = (offered(), offered());
        assert_eq!(first[0].unwrap(), second[0].unwrap());
        assert_ne!(first[1].unwrap(), second[1].unwrap());
        assert_ne!(first[2].unwrap(), second[2].unwrap());
        // The kernel may not support this socket, or may not permit its filter to users without capabilities.
        assert!(first[3].is_none() || first[3] != second[3]);
    }

    fn namespace() -> Namespace {
        let admin = admin("127.0.0.1:0".parse().unwrap(), Flags::default()).unwrap();
        Namespace {
            listeners: vec![(SocketRole::Admin, admin)],
            addresses: Vec::new(),
            closes_at: None,
        }
    }

    /// Makes a broker serve one more node proxy. Returns the proxy's end of the channel.
    fn serve(
        namespace: &mut Namespace,
        (supervisor, orders): &(Channel, Channel),
        proxies: &mut VecDeque<Channel>,
    ) -> Channel {
        let (near, far) = Channel::pair().unwrap();
        supervisor.send(&ServeOrder::default(), &[near.as_fd()]).unwrap();
        drop(near);
        assert!(namespace.turn(orders, proxies).unwrap());
        far
    }

    const WANT: SocketRequest = SocketRequest { ipv6: false, udp: false, count: 4 };

    /// Whether a node proxy gets the sockets that it requests.
    fn is_brought(proxy: &Channel, turn: &mut impl FnMut()) -> bool {
        proxy.send(&WANT, &[]).unwrap();
        turn();
        matches!(proxy.receive(), Ok(Some((BrokerOffer::Sockets { .. }, sockets))) if sockets.len() == 4)
    }

    #[test]
    fn a_node_proxy_that_reads_nothing_or_sends_invalid_messages_does_not_disturb_others() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let silent = serve(&mut namespace, &orders, &mut proxies);
        let babbler = serve(&mut namespace, &orders, &mut proxies);
        let good = serve(&mut namespace, &orders, &mut proxies);
        assert!(matches!(good.receive(), Ok(Some((BrokerOffer::Namespace { .. }, _)))));
        assert_eq!(proxies.len(), 3);
        let mut turn = || assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        babbler.send(&"nonsense", &[]).unwrap();
        // This proxy requests sockets without reading the answers, until their queue is full and the broker disconnects
        // it.
        silent.set_nonblocking().unwrap();
        while silent.send(&WANT, &[]).is_ok() {
            turn();
        }
        // Closing the channel frees the descriptors in its queue. They would count towards the kernel's limit for users
        // without capabilities.
        drop(silent);
        assert!(is_brought(&good, &mut turn));
        assert_eq!(proxies.len(), 1, "the others are disconnected");
        while babbler.receive::<BrokerOffer>().unwrap().is_some() {}
    }

    #[test]
    fn a_broker_survives_an_order_without_its_channel_and_ends_when_its_orders_are_closed() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let good = serve(&mut namespace, &orders, &mut proxies);
        assert!(matches!(good.receive(), Ok(Some((BrokerOffer::Namespace { .. }, _)))));
        orders.0.send(&ServeOrder::default(), &[]).unwrap();
        let mut turn = || assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        turn();
        assert!(is_brought(&good, &mut turn));
        let (supervisor, orders) = orders;
        drop(supervisor);
        assert!(!namespace.turn(&orders, &mut proxies).unwrap());
    }

    #[test]
    fn listeners_are_closed_even_for_node_proxies_that_hold_them() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let holds = serve(&mut namespace, &orders, &mut proxies);
        let Ok(Some((BrokerOffer::Namespace { .. }, held))) = holds.receive() else { panic!() };
        let held = std::net::TcpListener::from(held.into_iter().next().unwrap());
        orders.0.send(&ServeOrder { closes: true }, &[]).unwrap();
        orders.0.set_nonblocking().unwrap();
        assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        // Node proxies still get sockets meanwhile.
        holds.send(&WANT, &[]).unwrap();
        while orders.0.receive::<ListenersClosed>().is_err() {
            assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        }
        assert!(matches!(holds.receive(), Ok(Some((BrokerOffer::Sockets { .. }, _)))));
        let refused = std::net::TcpStream::connect(held.local_addr().unwrap()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        let mut turn = || assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        assert!(is_brought(&holds, &mut turn), "it still gets sockets");
    }

    #[test]
    fn the_oldest_of_too_many_node_proxies_is_disconnected() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let first = serve(&mut namespace, &orders, &mut proxies);
        let others: Vec<Channel> =
            (0..MAX_PROXIES).map(|_| serve(&mut namespace, &orders, &mut proxies)).collect();
        assert!(first.receive::<BrokerOffer>().unwrap().is_some());
        assert!(first.receive::<BrokerOffer>().unwrap().is_none(), "its channel is closed");
        assert_eq!(proxies.len(), others.len());
    }
}
