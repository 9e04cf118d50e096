//! Limits how many connections a worker has open, by direction and by client, and chooses which connection is closed to
//! make room for another.
//!
//! ```text
//! accepted ──► outbound                      opened by the workload's own application
//!     └──► undecided ─┬──► proven            the client has proven an identity of the mesh
//!              │      ├──► unproven          it has proven none, and is served all the same
//!              │      └──► refused           the limit for what it turned out to be is reached
//!              └──► evicted                  it was silent so far, and another connection needed its place
//! ```
//! Limits of a worker that serves both directions, in eighths of all connections ([`Bounds::new`] has those for one
//! direction):
//!
//! ```text
//!     1 at most  undecided, and never more than 1024. A new one evicts the oldest of the address that has most
//!     4 at most  unproven, 3 of them from one address
//!     6 at most  unproven and outbound together; the seventh is left for proven clients
//!     5 at most  unproven and proven together; the other 2 are left for outbound connections.
//!                A client is not admitted as unproven from 4 on, so that 1 is left for proven clients
//!     4 at most  proven with the same identity, and fewer if less than 1/2 would be left for other identities
//! ```
//! So unproven clients cannot take places from the workload's own connections, nor all places from proven clients. If
//! one identity leaks connections, from however many replicas, it cannot keep out other proven clients, but it can keep
//! out unproven ones.
#![expect(
    clippy::arithmetic_side_effects,
    reason = "counts of open connections, each subtracted once"
)]

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leno_types::Identity;
use tokio::task::AbortHandle;

/// Limits are multiples of this fraction of all connections.
const EIGHTHS: usize = 8;
/// How many connections may be undecided. An eviction searches all of them, which bounds this number. A handshake
/// within a data center ends within milliseconds, so few are undecided at a time.
const MAX_UNDECIDED: usize = 1024;
/// The smallest limit of connections of a worker, so that each eighth has some.
pub const MIN_CONNECTIONS: usize = 64;

/// Which directions a worker serves. No places are reserved for a direction that the worker does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    /// The workload's own connections only.
    Outbound,
    /// Connections to the workload only.
    Inbound,
    /// Both directions.
    Both,
}

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The limit of connections in this direction is reached.
    Limit,
    /// The limit for clients without a proven identity is reached.
    Unproven,
    /// The limit for this address or this identity is reached.
    Source,
}

/// The open connections of one worker. Threads of other workloads that serve this workload's connections, too, share
/// it.
#[derive(Debug)]
pub struct Admission {
    bounds: Bounds,
    open: Mutex<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    undecided: usize,
    unproven: usize,
    unproven_of_source: usize,
    proven_of_client: usize,
    unproven_and_outbound: usize,
    unproven_and_proven: usize,
    /// How many places of `unproven_and_proven` remain for proven clients when unproven ones have taken all that they
    /// may.
    left_to_proven: usize,
    /// How many places of `unproven_and_proven` and of `decided` one proven client leaves to other proven clients.
    left_to_others: usize,
    /// All connections except undecided ones.
    decided: usize,
}

#[derive(Debug, Default)]
struct Open {
    outbound: usize,
    proven: usize,
    unproven: usize,
    unproven_of: HashMap<IpAddr, usize>,
    proven_of: HashMap<Arc<ProvenClient>, usize>,
    /// Undecided connections by number, which is by age: the oldest is first.
    undecided: BTreeMap<u64, Undecided>,
    undecided_of: HashMap<IpAddr, usize>,
    next: u64,
}

#[derive(Debug)]
struct Undecided {
    source: IpAddr,
    task: Option<AbortHandle>,
}

/// By what the connections of a proven client are counted: its identity, or its address if mTLS is disabled and no
/// client can prove an identity.
#[derive(Debug, PartialEq, Eq, Hash)]
enum ProvenClient {
    Identity(Identity),
    Address(IpAddr),
}

