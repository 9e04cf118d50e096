//! Node proxies: a process for each group of workloads.
//!
//! ```text
//! workload ── join, leave ──► Group ── keeps running ──► leno-proxy --node      (where its host starts it)
//!                               │                             ▲
//!                               └── a channel each ───────────┤ sockets
//! leno-proxy --broker ────────────────────────────────────────┘     (the workload's namespace and control group)
//! ```
//! A process that ends is started again at once, and serves all members again: their brokers, and so their listeners,
//! live on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use leno_handover::{AsyncChannel, Channel, Member, Serve, WorkloadReleased};
use leno_program::chain;
use leno_types::InstanceName;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::backoff::Backoff;
use crate::error::Error;
use crate::keep::{Event, Rules, Stop, keep_running};
use crate::process::{Running, after, describe};

/// The longest a process may take to end. It has no members by then.
const END_BOUND: Duration = Duration::from_secs(5);
/// Between a member that is not served, although its broker lives, and the next attempt.
const AGAIN: Duration = Duration::from_secs(1);

/// Where the process of a group runs, and what is printed of it.
pub trait NodeProxyHost: 'static {
    /// Why the process cannot be started.
    type Error: std::error::Error + From<Error> + 'static;

    /// Starts the process, which takes orders from this channel.
    ///
    /// # Errors
    /// It cannot be started; that is tried again.
    fn start(&self, orders: Channel) -> Result<Running, Self::Error>;

    /// Prints what an operator should see.
    fn say(&self, text: &str);
}

/// A group of workloads and the process that serves them. The process ends with [`Group::end`].
#[derive(Debug)]
pub struct Group {
    orders: mpsc::UnboundedSender<Order>,
    stop: watch::Sender<Stop>,
    task: JoinHandle<()>,
}

/// What a member learns of the process that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It was told to serve the member.
    Joined,
    /// It does so no more.
    Lost,
}

/// A member as its group knows it.
#[derive(Debug)]
pub struct Joining {
    /// What its proxy is told.
    pub member: Member,
    /// Takes the orders for its broker.
    pub broker: Channel,
    /// Where it learns what happens to it.
    pub events: mpsc::UnboundedSender<Happened>,
    /// Tells it from an earlier one of the same name.
    pub number: u64,
}

/// What members want of their group.
#[derive(Debug)]
enum Order {
    Join(InstanceName, Joining),
    /// Try again for the member that joined with this number, if it is still the same.
    Again(InstanceName, u64),
    /// The answer comes when nothing of the member is under way.
    Leave(InstanceName, oneshot::Sender<Joining>),
}

impl Group {
    /// Starts the process of a group without members, in a runtime's `LocalSet`.
    #[must_use]
    pub fn start<H: NodeProxyHost>(name: &str, host: H) -> Self {
        let (orders, received) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(Stop::No);
        let task = NodeProxyTask {
            host: Rc::new(host),
            name: name.to_owned(),
            orders: orders.clone(),
            members: BTreeMap::new(),
            leaving: BTreeMap::new(),
            process: None,
        };
        let task = tokio::task::spawn_local(task.run(received, stopped));
        Self { orders, stop, task }
    }

    /// Has the process serve a workload, in place of an earlier one of the same name.
    pub fn join(&self, name: &InstanceName, joining: Joining) {
        // The task ends after the last member.
        let _ended = self.orders.send(Order::Join(name.clone(), joining));
    }

    /// Has the process finish what is under way for a workload; the future waits for that. It yields the channel to its
    /// broker, which ends with it. The order is given at once, so that a later [`Self::join`] of this name stays.
    pub fn leave(&self, name: &InstanceName) -> impl Future<Output = Option<Channel>> + use<> {
        let (answer, answered) = oneshot::channel();
        let _ended = self.orders.send(Order::Leave(name.clone(), answer));
        // A sender that is dropped is an answer, too: it was no member.
        async move { answered.await.ok().map(|joining| joining.broker) }
    }

    /// Ends the process, and waits for that.
    pub async fn end(self, stop: Stop) {
        self.stop.send_replace(stop.max(Stop::All));
        // A panic is printed by the runtime.
        let _ended = self.task.await;
    }
}

/// The task of a group.
struct NodeProxyTask<H> {
    host: Rc<H>,
    name: String,
    orders: mpsc::UnboundedSender<Order>,
    members: BTreeMap<InstanceName, Joining>,
    /// Members until what is under way for them has ended: connections out of their namespaces still need brokers.
    leaving: BTreeMap<InstanceName, (Joining, oneshot::Sender<Joining>)>,
    /// Takes orders while the process runs.
    process: Option<Rc<AsyncChannel>>,
}

