//! Creates the sockets of this thread: in the process' own network namespace, or in that of a workload. In the latter
//! case they come from the workload's broker, a small process in the workload's namespace that creates sockets and
//! sends their descriptors (`leno_handover`).
//!
//! ```text
//! thread of a workload ── tcp(), udp(), ... ─────► stock ◄── batches ── broker in the workload's namespace
//!            ▲                                     └── below LOW: requests more, before any connection waits
//!            └── lends some to tasks of its workload on the threads of other workloads (crate::domain)
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

/// The largest number of sockets of one family that are kept in stock. Connections to servers are pooled, so bursts of
/// new ones are rare. A socket in stock takes some 4 KiB of kernel memory.
const STOCK: usize = 16;
/// If fewer sockets than this are left, more are requested. It is half of the stock, so that the answer, which takes
/// some 100 us, arrives before the rest is used.
const LOW: usize = STOCK / 2;

/// How many requests for sockets may wait at the thread that lends them, and how many [`Errand`]s may wait at a
/// [`Host`].
const WAITING: usize = 16;

thread_local! {
    static NAMESPACE: RefCell<Option<Rc<Namespace>>> = const { RefCell::new(None) };
}

/// The threads of this process that serve the workload with an address, in the order in which they were added. There is
/// an entry for each address of each workload of the process.
static SERVED_HERE: LazyLock<Mutex<HashMap<IpAddr, Vec<Host>>>> = LazyLock::new(Mutex::default);

/// The number that the next of these threads gets.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Whether workloads of this process use the network between them, and not each other's threads.
static OVER_THE_NETWORK: AtomicBool = AtomicBool::new(false);

/// The sockets of another namespace, as its broker has handed them over. Takes effect once a thread
/// [`enter`](Self::enter)s it.
#[derive(Debug)]
pub struct HandedNamespace {
    channel: Channel,
    addresses: Vec<IpAddr>,
    makes_udp: bool,
    diagnosis: Socket,
    announcements: Option<Socket>,
    shown: Shown,
    /// This value is dropped when the broker has ended.
    alive: oneshot::Sender<()>,
}

/// The properties of a namespace, for use on any thread.
#[derive(Clone, Debug)]
struct Known {
    addresses: Arc<[IpAddr]>,
    /// Whether the broker creates UDP sockets.
    makes_udp: bool,
    /// The socket for queries of sock_diag(7). It is locked during one query and its answer.
    diagnosis: Arc<Mutex<Socket>>,
    shown: Shown,
}

/// The namespace of a workload, for tasks on the threads of other workloads. The workload's own thread lends them
/// sockets.
#[derive(Clone, Debug)]
pub struct LentNamespace {
    known: Known,
    pub(crate) destroyed: Weak<DestroyedSockets>,
    borrowers: mpsc::Sender<Loan>,
}

/// A request for a socket, and the channel through which the socket is sent to the borrower.
type Loan = (SocketKind, oneshot::Sender<io::Result<OwnedFd>>);

/// An errand: a piece of work that one thread does for another.
type Errand = Box<dyn FnOnce() + Send>;

/// A thread that serves a workload of this process, and that may run errands for other threads.
#[derive(Clone, Debug)]
pub struct Host {
    number: u64,
    /// `None` if the thread accepts no more errands.
    errands: Option<mpsc::Sender<Errand>>,
}

#[derive(Debug)]
struct Namespace {
    channel: AsyncChannel,
    known: Known,
    announcements: Option<Socket>,
    /// The number of this thread's [`Host`].
    host: u64,
    borrowers: mpsc::Sender<Loan>,
    /// The stocks for TCP and for UDP; for each of them, one for IPv4 and one for IPv6.
    stocks: [[Stock; 2]; 2],
    /// Whether the broker no longer answers.
    ended: Cell<bool>,
}

/// A kind of socket.
#[derive(Clone, Copy, Debug)]
struct SocketKind {
    ipv6: bool,
    udp: bool,
}