/// One connection, which counts as open until this value is dropped.
#[derive(Debug)]
pub struct Admitted {
    admission: Arc<Admission>,
    standing: Cell<ClientStanding>,
    source: IpAddr,
    /// The client of a proven connection; all its connections share this.
    client: OnceCell<Arc<ProvenClient>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientStanding {
    Outbound,
    Undecided(u64),
    Proven,
    Unproven,
    Refused,
}

impl Bounds {
    fn new(total: usize, directions: Directions) -> Self {
        let total = total.max(MIN_CONNECTIONS);
        let eighths = |count: usize| total / EIGHTHS * count;
        let undecided = eighths(1).min(MAX_UNDECIDED);
        let (all, decided) = (total, total - undecided);
        match directions {
            Directions::Outbound => Self { unproven_and_outbound: all, ..Self::both(total, all) },
            Directions::Inbound => {
                let proven_of_client = decided - eighths(1);
                Self {
                    unproven_and_proven: decided,
                    proven_of_client,
                    ..Self::both(total, decided)
                }
            }
            Directions::Both => Self::both(total, decided),
        }
    }

    fn both(total: usize, decided: usize) -> Self {
        let eighths = |count: usize| total / EIGHTHS * count;
        Self {
            undecided: eighths(1).min(MAX_UNDECIDED),
            unproven: eighths(4),
            unproven_of_source: eighths(3),
            proven_of_client: eighths(4),
            unproven_and_outbound: eighths(6),
            unproven_and_proven: eighths(5),
            left_to_proven: eighths(1),
            left_to_others: eighths(1) / 2,
            decided,
        }
    }
}

impl Admission {
    /// A limit of `total` connections, or 64 if that is more.
    #[must_use]
    pub fn new(total: usize, directions: Directions) -> Arc<Self> {
        Arc::new(Self { bounds: Bounds::new(total, directions), open: Mutex::default() })
    }

    /// Admits a connection that the workload's own application has opened.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn outbound(self: &Arc<Self>) -> Result<Admitted, Refusal> {
        let mut open = self.open();
        if open.unproven + open.outbound >= self.bounds.unproven_and_outbound
            || open.decided() >= self.bounds.decided
        {
            return Err(Refusal::Limit);
        }
        open.outbound += 1;
        drop(open);
        let source = IpAddr::from([127, 0, 0, 1]);
        Ok(Admitted::new(self, ClientStanding::Outbound, source))
    }

    /// Admits a connection to the workload as undecided. Also returns whether another connection was ended to make room
    /// for it. The task that serves the connection must be [attached](Self::attach).
    pub fn inbound(self: &Arc<Self>, source: IpAddr) -> (Admitted, bool) {
        let source = source.to_canonical();
        let mut open = self.open();
        let is_full = open.undecided.len() >= self.bounds.undecided;
        let evicted = is_full && open.evict();
        let number = open.next;
        open.next += 1;
        open.undecided.insert(number, Undecided { source, task: None });
        *open.undecided_of.entry(source).or_default() += 1;
        drop(open);
        (Admitted::new(self, ClientStanding::Undecided(number), source), evicted)
    }

    /// The number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        let open = self.open();
        open.decided() + open.undecided.len()
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // Ignores poisoning: no code panics while it holds the lock.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// All connections except undecided ones.
    fn decided(&self) -> usize {
        self.outbound + self.proven + self.unproven
    }

    /// Ends the oldest undecided connection of the address that has most of them. Returns whether there was one.
    fn evict(&mut self) -> bool {
        let most = self.undecided_of.values().copied().max();
        let of_most = |one: &Undecided| self.undecided_of.get(&one.source).copied() == most;
        let oldest = self.undecided.iter().find(|(_, one)| of_most(one));
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        if let Some(Undecided { task: Some(task), .. }) = self.remove(number) {
            task.abort();
        }
        true
    }

    fn remove(&mut self, number: u64) -> Option<Undecided> {
        let removed = self.undecided.remove(&number)?;
        decrement(&mut self.undecided_of, &removed.source);
        Some(removed)
    }
}

fn decrement<K: Eq + Hash>(counts: &mut HashMap<K, usize>, of: &K) {
    if let Some(count) = counts.get_mut(of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(of);
        }
    }
}

