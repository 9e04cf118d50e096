//! Where the sockets of this thread come from: the process' own network namespace, or the one of a workload, by
//! way of its broker (`leno_handover`).
//!
//! ```text
//! thread of a workload ── tcp(), udp(), ... ─────► stock ◄── batches ── broker in the workload's namespace
//!            ▲                                     └── below LOW: wants more, before any connection waits
//!            └── lends some to tasks of its workload on the threads of others (crate::domain)
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, TcpStream as StdStream};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use leno_handover::{AsyncChannel, BrokerOffer, Channel, SocketRequest};
use nix::libc;
use socket2::Socket;
use tokio::net::TcpSocket;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_local;

use crate::destroyed::DestroyedSockets;
use crate::source::Shown;
use crate::{destroyed, domain};

/// Sockets of one family that are kept. Connections to servers are pooled, so that a burst of new ones is rare; a
/// socket that waits takes some 4 KiB of the kernel's memory.
const STOCK: usize = 16;
/// Below this many, more are asked for: half, so that the answer, within some 100 us, comes before the rest is used.
const LOW: usize = STOCK / 2;

/// Sockets that others wait for, of those that a thread lends; and what it is asked to do that has not begun.
const WAITING: usize = 16;

thread_local! {
    static NAMESPACE: RefCell<Option<Rc<Namespace>>> = const { RefCell::new(None) };
}

/// The threads of this process that serve the workload of an address, the last one last: as many entries as it serves workloads, and few
/// addresses each.
static SERVED_HERE: LazyLock<Mutex<HashMap<IpAddr, Vec<Host>>>> = LazyLock::new(Mutex::default);

/// The number of the last thread among those.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Whether addresses are never taken for those of workloads of this process.
static OVER_THE_NETWORK: AtomicBool = AtomicBool::new(false);

/// Another namespace's sockets, as its broker has handed them over. Takes effect once a thread
/// [`enter`](Self::enter)s it.
#[derive(Debug)]
pub struct HandedNamespace {
    channel: Channel,
    addresses: Vec<IpAddr>,
    makes_udp: bool,
    diagnosis: Socket,
    announcements: Option<Socket>,
    shown: Shown,
    /// Dropped when the broker has ended.
    alive: oneshot::Sender<()>,
}

/// What is known of a namespace, on whichever thread.
#[derive(Clone, Debug)]
struct Known {
    addresses: Arc<[IpAddr]>,
    /// The broker makes sockets of UDP.
    makes_udp: bool,
    /// Locked for one question and its answer.
    diagnosis: Arc<Mutex<Socket>>,
    shown: Shown,
}

/// The namespace of a workload for tasks on other threads than its own, which lends them sockets.
#[derive(Clone, Debug)]
pub struct LentNamespace {
    known: Known,
    pub(crate) destroyed: Weak<DestroyedSockets>,
    borrowers: mpsc::Sender<Loan>,
}

/// Where a socket that is borrowed goes.
type Loan = (SocketKind, oneshot::Sender<io::Result<OwnedFd>>);

/// What a thread of a workload is asked to do by that of another one.
type Errand = Box<dyn FnOnce() + Send>;

/// A thread that serves a workload of this process, and that may do something for others.
#[derive(Clone, Debug)]
pub struct Host {
    number: u64,
    /// `None`: it takes nothing more.
    errands: Option<mpsc::Sender<Errand>>,
}

#[derive(Debug)]
struct Namespace {
    channel: AsyncChannel,
    known: Known,
    announcements: Option<Socket>,
    /// This thread, as others know it.
    host: u64,
    borrowers: mpsc::Sender<Loan>,
    /// Of TCP and of UDP; of each IPv4 and IPv6.
    stocks: [[Stock; 2]; 2],
    /// The broker answers no more.
    ended: Cell<bool>,
}

/// Which sockets there are.
#[derive(Clone, Copy, Debug)]
struct SocketKind {
    ipv6: bool,
    udp: bool,
}

#[derive(Debug, Default)]
struct Stock {
    sockets: RefCell<VecDeque<OwnedFd>>,
    /// More are on their way.
    wanted: Cell<bool>,
    /// Why the last answer had fewer than were wanted.
    errno: Cell<Option<i32>>,
    /// The kernel dropped all sockets of the last answer.
    lost: Cell<bool>,
    arrived: Notify,
}