#[derive(Debug, Default)]
struct Stock {
    /// The oldest is used first.
    sockets: RefCell<VecDeque<OwnedFd>>,
    /// Whether more sockets were requested and have not arrived yet.
    wanted: Cell<bool>,
    /// Why the last answer had fewer sockets than requested, until it is returned to one user of the stock.
    errno: Cell<Option<i32>>,
    /// Whether the last answer arrived without sockets, because this process had no free descriptors for them.
    lost: Cell<bool>,
    arrived: Notify,
}

impl HandedNamespace {
    /// The namespace of a broker. Parameters: the broker's channel; the addresses of the namespace, and whether the
    /// broker creates UDP sockets; a socket for sock_diag(7), and one for
    /// [`announcements`](leno_sockets::announcements) if the kernel supports that; and a TCP socket that is consumed by
    /// a test of the namespace. The receiver ends when the broker has ended.
    ///
    /// # Errors
    /// If a descriptor is not usable.
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

    /// The address that applications of the namespace see for their clients.
    #[must_use]
    pub fn shown(&self) -> Shown {
        self.shown
    }

    /// Makes the calling thread take its sockets from this namespace until the thread ends. It must have a local
    /// runtime.
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
        // UDP sockets are requested once one is needed, because few workloads use them.
        for ipv6 in [false, true] {
            namespace.replenish(SocketKind { ipv6, udp: false });
        }
        serve_here(&namespace.known.addresses, &Host { number: host, errands: Some(errands) });
        NAMESPACE.set(Some(Rc::clone(&namespace)));
        // These tasks end with the runtime.
        let lender = Rc::clone(&namespace);
        spawn_local(async move {
            while let Some((kind, borrower)) = loans.recv().await {
                // The borrower may no longer exist.
                let _gone = borrower.send(lender.take(kind).await);
            }
        });
        spawn_local(async move {
            while let Some(errand) = asked.recv().await {
                errand();
            }
        });
        // This task ends with the broker, or with the runtime.
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
    /// A number that identifies the thread.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Makes the thread run this errand soon. Returns false if too many errands already wait, or if the thread accepts
    /// no more errands or has ended.
    #[must_use]
    pub fn ask(&self, errand: impl FnOnce() + Send + 'static) -> bool {
        let errands = self.errands.as_ref();
        errands.is_some_and(|errands| errands.try_send(Box::new(errand)).is_ok())
    }
}

/// Whether a thread of this process serves the workload with this address, in a namespace that a broker has handed
/// over. Another process may serve it, too, while a workload moves from one process to another.
#[must_use]
pub fn is_served_here(address: IpAddr) -> bool {
    !OVER_THE_NETWORK.load(Ordering::Relaxed) && served_here().contains_key(&address.to_canonical())
}

/// Makes [`is_served_here`] return `false` for all addresses, for a process whose workloads must use the network
/// between them.
pub fn serve_over_the_network() {
    OVER_THE_NETWORK.store(true, Ordering::Relaxed);
}

/// The thread that serves the workload with this address, and was added last if there are several. `None` if that is
/// the calling thread, if it accepts no more errands, if the calling thread itself has entered no namespace, or after
/// [`serve_over_the_network`].
#[must_use]
pub fn host_of(address: IpAddr) -> Option<Host> {
    let own = entered()?.host;
    let served = served_here();
    let host = served.get(&address.to_canonical())?.last()?;
    let may = host.number != own && host.errands.is_some();
    (may && !OVER_THE_NETWORK.load(Ordering::Relaxed)).then(|| host.clone())
}

/// Makes the calling thread accept no more errands.
pub fn host_no_more() {
    let Some(own) = entered() else { return };
    for host in served_here().values_mut().flatten() {
        if host.number == own.host {
            host.errands = None;
        }
    }
}