impl Admitted {
    fn new(admission: &Arc<Admission>, standing: ClientStanding, source: IpAddr) -> Self {
        let (admission, standing) = (Arc::clone(admission), Cell::new(standing));
        Self { admission, standing, source, client: OnceCell::new() }
    }

    /// The number of an undecided connection, for [`Admission::attach`]. `None` for all others, which are never
    /// evicted.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self.standing.get() {
            ClientStanding::Undecided(number) => Some(number),
            _ => None,
        }
    }

    /// Records that the client has proven this identity. `None`: mTLS is disabled, and connections are counted by
    /// address.
    ///
    /// # Errors
    /// If the worker's limit or that of this client is reached. The connection then counts as closed.
    pub fn prove(&self, identity: Option<&Identity>) -> Result<(), Refusal> {
        let (bounds, mut open) = (&self.admission.bounds, self.admission.open());
        self.leave_undecided(&mut open);
        if open.unproven + open.proven >= bounds.unproven_and_proven
            || open.decided() >= bounds.decided
        {
            return Err(Refusal::Limit);
        }
        let client = match identity {
            Some(identity) => ProvenClient::Identity(identity.clone()),
            None => ProvenClient::Address(self.source),
        };
        let (client, of_client) = match open.proven_of.get_key_value(&client) {
            Some((known, count)) => (Arc::clone(known), *count),
            None => (Arc::new(client), 0),
        };
        let but_others = open.decided() - (open.proven - of_client);
        if of_client >= bounds.proven_of_client
            || open.unproven + of_client + bounds.left_to_others >= bounds.unproven_and_proven
            || but_others + bounds.left_to_others >= bounds.decided
        {
            return Err(Refusal::Source);
        }
        open.proven_of.insert(Arc::clone(&client), of_client + 1);
        open.proven += 1;
        let _first = self.client.set(client);
        self.standing.set(ClientStanding::Proven);
        Ok(())
    }

    /// Records that the client is served without a proven identity.
    ///
    /// # Errors
    /// If the limit of such clients, or of such connections from this address, is reached. The connection then counts
    /// as closed.
    pub fn serve_unproven(&self) -> Result<(), Refusal> {
        let (bounds, mut open) = (&self.admission.bounds, self.admission.open());
        self.leave_undecided(&mut open);
        let of_source = open.unproven_of.get(&self.source).copied().unwrap_or_default();
        if open.unproven >= bounds.unproven
            || open.unproven + open.outbound >= bounds.unproven_and_outbound
            || open.unproven + open.proven + bounds.left_to_proven >= bounds.unproven_and_proven
            || open.decided() >= bounds.decided
        {
            return Err(Refusal::Unproven);
        }
        if of_source >= bounds.unproven_of_source {
            return Err(Refusal::Source);
        }
        open.unproven += 1;
        *open.unproven_of.entry(self.source).or_default() += 1;
        self.standing.set(ClientStanding::Unproven);
        Ok(())
    }

    fn leave_undecided(&self, open: &mut Open) {
        if let ClientStanding::Undecided(number) = self.standing.replace(ClientStanding::Refused) {
            open.remove(number);
        }
    }
}

impl Admission {
    /// Attaches the task that serves an undecided connection, so that the task can be aborted in favour of another
    /// connection. Must be called before the task runs.
    pub fn attach(&self, number: u64, task: AbortHandle) {
        match self.open().undecided.get_mut(&number) {
            Some(undecided) => undecided.task = Some(task),
            // Another thread has evicted the connection meanwhile.
            None => task.abort(),
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.admission.open();
        match self.standing.get() {
            ClientStanding::Outbound => open.outbound -= 1,
            ClientStanding::Proven => {
                open.proven -= 1;
                if let Some(client) = self.client.get() {
                    decrement(&mut open.proven_of, client);
                }
            }
            ClientStanding::Unproven => {
                open.unproven -= 1;
                decrement(&mut open.unproven_of, &self.source);
            }
            // The connection may have been evicted already.
            ClientStanding::Undecided(number) => {
                open.remove(number);
            }
            ClientStanding::Refused => {}
        }
    }
}

#[cfg(test)]
mod tests;