impl<H: NodeProxyHost> NodeProxyTask<H> {
    async fn run(
        mut self,
        mut received: mpsc::UnboundedReceiver<Order>,
        stop: watch::Receiver<Stop>,
    ) {
        let host = Rc::clone(&self.host);
        let newest = RefCell::new(None);
        let start = || -> Result<Running, H::Error> {
            let what = || "cannot make a socket for orders".to_owned();
            let (near, far) = Channel::pair().map_err(Error::os(what))?;
            let running = host.start(far)?;
            let near = AsyncChannel::new(near).map_err(Error::os(what))?;
            *newest.borrow_mut() = Some(Rc::new(near));
            Ok(running)
        };
        let (events, mut happened) = mpsc::unbounded_channel();
        let rules = Rules::always(Backoff::eager(Instant::now()), END_BOUND);
        let process = async {
            // The receiver is polled beside the process and ends after it.
            let report = |event| drop(events.send(event));
            keep_running(start, rules, (stop, Stop::All), report).await;
            drop(events);
        };
        let work = async {
            loop {
                let process = self.process.clone();
                tokio::select! {
                    event = happened.recv() => match event {
                        Some(Event::Started(_)) => self.serve_all(newest.borrow_mut().take()),
                        Some(event) => self.has_ended(&event),
                        None => break,
                    },
                    Some(order) = received.recv() => self.obey(order),
                    left = hear(process.as_deref()) => self.left(left),
                }
            }
        };
        tokio::join!(process, work);
    }

    /// A new process serves all members.
    fn serve_all(&mut self, process: Option<Rc<AsyncChannel>>) {
        self.process = process;
        let members: Vec<InstanceName> = self.members.keys().cloned().collect();
        members.iter().for_each(|name| self.serve(name));
    }

    /// Connects a member's broker to the process, if that runs.
    fn serve(&self, name: &InstanceName) {
        let (Some(process), Some(joined)) = (&self.process, self.members.get(name)) else { return };
        let order = leno_handover::Order::Join(joined.member.clone());
        let connect = || {
            let (near, far) = Channel::pair()?;
            joined.broker.send(&Serve {}, &[near.as_fd()])?;
            process.send(&order, &[far.as_fd()])
        };
        match connect() {
            Ok(()) => {
                // The workload has an end of its own.
                let _ending = joined.events.send(Happened::Joined);
            }
            // So many joined at once that the process has yet to read of them.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.try_again(name.clone(), joined.number);
            }
            // Either the process or the broker has ended, and is started again.
            Err(error) => {
                self.host.say(&format!("the proxy of {name} cannot be connected: {error}"));
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Join(name, joining) => {
                // Of this name the process reports the end of the newest one alone. An earlier one has its broker for as
                // long as it is waited for.
                if let Some((earlier, mut answer)) = self.leaving.remove(&name) {
                    tokio::task::spawn_local(async move {
                        answer.closed().await;
                        drop(earlier);
                    });
                }
                self.members.insert(name.clone(), joining);
                self.serve(&name);
            }
            Order::Again(name, number) => {
                if self.members.get(&name).is_some_and(|member| member.number == number) {
                    self.serve(&name);
                }
            }
            Order::Leave(name, answer) => {
                let Some(member) = self.members.remove(&name) else { return };
                let order = leno_handover::Order::Leave {
                    namespace: name.namespace.to_string(),
                    name: name.name.to_string(),
                };
                let process = self.process.as_ref();
                if process.is_some_and(|process| process.send(&order, &[]).is_ok()) {
                    self.leaving.insert(name, (member, answer));
                } else {
                    has_left(member, answer);
                }
            }
        }
    }

    /// The process serves a workload no more, or cannot be heard.
    fn left(&mut self, left: Option<WorkloadReleased>) {
        let Some(WorkloadReleased { namespace, name }) = left else {
            // It has ended, or does so now.
            self.process = None;
            return;
        };
        let Ok(name) = InstanceName::new(&namespace, &name) else { return };
        if let Some((member, answer)) = self.leaving.remove(&name) {
            return has_left(member, answer);
        }
        let Some(member) = self.members.get(&name) else { return };
        let _ending = member.events.send(Happened::Lost);
        self.try_again(name, member.number);
    }