/// The namespace of the calling thread, for tasks on other threads. `None` if it is the process' own.
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
    // All namespaces have the same loopback addresses.
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
    /// Receives sockets from the broker until it ends.
    async fn take_in(&self) {
        loop {
            match self.channel.receive::<BrokerOffer>().await {
                Ok(Some((BrokerOffer::Sockets { ipv6, udp, errno }, sockets))) => {
                    let stock = self.stock(SocketKind { ipv6, udp });
                    stock.wanted.set(false);
                    // The process may have run out of descriptors; then no socket has arrived.
                    let lost = sockets.is_empty().then_some(libc::EMFILE);
                    stock.errno.set(errno.or(lost));
                    let is_lost = errno.is_none() && sockets.is_empty();
                    if is_lost && !stock.lost.get() {
                        tracing::warn!(
                            ipv6,
                            udp,
                            "no file descriptor is left for sockets of a workload, so its new \
                             connections fail: raise the limit of open files of the node proxy"
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

    /// Requests more sockets if the stock is low and no request is pending.
    fn replenish(&self, kind: SocketKind) {
        let stock = self.stock(kind);
        let left = stock.sockets.borrow().len();
        if left >= LOW || stock.wanted.replace(true) {
            return;
        }
        let SocketKind { ipv6, udp } = kind;
        let request = SocketRequest { ipv6, udp, count: STOCK.saturating_sub(left) };
        if let Err(error) = self.channel.send(&request, &[]) {
            // If the broker has ended, `take_in` notices.
            tracing::debug!(%error, "asking a broker for sockets");
            stock.wanted.set(false);
        }
    }

    async fn take(&self, kind: SocketKind) -> io::Result<OwnedFd> {
        let stock = self.stock(kind);
        loop {
            // Only this thread adds and takes sockets, so none can arrive between the check and the wait.
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

/// A UDP socket of the current task's namespace. It does not block and is neither bound nor connected.
///
/// # Errors
/// The system's reason; `Unsupported` if the version of the workload's broker does not create UDP sockets.
pub async fn udp(ipv6: bool) -> io::Result<Socket> {
    if known(|known| !known.makes_udp) == Some(true) {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the workload's broker is of an earlier version, which creates no UDP sockets: restart \
             the workload",
        ));
    }
    match taken(SocketKind { ipv6, udp: true }).await {
        Some(taken) => taken.map(Socket::from),
        None => leno_sockets::udp(ipv6).map(Socket::from),
    }
}

/// A socket for queries of sock_diag(7) in the current task's namespace. No announcements arrive on it.
pub(crate) fn diagnosis() -> io::Result<Arc<Mutex<Socket>>> {
    match known(|known| Arc::clone(&known.diagnosis)) {
        Some(diagnosis) => Ok(diagnosis),
        None => leno_sockets::diagnosis().map(|own| Arc::new(Mutex::new(own))),
    }
}

/// A socket on which the kernel announces destroyed sockets of this thread's namespace. `NotFound` if the broker has
/// offered none.
pub(crate) fn announcements() -> io::Result<Socket> {
    match entered().map(|namespace| namespace.announcements.as_ref().map(Socket::try_clone)) {
        None => leno_sockets::announcements(),
        Some(Some(socket)) => socket,
        Some(None) => Err(io::Error::new(io::ErrorKind::NotFound, "the broker has offered none")),
    }
}

/// The addresses of the current task's namespace, if that is not the process' own.
pub(crate) fn addresses() -> Option<Vec<IpAddr>> {
    known(|known| known.addresses.to_vec())
}

/// The address that applications see for their clients in the current task's namespace, if that is not the process'
/// own.
pub(crate) fn shown() -> Option<Shown> {
    known(|known| known.shown)
}

/// Reads the properties of the current task's namespace, if that is not the process' own.
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
                // Marks sockets of the broker, to distinguish them from sockets of this process.
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
                // First the broker has no sockets, or the kernel dropped them; then there are some again.
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
                // From here on, this thread is like that of another workload, which has another namespace.
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
                    // Other tasks run in between and use their own namespace.
                    tokio::task::yield_now().await;
                    assert_eq!(addresses(), Some(vec![IpAddr::from([192, 0, 2, 1])]));
                    [inner]
                });
                let [inner] = outer.await.unwrap();
                assert_eq!((addresses(), domain::domain_number()), (None, None));
                // A panic in the domain ends only its task, and counts for the domain.
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
        // Both threads have the same address, and the one that was added last is asked.
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
                // The errand runs once.
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
