//! The tests act as the process: they receive its orders and send its reports.

use std::io;

use leno_handover::ProxyOrder as ProcessOrder;
use nix::sys::signal::Signal;
use tokio::task::LocalSet;

use super::*;
use crate::keep_running::Condemned;

/// A host that can never start a process.
struct FullMachine;

impl NodeProxyHost for FullMachine {
    type Error = Error;

    fn start(&self, _orders: Channel) -> Result<RunningProcess, Error> {
        let source = io::ErrorKind::OutOfMemory.into();
        Err(Error::Os { what: "cannot start".to_owned(), source })
    }

    fn say(&self, _text: &str) {}

    fn has_hung(&self) {}
}

fn joining(number: u64) -> (JoiningMember, Channel, mpsc::UnboundedReceiver<MemberEvent>) {
    let (broker, far) = Channel::pair().unwrap();
    let (events, happened) = mpsc::unbounded_channel();
    let member = Member {
        namespace: "shop".to_owned(),
        name: "web-0".to_owned(),
        workload: None,
        token: "token".into(),
        pod_uid: None,
        kubelet: leno_handover::KubeletProbes::default(),
        datagrams: false,
    };
    (JoiningMember { member, broker, events, number, succeeds: true }, far, happened)
}

/// A group with a process. Also returns the process's end of the channel.
fn task() -> (NodeProxyTask<FullMachine>, AsyncChannel) {
    let (process, far) = Channel::pair().unwrap();
    let (orders, _received) = mpsc::unbounded_channel();
    let task = NodeProxyTask {
        host: Rc::new(FullMachine),
        name: "web".to_owned(),
        orders,
        turns: SuccessionTurns::default(),
        wanted: Rc::default(),
        members: BTreeMap::new(),
        leaving: BTreeMap::new(),
        told: 0,
        process: Some(Rc::new(AsyncChannel::new(process).unwrap())),
        watchdog: Watchdog::default(),
    };
    (task, AsyncChannel::new(far).unwrap())
}

/// Makes a member join, whose turn it is at once.
async fn join(task: &mut NodeProxyTask<FullMachine>, member: JoiningMember) {
    let number = member.number;
    task.obey(MemberOrder::Join(name(), member));
    let turn = SuccessionTurns::default().turn().await;
    task.obey(MemberOrder::Turn(name(), number, turn));
}

async fn ordered(process: &AsyncChannel) -> ProcessOrder {
    process.receive().await.unwrap().unwrap().0
}

/// Whether the other end of a channel is closed after at most this many messages.
async fn is_closed(channel: Channel, messages: usize) -> bool {
    let channel = AsyncChannel::new(channel).unwrap();
    for _ in 0..messages {
        assert!(channel.receive::<ServeOrder>().await.unwrap().is_some());
    }
    channel.receive::<()>().await.unwrap().is_none()
}

fn name() -> InstanceName {
    InstanceName::new("shop", "web-0").unwrap()
}

fn leave((number, succeeded): (u64, bool)) -> (MemberOrder, oneshot::Receiver<DepartedMember>) {
    let (answer, answered) = oneshot::channel();
    (MemberOrder::Leave { name: name(), number, succeeded, answer }, answered)
}

fn report(number: u64, state: MemberState) -> Option<MemberReport> {
    Some(MemberReport { number, state })
}