    fn try_again(&self, name: InstanceName, number: u64) {
        let orders = self.orders.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(AGAIN).await;
            let _ended = orders.send(Order::Again(name, number));
        });
    }

    fn has_ended(&mut self, event: &Event<H::Error>) {
        self.process = None;
        // Nothing is under way any more.
        for (member, answer) in std::mem::take(&mut self.leaving).into_values() {
            has_left(member, answer);
        }
        for member in self.members.values() {
            let _ending = member.events.send(Happened::Lost);
        }
        match event {
            Event::Ended(status, wait) => {
                let (how, when) = (describe(*status), after(*wait));
                let (group, members) = (&self.name, self.members.len());
                self.host.say(&format!(
                    "the proxy of group {group} ({members} served) {how}; starting it again {when}"
                ));
            }
            Event::Failed(error, _) => self.host.say(&chain(error)),
            Event::Started(_) | Event::Over(_) | Event::Stopping | Event::Stopped => {}
        }
    }
}

fn has_left(member: Joining, answer: oneshot::Sender<Joining>) {
    // The workload may have waited long enough.
    let _left = answer.send(member);
}

/// The next workload that the process serves no more; `None` if it says nothing any more. Waits for ever without
/// a process.
async fn hear(process: Option<&AsyncChannel>) -> Option<WorkloadReleased> {
    match process {
        Some(process) => {
            process.receive::<WorkloadReleased>().await.ok().flatten().map(|(left, _)| left)
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::task::LocalSet;

    use super::*;

    /// A machine on which no process can be started.
    struct Full;

    impl NodeProxyHost for Full {
        type Error = Error;

        fn start(&self, _orders: Channel) -> Result<Running, Error> {
            let source = io::ErrorKind::OutOfMemory.into();
            Err(Error::Os { what: "cannot start".to_owned(), source })
        }

        fn say(&self, _text: &str) {}
    }

    fn joining(number: u64) -> (Joining, Channel, mpsc::UnboundedReceiver<Happened>) {
        let (broker, far) = Channel::pair().unwrap();
        let (events, happened) = mpsc::unbounded_channel();
        let member = Member {
            namespace: "shop".to_owned(),
            name: "web-0".to_owned(),
            workload: None,
            token: "token".into(),
            pod_uid: None,
            kubelet: leno_handover::KubeletProbes::default(),
        };
        (Joining { member, broker, events, number }, far, happened)
    }

    #[tokio::test]
    async fn a_member_that_joins_after_one_of_its_name_has_left_stays() {
        let name = InstanceName::new("shop", "web-0").unwrap();
        let of_group = async {
            let group = Group::start("web", Full);
            let (first, first_far, _) = joining(1);
            let (second, _second_far, mut happened) = joining(2);
            group.join(&name, first);
            let left = group.leave(&name);
            group.join(&name, second);
            let broker = left.await.unwrap();
            broker.send(&Serve {}, &[]).unwrap();
            assert!(first_far.receive::<Serve>().unwrap().is_some(), "the first one has left");
            // An order that was given after both is obeyed after them.
            let other = InstanceName::new("shop", "web-1").unwrap();
            assert!(group.leave(&other).await.is_none());
            let gone = mpsc::error::TryRecvError::Disconnected;
            assert_ne!(happened.try_recv(), Err(gone), "the second one has left");
            group.end(Stop::All).await;
        };
        LocalSet::new().run_until(of_group).await;
    }

    #[tokio::test]
    async fn an_end_that_is_reported_is_that_of_the_newest_member_of_a_name() {
        let name = InstanceName::new("shop", "web-0").unwrap();
        let of_group = async {
            let (process, _process_far) = Channel::pair().unwrap();
            let (orders, _received) = mpsc::unbounded_channel();
            let mut task = NodeProxyTask {
                host: Rc::new(Full),
                name: "web".to_owned(),
                orders,
                members: BTreeMap::new(),
                leaving: BTreeMap::new(),
                process: Some(Rc::new(AsyncChannel::new(process).unwrap())),
            };
            let (first, first_far, _) = joining(1);
            let (second, _second_far, mut happened) = joining(2);
            let (answer, waited_for) = oneshot::channel();
            task.obey(Order::Join(name.clone(), first));
            task.obey(Order::Leave(name.clone(), answer));
            task.obey(Order::Join(name.clone(), second));
            assert_eq!(happened.recv().await, Some(Happened::Joined));
            let (namespace, of) = (name.namespace.to_string(), name.name.to_string());
            task.left(Some(WorkloadReleased { namespace, name: of }));
            assert_eq!(happened.recv().await, Some(Happened::Lost));
            let broker = AsyncChannel::new(first_far).unwrap();
            assert!(broker.receive::<Serve>().await.unwrap().is_some(), "it lives on");
            drop(waited_for);
            assert!(broker.receive::<Serve>().await.unwrap().is_none(), "and is let go");
        };
        LocalSet::new().run_until(of_group).await;
    }
}
