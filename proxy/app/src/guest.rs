//! Guests: workers that serve a workload on the thread of one of its clients, another workload of the same process
//! (node mode only).
//!
//! ```text
//!  thread of client                                       thread of server
//!    planes of client ══ pipe ══ planes of server ◄── what the client connects ── listener
//!    (its worker)                (its guest)     ◄── sockets to the application ── broker
//! ```
//! The planes of a worker are its inbound and outbound sides ([`Planes`]). A request between two workloads of one
//! process passes the planes of both. If these were on two threads, each thread would wake the other once. So the
//! server's listener passes the client's connections to the client's thread. There they are served by a guest: a
//! worker of the server that has no listeners. The guest has the server's keys, policies and limits, and its counts
//! are added to the server's. The CPU time and the memory that it uses are the client's, which causes the work.

mod book;

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::net::TcpStream as StdStream;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use leno_transport::{Admission, Domain, Host, LentNamespace};
use tokio::net::TcpStream;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::time::timeout;

use crate::worker::{MAX_COMMANDS, Plan, Planes, SWEEP};

pub(crate) use book::{EndOfGuests, GuestBook, Listing};

/// How many guests one thread may have. Each has counts and connection pools of its own. If the thread's workload
/// calls more workloads of the process, the others serve it on their own threads.
const MAX_HOSTED: usize = 16;
/// How many connections may wait for a guest to start, or for a guest to take them. Further ones are served on the
/// server's own thread.
const MAX_WAITING: usize = 64;
/// How long to wait for a guest to start. A thread that stalls does not start one.
const STARTS: Duration = Duration::from_secs(1);
/// After how many sweeps without a connection a guest ends. These sweeps take two minutes. The aggregator of flows
/// looks for workers each minute, and must find the guest's counts before the guest ends.
const IDLE_SWEEPS: u32 = 24;

/// A connection that a worker has accepted for a guest.
#[derive(Debug)]
struct Visit {
    stream: StdStream,
    /// The client, and the local address.
    ends: (SocketAddr, SocketAddr),
}

/// All values that a guest needs. They are sent to the guest's thread.
struct GuestPlan {
    plan: Plan,
    book: Arc<GuestBook>,
    visits: mpsc::Receiver<Visit>,
}

/// The channel to one guest. Empty while the guest is being started; `None` if the thread has no place for a guest,
/// or did not start it in time.
type Door = Rc<OnceCell<Option<mpsc::Sender<Visit>>>>;

/// The guests that a worker has on the threads of its clients.
#[derive(Debug)]
pub(crate) struct Guests {
    plan: Plan,
    book: Arc<GuestBook>,
    /// The channels to the guests, by the number of the [`Host`] on whose thread each guest runs. A host is a thread
    /// that serves a workload of this process.
    doors: RefCell<HashMap<u64, Door>>,
}

impl Guests {
    /// The guests of a worker with this plan. They count their connections in the worker's `admission`. `None` if the
    /// worker may have no guests.
    pub(crate) fn of(plan: &Plan, admission: &Arc<Admission>) -> Option<Self> {
        // The inbound side of a waypoint connects to its outbound side, through a listener that belongs to its own
        // thread.
        let may = plan.guest_of.is_none() && !plan.is_waypoint;
        let book = plan.guests.clone().filter(|_| may)?;
        let plan = Plan {
            guest_of: Some(Arc::clone(admission)),
            kubelet: None,
            datagrams: false,
            // The worker itself delays or refuses connections before it passes them on.
            connection_rate: None,
            ..plan.clone()
        };
        Some(Self { plan, book, doors: RefCell::default() })
    }

    /// Lets the guest on the thread of `host` serve a connection, and starts the guest if necessary. Returns the
    /// connection if there is no guest to serve it: the thread has no place for one or did not start it in time, too
    /// many connections wait for it, or it has just ended.
    pub(crate) async fn pass(
        &self,
        host: &Host,
        stream: TcpStream,
        ends: (SocketAddr, SocketAddr),
    ) -> Result<(), TcpStream> {
        let door = Rc::clone(self.doors.borrow_mut().entry(host.number()).or_default());
        // `doors` has a reference to the door, and so has each connection that waits.
        if Rc::strong_count(&door) > MAX_WAITING {
            return Err(stream);
        }
        let start = || async {
            let started = self.start(host).await;
            if started.is_none() {
                self.book.count_refused();
            }
            started
        };
        let visits = door.get_or_init(start).await.clone();
        let Some(permit) = visits.as_ref().and_then(|visits| visits.try_reserve().ok()) else {
            if visits.is_some_and(|visits| visits.is_closed()) {
                self.doors.borrow_mut().remove(&host.number());
            }
            return Err(stream);
        };
        match stream.into_std() {
            Ok(stream) => permit.send(Visit { stream, ends }),
            Err(error) => {
                tracing::error!(%error, "a connection cannot be handed to another thread")
            }
        }
        Ok(())
    }

    /// Starts a guest on the thread of this host. `None` if the thread has no place for one, or does not start it in
    /// time.
    async fn start(&self, host: &Host) -> Option<mpsc::Sender<Visit>> {
        let namespace = leno_transport::lend()?;
        let (visits, visited) = mpsc::channel(MAX_WAITING);
        let (began, begins) = oneshot::channel();
        let (plan, book) = (self.plan.clone(), Arc::clone(&self.book));
        let guest = GuestPlan { plan, book, visits: visited };
        if !host.ask(move || begin(guest, namespace, began)) {
            return None;
        }
        timeout(STARTS, begins).await.ok()?.ok().map(|()| visits)
    }