#[tokio::test]
async fn a_member_that_joins_after_one_of_its_name_has_left_stays() {
    let name = name();
    let of_group = async {
        let group = Group::start("web", FullMachine, SuccessionTurns::default());
        let (first, first_far, _) = joining(1);
        let (second, _second_far, mut happened) = joining(2);
        group.join(&name, first);
        let left = group.leave(&name, (1, false));
        group.join(&name, second);
        let broker = left.await.unwrap().broker;
        broker.send(&ServeOrder::default(), &[]).unwrap();
        assert!(first_far.receive::<ServeOrder>().unwrap().is_some(), "the first one has left");
        // An order that is given after these two is carried out after them.
        let other = InstanceName::new("shop", "web-1").unwrap();
        assert!(group.leave(&other, (1, false)).await.is_none());
        let gone = mpsc::error::TryRecvError::Disconnected;
        assert_ne!(happened.try_recv(), Err(gone), "the second one has left");
        group.end(StopStage::All).await;
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn a_member_that_leaves_keeps_its_broker_until_its_own_end_is_reported() {
    let of_group = async {
        let (mut task, process) = task();
        let (first, first_far, mut first_happened) = joining(1);
        let (second, _second_far, mut happened) = joining(2);
        let (left, waited_for) = leave((1, true));
        join(&mut task, first).await;
        task.obey(left);
        join(&mut task, second).await;
        let ProcessOrder::Join { number, succeeds, .. } = ordered(&process).await else { panic!() };
        assert!(succeeds);
        assert_eq!(ordered(&process).await, ProcessOrder::Leave { number, succeeded: true });
        let ProcessOrder::Join { number: again, .. } = ordered(&process).await else { panic!() };
        assert_ne!(number, again);
        assert_eq!(happened.recv().await, Some(MemberEvent::Joined));

        task.heard(report(again, MemberState::Released));
        assert_eq!(happened.recv().await, Some(MemberEvent::Lost(Loss::Released)));
        let broker = AsyncChannel::new(first_far).unwrap();
        assert!(broker.receive::<ServeOrder>().await.unwrap().is_some(), "it still runs");
        task.heard(report(number, MemberState::Released));
        drop(waited_for.await.unwrap());
        assert!(
            broker.receive::<ServeOrder>().await.unwrap().is_none(),
            "then its channel is closed"
        );
        assert_eq!(first_happened.recv().await, Some(MemberEvent::Joined));
        assert_eq!(first_happened.recv().await, None, "a member that leaves is not lost");
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn a_process_that_a_signal_has_stopped_is_condemned_once_and_its_members_learn_why() {
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let of_group = async {
        let (mut task, _process) = task();
        let mut condemned = task.watchdog.condemned();
        let (member, broker, mut happened) = joining(1);
        join(&mut task, member).await;
        // A broker that receives nothing would be reported as hung, too.
        broker.receive::<ServeOrder>().unwrap().unwrap();
        task.watchdog.started(pid);
        task.heard(Some(MemberReport::ALIVE));
        task.look();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP).unwrap();
        while !condemned.has_changed().unwrap() {
            task.heard(Some(MemberReport::ALIVE));
            task.look();
        }
        assert_eq!(*condemned.borrow_and_update(), Some(Condemned { pid, hangs: true }));
        task.look();
        assert!(!condemned.has_changed().unwrap(), "it is killed once");
        task.has_ended(&LifeEvent::Stopped);
        assert_eq!(happened.recv().await, Some(MemberEvent::Joined));
        let loss = Loss::Hung(Hang::Stopped);
        assert_eq!(happened.recv().await, Some(MemberEvent::Lost(loss)));
        assert_eq!(loss.to_string(), "was stopped by a signal and was replaced");
        assert_eq!((task.watchdog.look(), task.watchdog.ended()), (None, None), "none runs");
    };
    LocalSet::new().run_until(of_group).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test]
async fn only_the_first_process_that_serves_a_member_succeeds_another_one() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, mut happened) = joining(1);
        join(&mut task, member).await;
        let mut numbers = Vec::new();
        for succeeds in [true, true, false] {
            let ProcessOrder::Join { number, succeeds: told, .. } = ordered(&process).await else {
                panic!()
            };
            assert_eq!(told, succeeds);
            numbers.push(number);
            // The second process serves the member.
            if numbers.len() == 2 {
                task.heard(report(number, MemberState::Serving));
            }
            let same = task.process.clone();
            task.has_ended(&LifeEvent::Stopped);
            task.serve_all(same);
        }
        let mut all = Vec::new();
        while let Ok(event) = happened.try_recv() {
            all.push(event);
        }
        let [joined, lost] = [MemberEvent::Joined, MemberEvent::Lost(Loss::Released)];
        assert_eq!(all, [joined, lost, joined, MemberEvent::Serving, lost, joined, lost, joined]);
        // This report is about a membership in an earlier process.
        task.heard(report(numbers[0], MemberState::Released));
        assert!(happened.try_recv().is_err());
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn an_order_to_leave_that_the_process_has_no_room_for_is_given_again() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, _happened) = joining(1);
        join(&mut task, member).await;
        let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
        let near = task.process.clone().unwrap();
        let full = (0..).find(|_| near.send(&(), &[]).is_err()).unwrap();
        let (left, mut waited_for) = leave((1, true));
        task.obey(left);
        assert!(waited_for.try_recv().is_err(), "it cannot have left yet");
        for _ in 0..full {
            process.receive::<()>().await.unwrap();
        }
        task.obey(MemberOrder::LeaveAgain(number));
        assert_eq!(ordered(&process).await, ProcessOrder::Leave { number, succeeded: true });
        // The order is not sent a second time.
        task.obey(MemberOrder::LeaveAgain(number));
        near.send(&(), &[]).unwrap();
        process.receive::<()>().await.unwrap();
        task.heard(report(number, MemberState::Released));
        waited_for.await.unwrap();
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn a_process_that_does_not_release_a_member_is_disconnected_from_its_broker() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, orders, _happened) = joining(1);
        join(&mut task, member).await;
        let (_, link) = process.receive::<ProcessOrder>().await.unwrap().unwrap();
        let [link] = <[_; 1]>::try_from(link).unwrap();
        let (_, of_broker) = orders.receive::<ServeOrder>().unwrap().unwrap();
        let [of_broker] = <[_; 1]>::try_from(of_broker).unwrap();
        let (left, waited_for) = leave((1, true));
        task.obey(left);
        task.obey(MemberOrder::Revoke);
        assert_eq!(task.leaving.len(), 1, "it is waited for");
        drop(waited_for);
        task.obey(MemberOrder::Revoke);
        assert!(is_closed(link.into(), 0).await, "the process has it");
        assert!(is_closed(of_broker.into(), 0).await, "the broker has it");
        assert!(is_closed(orders, 0).await, "the channel for orders to its broker is still open");
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn a_member_is_not_served_twice_by_one_process() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, _happened) = joining(7);
        join(&mut task, member).await;
        let ProcessOrder::Join { .. } = ordered(&process).await else { panic!() };
        task.obey(MemberOrder::Again(name(), 7));
        let (left, _waited_for) = leave((7, false));
        task.obey(left);
        let ProcessOrder::Leave { .. } = ordered(&process).await else { panic!() };
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn repeated_reports_of_a_process_count_once() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, mut happened) = joining(1);
        join(&mut task, member).await;
        let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
        for _ in 0..10_000 {
            task.heard(report(number, MemberState::Serving));
        }
        let events = [happened.try_recv(), happened.try_recv(), happened.try_recv()];
        let none = mpsc::error::TryRecvError::Empty;
        assert_eq!(events, [Ok(MemberEvent::Joined), Ok(MemberEvent::Serving), Err(none)]);
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn a_member_whose_thread_stalls_is_served_by_another_thread_at_once() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, mut happened) = joining(1);
        join(&mut task, member).await;
        let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
        task.heard(report(number, MemberState::Serving));
        task.heard(report(number, MemberState::Stalled));
        let ProcessOrder::Join { number: next, succeeds, .. } = ordered(&process).await else {
            panic!()
        };
        assert!(next != number && !succeeds);
        // The end of the stalled membership does not affect the later one, which serves.
        task.heard(report(number, MemberState::Released));
        let used = leno_handover::CpuUse { cpu_ms: 900, of_ms: 1000 };
        task.heard(report(number, MemberState::Used(used)));
        // The process reports far more often than it should.
        for _ in 0..1000 {
            task.heard(report(next, MemberState::Used(used)));
        }
        let mut all = Vec::new();
        while let Ok(event) = happened.try_recv() {
            all.push(event);
        }
        use MemberEvent::{Joined, Lost, Serving, Stalled, Used};
        assert_eq!(all, [Joined, Serving, Lost(Loss::Released), Stalled, Joined, Used(used)]);
    };
    LocalSet::new().run_until(of_group).await;
}