impl HandedNamespace {
    /// What a broker has handed over: its channel, the addresses of the namespace and whether it makes sockets of UDP, a socket of
    /// sock_diag(7), one of [`announcements`](leno_sockets::announcements) if the kernel has them, and a TCP socket that is used up.
    /// The receiver ends when the broker has ended.
    ///
    /// # Errors
    /// If the descriptors are not what they should be.
    pub fn new(
        channel: Channel,
        (addresses, makes_udp): (Vec<IpAddr>, bool),
        (diagnosis, announcements): (OwnedFd, Option<OwnedFd>),
        probe: OwnedFd,
    ) -> io::Result<(Self, oneshot::Receiver<()>)> {
        let diagnosis = Socket::from(diagnosis);
        diagnosis.set_nonblocking(true)?;
        let shown = Shown::by(&TcpSocket::from_std_stream(StdStream::from(probe)));
        let (alive, ended) = oneshot::channel();
        let announcements = announcements.map(Socket::from);
        let handed = Self { channel, addresses, makes_udp, diagnosis, announcements, shown, alive };
        Ok((handed, ended))
    }

    /// What applications of the namespace see as the address of their clients.
    #[must_use]
    pub fn shown(&self) -> Shown {
        self.shown
    }

    /// Has the calling thread, which runs a local runtime, take its sockets from this namespace until it ends.
    ///
    /// # Errors
    /// The system's reason.
    pub fn enter(self) -> io::Result<()> {
        let Self { channel, addresses, makes_udp, diagnosis, announcements, shown, alive } = self;
        let diagnosis = Arc::new(Mutex::new(diagnosis));
        let known = Known { addresses: addresses.into(), makes_udp, diagnosis, shown };
        let (borrowers, mut loans) = mpsc::channel::<Loan>(WAITING);
        let (errands, mut asked) = mpsc::channel::<Errand>(WAITING);
        let host = LAST.fetch_add(1, Ordering::Relaxed);
        let namespace = Rc::new(Namespace {
            channel: AsyncChannel::new(channel)?,
            known,
            announcements,
            host,
            borrowers,
            stocks: Default::default(),
            ended: Cell::new(false),
        });
        // Those of UDP are asked for where one is used: few workloads do.
        for ipv6 in [false, true] {
            namespace.replenish(SocketKind { ipv6, udp: false });
        }
        serve_here(&namespace.known.addresses, &Host { number: host, errands: Some(errands) });
        NAMESPACE.set(Some(Rc::clone(&namespace)));
        // These end with the runtime, too.
        let lender = Rc::clone(&namespace);
        spawn_local(async move {
            while let Some((kind, borrower)) = loans.recv().await {
                // Who waits for it may be gone.
                let _gone = borrower.send(lender.take(kind).await);
            }
        });
        spawn_local(async move {
            while let Some(errand) = asked.recv().await {
                errand();
            }
        });
        // Ends with the broker, or with the runtime.
        spawn_local(async move {
            namespace.take_in().await;
            drop(alive);
        });
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        serve_here_no_more(&self.known.addresses, self.host);
    }
}

impl Host {
    /// The same for the same thread.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Has the thread do this soon. False if it has too much to do already, or has ended.
    #[must_use]
    pub fn ask(&self, errand: impl FnOnce() + Send + 'static) -> bool {
        let errands = self.errands.as_ref();
        errands.is_some_and(|errands| errands.try_send(Box::new(errand)).is_ok())
    }
}

/// Whether a thread of this process serves the workload with this address, in a namespace that a broker has handed over.
/// Another process may serve it too: while a workload goes from one to the other.
#[must_use]
pub fn is_served_here(address: IpAddr) -> bool {
    !OVER_THE_NETWORK.load(Ordering::Relaxed) && served_here().contains_key(&address.to_canonical())
}

/// Has [`is_served_here`] be `false` for all addresses, for a process whose workloads are to use the network between them.
pub fn serve_over_the_network() {
    OVER_THE_NETWORK.store(true, Ordering::Relaxed);
}

/// The thread that serves the workload with this address here, unless that is the calling one, or it takes nothing more.
#[must_use]
pub fn host_of(address: IpAddr) -> Option<Host> {
    let own = entered()?.host;
    let served = served_here();
    let host = served.get(&address.to_canonical())?.last()?;
    let may = host.number != own && host.errands.is_some();
    (may && !OVER_THE_NETWORK.load(Ordering::Relaxed)).then(|| host.clone())
}

