//! A broker: makes sockets in the network namespace and control group of one workload, for a node proxy that runs
//! outside of them (`leno_handover`).
//!
//! It is started inside, runs as the proxy's user with no capability and confined as a proxy is, and passes no
//! traffic. Its listeners outlive the node proxy: what connects while that one is started again waits.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, bail};
use leno_handover::{Channel, MAX_DESCRIPTORS, Offer, Role, Serve, Want};
use leno_transport::{Listener, announcements, diagnosis, interface_addresses};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::config::Flags;
use crate::confine::confine;
use crate::worker::is_no_family;

/// What is handed over to each node proxy, one after the other.
struct Namespace {
    listeners: Vec<(Role, OwnedFd)>,
    addresses: Vec<IpAddr>,
}

/// Runs until the supervisor's end of standard input is closed.
pub(crate) fn run(flags: &Flags) -> anyhow::Result<()> {
    let orders = io::stdin().as_fd().try_clone_to_owned().context("opening standard input")?;
    let orders = Channel::from(orders);
    let namespace = Namespace::prepare(flags)?;
    confine(&[])?;
    let mut proxy = None;
    loop {
        let (ordered, wanted) = wait(&orders, proxy.as_ref())?;
        if ordered {
            let order = orders.receive::<Serve>().context("reading orders")?;
            let Some((Serve {}, descriptors)) = order else { return Ok(()) };
            let Ok([channel]) = <[OwnedFd; 1]>::try_from(descriptors) else {
                bail!("an order to serve has no channel");
            };
            let channel = Channel::from(channel);
            proxy = namespace.offer(&channel)?.then_some(channel);
        } else if wanted
            && let Some(channel) = &proxy
            && !bring(channel)?
        {
            proxy = None;
        }
    }
}

/// Which of them has something to be read, or has ended.
fn wait(orders: &Channel, proxy: Option<&Channel>) -> anyhow::Result<(bool, bool)> {
    let of = |channel| PollFd::new(channel, PollFlags::POLLIN);
    let mut waiting = vec![of(orders.as_fd())];
    waiting.extend(proxy.map(|proxy| of(proxy.as_fd())));
    match poll(&mut waiting, PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error).context("waiting for orders"),
    }
    let ready = |index: usize| waiting.get(index).and_then(PollFd::any).unwrap_or(false);
    Ok((ready(0), ready(1)))
}

/// Brings what a node proxy wants; false once it has ended.
fn bring(proxy: &Channel) -> anyhow::Result<bool> {
    let Some((Want { ipv6, count }, _)) = proxy.receive::<Want>().or_else(none_if_gone)? else {
        return Ok(false);
    };
    let mut sockets = Vec::new();
    let mut errno = None;
    for _ in 0..count.min(MAX_DESCRIPTORS) {
        match tcp(ipv6) {
            Ok(socket) => sockets.push(socket),
            Err(error) => {
                errno = Some(error.raw_os_error().unwrap_or(nix::libc::EIO));
                break;
            }
        }
    }
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    was_sent(proxy.send(&Offer::Sockets { ipv6, errno }, &sockets))
}

impl Namespace {
    fn prepare(flags: &Flags) -> anyhow::Result<Self> {
        let mut listeners = Vec::new();
        for (role, addresses) in
            [(Role::Outbound, &flags.outbound), (Role::Inbound, &flags.inbound)]
        {
            for address in addresses {
                match Listener::socket(*address) {
                    Ok(socket) => listeners.push((role, socket)),
                    Err(error) if address.is_ipv6() && is_no_family(&error) => {}
                    Err(error) => {
                        return Err(error).with_context(|| format!("listening on {address}"));
                    }
                }
            }
        }
        let admin = admin(flags.admin)
            .with_context(|| format!("listening on {} for /metrics and so on", flags.admin))?;
        listeners.push((Role::Admin, admin));
        Ok(Self { listeners, addresses: interface_addresses()? })
    }

    /// Hands everything over; false if the other end is closed.
    fn offer(&self, proxy: &Channel) -> anyhow::Result<bool> {
        // Of no use to a second one, which may come while the first still finishes what it has: each would read answers that
        // the kernel has sent to the other.
        let mut own = vec![(Role::Probe, tcp(false)?), (Role::Diagnosis, diagnosis()?.into())];
        match announcements() {
            Ok(socket) => own.push((Role::Announcements, socket.into())),
            // The node proxy does without them, and reports it.
            Err(error) => {
                tracing::debug!(%error, "sockets that the kernel destroys are not announced")
            }
        }
        let all = || self.listeners.iter().chain(&own);
        let roles = all().map(|(role, _)| *role).collect();
        let sockets: Vec<BorrowedFd<'_>> = all().map(|(_, socket)| socket.as_fd()).collect();
        let addresses = self.addresses.clone();
        was_sent(proxy.send(&Offer::Namespace { roles, addresses }, &sockets))
    }
}

/// The listener of the admin server, for both families where the machine has IPv6.
fn admin(address: SocketAddr) -> io::Result<OwnedFd> {
    let listener = match TcpListener::bind(address) {
        Err(error) if address.is_ipv6() && is_no_family(&error) => {
            TcpListener::bind(("0.0.0.0", address.port()))
        }
        bound => bound,
    }?;
    listener.set_nonblocking(true)?;
    Ok(listener.into())
}

fn tcp(ipv6: bool) -> io::Result<OwnedFd> {
    let family = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(family, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A node proxy that was killed is no fault of the broker.
fn was_sent(sent: io::Result<()>) -> anyhow::Result<bool> {
    match sent {
        Ok(()) => Ok(true),
        Err(error) => none_if_gone::<()>(error).map(|_| false).context("handing sockets over"),
    }
}

fn none_if_gone<T>(error: io::Error) -> io::Result<Option<T>> {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(None),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::fstat;

    use super::*;

    #[test]
    fn node_proxies_have_the_listeners_in_common_and_no_socket_that_they_read_from() {
        let listeners = vec![(Role::Admin, admin("127.0.0.1:0".parse().unwrap()).unwrap())];
        let namespace = Namespace { listeners, addresses: Vec::new() };
        let offered = || {
            let (near, far) = Channel::pair().unwrap();
            assert!(namespace.offer(&near).unwrap());
            let (offer, descriptors) = far.receive::<Offer>().unwrap().unwrap();
            let Offer::Namespace { roles, .. } = offer else { panic!("{offer:?}") };
            let of = |wanted: Role| {
                let at = roles.iter().position(|role| *role == wanted)?;
                Some(fstat(&descriptors[at]).unwrap().st_ino)
            };
            [Role::Admin, Role::Probe, Role::Diagnosis, Role::Announcements].map(of)
        };
        let (first, second) = (offered(), offered());
        assert_eq!(first[0].unwrap(), second[0].unwrap());
        assert_ne!(first[1].unwrap(), second[1].unwrap());
        assert_ne!(first[2].unwrap(), second[2].unwrap());
        // The kernel may have none, and permit its filter to no user without a capability.
        assert!(first[3].is_none() || first[3] != second[3]);
    }
}
