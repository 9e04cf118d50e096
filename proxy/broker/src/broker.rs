//! What a broker hands to node proxies, and when.
//!
//! It is started inside of the workload's network namespace, runs as the proxy's user with no capability and confined as a
//! proxy is, and passes no traffic. Its listeners outlive the node proxy: what connects while that one is started again
//! waits.

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

/// Where the listeners of proxies are, which a workload is captured for.
const LISTENERS: [(SocketRole, IpAddr, u16); 4] = [
    (SocketRole::Outbound, IpAddr::V4(Ipv4Addr::LOCALHOST), ports::OUTBOUND),
    (SocketRole::Outbound, IpAddr::V6(Ipv6Addr::LOCALHOST), ports::OUTBOUND),
    (SocketRole::Inbound, IpAddr::V4(Ipv4Addr::UNSPECIFIED), ports::INBOUND),
    (SocketRole::Inbound, UNSPECIFIED_V6, ports::INBOUND),
];
const ADMIN: (IpAddr, u16) = (UNSPECIFIED_V6, ports::ADMIN);

/// What is handed over to each node proxy.
struct Namespace {
    listeners: Vec<(SocketRole, OwnedFd)>,
    addresses: Vec<IpAddr>,
    /// When the listeners are closed, as another process has its own.
    closes_at: Option<Instant>,
}

/// Most node proxies that are served at once: the newest, and earlier ones that finish what they have. Beyond it the
/// oldest is served no more, which ends what it has for the workload.
const MAX_PROXIES: usize = 32;

/// Runs until the supervisor's end of standard input is closed. No node proxy ends it or keeps it from the others: one that
/// does not read, or sends what cannot be read, is served no more.
pub(crate) fn run(flags: Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let orders = Channel::from(orders);
    let mut namespace = Namespace::prepare(flags)?;
    for unenforced in confine(&[])? {
        match unenforced {
            // Of most kernels, and the log of each proxy has it.
            Unenforced::PartOfLandlock => {}
            Unenforced::Landlock | Unenforced::Seccomp => report(format_args!("{unenforced}")),
        }
    }
    let mut proxies = VecDeque::new();
    while namespace.turn(&orders, &mut proxies)? {}
    Ok(())
}

/// Whether there are orders, and which node proxies want something or have ended.
fn wait(
    orders: &Channel,
    proxies: &VecDeque<Channel>,
    until: Option<Instant>,
) -> anyhow::Result<(bool, Vec<bool>)> {
    let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_millis();
    // A time that is not over in whole milliseconds is no reason to turn in a circle.
    let left = until.map_or(PollTimeout::NONE, |until| {
        PollTimeout::try_from(left(until).saturating_add(1)).unwrap_or(PollTimeout::MAX)
    });
    let of = |channel| PollFd::new(channel, PollFlags::POLLIN);
    let mut waiting = vec![of(orders.as_fd())];
    waiting.extend(proxies.iter().map(|proxy| of(proxy.as_fd())));
    match poll(&mut waiting, left) {
        Ok(_) => {}
        // What was polled says nothing then.
        Err(Errno::EINTR) => return Ok((false, Vec::new())),
        Err(error) => return Err(error).context("waiting for orders"),
    }
    let mut ready = waiting.iter().map(|one| one.any().unwrap_or(false));
    Ok((ready.next().unwrap_or(false), ready.collect()))
}

/// Brings a node proxy what it wants. False if it is to be served no more.
fn bring(proxy: &Channel) -> bool {
    is_served(answer(proxy), "bringing sockets")
}