/// Has the calling thread do nothing more for others.
pub fn host_no_more() {
    let Some(own) = entered() else { return };
    for host in served_here().values_mut().flatten() {
        if host.number == own.host {
            host.errands = None;
        }
    }
}

/// The namespace of the calling thread, for tasks on others.
#[must_use]
pub fn lend() -> Option<LentNamespace> {
    let own = entered()?;
    let (known, borrowers) = (own.known.clone(), own.borrowers.clone());
    Some(LentNamespace { known, destroyed: destroyed::of_thread(), borrowers })
}

fn served_here() -> MutexGuard<'static, HashMap<IpAddr, Vec<Host>>> {
    SERVED_HERE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve_here(addresses: &[IpAddr], host: &Host) {
    let mut served = served_here();
    // Each namespace has the same addresses of loopback.
    for address in addresses.iter().filter(|address| !address.is_loopback()) {
        served.entry(address.to_canonical()).or_default().push(host.clone());
    }
}

fn serve_here_no_more(addresses: &[IpAddr], host: u64) {
    let mut served = served_here();
    for address in addresses.iter().map(IpAddr::to_canonical) {
        if let Some(threads) = served.get_mut(&address) {
            threads.retain(|thread| thread.number != host);
            if threads.is_empty() {
                served.remove(&address);
            }
        }
    }
}

impl Namespace {
    /// Takes in what the broker sends, to its end.
    async fn take_in(&self) {
        loop {
            match self.channel.receive::<BrokerOffer>().await {
                Ok(Some((BrokerOffer::Sockets { ipv6, udp, errno }, sockets))) => {
                    let stock = self.stock(SocketKind { ipv6, udp });
                    stock.wanted.set(false);
                    // The process may have no descriptor left: then none of them has arrived.
                    let lost = sockets.is_empty().then_some(libc::EMFILE);
                    stock.errno.set(errno.or(lost));
                    let is_lost = errno.is_none() && sockets.is_empty();
                    if is_lost && !stock.lost.get() {
                        tracing::warn!(
                            ipv6,
                            udp,
                            "no descriptor is left for sockets of a workload, whose new connections fail: raise the \
                             limit of open files of the node proxy"
                        );
                    }
                    stock.lost.set(is_lost);
                    stock.sockets.borrow_mut().extend(sockets);
                    stock.arrived.notify_waiters();
                }
                Ok(Some((BrokerOffer::Namespace { .. }, _))) => {
                    tracing::error!("a broker has offered its namespace twice");
                    break;
                }
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "reading from a broker");
                    break;
                }
            }
        }
        self.ended.set(true);
        self.stocks.iter().flatten().for_each(|stock| stock.arrived.notify_waiters());
    }

    fn stock(&self, SocketKind { ipv6, udp }: SocketKind) -> &Stock {
        let [of_tcp, of_udp] = &self.stocks;
        let [v4, v6] = if udp { of_udp } else { of_tcp };
        if ipv6 { v6 } else { v4 }
    }

    /// Asks for more where the stock is low and none are on their way.
    fn replenish(&self, kind: SocketKind) {
        let stock = self.stock(kind);
        let left = stock.sockets.borrow().len();
        if left >= LOW || stock.wanted.replace(true) {
            return;
        }
        let SocketKind { ipv6, udp } = kind;
        let request = SocketRequest { ipv6, udp, count: STOCK.saturating_sub(left) };
        if let Err(error) = self.channel.send(&request, &[]) {
            // A broker that has ended is noticed by `take_in`.
            tracing::debug!(%error, "asking a broker for sockets");
            stock.wanted.set(false);
        }
    }

    async fn take(&self, kind: SocketKind) -> io::Result<OwnedFd> {
        let stock = self.stock(kind);
        loop {
            // This thread alone takes and brings, so that nothing arrives between the look and the wait.
            let arrived = stock.arrived.notified();
            let taken = stock.sockets.borrow_mut().pop_front();
            if taken.is_none()
                && let Some(errno) = stock.errno.take()
            {
                return Err(io::Error::from_raw_os_error(errno));
            }
            if taken.is_none() && self.ended.get() {
                return Err(io::Error::new(io::ErrorKind::BrokenPipe, "no broker of sockets"));
            }
            self.replenish(kind);
            match taken {
                Some(socket) => return Ok(socket),
                None => arrived.await,
            }
        }
    }
}

