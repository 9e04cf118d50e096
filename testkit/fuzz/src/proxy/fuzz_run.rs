//! Runs a case: the planes, their sockets, and the events in order.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use leno_inbound::Inbound;
use leno_outbound::Outbound;
use leno_telemetry::tap::{Filter, Taps};
use leno_transport::{Activity, Admission, Directions, Domain, budget, scripted};
use leno_types::Protocol;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::advance;

use super::application::{Application, RunState};
use super::case::{AnswerExtra, Case, Ending, Step};
use super::client::Client;
use super::config::{Planes, SERVICES};
use super::end::{ScriptedEnd, pair};
use super::exchange::Exchanged;
use super::frames::PREFACE;
use super::letters::runs;
use super::network::{Network, guest};
use super::planes::{Dialled, Opened, dial, planes};

/// After this many turns of the event loop without progress there will be no more. Bytes that one side writes pass
/// both planes in fewer turns.
const QUIET: usize = 10;
/// The same number if the planes use mTLS, because the scripts see no progress during a handshake.
const QUIET_WITH_TLS: usize = 40;
/// Most turns of one step. A run that is not quiet by then never will be.
const TURNS: usize = 50_000;
/// The name of the tap.
pub(super) const TAP: &str = "fuzz";
/// The address that the inbound plane listens on.
const LISTENER: ([u8; 4], u16) = ([198, 51, 100, 1], 15_006);
/// The waits after the last byte was sent, in seconds. Together they are longer than any wait of the planes; the
/// first are short, so that early timeouts are seen early.
const AFTERWARDS: [u64; 12] = [1, 4, 30, 60, 120, 310, 610, 3610, 3610, 3610, 3610, 3610];
/// How many times the longest of these waits is repeated, for requests that are retried after each.
const FURTHER: usize = 100;
/// The waits after clients and applications have left, in seconds.
const ALONE: [u64; 6] = [3, 10, 60, 120, 310, 3610];

/// One run.
pub(crate) struct FuzzRun {
    outbound: Rc<Outbound>,
    inbound: Rc<Inbound>,
    /// Makes an inbound plane.
    begin_inbound: Box<dyn Fn() -> Rc<Inbound>>,
    /// The tasks of the inbound plane, if it is a guest.
    pub(super) guest: Option<Rc<Domain>>,
    network: Rc<Network>,
    pub(super) admission: Arc<Admission>,
    activity: Rc<Activity>,
    pub(super) shared: Rc<RunState>,
    case: Case,
    to_inbound: Dialled,
    opened: Opened,
    pub(super) clients: Vec<Client>,
    /// A client that sends given bytes, and then only reads.
    stranger: Option<ScriptedEnd>,
    applications: Vec<Application>,
    /// The taps. If the case has an even number of steps, one copies the beginnings of bodies.
    pub(super) taps: Taps,
    /// How many bytes were charged to the memory budget before the run.
    charged: usize,
}

impl FuzzRun {
    pub(crate) fn new(case: &Case) -> Self {
        let charged = budget::charged();
        let activity = Rc::new(Activity::default());
        let mut shared = RunState {
            is_clean: case.is_clean(),
            is_http: case.is_clean() || case.config.protocol != Protocol::Detect,
            ..RunState::default()
        };
        let mut letter = b'a';
        for (number, connection) in case.connections.iter().enumerate() {
            for request in &connection.requests {
                shared.requests.insert(letter, (number, request.clone()));
                letter += 1;
            }
        }
        let taps = Taps::default();
        if case.steps.len().is_multiple_of(2) {
            let filter = Filter {
                with_headers: true,
                with_bodies: true,
                with_decisions: true,
                ..Filter::default()
            };
            taps.open(TAP, filter).expect("no other one is open");
        }
        let shared = Rc::new(shared);
        let (to_inbound, opened) = (Dialled::default(), Opened::default());
        let network = Rc::new(Network::default());
        dial(case, (&to_inbound, &opened), &network, &shared);
        let (outbound, begin_inbound) = planes(case, &activity, &taps);
        Self {
            outbound: Rc::new(outbound),
            inbound: begin_inbound(),
            begin_inbound,
            guest: (case.config.planes == Planes::Guest).then(guest),
            network,
            admission: Admission::new(64, Directions::Inbound),
            activity,
            shared,
            case: case.clone(),
            to_inbound,
            opened,
            clients: Vec::new(),
            stranger: None,
            applications: Vec::new(),
            taps,
            charged,
        }
    }

