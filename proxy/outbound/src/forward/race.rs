//! Hedging: sends copies of a request to other endpoints while its response is late. The first good response goes to
//! the client.
//!
//! ```text
//! request is complete ─► first copy ──(late)──► another copy ──(late)──► ...
//!                            │                      │
//!                            └──────────────────────┴─► the first good response, or the result of the last copy
//!                                                       if none is good: treated like that of any other attempt
//! ```

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use leno_balance::Pick;
use leno_http::{Exchange, Failure, Judgement, Party, ResponseView, Ticket};
use leno_resilience::{Hedge, Step};
use leno_telemetry::{Counter, Registry};
use smallvec::SmallVec;
use tokio::time::{sleep_until, timeout};

use super::{Attempts, Forwarded, Next, Sending, refuse_unreached};
use crate::Worker;
use crate::backends::Remote;
use crate::policy::{Plan, RequestPolicy};
use crate::request::{Copies, Hedgeable};
use crate::server::{self, GetError, Server};

/// The largest request in bytes that is copied. A stream holds as many bytes for a retry in any case.
const MAX_COPIED: usize = 64 << 10;

/// How long to wait for the rest of a request that may be copied. A client that sends slowly, or waits for an answer
/// before it continues, must not be delayed.
const HOLD_WAIT: Duration = Duration::from_millis(50);

/// How many copies in progress a list holds without an allocation. Most policies have no more.
const COPIES: usize = 2;

/// The state that the copies of one request share.
struct Race<'a> {
    plan: RefCell<&'a mut Plan>,
    hedge: RefCell<&'a mut Hedge>,
    sending: Sending<'a>,
    policy: &'a RequestPolicy,
    registry: &'a Registry,
    /// Whether the proxy has decided which copy's response goes to the client.
    is_decided: Cell<bool>,
}

/// One copy that is in progress. Dropping it resets its stream, or closes its connection.
struct Runner<'a, C> {
    pick: Rc<Pick<Remote>>,
    begun: Instant,
    is_first: bool,
    is_connected: Rc<Cell<bool>>,
    /// Set once this copy's response goes to the client.
    ticket: Ticket,
    run: Pin<Box<dyn Future<Output = Ended<C>> + 'a>>,
}

type Runners<'a, C> = SmallVec<[Runner<'a, C>; COPIES]>;

/// The result of one copy.
#[expect(clippy::large_enum_variant, reason = "few, and on their way from one place to the next")]
enum Ended<C> {
    NotConnected(GetError),
    Exchanged(Server, Exchange, C),
}

/// The result of all copies.
#[expect(clippy::large_enum_variant, reason = "few, and on their way from one place to the next")]
enum RaceOutcome {
    NotConnected(GetError),
    Exchanged(Server, Exchange),
    /// The client left.
    Gone(Failure),
}

/// An event while copies are in progress.
#[expect(clippy::large_enum_variant, reason = "few, and on their way from one place to the next")]
enum Event<C> {
    /// A copy has ended.
    Ended(usize, Ended<C>),
    /// The response of a copy goes to the client.
    Decided(usize),
    /// Another copy is due.
    Late,
    /// The client left.
    Gone(Failure),
}