/// A socket of the current task's namespace; `None` if that is the process' own.
async fn taken(kind: SocketKind) -> Option<io::Result<OwnedFd>> {
    match (domain::current(), entered()) {
        (Some(domain), _) => Some(domain.namespace().borrow(kind).await),
        (None, Some(own)) => Some(own.take(kind).await),
        (None, None) => None,
    }
}

impl LentNamespace {
    async fn borrow(&self, kind: SocketKind) -> io::Result<OwnedFd> {
        let gone =
            || io::Error::new(io::ErrorKind::BrokenPipe, "the thread of the workload has ended");
        let (borrower, lent) = oneshot::channel();
        self.borrowers.send((kind, borrower)).await.map_err(|_| gone())?;
        lent.await.map_err(|_| gone())?
    }
}

/// An unconnected TCP socket of the current task's namespace.
pub(crate) async fn tcp(ipv6: bool) -> io::Result<TcpSocket> {
    match taken(SocketKind { ipv6, udp: false }).await {
        Some(taken) => Ok(TcpSocket::from_std_stream(StdStream::from(taken?))),
        None if ipv6 => TcpSocket::new_v6(),
        None => TcpSocket::new_v4(),
    }
}

/// A socket of UDP of the current task's namespace, which does not block and is neither bound nor connected.
///
/// # Errors
/// The system's reason; `Unsupported` where the workload's broker is of a version that makes none.
pub async fn udp(ipv6: bool) -> io::Result<Socket> {
    if known(|known| !known.makes_udp) == Some(true) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the workload's broker is of an earlier version, which makes no sockets of UDP: start the workload again",
        ));
    }
    match taken(SocketKind { ipv6, udp: true }).await {
        Some(taken) => taken.map(Socket::from),
        None => leno_sockets::udp(ipv6).map(Socket::from),
    }
}

/// A socket of sock_diag(7) of the current task's namespace; nothing waits in it to be read.
pub(crate) fn diagnosis() -> io::Result<Arc<Mutex<Socket>>> {
    match known(|known| Arc::clone(&known.diagnosis)) {
        Some(diagnosis) => Ok(diagnosis),
        None => leno_sockets::diagnosis().map(|own| Arc::new(Mutex::new(own))),
    }
}

/// A socket on which the kernel announces the sockets of this thread's namespace that it destroys.
pub(crate) fn announcements() -> io::Result<Socket> {
    match entered().map(|namespace| namespace.announcements.as_ref().map(Socket::try_clone)) {
        None => leno_sockets::announcements(),
        Some(Some(socket)) => socket,
        Some(None) => Err(io::Error::new(io::ErrorKind::NotFound, "the broker has offered none")),
    }
}

/// The addresses of the current task's namespace, if it is not the process' own.
pub(crate) fn addresses() -> Option<Vec<IpAddr>> {
    known(|known| known.addresses.to_vec())
}

/// What applications see in the current task's namespace, if it is not the process' own.
pub(crate) fn shown() -> Option<Shown> {
    known(|known| known.shown)
}

/// What is known of the current task's namespace, if it is not the process' own.
fn known<T>(read: impl FnOnce(&Known) -> T) -> Option<T> {
    match domain::current() {
        Some(domain) => Some(read(&domain.namespace().known)),
        None => entered().map(|own| read(&own.known)),
    }
}

