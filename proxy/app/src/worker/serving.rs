//! Accepts and serves the connections of a worker.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_telemetry::Counter;
use leno_transport::budget::{self, Charge};
use leno_transport::{
    Admitted, Arrival, Io, Listener, Pace, Paces, Passage, host_of, spawn_contained,
};
use tokio::net::TcpStream;
use tokio::task::spawn_local;

use super::{CONNECTION_BYTES, Departure, Planes};

/// The counters of outbound connections that had to wait, and of those that were reset, because the workload opens
/// connections too fast.
const OUTBOUND_PACED: (Counter, Counter) = (Counter::OutboundSlowed, Counter::OutboundRate);
const INBOUND_PACED: (Counter, Counter) = (Counter::InboundSlowed, Counter::InboundRate);

/// The client of an accepted connection, and the local address.
type Accepted = (SocketAddr, SocketAddr);

/// An admitted connection of the workload. It is boxed, so that the task that serves it does not reserve space for it.
pub(super) struct Arrived {
    planes: Rc<Planes>,
    stream: TcpStream,
    /// The local address on which it was accepted.
    listener: SocketAddr,
    /// How long the connection must wait because of the rate of earlier connections.
    turn: Duration,
    /// Makes the connection count as open until this is dropped.
    open: (Charge, Admitted),
}

/// Waits for the turn of a connection. A function of its own, so that only the tasks of connections that do wait have
/// space for the timer.
async fn wait(turn: Duration) {
    if !turn.is_zero() {
        Box::pin(tokio::time::sleep(turn)).await;
    }
}