impl<R: Hedgeable> Attempts<'_, R> {
    /// Makes one attempt, and adds copies of the request as policy demands while no response comes. `None` means that
    /// another attempt must follow.
    pub(super) async fn race(&mut self, first: Pick<Remote>) -> Option<Forwarded> {
        let held = timeout(HOLD_WAIT, self.request.hold_whole(MAX_COPIED)).await;
        let Some(mut hedge) = self.hedge.take_if(|_| held == Ok(true)) else {
            self.shared.registry.count(Counter::HedgesWithoutBody);
            self.hedge = None;
            return self.attempt(first).await;
        };
        self.tries = self.tries.saturating_add(1);
        let tried = self.tried.len();
        let (pick, last) = self.run_copies(&mut hedge, first).await;
        self.hedge = Some(hedge);
        let address = pick.endpoint().address;
        // The result of the copy that has ended the race is not settled yet, so its endpoint must not count as tried.
        let mut later = self.tried.iter().enumerate().skip(tried);
        if let Some((at, _)) = later.find(|(_, known)| **known == address) {
            self.tried.remove(at);
        }
        let pick = Rc::into_inner(pick).expect("copies that are over hold no endpoint");
        match last {
            RaceOutcome::NotConnected(error) => self.not_connected(&pick, &error).await,
            RaceOutcome::Exchanged(server, done) => match self.settle(pick, server, done) {
                Next::End(forwarded) => Some(forwarded),
                Next::Try { after } => self.pause(after).await,
            },
            RaceOutcome::Gone(failure) => {
                let done = Exchange::ended(failure);
                self.count(&pick, &done);
                Some(Forwarded::Done(done))
            }
        }
    }

    /// Runs copies until one answers the client, all have failed, or the client has left.
    async fn run_copies(
        &mut self,
        hedge: &mut Hedge,
        first: Pick<Remote>,
    ) -> (Rc<Pick<Remote>>, RaceOutcome) {
        let sending = self.sending(&first);
        let (shared, backends, wanted) = (self.shared, self.backends, self.wanted);
        let mut copies = self.request.copies();
        let race = Race {
            plan: RefCell::new(&mut self.plan),
            hedge: RefCell::new(hedge),
            sending,
            policy: self.policy,
            registry: &shared.registry,
            is_decided: Cell::new(false),
        };
        let mut runners = Runners::new();
        self.tried.push(first.endpoint().address);
        race.hedge.borrow_mut().begin(leno_transport::now());
        runners.push(race.start(&copies, first, true));
        loop {
            match race.next(&mut copies, &mut runners).await {
                Event::Late => {
                    let picked = || backends.pick_for(wanted, &self.tried).ok();
                    if let Some(pick) = race.another(picked) {
                        self.tried.push(pick.endpoint().address);
                        runners.push(race.start(&copies, pick, false));
                    }
                }
                Event::Gone(failure) => {
                    race.lose(&runners);
                    return (runners.swap_remove(0).over(), RaceOutcome::Gone(failure));
                }
                Event::Decided(at) => {
                    let mut runner = runners.swap_remove(at);
                    race.lose(&runners);
                    drop(runners);
                    backends.opened(None);
                    let ended = (&mut runner.run).await;
                    return (runner.over(), race.last(copies, ended));
                }
                Event::Ended(at, ended) => {
                    let runner = runners.swap_remove(at);
                    race.count(&runner);
                    backends.opened(match &ended {
                        Ended::NotConnected(error) => Some(error.cause()),
                        Ended::Exchanged(..) => None,
                    });
                    let is_decided = runner.ticket.get();
                    let step = race.hedge.borrow_mut().ended(is_decided);
                    let pick = runner.over();
                    if step == Step::Take {
                        race.lose(&runners);
                        drop(runners);
                        return (pick, race.last(copies, ended));
                    }
                    note(shared, &pick, &ended);
                }
            }
        }
    }
}