fn entered() -> Option<Rc<Namespace>> {
    NAMESPACE.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use socket2::{Domain as SocketDomain, SockRef, Type};
    use tokio::task::LocalSet;

    use super::*;
    use crate::{
        CONNECT_TIMEOUT, Domain, Listener, PanicVerdict, connect, judge_panic, panics,
        spawn_contained,
    };

    fn handed(makes_udp: bool) -> (Channel, HandedNamespace, oneshot::Receiver<()>) {
        handed_at([192, 0, 2, 1].into(), makes_udp)
    }

    fn handed_at(
        address: IpAddr,
        makes_udp: bool,
    ) -> (Channel, HandedNamespace, oneshot::Receiver<()>) {
        let (broker, channel) = Channel::pair().unwrap();
        let tcp = || Socket::new(SocketDomain::IPV4, Type::STREAM, None).unwrap();
        let addresses = vec![address];
        let diagnosis = leno_sockets::diagnosis().unwrap();
        let (handed, ended) = HandedNamespace::new(
            channel,
            (addresses, makes_udp),
            (diagnosis.into(), None),
            tcp().into(),
        )
        .unwrap();
        (broker, handed, ended)
    }

    fn answer(broker: &AsyncChannel, ipv6: bool, count: usize, errno: Option<i32>) {
        let sockets: Vec<Socket> = (0..count)
            .map(|_| {
                let socket = Socket::new(SocketDomain::IPV4, Type::STREAM, None).unwrap();
                socket.set_nonblocking(true).unwrap();
                // What the broker has made can be told from what this process would make.
                socket.set_tcp_user_timeout(Some(std::time::Duration::from_secs(77))).unwrap();
                socket
            })
            .collect();
        let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        broker.send(&BrokerOffer::Sockets { ipv6, udp: false, errno }, &sockets).unwrap();
    }

    #[tokio::test]
    async fn connections_use_the_sockets_of_a_broker_and_wait_for_none_while_there_are_some() {
        let (broker, handed, _ended) = handed(false);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        LocalSet::new()
            .run_until(async {
                let broker = AsyncChannel::new(broker).unwrap();
                handed.enter().unwrap();
                let wanted = [broker.receive::<SocketRequest>().await, broker.receive().await];
                let wanted = wanted.map(|want| want.unwrap().unwrap().0);
                let all = |ipv6| SocketRequest { ipv6, udp: false, count: STOCK };
                assert_eq!(wanted, [false, true].map(all));
                answer(&broker, false, LOW, None);
                let mut made = Vec::new();
                for _ in 0..LOW {
                    made.push(connect(address, CONNECT_TIMEOUT).await.unwrap());
                }
                let timeout = |stream| socket2::SockRef::from(stream).tcp_user_timeout().unwrap();
                let brokered = std::time::Duration::from_secs(77);
                assert!(made.iter().all(|stream| timeout(stream) == Some(brokered)));
                let (more, _) = broker.receive::<SocketRequest>().await.unwrap().unwrap();
                let count = STOCK - LOW + 1;
                assert_eq!(more, SocketRequest { ipv6: false, udp: false, count });
                // The broker has none, or the kernel dropped them; then there are some again.
                for errno in [Some(libc::ENFILE), None] {
                    answer(&broker, false, 0, errno);
                    let error = connect(address, CONNECT_TIMEOUT).await.unwrap_err();
                    assert_eq!(error.reason(), "other", "{error:?}");
                }
                answer(&broker, false, 1, None);
                connect(address, CONNECT_TIMEOUT).await.unwrap();
                assert_eq!(addresses().unwrap(), [IpAddr::from([192, 0, 2, 1])]);
                NAMESPACE.set(None);
            })
            .await;
    }

    #[tokio::test]
    async fn sockets_of_udp_are_asked_for_where_one_is_used_and_no_earlier_broker_is() {
        let of_earlier = handed(false);
        let (broker, handed, _ended) = handed(true);
        LocalSet::new()
            .run_until(async {
                let broker = AsyncChannel::new(broker).unwrap();
                handed.enter().unwrap();
                for _ in [false, true] {
                    assert!(!broker.receive::<SocketRequest>().await.unwrap().unwrap().0.udp);
                }
                let answers = async {
                    let (wanted, _) = broker.receive::<SocketRequest>().await.unwrap().unwrap();
                    assert_eq!(wanted, SocketRequest { ipv6: false, udp: true, count: STOCK });
                    let made = Socket::from(leno_sockets::udp(false).unwrap());
                    let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
                    made.bind(&any.into()).unwrap();
                    let offer = BrokerOffer::Sockets { ipv6: false, udp: true, errno: None };
                    broker.send(&offer, &[made.as_fd()]).unwrap();
                    made.local_addr().unwrap()
                };
                let (taken, made) = tokio::join!(udp(false), answers);
                assert_eq!(taken.unwrap().local_addr().unwrap(), made, "not one of the broker");
                NAMESPACE.set(None);
                of_earlier.1.enter().unwrap();
                assert_eq!(udp(false).await.unwrap_err().kind(), io::ErrorKind::Unsupported);
                NAMESPACE.set(None);
            })
            .await;
    }

    #[test]
    fn a_workload_is_served_here_until_the_last_of_its_threads_has_ended() {
        let mapped: IpAddr = "::ffff:192.0.2.77".parse().unwrap();
        let [own, loopback] = ["192.0.2.77", "127.0.0.1"].map(|address| address.parse().unwrap());
        let addresses = [own, loopback];
        let [first, second] = [1, 2].map(|number| Host { number, errands: None });
        serve_here(&addresses, &first);
        serve_here(&addresses, &second);
        serve_here_no_more(&addresses, 1);
        assert!(is_served_here(own) && is_served_here(mapped) && !is_served_here(loopback));
        serve_here_no_more(&addresses, 2);
        assert!(!is_served_here(own));
    }

    #[tokio::test]
    async fn tasks_of_a_domain_and_those_that_they_begin_use_what_another_thread_lends() {
        let (broker, handed, _ended) = handed(false);
        LocalSet::new()
            .run_until(async {
                let broker = AsyncChannel::new(broker).unwrap();
                handed.enter().unwrap();
                let lent = lend().unwrap();
                answer(&broker, false, 1, None);
                // As another thread has it, which has another namespace or none.
                let own = NAMESPACE.take();
                let domain = Domain::new(lent);
                let outer = domain.spawn(async {
                    let known = (addresses().unwrap(), domain::domain_number());
                    let inner = spawn_contained(async move {
                        assert_eq!(known, (addresses().unwrap(), domain::domain_number()));
                        let socket = tcp(false).await.unwrap();
                        let timeout = SockRef::from(&socket).tcp_user_timeout().unwrap();
                        assert_eq!(timeout, Some(std::time::Duration::from_secs(77)), "not lent");
                        std::future::pending().await
                    });
                    // Other tasks have their turn, with what is theirs.
                    tokio::task::yield_now().await;
                    assert_eq!(addresses(), Some(vec![IpAddr::from([192, 0, 2, 1])]));
                    [inner]
                });
                let [inner] = outer.await.unwrap();
                assert_eq!((addresses(), domain::domain_number()), (None, None));
                // A panic there ends its task alone, and is counted where it was.
                let panicked = domain.spawn(async {
                    let panicked = spawn_contained(async {
                        let verdict = judge_panic();
                        assert_eq!(verdict, PanicVerdict::EndTask { log: true });
                    });
                    panicked.await.unwrap();
                    panics()
                });
                assert_eq!((panicked.await.unwrap(), panics()), (1, 0));
                domain.end();
                assert!(inner.await.unwrap_err().is_cancelled());
                assert!(domain.spawn(std::future::pending::<()>()).await.is_err());
                drop(own);
            })
            .await;
    }

    #[test]
    fn a_thread_is_no_host_for_itself_nor_once_it_takes_nothing_more() {
        let address = IpAddr::from([192, 0, 2, 78]);
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (entered, is_entered) = std::sync::mpsc::channel();
        let (asked, is_asked) = std::sync::mpsc::channel();
        let (end, ends) = oneshot::channel::<()>();
        // Both have the same address, and the last one is asked.
        let (_broker, own, _ended) = handed_at(address, false);
        LocalSet::new().block_on(&runtime(), async {
            own.enter().unwrap();
            assert!(host_of(address).is_none());
            let other = std::thread::spawn(move || {
                let (_broker, handed, _ended) = handed_at(address, false);
                LocalSet::new().block_on(&runtime(), async {
                    handed.enter().unwrap();
                    entered.send(()).unwrap();
                    ends.await.unwrap();
                    NAMESPACE.set(None);
                });
            });
            is_entered.recv().unwrap();
            let host = host_of(address).unwrap();
            let thread = std::thread::current().id();
            assert!(host.ask(move || {
                asked.send(std::thread::current().id() != thread).unwrap();
                host_no_more();
                // It is done once.
                asked.send(true).unwrap();
            }));
            assert!(is_asked.recv().unwrap() && is_asked.recv().unwrap());
            assert!(host_of(address).is_none());
            end.send(()).unwrap();
            other.join().unwrap();
            assert!(!host.ask(|| unreachable!("it has ended")));
            NAMESPACE.set(None);
        });
    }

    #[tokio::test]
    async fn the_end_of_a_broker_is_told_and_ends_what_waits_for_it() {
        let (broker, handed, ended) = handed(false);
        LocalSet::new()
            .run_until(async {
                handed.enter().unwrap();
                let connecting = connect("127.0.0.1:9".parse().unwrap(), CONNECT_TIMEOUT);
                let (error, _) = tokio::join!(connecting, async { drop(broker) });
                assert_eq!(error.unwrap_err().reason(), "other");
                assert!(ended.await.is_err());
                NAMESPACE.set(None);
            })
            .await;
    }
}