/// Whether a node proxy is served on.
fn is_served(brought: io::Result<bool>, what: &str) -> bool {
    match brought {
        Ok(is_there) => is_there,
        // It was killed.
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

/// Answers the next message of a node proxy; false if it has ended.
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
        // Other processes of this user have not received as many descriptors as one may have open (unix(7)).
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
            // Where another proxy serves the workload, the process that is to take over begins to listen.
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

    /// Waits for orders and node proxies, and does what they want; false once there are no more orders.
    fn turn(&mut self, orders: &Channel, proxies: &mut VecDeque<Channel>) -> anyhow::Result<bool> {
        if self.closes_at.is_some_and(|at| at <= Instant::now()) {
            self.closes_at = None;
            self.close();
            orders
                .send(&ListenersClosed {}, &[])
                .context("telling that the listeners are closed")?;
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
            // That node proxy notices it, and its supervisor tries again.
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

    /// Has new clients go to the listeners of another process, and this one's be closed once the handshakes are over that have begun:
    /// the kernel resets those that are completed in the moment in which a listener is closed.
    fn pass_on(&mut self) {
        for (role, listener) in &self.listeners {
            // There is one listener of a port here, and so the other process' is the next one.
            if let Err(error) = steer(listener, 1) {
                report(format_args!(
                    "connections may be lost that come while a listener is closed ({role:?}): {error}"
                ));
            }
        }
        self.closes_at = Instant::now().checked_add(LAST_HANDSHAKES);
    }

    /// Ends the listeners for all processes that have them: the kernel gives no connection to one that a thread holds which does
    /// not come round.
    fn close(&mut self) {
        for (role, listener) in self.listeners.drain(..) {
            match shutdown(listener.as_raw_fd(), Shutdown::Both) {
                // It does not listen yet.
                Ok(()) | Err(Errno::ENOTCONN) => {}
                Err(error) => {
                    report(format_args!("a listener is not closed ({role:?}): {error}"));
                }
            }
        }
    }

    /// Hands everything over.
    fn offer(&self, proxy: &Channel) -> io::Result<bool> {
        proxy.set_nonblocking()?;
        // Of no use to a second one, which may come while the first still finishes what it has: each would read answers that
        // the kernel has sent to the other.
        let mut own =
            vec![(SocketRole::Probe, tcp(false)?), (SocketRole::Diagnosis, diagnosis()?.into())];
        // The node proxy does without them, and reports it.
        own.extend(announcements().ok().map(|socket| (SocketRole::Announcements, socket.into())));
        let all = || self.listeners.iter().chain(&own);
        let roles = all().map(|(role, _)| *role).collect();
        let sockets: Vec<BorrowedFd<'_>> = all().map(|(_, socket)| socket.as_fd()).collect();
        let addresses = self.addresses.clone();
        let offer = BrokerOffer::Namespace { roles, addresses, makes_udp: true };
        proxy.send(&offer, &sockets).map(|()| true)
    }
}

/// The listener of the admin server, for both families where the machine has IPv6. Unless another proxy of the workload may share
/// its port, it alone cannot be made twice: should another broker live here, this one takes no connection from it.
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
    fn node_proxies_have_the_listeners_in_common_and_no_socket_that_they_read_from() {
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
        // The kernel may have none, and permit its filter to no user without a capability.
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

    /// Has a broker serve one more node proxy, whose end is returned.
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

    /// Whether a node proxy gets the sockets that it wants.
    fn is_brought(proxy: &Channel, turn: &mut impl FnMut()) -> bool {
        proxy.send(&WANT, &[]).unwrap();
        turn();
        matches!(proxy.receive(), Ok(Some((BrokerOffer::Sockets { .. }, sockets))) if sockets.len() == 4)
    }

    #[test]
    fn a_node_proxy_that_reads_nothing_or_sends_nonsense_keeps_the_broker_from_no_other() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let silent = serve(&mut namespace, &orders, &mut proxies);
        let babbler = serve(&mut namespace, &orders, &mut proxies);
        let good = serve(&mut namespace, &orders, &mut proxies);
        assert!(matches!(good.receive(), Ok(Some((BrokerOffer::Namespace { .. }, _)))));
        assert_eq!(proxies.len(), 3);
        let mut turn = || assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        babbler.send(&"nonsense", &[]).unwrap();
        // It takes sockets until none fit in its queue.
        silent.set_nonblocking().unwrap();
        while silent.send(&WANT, &[]).is_ok() {
            turn();
        }
        // The kernel bounds what users without a capability have on its way.
        drop(silent);
        assert!(is_brought(&good, &mut turn));
        assert_eq!(proxies.len(), 1, "the others are served no more");
        while babbler.receive::<BrokerOffer>().unwrap().is_some() {}
    }

    #[test]
    fn a_broker_goes_on_without_the_channel_that_was_lost_on_the_way_and_ends_with_its_orders() {
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
    fn listeners_that_are_to_be_closed_are_so_for_node_proxies_that_hold_them() {
        let (mut namespace, orders) = (namespace(), Channel::pair().unwrap());
        let mut proxies = VecDeque::new();
        let holds = serve(&mut namespace, &orders, &mut proxies);
        let Ok(Some((BrokerOffer::Namespace { .. }, held))) = holds.receive() else { panic!() };
        let held = std::net::TcpListener::from(held.into_iter().next().unwrap());
        orders.0.send(&ServeOrder { closes: true }, &[]).unwrap();
        orders.0.set_nonblocking().unwrap();
        assert!(namespace.turn(&orders.1, &mut proxies).unwrap());
        // It brings sockets meanwhile.
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
    fn of_too_many_node_proxies_the_earliest_is_served_no_more() {
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