    /// Runs the case to its end; returns the properties that did not hold.
    pub(crate) async fn run(mut self) -> Vec<String> {
        let mut first = b'a';
        for connection in &self.case.connections {
            let (near, far) = pair();
            self.clients.push(Client::new(far, connection, first));
            first += connection.requests.len() as u8;
            self.serve(near);
        }
        for step in self.case.steps.clone() {
            self.step(step).await;
        }
        for client in &mut self.clients {
            client.end.is_deaf = false;
            client.allow(usize::MAX);
        }
        for application in &mut self.applications {
            application.end.is_deaf = false;
        }
        self.settle().await;
        for seconds in AFTERWARDS {
            self.pass(Duration::from_secs(seconds)).await;
        }
        for _ in 0..FURTHER {
            if self.clients.iter().all(Client::is_over) {
                break;
            }
            self.pass(Duration::from_secs(AFTERWARDS[AFTERWARDS.len() - 1])).await;
        }
        self.check_answers();
        self.check_sent();
        self.leave().await;
        self.check_copies();
        scripted::dial_with(None);
        self.shared.violations.take()
    }

    fn serve(&self, near: TcpStream) {
        match self.case.config.planes {
            Planes::Outbound | Planes::Both | Planes::Mesh | Planes::Guest => {
                let outbound = Rc::clone(&self.outbound);
                spawn_local(async move { outbound.serve(near, LISTENER.into()).await });
            }
            Planes::Inbound => self.serve_inbound(near),
        }
    }

    fn serve_inbound(&self, near: TcpStream) {
        let inbound = Rc::clone(&self.inbound);
        let client = SocketAddr::from(([198, 51, 100, 200], 40_000));
        let (admitted, _) = self.admission.inbound(client.ip());
        let (ends, number) = ((client, LISTENER.into()), admitted.number());
        let task = self.spawn_inbound(async move { inbound.serve(near, ends, admitted).await });
        if let Some(number) = number {
            self.admission.attach(number, task.abort_handle());
        }
    }

    fn spawn_inbound(&self, task: impl Future<Output = ()> + 'static) -> JoinHandle<()> {
        match &self.guest {
            Some(guest) => guest.spawn(task),
            None => spawn_local(task),
        }
    }

    async fn step(&mut self, step: Step) {
        match step {
            Step::Send(client, bytes) => self.clients[client].allow(bytes),
            Step::Wait(ms) => return self.pass(Duration::from_millis(ms.into())).await,
            Step::Close(client) => self.clients[client].end.close(),
            Step::Deafen(client) => self.clients[client].end.is_deaf = true,
            Step::Listen(client) => self.clients[client].end.is_deaf = false,
            Step::DeafenApplication => self.deafen(true),
            Step::ListenApplication => self.deafen(false),
            Step::CloseIdle => {
                let idle = self.applications.iter_mut().filter(|application| application.is_idle());
                idle.for_each(|application| application.end.close());
            }
            Step::Drain => self.activity.drain(Duration::ZERO),
            Step::Cut => self.network.cut(),
            Step::EndGuest => self.end_guest(),
        }
        self.settle().await;
    }

    fn deafen(&mut self, is_deaf: bool) {
        for application in &mut self.applications {
            application.end.is_deaf = is_deaf;
        }
    }

    fn end_guest(&mut self) {
        if let Some(ended) = self.guest.as_mut() {
            std::mem::replace(ended, guest()).end();
            self.inbound = (self.begin_inbound)();
        }
    }

    async fn pass(&mut self, time: Duration) {
        advance(time).await;
        self.settle().await;
        if time >= Duration::from_secs(1) {
            self.outbound.sweep();
            let inbound = Rc::clone(&self.inbound);
            self.spawn_inbound(async move { inbound.sweep() });
            self.guest.iter().for_each(|guest| guest.sweep());
            self.settle().await;
        }
    }

    /// Runs everything until nothing moves any more.
    async fn settle(&mut self) {
        let enough = if self.case.config.planes.are_meshed() { QUIET_WITH_TLS } else { QUIET };
        let mut quiet = 0;
        for _ in 0..TURNS {
            yield_now().await;
            quiet = if self.pump() { 0 } else { quiet + 1 };
            if quiet == enough {
                return;
            }
        }
        self.shared.violation(format!("not quiet after {TURNS} turns"));
    }

    fn pump(&mut self) -> bool {
        let mut moved = false;
        let dialled: Vec<_> = self.to_inbound.borrow_mut().drain(..).collect();
        for near in dialled {
            self.serve_inbound(near);
            moved = true;
        }
        for (service, end) in self.opened.borrow_mut().drain(..) {
            self.applications.push(Application::new(end, service));
            moved = true;
        }
        for application in &mut self.applications {
            moved |= application.pump(&self.shared);
        }
        for client in &mut self.clients {
            match client.pump() {
                Ok(did) => moved |= did,
                Err(error) if self.shared.is_http => self.shared.violation(error),
                // Opaque bytes may be anything that an application sends.
                Err(_) => {}
            }
        }
        if let Some(stranger) = &mut self.stranger {
            moved |= stranger.pump();
        }
        moved
    }