    /// Removes the channels to guests that have ended or could not be started, so that the next connection starts a
    /// guest. Must be called every few seconds.
    pub(crate) fn sweep(&self) {
        let is_open = |visits: &Option<mpsc::Sender<Visit>>| {
            visits.as_ref().is_some_and(|visits| !visits.is_closed())
        };
        self.doors.borrow_mut().retain(|_, door| door.get().is_none_or(is_open));
    }
}

thread_local! {
    static HOSTED: RefCell<Hosted> = RefCell::default();
}

/// The guests of other workloads on a thread.
#[derive(Default)]
struct Hosted {
    guests: Vec<Weak<Planes>>,
    /// Whether the thread takes no more guests.
    closed: bool,
}

/// From now on the calling thread takes no more guests, and no more connections for the guests that it has.
pub(crate) fn host_no_more() {
    leno_transport::host_no_more();
    HOSTED.with_borrow_mut(|hosted| hosted.closed = true);
}

/// Makes the guests of the calling thread tell their clients, one after the other within this time, to connect again,
/// which leads them to another thread or process. The thread takes no more guests.
pub(crate) fn drain_hosted(within: Duration) {
    host_no_more();
    HOSTED.with_borrow(|hosted| hosted.planes().for_each(|planes| planes.drain(within)));
}

/// The number of requests and relays that the guests of the calling thread have in progress.
pub(crate) fn hosted_busy() -> usize {
    HOSTED.with_borrow(|hosted| hosted.planes().map(|planes| planes.busy()).sum())
}

impl Hosted {
    fn planes(&self) -> impl Iterator<Item = Rc<Planes>> {
        self.guests.iter().filter_map(Weak::upgrade)
    }

    /// Whether there is a place for one more guest.
    fn has_room(&mut self) -> bool {
        self.guests.retain(|planes| planes.strong_count() > 0);
        !self.closed && self.guests.len() < MAX_HOSTED
    }
}

/// Starts a guest on the calling thread. If the thread has no place for it, `began` is dropped, which tells the
/// worker so.
fn begin(guest: GuestPlan, namespace: LentNamespace, began: oneshot::Sender<()>) {
    if !HOSTED.with_borrow_mut(Hosted::has_room) {
        return;
    }
    let domain = Domain::new(namespace);
    let own = Rc::clone(&domain);
    domain.spawn(async move {
        Box::pin(live(guest, &own, began)).await;
        own.end();
    });
}

/// Runs a guest until its workload has left the process, or until it has been idle for [`IDLE_SWEEPS`]. `own` has the
/// tasks of the guest.
async fn live(guest: GuestPlan, own: &Domain, began: oneshot::Sender<()>) {
    let GuestPlan { plan, book, mut visits } = guest;
    let (mut policy, mut credentials) = (plan.policy.clone(), plan.credentials.clone());
    let mut renewed = plan.acceptor.renewed();
    let (commands, mut asked) = mpsc::channel(MAX_COMMANDS);
    let planes = Rc::new(Planes::new(plan).listed(Listing::new(&book, commands)));
    HOSTED.with_borrow_mut(|hosted| hosted.guests.push(Rc::downgrade(&planes)));
    planes.begin(policy.borrow_and_update().as_deref());
    if began.send(()).is_err() {
        // The worker has ended, or no longer waits: no connection will come.
        return;
    }
    let (mut leaves, mut ended) = (book.leaves(), book.ended());
    let mut sweep = tokio::time::interval(SWEEP);
    let mut idle = 0_u32;
    loop {
        tokio::select! {
            Some(Visit { stream, ends }) = visits.recv() => match TcpStream::from_std(stream) {
                Ok(stream) => planes.serve_here(stream, ends, Duration::ZERO),
                Err(error) => tracing::error!(%error, "a connection from another workload of this process is lost"),
            },
            Some(command) = asked.recv() => planes.answer(command),
            _ended = ended.wait_for(|ended| *ended) => return,
            Ok(()) = leaves.changed() => {
                let departure = *leaves.borrow_and_update();
                departure.into_iter().for_each(|departure| planes.leave(departure));
            }
            Ok(()) = policy.changed() => {
                planes.follow_policy(policy.borrow_and_update().as_deref());
            }
            Ok(()) = credentials.changed() => {
                planes.end_revoked(credentials.borrow_and_update().clone().as_deref());
            }
            Some(renewal) = renewed.recv() => planes.renew(&renewal),
            _ = sweep.tick() => {
                planes.sweep();
                own.sweep();
                planes.keep_standing(credentials.borrow().as_deref());
                // The task of each connection holds the planes, too.
                let is_idle = Rc::strong_count(&planes) == 1;
                idle = if is_idle { idle.saturating_add(1) } else { 0 };
                if idle > IDLE_SWEEPS {
                    return;
                }
                if idle == IDLE_SWEEPS {
                    // Connections that have arrived meanwhile are served before the next sweep. For later ones, another
                    // guest is started.
                    visits.close();
                }
            }
        }
    }
}