impl<'a> Race<'a> {
    /// Starts a copy, which connects to its endpoint, is sent, and has its response judged.
    fn start<'r, C: Copies>(
        &'r self,
        copies: &C,
        pick: Pick<Remote>,
        is_first: bool,
    ) -> Runner<'r, C::Copy>
    where
        C::Copy: 'r,
    {
        let (pick, ticket) = (Rc::new(pick), Ticket::default());
        let is_connected = Rc::new(Cell::new(false));
        let mut copy = copies.copy(&ticket);
        let (to, own, connected) = (Rc::clone(&pick), Rc::clone(&ticket), Rc::clone(&is_connected));
        let run = Box::pin(async move {
            let (shared, deadline) = (self.sending.shared, self.sending.deadline());
            let times = (deadline, self.plan.borrow().response_by(self.policy));
            let mut server =
                match server::get(shared, to.shared_endpoint(), &mut copy, deadline).await {
                    Ok(server) => server,
                    Err(error) => return Ended::NotConnected(error),
                };
            connected.set(true);
            let is_mesh = server.is_believed;
            let judge = |response: ResponseView<'_>, is_replayable: bool| {
                self.judge(response, (is_replayable, is_mesh), &own)
            };
            let way = (&*to, &mut server);
            let done = self.sending.exchange(&mut copy, way, times, judge).await;
            Ended::Exchanged(server, done, copy)
        });
        Runner { pick, begun: leno_transport::now(), is_first, is_connected, ticket, run }
    }

    /// Decides on a response whose head has arrived. It is refused if another copy already answers the client, or if
    /// another copy or attempt may get a better response.
    fn judge(
        &self,
        response: ResponseView<'_>,
        (is_replayable, is_mesh): (bool, bool),
        ticket: &Ticket,
    ) -> Judgement {
        let others = self.hedge.borrow().under_way() > 1;
        let is_outdone = self.is_decided.get() || others && self.policy.is_bad(response);
        let policy = (self.policy, self.registry);
        if is_outdone
            || refuse_unreached(response, (is_replayable, is_mesh)) == Judgement::Refuse
            || self.plan.borrow_mut().judge(policy, response, (is_replayable, is_mesh))
        {
            return Judgement::Refuse;
        }
        ticket.set(true);
        self.is_decided.set(true);
        Judgement::Forward
    }

    /// Waits until a copy ends or its response goes to the client, another copy is due, or the client has left.
    async fn next<C: Copies>(
        &self,
        copies: &mut C,
        runners: &mut Runners<'_, C::Copy>,
    ) -> Event<C::Copy> {
        let late_at = self.hedge.borrow().next();
        let mut late = pin!(late_at.map(|at| sleep_until(at.into())));
        poll_fn(|cx| {
            for (at, runner) in runners.iter_mut().enumerate() {
                if let Poll::Ready(ended) = runner.run.as_mut().poll(cx) {
                    return Poll::Ready(Event::Ended(at, ended));
                }
                if runner.ticket.get() {
                    return Poll::Ready(Event::Decided(at));
                }
            }
            if let Poll::Ready(failure) = copies.poll_gone(cx) {
                return Poll::Ready(Event::Gone(failure));
            }
            match late.as_mut().as_pin_mut().map(|late| late.poll(cx)) {
                Some(Poll::Ready(())) => Poll::Ready(Event::Late),
                _ => Poll::Pending,
            }
        })
        .await
    }

    /// Picks the endpoint for a copy that is due. `None` if no endpoint is left, or if the retry budget does not
    /// allow the copy.
    fn another(&self, pick: impl FnOnce() -> Option<Pick<Remote>>) -> Option<Pick<Remote>> {
        let mut hedge = self.hedge.borrow_mut();
        let Some(pick) = pick() else {
            hedge.stop();
            self.registry.count(Counter::HedgesWithoutEndpoint);
            return None;
        };
        if !self.policy.another(&mut hedge) {
            self.registry.count(Counter::HedgesOverBudget);
            return None;
        }
        Some(pick)
    }

    /// Counts the remaining copies as lost, because another copy answers the client or the client has left.
    fn lose<C>(&self, runners: &Runners<'_, C>) {
        for runner in runners {
            self.count(runner);
            if self.is_decided.get() && runner.is_connected.get() {
                // Without this, an endpoint whose responses always come too late would never look slow.
                let at_least = leno_transport::now().saturating_duration_since(runner.begun);
                self.policy.observe(at_least);
                runner.pick.observe(at_least, leno_transport::now());
            }
        }
    }

    fn count<C>(&self, runner: &Runner<'_, C>) {
        if !runner.is_first {
            let has_won = runner.ticket.get();
            self.registry.count(if has_won { Counter::HedgesWon } else { Counter::HedgesLost });
        }
    }

    /// Ends the race: returns the client's connection to the request, with the response of `ended` if that goes to
    /// the client.
    fn last<C: Copies>(&self, copies: C, ended: Ended<C::Copy>) -> RaceOutcome {
        match ended {
            Ended::NotConnected(error) => {
                copies.finish(None);
                RaceOutcome::NotConnected(error)
            }
            Ended::Exchanged(server, done, copy) => {
                copies.finish(self.is_decided.get().then_some((copy, &done)));
                RaceOutcome::Exchanged(server, done)
            }
        }
    }
}

impl<C> Runner<'_, C> {
    /// Drops the copy, and returns its endpoint.
    fn over(self) -> Rc<Pick<Remote>> {
        self.pick
    }
}

/// Records that a copy failed while others are in progress.
fn note<C>(shared: &Worker, pick: &Pick<Remote>, ended: &Ended<C>) {
    let edge = pick.endpoint().edge(shared);
    match ended {
        Ended::NotConnected(error) => {
            edge.error(error.cause());
            if error.is_of_endpoint() {
                edge.connect_failure();
                pick.connect_failed(leno_transport::now());
            }
        }
        Ended::Exchanged(server, done, _) => {
            if let Some(failure) = done.failure.as_ref().filter(|f| f.place == Party::Server) {
                server.judge(failure);
                edge.error(failure.cause.label());
                pick.failed(leno_transport::now());
                pick.penalise(leno_transport::now());
            }
        }
    }
}