    /// Sends bytes through the planes; returns the outcome.
    pub(crate) async fn exchange(mut self, sent: &[u8]) -> Exchanged {
        let (near, mut far) = pair();
        far.send(sent);
        self.stranger = Some(far);
        self.serve(near);
        self.settle().await;
        for seconds in [3, 70, 310, 3610, 3610] {
            self.pass(Duration::from_secs(seconds)).await;
        }
        let far = self.stranger.take().expect("put there above");
        let mut got = Exchanged::read(far.inbox.clone(), sent.starts_with(PREFACE));
        got.ended |= far.ended;
        got.requests = self.applications.iter().flat_map(Application::received).collect();
        drop(far);
        self.leave().await;
        got.violations = self.shared.violations.take();
        scripted::dial_with(None);
        got
    }

    fn check_answers(&self) {
        for client in &self.clients {
            if let Err(error) = client.check(self.shared.is_clean) {
                self.shared.violation(format!("{error}; {}", client.describe()));
            }
            // If no limit applies, a stream may be idle for hours.
            let lasts = !self.shared.is_clean || self.case.breaks_off_by(Ending::Stall);
            let may_last = client.is_http2() && lasts && !self.case.config.limits.stall_streams;
            if !client.is_over() && !may_last {
                let whole = client.whole();
                let what = format!("{whole} requests sent, neither answered nor ended");
                self.shared.violation(format!("{what}; {}", client.describe()));
            }
        }
    }

    /// Checks that the bodies that a tap shows for a request are from one request.
    fn check_copies(&self) {
        let (tapped, _) = self.taps.poll(TAP).unwrap_or_default();
        for request in tapped.iter().filter(|_| self.shared.is_clean) {
            let bodies = [&request.request_body, &request.response_body].into_iter().flatten();
            if let Some(letters) = mixed(bodies.map(|body| &*body.text)) {
                self.shared
                    .violation(format!("a tap shows bodies of {letters:?} as of one request"));
            }
        }
    }

    /// Checks that no request reaches a service more often than policy allows.
    fn check_sent(&self) {
        let config = &self.case.config;
        for ((service, letter), count) in &*self.shared.seen.borrow() {
            let Some((_, request)) = self.shared.requests.get(letter) else { continue };
            // An application may report that it has not processed requests. The proxy then sends them again.
            let is_unseen = self.case.breaks_off_by(Ending::GoAway)
                || matches!(request.answer.cut, Some((_, Ending::Refuse)))
                || request.answer.extra == Some(AnswerExtra::Unreachable);
            let is_idempotent = request.method.is_idempotent();
            // If a reused connection breaks, each plane sends idempotent requests again.
            let hops = if config.planes.are_both() { 2 } else { 1 };
            let kept = if is_idempotent { 9 * hops } else { 1 };
            let most = config.most_sent(is_idempotent) * kept;
            let is_copy = *service == SERVICES.len() - 1;
            if self.shared.is_clean && !is_unseen && !is_copy && *count > most {
                let letter = *letter as char;
                self.shared.violation(format!("{letter:?} was sent {count} times, not {most}"));
            }
        }
    }

    /// Makes clients and applications leave, and then checks that nothing is left behind.
    async fn leave(&mut self) {
        self.clients.clear();
        self.settle().await;
        self.applications.clear();
        for seconds in ALONE {
            self.pass(Duration::from_secs(seconds)).await;
            self.applications.clear();
        }
        leno_http::trim_pool();
        leno_h2::trim_chunks();
        leno_transport::trim_buffers();
        let tasks = Handle::current().metrics().num_alive_tasks();
        let charged = budget::charged() as i128 - self.charged as i128;
        let (busy, places) = (self.activity.busy(), self.admission.connections());
        let open = leno_h2::open_counts().map(|open| format!("{open:?}"));
        if tasks != 0 || charged != 0 || busy != 0 || places != 0 {
            let left = format!(
                "{tasks} tasks, {charged} bytes charged, {busy} busy, {places} places, {open:?}"
            );
            self.shared.violation(format!("left behind: {left}"));
        }
    }
}

/// The letters in bodies, if they belong to more than one request.
pub(super) fn mixed<'b>(bodies: impl Iterator<Item = &'b str>) -> Option<String> {
    let mut letters: Vec<u8> =
        bodies.flat_map(|body| runs(body.to_ascii_lowercase().as_bytes())).collect();
    letters.sort_unstable();
    letters.dedup();
    (letters.len() > 1).then(|| String::from_utf8_lossy(&letters).into_owned())
}