/// Otherwise the broker would be kept as long as the thread stalls.
#[tokio::test]
async fn a_member_that_stalls_while_it_leaves_is_not_waited_for() {
    let of_group = async {
        let (mut task, process) = task();
        let (member, _far, _happened) = joining(1);
        join(&mut task, member).await;
        let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
        let (left, waited_for) = leave((1, true));
        task.obey(left);
        task.heard(report(number, MemberState::Stalled));
        waited_for.await.unwrap();
    };
    LocalSet::new().run_until(of_group).await;
}

/// A process reports that it cuts streams before it releases their workload; if it ends, it cuts them without a report.
#[tokio::test]
async fn a_member_whose_streams_were_cut_is_told_apart_from_one_whose_streams_ended() {
    let of_group = async {
        for (reports, cut) in [
            (&[Some(MemberState::Released)][..], false),
            (&[Some(MemberState::Cut), Some(MemberState::Released)], true),
            (&[None], true),
        ] {
            let (mut task, process) = task();
            let (member, _far, _happened) = joining(1);
            join(&mut task, member).await;
            let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
            let (left, mut waited_for) = leave((1, true));
            task.obey(left);
            for state in reports {
                assert!(waited_for.try_recv().is_err(), "it is waited for");
                match state {
                    Some(state) => task.heard(report(number, *state)),
                    None => task.has_ended(&LifeEvent::Stopped),
                }
            }
            assert_eq!(waited_for.await.unwrap().cut, cut, "{reports:?}");
        }
    };
    LocalSet::new().run_until(of_group).await;
}