impl Planes {
    /// Spawns a task that accepts connections of a listener until the worker closes.
    pub(super) fn accept(
        self: &Rc<Self>,
        listener: Listener,
        serve: impl Fn(&Rc<Self>, TcpStream, Accepted) + 'static,
    ) {
        let (planes, mut open) = (Rc::clone(self), self.open.subscribe());
        let task = spawn_local(async move {
            let address = listener.address();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, client)) => serve(&planes, stream, (client, address)),
                        Err(error) => tracing::error!(%error, %address, "accepting"),
                    },
                    _closing = open.changed() => break,
                }
            }
            let departure = *open.borrow();
            let serve = |stream, client| serve(&planes, stream, (client, address));
            match departure {
                Some(Departure::Last) => listener.close(serve).await,
                Some(Departure::PassedOn) => listener.pass_on(planes.workers, serve).await,
                // Other processes use this listener, so it must not refuse clients.
                Some(Departure::Replaced | Departure::Succeeded) | None => {}
            }
        });
        self.accepting.borrow_mut().push(task);
    }

    /// Serves clients of the services whose waypoint this proxy is. The listener stays open until the worker ends,
    /// because connections that were accepted before a drain need it.
    pub(super) fn serve_services(self: &Rc<Self>, passage: Rc<Passage>, listener: Listener) {
        self.inbound.serve_services(Rc::clone(&passage));
        let planes = Rc::clone(self);
        // The task ends with the worker.
        spawn_local(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, client)) => {
                        planes.serve_passage(stream, passage.destination(client))
                    }
                    Err(error) => tracing::error!(%error, "accepting the proxy's own connections"),
                }
            }
        });
    }

    /// Serves a connection from the inbound side, which has already admitted its client.
    fn serve_passage(self: &Rc<Self>, mut stream: TcpStream, to: Option<SocketAddr>) {
        let Some(to) = to else {
            tracing::debug!(
                "refused: another program has connected to the address of this proxy's own \
                 connections"
            );
            stream.reset_on_drop();
            return;
        };
        let Some(charge) = self.charge(&mut stream, Counter::OutboundMemoryBudget) else { return };
        let planes = Rc::clone(self);
        spawn_contained(async move {
            let _open = charge;
            planes.outbound.serve_waypoint(stream, to).await;
        });
    }

    /// Charges the memory of one more connection to the budget. If memory is short, resets the connection, counts it
    /// as `refused` and returns `None`.
    fn charge(&self, stream: &mut TcpStream, refused: Counter) -> Option<Charge> {
        if budget::admits() {
            return Some(Charge::new(CONNECTION_BYTES));
        }
        self.registry.count(refused);
        stream.reset_on_drop();
        None
    }

    /// Whether a connection is served at once, must wait or is refused. `arrive` counts it in the rate of earlier
    /// connections.
    fn arrival(&self, arrive: impl FnOnce(&mut (Pace, Paces), Instant) -> Arrival) -> Arrival {
        let Some(paces) = &self.paces else { return Arrival::Passes };
        arrive(&mut paces.borrow_mut(), Instant::now())
    }

    /// How long the connection must wait; the wait is counted. If too many connections wait already, the connection is
    /// reset, and the result is `None`.
    fn turn(
        &self,
        stream: &mut TcpStream,
        arrival: Arrival,
        (slowed, refused): (Counter, Counter),
    ) -> Option<Duration> {
        match arrival {
            Arrival::Passes => Some(Duration::ZERO),
            Arrival::Waits(wait) => {
                self.registry.count(slowed);
                Some(wait)
            }
            Arrival::Refused => {
                self.registry.count(refused);
                stream.reset_on_drop();
                None
            }
        }
    }

    /// Serves an outbound connection, if the memory budget, the rate of earlier connections and their number permit
    /// it. Otherwise resets and counts it.
    pub(super) fn serve_outbound(self: &Rc<Self>, mut stream: TcpStream, (_, listener): Accepted) {
        let Some(charge) = self.charge(&mut stream, Counter::OutboundMemoryBudget) else { return };
        let arrival = self.arrival(|(own, _), now| own.arrive(now));
        let Some(turn) = self.turn(&mut stream, arrival, OUTBOUND_PACED) else { return };
        let Ok(admitted) = self.admission.outbound() else {
            self.registry.count(Counter::OutboundConnectionLimit);
            stream.reset_on_drop();
            return;
        };
        let (planes, open) = (Rc::clone(self), (charge, admitted));
        let arrived = Arrived { planes, stream, listener, turn, open };
        self.serving.run(Box::new(arrived), async |arrived: Box<Arrived>| {
            // The box is freed here, and not only at the end of the connection.
            let Arrived { planes, stream, listener, turn, open: _open } =
                *std::convert::identity(arrived);
            wait(turn).await;
            planes.outbound.serve(stream, listener).await;
        });
    }

    /// Serves a connection to the workload. If its client is another workload of this process, a guest on the
    /// client's thread serves it, if possible.
    pub(super) fn serve_inbound(
        self: &Rc<Self>,
        mut stream: TcpStream,
        (client, listener): Accepted,
    ) {
        let arrival = self.arrival(|(_, clients), now| clients.arrive(client.ip(), now));
        let Some(turn) = self.turn(&mut stream, arrival, INBOUND_PACED) else { return };
        let may_pass = self.guests.is_some() && turn.is_zero();
        let host = may_pass.then(|| host_of(client.ip())).flatten();
        let Some(host) = host else { return self.serve_here(stream, (client, listener), turn) };
        let planes = Rc::clone(self);
        spawn_contained(async move {
            let Some(guests) = &planes.guests else { return };
            if let Err(stream) = guests.pass(&host, stream, (client, listener)).await {
                planes.serve_here(stream, (client, listener), turn);
            }
        });
    }

    /// Serves a connection to the workload on this thread. Until the client is known, the task may be ended to make
    /// room for another connection.
    pub(crate) fn serve_here(
        self: &Rc<Self>,
        mut stream: TcpStream,
        (client, listener): Accepted,
        turn: Duration,
    ) {
        let Some(charge) = self.charge(&mut stream, Counter::InboundMemoryBudget) else { return };
        let (admitted, has_evicted) = self.admission.inbound(client.ip());
        if has_evicted {
            self.registry.count(Counter::InboundSilentEvicted);
        }
        let (planes, number) = (Rc::clone(self), admitted.number());
        let task = spawn_contained(async move {
            let _open = charge;
            wait(turn).await;
            planes.inbound.serve(stream, (client, listener), admitted).await;
        });
        if let Some(number) = number {
            self.admission.attach(number, task.abort_handle());
        }
    }
}