/// Regression: the order to leave reached an earlier membership of the same name in the same group.
#[tokio::test]
async fn an_order_to_leave_affects_only_the_membership_of_its_number() {
    let of_group = async {
        let (mut task, process) = task();
        let ((first, _far, _), (second, _second_far, _happened)) = (joining(1), joining(2));
        join(&mut task, first).await;
        join(&mut task, second).await;
        let (late, answer) = leave((1, true));
        task.obey(late);
        assert!(answer.await.is_err());
        assert!(task.members.contains_key(&name()), "no process serves it");
        for is_join in [true, false, true] {
            assert_eq!(matches!(ordered(&process).await, ProcessOrder::Join { .. }), is_join);
        }
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_whose_thread_stalls_repeatedly_is_served_again_after_longer_pauses() {
    let of_group = async {
        let (mut task, process) = task();
        let (orders, mut received) = mpsc::unbounded_channel();
        task.orders = orders;
        let (mut member, _far, _happened) = joining(1);
        member.succeeds = false;
        task.obey(MemberOrder::Join(name(), member));
        for pause_s in [0, 1, 2, 4] {
            let ProcessOrder::Join { number, .. } = ordered(&process).await else { panic!() };
            let begin = tokio::time::Instant::now();
            task.heard(report(number, MemberState::Stalled));
            if pause_s > 0 {
                task.obey(received.recv().await.unwrap());
            }
            assert_eq!(begin.elapsed().as_secs(), pause_s);
        }
        assert_eq!([pause(0), pause(9), pause(99)], [None, Some(AGAIN * 256), Some(STALL_PAUSE)]);
    };
    LocalSet::new().run_until(of_group).await;
}

/// Regression: all members of a machine joined at once, and messages on their open connections had to wait for a
/// CPU.
#[tokio::test]
async fn members_that_other_processes_serve_join_in_turns_and_others_at_once() {
    let of_group = async {
        let (mut task, process) = task();
        let (orders, mut received) = mpsc::unbounded_channel();
        task.orders = orders;
        task.turns = SuccessionTurns::of(1);
        let named = |name: &str| InstanceName::new("shop", name).unwrap();
        let mut kept = Vec::new();
        for (number, who) in [(1, "first"), (2, "second"), (3, "new")] {
            let (mut member, far, happened) = joining(number);
            member.succeeds = who != "new";
            kept.push((far, happened));
            task.obey(MemberOrder::Join(named(who), member));
        }
        let joined = async |process: &AsyncChannel| {
            let ProcessOrder::Join { number, succeeds, .. } = ordered(process).await else {
                panic!()
            };
            (number, succeeds)
        };
        assert!(!joined(&process).await.1, "no other process serves it");
        task.obey(received.recv().await.unwrap());
        let (first, succeeds) = joined(&process).await;
        assert!(succeeds);
        tokio::task::yield_now().await;
        assert!(received.try_recv().is_err(), "the second one has a turn");
        task.heard(report(first, MemberState::Serving));
        task.obey(received.recv().await.unwrap());
        let (second, succeeds) = joined(&process).await;
        assert!(succeeds && second > first);
        // A member that leaves before its process serves it also gives its turn to the next one.
        let (third, _far, _happened) = joining(4);
        task.obey(MemberOrder::Join(named("third"), third));
        let (answer, _left) = oneshot::channel();
        task.obey(MemberOrder::Leave { name: named("second"), number: 2, succeeded: true, answer });
        task.obey(received.recv().await.unwrap());
        let ProcessOrder::Leave { .. } = ordered(&process).await else { panic!() };
        assert!(joined(&process).await.0 > second);
    };
    LocalSet::new().run_until(of_group).await;
}

#[tokio::test]
async fn an_unknown_report_is_ignored() {
    let (near, far) = Channel::pair().unwrap();
    near.send(&("later", 7), &[]).unwrap();
    near.send(&MemberReport { number: 2, state: MemberState::Serving }, &[]).unwrap();
    let process = AsyncChannel::new(far).unwrap();
    assert_eq!(hear(Some(&process)).await, report(2, MemberState::Serving));
}
